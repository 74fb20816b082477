//! Comparisons of references with null: `ref.as_non_null`, `br_on_null`, `br_on_non_null`.
//!
//! A reference stays where it is: the operand after the comparison is the same register or local.
//! Calls through references, which need no comparison, are in `calls.rs`.

use crate::asm::{Cond, Reg, Width};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Flag, Operand, Val};
use crate::vmctx::TrapCode;

impl FunctionCompiler<'_> {
    pub(crate) fn ref_as_non_null(&mut self) {
        let (reference, reg) = self.reference();
        self.test_zero(Width::W64, reg);
        self.trap_if(Cond::Equal, TrapCode::NullReference);
        self.push_reference(&reference, reg);
    }

    /// Branches without the reference if it is null.
    pub(crate) fn br_on_null(&mut self, depth: u32) {
        // The locals are needed on both paths.
        self.locals_for_branch();
        let (reference, reg) = self.reference();
        self.test_zero(Width::W64, reg);
        self.branch_if(Flag::Int(Cond::Equal), depth);
        self.push_reference(&reference, reg);
    }

    /// Branches with the reference if it is not null.
    pub(crate) fn br_on_non_null(&mut self, depth: u32) {
        self.locals_for_branch();
        let (reference, reg) = self.reference();
        // The reference is the last value of the label.
        self.push_reference(&reference, reg);
        self.test_zero(Width::W64, reg);
        self.branch_if(Flag::Int(Cond::NotEqual), depth);
        self.pop();
    }

    /// Pops a reference, and loads it into a register that must not be written.
    pub(crate) fn reference(&mut self) -> (Operand, Reg) {
        let reference = self.pop();
        let reg = self.to_reg(&reference);
        (reference, reg)
    }

    /// Pushes a reference that was popped.
    pub(crate) fn push_reference(&mut self, reference: &Operand, reg: Reg) {
        let val = if let Val::Local(_) = reference.val { reference.val } else { Val::Reg(reg) };
        self.push(reference.ty, val);
    }
}
