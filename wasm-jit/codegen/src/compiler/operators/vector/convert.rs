//! Conversions between float and integer vectors that take more than one instruction.

use wasmparser::Operator;

use super::lanes::Lane;
use super::splat;
use crate::asm::{Reg, RegClass, Rounding, VectorImmOp as Imm, VectorOp as V, VectorShiftOp as Shifted};
use crate::compiler::abi::FLOAT_SCRATCH;
use crate::compiler::function::FunctionCompiler;

/// The predicates of CMPPS and CMPPD.
const EQUAL: u8 = 0;
const LESS_EQUAL: u8 = 2;

/// 2^52: the lower bits of its sum with a smaller integer are that integer.
const TWO_52: u64 = 0x4330_0000_0000_0000;

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_conversion(&mut self, operator: &Operator<'_>) -> bool {
        use Operator as O;
        let uses_avx512 = self.module.settings.uses_avx512;
        match operator {
            O::I32x4TruncSatF32x4S => self.trunc_sat_signed(),
            O::I32x4TruncSatF32x4U => self.trunc_sat_unsigned(),
            O::I32x4TruncSatF64x2SZero => self.trunc_sat_f64_signed(),
            O::I32x4TruncSatF64x2UZero => self.trunc_sat_f64_unsigned(),
            O::F32x4ConvertI32x4U if uses_avx512 => self.unary_by(V::CVTUDQ2PS),
            O::F32x4ConvertI32x4U => self.convert_unsigned(),
            O::F64x2ConvertLowI32x4U if uses_avx512 => self.unary_by(V::CVTUDQ2PD),
            O::F64x2ConvertLowI32x4U => {
                // The integers become the lower halves of 2^52 + x.
                self.vector_with_const(V::PUNPCKLDQ, splat(Lane::I32, TWO_52 >> 32));
                self.vector_with_const(V::SUBPD, splat(Lane::I64, TWO_52));
            }
            _ => return false,
        }
        true
    }

    /// CVTTPS2DQ gives 0x8000_0000 if a value is out of range. NaNs are made 0 first; if a
    /// non-negative value gives a negative integer, all bits are inverted.
    pub(crate) fn trunc_sat_signed(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector_imm(Imm::CMPPS, FLOAT_SCRATCH, src, src, EQUAL);
        self.asm.vector(V::ANDPS, dst, src, FLOAT_SCRATCH);
        // The sign bit: ordered, and not negative.
        self.asm.vector(V::PXOR, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.asm.vector_unary(V::CVTTPS2DQ, dst, dst);
        self.asm.vector(V::PAND, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.asm.vector_shift(Shifted::PSRAD, FLOAT_SCRATCH, FLOAT_SCRATCH, 31);
        let result = self.result_in(dst);
        self.asm.vector(V::PXOR, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }

    /// The sum of x, converted as a signed integer, and of the part of it above 2^31: if there is
    /// such a part, the former is 0x8000_0000.
    pub(crate) fn trunc_sat_unsigned(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        if self.module.settings.uses_avx512 {
            return self.unsigned_by_avx512(src, V::MAXPS, V::CVTTPS2UDQ);
        }
        let two_31 = self.vector_const(splat(Lane::I32, 0x4f00_0000));
        let (dst, above) = (self.alloc(RegClass::Sse), self.alloc(RegClass::Sse));
        // Negative values and NaNs become 0: MAXPS returns its second operand for a NaN.
        let zero = self.vector_zero();
        self.asm.vector(V::MAXPS, dst, src, zero);
        self.asm.vector(V::SUBPS, above, dst, two_31);
        self.asm.vector_imm(Imm::CMPPS, two_31, two_31, above, LESS_EQUAL);
        self.asm.vector_unary(V::CVTTPS2DQ, above, above);
        // 0x7fff_ffff if even that is too large; 0 if there is no such part.
        self.asm.vector(V::PXOR, above, above, two_31);
        self.asm.vector(V::PMAXSD, above, above, zero);
        self.asm.vector_unary(V::CVTTPS2DQ, dst, dst);
        let result = self.result_in(dst);
        self.asm.vector(V::PADDD, result, dst, above);
        self.push_vector(result);
    }

    /// Negative values and NaNs become 0: the maximum is its second operand for a NaN. The
    /// conversion gives the largest integer for values above it.
    fn unsigned_by_avx512(&mut self, src: Reg, maximum: V, convert: V) {
        let zero = self.vector_zero();
        self.asm.vector(maximum, FLOAT_SCRATCH, src, zero);
        let dst = self.result(RegClass::Sse);
        self.asm.vector_unary(convert, dst, FLOAT_SCRATCH);
        self.push_vector(dst);
    }

    /// Values above the largest integer become this integer, NaNs become 0: MINPD returns its
    /// second operand for a NaN, which is 0 then. CVTTPD2DQ gives the smallest integer for values
    /// below it.
    pub(crate) fn trunc_sat_f64_signed(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let largest = self.constant(splat(Lane::I64, f64::from(i32::MAX).to_bits()), 16);
        self.asm.vector_imm(Imm::CMPPD, FLOAT_SCRATCH, src, src, EQUAL);
        self.asm.vector(V::ANDPD, FLOAT_SCRATCH, FLOAT_SCRATCH, largest);
        self.asm.vector(V::MINPD, FLOAT_SCRATCH, src, FLOAT_SCRATCH);
        let dst = self.result(RegClass::Sse);
        self.asm.vector_unary(V::CVTTPD2DQ, dst, FLOAT_SCRATCH);
        self.push_vector(dst);
    }

    /// Values in range, rounded; their lower halves after 2^52 was added.
    pub(crate) fn trunc_sat_f64_unsigned(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        if self.module.settings.uses_avx512 {
            return self.unsigned_by_avx512(src, V::MAXPD, V::CVTTPD2UDQ);
        }
        let largest = self.constant(splat(Lane::I64, f64::from(u32::MAX).to_bits()), 16);
        let two_52 = self.constant(splat(Lane::I64, TWO_52), 16);
        let dst = self.alloc(RegClass::Sse);
        let zero = self.vector_zero();
        self.asm.vector(V::MAXPD, dst, src, zero);
        self.asm.vector(V::MINPD, dst, dst, largest);
        self.asm.vector_unary_imm(Imm::ROUNDPD, dst, dst, Rounding::Trunc as u8);
        self.asm.vector(V::ADDPD, dst, dst, two_52);
        self.asm.vector_imm(Imm::SHUFPS, dst, dst, zero, 0x88);
        self.push_vector(dst);
    }

    /// The lower 16 bits and the upper ones, halved, are converted exactly: only the last addition
    /// rounds.
    fn convert_unsigned(&mut self) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let dst = self.alloc(RegClass::Sse);
        let zero = self.vector_zero();
        self.asm.vector_imm(Imm::PBLENDW, FLOAT_SCRATCH, zero, src, 0x55);
        self.asm.vector(V::PSUBD, dst, src, FLOAT_SCRATCH);
        self.asm.vector_shift(Shifted::PSRLD, dst, dst, 1);
        self.asm.vector_unary(V::CVTDQ2PS, FLOAT_SCRATCH, FLOAT_SCRATCH);
        self.asm.vector_unary(V::CVTDQ2PS, dst, dst);
        self.asm.vector(V::ADDPS, dst, dst, dst);
        let result = self.result_in(dst);
        self.asm.vector(V::ADDPS, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }
}
