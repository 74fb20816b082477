//! Layout of a function's frame while it is compiled: slots for locals and operands, and space for
//! the arguments of calls.

use super::abi::SLOTS;
use crate::asm::{Mem, Reg};

/// Operand slots that every frame has.
const MIN_SLOTS: u32 = 4;

#[derive(Debug)]
pub(super) struct Frame {
    locals: u32,
    /// Operand slots that are used.
    operands: u32,
    /// Bytes for arguments of calls.
    arguments: u32,
    makes_calls: bool,
}

impl Frame {
    pub(super) fn new(locals: u32) -> Self {
        Self { locals, operands: MIN_SLOTS, arguments: 0, makes_calls: false }
    }

    pub(super) fn local_slot(&self, local: u32) -> Mem {
        Mem::base(Reg::RBP, SLOTS - 8 * (local as i32 + 1))
    }

    /// The slots of operands follow those of the locals.
    pub(super) fn operand_slot(&mut self, height: u32) -> Mem {
        self.operands = self.operands.max(height + 1);
        self.local_slot(self.locals + height)
    }

    /// The slot of an operand that has been spilled.
    pub(super) fn slot_in_use(&self, height: u32) -> Mem {
        self.local_slot(self.locals + height)
    }

    /// Makes the slots of this many operands a part of the frame.
    pub(super) fn reserve(&mut self, operands: u32) {
        self.operands = self.operands.max(operands);
    }

    /// Records a call with `arguments` bytes of arguments on the stack.
    pub(super) fn note_call(&mut self, arguments: u32) {
        self.makes_calls = true;
        self.arguments = self.arguments.max(arguments);
    }

    pub(super) fn makes_calls(&self) -> bool {
        self.makes_calls
    }

    /// Bytes from `rbp` down to the end of the operands' slots.
    pub(super) fn bytes(&self) -> u32 {
        8 * (self.locals + self.operands) + (-SLOTS) as u32
    }

    /// The distance from `rbp` to `rsp`.
    pub(super) fn size(&self) -> u32 {
        (self.bytes() + self.arguments).next_multiple_of(16)
    }
}
