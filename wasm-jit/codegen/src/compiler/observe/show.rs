//! Notifies the observer while a function is compiled. This does not change the code, except for
//! the NOPs at points where frames can move to another version.

use super::State;
use crate::asm::Label;
use crate::compiler::counting::Run;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::output::Position;
use crate::compiler::sites::{SITE_LENGTH, SITE_WINDOW, SiteKind, Sites};

impl FunctionCompiler<'_> {
    /// Reports the code position of the current instruction, and the state before it.
    pub(crate) fn show_instruction(&mut self) {
        if let Some(observer) = self.observer.take() {
            let state = State::of(self);
            observer
                .instruction(Position { code: self.asm.offset(), wasm: self.instruction.position }, &state);
            self.observer = Some(observer);
        }
    }

    /// Reports the site of a location.
    pub(crate) fn show_site(&mut self, site: u32, position: u32, kind: SiteKind) {
        if let Some(observer) = self.observer.take() {
            let state = State::at(self, kind);
            observer.site(Position { code: site, wasm: position }, &state);
            self.observer = Some(observer);
        }
    }

    /// Reports that a run begins.
    pub(crate) fn show_run(&mut self, run: Run) {
        if let Some(observer) = &mut self.observer {
            observer.run(run);
        }
    }

    /// Reports the state while the current instruction calls.
    pub(crate) fn show_call(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.call(self.instruction.position, &State::of(self));
            self.observer = Some(observer);
        }
    }

    /// Reports the state while the current instruction calls a routine of the engine.
    pub(crate) fn show_routine(&mut self) {
        if let Some(observer) = self.observer.take() {
            observer.routine(self.instruction.position, &State::of(self));
            self.observer = Some(observer);
        }
    }

    /// Reports that a frame can continue in another version of the function from here.
    pub(crate) fn show_transfer(&mut self) {
        self.transfer(1);
    }

    /// Like [`Self::show_transfer`], if a site follows: the NOP between them aligns the site.
    pub(crate) fn show_transfer_at_site(&mut self) {
        let over = (self.asm.offset() + 1) % SITE_WINDOW;
        let aligns = self.runs.is_none() && over + SITE_LENGTH > SITE_WINDOW;
        self.transfer(if aligns { 1 + SITE_WINDOW - over } else { 1 });
    }

    fn transfer(&mut self, nop: u32) {
        self.end_run();
        let code = self.asm.offset();
        self.last_transfer = code;
        if let Some(observer) = &mut self.observer {
            observer.transfer(code);
        }
        // No branch target and no site shares the address with the transfer point.
        if *self.sites.wanted != Sites::None {
            self.asm.nops(nop);
        }
    }

    /// Binds a label that branches target. A frame that arrives by a branch must not meet the trap
    /// of a transfer point, from which frames continue before the next instruction, `end`.
    pub(crate) fn bind_target(&mut self, label: Label) {
        self.leave_transfer_point();
        self.asm.bind(label);
    }

    /// Makes sure that what follows does not share its address with a transfer point.
    pub(crate) fn leave_transfer_point(&mut self) {
        if self.asm.offset() == self.last_transfer {
            self.asm.nops(1);
        }
    }

    /// Reports additional code of an instruction, outside of the main sequence.
    pub(crate) fn show_more(&mut self, code: u32, wasm: u32) {
        if let Some(observer) = &mut self.observer {
            observer.more_code(Position { code, wasm });
        }
    }
}
