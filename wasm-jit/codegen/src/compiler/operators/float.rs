//! Floating-point operations.

use crate::asm::{Alu, Cond, FloatOp, Mem, Precision, Reg, RegClass, Rounding, Shift, Width};
use crate::compiler::abi::{FLOAT_SCRATCH, SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Flag, Operand, Place, Val};
use crate::vmctx::TrapCode;

/// The relation of a comparison of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Less,
    Greater,
    LessEqual,
    GreaterEqual,
}

/// The minimum or the maximum of two floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extreme {
    Min,
    Max,
}

/// Whether an integer is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signedness {
    Signed,
    Unsigned,
}

/// The treatment of a float that is out of the integer type's range: it traps, or gives the nearest
/// integer, and 0 for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    Trap,
    Saturate,
}

/// The bits of a sign mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    Sign,
    AllButSign,
}

/// A 64-bit constant: the bits of a float of this type.
fn bits_of(value: f64, precision: Precision) -> u64 {
    if precision == Precision::Double { value.to_bits() } else { u64::from((value as f32).to_bits()) }
}

impl FunctionCompiler<'_> {
    /// `add`, `sub`, `mul`, `div`.
    pub(crate) fn float_binary(&mut self, what: FloatOp, precision: Precision) {
        let right = self.pop();
        let left = self.pop();
        let left_reg = self.to_reg(&left);
        let right_rm = self.to_rm(&right);
        let dst = self.float_result(&left, &right);
        self.asm.float(what, precision, dst, left_reg, right_rm);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    pub(crate) fn float_result(&mut self, left: &Operand, right: &Operand) -> Reg {
        let own = self.owns(left).or_else(|| self.owns(right));
        self.target(RegClass::Sse).or(own).unwrap_or_else(|| self.alloc(RegClass::Sse))
    }

    pub(crate) fn float_sqrt(&mut self, precision: Precision) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        self.asm.float(FloatOp::Sqrt, precision, dst, src, src);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    pub(crate) fn float_round(&mut self, how: Rounding, precision: Precision) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        self.asm.float_round(how, precision, dst, src);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    /// A sign mask for the full register.
    fn sign_mask(&mut self, precision: Precision, mask: Mask) -> Mem {
        let sign = bits_of(-0.0, precision);
        let all = if precision == Precision::Double { u64::MAX } else { u64::from(u32::MAX) };
        let bits = match mask {
            Mask::Sign => sign,
            Mask::AllButSign => all ^ sign,
        };
        self.constant(u128::from(bits), 16)
    }

    pub(crate) fn float_abs(&mut self, precision: Precision) {
        self.float_sign(precision, FloatOp::And, Mask::AllButSign);
    }

    pub(crate) fn float_neg(&mut self, precision: Precision) {
        self.float_sign(precision, FloatOp::Xor, Mask::Sign);
    }

    fn float_sign(&mut self, precision: Precision, what: FloatOp, mask: Mask) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        let mask = self.sign_mask(precision, mask);
        self.asm.float(what, precision, dst, src, mask);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    pub(crate) fn float_copysign(&mut self, precision: Precision) {
        let sign = self.pop();
        let magnitude = self.pop();
        let sign = self.to_reg(&sign);
        let magnitude = self.to_reg(&magnitude);
        let aside = self.alloc(RegClass::Sse);
        let dst = self.alloc(RegClass::Sse);
        let mask = self.sign_mask(precision, Mask::Sign);
        self.asm.float(FloatOp::And, precision, aside, sign, mask);
        let mask = self.sign_mask(precision, Mask::AllButSign);
        self.asm.float(FloatOp::And, precision, dst, magnitude, mask);
        self.asm.float(FloatOp::Or, precision, dst, dst, aside);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    /// MINSD and MAXSD return the second operand if the operands are equal (including 0 and -0) or
    /// unordered; both cases are handled separately.
    pub(crate) fn float_extreme(&mut self, which: Extreme, ty: Ty) {
        let precision = ty.precision();
        let (of_equals, of_others) = match which {
            Extreme::Min => (FloatOp::Or, FloatOp::Min),
            Extreme::Max => (FloatOp::And, FloatOp::Max),
        };
        let right = self.pop();
        let left = self.pop();
        let left = self.to_reg(&left);
        let right = self.to_reg(&right);
        let dst = self.alloc(RegClass::Sse);
        let (ordered, equal, done) = (self.asm.new_label(), self.asm.new_label(), self.asm.new_label());
        self.asm.float_compare(precision, left, right);
        self.asm.jcc(Cond::NotEqual, ordered);
        self.asm.jcc(Cond::NotParity, equal);
        // A NaN: the sum is a quiet NaN.
        self.asm.float(FloatOp::Add, precision, dst, left, right);
        self.asm.jmp(done);
        self.asm.bind(equal);
        // Equal: the same bits, or zeros of opposite signs.
        self.asm.float(of_equals, precision, dst, left, right);
        self.asm.jmp(done);
        self.asm.bind(ordered);
        self.asm.float(of_others, precision, dst, left, right);
        self.asm.bind(done);
        self.push(ty, Val::Reg(dst));
    }

    /// `lt` and `le` compare in reverse order, because "above" is false if the operands are
    /// unordered, and "below" is not.
    pub(crate) fn float_comparison(&mut self, relation: Relation, ty: Ty) {
        self.prepare_condition();
        let right = self.pop();
        let left = self.pop();
        let (first, second, flag) = match relation {
            Relation::Equal => (left, right, Flag::FloatEqual),
            Relation::NotEqual => (left, right, Flag::FloatNotEqual),
            Relation::Less => (right, left, Flag::Int(Cond::Above)),
            Relation::LessEqual => (right, left, Flag::Int(Cond::AboveEqual)),
            Relation::Greater => (left, right, Flag::Int(Cond::Above)),
            Relation::GreaterEqual => (left, right, Flag::Int(Cond::AboveEqual)),
        };
        let first = self.to_reg(&first);
        let second = self.to_rm(&second);
        self.asm.float_compare(ty.precision(), first, second);
        self.push_flag(flag);
    }

    // Conversions.

    /// Converts an integer to a float.
    pub(crate) fn float_from_int(&mut self, from: Ty, signedness: Signedness, to: Ty) {
        match signedness {
            Signedness::Signed => self.float_from_signed(from.width(), to.precision()),
            Signedness::Unsigned => self.float_from_unsigned(from.width(), to.precision()),
        }
    }

    fn float_from_signed(&mut self, width: Width, precision: Precision) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let dst = self.result(RegClass::Sse);
        // The instruction preserves the upper part of its destination, and so depends on it.
        self.asm.float_zero(dst);
        self.asm.float_from_int(precision, dst, width, src);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    /// A 32-bit value is zero-extended to a signed 64-bit integer.
    fn float_from_unsigned(&mut self, width: Width, precision: Precision) {
        let operand = self.pop();
        if width == Width::W32 {
            let src = self.to_reg(&operand);
            let dst = self.result(RegClass::Sse);
            self.asm.float_zero(dst);
            self.asm.float_from_int(precision, dst, Width::W64, src);
            return self.push(Ty::float(precision), Val::Reg(dst));
        }
        // If the highest bit is set: halved, with the lost bit kept for rounding, and doubled.
        let src = self.to_reg(&operand);
        let half = self.alloc(RegClass::General);
        let dst = self.alloc(RegClass::Sse);
        let (large, done) = (self.asm.new_label(), self.asm.new_label());
        self.asm.float_zero(dst);
        self.asm.test(Width::W64, src, src);
        self.asm.jcc(Cond::Sign, large);
        self.asm.float_from_int(precision, dst, Width::W64, src);
        self.asm.jmp(done);
        self.asm.bind(large);
        self.asm.mov(Width::W64, half, src);
        self.asm.mov(Width::W64, SCRATCH, src);
        self.asm.shift_imm(Shift::Shr, Width::W64, half, 1);
        self.asm.alu_imm(Alu::And, Width::W32, SCRATCH, 1);
        self.asm.alu(Alu::Or, Width::W64, half, SCRATCH);
        self.asm.float_from_int(precision, dst, Width::W64, half);
        self.asm.float(FloatOp::Add, precision, dst, dst, dst);
        self.asm.bind(done);
        self.push(Ty::float(precision), Val::Reg(dst));
    }

    /// Converts between the two float types.
    pub(crate) fn float_convert(&mut self, from: Ty, to: Ty) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        self.asm.float_convert(from.precision(), dst, src);
        self.push(to, Val::Reg(dst));
    }

    /// Reinterprets the bits as another type.
    pub(crate) fn reinterpret(&mut self, to: Ty) {
        let operand = self.pop();
        if let Val::Const(bits) = operand.val {
            return self.push_const(to, bits);
        }
        let place = self.place(&operand);
        let dst = self.result(to.class());
        self.move_value(to, Place::Reg(dst), place);
        self.push(to, Val::Reg(dst));
    }

    /// Converts a float to an integer, rounded towards zero.
    pub(crate) fn float_to_int(&mut self, from: Ty, to: Ty, signedness: Signedness, misfit: Misfit) {
        let precision = from.precision();
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.alloc(RegClass::General);
        match (signedness, to.width()) {
            (Signedness::Unsigned, Width::W32) => self.to_unsigned_32(precision, src, dst, misfit),
            (Signedness::Unsigned, Width::W64) => self.to_unsigned_64(precision, src, dst, misfit),
            (Signedness::Signed, width) => self.to_signed(precision, width, src, dst, misfit),
        }
        self.push(to, Val::Reg(dst));
    }

    fn float_constant(&mut self, value: f64, precision: Precision) -> Reg {
        let reg = self.alloc(RegClass::Sse);
        self.load_float(value, precision, reg);
        reg
    }

    fn load_float(&mut self, value: f64, precision: Precision, reg: Reg) {
        let bits = Place::Const(bits_of(value, precision));
        self.move_value(Ty::float(precision), Place::Reg(reg), bits);
    }

    /// The instruction returns the smallest integer for every value out of range: only then are
    /// further checks needed.
    fn to_signed(&mut self, precision: Precision, width: Width, src: Reg, dst: Reg, misfit: Misfit) {
        let done = self.asm.new_label();
        self.asm.float_to_int(precision, dst, width, src);
        // Only the smallest integer overflows when 1 is subtracted.
        self.asm.alu_imm(Alu::Cmp, width, dst, 1);
        self.asm.jcc(Cond::NotOverflow, done);
        let limit = if width == Width::W64 { -(2_f64.powi(63)) } else { -(2_f64.powi(31)) };
        if misfit == Misfit::Trap {
            self.asm.float_compare(precision, src, src);
            self.trap_if(Cond::Parity, TrapCode::InvalidConversion);
            // Above this, the integral part is in range: the limit itself, and for doubles to 32
            // bits any value less than 1 below it.
            let below_limit = precision == Precision::Double && width == Width::W32;
            let lowest = if below_limit { limit - 1.0 } else { limit };
            self.load_float(lowest, precision, FLOAT_SCRATCH);
            self.asm.float_compare(precision, src, FLOAT_SCRATCH);
            let too_low = if below_limit { Cond::BelowEqual } else { Cond::Below };
            self.trap_if(too_low, TrapCode::IntegerOverflow);
            self.load_float(0.0, precision, FLOAT_SCRATCH);
            self.asm.float_compare(precision, src, FLOAT_SCRATCH);
            self.trap_if(Cond::AboveEqual, TrapCode::IntegerOverflow);
        } else {
            // NaN gives 0, a value that is too large the largest integer; for a value that is too
            // small the result is already correct.
            let ordered = self.asm.new_label();
            self.asm.float_compare(precision, src, src);
            self.asm.jcc(Cond::NotParity, ordered);
            self.asm.mov_imm(dst, 0);
            self.asm.jmp(done);
            self.asm.bind(ordered);
            self.load_float(0.0, precision, FLOAT_SCRATCH);
            self.asm.float_compare(precision, src, FLOAT_SCRATCH);
            self.asm.jcc(Cond::Below, done);
            self.asm
                .mov_imm(dst, if width == Width::W64 { i64::MAX as u64 } else { u64::from(i32::MAX as u32) });
        }
        self.asm.bind(done);
    }

    /// Through 64 bits: the upper half of a result in range is zero.
    fn to_unsigned_32(&mut self, precision: Precision, src: Reg, dst: Reg, misfit: Misfit) {
        let done = self.asm.new_label();
        self.asm.float_to_int(precision, dst, Width::W64, src);
        self.asm.mov(Width::W32, SCRATCH, dst);
        self.asm.alu(Alu::Cmp, Width::W64, SCRATCH, dst);
        self.asm.jcc(Cond::Equal, done);
        if misfit == Misfit::Trap {
            self.asm.float_compare(precision, src, src);
            self.trap_if(Cond::Parity, TrapCode::InvalidConversion);
            self.trap(TrapCode::IntegerOverflow);
        } else {
            // NaN and negative values give 0.
            let large = self.asm.new_label();
            self.load_float(0.0, precision, FLOAT_SCRATCH);
            self.asm.float_compare(precision, src, FLOAT_SCRATCH);
            self.asm.jcc(Cond::Above, large);
            self.asm.mov_imm(dst, 0);
            self.asm.jmp(done);
            self.asm.bind(large);
            self.asm.mov_imm(dst, u64::from(u32::MAX));
        }
        self.asm.bind(done);
    }

    /// For values of 2^63 or more, 2^63 is subtracted before the conversion and added after it.
    fn to_unsigned_64(&mut self, precision: Precision, src: Reg, dst: Reg, misfit: Misfit) {
        let (large, too_large, bad, done) =
            (self.asm.new_label(), self.asm.new_label(), self.asm.new_label(), self.asm.new_label());
        let border = self.float_constant(2_f64.powi(63), precision);
        self.asm.float_compare(precision, src, border);
        self.asm.jcc(Cond::Parity, bad);
        self.asm.jcc(Cond::AboveEqual, large);
        self.asm.float_to_int(precision, dst, Width::W64, src);
        self.asm.test(Width::W64, dst, dst);
        self.asm.jcc(Cond::NotSign, done);
        // Negative, or NaN; -0.9 was converted to 0 above.
        self.asm.bind(bad);
        if misfit == Misfit::Saturate {
            self.asm.mov_imm(dst, 0);
            self.asm.jmp(done);
        } else {
            self.asm.float_compare(precision, src, src);
            self.trap_if(Cond::Parity, TrapCode::InvalidConversion);
            self.trap(TrapCode::IntegerOverflow);
        }
        self.asm.bind(large);
        self.asm.float(FloatOp::Sub, precision, FLOAT_SCRATCH, src, border);
        self.asm.float_to_int(precision, dst, Width::W64, FLOAT_SCRATCH);
        self.asm.test(Width::W64, dst, dst);
        self.asm.jcc(Cond::Sign, too_large);
        self.asm.mov_imm(SCRATCH, 1 << 63);
        self.asm.alu(Alu::Xor, Width::W64, dst, SCRATCH);
        self.asm.jmp(done);
        self.asm.bind(too_large);
        if misfit == Misfit::Saturate {
            self.asm.mov_imm(dst, u64::MAX);
        } else {
            self.trap(TrapCode::IntegerOverflow);
        }
        self.asm.bind(done);
    }
}
