//! Relaxed vector operators.
//!
//! By default their results are the same on all processors: a product is not rounded before the
//! addition, and where the proposal permits the result of a strict operator, it is chosen. With
//! [`CodeSettings::relaxes_vectors`](crate::CodeSettings), the results are those of single
//! instructions of this processor.

use wasmparser::Operator;

use super::lanes::Lane;
use super::splat;
use crate::asm::{RegClass, VectorImmOp as Imm, VectorOp as V};
use crate::compiler::function::FunctionCompiler;

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_relaxed(&mut self, operator: &Operator<'_>) -> bool {
        use Operator as O;
        let relaxes = self.module.settings.relaxes_vectors;
        match operator {
            O::I8x16RelaxedSwizzle if relaxes => self.binary_by(V::PSHUFB),
            O::I8x16RelaxedSwizzle => self.swizzle(),
            O::I32x4RelaxedTruncF32x4S if relaxes => self.unary_by(V::CVTTPS2DQ),
            O::I32x4RelaxedTruncF32x4S => self.trunc_sat_signed(),
            O::I32x4RelaxedTruncF32x4U => self.trunc_sat_unsigned(),
            O::I32x4RelaxedTruncF64x2SZero if relaxes => self.unary_by(V::CVTTPD2DQ),
            O::I32x4RelaxedTruncF64x2SZero => self.trunc_sat_f64_signed(),
            O::I32x4RelaxedTruncF64x2UZero => self.trunc_sat_f64_unsigned(),
            O::F32x4RelaxedMadd => self.multiply_add(V::FMADD231PS),
            O::F32x4RelaxedNmadd => self.multiply_add(V::FNMADD231PS),
            O::F64x2RelaxedMadd => self.multiply_add(V::FMADD231PD),
            O::F64x2RelaxedNmadd => self.multiply_add(V::FNMADD231PD),
            O::I8x16RelaxedLaneselect if relaxes => self.laneselect(Imm::PBLENDVB),
            O::I32x4RelaxedLaneselect if relaxes => self.laneselect(Imm::BLENDVPS),
            O::I64x2RelaxedLaneselect if relaxes => self.laneselect(Imm::BLENDVPD),
            O::I8x16RelaxedLaneselect
            | O::I16x8RelaxedLaneselect
            | O::I32x4RelaxedLaneselect
            | O::I64x2RelaxedLaneselect => self.bitselect(),
            O::F32x4RelaxedMin if relaxes => self.binary_by(V::MINPS),
            O::F32x4RelaxedMax if relaxes => self.binary_by(V::MAXPS),
            O::F64x2RelaxedMin if relaxes => self.binary_by(V::MINPD),
            O::F64x2RelaxedMax if relaxes => self.binary_by(V::MAXPD),
            O::F32x4RelaxedMin => return self.vector_float(&O::F32x4Min),
            O::F32x4RelaxedMax => return self.vector_float(&O::F32x4Max),
            O::F64x2RelaxedMin => return self.vector_float(&O::F64x2Min),
            O::F64x2RelaxedMax => return self.vector_float(&O::F64x2Max),
            O::I16x8RelaxedQ15mulrS if relaxes => self.binary_by(V::PMULHRSW),
            O::I16x8RelaxedQ15mulrS => return self.vector_integer(&O::I16x8Q15MulrSatS),
            O::I16x8RelaxedDotI8x16I7x16S => self.dot(),
            O::I32x4RelaxedDotI8x16I7x16AddS => {
                // The sum of the pairs of words, then the third operand.
                let sum = self.pop();
                let sum = self.to_rm(&sum);
                self.dot();
                let words = self.pop();
                let dst = self.to_own_reg(&words);
                let ones = self.constant(splat(Lane::I16, 1), 16);
                self.asm.vector(V::PMADDWD, dst, dst, ones);
                self.asm.vector(V::PADDD, dst, dst, sum);
                self.push_vector(dst);
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn binary_by(&mut self, op: V) {
        let (right, left) = (self.pop(), self.pop());
        let left_reg = self.to_reg(&left);
        let right_rm = self.to_rm(&right);
        let dst = self.float_result(&left, &right);
        self.asm.vector(op, dst, left_reg, right_rm);
        self.push_vector(dst);
    }

    pub(crate) fn unary_by(&mut self, op: V) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let dst = self.result_or(&operand);
        self.asm.vector_unary(op, dst, src);
        self.push_vector(dst);
    }

    /// `±(a * b) + c`, rounded once.
    fn multiply_add(&mut self, op: V) {
        let (c, b, a) = (self.pop(), self.pop(), self.pop());
        let a = self.to_reg(&a);
        let b = self.to_rm(&b);
        let dst = self.to_own_reg(&c);
        self.asm.vector(op, dst, a, b);
        self.push_vector(dst);
    }

    fn laneselect(&mut self, blend: Imm) {
        let (mask, b, a) = (self.pop(), self.pop(), self.pop());
        let [mask, b, a] = [mask, b, a].map(|operand| self.to_reg(&operand));
        let dst = self.result(RegClass::Sse);
        self.asm.vector_blend(blend, dst, b, a, mask);
        self.push_vector(dst);
    }

    /// Products of signed bytes, and their sums in pairs, which wrap around. PMADDUBSW treats one
    /// of the operands as unsigned, and saturates.
    fn dot(&mut self) {
        if self.module.settings.relaxes_vectors {
            let (right, left) = (self.pop(), self.pop());
            let left_rm = self.to_rm(&left);
            let right_reg = self.to_reg(&right);
            let dst = self.alloc(RegClass::Sse);
            self.asm.vector(V::PMADDUBSW, dst, right_reg, left_rm);
            return self.push_vector(dst);
        }
        let (right, left) = (self.pop(), self.pop());
        let operands = [self.to_reg(&left), self.to_reg(&right)];
        let mut products = [false, true].map(|high| {
            let [left, right] = self.extended_bytes(V::PMOVSXBW, high, operands);
            self.asm.vector(V::PMULLW, left, left, right);
            self.registers.unpin(right);
            left
        });
        products.reverse();
        let [high, low] = products;
        self.asm.vector(V::PHADDW, low, low, high);
        self.push_vector(low);
    }
}
