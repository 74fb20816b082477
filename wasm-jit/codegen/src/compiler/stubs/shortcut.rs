//! Shortcuts: steps that a stub executes inline in the common cases, instead of calling a native
//! function.
//!
//! A [`Shortcut`] is a sequence of [`Step`]s on four registers and on memory. Steps are branches to
//! the call of the function ([`Step::CallIf`]), forward branches ([`Step::SkipIf`]), moves, sums,
//! and the time-stamp counter. [`record_stub`](super::record) places it in a stub that saves
//! no registers:
//!
//! ```text
//! mov [rbp - 8], r14               as in every stub of a list
//! mov r11, fs:[offset]             for each step: its instruction, on registers that are free
//! cmp r11, 0
//! je call
//! ...
//! next:
//! jmp back
//! call:
//! ...                              saves what is live, as in `stub_list`
//! mov rdi, value ...
//! mov rax, function
//! call rax
//! ...                              is an interrupt requested? Restores what is live
//! jmp next
//! ```
//!
//! The registers are those that hold no value at the site, and `r11`. If there are too few, or the
//! flags are needed, or an argument is at a location that steps cannot read, the stub always calls
//! the function.
//!
//! An interrupt leaves a stub between any two instructions, unless they belong to steps that must
//! be executed [together](Step::Together): there, signals have no effect
//! ([`ListStub::uninterrupted`]).
//!
//! [`ListStub::uninterrupted`]: crate::compiler::ListStub::uninterrupted

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::values::{Source, Value};
use crate::asm::{Alu, Assembler, Cond, Label, Mem, Reg, Shift, Size, Width};
use crate::compiler::abi::{CONTEXT, FLOAT_SCRATCH, SCRATCH};

/// A 64-bit register of a shortcut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Temp {
    A,
    B,
    C,
    D,
}

/// A quadword in memory: at the address in a register, plus an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quadword {
    /// The register that contains the address.
    pub base: Temp,
    /// The offset from the address, in bytes.
    pub offset: i32,
}

/// What a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Temp(Temp),
    /// A constant, sign-extended.
    Const(i32),
    /// The value that the function gets as the argument with this number. A
    /// [constant](Value::constant) that a sign-extended one can represent, [`Value::FRAME`] or
    /// [`Value::CONTEXT`].
    Argument(usize),
    /// A quadword.
    Memory(Quadword),
}

/// A relation of two unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Relation {
    Equal,
    NotEqual,
    Below,
    BelowOrEqual,
    Above,
    AboveOrEqual,
}

impl Relation {
    fn condition(self) -> Cond {
        match self {
            Self::Equal => Cond::Equal,
            Self::NotEqual => Cond::NotEqual,
            Self::Below => Cond::Below,
            Self::BelowOrEqual => Cond::BelowEqual,
            Self::Above => Cond::Above,
            Self::AboveOrEqual => Cond::AboveEqual,
        }
    }
}

/// A step of a shortcut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Sets a register.
    Set(Temp, Operand),
    /// Sets a register to a 64-bit constant.
    SetConst(Temp, u64),
    /// Sets a register to the quadword of the running thread at this offset from its thread pointer
    /// (`fs`).
    SetOfThread(Temp, i32),
    /// Sets a register to the time-stamp counter.
    SetClock(Temp),
    /// Adds to a register.
    Add(Temp, Operand),
    /// Subtracts from a register.
    Subtract(Temp, Operand),
    /// Stores in memory.
    Store(Quadword, Operand),
    /// Adds to a quadword in memory.
    AddTo(Quadword, Operand),
    /// Subtracts from a quadword in memory.
    SubtractFrom(Quadword, Operand),
    /// Ends the shortcut by a call to the function, if the relation holds.
    CallIf(Operand, Relation, Operand),
    /// Skips steps if the relation holds.
    SkipIf(Operand, Relation, Operand, Box<[Step]>),
    /// Steps that an interrupt does not separate: it leaves the program before all of them or after
    /// all of them.
    Together(Box<[Step]>),
}

impl Step {
    /// Whether there is an instruction for the step: at most one operand is in memory, constants
    /// are not compared with each other, and no value in memory is stored to memory.
    fn is_encodable(&self) -> bool {
        let compares = |first: &Operand, second: &Operand| match (first, second) {
            (Operand::Const(_), _) | (Operand::Memory(_), Operand::Memory(_)) => false,
            // The argument may be a constant.
            (Operand::Argument(_), other) => !matches!(other, Operand::Argument(_) | Operand::Const(_)),
            _ => true,
        };
        match self {
            Self::Set(..) | Self::SetConst(..) | Self::SetOfThread(..) | Self::SetClock(_) => true,
            Self::Add(..) | Self::Subtract(..) => true,
            Self::Store(_, from) | Self::AddTo(_, from) | Self::SubtractFrom(_, from) => {
                !matches!(from, Operand::Memory(_))
            }
            Self::CallIf(first, _, second) => compares(first, second),
            Self::SkipIf(first, _, second, steps) => {
                compares(first, second) && steps.iter().all(Self::is_encodable)
            }
            Self::Together(steps) => steps.iter().all(Self::is_encodable),
        }
    }

    /// Calls a function with each register, and with each operand.
    fn visit(&self, temp: &mut impl FnMut(Temp), operand: &mut impl FnMut(Operand)) {
        match self {
            Self::Set(to, from) | Self::Add(to, from) | Self::Subtract(to, from) => {
                temp(*to);
                operand(*from);
            }
            Self::SetConst(to, _) | Self::SetOfThread(to, _) | Self::SetClock(to) => temp(*to),
            Self::Store(to, from) | Self::AddTo(to, from) | Self::SubtractFrom(to, from) => {
                temp(to.base);
                operand(*from);
            }
            Self::CallIf(first, _, second) => {
                operand(*first);
                operand(*second);
            }
            Self::SkipIf(first, _, second, steps) => {
                operand(*first);
                operand(*second);
                steps.iter().for_each(|step| step.visit(temp, operand));
            }
            Self::Together(steps) => steps.iter().for_each(|step| step.visit(temp, operand)),
        }
    }
}

/// Steps that a stub executes instead of calling a native function.
pub struct Shortcut {
    steps: Box<[Step]>,
    /// Keeps alive what the addresses in the steps refer to.
    _keeps: Box<dyn Any + Send + Sync>,
    /// The number of registers that are used, from the first.
    temps: usize,
    /// The number of arguments that there must be.
    arguments: usize,
}

impl Shortcut {
    /// A shortcut of these steps; `keeps` keeps alive what addresses in the steps refer to. `None`
    /// if there is no instruction for a step: memory cannot be stored to, added to or compared with
    /// memory, and a constant must be the second operand of a comparison.
    #[must_use]
    pub fn new(steps: Box<[Step]>, keeps: Box<dyn Any + Send + Sync>) -> Option<Self> {
        let (mut temps, mut arguments, mut in_operands) = (0, 0, 0);
        for step in &steps {
            step.visit(&mut |temp| temps = temps.max(temp as usize + 1), &mut |operand| match operand {
                Operand::Temp(temp) | Operand::Memory(Quadword { base: temp, .. }) => {
                    in_operands = in_operands.max(temp as usize + 1);
                }
                Operand::Argument(number) => arguments = arguments.max(number + 1),
                Operand::Const(_) => {}
            });
        }
        let temps = temps.max(in_operands);
        steps.iter().all(Step::is_encodable).then_some(Self { steps, _keeps: keeps, temps, arguments })
    }

    /// The shortcut at a site where these registers are live, if a stub can execute it there.
    pub(crate) fn at_site<'a>(&'a self, live: u32, arguments: &'a [Value]) -> Option<SiteShortcut<'a>> {
        // RAX and RDX last: the time-stamp counter is read into them.
        const CANDIDATES: [Reg; 9] =
            [SCRATCH, Reg::RCX, Reg::RSI, Reg::RDI, Reg::R8, Reg::R9, Reg::R10, Reg::RAX, Reg::RDX];
        let free = CANDIDATES.into_iter().filter(|reg| live & reg.bit() == 0);
        let temps: Vec<Reg> = free.take(self.temps).collect();
        let arguments: Option<Vec<Place>> = arguments.get(..self.arguments)?.iter().map(place).collect();
        (temps.len() == self.temps).then_some(())?;
        Some(SiteShortcut { steps: &self.steps, live, temps, arguments: arguments? })
    }
}

/// A shortcut is equal only to itself.
impl PartialEq for Shortcut {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Shortcut {}

impl Hash for Shortcut {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl fmt::Debug for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shortcut").field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// Where an operand is.
#[derive(Clone, Copy)]
enum Place {
    Reg(Reg),
    Const(i32),
    Memory(Mem),
}

/// The location of an argument, if steps can read it there.
fn place(argument: &Value) -> Option<Place> {
    match argument.source {
        Source::Const(value) => {
            i32::try_from(value.wrapping_add(argument.plus) as i64).ok().map(Place::Const)
        }
        Source::Frame if argument.plus == 0 => Some(Place::Reg(Reg::RBP)),
        Source::Context if argument.plus == 0 => Some(Place::Reg(CONTEXT)),
        _ => None,
    }
}

/// A shortcut at a site.
pub(crate) struct SiteShortcut<'a> {
    steps: &'a [Step],
    live: u32,
    temps: Vec<Reg>,
    arguments: Vec<Place>,
}

impl SiteShortcut<'_> {
    /// Emits the instructions, which end at the label if the function must be called. Extends the
    /// range that signals must not interrupt.
    pub(crate) fn emit(&self, call: Label, uninterrupted: &mut Range<u32>, asm: &mut Assembler<'_>) {
        self.emit_steps(self.steps, call, uninterrupted, asm);
    }

    fn temp(&self, temp: Temp) -> Reg {
        self.temps[temp as usize]
    }

    fn memory(&self, quadword: Quadword) -> Mem {
        Mem::base(self.temp(quadword.base), quadword.offset)
    }

    fn place(&self, operand: Operand) -> Place {
        match operand {
            Operand::Temp(temp) => Place::Reg(self.temp(temp)),
            Operand::Const(value) => Place::Const(value),
            Operand::Argument(number) => self.arguments[number],
            Operand::Memory(quadword) => Place::Memory(self.memory(quadword)),
        }
    }

    fn emit_steps(
        &self,
        steps: &[Step],
        call: Label,
        uninterrupted: &mut Range<u32>,
        asm: &mut Assembler<'_>,
    ) {
        for step in steps {
            match step {
                Step::Set(to, from) => {
                    let to = self.temp(*to);
                    match self.place(*from) {
                        Place::Reg(from) => asm.mov(Width::W64, to, from),
                        Place::Const(value) => asm.mov_imm(to, i64::from(value) as u64),
                        Place::Memory(from) => asm.mov(Width::W64, to, from),
                    }
                }
                Step::SetConst(to, value) => asm.mov_imm(self.temp(*to), *value),
                Step::SetOfThread(to, offset) => asm.mov_of_thread(self.temp(*to), *offset),
                Step::SetClock(to) => self.clock(self.temp(*to), asm),
                Step::Add(to, value) => self.change(Alu::Add, *to, *value, asm),
                Step::Subtract(to, value) => self.change(Alu::Sub, *to, *value, asm),
                Step::Store(to, from) => {
                    let to = self.memory(*to);
                    match self.place(*from) {
                        Place::Reg(from) => asm.mov_store(Size::B8, to, from),
                        Place::Const(value) => asm.mov_store_imm(Size::B8, to, value),
                        Place::Memory(_) => unreachable!("`is_encodable` has refused it"),
                    }
                }
                Step::AddTo(to, value) => self.change_memory(Alu::Add, *to, *value, asm),
                Step::SubtractFrom(to, value) => self.change_memory(Alu::Sub, *to, *value, asm),
                Step::CallIf(first, relation, second) => {
                    let condition = self.compare(*first, *relation, *second, asm);
                    asm.jcc(condition, call);
                }
                Step::SkipIf(first, relation, second, steps) => {
                    let condition = self.compare(*first, *relation, *second, asm);
                    let skip = asm.new_label();
                    asm.jcc(condition, skip);
                    self.emit_steps(steps, call, uninterrupted, asm);
                    asm.bind(skip);
                }
                Step::Together(steps) => {
                    // At the first instruction, none has been executed; at the end, all have.
                    let first = asm.offset() + 1;
                    self.emit_steps(steps, call, uninterrupted, asm);
                    if uninterrupted.end == 0 {
                        uninterrupted.start = first;
                    }
                    uninterrupted.end = asm.offset();
                }
            }
        }
    }

    fn change(&self, what: Alu, to: Temp, value: Operand, asm: &mut Assembler<'_>) {
        let to = self.temp(to);
        match self.place(value) {
            Place::Reg(reg) => asm.alu(what, Width::W64, to, reg),
            Place::Const(value) => asm.alu_imm(what, Width::W64, to, value),
            Place::Memory(mem) => asm.alu(what, Width::W64, to, mem),
        }
    }

    fn change_memory(&self, what: Alu, to: Quadword, value: Operand, asm: &mut Assembler<'_>) {
        let to = self.memory(to);
        match self.place(value) {
            Place::Reg(reg) => asm.alu_memory(what, Width::W64, to, reg),
            Place::Const(value) => asm.alu_imm(what, Width::W64, to, value),
            Place::Memory(_) => unreachable!("`is_encodable` has refused it"),
        }
    }

    /// Compares, and returns the condition under which the relation holds.
    fn compare(&self, first: Operand, relation: Relation, second: Operand, asm: &mut Assembler<'_>) -> Cond {
        let condition = relation.condition();
        match (self.place(first), self.place(second)) {
            (Place::Reg(first), Place::Reg(second)) => asm.alu(Alu::Cmp, Width::W64, first, second),
            (Place::Reg(first), Place::Const(second)) => asm.alu_imm(Alu::Cmp, Width::W64, first, second),
            (Place::Reg(first), Place::Memory(second)) => asm.alu(Alu::Cmp, Width::W64, first, second),
            (Place::Memory(first), Place::Const(second)) => {
                asm.alu_imm(Alu::Cmp, Width::W64, first, second);
            }
            (Place::Memory(first), Place::Reg(second)) => {
                asm.alu(Alu::Cmp, Width::W64, second, first);
                return condition.swapped();
            }
            (Place::Const(first), Place::Reg(second)) => {
                asm.alu_imm(Alu::Cmp, Width::W64, second, first);
                return condition.swapped();
            }
            (Place::Const(first), Place::Memory(second)) => {
                asm.alu_imm(Alu::Cmp, Width::W64, second, first);
                return condition.swapped();
            }
            (Place::Const(_), Place::Const(_)) | (Place::Memory(_), Place::Memory(_)) => {
                unreachable!("`is_encodable` has refused it")
            }
        }
        condition
    }

    /// RDTSC, which changes `rax` and `rdx`.
    fn clock(&self, to: Reg, asm: &mut Assembler<'_>) {
        let is_used = |reg: Reg| reg != to && (self.live & reg.bit() != 0 || self.temps.contains(&reg));
        let (rax, rdx) = (is_used(Reg::RAX), is_used(Reg::RDX));
        // Where `rdx` is kept: in the scratch register, or in `to` if `rax` is there.
        let in_scratch = if rax { Some(Reg::RAX) } else { rdx.then_some(Reg::RDX) };
        if let Some(reg) = in_scratch {
            asm.float_from_bits(Width::W64, FLOAT_SCRATCH, reg);
        }
        if rax && rdx {
            asm.mov(Width::W64, to, Reg::RDX);
        }
        asm.rdtsc();
        asm.shift_imm(Shift::Shl, Width::W64, Reg::RDX, 32);
        asm.alu(Alu::Or, Width::W64, Reg::RAX, Reg::RDX);
        if rax && rdx {
            asm.mov(Width::W64, Reg::RDX, to);
        }
        if to != Reg::RAX {
            asm.mov(Width::W64, to, Reg::RAX);
        }
        if let Some(reg) = in_scratch {
            asm.float_to_bits(Width::W64, reg, FLOAT_SCRATCH);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use iced_x86::{
        Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    };

    use super::*;
    use crate::compiler::abi::INT_TEMPS;
    use crate::compiler::{Action, Callee, ListStub, SiteState, list_stub};

    fn word(base: Temp, offset: i32) -> Quadword {
        Quadword { base, offset }
    }

    fn shortcut(steps: Vec<Step>) -> Option<Shortcut> {
        Shortcut::new(steps.into(), Box::new(()))
    }

    /// Steps that use all registers, the last of them for the time.
    fn steps() -> Vec<Step> {
        vec![
            Step::SetOfThread(Temp::A, -16),
            Step::CallIf(Operand::Memory(word(Temp::A, 8)), Relation::BelowOrEqual, Operand::Argument(1)),
            Step::Set(Temp::B, Operand::Memory(word(Temp::A, 0))),
            Step::SkipIf(
                Operand::Temp(Temp::B),
                Relation::Equal,
                Operand::Const(7),
                [
                    Step::SetClock(Temp::D),
                    Step::SetConst(Temp::C, u64::MAX >> 1),
                    Step::SubtractFrom(word(Temp::B, 16), Operand::Temp(Temp::D)),
                ]
                .into(),
            ),
            Step::Together(
                [
                    Step::AddTo(word(Temp::A, 8), Operand::Const(1)),
                    Step::Store(word(Temp::B, 24), Operand::Argument(0)),
                ]
                .into(),
            ),
        ]
    }

    /// The stub at a site where these registers are live, and the part up to its jump back, unless
    /// the function is always called.
    fn stub(steps: Vec<Step>, live: u32, needs_flags: bool) -> (Vec<Instruction>, Vec<Instruction>) {
        let callee =
            Callee::Shortcut { function: 0x1234_5678_9abc, shortcut: Arc::new(shortcut(steps).unwrap()) };
        let action =
            Action::Call { callee: &callee, arguments: &[Value::constant(5), Value::FRAME], only: None };
        let state = SiteState { live, needs_flags, flag: None, operands: 0, slot_bytes: 8 };
        let ListStub { code, back, uninterrupted, .. } = list_stub(&state, &[action], 0x5000, None);
        let decode = |code: &[u8]| -> Vec<Instruction> {
            Decoder::new(64, code, DecoderOptions::NONE).into_iter().collect()
        };
        let all = decode(&code);
        let jump = |it: &Instruction| it.mnemonic() == Mnemonic::Jmp && it.next_ip() == u64::from(back) + 4;
        let calls = |it: &Instruction| it.mnemonic() == Mnemonic::Call;
        let end = all.iter().position(jump).unwrap() + 1;
        if all[..end].iter().any(calls) {
            assert!(uninterrupted.is_empty());
            return (all, Vec::new());
        }
        if !uninterrupted.is_empty() {
            // Between the two steps only, of which the second is the last instruction.
            let inside = |it: &&Instruction| uninterrupted.contains(&(it.ip() as u32));
            let inside: Vec<&Instruction> = all.iter().filter(inside).collect();
            let [second] = inside[..] else { panic!("{inside:?}") };
            assert_eq!((second.mnemonic(), second.next_ip()), (Mnemonic::Mov, u64::from(back) - 1));
        }
        (all[..].to_vec(), all[..end].to_vec())
    }

    /// The general registers that change.
    fn changed(all: &[Instruction]) -> u32 {
        let mut factory = InstructionInfoFactory::new();
        let mut changed = 0;
        for used in all.iter().flat_map(|instruction| factory.info(instruction).used_registers().to_vec()) {
            let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            if !is_read && used.register().is_gpr() {
                changed |= 1 << (used.register().full_register() as u32 - Register::RAX as u32);
            }
        }
        changed
    }

    #[test]
    fn only_free_registers_change_and_those_that_the_clock_restores() {
        let clock = Reg::RAX.bit() | Reg::RDX.bit();
        // All but three of the temporaries are live, in all combinations.
        let temps: Vec<u32> = (0..16).map(|reg| 1 << reg).filter(|bit| INT_TEMPS & bit != 0).collect();
        for first in 0..temps.len() {
            for second in first + 1..temps.len() {
                for third in second + 1..temps.len() {
                    let free = temps[first] | temps[second] | temps[third];
                    let (_, quick) = stub(steps(), INT_TEMPS & !free, false);
                    assert_eq!(changed(&quick) & !clock & !SCRATCH.bit() & !free, 0);
                    assert_ne!(quick.len(), 0);
                    // Before and after the counter is read.
                    let at = quick.iter().position(|it| it.mnemonic() == Mnemonic::Rdtsc).unwrap();
                    for reg in [(Reg::RAX, Register::RAX), (Reg::RDX, Register::RDX)] {
                        if free & reg.0.bit() == 0 {
                            let saved = quick[..at].iter().any(|it| it.op1_register() == reg.1);
                            let restored = quick[at..].iter().rfind(|it| it.op0_register() == reg.1).unwrap();
                            let is_move = matches!(restored.mnemonic(), Mnemonic::Mov | Mnemonic::Vmovq);
                            assert!(saved && is_move, "{reg:?} of {free:x}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn without_free_registers_or_with_flags_the_function_is_called_always() {
        for (live, needs_flags) in [(INT_TEMPS, false), (INT_TEMPS & !6, false), (0, true)] {
            let (all, quick) = stub(steps(), live, needs_flags);
            assert!(quick.is_empty());
            assert!(all.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Call));
            assert!(!all.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Rdtsc));
        }
        // Nor can steps read all arguments.
        let of_third = Step::Set(Temp::A, Operand::Argument(2));
        assert!(stub(vec![of_third], 0, false).1.is_empty());
    }

    #[test]
    fn steps_without_an_instruction_are_refused() {
        let memory = Operand::Memory(word(Temp::A, 0));
        let compare = |first, second| Step::CallIf(first, Relation::Equal, second);
        for refused in [
            Step::Store(word(Temp::B, 0), memory),
            Step::AddTo(word(Temp::B, 0), memory),
            compare(memory, memory),
            compare(Operand::Const(1), Operand::Temp(Temp::A)),
            compare(Operand::Argument(0), Operand::Const(1)),
        ] {
            let inner = vec![refused.clone()].into();
            assert!(shortcut(vec![refused.clone()]).is_none(), "{refused:?}");
            let skip = Step::SkipIf(Operand::Temp(Temp::A), Relation::Above, Operand::Const(0), inner);
            assert!(shortcut(vec![skip]).is_none(), "{refused:?}");
        }
    }

    #[test]
    fn a_relation_of_a_constant_argument_is_that_of_its_operands_in_order() {
        let step = Step::CallIf(Operand::Argument(0), Relation::Below, Operand::Temp(Temp::A));
        let (_, quick) = stub(vec![step], 0, false);
        let texts: Vec<Mnemonic> = quick.iter().map(Instruction::mnemonic).collect();
        // 5 < A: A > 5.
        assert_eq!(texts, [Mnemonic::Mov, Mnemonic::Cmp, Mnemonic::Ja, Mnemonic::Jmp]);
    }
}
