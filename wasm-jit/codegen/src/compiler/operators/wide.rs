//! 128-bit arithmetic: operands and results are pairs of i64, the low half first.
//!
//! A sum is ADD and ADC, a difference SUB and SBB. All operands are in their registers before the
//! first of the two, because nothing between them may change the carry flag. A product is MUL or
//! IMUL, from `rax` to `rdx:rax`.

use crate::asm::{Alu, Reg, RegClass, Rm, Width};
use crate::compiler::abi::{SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::instruction::Next;
use crate::compiler::register_file::Holder;
use crate::compiler::state::{Operand, Place, Val, immediate};

/// The right operand of an instruction.
#[derive(Clone, Copy)]
enum Source {
    Rm(Rm),
    Imm(i32),
}

impl FunctionCompiler<'_> {
    /// `i64.add128` by ADD and ADC, `i64.sub128` by SUB and SBB.
    pub(crate) fn wide_sum(&mut self, low_by: Alu, high_by: Alu) {
        let right_high = self.pop();
        let right_low = self.pop();
        let left_high = self.pop();
        let left_low = self.pop();
        // Each operand has one register at most, and with those of the left operands there are
        // enough for the results.
        let low = self.to_result(&left_low);
        let high = match self.high_target(&left_high, &[right_low, right_high]) {
            Some(target) => {
                self.to_this(&left_high, target);
                target
            }
            None => self.to_result(&left_high),
        };
        let right_low = self.wide_source(&right_low);
        let right_high = self.wide_source(&right_high);
        self.wide_alu(low_by, low, right_low);
        self.wide_alu(high_by, high, right_high);
        self.push(Ty::I64, Val::Reg(low));
        self.push(Ty::I64, Val::Reg(high));
    }

    fn wide_alu(&mut self, what: Alu, dst: Reg, source: Source) {
        match source {
            Source::Rm(source) => self.asm.alu(what, Width::W64, dst, source),
            Source::Imm(imm) => self.asm.alu_imm(what, Width::W64, dst, imm),
        }
    }

    fn wide_source(&mut self, operand: &Operand) -> Source {
        match operand.val {
            Val::Const(bits) => match immediate(Ty::I64, bits) {
                Some(imm) => Source::Imm(imm),
                None => Source::Rm(self.constant(u128::from(bits), 8).into()),
            },
            _ => Source::Rm(self.to_rm(operand)),
        }
    }

    /// The operand in a register that may be written: that of a copy of a local, whose value is
    /// then only in its slot.
    fn to_result(&mut self, operand: &Operand) -> Reg {
        if let Some(reg) = self.current_reg(operand)
            && matches!(self.registers.holder(reg), Holder::Copy(_))
        {
            self.drop_copy(reg);
            return reg;
        }
        self.to_own_reg(operand)
    }

    /// The cache register of the local that the next instruction sets to the high half, if no
    /// register is needed to write to it, and a move is saved.
    fn high_target(&mut self, high: &Operand, others: &[Operand]) -> Option<Reg> {
        let Next::SetLocal(local) = self.instruction.next else { return None };
        let state = self.locals[local as usize];
        let cache_reg = state.cache_reg?;
        let is_free = state.aliases == 0 && !others.iter().any(|other| self.depends_on(other, cache_reg));
        if is_free && self.owns(high).is_none() { self.target(RegClass::General) } else { None }
    }

    /// `i64.mul_wide_s`, `i64.mul_wide_u`.
    pub(crate) fn wide_product(&mut self, signed: bool) {
        let mut right = self.pop();
        let mut left = self.pop();
        let is_in_rax = |compiler: &Self, operand: &Operand| compiler.current_reg(operand) == Some(Reg::RAX);
        let is_const = matches!(right.val, Val::Const(_));
        if is_in_rax(self, &right) || is_const && !is_in_rax(self, &left) {
            std::mem::swap(&mut left, &mut right);
        }
        let source = match right.val {
            Val::Const(bits) => {
                self.asm.mov_imm(SCRATCH, bits);
                Rm::Reg(SCRATCH)
            }
            _ => self.to_rm(&right),
        };
        // The left operand first: it may be in `rdx`.
        match self.place(&left) {
            Place::Reg(Reg::RAX) => self.drop_copy(Reg::RAX),
            place => {
                self.take(Reg::RAX);
                self.move_value(Ty::I64, Place::Reg(Reg::RAX), place);
            }
        }
        self.take(Reg::RDX);
        if signed {
            self.asm.imul_wide(Width::W64, source);
        } else {
            self.asm.mul(Width::W64, source);
        }
        self.push(Ty::I64, Val::Reg(Reg::RAX));
        self.push(Ty::I64, Val::Reg(Reg::RDX));
    }
}
