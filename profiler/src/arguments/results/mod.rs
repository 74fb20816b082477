//! Finds the result of a function at the call to the probe at its exit.
//!
//! No debugging information says where a result is. But after the call, the function executes its
//! epilogue, which puts the result into RAX or XMM0 and returns: from a register that the call
//! preserves, from a stack slot, or by operations that the compiler has moved after the call.
//! Therefore the code is executed symbolically, from the call to the `ret`. Registers and slots
//! start with their values at the probe; each value computed from them is a [`Step`].
//!
//! The code is followed through jumps, and past the check of the stack protector: if that fails,
//! the function does not return. At any other branch, at a call and at a store, the result becomes
//! unknown. This ensures that the call is the last one of a probe before the function returns, and
//! not that of an inlined function, after which its caller continues.

mod flags;
mod floats;
mod integers;
#[cfg(test)]
mod tests;
mod values;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register as Iced,
};

use super::computation::{Binary, Computation, Number, Step};
use super::copies::index_of;
use super::object::Object;
use super::{Register, ScalarType, Source, Unavailable};

/// Maximum number of instructions from the call to the `ret`.
const MAX_INSTRUCTIONS: usize = 256;

/// Maximum number of steps, including those that do not belong to the result.
const MAX_STEPS: usize = 250;

/// Registers that a call preserves: RBX, RBP, RSP, R12 to R15.
const PRESERVED: [u16; 7] = [3, 6, 7, 12, 13, 14, 15];

const RAX: usize = 0;
const RDX: usize = 1;
const RBP: usize = 6;
const RSP: usize = 7;
const XMM0: usize = 16;

/// The offset of the stack protector's value from FS.
const CANARY: u64 = 0x28;

/// The source of the result of a function with this result type, for the probe that is called
/// before `returns`.
pub(super) fn source(object: &Object, returns: u64, ty: ScalarType) -> Result<Source, Unavailable> {
    let mut state = State::at_probe(object, returns);
    let mut info = InstructionInfoFactory::new();
    let mut address = returns;
    for _ in 0..MAX_INSTRUCTIONS {
        let code = object.code(address, address.saturating_add(16)).ok_or(Unavailable::NotInCode)?;
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        address = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Return => return state.result(ty).ok_or(Unavailable::NotInCode),
            FlowControl::Next => state.execute(&instruction, &mut info).ok_or(Unavailable::NotInCode)?,
            FlowControl::UnconditionalBranch => address = instruction.near_branch_target(),
            FlowControl::ConditionalBranch if state.flags == Some(Flags::Canary) => {
                match instruction.condition_code() {
                    ConditionCode::ne => {}
                    ConditionCode::e => address = instruction.near_branch_target(),
                    _ => return Err(Unavailable::NotInCode),
                }
            }
            FlowControl::Call | FlowControl::IndirectCall if object.resumes(&instruction) => {
                return Err(Unavailable::Exception);
            }
            _ => return Err(Unavailable::NotInCode),
        }
    }
    Err(Unavailable::NotInCode)
}

/// The contents of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// These lower bytes are those of a step.
    Value(Number, u8),
    /// The value of the stack protector.
    Canary,
}

/// The flags, represented by the comparison that has set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flags {
    /// Two integers of this number of bytes.
    Of(Number, Number, u8),
    /// Two floats of this number of bytes.
    OfFloats(Number, Number, u8),
    /// The stack protector's value and its copy in the frame: they are equal, or the function does
    /// not return.
    Canary,
}

struct State<'a> {
    object: &'a Object,
    /// The address to which the probe returns.
    returns: u64,
    steps: Vec<Step>,
    /// Indexed by number: first the general-purpose registers, then the lower halves of the vector
    /// registers. `None` if the value is not known.
    registers: [Option<Held>; 32],
    flags: Option<Flags>,
}

impl<'a> State<'a> {
    fn at_probe(object: &'a Object, returns: u64) -> Self {
        let mut state = Self { object, returns, steps: Vec::new(), registers: [None; 32], flags: None };
        for number in PRESERVED {
            let step = state.step(Step::Register(Register(number), 0));
            state.registers[usize::from(number)] = step.map(|step| Held::Value(step, 8));
        }
        state
    }

    /// The location of the result at the `ret`.
    fn result(&self, ty: ScalarType) -> Option<Source> {
        let is_float = matches!(ty, ScalarType::Float | ScalarType::Double);
        let Some(Held::Value(mut number, known)) = self.registers[if is_float { XMM0 } else { RAX }] else {
            return None;
        };
        if known < ty.bytes() {
            return None;
        }
        // Only the lower bytes are needed.
        while let Step::ZeroExtend(of, bytes) | Step::SignExtend(of, bytes) = self.steps[usize::from(number)]
            && bytes >= ty.bytes()
        {
            number = of;
        }
        match self.steps[usize::from(number)] {
            Step::Constant(value) => Some(Source::Constant(value)),
            Step::Register(register, added) => Some(Source::Register(register, added)),
            Step::Memory(base, offset, bytes) if bytes >= ty.bytes() => Some(Source::Memory(base, offset)),
            _ => Computation::of(&self.steps, number).map(Source::Computed),
        }
    }

    /// Executes an instruction that continues with the next one. `None` if it stores to memory.
    fn execute(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        let writes = |access: OpAccess| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite)
        };
        let used = info.info(instruction);
        if used.used_memory().iter().any(|used| writes(used.access())) {
            return None;
        }
        let written = used.used_registers().iter().filter(|used| writes(used.access()));
        let written: Vec<_> = written.filter_map(|used| index_of(used.register())).collect();
        let changed = self.changed(instruction);
        let flags = self.compared(instruction);
        for (index, _) in written {
            self.registers[index] = None;
        }
        for (index, held) in changed.into_iter().flatten() {
            self.registers[index] = Some(held);
        }
        if instruction.rflags_modified() != 0 {
            self.flags = flags;
        }
        Some(())
    }

    /// Up to two registers that an instruction sets, with what is known of their contents.
    fn changed(&mut self, instruction: &Instruction) -> [Option<(usize, Held)>; 2] {
        match instruction.mnemonic() {
            Mnemonic::Pop => [self.popped(RSP, instruction.op0_register()), self.moved(RSP)],
            Mnemonic::Leave => [self.popped(RBP, Iced::RBP), self.moved(RBP)],
            Mnemonic::Mul | Mnemonic::Imul if instruction.op_count() == 1 => {
                self.product(instruction).map_or([None, None], |both| both.map(Some))
            }
            _ => [self.assigned(instruction), None],
        }
    }

    /// A register that is loaded from the memory to which another register points.
    fn popped(&mut self, top: usize, register: Iced) -> Option<(usize, Held)> {
        // clang frees a stack word by `pop rax` if there is no result.
        let (index, _) = index_of(register).filter(|(index, _)| *index != RAX && register.size() == 8)?;
        let top = self.value(top, 8)?;
        Some((index, Held::Value(self.load(top, 0, 8)?, 8)))
    }

    /// RSP, set to 8 bytes above the address in a register.
    fn moved(&mut self, top: usize) -> Option<(usize, Held)> {
        let (top, eight) = (self.value(top, 8)?, self.step(Step::Constant(8))?);
        Some((RSP, Held::Value(self.binary(Binary::Add, top, eight)?, 8)))
    }

    /// The first operand, with the value that an instruction assigns to it.
    fn assigned(&mut self, instruction: &Instruction) -> Option<(usize, Held)> {
        match instruction.mnemonic() {
            Mnemonic::Cdqe => {
                let value = self.register(Iced::EAX)?;
                return Some((RAX, Held::Value(self.step(Step::SignExtend(value, 4))?, 8)));
            }
            Mnemonic::Cdq | Mnemonic::Cqo => {
                let bytes = if instruction.mnemonic() == Mnemonic::Cdq { 4 } else { 8 };
                let value = self.value(RAX, bytes)?;
                let (value, all) =
                    (self.step(Step::SignExtend(value, bytes))?, self.step(Step::Constant(63))?);
                let sign = self.step(Step::Binary(Binary::Sar, value, all))?;
                return Some((RDX, Held::Value(self.zero_extend(sign, bytes)?, 8)));
            }
            _ => {}
        }
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return None;
        }
        let to = instruction.op0_register();
        let (index, true) = index_of(to)? else { return None };
        if is_of_canary(instruction) {
            return (instruction.mnemonic() == Mnemonic::Mov).then_some((index, Held::Canary));
        }
        let held = if index < XMM0 {
            let value = self.integer(instruction)?;
            self.narrowed(index, value, to.size() as u8)?
        } else {
            self.vector(instruction)?
        };
        Some((index, held))
    }

    /// A general-purpose register whose lower bytes are written.
    fn narrowed(&mut self, index: usize, value: Number, bytes: u8) -> Option<Held> {
        if bytes >= 4 {
            return Some(Held::Value(self.zero_extend(value, bytes)?, 8));
        }
        // The other bytes keep their values, which are 0 if a comparison is about to set the lowest
        // byte.
        let is_zero = |number: Number| self.steps[usize::from(number)] == Step::Constant(0);
        match self.registers[index] {
            Some(Held::Value(before, 8)) if is_zero(before) => {
                Some(Held::Value(self.zero_extend(value, bytes)?, 8))
            }
            _ => Some(Held::Value(value, bytes)),
        }
    }
}

/// Whether an operand is the value of the stack protector.
fn is_of_canary(instruction: &Instruction) -> bool {
    instruction.segment_prefix() == Iced::FS
        && instruction.memory_base() == Iced::None
        && instruction.memory_index() == Iced::None
        && instruction.memory_displacement64() == CANARY
}
