//! What the compiler shows of its work: where the code of each instruction is, and where the values
//! are in front of it.
//!
//! Nothing of this is kept when a module is compiled. Who must know compiles the function again,
//! which gives the same code, and watches it as an [`Observer`]: [`Positions`] collects places, and
//! [`FrameMaps`] a [`FrameMap`] of the state in front of each instruction that is asked for. What a
//! map says holds whenever the program is about to execute the instruction: it is at the place
//! where the instruction's code begins then, whichever way it has come there.

use std::fmt;

use super::abi::Ty;
use super::control::{Control, Kind};
use super::frame::Frame;
use super::function::FunctionCompiler;
use super::homes::{Region, bits};
use super::output::{CompiledFunction, Position};
use super::state::{Flag, Local, Operand, Val};
use super::stub::AtSite;
use crate::asm::{Cond, Mem, Reg};

/// Watches a function while it is compiled. Offsets of code are in the chunk.
pub trait Observer {
    /// The code of an instruction begins: for every instruction, in their order. Several may begin
    /// at the same place, since many have no code of their own.
    fn instruction(&mut self, position: Position, state: &State<'_>);

    /// More code of an instruction, apart from the rest: what runs rarely, and the epilogue. Or no
    /// code: [`Position::DATA`].
    fn more_code(&mut self, position: Position);

    /// The site of an instruction begins here ([`Sites`](super::Sites)), with the state in front of
    /// the instruction; for a loop, that at its label.
    fn site(&mut self, _site: Position, _state: &State<'_>) {}

    /// A frame can go on in another version of the function from here: from the label of a loop, or
    /// where a call returns. All versions have the same of these places, in the same order.
    fn transfer(&mut self, _code: u32) {}
}

/// What the compiler knows in front of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    reachable: bool,
    locals: &'a [Local],
    stack: &'a [Operand],
    control: &'a [Control<'a>],
    region: &'a Region,
    frame: &'a Frame,
    held: u32,
    /// By local: the module offset of the last access.
    last_access: &'a [u32],
    params: usize,
    position: u32,
    outermost_loop: u32,
    /// Whether the code may rely on the flags that were set last.
    flags_in_use: bool,
}

/// Where the values of a frame are, in front of an instruction.
///
/// Besides the registers that it names, `r14`, `r15`, `rbp` and `rsp` are what they always are, and
/// `rbx`, `r12` and `r13` are the caller's where the function does not use them. All others are
/// free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameMap {
    /// Parameters and locals, up to the last one that the function uses; those behind are zero for
    /// ever.
    pub locals: Box<[Placed<LocalPlace>]>,
    /// Operands, the top one last.
    pub operands: Box<[Placed<OperandPlace>]>,
    /// Registers whose values are needed from here on.
    pub registers: Box<[Reg]>,
    /// Whether the flags are needed from here on.
    pub flags: bool,
}

/// A value's type and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<P> {
    /// As far as code depends on it.
    pub ty: Ty,
    /// Where it is.
    pub place: P,
}

/// Where a local is. Slots are given by their offset from `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalPlace {
    /// In a register, and in its slot too if that is given.
    Register {
        /// The register.
        reg: Reg,
        /// Its slot, if that is up to date.
        slot: Option<i32>,
    },
    /// In its slot only.
    Slot(i32),
    /// Nowhere, and zero: no instruction of the function names it.
    Zero,
    /// The next instruction sets it, and its new value, the top operand, is in its place already.
    /// The old one is gone.
    Overwritten,
    /// Nowhere: no instruction from here on reads it.
    Dead,
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandPlace {
    /// Nowhere: the compiler knows its bits.
    Constant(u64),
    /// In a register.
    Register(Reg),
    /// Where this local is.
    Local(u32),
    /// In a slot, by the offset from `rbp`.
    Slot(i32),
    /// In memory: the next instruction is to load it, which may trap.
    Load(Address),
    /// It is a register's value shifted left, which the next instruction is to do.
    Shifted {
        /// The register.
        reg: Reg,
        /// By how many bits.
        by: u8,
    },
    /// It is 1 if the condition holds, else 0; the next instruction is to take it from the flags.
    Flags(Condition),
    /// Nowhere: the next instruction only asks whether it is zero, which it is unless the condition
    /// holds.
    Truth(Condition),
}

/// A place in memory: the sum of the parts that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// A register.
    pub base: Option<Reg>,
    /// A register, and by how many bits it is shifted left.
    pub index: Option<(Reg, u8)>,
    /// A constant.
    pub displacement: i32,
}

/// What the flags are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A condition of the processor, by its code in SETcc and Jcc.
    Code(u8),
    /// Equal, and ordered: of a comparison of floats.
    FloatEqual,
    /// Not equal, or unordered.
    FloatNotEqual,
}

impl Condition {
    /// Whether the condition holds with these flags (RFLAGS).
    #[must_use]
    pub fn holds(self, flags: u64) -> bool {
        let is_set = |bit: u32| flags >> bit & 1 != 0;
        let (carry, parity, zero) = (is_set(0), is_set(2), is_set(6));
        let (sign, overflow) = (is_set(7), is_set(11));
        match self {
            Self::FloatEqual => zero && !parity,
            Self::FloatNotEqual => !zero || parity,
            Self::Code(code) => {
                let plain = match code >> 1 {
                    0 => overflow,
                    1 => carry,
                    2 => zero,
                    3 => carry || zero,
                    4 => sign,
                    5 => parity,
                    6 => sign != overflow,
                    _ => zero || sign != overflow,
                };
                plain != (code & 1 != 0)
            }
        }
    }
}

impl From<Mem> for Address {
    fn from(mem: Mem) -> Self {
        let (base, index, displacement) = mem.parts();
        Self { base, index, displacement }
    }
}

impl<'a> State<'a> {
    pub(super) fn of(function: &'a FunctionCompiler<'_>) -> Self {
        let is_flag = |operand: &Operand| matches!(operand.val, Val::Flag(_));
        let zero_flag = function.flags.is_some_and(|(_, _, at)| at == function.asm.offset());
        Self {
            reachable: function.reachable,
            locals: &function.locals,
            stack: &function.stack,
            control: &function.control,
            region: function.region(),
            frame: &function.frame,
            held: function.registers.held(),
            last_access: &function.scan.last_access,
            params: function.ty.params().len(),
            position: function.position,
            outermost_loop: function.loops.outermost(),
            flags_in_use: zero_flag || function.stack.iter().any(is_flag),
        }
    }

    /// Whether the instruction can be reached.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.reachable
    }

    /// What a stub needs to know that comes here.
    #[must_use]
    pub fn at_site(&self) -> AtSite {
        let load = |operand: &Operand| match operand.val {
            Val::Load(mem) => Some((mem, operand.ty.wide())),
            _ => None,
        };
        AtSite { needs_flags: self.flags_in_use, pending: self.stack.iter().filter_map(load).collect() }
    }

    /// Where the values are; none in front of an instruction that cannot be reached.
    #[must_use]
    pub fn frame_map(&self) -> Option<FrameMap> {
        if !self.reachable {
            return None;
        }
        let locals = self.locals.iter().enumerate();
        let locals = locals.map(|(index, local)| Placed { ty: local.ty, place: self.local(index, local) });
        let operands = self.stack.iter().enumerate().filter(|(height, _)| !self.is_exception(*height));
        let operands = operands.map(|(height, operand)| Placed {
            ty: operand.ty,
            place: match operand.val {
                Val::Const(bits) => OperandPlace::Constant(bits),
                Val::Reg(reg) => OperandPlace::Register(reg),
                Val::Local(local) => OperandPlace::Local(local),
                Val::Slot => OperandPlace::Slot(self.frame.slot_in_use(height as u32).disp()),
                Val::Frame(offset) => OperandPlace::Slot(offset),
                Val::Load(mem) => OperandPlace::Load(mem.into()),
                Val::Scaled(reg, by) => OperandPlace::Shifted { reg, by },
                Val::Flag(Flag::Int(cond)) => OperandPlace::Flags(Condition::Code(cond as u8)),
                Val::Flag(Flag::FloatEqual) => OperandPlace::Flags(Condition::FloatEqual),
                Val::Flag(Flag::FloatNotEqual) => OperandPlace::Flags(Condition::FloatNotEqual),
                Val::Flag(Flag::NonZero) => OperandPlace::Truth(Condition::Code(Cond::NotEqual as u8)),
            },
        });
        Some(FrameMap {
            locals: locals.collect(),
            operands: operands.collect(),
            registers: bits(self.registers()).collect(),
            flags: self.flags_in_use,
        })
    }

    fn local(&self, index: usize, local: &Local) -> LocalPlace {
        if self.is_overwritten(local) {
            return LocalPlace::Overwritten;
        }
        if !self.is_live(index, local) {
            let is_named = self.last_access[index] != 0;
            return if is_named || index < self.params { LocalPlace::Dead } else { LocalPlace::Zero };
        }
        let own = self.frame.local_slot(index as u32).disp();
        match local.reg {
            Some(reg) => LocalPlace::Register { reg, slot: local.in_slot.then_some(own) },
            None => LocalPlace::Slot(own),
        }
    }

    /// Whether the operand is the exception that a `catch` keeps for `rethrow`: no operand of the
    /// program's.
    fn is_exception(&self, height: usize) -> bool {
        let is_handler = |control: &&Control<'_>| matches!(control.kind, Kind::Catch { .. });
        self.control.iter().filter(is_handler).any(|control| control.height as usize == height)
    }

    /// Whether the home of the local holds an operand already that the next instruction is to
    /// assign to it.
    fn is_overwritten(&self, local: &Local) -> bool {
        let is_at_home = |operand: &Operand| local.home.is_some_and(|home| operand.val == Val::Reg(home));
        self.stack.last().is_some_and(is_at_home)
    }

    /// Whether this instruction or a later one may read the local. Only then are the places right
    /// that the compiler has for it.
    fn is_live(&self, index: usize, local: &Local) -> bool {
        let last = self.last_access[index];
        last != 0 && (local.aliases > 0 || last >= self.position || last >= self.outermost_loop)
    }

    fn registers(&self) -> u32 {
        let mut set = self.held;
        for (reg, local) in self.region.iter() {
            let state = &self.locals[local as usize];
            if state.reg == Some(reg) && self.is_live(local as usize, state) {
                set |= reg.bit();
            }
        }
        for operand in self.stack {
            match operand.val {
                Val::Reg(reg) | Val::Scaled(reg, _) => set |= reg.bit(),
                Val::Load(mem) => mem.registers().for_each(|reg| set |= reg.bit()),
                _ => {}
            }
        }
        set
    }
}

/// Collects where the code of the instructions is.
#[derive(Debug, Default)]
pub struct Positions(Vec<Position>);

impl Observer for Positions {
    fn instruction(&mut self, position: Position, _: &State<'_>) {
        self.0.push(position);
    }

    fn more_code(&mut self, position: Position) {
        self.0.push(position);
    }
}

impl Positions {
    /// In the order of the code, by offsets from the entry of the function that was watched.
    #[must_use]
    pub fn in_function(mut self, function: &CompiledFunction) -> Vec<Position> {
        for position in &mut self.0 {
            position.code -= function.entry;
        }
        self.0.sort_by_key(|position| position.code);
        self.0
    }
}

/// Collects the maps of the frames in front of those instructions that are asked for, by their
/// offsets in the module.
pub struct FrameMaps<F> {
    is_wanted: F,
    maps: Vec<(Position, FrameMap)>,
}

impl<F: FnMut(u32) -> bool> FrameMaps<F> {
    /// Of the instructions for which `is_wanted` says so.
    pub fn of(is_wanted: F) -> Self {
        Self { is_wanted, maps: Vec::new() }
    }

    /// In the order of the instructions, by offsets from the entry of the function that was
    /// watched. There is none for an instruction that cannot be reached.
    #[must_use]
    pub fn in_function(mut self, function: &CompiledFunction) -> Vec<(Position, FrameMap)> {
        for (position, _) in &mut self.maps {
            position.code -= function.entry;
        }
        self.maps
    }
}

impl<F: FnMut(u32) -> bool> Observer for FrameMaps<F> {
    fn instruction(&mut self, position: Position, state: &State<'_>) {
        if (self.is_wanted)(position.wasm) {
            self.maps.extend(state.frame_map().map(|map| (position, map)));
        }
    }

    fn more_code(&mut self, _: Position) {}
}

impl<F> fmt::Debug for FrameMaps<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.maps).finish()
    }
}
