//! Settled sites: before the site of an instruction whose probes read values, the code materializes
//! each value that would otherwise have no location.
//!
//! - A load that the instruction would do is done before the site, so that it traps before the
//!   probe fires. The value goes to [`SETTLED`], from where the instruction reads it: even if the
//!   memory changes in between, probe and program get the same value.
//! - A conjunction that the instruction would only test for zero is computed, and stored there,
//!   too.
//! - The old value of a local, whose register already has the value that the instruction assigns,
//!   is stored to the local's slot before it is overwritten.
//!
//! If the site of the exit is settled, every path to it stores the locals to their slots.
//!
//! Constants, aliases of locals, shifts and conditions in the flags are left to the stub.
//!
//! Nothing else differs from the code without the site: settled values keep their registers until
//! the instruction takes them, so that all decisions are the same, and frames are alike.

use crate::asm::{Alu, Mem, Size, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Operand, Place, Val};
use crate::vmctx;

/// The number of bytes that settling one site may add to the code.
pub(crate) const MAX_BYTES: u32 = 40;

/// The location of the settled operand.
pub(crate) const SETTLED: Mem = Mem::base(CONTEXT, vmctx::SETTLED);

impl FunctionCompiler<'_> {
    /// Does the load that the current instruction would do. Preserves the flags.
    pub(crate) fn settle(&mut self) {
        if let Some(Operand { ty, val: Val::Load(mem) }) = self.stack.last().copied() {
            self.asm.mov(ty.width(), SCRATCH, mem);
            self.asm.mov_store(Size::B8, SETTLED, SCRATCH);
            self.asm.redirect(Some((mem, SETTLED)));
            self.instruction.load_is_done = true;
        }
    }

    /// Ends the effects of the previous instruction's site.
    pub(crate) fn forget_settled(&mut self) {
        self.asm.redirect(None);
    }

    /// Stores the value of a register-cached local, which the current instruction overwrites, if
    /// the site of the next instruction is settled. Preserves the flags.
    pub(crate) fn settle_old_value(&mut self, local: u32) {
        let state = self.locals[local as usize];
        if let Some(reg) = state.reg
            && !state.in_slot
            && self.instruction.next_is_settled
            && !self.instruction.old_value_is_stored
        {
            let slot = self.frame.local_slot(local);
            self.move_value(state.ty, Place::Mem(slot), Place::Reg(reg));
            self.instruction.old_value_is_stored = true;
        }
    }

    /// Sets the zero flag for the conjunction of two 32-bit operands, and settles its value.
    pub(crate) fn settle_and(&mut self, left: &Operand, right: &Operand) {
        // The registers are those of the code that only tests.
        let left = match right.val {
            Val::Const(_) => self.to_rm(left),
            _ => self.to_reg(left).into(),
        };
        self.asm.mov(Width::W32, SCRATCH, left);
        match right.val {
            Val::Const(bits) => self.asm.alu_imm(Alu::And, Width::W32, SCRATCH, bits as i32),
            _ => {
                let right = self.to_reg(right);
                self.asm.alu(Alu::And, Width::W32, SCRATCH, right);
            }
        }
        self.asm.mov_store(Size::B8, SETTLED, SCRATCH);
    }
}
