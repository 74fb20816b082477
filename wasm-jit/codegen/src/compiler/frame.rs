//! Layout of a function's frame while it is compiled: slots for locals and operands, and space for
//! the arguments of calls.

use super::abi::SLOTS;
use crate::asm::{Mem, Reg};

/// Operand slots that every frame has.
const MIN_SLOTS: u32 = 4;
/// The largest frame, without the arguments of calls.
const MAX_BYTES: u32 = 1 << 28;

#[derive(Debug)]
pub(super) struct Frame {
    locals: u32,
    /// Bytes of a slot.
    slot: u32,
    /// Operand slots that are used.
    operands: u32,
    /// Operand slots for which there is room in the largest frame.
    max_operands: u32,
    /// Bytes for the arguments of calls.
    arguments: u32,
    makes_calls: bool,
}

impl Frame {
    /// The slots have room for vectors if the function has any, so that a slot's location depends
    /// only on its number.
    pub(super) fn new(locals: u32, has_vectors: bool) -> Self {
        let slot = if has_vectors { 16 } else { 8 };
        let max_operands = (MAX_BYTES - (-SLOTS) as u32) / slot - locals;
        Self { locals, slot, operands: MIN_SLOTS, max_operands, arguments: 0, makes_calls: false }
    }

    pub(super) fn local_slot(&self, local: u32) -> Mem {
        Mem::base(Reg::RBP, SLOTS - self.slot as i32 * (local as i32 + 1))
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

    /// Bytes of a slot.
    pub(super) fn slot_bytes(&self) -> u32 {
        self.slot
    }

    /// Whether the frame is larger than the largest one.
    pub(super) fn is_too_large(&self) -> bool {
        self.operands > self.max_operands
    }

    /// Bytes from `rbp` down to the end of the operands' slots.
    fn bytes(&self) -> u32 {
        self.slot * (self.locals + self.operands) + (-SLOTS) as u32
    }

    /// The distance from `rbp` to `rsp`.
    pub(super) fn size(&self) -> u32 {
        (self.bytes() + self.arguments).next_multiple_of(16)
    }
}
