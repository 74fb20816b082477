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
    /// Registers with copies of locals.
    copies: u32,
    /// Registers among these with copies that are newer than the locals' slots.
    newer: u32,
}

impl RegisterFile {
    pub(super) fn new() -> Self {
        Self { holders: [Holder::Free; 32], held: 0, pinned: 0, copies: 0, newer: 0 }
    }

    pub(super) fn holder(&self, reg: Reg) -> Holder {
        self.holders[reg.0 as usize]
    }

    /// Records the use of a register.
    pub(super) fn hold(&mut self, reg: Reg, holder: Holder) {
        self.holders[reg.0 as usize] = holder;
        self.copies &= !reg.bit();
        self.newer &= !reg.bit();
        match holder {
            Holder::Free => self.held &= !reg.bit(),
            Holder::Copy(_) => {
                self.held |= reg.bit();
                self.copies |= reg.bit();
            }
            Holder::Operand(_) => self.held |= reg.bit(),
        }
    }

    /// Records that a register has been written with a local's new value, which its slot does not
    /// have yet.
    pub(super) fn hold_newer(&mut self, reg: Reg, local: u32) {
        self.hold(reg, Holder::Copy(local));
        self.newer |= reg.bit();
    }

    /// The set of the registers with copies of locals.
    pub(super) fn copies(&self) -> u32 {
        self.copies
    }

    /// The set of the registers with copies that are newer than the locals' slots.
    pub(super) fn newer(&self) -> u32 {
        self.newer
    }

    /// Records that the slots have the values of all copies.
    pub(super) fn all_stored(&mut self) {
        self.newer = 0;
    }

    /// The set of the registers that are held.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// The registers of the set that are neither held nor pinned.
    pub(super) fn free(&self, set: u32) -> u32 {
        set & !self.held & !self.pinned
    }

    /// A register of the set that is neither held nor pinned.
    pub(super) fn free_of(&self, set: u32) -> Option<Reg> {
        bits(self.free(set)).next()
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
