//! Evaluates instructions on integers whose operands are only partly known.

use std::cmp::Ordering;

use wasm_jit::wasmparser::Operator;

use super::contents::Width;
use super::evaluate::{Cell, Value};

/// Evaluates an instruction with one operand; `None` if it has another form.
pub(super) fn unary(operator: &Operator<'_>, value: Value) -> Option<Value> {
    let compute: fn(u64) -> u64 = match operator {
        Operator::I32Eqz | Operator::I64Eqz => |x| u64::from(x == 0),
        Operator::I32Clz => |x| (x as u32).leading_zeros().into(),
        Operator::I32Ctz => |x| (x as u32).trailing_zeros().into(),
        Operator::I64Clz => |x| x.leading_zeros().into(),
        Operator::I64Ctz => |x| x.trailing_zeros().into(),
        Operator::I32Popcnt | Operator::I64Popcnt => |x| x.count_ones().into(),
        Operator::I32WrapI64 => |x| x as u32 as u64,
        Operator::I64ExtendI32U => |x| x,
        Operator::I64ExtendI32S => |x| x as i32 as i64 as u64,
        Operator::I32Extend8S => |x| x as i8 as i32 as u32 as u64,
        Operator::I32Extend16S => |x| x as i16 as i32 as u32 as u64,
        Operator::I64Extend8S => |x| x as i8 as i64 as u64,
        Operator::I64Extend16S => |x| x as i16 as i64 as u64,
        Operator::I64Extend32S => |x| x as i32 as i64 as u64,
        _ => return None,
    };
    Some(match (operator, value) {
        (_, Value::Known(x)) => Value::Known(compute(x)),
        (Operator::I32Eqz | Operator::I64Eqz, Value::AtLeast(least)) if least > 0 => Value::Known(0),
        (Operator::I64ExtendI32U, Value::AtLeast(least)) => Value::AtLeast(least),
        _ => Value::Unknown,
    })
}

/// A computation with two numbers; `None` if it traps.
type Compute = fn(u64, u64) -> Option<u64>;

/// Evaluates an instruction with two operands; `None` if it has another form, or may
/// trap.
pub(super) fn binary(operator: &Operator<'_>, a: Value, b: Value) -> Option<Value> {
    let (width, compute) = match narrow(operator) {
        Some(compute) => (Width::W32, compute),
        None => (Width::W64, wide(operator)?),
    };
    Some(match (a, b) {
        (Value::Known(a), Value::Known(b)) => Value::Known(compute(a, b)?),
        (Value::Now(cell, more), Value::Known(amount)) | (Value::Known(amount), Value::Now(cell, more))
            if cell.width() == width && matches!(operator, Operator::I32Add | Operator::I64Add) =>
        {
            Value::Now(cell, width.wrap(more.wrapping_add(amount)))
        }
        (Value::Now(cell, more), Value::Known(amount))
            if cell.width() == width && matches!(operator, Operator::I32Sub | Operator::I64Sub) =>
        {
            Value::Now(cell, width.wrap(more.wrapping_sub(amount)))
        }
        (Value::AtLeast(least), Value::Known(x)) => compared(operator, least, x)
            .map_or_else(|| unknown(operator, b, width), |holds| Some(Value::Known(holds.into())))?,
        (Value::Known(x), Value::AtLeast(least)) => compared(&mirrored(operator), least, x)
            .map_or_else(|| unknown(operator, b, width), |holds| Some(Value::Known(holds.into())))?,
        _ => unknown(operator, b, width)?,
    })
}

/// The result if not both operands are known; `None` if the instruction may trap.
fn unknown(operator: &Operator<'_>, b: Value, width: Width) -> Option<Value> {
    match operator {
        Operator::I32DivS
        | Operator::I32DivU
        | Operator::I32RemS
        | Operator::I32RemU
        | Operator::I64DivS
        | Operator::I64DivU
        | Operator::I64RemS
        | Operator::I64RemU => match b {
            // -1 may overflow.
            Value::Known(divisor) if divisor != 0 && divisor != width.wrap(u64::MAX) => Some(Value::Unknown),
            _ => None,
        },
        _ => Some(Value::Unknown),
    }
}

/// The comparison with the operands exchanged.
fn mirrored<'a>(operator: &Operator<'a>) -> Operator<'a> {
    match operator {
        Operator::I32LtU => Operator::I32GtU,
        Operator::I32GtU => Operator::I32LtU,
        Operator::I32LeU => Operator::I32GeU,
        Operator::I32GeU => Operator::I32LeU,
        Operator::I64LtU => Operator::I64GtU,
        Operator::I64GtU => Operator::I64LtU,
        Operator::I64LeU => Operator::I64GeU,
        Operator::I64GeU => Operator::I64LeU,
        other => other.clone(),
    }
}

/// Whether a comparison holds for all, or no, numbers that are at least `least`.
fn compared(operator: &Operator<'_>, least: u64, x: u64) -> Option<bool> {
    let order = least.cmp(&x);
    match operator {
        Operator::I32Eq | Operator::I64Eq if order == Ordering::Greater => Some(false),
        Operator::I32Ne | Operator::I64Ne | Operator::I32GtU | Operator::I64GtU
            if order == Ordering::Greater =>
        {
            Some(true)
        }
        Operator::I32LeU | Operator::I64LeU if order == Ordering::Greater => Some(false),
        Operator::I32GeU | Operator::I64GeU if order != Ordering::Less => Some(true),
        Operator::I32LtU | Operator::I64LtU if order != Ordering::Less => Some(false),
        _ => None,
    }
}

fn narrow(operator: &Operator<'_>) -> Option<Compute> {
    Some(match operator {
        Operator::I32Add => |a, b| Some((a as u32).wrapping_add(b as u32).into()),
        Operator::I32Sub => |a, b| Some((a as u32).wrapping_sub(b as u32).into()),
        Operator::I32Mul => |a, b| Some((a as u32).wrapping_mul(b as u32).into()),
        Operator::I32DivS => |a, b| (a as i32).checked_div(b as i32).map(|x| x as u32 as u64),
        Operator::I32DivU => |a, b| (a as u32).checked_div(b as u32).map(u64::from),
        Operator::I32RemS => |a, b| (b as u32 != 0).then(|| (a as i32).wrapping_rem(b as i32) as u32 as u64),
        Operator::I32RemU => |a, b| (a as u32).checked_rem(b as u32).map(u64::from),
        Operator::I32And => |a, b| Some(a & b),
        Operator::I32Or => |a, b| Some(a | b),
        Operator::I32Xor => |a, b| Some(a ^ b),
        Operator::I32Shl => |a, b| Some((a as u32).wrapping_shl(b as u32).into()),
        Operator::I32ShrU => |a, b| Some((a as u32).wrapping_shr(b as u32).into()),
        Operator::I32ShrS => |a, b| Some((a as i32).wrapping_shr(b as u32) as u32 as u64),
        Operator::I32Rotl => |a, b| Some((a as u32).rotate_left(b as u32 % 32).into()),
        Operator::I32Rotr => |a, b| Some((a as u32).rotate_right(b as u32 % 32).into()),
        Operator::I32Eq => |a, b| Some((a == b).into()),
        Operator::I32Ne => |a, b| Some((a != b).into()),
        Operator::I32LtU => |a, b| Some((a < b).into()),
        Operator::I32LeU => |a, b| Some((a <= b).into()),
        Operator::I32GtU => |a, b| Some((a > b).into()),
        Operator::I32GeU => |a, b| Some((a >= b).into()),
        Operator::I32LtS => |a, b| Some(((a as i32) < b as i32).into()),
        Operator::I32LeS => |a, b| Some((a as i32 <= b as i32).into()),
        Operator::I32GtS => |a, b| Some((a as i32 > b as i32).into()),
        Operator::I32GeS => |a, b| Some((a as i32 >= b as i32).into()),
        _ => return None,
    })
}

fn wide(operator: &Operator<'_>) -> Option<Compute> {
    Some(match operator {
        Operator::I64Add => |a, b| Some(a.wrapping_add(b)),
        Operator::I64Sub => |a, b| Some(a.wrapping_sub(b)),
        Operator::I64Mul => |a, b| Some(a.wrapping_mul(b)),
        Operator::I64DivS => |a, b| (a as i64).checked_div(b as i64).map(|x| x as u64),
        Operator::I64DivU => |a, b| a.checked_div(b),
        Operator::I64RemS => |a, b| (b != 0).then(|| (a as i64).wrapping_rem(b as i64) as u64),
        Operator::I64RemU => |a, b| a.checked_rem(b),
        Operator::I64And => |a, b| Some(a & b),
        Operator::I64Or => |a, b| Some(a | b),
        Operator::I64Xor => |a, b| Some(a ^ b),
        Operator::I64Shl => |a, b| Some(a.wrapping_shl(b as u32)),
        Operator::I64ShrU => |a, b| Some(a.wrapping_shr(b as u32)),
        Operator::I64ShrS => |a, b| Some((a as i64).wrapping_shr(b as u32) as u64),
        Operator::I64Rotl => |a, b| Some(a.rotate_left((b % 64) as u32)),
        Operator::I64Rotr => |a, b| Some(a.rotate_right((b % 64) as u32)),
        Operator::I64Eq => |a, b| Some((a == b).into()),
        Operator::I64Ne => |a, b| Some((a != b).into()),
        Operator::I64LtU => |a, b| Some((a < b).into()),
        Operator::I64LeU => |a, b| Some((a <= b).into()),
        Operator::I64GtU => |a, b| Some((a > b).into()),
        Operator::I64GeU => |a, b| Some((a >= b).into()),
        Operator::I64LtS => |a, b| Some(((a as i64) < b as i64).into()),
        Operator::I64LeS => |a, b| Some((a as i64 <= b as i64).into()),
        Operator::I64GtS => |a, b| Some((a as i64 > b as i64).into()),
        Operator::I64GeS => |a, b| Some((a as i64 >= b as i64).into()),
        _ => return None,
    })
}

impl Cell {
    pub(super) fn width(self) -> Width {
        match self {
            Self::Memory { width, .. } | Self::Global { width, .. } => width,
        }
    }
}
