//! Increments in innermost loops, if the counters are not at a known offset from the context: `r11`
//! keeps their address throughout a loop that does not use it for anything else.
//!
//! An increment whose address does not change is much cheaper in a short loop: the processor then
//! forwards the counter from one iteration to the next without delay.
//!
//! Before an innermost loop, the code loads the address. Whether the loop changes `r11` is known at
//! its end. If it does not, each increment in it that loads the address is replaced by one of the
//! same length that does not:
//!
//! ```text
//! mov r11, [r14 + COUNTERS]             add qword [r11 + cell], 1      with a 32-bit immediate, and
//! add qword [r11 + cell], 1                                            a prefix without effect
//! ```
//!
//! A frame of another version that continues at the loop's label needs the address as well:
//! [`Observer::counters_at`](crate::compiler::Observer::counters_at).

use crate::asm::{Mem, RegClass, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH};
use crate::compiler::cold::Cold;
use crate::compiler::edges::Move;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::observe::State;
use crate::compiler::state::Place;
use crate::vmctx::COUNTERS;

/// An innermost loop whose code is being emitted.
#[derive(Debug)]
pub(crate) struct OpenLoop {
    /// What the assembler has counted at the loop's label.
    r11_changes: u32,
    /// The number of pieces of cold code before the loop.
    cold: usize,
    /// The transfer point at the label.
    transfer: u32,
    /// The increments that load the address: where they begin and end, and their cells.
    increments: Vec<(u32, u32, i32)>,
}

impl FunctionCompiler<'_> {
    /// Before an innermost loop's label: loads the address of the counters.
    pub(crate) fn load_counters_before_loop(&mut self) {
        if self.runs.is_some() && self.first_counter().is_none() {
            let before = self.asm.offset();
            self.asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, COUNTERS));
            self.flags_hold_since(before);
        }
    }

    /// After the transfer point of a loop.
    pub(crate) fn open_loop(&mut self, is_innermost: bool) {
        let opened = OpenLoop {
            r11_changes: self.asm.r11_changes,
            cold: self.cold.len(),
            transfer: self.last_transfer,
            increments: Vec::new(),
        };
        if let Some(runs) = &mut self.runs {
            let is_needed = is_innermost && runs.counting.counters.is_none();
            runs.open_loop = is_needed.then_some(opened);
        }
    }

    /// Adds 1 to a run's cell, at this offset from the counters. Returns the offset of the code
    /// that follows the addition.
    pub(crate) fn increment_run(&mut self, cell: i32) -> u32 {
        let state = State::of(self).at_site();
        debug_assert!(state.pending.is_empty(), "no load is pending after a branch, a call or a label");
        if self.first_counter().is_some() {
            return self.increment(cell, state.needs_flags);
        }
        let begin = self.asm.offset();
        let changes = self.asm.r11_changes;
        let runs = self.runs.as_mut().expect("a run begins");
        let is_loaded = runs.loaded == Some(changes);
        let counted = if is_loaded && !state.needs_flags {
            self.asm.alu_imm(crate::asm::Alu::Add, Width::W64, Mem::base(SCRATCH, cell), 1);
            self.asm.offset()
        } else {
            let counted = crate::compiler::stubs::increment(&mut self.asm, cell, state.needs_flags);
            if let Some(open) = runs.open_loop.as_mut().filter(|_| !state.needs_flags) {
                open.increments.push((begin, counted, cell));
            }
            counted
        };
        // `r11` is what it would be anyway.
        self.asm.r11_changes = changes;
        runs.loaded = Some(changes);
        counted
    }

    /// At the end of a loop.
    pub(crate) fn close_loop(&mut self) {
        let Some(open) = self.runs.as_mut().and_then(|runs| runs.open_loop.take()) else { return };
        let is_kept =
            self.asm.r11_changes == open.r11_changes && self.cold.since(open.cold).all(keeps_scratch);
        if !is_kept || open.increments.is_empty() {
            return;
        }
        for (begin, end, cell) in open.increments {
            self.asm.overwrite_with_add_one(begin..end, Mem::base(SCRATCH, cell));
        }
        if let Some(observer) = &mut self.observer {
            observer.counters_at(open.transfer);
        }
    }
}

/// Whether `r11` has its value when a loop continues after a piece of cold code.
fn keeps_scratch(cold: &Cold<'_>) -> bool {
    let is_kept = |moves: &[Move]| {
        moves.iter().all(|Move { dst, src, .. }| match (dst, src) {
            (Place::Reg(dst), Place::Reg(src)) => *dst != SCRATCH && *src != SCRATCH,
            (Place::Reg(reg), Place::Mem(mem)) | (Place::Mem(mem), Place::Reg(reg)) => {
                *reg != SCRATCH && mem.registers().all(|base| base != SCRATCH)
            }
            (Place::Reg(dst), Place::Const(_)) => dst.class() == RegClass::General && *dst != SCRATCH,
            _ => false,
        })
    };
    match cold {
        Cold::Edge { moves, .. } | Cold::Handler { moves, .. } => is_kept(moves),
        // The loop is left.
        Cold::Trap { .. } | Cold::Raise { .. } | Cold::Tail { .. } | Cold::TailToOther { .. } => true,
        Cold::Table { .. } => true,
        Cold::MakeRoom { .. } | Cold::CallThroughRef { .. } => false,
    }
}
