//! Tracks copies of values in the straight-line code at the start of a function.
//!
//! The code is executed symbolically, from the function's entry to the call to the probe. Each
//! register and stack slot holds a [`Value`]: at the entry all values are distinct, and each
//! computed value is a new one. An instruction that moves a value copies it; if it moves fewer
//! bits, only these are known to be equal. Registers may also hold an address in the frame, so that
//! stores through RBP and RSP are known to go to the same slot.
//!
//! Only code that is executed once in each call, from its first instruction on, is followed; there
//! are no jumps into it from elsewhere. Compilers place the call to the probe in such code. Some of
//! it may be skipped by a conditional jump, such as the code that stores the vector registers of a
//! variadic function: everything that it may change becomes unknown.

use std::collections::BTreeMap;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register as Iced,
};

use super::{Register, ScalarType};

/// Maximum number of instructions after the call that are followed until a parameter is stored.
const MAX_AFTER: usize = 256;

/// A value that the code has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(u32);

/// A location that a probe can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Register(Register),
    /// At this distance from RSP at the call.
    Stack(i32),
}

/// The contents of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// A value, in this number of lower bits.
    Value(Value, u8),
    /// An address, as the distance from RSP at the entry.
    Frame(i64),
}

/// The values of registers and stack slots.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    /// Indexed by number: first the general-purpose registers, then the vector registers.
    registers: [Held; 32],
    /// By distance from RSP at the entry, with the sizes. Those at 8 and above are arguments on the
    /// stack.
    slots: BTreeMap<i64, (Held, u8)>,
    /// Whether the arguments on the stack may have been changed.
    is_incoming_changed: bool,
    next: u32,
}

/// The value that a register has at the entry of the function.
pub(super) fn of_entry(register: Register) -> Option<Value> {
    index(register).map(|index| Value(index as u32))
}

fn index(register: Register) -> Option<usize> {
    let vector = register.vector().map(|number| 16 + usize::from(number));
    register.general().map(usize::from).or(vector)
}

/// The index of a register of the decoder, and whether it denotes the lowest part of the register.
pub(super) fn index_of(register: Iced) -> Option<(usize, bool)> {
    /// In the processor's order: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI.
    const DWARF: [usize; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    if register.is_xmm() || register.is_ymm() || register.is_zmm() {
        return (register.number() < 16).then(|| (16 + register.number(), true));
    }
    if !register.is_gpr() {
        return None;
    }
    let number = register.full_register().number();
    let index = DWARF.get(number).copied().unwrap_or(number);
    let is_high = matches!(register, Iced::AH | Iced::BH | Iced::CH | Iced::DH);
    (number < 16).then_some((index, !is_high))
}

impl Copies {
    /// The state before the call at `site`, in the code of the function at `start`. `None` if the
    /// code between is not straight, or does not end with a call there.
    pub(super) fn at(code: &[u8], start: u64, site: u64) -> Option<Self> {
        if is_jumped_to(code, start, start + 1..site + 1) {
            return None;
        }
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut copies = Self::at_entry();
        let mut info = InstructionInfoFactory::new();
        let mut optional_until = start;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let is_optional = instruction.ip() < optional_until;
            if instruction.ip() == site {
                let is_call =
                    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
                return (is_call && !is_optional).then_some(copies);
            }
            if instruction.ip() > site {
                return None;
            }
            if instruction.flow_control() == FlowControl::ConditionalBranch {
                // Forward, as `is_jumped_to` has found, or past the call.
                let target = instruction.near_branch_target();
                if target > site {
                    return None;
                }
                optional_until = optional_until.max(target);
            } else if is_optional {
                copies.may_execute(&instruction, &mut info)?;
            } else if !copies.execute(&instruction, &mut info, false) {
                return None;
            }
        }
        None
    }

    fn at_entry() -> Self {
        let mut registers = [Held::Frame(0); 32];
        for (index, register) in registers.iter_mut().enumerate() {
            *register = Held::Value(Value(index as u32), 64);
        }
        let mut copies = Self { registers, slots: BTreeMap::new(), is_incoming_changed: false, next: 32 };
        copies.registers[usize::from(Register::RSP.0)] = Held::Frame(0);
        copies
    }

    /// The value of a register.
    pub(super) fn of_register(&self, register: Register, bytes: u8) -> Option<Value> {
        known(self.registers[index(register)?], bytes)
    }

    /// The slot at a distance from a register.
    pub(super) fn slot(&self, register: Register, offset: i32) -> Option<i64> {
        match self.registers[index(register)?] {
            Held::Frame(base) => base.checked_add(offset.into()),
            Held::Value(..) => None,
        }
    }

    /// Whether the function or its caller has stored to the memory of a slot.
    pub(super) fn is_stored(&self, slot: i64, bytes: u8) -> bool {
        let end = slot + i64::from(bytes);
        slot >= 8
            || self
                .slots
                .range(..=slot)
                .next_back()
                .is_some_and(|(at, (_, size))| at + i64::from(*size) >= end)
    }

    /// Whether the arguments on the stack are unchanged since the entry.
    pub(super) fn has_incoming(&self) -> bool {
        !self.is_incoming_changed
    }

    /// A location that a probe can read and that contains a value.
    pub(super) fn place_of(&self, value: Value, bytes: u8) -> Option<Place> {
        let holds = |held: Held| known(held, bytes) == Some(value);
        let in_register = |index: &usize| {
            let register = if *index < 16 { Register(*index as u16) } else { Register(*index as u16 + 1) };
            (register.is_seen() && holds(self.registers[*index])).then_some(Place::Register(register))
        };
        if let Some(place) = (0..32).find_map(|index| in_register(&index)) {
            return Some(place);
        }
        let Held::Frame(top) = self.registers[usize::from(Register::RSP.0)] else { return None };
        let is_it = |(at, (held, size)): &(&i64, &(Held, u8))| **at >= top && *size >= bytes && holds(*held);
        let (at, _) = self.slots.iter().find(is_it)?;
        i32::try_from(at - top).ok().map(Place::Stack)
    }

    /// The value that is stored next to a slot, by straight-line code from `from` on, which is
    /// after the call. `code` is that of the entire function.
    pub(super) fn next_store(
        mut self,
        code: &[u8],
        start: u64,
        from: u64,
        slot: i64,
        ty: ScalarType,
    ) -> Option<Value> {
        self.slots.retain(|at, _| *at != slot);
        self.forget_called();
        let after = code.get(usize::try_from(from.checked_sub(start)?).ok()?..)?;
        let mut decoder = Decoder::with_ip(64, after, from, DecoderOptions::NONE);
        let mut info = InstructionInfoFactory::new();
        for _ in 0..MAX_AFTER {
            if !decoder.can_decode() {
                return None;
            }
            let instruction = decoder.decode();
            if !self.execute(&instruction, &mut info, ty == ScalarType::Bool) {
                return None;
            }
            if let Some((held, size)) = self.slots.get(&slot) {
                let is_jumped_to = is_jumped_to(code, start, from..instruction.next_ip());
                return if *size == ty.bytes() && !is_jumped_to { known(*held, ty.bytes()) } else { None };
            }
        }
        None
    }

    fn fresh(&mut self) -> Held {
        self.next += 1;
        Held::Value(Value(self.next), 64)
    }

    /// Sets the registers that a called function may change to unknown values.
    fn forget_called(&mut self) {
        const PRESERVED: [usize; 7] = [3, 6, 7, 12, 13, 14, 15];
        for index in 0..32 {
            if !PRESERVED.contains(&index) {
                self.registers[index] = self.fresh();
            }
        }
    }

    /// Executes an instruction. Returns false if the next one is not always executed after it.
    fn execute(
        &mut self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        is_bool: bool,
    ) -> bool {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                self.forget_called();
                return true;
            }
            _ => return false,
        }
        if !(self.moves(instruction) || is_bool && is_lowest_bit(instruction)) {
            self.changes(instruction, info);
        }
        true
    }

    /// Executes an instruction that may be skipped. `None` if it moves the stack pointer, or if the
    /// next instruction is not always executed after it.
    fn may_execute(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        let top = self.registers[7];
        self.changes(instruction, info);
        if let Some(address) = self.address(instruction) {
            self.overwrite(address, instruction.memory_size().size());
        }
        (instruction.flow_control() == FlowControl::Next && self.registers[7] == top).then_some(())
    }

    /// Executes an instruction if it copies a value or moves the stack pointer. Returns whether it
    /// does.
    fn moves(&mut self, instruction: &Instruction) -> bool {
        let [to, from] = [instruction.op0_kind(), instruction.op1_kind()];
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let held = match to {
                    OpKind::Register => self.read(instruction.op0_register(), 8),
                    _ => self.fresh(),
                };
                let Some(top) = self.move_stack(-8) else { return false };
                self.store(top, held, 8);
                true
            }
            Mnemonic::Pop if to == OpKind::Register => {
                let Held::Frame(top) = self.registers[7] else { return false };
                let held = self.load(top, 8);
                self.write(instruction.op0_register(), held, 8);
                self.move_stack(8).is_some()
            }
            Mnemonic::Add | Mnemonic::Sub
                if instruction.op0_register() == Iced::RSP && to == OpKind::Register =>
            {
                let is_immediate = !matches!(from, OpKind::Register | OpKind::Memory);
                let amount =
                    if is_immediate { instruction.immediate(1).cast_signed() } else { return false };
                let is_sub = instruction.mnemonic() == Mnemonic::Sub;
                self.move_stack(if is_sub { amount.wrapping_neg() } else { amount }).is_some()
            }
            Mnemonic::Lea => {
                let Some(address) = self.address(instruction) else { return false };
                if instruction.code() != Code::Lea_r64_m {
                    return false;
                }
                self.write(instruction.op0_register(), Held::Frame(address), 8);
                true
            }
            Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Movd
            | Mnemonic::Movq
            | Mnemonic::Movss
            | Mnemonic::Movsd
            | Mnemonic::Movaps
            | Mnemonic::Movapd
            | Mnemonic::Movups
            | Mnemonic::Movupd
            | Mnemonic::Movdqa
            | Mnemonic::Movdqu => self.copies(instruction, to, from),
            _ => false,
        }
    }

    fn copies(&mut self, instruction: &Instruction, to: OpKind, from: OpKind) -> bool {
        // `movsd` is also the name of a string instruction.
        let is_register = |register: Iced| index_of(register).is_some_and(|(_, is_lowest)| is_lowest);
        let bytes = |register: Iced| register.size().min(8) as u8;
        let in_memory = instruction.memory_size().size().min(8) as u8;
        match (to, from) {
            (OpKind::Register, OpKind::Register) => {
                let (to, from) = (instruction.op0_register(), instruction.op1_register());
                if !is_register(to) || !is_register(from) {
                    return false;
                }
                let moved = match instruction.mnemonic() {
                    Mnemonic::Movss | Mnemonic::Movd => 4,
                    _ => bytes(from).min(bytes(to)),
                };
                let held = self.read(from, moved);
                self.write(to, held, bytes(to).max(moved));
                true
            }
            (OpKind::Register, OpKind::Memory) => {
                let to = instruction.op0_register();
                let Some(address) = self.address(instruction).filter(|_| is_register(to)) else {
                    return false;
                };
                let held = self.load(address, in_memory);
                self.write(to, held, bytes(to).max(in_memory));
                true
            }
            (OpKind::Memory, OpKind::Register) => {
                let from = instruction.op1_register();
                let Some(address) = self.address(instruction).filter(|_| is_register(from)) else {
                    return false;
                };
                let size = instruction.memory_size().size();
                let held = self.read(from, in_memory);
                self.overwrite(address, size);
                self.store(address, held, in_memory);
                true
            }
            _ => false,
        }
    }

    /// Applies the effects of any other instruction.
    fn changes(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        let used = info.info(instruction);
        let registers: Vec<_> = used
            .used_registers()
            .iter()
            .filter(|used| writes(used.access()))
            .filter_map(|used| index_of(used.register()))
            .collect();
        let memory = used.used_memory().iter().any(|used| writes(used.access()));
        if memory {
            let is_operand = instruction.op0_kind() == OpKind::Memory;
            match self.address(instruction).filter(|_| is_operand) {
                Some(address) => {
                    let size = instruction.memory_size().size().max(1);
                    self.overwrite(address, size);
                    for at in (address..).take(size.min(64)).step_by(8) {
                        let held = self.fresh();
                        self.store(at, held, size.min(8) as u8);
                    }
                }
                // The store may go to any slot.
                None => {
                    self.slots.clear();
                    self.is_incoming_changed = true;
                }
            }
        }
        for (index, _) in registers {
            self.registers[index] = self.fresh();
        }
    }

    /// The slot of a memory operand.
    fn address(&self, instruction: &Instruction) -> Option<i64> {
        if instruction.memory_index() != Iced::None || instruction.has_segment_prefix() {
            return None;
        }
        let (base, _) = index_of(instruction.memory_base())?;
        match self.registers[base] {
            Held::Frame(base) => base.checked_add(instruction.memory_displacement64().cast_signed()),
            Held::Value(..) => None,
        }
    }

    /// The lowest bytes of a register.
    fn read(&mut self, register: Iced, bytes: u8) -> Held {
        let Some((index, true)) = index_of(register) else { return self.fresh() };
        match self.registers[index] {
            Held::Frame(_) if bytes < 8 => self.fresh(),
            held => narrowed(held, bytes),
        }
    }

    /// Writes a register; a narrow write keeps the upper bits, which are then unknown.
    fn write(&mut self, register: Iced, held: Held, bytes: u8) {
        if let Some((index, _)) = index_of(register) {
            self.registers[index] = narrowed(held, bytes);
        }
    }

    fn move_stack(&mut self, amount: i64) -> Option<i64> {
        let Held::Frame(top) = self.registers[7] else { return None };
        let top = top.checked_add(amount)?;
        self.registers[7] = Held::Frame(top);
        Some(top)
    }

    fn load(&mut self, slot: i64, bytes: u8) -> Held {
        match self.slots.get(&slot) {
            Some((held, size)) if *size >= bytes => narrowed(*held, bytes),
            Some(_) => self.fresh(),
            None => {
                let held = narrowed(self.fresh(), bytes);
                // An argument on the stack.
                if slot >= 8 {
                    self.slots.insert(slot, (held, bytes));
                }
                held
            }
        }
    }

    fn store(&mut self, slot: i64, held: Held, bytes: u8) {
        self.overwrite(slot, bytes.into());
        self.slots.insert(slot, (narrowed(held, bytes), bytes));
    }

    /// Removes the contents of some bytes of the stack.
    fn overwrite(&mut self, slot: i64, bytes: usize) {
        let end = slot.saturating_add(bytes as i64);
        self.is_incoming_changed |= end > 8;
        self.slots.retain(|at, (_, size)| *at >= end || at + i64::from(*size) <= slot);
    }
}

/// The contents of a location, restricted to its lower bytes.
fn narrowed(held: Held, bytes: u8) -> Held {
    match held {
        Held::Value(value, bits) => Held::Value(value, bits.min(8 * bytes)),
        frame => frame,
    }
}

/// The value that the lower bytes of a location hold.
fn known(held: Held, bytes: u8) -> Option<Value> {
    match held {
        Held::Value(value, bits) if bits >= 8 * bytes => Some(value),
        _ => None,
    }
}

/// `and $1`: clang masks a boolean before it stores it, although it is already 0 or 1.
fn is_lowest_bit(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::And
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().size() == 1
        && matches!(instruction.op1_kind(), OpKind::Immediate8)
        && instruction.immediate8() == 1
}

/// Whether a jump of a function leads to one of these addresses. Conditional jumps forward from one
/// of these addresses are ignored.
fn is_jumped_to(code: &[u8], start: u64, addresses: std::ops::Range<u64>) -> bool {
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    decoder.into_iter().any(|instruction| {
        let is_jump = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        let target = instruction.near_branch_target();
        let is_forward = instruction.flow_control() == FlowControl::ConditionalBranch
            && addresses.contains(&(instruction.ip() + 1))
            && instruction.ip() < target;
        is_jump && addresses.contains(&target) && !is_forward
    })
}
