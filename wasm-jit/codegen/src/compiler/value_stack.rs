//! The stack of operands.
//!
//! Operands below the *spilled height* are in their slots or constants: spilling all operands
//! considers only those above it. The links between operands, registers and locals
//! (`register_file.rs`, `Local::aliases`) are maintained by `state.rs` and `registers.rs`, which
//! push, pop and spill.

use std::ops::{Deref, Range};

use super::state::{Operand, Val};

/// The operands at this point of the code, by height. Reused from function to function for its
/// allocation.
#[derive(Debug, Default)]
pub(super) struct ValueStack {
    operands: Vec<Operand>,
    spilled: u32,
}

impl ValueStack {
    /// Begins with no operands.
    pub(super) fn begin(&mut self) {
        self.operands.clear();
        self.spilled = 0;
    }

    /// The number of operands.
    pub(super) fn height(&self) -> u32 {
        self.operands.len() as u32
    }

    pub(super) fn at(&self, height: u32) -> Operand {
        self.operands[height as usize]
    }

    #[inline]
    pub(super) fn push(&mut self, operand: Operand) {
        self.operands.push(operand);
    }

    pub(super) fn top(&self) -> &Operand {
        self.operands.last().expect("validated")
    }

    pub(super) fn drop_top(&mut self) {
        self.operands.truncate(self.operands.len() - 1);
        self.spilled = self.spilled.min(self.height());
    }

    /// Changes where an operand is.
    pub(super) fn set(&mut self, height: u32, val: Val) {
        self.operands[height as usize].val = val;
    }

    /// The heights of the operands that may be in registers.
    pub(super) fn not_spilled(&self) -> Range<u32> {
        self.spilled..self.height()
    }

    /// Records that every operand is in its slot or a constant.
    pub(super) fn set_all_spilled(&mut self) {
        self.spilled = self.height();
    }
}

impl Deref for ValueStack {
    type Target = [Operand];

    fn deref(&self) -> &[Operand] {
        &self.operands
    }
}
