//! Operators on float vectors that take more than one instruction.

use wasmparser::Operator;

use super::lanes::Lane;
use super::splat;
use super::tables::UNORDERED;
use crate::asm::{Precision, RegClass, VectorImmOp, VectorOp as V, VectorShiftOp as Shifted};
use crate::compiler::abi::FLOAT_SCRATCH;
use crate::compiler::function::FunctionCompiler;

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_float(&mut self, operator: &Operator<'_>) -> bool {
        use Lane::{I32, I64};
        use Operator as O;
        use Precision::{Double, Single};
        match operator {
            O::F32x4Abs => self.vector_with_const(V::PAND, splat(I32, 0x7fff_ffff)),
            O::F64x2Abs => self.vector_with_const(V::PAND, splat(I64, i64::MAX as u64)),
            O::F32x4Neg => self.vector_with_const(V::PXOR, splat(I32, 1 << 31)),
            O::F64x2Neg => self.vector_with_const(V::PXOR, splat(I64, 1 << 63)),
            O::F32x4Min => self.vector_min(V::MINPS, Single),
            O::F64x2Min => self.vector_min(V::MINPD, Double),
            O::F32x4Max => self.vector_max([V::MAXPS, V::SUBPS], Single),
            O::F64x2Max => self.vector_max([V::MAXPD, V::SUBPD], Double),
            _ => return false,
        }
        true
    }

    /// MINPS returns the second operand if one is a NaN, or both are zeros. Therefore it is
    /// executed in both orders; the union of the results has the sign of -0, and is a NaN if one of
    /// them is.
    fn vector_min(&mut self, min: V, precision: Precision) {
        let (right, left) = (self.pop(), self.pop());
        let (left, right) = (self.to_reg(&left), self.to_reg(&right));
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(min, FLOAT_SCRATCH, left, right);
        self.asm.vector(min, dst, right, left);
        self.asm.vector(V::ORPS, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.quieted(dst, precision);
    }

    /// As `vector_min`, for MAXPS; where the two results differ only in the sign, the subtraction
    /// turns the union into +0.
    fn vector_max(&mut self, [max, subtract]: [V; 2], precision: Precision) {
        let (right, left) = (self.pop(), self.pop());
        let (left, right) = (self.to_reg(&left), self.to_reg(&right));
        let dst = self.alloc(RegClass::Sse);
        self.asm.vector(max, FLOAT_SCRATCH, left, right);
        self.asm.vector(max, dst, right, left);
        self.asm.vector(V::XORPS, dst, dst, FLOAT_SCRATCH);
        self.asm.vector(V::ORPS, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.asm.vector(subtract, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.quieted(dst, precision);
    }

    /// Pushes `dst` with the lanes of the scratch register; only the first bit of a NaN's payload
    /// is set, which makes it canonical.
    fn quieted(&mut self, dst: crate::asm::Reg, precision: Precision) {
        let (compare, shift, payload) = match precision {
            Precision::Single => (VectorImmOp::CMPPS, Shifted::PSRLD, 10),
            Precision::Double => (VectorImmOp::CMPPD, Shifted::PSRLQ, 13),
        };
        self.asm.vector_imm(compare, dst, FLOAT_SCRATCH, FLOAT_SCRATCH, UNORDERED);
        self.asm.vector(V::ORPS, FLOAT_SCRATCH, FLOAT_SCRATCH, dst);
        self.asm.vector_shift(shift, dst, dst, payload);
        let result = self.result_in(dst);
        self.asm.vector(V::ANDNPS, result, dst, FLOAT_SCRATCH);
        self.push_vector(result);
    }
}
