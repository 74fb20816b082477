//! Values that are computed by the code after a probe.
//!
//! gcc moves the last operations of a function, such as the addition of `return a + b`, after the
//! call to the probe at its exit. The probe executes the same operations on the current contents of
//! the registers and the stack.
//!
//! A computation is a list of steps. Each has a 64-bit value, which may depend on the values of
//! earlier steps; the last one is the result. Floats are represented by their bits.
//!
//! [`Computation::evaluate`] runs in probes, including those in signal handlers: it does not
//! allocate, and does not panic.

use super::Register;

/// Maximum number of steps.
const MAX_STEPS: usize = 32;

/// The index of a step.
pub(super) type Number = u8;

/// A step that computes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Constant(u64),
    /// The value of a register at the probe, plus a constant.
    Register(Register, i64),
    /// This number of bytes in memory, at a distance from RSP or RBP at the probe; the upper bytes
    /// are 0.
    Memory(Register, i32, u8),
    /// This number of lower bytes; the upper bytes are 0.
    ZeroExtend(Number, u8),
    /// This number of lower bytes, sign-extended.
    SignExtend(Number, u8),
    Unary(Unary, Number),
    Binary(Binary, Number, Number),
    /// The second value if the first is not 0, otherwise the third.
    Select(Number, Number, Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    /// From a signed 64-bit integer.
    IntegerToFloat,
    IntegerToDouble,
    FloatToDouble,
    DoubleToFloat,
    /// Truncates towards zero; out of range, the result is the lowest integer.
    FloatToI32,
    FloatToI64,
    DoubleToI32,
    DoubleToI64,
    SqrtFloat,
    SqrtDouble,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    /// The upper half of a 128-bit product.
    MulHighSigned,
    MulHighUnsigned,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Sar,
    /// 1 or 0; the same for those below.
    Equal,
    LessSigned,
    LessUnsigned,
    LessFloat,
    LessEqualFloat,
    LessDouble,
    LessEqualDouble,
    AddFloat,
    SubFloat,
    MulFloat,
    DivFloat,
    AddDouble,
    SubDouble,
    MulDouble,
    DivDouble,
}

/// A description of how a value is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computation(Box<[Step]>);

impl Computation {
    /// Keeps the steps on which one of these steps depends. `None` if there are too many.
    pub(super) fn of(steps: &[Step], result: Number) -> Option<Self> {
        let mut is_needed = vec![false; usize::from(result) + 1];
        *is_needed.last_mut()? = true;
        for number in (0..is_needed.len()).rev() {
            if is_needed[number] {
                operands(steps[number]).for_each(|operand| is_needed[usize::from(operand)] = true);
            }
        }
        let mut numbers = vec![0; is_needed.len()];
        let mut needed = Vec::new();
        for number in (0..is_needed.len()).filter(|number| is_needed[*number]) {
            numbers[number] = Number::try_from(needed.len()).ok()?;
            needed.push(renumbered(steps[number], &numbers));
        }
        (needed.len() <= MAX_STEPS).then(|| Self(needed.into()))
    }

    /// Evaluates the computation. `general` returns the value of a register, `read` that of bytes
    /// in memory. `None` if one of these is not known.
    pub fn evaluate(
        &self,
        general: impl Fn(Register) -> Option<u64>,
        read: impl Fn(Register, i32, u8) -> Option<u64>,
    ) -> Option<u64> {
        let mut values = [0; MAX_STEPS];
        let mut last = None;
        for (number, step) in self.0.iter().enumerate() {
            let value = |number: Number| values.get(usize::from(number)).copied();
            let found = match *step {
                Step::Constant(value) => value,
                Step::Register(register, added) => general(register)?.wrapping_add_signed(added),
                Step::Memory(base, offset, bytes) => read(base, offset, bytes)?,
                Step::ZeroExtend(of, bytes) => zero_extended(value(of)?, bytes),
                Step::SignExtend(of, bytes) => sign_extended(value(of)?, bytes),
                Step::Unary(operation, of) => operation.of(value(of)?),
                Step::Binary(operation, left, right) => operation.of(value(left)?, value(right)?),
                Step::Select(condition, yes, no) => value(if value(condition)? != 0 { yes } else { no })?,
            };
            *values.get_mut(number)? = found;
            last = Some(found);
        }
        last
    }
}

/// The steps on which a step depends.
fn operands(step: Step) -> impl Iterator<Item = Number> {
    let all = match step {
        Step::Constant(_) | Step::Register(..) | Step::Memory(..) => [None; 3],
        Step::ZeroExtend(of, _) | Step::SignExtend(of, _) | Step::Unary(_, of) => [Some(of), None, None],
        Step::Binary(_, left, right) => [Some(left), Some(right), None],
        Step::Select(condition, yes, no) => [Some(condition), Some(yes), Some(no)],
    };
    all.into_iter().flatten()
}

fn renumbered(step: Step, numbers: &[Number]) -> Step {
    let new = |number: Number| numbers[usize::from(number)];
    match step {
        Step::ZeroExtend(of, bytes) => Step::ZeroExtend(new(of), bytes),
        Step::SignExtend(of, bytes) => Step::SignExtend(new(of), bytes),
        Step::Unary(operation, of) => Step::Unary(operation, new(of)),
        Step::Binary(operation, left, right) => Step::Binary(operation, new(left), new(right)),
        Step::Select(condition, yes, no) => Step::Select(new(condition), new(yes), new(no)),
        leaf => leaf,
    }
}

/// The lower bytes of a value, up to 8; the upper bytes are 0.
pub(super) fn zero_extended(value: u64, bytes: u8) -> u64 {
    let unused = 64_u32.saturating_sub(8 * u32::from(bytes));
    value.checked_shl(unused).map_or(0, |value| value >> unused)
}

fn sign_extended(value: u64, bytes: u8) -> u64 {
    let unused = 64_u32.saturating_sub(8 * u32::from(bytes));
    value.checked_shl(unused).map_or(0, |value| (value.cast_signed() >> unused).cast_unsigned())
}

/// Truncates towards zero, as the processor does: out of range, the result is the lowest integer.
fn truncated(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if value.is_nan() || value >= LIMIT { i64::MIN } else { value as i64 }
}

impl Unary {
    fn of(self, value: u64) -> u64 {
        let (float, double) = (f32::from_bits(value as u32), f64::from_bits(value));
        let of_float = |value: f32| u64::from(value.to_bits());
        let of_i32 = |value: i64| u64::from(i32::try_from(value).unwrap_or(i32::MIN).cast_unsigned());
        match self {
            Self::Not => !value,
            Self::IntegerToFloat => of_float(value.cast_signed() as f32),
            Self::IntegerToDouble => (value.cast_signed() as f64).to_bits(),
            Self::FloatToDouble => f64::from(float).to_bits(),
            Self::DoubleToFloat => of_float(double as f32),
            Self::FloatToI32 => of_i32(truncated(float.into())),
            Self::FloatToI64 => truncated(float.into()).cast_unsigned(),
            Self::DoubleToI32 => of_i32(truncated(double)),
            Self::DoubleToI64 => truncated(double).cast_unsigned(),
            Self::SqrtFloat => of_float(float.sqrt()),
            Self::SqrtDouble => double.sqrt().to_bits(),
        }
    }
}

impl Binary {
    fn of(self, left: u64, right: u64) -> u64 {
        let floats = |operation: fn(f32, f32) -> f32| {
            u64::from(operation(f32::from_bits(left as u32), f32::from_bits(right as u32)).to_bits())
        };
        let doubles =
            |operation: fn(f64, f64) -> f64| operation(f64::from_bits(left), f64::from_bits(right)).to_bits();
        match self {
            Self::Add => left.wrapping_add(right),
            Self::Sub => left.wrapping_sub(right),
            Self::Mul => left.wrapping_mul(right),
            Self::MulHighSigned => {
                ((i128::from(left.cast_signed()) * i128::from(right.cast_signed())) >> 64) as u64
            }
            Self::MulHighUnsigned => ((u128::from(left) * u128::from(right)) >> 64) as u64,
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::Shl => left.wrapping_shl(right as u32),
            Self::Shr => left.wrapping_shr(right as u32),
            Self::Sar => left.cast_signed().wrapping_shr(right as u32).cast_unsigned(),
            Self::Equal => u64::from(left == right),
            Self::LessSigned => u64::from(left.cast_signed() < right.cast_signed()),
            Self::LessUnsigned => u64::from(left < right),
            Self::LessFloat => u64::from(f32::from_bits(left as u32) < f32::from_bits(right as u32)),
            Self::LessEqualFloat => u64::from(f32::from_bits(left as u32) <= f32::from_bits(right as u32)),
            Self::LessDouble => u64::from(f64::from_bits(left) < f64::from_bits(right)),
            Self::LessEqualDouble => u64::from(f64::from_bits(left) <= f64::from_bits(right)),
            Self::AddFloat => floats(|left, right| left + right),
            Self::SubFloat => floats(|left, right| left - right),
            Self::MulFloat => floats(|left, right| left * right),
            Self::DivFloat => floats(|left, right| left / right),
            Self::AddDouble => doubles(|left, right| left + right),
            Self::SubDouble => doubles(|left, right| left - right),
            Self::MulDouble => doubles(|left, right| left * right),
            Self::DivDouble => doubles(|left, right| left / right),
        }
    }
}
