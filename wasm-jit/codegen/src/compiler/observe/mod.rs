//! Observation of the compiler: the code position of each instruction, and the locations of values
//! before it.
//!
//! None of this is stored when a module is compiled. To get it, the function is compiled again,
//! which produces the same code, with an [`Observer`]: [`Positions`] collects code positions, and
//! [`FrameMaps`] a [`FrameMap`] of the state before each requested instruction. A map holds
//! whenever the program is about to execute the instruction, that is, when it is at the code
//! position of the instruction, on whichever path it got there.

pub(super) mod located;
pub(super) mod located_locals;
mod show;

use std::fmt;

use wasmparser::ValType;

use crate::asm::{Cond, Mem, Reg, Width};
use crate::compiler::abi::{ResultPlace, Ty, result_places};
use crate::compiler::cached_locals::{Region, bits};
use crate::compiler::control_stack::{Control, Kind};
use crate::compiler::counting::Run;
use crate::compiler::frame::Frame;
use crate::compiler::function::FunctionCompiler;
use crate::compiler::output::{CompiledFunction, Position};
use crate::compiler::sites::SiteKind;
use crate::compiler::state::{Flag, Local, Operand, Val, Vectors};
use crate::compiler::stubs::AtSite;
use crate::compiler::stubs::list::SiteState;
use crate::compiler::stubs::values::{NoValue, Source, Value, Vector, Wanted};

/// Is notified while a function is compiled. Code offsets are relative to the chunk.
pub trait Observer {
    /// The code of an instruction begins: called for every instruction, in order. Several may begin
    /// at the same position, since many have no code of their own.
    fn instruction(&mut self, position: Position, state: &State<'_>);

    /// Additional code of an instruction, outside of the main sequence: cold code, and the
    /// epilogue. Or data: [`Position::DATA`].
    fn more_code(&mut self, position: Position);

    /// The code before the offset `from` was made longer, so that the next instruction's code
    /// begins at `to`. The same holds for all instructions that were reported to begin at `from`.
    fn moved(&mut self, from: u32, to: u32);

    /// The site of an instruction begins here ([`Sites`](crate::compiler::Sites)), with the state
    /// before the instruction, or for a loop, at its label. Several instructions may share a site.
    fn site(&mut self, _site: Position, _state: &State<'_>) {}

    /// The location of a site: called for all instructions, the entry and the exit, with the state
    /// that a site has here, whether there is a site or not.
    fn place(&mut self, _wasm: u32, _state: &State<'_>) {}

    /// An instruction calls a WebAssembly function or a host function. This is the state during the
    /// call: its arguments have left the stack, and its results are not there yet.
    fn call(&mut self, _wasm: u32, _state: &State<'_>) {}

    /// An instruction calls a routine of the engine, once or several times. This is the state
    /// during the call, and if the routine fails, when the frame is left.
    fn routine(&mut self, _wasm: u32, _state: &State<'_>) {}

    /// A frame can continue in another version of the function from here: from the label of a loop,
    /// or where a call returns. All versions have the same transfer points, in the same order.
    fn transfer(&mut self, _code: u32) {}

    /// A frame that continues at this transfer point, the label of a loop, must have the address of
    /// its instance's counters in `r11` (called at the loop's end).
    fn counters_at(&mut self, _transfer: u32) {}

    /// A straight-line run begins: called in order, before its first instruction. A run at the
    /// entry, or at a loop, begins after the function's or the loop's own code.
    fn run(&mut self, _run: Run) {}
}

/// The state of the compiler before an instruction.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    reachable: bool,
    pub(in crate::compiler) locals: &'a [Local],
    pub(in crate::compiler) stack: &'a [Operand],
    control: &'a [Control<'a>],
    region: &'a Region,
    pub(in crate::compiler) frame: &'a Frame,
    pub(in crate::compiler) vectors: &'a Vectors,
    /// Number of the labels so far: [`HeldConstant`](crate::compiler::state::HeldConstant).
    pub(crate) labels: u32,
    held: u32,
    /// For each local, whether an instruction accesses it.
    accessed: &'a [bool],
    params: usize,
    /// Whether the code may rely on the current flags.
    flags_in_use: bool,
    /// The register whose value the zero flag reflects, and how many bits of it.
    pub(crate) zero_flag: Option<(Reg, Width)>,
    /// Whether a pending load was done before the site.
    load_is_done: bool,
    /// Whether this is the plain version.
    is_plain: bool,
    /// The types of the results, if this is the exit.
    pub(crate) results: Option<&'a [ValType]>,
    /// Whether the site is a jump of the program.
    is_jump: bool,
}

/// The locations of the values of a frame, before an instruction.
///
/// In addition to the registers in the map, `r14`, `r15`, `rbp` and `rsp` have their usual roles,
/// and `rbx`, `r12` and `r13` hold the caller's values if the function does not use them. All other
/// registers are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameMap {
    /// Parameters and locals, up to the last one that the function uses; the following ones are
    /// always zero.
    pub locals: Box<[Placed<LocalPlace>]>,
    /// Operands, the top one last.
    pub operands: Box<[Placed<OperandPlace>]>,
    /// The live registers.
    pub registers: Box<[Reg]>,
    /// Whether the flags are live.
    pub flags: bool,
}

/// A value's type and location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<P> {
    /// The parts of the value's type that the code depends on.
    pub ty: Ty,
    /// The value's location.
    pub place: P,
}

/// The location of a local. Slots are given by their offset from `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalPlace {
    /// In a register, and in its slot, if that is given.
    Register {
        /// The register that holds the local.
        reg: Reg,
        /// The local's slot, if that is up to date.
        slot: Option<i32>,
    },
    /// Only in its slot.
    Slot(i32),
    /// No location, and zero: no instruction of the function uses it.
    Zero,
    /// The next instruction sets it, and its new value, the top operand, is already in its
    /// location. The old value is lost.
    Overwritten,
}

/// The location of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandPlace {
    /// No location: a constant.
    Constant(u64),
    /// No location: a vector that is a constant.
    Vector(u128),
    /// In a register.
    Register(Reg),
    /// In the location of this local.
    Local(u32),
    /// In a slot, by the offset from `rbp`.
    Slot(i32),
    /// In memory: the next instruction loads it, which may trap.
    Load(Address),
    /// A register's value shifted left; the next instruction does the shift.
    Shifted {
        /// The register whose value is shifted.
        reg: Reg,
        /// The number of bits by which it is shifted.
        by: u8,
    },
    /// 1 if the condition holds, else 0; the next instruction reads it from the flags.
    Flags(Condition),
    /// No location: the next instruction only tests whether it is zero, which it is unless the
    /// condition holds.
    Truth(Condition),
}

/// A memory address: the sum of the parts that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// A register that is added.
    pub base: Option<Reg>,
    /// A register, and the number of bits by which it is shifted left.
    pub index: Option<(Reg, u8)>,
    /// A constant that is added, in bytes.
    pub displacement: i32,
}

/// A condition on the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A condition of the processor, by its code in SETcc and Jcc.
    Code(u8),
    /// Equal and ordered, after a comparison of floats.
    FloatEqual,
    /// Not equal or unordered.
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
    pub(in crate::compiler) fn of(function: &'a FunctionCompiler<'_>) -> Self {
        let is_flag = |operand: &Operand| matches!(operand.val, Val::Flag(_));
        let zero_flag = function.zero_flag.filter(|flag| flag.at == function.asm.offset());
        let zero_flag = zero_flag.map(|flag| (flag.reg, flag.width));
        Self {
            reachable: function.control.reachable,
            locals: &function.locals,
            stack: &function.stack,
            control: function.control.blocks(),
            region: function.region(),
            frame: &function.frame,
            vectors: &function.vectors,
            labels: function.labels,
            held: function.registers.held(),
            accessed: &function.scan.accessed,
            params: function.ty.params().len(),
            flags_in_use: zero_flag.is_some() || function.stack.last().is_some_and(is_flag),
            zero_flag,
            load_is_done: function.instruction.load_is_done,
            is_plain: function.is_plain(),
            results: None,
            is_jump: false,
        }
    }

    /// The state at the jump of the current instruction, which is its site: the operand has been
    /// popped, and may be in the flags; a load, if there was one, has been done.
    pub(in crate::compiler) fn at_jump(function: &'a FunctionCompiler<'_>) -> Self {
        Self { flags_in_use: true, load_is_done: true, is_jump: true, ..Self::of(function) }
    }

    /// The state at a location; at the exit, it has only the results.
    pub(in crate::compiler) fn at(function: &'a FunctionCompiler<'_>, kind: SiteKind) -> Self {
        let state = Self::of(function);
        if kind != SiteKind::Exit {
            return state;
        }
        let results = Some(function.ty.results());
        let zero_flag = None;
        Self { reachable: true, stack: &[], held: 0, flags_in_use: false, zero_flag, results, ..state }
    }

    /// Whether the instruction can be reached.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.reachable
    }

    /// Whether the instruction does a load that belongs to the previous one.
    #[must_use]
    pub fn has_pending_load(&self) -> bool {
        self.stack.last().is_some_and(|operand| matches!(operand.val, Val::Load(_)))
    }

    /// What the stub of a site here needs to know.
    #[must_use]
    pub fn at_site(&self) -> AtSite {
        let load = |operand: &Operand| match operand.val {
            Val::Load(mem) if !self.load_is_done => Some((mem, operand.ty.width())),
            _ => None,
        };
        AtSite {
            needs_flags: self.flags_in_use,
            pending: self.stack.last().and_then(load).into_iter().collect(),
            is_jump: self.is_jump,
        }
    }

    /// What a stub that calls functions needs to know.
    #[must_use]
    pub fn site_state(&self) -> SiteState {
        let flag = self.stack.last().and_then(|operand| match operand.val {
            Val::Flag(flag) => Some(flag),
            _ => None,
        });
        let operands = self.stack.len() as u32;
        let slot_bytes = self.frame.slot_bytes();
        SiteState { live: self.registers(), needs_flags: self.flags_in_use, flag, operands, slot_bytes }
    }

    /// Where a settled site has a value.
    ///
    /// # Errors
    /// There is no such value, or it has no location.
    pub fn value(&self, wanted: Wanted) -> Result<Value, NoValue> {
        let value = match wanted {
            Wanted::Local(index) => match self.locals.get(index as usize) {
                Some(local) => self.local_value(index as usize, local),
                None => Source::Const(0).into(),
            },
            Wanted::Operand(depth) => self.operand_value(self.height(depth).ok_or(NoValue::NotThere)?),
            Wanted::Result(index) => {
                let mut places = result_places(self.results.unwrap_or_default());
                let (ty, place) = places.nth(index as usize).ok_or(NoValue::NotThere)?;
                match place {
                    ResultPlace::Reg(reg) => in_register(ty, reg),
                    ResultPlace::Buffer(index) if ty == Ty::V128 => Source::Vector(Vector::Result(index)),
                    ResultPlace::Buffer(index) => Source::Result(index, ty.width()),
                }
                .into()
            }
        };
        Ok(Value { wanted: Some(wanted), ..value })
    }

    /// The type of an operand, counted from the top of the stack.
    #[must_use]
    pub fn operand_type(&self, depth: u32) -> Option<Ty> {
        Some(self.stack[self.height(depth)?].ty)
    }

    /// Where an operand is on the stack.
    fn height(&self, depth: u32) -> Option<usize> {
        let mut heights = (0..self.stack.len()).rev().filter(|height| !self.is_exception(*height));
        heights.nth(depth as usize)
    }

    fn local_value(&self, index: usize, local: &Local) -> Value {
        let source = match self.local(index, local) {
            LocalPlace::Register { reg, .. } => in_register(local.ty, reg),
            LocalPlace::Slot(offset) => in_slot(local.ty, offset),
            LocalPlace::Zero if local.ty == Ty::V128 => Source::Vector(Vector::Const(0)),
            LocalPlace::Zero => Source::Const(0),
            // Settled: the old value was stored.
            LocalPlace::Overwritten => in_slot(local.ty, self.frame.local_slot(index as u32).disp()),
        };
        source.into()
    }

    fn operand_value(&self, height: usize) -> Value {
        let Operand { ty, val } = self.stack[height];
        let width = ty.width();
        let source = match val {
            Val::Const(number) if ty == Ty::V128 => Source::Vector(Vector::Const(self.vectors.get(number))),
            Val::Const(bits) => Source::Const(bits),
            Val::Reg(reg) => in_register(ty, reg),
            Val::Local(local) => return self.local_value(local as usize, &self.locals[local as usize]),
            Val::Slot => in_slot(ty, self.frame.slot_in_use(height as u32).disp()),
            Val::Frame(offset) => in_slot(ty, offset),
            Val::Load(_) | Val::Flag(Flag::NonZero) => Source::Settled(width),
            Val::Scaled(reg, by) => Source::Shifted(reg, by, width),
            Val::Flag(_) => Source::Flag,
        };
        source.into()
    }

    /// The locations of the values; `None` before an unreachable instruction.
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
                Val::Const(number) if operand.ty == Ty::V128 => {
                    OperandPlace::Vector(self.vectors.get(number))
                }
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

    pub(in crate::compiler) fn local(&self, index: usize, local: &Local) -> LocalPlace {
        if self.is_overwritten(local) {
            return LocalPlace::Overwritten;
        }
        if index >= self.params && !self.accessed[index] && !self.is_plain {
            return LocalPlace::Zero;
        }
        let own = self.frame.local_slot(index as u32).disp();
        if self.results.is_some() {
            return LocalPlace::Slot(own);
        }
        match local.reg {
            Some(reg) => LocalPlace::Register { reg, slot: local.in_slot.then_some(own) },
            None => LocalPlace::Slot(own),
        }
    }

    /// Whether the operand is the exception that a `catch` keeps for `rethrow`, which is not an
    /// operand of the program.
    pub(crate) fn is_exception(&self, height: usize) -> bool {
        let is_handler = |control: &&Control<'_>| matches!(control.kind, Kind::Catch { .. });
        self.control.iter().filter(is_handler).any(|control| control.height as usize == height)
    }

    /// Whether the local's cache register already holds the operand that the next instruction
    /// assigns to it.
    fn is_overwritten(&self, local: &Local) -> bool {
        let is_in_cache_reg =
            |operand: &Operand| local.cache_reg.is_some_and(|cache_reg| operand.val == Val::Reg(cache_reg));
        self.stack.last().is_some_and(is_in_cache_reg)
    }

    fn registers(&self) -> u32 {
        if let Some(results) = self.results {
            let places = result_places(results);
            let bit = |place| if let ResultPlace::Reg(reg) = place { reg.bit() } else { 0 };
            return places.fold(0, |set, (_, place)| set | bit(place));
        }
        let mut set = self.held;
        for (reg, local) in self.region.iter() {
            let state = &self.locals[local as usize];
            if state.reg == Some(reg) {
                set |= reg.bit();
            }
        }
        self.region.floats.iter().for_each(|(reg, _)| set |= reg.bit());
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

/// Changes those of the last code positions that are `from` to `to`: see [`Observer::moved`].
pub fn move_last<'a>(codes: impl DoubleEndedIterator<Item = &'a mut u32>, from: u32, to: u32) {
    codes.rev().take_while(|code| **code == from).for_each(|code| *code = to);
}

/// Collects the code positions of instructions.
#[derive(Debug, Default)]
pub struct Positions(Vec<Position>);

impl Observer for Positions {
    fn instruction(&mut self, position: Position, _: &State<'_>) {
        self.0.push(position);
    }

    fn moved(&mut self, from: u32, to: u32) {
        move_last(self.0.iter_mut().map(|position| &mut position.code), from, to);
    }

    fn more_code(&mut self, position: Position) {
        self.0.push(position);
    }
}

impl Positions {
    /// The positions in code order; code offsets are from the entry of the observed function.
    #[must_use]
    pub fn in_function(mut self, function: &CompiledFunction) -> Vec<Position> {
        for position in &mut self.0 {
            position.code -= function.entry;
        }
        self.0.sort_by_key(|position| position.code);
        self.0
    }
}

/// Collects the frame maps before the requested instructions, by their offsets in the module.
pub struct FrameMaps<F> {
    is_wanted: F,
    maps: Vec<(Position, FrameMap)>,
}

impl<F: FnMut(u32) -> bool> FrameMaps<F> {
    /// Frame maps of the instructions for which `is_wanted` returns true.
    pub fn of(is_wanted: F) -> Self {
        Self { is_wanted, maps: Vec::new() }
    }

    /// The maps in instruction order; code offsets are from the entry of the observed function.
    /// Unreachable instructions have no map.
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

    fn moved(&mut self, from: u32, to: u32) {
        move_last(self.maps.iter_mut().map(|(position, _)| &mut position.code), from, to);
    }

    fn more_code(&mut self, _: Position) {}
}

impl<F> fmt::Debug for FrameMaps<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.maps).finish()
    }
}

/// A value of a type in a register.
fn in_register(ty: Ty, reg: Reg) -> Source {
    if ty == Ty::V128 { Source::Vector(Vector::Register(reg)) } else { Source::Register(reg, ty.width()) }
}

/// A value of a type in the frame.
fn in_slot(ty: Ty, offset: i32) -> Source {
    if ty == Ty::V128 { Source::Vector(Vector::Slot(offset)) } else { Source::Slot(offset, ty.width()) }
}
