//! Operators on integer vectors that take more than one instruction.

use wasmparser::Operator;

use super::lanes::Lane;
use super::splat;
use crate::asm::{Alu, Cond, Reg, RegClass, VectorImmOp, VectorOp as V, VectorShiftOp as Shifted, Width};
use crate::compiler::abi::{FLOAT_SCRATCH, SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Flag, Val};

/// The upper half of a vector in both halves, for PSHUFD.
pub(crate) const UPPER_HALF: u8 = 0xee;

/// Truth tables of VPTERNLOGQ, whose first operand is the destination.
const NOT_THIRD: u8 = 0x55;
const FIRST_SELECTS: u8 = 0xca;

/// A shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShiftKind {
    Left,
    Signed,
    Unsigned,
}

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_integer(&mut self, operator: &Operator<'_>) -> bool {
        use Lane::{I8, I16, I32, I64};
        use Operator as O;
        use ShiftKind::{Left, Signed, Unsigned};
        let uses_avx512 = self.module.settings.uses_avx512;
        match operator {
            O::V128Not => self.vector_not(),
            O::V128Bitselect => self.bitselect(),
            O::V128AnyTrue => self.any_true(),
            O::I8x16AllTrue => self.all_true(V::PCMPEQB),
            O::I16x8AllTrue => self.all_true(V::PCMPEQW),
            O::I32x4AllTrue => self.all_true(V::PCMPEQD),
            O::I64x2AllTrue => self.all_true(V::PCMPEQQ),
            O::I8x16Bitmask => self.bitmask(V::PMOVMSKB, false),
            O::I16x8Bitmask => self.bitmask(V::PMOVMSKB, true),
            O::I32x4Bitmask => self.bitmask(V::MOVMSKPS, false),
            O::I64x2Bitmask => self.bitmask(V::MOVMSKPD, false),

            O::I8x16Ne => self.vector_negated(V::PCMPEQB, false),
            O::I16x8Ne => self.vector_negated(V::PCMPEQW, false),
            O::I32x4Ne => self.vector_negated(V::PCMPEQD, false),
            O::I64x2Ne => self.vector_negated(V::PCMPEQQ, false),
            O::I64x2LeS => self.vector_negated(V::PCMPGTQ, false),
            O::I64x2GeS => self.vector_negated(V::PCMPGTQ, true),
            O::I8x16LeS => self.vector_ordered(V::PMINSB, V::PCMPEQB),
            O::I8x16GeS => self.vector_ordered(V::PMAXSB, V::PCMPEQB),
            O::I8x16LeU => self.vector_ordered(V::PMINUB, V::PCMPEQB),
            O::I8x16GeU => self.vector_ordered(V::PMAXUB, V::PCMPEQB),
            O::I8x16LtU => self.vector_above(I8, true),
            O::I8x16GtU => self.vector_above(I8, false),
            O::I16x8LeS => self.vector_ordered(V::PMINSW, V::PCMPEQW),
            O::I16x8GeS => self.vector_ordered(V::PMAXSW, V::PCMPEQW),
            O::I16x8LeU => self.vector_ordered(V::PMINUW, V::PCMPEQW),
            O::I16x8GeU => self.vector_ordered(V::PMAXUW, V::PCMPEQW),
            O::I16x8LtU => self.vector_above(I16, true),
            O::I16x8GtU => self.vector_above(I16, false),
            O::I32x4LeS => self.vector_ordered(V::PMINSD, V::PCMPEQD),
            O::I32x4GeS => self.vector_ordered(V::PMAXSD, V::PCMPEQD),
            O::I32x4LeU => self.vector_ordered(V::PMINUD, V::PCMPEQD),
            O::I32x4GeU => self.vector_ordered(V::PMAXUD, V::PCMPEQD),
            O::I32x4LtU => self.vector_above(I32, true),
            O::I32x4GtU => self.vector_above(I32, false),

            O::I8x16Neg => self.vector_minus(V::PSUBB),
            O::I16x8Neg => self.vector_minus(V::PSUBW),
            O::I32x4Neg => self.vector_minus(V::PSUBD),
            O::I64x2Neg => self.vector_minus(V::PSUBQ),
            O::I64x2Abs if uses_avx512 => self.unary_by(V::PABSQ),
            O::I64x2Abs => self.vector_abs64(),
            O::I8x16Popcnt if uses_avx512 => self.unary_by(V::POPCNTB),
            O::I8x16Popcnt => self.vector_popcnt(),
            O::I64x2Mul if uses_avx512 => self.binary_by(V::PMULLQ),
            O::I64x2Mul => self.vector_mul64(),
            O::I16x8Q15MulrSatS => self.q15mulr(),

            O::I8x16Shl => self.shift_bytes(Left),
            O::I8x16ShrS => self.shift_bytes(Signed),
            O::I8x16ShrU => self.shift_bytes(Unsigned),
            O::I16x8Shl => self.vector_shift(I16, V::PSLLW, Shifted::PSLLW),
            O::I16x8ShrS => self.vector_shift(I16, V::PSRAW, Shifted::PSRAW),
            O::I16x8ShrU => self.vector_shift(I16, V::PSRLW, Shifted::PSRLW),
            O::I32x4Shl => self.vector_shift(I32, V::PSLLD, Shifted::PSLLD),
            O::I32x4ShrS => self.vector_shift(I32, V::PSRAD, Shifted::PSRAD),
            O::I32x4ShrU => self.vector_shift(I32, V::PSRLD, Shifted::PSRLD),
            O::I64x2Shl => self.vector_shift(I64, V::PSLLQ, Shifted::PSLLQ),
            O::I64x2ShrU => self.vector_shift(I64, V::PSRLQ, Shifted::PSRLQ),
            O::I64x2ShrS if uses_avx512 => self.vector_shift(I64, V::PSRAQ, Shifted::PSRAQ),
            O::I64x2ShrS => self.shift_signed64(),

            O::I16x8ExtendHighI8x16S => self.extend_high(V::PMOVSXBW),
            O::I16x8ExtendHighI8x16U => self.extend_high_unsigned(V::PUNPCKHBW),
            O::I32x4ExtendHighI16x8S => self.extend_high(V::PMOVSXWD),
            O::I32x4ExtendHighI16x8U => self.extend_high_unsigned(V::PUNPCKHWD),
            O::I64x2ExtendHighI32x4S => self.extend_high(V::PMOVSXDQ),
            O::I64x2ExtendHighI32x4U => self.extend_high_unsigned(V::PUNPCKHDQ),
            O::I16x8ExtMulLowI8x16S => self.extmul_bytes(V::PMOVSXBW, false),
            O::I16x8ExtMulLowI8x16U => self.extmul_bytes(V::PMOVZXBW, false),
            O::I16x8ExtMulHighI8x16S => self.extmul_bytes(V::PMOVSXBW, true),
            O::I16x8ExtMulHighI8x16U => self.extmul_bytes(V::PMOVZXBW, true),
            O::I32x4ExtMulLowI16x8S => self.extmul_words(V::PMULHW, V::PUNPCKLWD),
            O::I32x4ExtMulLowI16x8U => self.extmul_words(V::PMULHUW, V::PUNPCKLWD),
            O::I32x4ExtMulHighI16x8S => self.extmul_words(V::PMULHW, V::PUNPCKHWD),
            O::I32x4ExtMulHighI16x8U => self.extmul_words(V::PMULHUW, V::PUNPCKHWD),
            O::I64x2ExtMulLowI32x4S => self.extmul_doublewords(V::PMULDQ, 0x50),
            O::I64x2ExtMulLowI32x4U => self.extmul_doublewords(V::PMULUDQ, 0x50),
            O::I64x2ExtMulHighI32x4S => self.extmul_doublewords(V::PMULDQ, 0xfa),
            O::I64x2ExtMulHighI32x4U => self.extmul_doublewords(V::PMULUDQ, 0xfa),
            // PMADDUBSW multiplies unsigned bytes of the first operand with signed ones.
            O::I16x8ExtAddPairwiseI8x16S => {
                let operand = self.pop();
                let src = self.to_rm(&operand);
                let ones = self.vector_const(splat(I8, 1));
                let dst = self.result(RegClass::Sse);
                self.asm.vector(V::PMADDUBSW, dst, ones, src);
                self.push_vector(dst);
            }
            O::I16x8ExtAddPairwiseI8x16U => self.vector_with_const(V::PMADDUBSW, splat(I8, 1)),
            O::I32x4ExtAddPairwiseI16x8S => self.vector_with_const(V::PMADDWD, splat(I16, 1)),
            O::I32x4ExtAddPairwiseI16x8U => {
                // PMADDWD is for signed words: 32,768 is subtracted from both, and added again.
                self.vector_with_const(V::PXOR, splat(I16, 0x8000));
                self.vector_with_const(V::PMADDWD, splat(I16, 1));
                self.vector_with_const(V::PADDD, splat(I32, 0x1_0000));
            }
            _ => return false,
        }
        true
    }

    fn vector_not(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        self.invert(dst, src);
        self.push_vector(dst);
    }

    /// Inverts all bits. VPTERNLOGQ waits for its destination's old value, so that must be the
    /// operand.
    fn invert(&mut self, dst: Reg, src: Reg) {
        if self.module.settings.uses_avx512 && dst == src {
            return self.asm.vector_imm(VectorImmOp::PTERNLOGQ, dst, src, src, NOT_THIRD);
        }
        self.asm.vector_ones(FLOAT_SCRATCH);
        self.asm.vector(V::PXOR, dst, src, FLOAT_SCRATCH);
    }

    /// `(a & mask) | (b & !mask)`: one half of it, if the other one is zero.
    pub(crate) fn bitselect(&mut self) {
        let (mask, b, a) = (self.pop(), self.pop(), self.pop());
        if self.constant_of(&b) == Some(0) {
            return self.vector_with(V::PAND, &mask, &a);
        }
        if self.constant_of(&a) == Some(0) {
            return self.vector_with(V::PANDN, &mask, &b);
        }
        if self.module.settings.uses_avx512 {
            let a = self.to_reg(&a);
            let b = self.to_rm_with_imm(&b);
            let dst = self.to_own_reg(&mask);
            self.asm.vector_imm(VectorImmOp::PTERNLOGQ, dst, a, b, FIRST_SELECTS);
            return self.push_vector(dst);
        }
        let mask = self.to_reg(&mask);
        let b = self.to_rm(&b);
        let a = self.to_rm(&a);
        let other = self.alloc(RegClass::Sse);
        self.asm.vector(V::PANDN, other, mask, b);
        self.asm.vector(V::PAND, FLOAT_SCRATCH, mask, a);
        let dst = self.result_in(other);
        self.asm.vector(V::POR, dst, FLOAT_SCRATCH, other);
        self.push_vector(dst);
    }

    /// Pushes the condition in the flags.
    fn push_condition(&mut self, cond: Cond) {
        if self.instruction.next.takes_condition() {
            return self.push(Ty::I32, Val::Flag(Flag::Int(cond)));
        }
        let dst = self.result(RegClass::General);
        self.asm.setcc(cond, dst);
        self.asm.movzx(crate::asm::Size::B1, dst, dst);
        self.push(Ty::I32, Val::Reg(dst));
    }

    fn any_true(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        self.asm.vector_unary(V::PTEST, src, src);
        self.push_condition(Cond::NotEqual);
    }

    /// No lane is equal to zero.
    fn all_true(&mut self, equal: V) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let zero = self.vector_zero();
        self.asm.vector(equal, FLOAT_SCRATCH, zero, src);
        self.asm.vector_unary(V::PTEST, FLOAT_SCRATCH, FLOAT_SCRATCH);
        self.push_condition(Cond::Equal);
    }

    /// The sign bits of the lanes. There is no instruction for words: they become bytes.
    fn bitmask(&mut self, op: V, packs: bool) {
        let operand = self.pop();
        let mut src = self.to_reg(&operand);
        if packs {
            let zero = self.vector_zero();
            self.asm.vector(V::PACKSSWB, FLOAT_SCRATCH, src, zero);
            src = FLOAT_SCRATCH;
        }
        let dst = self.result(RegClass::General);
        self.asm.vector_unary(op, dst, src);
        self.push(Ty::I32, Val::Reg(dst));
    }

    /// The opposite of a comparison.
    fn vector_negated(&mut self, compare: V, swapped: bool) {
        let (mut right, mut left) = (self.pop(), self.pop());
        if swapped {
            std::mem::swap(&mut left, &mut right);
        }
        let left = self.to_reg(&left);
        let right = self.to_rm(&right);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(compare, dst, left, right);
        let result = self.result_in(dst);
        self.invert(result, dst);
        self.push_vector(result);
    }

    /// Comparisons for which there is no instruction: the left operand is the extreme of both.
    fn vector_ordered(&mut self, extreme: V, equal: V) {
        let (right, left) = (self.pop(), self.pop());
        let left = self.to_reg(&left);
        let right = self.to_rm(&right);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(extreme, dst, left, right);
        let result = self.result_in(dst);
        self.asm.vector(equal, result, dst, left);
        self.push_vector(result);
    }

    /// Whether unsigned lanes of the left operand are greater than those of the right one, or vice
    /// versa if swapped. A constant operand is replaced by the adjacent integer, and the other
    /// operand compared with it by "at least" or "at most"; otherwise the sign bits of both are
    /// inverted, and the lanes compared as signed.
    fn vector_above(&mut self, lane: Lane, swapped: bool) {
        let (mut right, mut left) = (self.pop(), self.pop());
        if swapped {
            std::mem::swap(&mut left, &mut right);
        }
        let (greater, equal, max, min) = match lane {
            Lane::I8 => (V::PCMPGTB, V::PCMPEQB, V::PMAXUB, V::PMINUB),
            Lane::I16 => (V::PCMPGTW, V::PCMPEQW, V::PMAXUW, V::PMINUW),
            Lane::I32 | Lane::I64 => (V::PCMPGTD, V::PCMPEQD, V::PMAXUD, V::PMINUD),
        };
        let at_least = self.constant_of(&right).and_then(|bits| each_plus(lane, bits, 1));
        let at_most = self.constant_of(&left).and_then(|bits| each_plus(lane, bits, -1));
        let (operand, extreme, bound) = match (at_least, at_most) {
            (Some(bound), _) => (left, max, bound),
            (None, Some(bound)) => (right, min, bound),
            (None, None) => {
                let (left, right) = (self.to_reg(&left), self.to_reg(&right));
                let signs = self.constant(splat(lane, 1 << (lane.bits() - 1)), 16);
                let dst = self.alloc(RegClass::Sse);
                self.asm.vector(V::PXOR, FLOAT_SCRATCH, left, signs);
                self.asm.vector(V::PXOR, dst, right, signs);
                let result = self.result_in(dst);
                self.asm.vector(greater, result, FLOAT_SCRATCH, dst);
                return self.push_vector(result);
            }
        };
        let src = self.to_reg(&operand);
        let bound = self.constant(bound, 16);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(extreme, dst, src, bound);
        let result = self.result_in(dst);
        self.asm.vector(equal, result, dst, src);
        self.push_vector(result);
    }

    fn vector_minus(&mut self, subtract: V) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let zero = self.vector_zero();
        let dst = self.result_or(&operand);
        self.asm.vector(subtract, dst, zero, src);
        self.push_vector(dst);
    }

    /// `(x ^ sign) - sign`, where the sign is all ones or zero.
    fn vector_abs64(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let zero = self.vector_zero();
        self.asm.vector(V::PCMPGTQ, FLOAT_SCRATCH, zero, src);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(V::PXOR, dst, src, FLOAT_SCRATCH);
        let result = self.result_in(dst);
        self.asm.vector(V::PSUBQ, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }

    /// The bits of each half of a byte are looked up in a table.
    fn vector_popcnt(&mut self) {
        let table = (0..16_u32).fold(0, |table, at| table | u128::from(at.count_ones()) << (8 * at));
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let mask = self.constant(splat(Lane::I8, 15), 16);
        let (table, low) = (self.vector_const(table), self.alloc(RegClass::Sse));
        self.asm.vector(V::PAND, FLOAT_SCRATCH, src, mask);
        self.asm.vector(V::PSHUFB, low, table, FLOAT_SCRATCH);
        self.asm.vector_shift(Shifted::PSRLW, FLOAT_SCRATCH, src, 4);
        self.asm.vector(V::PAND, FLOAT_SCRATCH, FLOAT_SCRATCH, mask);
        self.asm.vector(V::PSHUFB, table, table, FLOAT_SCRATCH);
        let dst = self.result_in(low);
        self.asm.vector(V::PADDB, dst, low, table);
        self.push_vector(dst);
    }

    /// Computed from three 32-bit products: that of the upper halves does not reach the result.
    fn vector_mul64(&mut self) {
        let (right, left) = (self.pop(), self.pop());
        let (left, right) = (self.to_reg(&left), self.to_reg(&right));
        let crossed = self.alloc(RegClass::Sse);
        self.asm.vector_shift(Shifted::PSRLQ, crossed, left, 32);
        self.asm.vector(V::PMULUDQ, crossed, crossed, right);
        self.asm.vector_shift(Shifted::PSRLQ, FLOAT_SCRATCH, right, 32);
        self.asm.vector(V::PMULUDQ, FLOAT_SCRATCH, FLOAT_SCRATCH, left);
        self.asm.vector(V::PADDQ, crossed, crossed, FLOAT_SCRATCH);
        self.asm.vector_shift(Shifted::PSLLQ, crossed, crossed, 32);
        self.asm.vector(V::PMULUDQ, FLOAT_SCRATCH, left, right);
        let dst = self.result_in(crossed);
        self.asm.vector(V::PADDQ, dst, crossed, FLOAT_SCRATCH);
        self.push_vector(dst);
    }

    /// PMULHRSW does not saturate the only product that is too large, but returns 0x8000, which no
    /// other product gives.
    fn q15mulr(&mut self) {
        let (right, left) = (self.pop(), self.pop());
        let left = self.to_reg(&left);
        let right = self.to_rm(&right);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(V::PMULHRSW, dst, left, right);
        let wrong = self.constant(splat(Lane::I16, 0x8000), 16);
        self.asm.vector(V::PCMPEQW, FLOAT_SCRATCH, dst, wrong);
        let result = self.result_in(dst);
        self.asm.vector(V::PXOR, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }

    /// Pops a shift's count: a constant, or moved to an SSE register, both modulo the lane's width.
    /// `plus` is added to the latter.
    fn shift_count(&mut self, lane: Lane, plus: i32) -> Result<u8, Reg> {
        let count = self.pop();
        let mask = lane.bits() - 1;
        if let Val::Const(bits) = count.val {
            return Ok((bits as u32 & mask) as u8);
        }
        self.to_this(&count, SCRATCH);
        self.asm.alu_imm(Alu::And, Width::W32, SCRATCH, mask as i32);
        if plus != 0 {
            self.asm.alu_imm(Alu::Add, Width::W32, SCRATCH, plus);
        }
        let reg = self.alloc(RegClass::Sse);
        self.asm.float_from_bits(Width::W32, reg, SCRATCH);
        Err(reg)
    }

    fn vector_shift(&mut self, lane: Lane, by_register: V, by_constant: Shifted) {
        let count = self.shift_count(lane, 0);
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.result_or(&operand);
        match count {
            Ok(count) => self.asm.vector_shift(by_constant, dst, src, count),
            Err(count) => self.asm.vector(by_register, dst, src, count),
        }
        self.push_vector(dst);
    }

    /// There are no byte shifts. Shifts of words leave bits of the neighbouring byte, which are
    /// cleared; signed shifts extend the bytes to words, with the byte in the upper half.
    fn shift_bytes(&mut self, what: ShiftKind) {
        if what == ShiftKind::Signed {
            return self.shift_bytes_signed();
        }
        let count = self.shift_count(Lane::I8, 0);
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.alloc(RegClass::Sse);
        let (by_register, by_constant) = match what {
            ShiftKind::Left => (V::PSLLW, Shifted::PSLLW),
            _ => (V::PSRLW, Shifted::PSRLW),
        };
        match count {
            Ok(count) => {
                let byte = if what == ShiftKind::Left { 0xff << count } else { 0xff >> count };
                let mask = self.constant(splat(Lane::I8, byte), 16);
                self.asm.vector_shift(by_constant, dst, src, count);
                self.asm.vector(V::PAND, dst, dst, mask);
                if byte < 16 {
                    self.set_small_bytes(dst);
                }
            }
            Err(count) => {
                self.asm.vector_ones(FLOAT_SCRATCH);
                self.asm.vector(by_register, FLOAT_SCRATCH, FLOAT_SCRATCH, count);
                if what == ShiftKind::Unsigned {
                    self.asm.vector_shift(Shifted::PSRLW, FLOAT_SCRATCH, FLOAT_SCRATCH, 8);
                }
                self.asm.vector_unary(V::PBROADCASTB, FLOAT_SCRATCH, FLOAT_SCRATCH);
                self.asm.vector(by_register, dst, src, count);
                self.asm.vector(V::PAND, dst, dst, FLOAT_SCRATCH);
            }
        }
        self.push_vector(dst);
    }

    fn shift_bytes_signed(&mut self) {
        let count = self.shift_count(Lane::I8, 8);
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(V::PUNPCKHBW, FLOAT_SCRATCH, src, src);
        self.asm.vector(V::PUNPCKLBW, dst, src, src);
        for half in [FLOAT_SCRATCH, dst] {
            match count {
                Ok(count) => self.asm.vector_shift(Shifted::PSRAW, half, half, count + 8),
                Err(count) => self.asm.vector(V::PSRAW, half, half, count),
            }
        }
        let result = self.result_in(dst);
        self.asm.vector(V::PACKSSWB, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }

    /// There is no arithmetic shift of quadwords before AVX-512: the sign bit, where it is after
    /// the shift, is inverted and subtracted.
    fn shift_signed64(&mut self) {
        let count = self.shift_count(Lane::I64, 0);
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let sign = self.constant(splat(Lane::I64, 1 << 63), 16);
        self.asm.vector_load(FLOAT_SCRATCH, sign);
        let dst = self.alloc(RegClass::Sse);
        for (to, from) in [(FLOAT_SCRATCH, FLOAT_SCRATCH), (dst, src)] {
            match count {
                Ok(count) => self.asm.vector_shift(Shifted::PSRLQ, to, from, count),
                Err(count) => self.asm.vector(V::PSRLQ, to, from, count),
            }
        }
        self.asm.vector(V::PXOR, dst, dst, FLOAT_SCRATCH);
        let result = self.result_in(dst);
        self.asm.vector(V::PSUBQ, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }

    /// Interleaves the upper half with zeros.
    fn extend_high_unsigned(&mut self, interleave: V) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let zero = self.vector_zero();
        let dst = self.result_or(&operand);
        self.asm.vector(interleave, dst, src, zero);
        self.push_vector(dst);
    }

    fn extend_high(&mut self, extend: V) {
        let operand = self.pop();
        let src = self.to_rm_with_imm(&operand);
        let dst = self.result_or(&operand);
        self.asm.vector_unary_imm(VectorImmOp::PSHUFD, dst, src, UPPER_HALF);
        self.asm.vector_unary(extend, dst, dst);
        self.push_vector(dst);
    }

    /// Extends both operands to words.
    pub(crate) fn extended_bytes(&mut self, extend: V, high: bool, operands: [Reg; 2]) -> [Reg; 2] {
        operands.map(|src| {
            let dst = self.alloc(RegClass::Sse);
            if high {
                self.asm.vector_unary_imm(VectorImmOp::PSHUFD, dst, src, UPPER_HALF);
                self.asm.vector_unary(extend, dst, dst);
            } else {
                self.asm.vector_unary(extend, dst, src);
            }
            dst
        })
    }

    fn extmul_bytes(&mut self, extend: V, high: bool) {
        let (right, left) = (self.pop(), self.pop());
        let operands = [self.to_reg(&left), self.to_reg(&right)];
        let [left, right] = self.extended_bytes(extend, high, operands);
        let dst = self.result_in(left);
        self.asm.vector(V::PMULLW, dst, left, right);
        self.push_vector(dst);
    }

    /// The lower and the upper halves of the products, interleaved.
    fn extmul_words(&mut self, upper_halves: V, interleave: V) {
        let (right, left) = (self.pop(), self.pop());
        let (left, right) = (self.to_reg(&left), self.to_reg(&right));
        let lower = self.alloc(RegClass::Sse);
        self.asm.vector(V::PMULLW, lower, left, right);
        self.asm.vector(upper_halves, FLOAT_SCRATCH, left, right);
        let dst = self.result_in(lower);
        self.asm.vector(interleave, dst, lower, FLOAT_SCRATCH);
        self.push_vector(dst);
    }

    /// PMULDQ multiplies lanes 0 and 2, where this shuffle moves the wanted lanes.
    fn extmul_doublewords(&mut self, multiply: V, shuffle: u8) {
        let (right, left) = (self.pop(), self.pop());
        let left = self.to_rm_with_imm(&left);
        let right = self.to_rm_with_imm(&right);
        let first = self.alloc(RegClass::Sse);
        self.asm.vector_unary_imm(VectorImmOp::PSHUFD, first, left, shuffle);
        self.asm.vector_unary_imm(VectorImmOp::PSHUFD, FLOAT_SCRATCH, right, shuffle);
        let dst = self.result_in(first);
        self.asm.vector(multiply, dst, first, FLOAT_SCRATCH);
        self.push_vector(dst);
    }
}

/// Each lane plus `change`; `None` if one overflows.
fn each_plus(lane: Lane, bits: u128, change: i64) -> Option<u128> {
    let width = lane.bits();
    let most = (1_u128 << width) - 1;
    (0..128 / width).try_fold(0, |all, at| {
        let changed = (bits >> (at * width) & most).checked_add_signed(change.into())?;
        (changed <= most).then_some(all | changed << (at * width))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_next_to_those_of_a_constant() {
        assert_eq!(each_plus(Lane::I8, splat(Lane::I8, 0xfe), 1), Some(u128::MAX));
        assert_eq!(each_plus(Lane::I8, splat(Lane::I8, 0xfe) | 0xff << 64, 1), None);
        assert_eq!(each_plus(Lane::I16, splat(Lane::I16, 0x100), -1), Some(splat(Lane::I16, 0xff)));
        assert_eq!(each_plus(Lane::I32, splat(Lane::I32, 1) & !0xffff_ffff, -1), None);
    }
}
