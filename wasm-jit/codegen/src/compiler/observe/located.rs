//! Where the values of a frame are, for probes that read and write them, at settled sites and while
//! a call waits.
//!
//! A value may be written at its location if nothing else depends on that location, and the code
//! takes the value from there. A condition is written by changing the flags: its users only test
//! whether it is zero. A value that the code has not materialized can be changed in the plain
//! version only (`sites/plain.rs`): constants, including those that locals hold, aliases of locals,
//! and pending shifts.

use wasmparser::ValType;

use super::located_locals::LocatedLocals;
use super::{Condition, LocalPlace, State};
use crate::asm::{Reg, Width};
use crate::compiler::abi::{ResultPlace, Ty, result_places};
use crate::compiler::state::{Flag, Local, Val};

/// The values of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Parameters and locals, up to the last one that the function uses; the following ones are
    /// zero.
    pub locals: LocatedLocals,
    /// Operands, the top one last.
    pub operands: Box<[ValueAt]>,
    /// The register whose value the zero flag reflects, and how many bits of it, if the code relies
    /// on that.
    pub zero_flag: Option<(Reg, Width)>,
    /// Bytes of a slot: 16 in functions that use vectors.
    pub slot_bytes: u32,
}

/// A value of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueAt {
    /// The parts of the value's type that the code depends on.
    pub ty: Ty,
    /// Where the value is.
    pub at: At,
    /// Whether a new value can be written at that location.
    pub writable: bool,
}

// A generic probe has one of these for each operand at its location, and for some locals.
const _: () = assert!(size_of::<ValueAt>() <= 32);

/// Where a value is. Slots are given by their offset from `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nowhere: the value is this constant.
    Constant(u64),
    /// Nowhere: the value is a constant vector with these halves, the lower one first.
    Vector([u64; 2]),
    /// In a register, and in the slot at this offset, if one is given.
    Register(Reg, Option<i32>),
    /// In the slot at this offset.
    Slot(i32),
    /// Where settled sites keep it ([`SETTLED`](crate::vmctx::SETTLED)).
    Settled,
    /// As `Settled`, but the code tests the zero flag.
    Tested,
    /// A register's value shifted left.
    Shifted(Reg, u8),
    /// 1 if the condition holds, else 0; the code tests the flags.
    Flags(Condition),
    /// A result in the store's buffer, by its index.
    Result(u32),
    /// The value is not kept where the frame is.
    Unknown,
}

impl Located {
    /// The values whose locations are the same in both.
    #[must_use]
    pub fn common(mut self, other: &Self) -> Self {
        let is_same_shape = self.operands.len() == other.operands.len();
        let common = |value: ValueAt, other: Option<&ValueAt>| {
            let is_same = is_same_shape && other.is_some_and(|other| other.at == value.at);
            if is_same { value } else { ValueAt { at: At::Unknown, ..value } }
        };
        self.locals = self.locals.map(|index, value| common(value, other.locals.get(index)));
        for (index, value) in self.operands.iter_mut().enumerate() {
            *value = common(*value, other.operands.get(index));
        }
        self
    }

    /// All locals, and then all operands.
    pub fn values(&self) -> impl Iterator<Item = &ValueAt> {
        self.locals.iter().chain(&self.operands)
    }

    /// The values that are still known where an instruction has trapped, if these were the values
    /// before the instruction. Only the registers for which `is_intact` returns true still have
    /// their values; of others, `stored` returns the slot to which the instruction has stored them.
    #[must_use]
    pub fn at_trap(&self, is_intact: impl Fn(Reg) -> bool, stored: impl Fn(Reg) -> Option<i32>) -> Self {
        let known = |value: &ValueAt| {
            let at = match value.at {
                At::Register(reg, _) | At::Shifted(reg, _) if is_intact(reg) => value.at,
                At::Register(_, Some(slot)) => At::Slot(slot),
                At::Register(reg, None) => stored(reg).map_or(At::Unknown, At::Slot),
                At::Constant(_) | At::Vector(_) | At::Slot(_) => value.at,
                _ => At::Unknown,
            };
            ValueAt { at, writable: false, ..*value }
        };
        Self {
            locals: self.locals.map(|_, value| known(&value)),
            operands: self.operands.iter().map(known).collect(),
            zero_flag: None,
            slot_bytes: self.slot_bytes,
        }
    }
}

impl State<'_> {
    /// Where the values are: at a settled site, or while the current instruction calls. They share
    /// memory with those at another place of the function, if they are given.
    #[must_use]
    pub fn located(&self, other: Option<&Located>) -> Located {
        let other = other.map(|other| &other.locals);
        if let Some(results) = self.results {
            return self.located_at_exit(results, other);
        }
        let uses = self.uses();
        let locals = self.locals_at(&uses, other);
        let operands = (0..self.stack.len()).filter(|height| !self.is_exception(*height));
        let operands = operands.map(|height| self.operand_at(height, &uses)).collect();
        Located { locals, operands, zero_flag: self.zero_flag, slot_bytes: self.frame.slot_bytes() }
    }

    /// The values at the exit: the operands are the results. The locals are in their slots, but no
    /// longer in use.
    fn located_at_exit(&self, results: &[ValType], other: Option<&LocatedLocals>) -> Located {
        let locals = self.locals_at(&[0; 32], other);
        let operand = |(ty, place)| {
            let at = match place {
                ResultPlace::Reg(reg) => At::Register(reg, None),
                ResultPlace::Buffer(index) => At::Result(index),
            };
            ValueAt { ty, at, writable: true }
        };
        let operands = result_places(results).map(operand).collect();
        Located { locals, operands, zero_flag: None, slot_bytes: self.frame.slot_bytes() }
    }

    /// Where the values are before the current instruction, which may have no site.
    #[must_use]
    pub fn located_unsettled(&self) -> Located {
        let mut located = self.located(None);
        // Only a site stores the old value.
        let is_lost =
            |index: usize| matches!(self.local(index, &self.locals[index]), LocalPlace::Overwritten);
        located.locals = located.locals.map(|index, value| match is_lost(index) {
            true => ValueAt { at: At::Unknown, ..value },
            false => value,
        });
        for operand in located.operands.iter_mut().filter(|operand| matches!(operand.at, At::Settled)) {
            operand.at = At::Unknown;
        }
        located
    }

    /// For each register, the number of values that depend on it.
    fn uses(&self) -> [u32; 32] {
        let mut uses = [0; 32];
        for (index, local) in self.locals.iter().enumerate() {
            if let LocalPlace::Register { reg, .. } = self.local(index, local) {
                uses[reg.index()] += 1;
            }
        }
        for operand in self.stack {
            if let Val::Reg(reg) | Val::Scaled(reg, _) = operand.val {
                uses[reg.index()] += 1;
            }
        }
        uses
    }

    fn locals_at(&self, uses: &[u32; 32], other: Option<&LocatedLocals>) -> LocatedLocals {
        let locals = self.locals.iter().enumerate();
        LocatedLocals::new(locals.map(|(index, local)| self.local_at(index, local, uses)), other)
    }

    fn local_at(&self, index: usize, local: &Local, uses: &[u32; 32]) -> ValueAt {
        let is_known = local.known(self.labels).is_some();
        let own = local.aliases == 0 && !is_known || self.results.is_some();
        let (at, writable) = match self.local(index, local) {
            LocalPlace::Register { reg, slot } => (At::Register(reg, slot), own && uses[reg.index()] == 1),
            LocalPlace::Slot(slot) => (At::Slot(slot), own),
            // Settled: the old value was stored. Only probes read it.
            LocalPlace::Overwritten => (At::Slot(self.frame.local_slot(index as u32).disp()), true),
            LocalPlace::Zero => (At::Constant(0), false),
        };
        ValueAt { ty: local.ty, at, writable }
    }

    fn operand_at(&self, height: usize, uses: &[u32; 32]) -> ValueAt {
        let operand = self.stack[height];
        let (at, writable) = match operand.val {
            Val::Const(number) if operand.ty == Ty::V128 => {
                let bits = self.vectors.get(number);
                (At::Vector([bits as u64, (bits >> 64) as u64]), false)
            }
            Val::Const(bits) => (At::Constant(bits), false),
            Val::Reg(reg) => (At::Register(reg, None), uses[reg.index()] == 1),
            Val::Local(local) => {
                let local = local as usize;
                (self.local_at(local, &self.locals[local], uses).at, false)
            }
            Val::Slot => (At::Slot(self.frame.slot_in_use(height as u32).disp()), true),
            Val::Frame(slot) => (At::Slot(slot), false),
            Val::Load(_) => (At::Settled, true),
            Val::Scaled(reg, by) => (At::Shifted(reg, by), false),
            Val::Flag(Flag::NonZero) => (At::Tested, true),
            Val::Flag(Flag::Int(cond)) => (At::Flags(Condition::Code(cond as u8)), true),
            Val::Flag(Flag::FloatEqual) => (At::Flags(Condition::FloatEqual), true),
            Val::Flag(Flag::FloatNotEqual) => (At::Flags(Condition::FloatNotEqual), true),
        };
        ValueAt { ty: operand.ty, at, writable }
    }
}
