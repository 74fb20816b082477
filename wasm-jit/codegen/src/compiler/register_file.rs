//! Which registers are in use, and for what.
//!
//! A register is *held* by an operand, or by a copy of a local, until it is released. It is
//! *pinned* if the current instruction has taken it from the stack or allocated it; a pinned
//! register is not allocated again until the next instruction. Registers that cache locals are
//! neither held nor pinned: they belong to the region (`cached_locals.rs`).

use super::cached_locals::bits;
use crate::asm::Reg;

/// What a register is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Free,
    /// A copy of a local that is not register-cached.
    Copy(u32),
    /// The operand at this height.
    Operand(u32),
}

#[derive(Debug)]
pub(super) struct RegisterFile {
    holders: [Holder; 32],
    /// Registers that are not free.
    held: u32,
    pinned: u32,
}

impl RegisterFile {
    pub(super) fn new() -> Self {
        Self { holders: [Holder::Free; 32], held: 0, pinned: 0 }
    }

    pub(super) fn holder(&self, reg: Reg) -> Holder {
        self.holders[reg.0 as usize]
    }

    /// Records the use of a register.
    pub(super) fn hold(&mut self, reg: Reg, holder: Holder) {
        self.holders[reg.0 as usize] = holder;
        match holder {
            Holder::Free => self.held &= !reg.bit(),
            Holder::Copy(_) | Holder::Operand(_) => self.held |= reg.bit(),
        }
    }

    /// The set of the registers that are held.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// A register of the set that is neither held nor pinned.
    pub(super) fn free_of(&self, set: u32) -> Option<Reg> {
        bits(set & !self.held & !self.pinned).next()
    }

    pub(super) fn pin(&mut self, reg: Reg) {
        self.pinned |= reg.bit();
    }

    pub(super) fn unpin(&mut self, reg: Reg) {
        self.pinned &= !reg.bit();
    }

    /// Called before the next instruction, or when the current one has finished with its operands.
    pub(super) fn unpin_all(&mut self) {
        self.pinned = 0;
    }

    /// The registers of the set that are not pinned.
    pub(super) fn unpinned(&self, set: u32) -> u32 {
        set & !self.pinned
    }
}
