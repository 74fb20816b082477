//! The check for interrupts in stubs, after calls to functions in which signals have no effect.

use crate::asm::{Alu, Assembler, Cond, Label, Mem, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH};
use crate::vmctx::{INTERRUPT_CHECK, INTERRUPT_REQUESTS, STORE};

/// Code that checks, after calls, whether an interrupt is requested.
pub(crate) struct InterruptCheck {
    interrupt: Label,
    go_on: Label,
}

impl InterruptCheck {
    /// The code that follows is executed if there is no interrupt.
    pub(crate) fn begin(asm: &mut Assembler<'_>) -> Self {
        asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, STORE));
        asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, INTERRUPT_REQUESTS));
        asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(SCRATCH, 0), 0);
        let (interrupt, go_on) = (asm.new_label(), asm.new_label());
        asm.jcc(Cond::NotEqual, interrupt);
        asm.bind(go_on);
        Self { interrupt, go_on }
    }

    /// Raises the interrupt, or continues if it has been withdrawn.
    pub(crate) fn end(self, asm: &mut Assembler<'_>) {
        asm.bind(self.interrupt);
        asm.ud2(INTERRUPT_CHECK);
        asm.jmp(self.go_on);
    }
}
