//! The plain version of a function: before each instruction, every local and operand is in its own
//! slot, and no code depends on anything else that is known about it. Whatever probes write there
//! therefore takes effect.
//!
//! It is compiled like any other version, except that
//! - no local is register-cached, and the next operator is not considered, so nothing is fused;
//! - after each instruction, the operands that it has left in registers, as constants or as aliases
//!   of locals are stored to their slots, and what is known about registers and flags is forgotten.
//!
//! Locals and operands have the same slots as in the other versions. A frame of another version
//! becomes a frame of the plain version when the values are stored to the slots, before an
//! instruction or during a call. The other direction is not possible, since a plain frame may have
//! other values than those that the optimized code assumes.
//!
//! **Frames** of the plain version may be larger, because more operands have slots that are in use.
//! It therefore sets the stack pointer after each call, as a frame may have been smaller when it
//! called. During a call, the slots of the operands are inside the frame in all versions. Before an
//! instruction, they are above the data that a stub saves, if its probes see the frame.
//!
//! The epilogue restores the callee-saved registers that the other versions save. The others still
//! have the caller's values, and no code of the plain version uses them.

use crate::asm::{Mem, Reg, Width};
use crate::compiler::abi::{SLOTS, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::observe::located::{At, Located};
use crate::compiler::state::{Operand, Place, Val};
use crate::compiler::stubs::values::{Source, Value, Vector, Wanted};

/// Operands up to this height have slots in which a frame of another version can become plain.
pub(crate) const MAX_PLAIN_OPERANDS: u32 = 1024;
/// The number of bytes by which the plain version may be larger, for each byte of an instruction.
pub(crate) const MAX_BYTES: u32 = 128;

impl Value {
    /// The same value at a site of the plain version, where the frame's values are at these
    /// locations.
    #[must_use]
    pub fn in_plain(self, located: &Located) -> Self {
        let place = match self.wanted {
            Some(Wanted::Local(index)) => located.locals.get(index as usize),
            Some(Wanted::Operand(depth)) => located.operands.iter().rev().nth(depth as usize),
            Some(Wanted::Result(_)) | None => return self,
        };
        let source = match place {
            Some(place) => match place.at {
                At::Slot(slot) if place.ty == Ty::V128 => Source::Vector(Vector::Slot(slot)),
                At::Slot(slot) => Source::Slot(slot, place.ty.width()),
                _ => return self,
            },
            // A local that no instruction uses.
            None => Source::Const(0),
        };
        let value = Self { source, ..self };
        self.lane.map_or(value, |lane| value.lane(lane))
    }
}

impl Located {
    /// Whether a frame of another version can become plain, and then has its values at these
    /// locations.
    #[must_use]
    pub fn fits(&self) -> bool {
        let locals = self.locals.len() as i32;
        let height = |slot: i32| (SLOTS - slot) / self.slot_bytes as i32 - locals;
        self.operands.iter().all(|operand| match operand.at {
            At::Slot(slot) => height(slot) <= MAX_PLAIN_OPERANDS as i32,
            _ => true,
        })
    }
}

impl FunctionCompiler<'_> {
    /// Whether this is the plain version.
    pub(crate) fn is_plain(&self) -> bool {
        self.sites.wanted.plain().is_some()
    }

    /// In the plain version, brings all operands to their slots, and forgets copies of locals.
    pub(crate) fn make_plain(&mut self) {
        if !self.is_plain() {
            return;
        }
        self.registers.unpin_all();
        for height in self.stack.not_spilled() {
            let Operand { ty, val } = self.stack.at(height);
            if let Val::Const(bits) = val {
                let slot = self.frame.operand_slot(height);
                self.move_value(ty, Place::Mem(slot), Place::Const(bits));
                self.stack.set(height, Val::Slot);
            } else {
                self.spill_operand(height);
            }
        }
        self.stack.set_all_spilled();
        self.drop_copies();
        self.zero_flag = None;
        self.small_bytes = None;
        self.labels += 1;
    }

    /// In the plain version, sets the stack pointer after a call: the frame may have been smaller
    /// when it called, and the callee has removed its arguments.
    pub(crate) fn set_stack_pointer(&mut self) {
        self.asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RBP, i32::MIN));
        self.frame_sizes.push(self.asm.offset() - 4);
    }

    /// Writes the size of the frame where it was not known.
    pub(crate) fn fill_frame_sizes(&mut self, frame_size: u32) {
        for at in std::mem::take(&mut self.frame_sizes) {
            self.asm.overwrite(at, &(frame_size as i32).wrapping_neg().to_le_bytes());
        }
    }
}
