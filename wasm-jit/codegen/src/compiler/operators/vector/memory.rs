//! Loads and stores of vectors and of their lanes. Addresses, checks and faults are those of
//! scalars (`operators/memory.rs`); no access requires alignment.

use wasmparser::{MemArg, Operator};

use crate::asm::{Mem, Precision, RegClass, VectorImmOp as Imm, VectorOp as V};
use crate::compiler::function::FunctionCompiler;

impl FunctionCompiler<'_> {
    /// Compiles one of these operators. Returns whether it is one.
    pub(crate) fn vector_memory(&mut self, operator: &Operator<'_>) -> bool {
        use Operator as O;
        match operator {
            O::V128Load { memarg } => self.load_vector(16, memarg, |asm, dst, mem| asm.vector_load(dst, mem)),
            O::V128Store { memarg } => self.store_vector(memarg),
            O::V128Load8x8S { memarg } => self.load_by(8, memarg, V::PMOVSXBW),
            O::V128Load8x8U { memarg } => self.load_by(8, memarg, V::PMOVZXBW),
            O::V128Load16x4S { memarg } => self.load_by(8, memarg, V::PMOVSXWD),
            O::V128Load16x4U { memarg } => self.load_by(8, memarg, V::PMOVZXWD),
            O::V128Load32x2S { memarg } => self.load_by(8, memarg, V::PMOVSXDQ),
            O::V128Load32x2U { memarg } => self.load_by(8, memarg, V::PMOVZXDQ),
            O::V128Load8Splat { memarg } => self.load_by(1, memarg, V::PBROADCASTB),
            O::V128Load16Splat { memarg } => self.load_by(2, memarg, V::PBROADCASTW),
            O::V128Load32Splat { memarg } => self.load_by(4, memarg, V::BROADCASTSS),
            O::V128Load64Splat { memarg } => self.load_by(8, memarg, V::MOVDDUP),
            // They zero the upper part of the register.
            O::V128Load32Zero { memarg } => self.load_by(4, memarg, V::MOVSS),
            O::V128Load64Zero { memarg } => self.load_by(8, memarg, V::MOVSD),
            O::V128Load8Lane { memarg, lane } => self.load_lane(1, memarg, Imm::PINSRB, *lane),
            O::V128Load16Lane { memarg, lane } => self.load_lane(2, memarg, Imm::PINSRW, *lane),
            O::V128Load32Lane { memarg, lane } => self.load_lane(4, memarg, Imm::PINSRD, *lane),
            O::V128Load64Lane { memarg, lane } => self.load_lane(8, memarg, Imm::PINSRQ, *lane),
            O::V128Store8Lane { memarg, lane } => self.store_lane(1, memarg, Imm::PEXTRB, *lane),
            O::V128Store16Lane { memarg, lane } => self.store_lane(2, memarg, Imm::PEXTRW, *lane),
            O::V128Store32Lane { memarg, lane } => self.store_lane(4, memarg, Imm::PEXTRD, *lane),
            O::V128Store64Lane { memarg, lane } => self.store_lane(8, memarg, Imm::PEXTRQ, *lane),
            _ => return false,
        }
        true
    }

    fn load_vector(
        &mut self,
        bytes: u32,
        arg: &MemArg,
        load: impl Fn(&mut crate::asm::Assembler<'_>, crate::asm::Reg, Mem),
    ) {
        let operand = self.pop();
        let mem = self.address(&operand, arg, bytes);
        let dst = self.result(RegClass::Sse);
        load(&mut self.asm, dst, mem);
        self.push_vector(dst);
    }

    fn load_by(&mut self, bytes: u32, arg: &MemArg, op: V) {
        self.load_vector(bytes, arg, |asm, dst, mem| asm.vector_unary(op, dst, mem));
    }

    fn store_vector(&mut self, arg: &MemArg) {
        let (value, operand) = (self.pop(), self.pop());
        let mem = self.address(&operand, arg, 16);
        let src = self.to_reg(&value);
        self.asm.vector_store(mem, src);
    }

    fn load_lane(&mut self, bytes: u32, arg: &MemArg, insert: Imm, lane: u8) {
        let (vector, operand) = (self.pop(), self.pop());
        let mem = self.address(&operand, arg, bytes);
        let left = self.to_reg(&vector);
        let dst = self.result_or(&vector);
        self.asm.vector_imm(insert, dst, left, mem, lane);
        self.push_vector(dst);
    }

    fn store_lane(&mut self, bytes: u32, arg: &MemArg, extract: Imm, lane: u8) {
        let (vector, operand) = (self.pop(), self.pop());
        let mem = self.address(&operand, arg, bytes);
        let src = self.to_reg(&vector);
        match (bytes, lane) {
            (4, 0) => self.asm.float_store(Precision::Single, mem, src),
            (8, 0) => self.asm.float_store(Precision::Double, mem, src),
            _ => self.asm.vector_extract(extract, mem, src, lane),
        }
    }
}
