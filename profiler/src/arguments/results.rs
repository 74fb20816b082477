//! The result of a function, at the call of the probe at its exit.
//!
//! No debugging information says where a result is. But what the function does after the call is
//! its epilogue, which puts the result into RAX or XMM0 and returns: from a register that the call
//! preserves, from a stack slot, or by operations that the compiler has moved behind the call. So
//! the code is executed symbolically, from the call to the `ret`. Registers and slots have the
//! values that they have at the probe; whatever is computed from them is a [`Step`].
//!
//! The code is followed through jumps, and past the check of the stack protector: if that fails,
//! the function does not return. At any other branch, at a call and at a store, the result counts
//! as not known. In this way, the call is the last one of a probe before the function returns: it
//! is not that of a function which was inlined, and after which its caller continues.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register as Iced,
};

use super::computation::{Binary, Computation, Number, Step, Unary, zero_extended};
use super::copies::index_of;
use super::object::Object;
use super::{Register, ScalarType, Source, Unavailable};

/// Instructions from the call to the `ret`, at most.
const MAX_INSTRUCTIONS: usize = 256;

/// Steps of which results are computed, at most: with those that do not belong to the result.
const MAX_STEPS: usize = 250;

/// Registers that a call preserves: RBX, RBP, RSP, R12 to R15.
const PRESERVED: [u16; 7] = [3, 6, 7, 12, 13, 14, 15];

const RAX: usize = 0;
const RDX: usize = 1;
const RBP: usize = 6;
const RSP: usize = 7;
const XMM0: usize = 16;

/// Where the stack protector keeps its value, in relation to FS.
const CANARY: u64 = 0x28;

/// Where the probe that is called before `returns` finds the result of a function of this type.
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
            _ => return Err(Unavailable::NotInCode),
        }
    }
    Err(Unavailable::NotInCode)
}

/// The contents of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// This number of lower bytes are those of a step.
    Value(Number, u8),
    /// The value of the stack protector.
    Canary,
}

/// The flags, by the comparison that has set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flags {
    /// Of two integers of this number of bytes.
    Of(Number, Number, u8),
    /// Of two floats of this number of bytes.
    OfFloats(Number, Number, u8),
    /// Of the stack protector's value with that in the frame: equal, or the function does not
    /// return.
    Canary,
}

struct State<'a> {
    object: &'a Object,
    /// The address to which the probe returns.
    returns: u64,
    steps: Vec<Step>,
    /// By number: first the general-purpose registers, then the lower halves of the vector
    /// registers. `None`: not known.
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

    /// The place of the result, at the `ret`.
    fn result(&self, ty: ScalarType) -> Option<Source> {
        let is_float = matches!(ty, ScalarType::Float | ScalarType::Double);
        let Some(Held::Value(mut number, known)) = self.registers[if is_float { XMM0 } else { RAX }] else {
            return None;
        };
        if known < ty.bytes() {
            return None;
        }
        // Only the lower bytes are wanted.
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

    /// Executes an instruction, after which the next one is executed. `None` if it stores to
    /// memory.
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

    /// Up to two registers that an instruction sets, with what is known about them.
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

    /// A register that is loaded from where another one points to.
    fn popped(&mut self, top: usize, register: Iced) -> Option<(usize, Held)> {
        // clang frees a word of the stack by `pop rax`, where there is no result.
        let (index, _) = index_of(register).filter(|(index, _)| *index != RAX && register.size() == 8)?;
        let top = self.value(top, 8)?;
        Some((index, Held::Value(self.load(top, 0, 8)?, 8)))
    }

    /// RSP, 8 bytes above where a register points to.
    fn moved(&mut self, top: usize) -> Option<(usize, Held)> {
        let (top, eight) = (self.value(top, 8)?, self.step(Step::Constant(8))?);
        Some((RSP, Held::Value(self.binary(Binary::Add, top, eight)?, 8)))
    }

    /// RAX and RDX, with the lower and the upper half of a product.
    fn product(&mut self, instruction: &Instruction) -> Option<[(usize, Held); 2]> {
        let is_signed = instruction.mnemonic() == Mnemonic::Imul;
        let bytes = match instruction.op0_kind() {
            OpKind::Register => instruction.op0_register().size(),
            _ => instruction.memory_size().size(),
        };
        let (left, right) = match bytes {
            4 => (self.value(RAX, 4)?, self.operand(instruction, 0, 4)?.0),
            8 => (self.value(RAX, 8)?, self.operand(instruction, 0, 8)?.0),
            _ => return None,
        };
        let (low, high) = if bytes == 8 {
            let high = if is_signed { Binary::MulHighSigned } else { Binary::MulHighUnsigned };
            (self.step(Step::Binary(Binary::Mul, left, right))?, self.step(Step::Binary(high, left, right))?)
        } else {
            let (mut left, mut right) = (left, right);
            if is_signed {
                (left, right) =
                    (self.step(Step::SignExtend(left, 4))?, self.step(Step::SignExtend(right, 4))?);
            }
            let product = self.step(Step::Binary(Binary::Mul, left, right))?;
            let half = self.step(Step::Constant(32))?;
            (self.zero_extend(product, 4)?, self.step(Step::Binary(Binary::Shr, product, half))?)
        };
        Some([(RAX, Held::Value(low, 8)), (RDX, Held::Value(high, 8))])
    }

    /// The first operand, with what an instruction assigns to it.
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
        // The others keep their values: 0, where a comparison is about to set the lowest one.
        let is_zero = |number: Number| self.steps[usize::from(number)] == Step::Constant(0);
        match self.registers[index] {
            Some(Held::Value(before, 8)) if is_zero(before) => {
                Some(Held::Value(self.zero_extend(value, bytes)?, 8))
            }
            _ => Some(Held::Value(value, bytes)),
        }
    }

    /// What an instruction assigns to a general-purpose register.
    fn integer(&mut self, instruction: &Instruction) -> Option<Number> {
        let bytes = instruction.op0_register().size() as u8;
        let is_same = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        match instruction.mnemonic() {
            Mnemonic::Xor | Mnemonic::Sub if is_same => self.step(Step::Constant(0)),
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movd | Mnemonic::Movq => {
                Some(self.operand(instruction, 1, bytes)?.0)
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let (value, from) = self.operand(instruction, 1, bytes)?;
                self.step(Step::SignExtend(value, from))
            }
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Add => self.on_both(instruction, Binary::Add),
            Mnemonic::Sub => self.on_both(instruction, Binary::Sub),
            Mnemonic::And => self.on_both(instruction, Binary::And),
            Mnemonic::Or => self.on_both(instruction, Binary::Or),
            Mnemonic::Xor => self.on_both(instruction, Binary::Xor),
            Mnemonic::Imul if instruction.op_count() == 2 => self.on_both(instruction, Binary::Mul),
            Mnemonic::Imul if instruction.op_count() == 3 => {
                let (left, right) =
                    (self.operand(instruction, 1, bytes)?.0, self.operand(instruction, 2, bytes)?.0);
                self.binary(Binary::Mul, left, right)
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let (value, one) = (self.operand(instruction, 0, bytes)?.0, self.step(Step::Constant(1))?);
                let is_inc = instruction.mnemonic() == Mnemonic::Inc;
                self.binary(if is_inc { Binary::Add } else { Binary::Sub }, value, one)
            }
            Mnemonic::Neg => {
                let (value, zero) = (self.operand(instruction, 0, bytes)?.0, self.step(Step::Constant(0))?);
                self.binary(Binary::Sub, zero, value)
            }
            Mnemonic::Not => {
                let value = self.operand(instruction, 0, bytes)?.0;
                self.step(Step::Unary(Unary::Not, value))
            }
            Mnemonic::Shl | Mnemonic::Sal => self.shifted(instruction, bytes, Binary::Shl),
            Mnemonic::Shr => self.shifted(instruction, bytes, Binary::Shr),
            Mnemonic::Sar => self.shifted(instruction, bytes, Binary::Sar),
            Mnemonic::Cvttss2si | Mnemonic::Cvttsd2si => {
                let is_float = instruction.mnemonic() == Mnemonic::Cvttss2si;
                let (value, _) = self.operand(instruction, 1, if is_float { 4 } else { 8 })?;
                let operation = match (is_float, bytes) {
                    (true, 4) => Unary::FloatToI32,
                    (true, _) => Unary::FloatToI64,
                    (false, 4) => Unary::DoubleToI32,
                    (false, _) => Unary::DoubleToI64,
                };
                self.step(Step::Unary(operation, value))
            }
            _ => self.conditional(instruction, bytes),
        }
    }

    /// `setcc` and `cmovcc`.
    fn conditional(&mut self, instruction: &Instruction, bytes: u8) -> Option<Number> {
        let condition = instruction.condition_code();
        if condition == ConditionCode::None {
            return None;
        }
        let holds = self.condition(condition)?;
        match instruction.op_count() {
            1 => Some(holds),
            _ => {
                let (yes, no) =
                    (self.operand(instruction, 1, bytes)?.0, self.operand(instruction, 0, bytes)?.0);
                self.step(Step::Select(holds, yes, no))
            }
        }
    }

    /// What an instruction assigns to the lower half of a vector register.
    fn vector(&mut self, instruction: &Instruction) -> Option<Held> {
        use Mnemonic as M;
        let is_same = instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        let operation = match instruction.mnemonic() {
            M::Pxor | M::Xorps | M::Xorpd if is_same => {
                return Some(Held::Value(self.step(Step::Constant(0))?, 8));
            }
            M::Movss | M::Movd => return Some(Held::Value(self.operand(instruction, 1, 4)?.0, 4)),
            M::Movsd | M::Movq => return Some(Held::Value(self.operand(instruction, 1, 8)?.0, 8)),
            M::Movaps | M::Movapd | M::Movups | M::Movupd | M::Movdqa | M::Movdqu => {
                return match instruction.op1_kind() {
                    OpKind::Register => self.registers[index_of(instruction.op1_register())?.0],
                    _ => Some(Held::Value(self.operand(instruction, 1, 8)?.0, 8)),
                };
            }
            // The lowest lane stays.
            M::Unpcklps if is_same => {
                return Some(Held::Value(self.operand(instruction, 0, 4)?.0, 4));
            }
            M::Cvtss2sd | M::Cvtps2pd => return self.converted(instruction, 4, Unary::FloatToDouble, 8),
            M::Cvtsd2ss | M::Cvtpd2ps => return self.converted(instruction, 8, Unary::DoubleToFloat, 4),
            M::Sqrtss => return self.converted(instruction, 4, Unary::SqrtFloat, 4),
            M::Sqrtsd => return self.converted(instruction, 8, Unary::SqrtDouble, 8),
            M::Cvtsi2ss => return self.converted(instruction, 8, Unary::IntegerToFloat, 4),
            M::Cvtsi2sd => return self.converted(instruction, 8, Unary::IntegerToDouble, 8),
            M::Addss => (Binary::AddFloat, 4),
            M::Subss => (Binary::SubFloat, 4),
            M::Mulss => (Binary::MulFloat, 4),
            M::Divss => (Binary::DivFloat, 4),
            M::Addsd => (Binary::AddDouble, 8),
            M::Subsd => (Binary::SubDouble, 8),
            M::Mulsd => (Binary::MulDouble, 8),
            M::Divsd => (Binary::DivDouble, 8),
            M::Andps | M::Andpd | M::Pand => return self.bitwise(instruction, Binary::And),
            M::Orps | M::Orpd | M::Por => return self.bitwise(instruction, Binary::Or),
            M::Xorps | M::Xorpd | M::Pxor => return self.bitwise(instruction, Binary::Xor),
            _ => return None,
        };
        let (operation, bytes) = operation;
        let (left, right) = (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
        Some(Held::Value(self.step(Step::Binary(operation, left, right))?, bytes))
    }

    fn converted(&mut self, instruction: &Instruction, from: u8, operation: Unary, to: u8) -> Option<Held> {
        let (mut value, bytes) = self.operand(instruction, 1, from)?;
        if bytes < from {
            value = self.step(Step::SignExtend(value, bytes))?;
        }
        Some(Held::Value(self.step(Step::Unary(operation, value))?, to))
    }

    fn bitwise(&mut self, instruction: &Instruction, operation: Binary) -> Option<Held> {
        let Some(Held::Value(_, bytes)) = self.registers[index_of(instruction.op0_register())?.0] else {
            return None;
        };
        let (left, right) = (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
        Some(Held::Value(self.binary(operation, left, right)?, bytes))
    }

    /// An operation on the first and the second operand.
    fn on_both(&mut self, instruction: &Instruction, operation: Binary) -> Option<Number> {
        let bytes = instruction.op0_register().size() as u8;
        let (left, right) = (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
        self.binary(operation, left, right)
    }

    fn shifted(&mut self, instruction: &Instruction, bytes: u8, operation: Binary) -> Option<Number> {
        let mut value = self.operand(instruction, 0, bytes)?.0;
        if operation == Binary::Sar {
            value = self.step(Step::SignExtend(value, bytes))?;
        }
        let count = match instruction.op1_kind() {
            OpKind::Immediate8 => self.step(Step::Constant(instruction.immediate8().into()))?,
            OpKind::Register => self.register(instruction.op1_register())?,
            _ => return None,
        };
        let mask = self.step(Step::Constant(if bytes == 8 { 63 } else { 31 }))?;
        let count = self.binary(Binary::And, count, mask)?;
        self.step(Step::Binary(operation, value, count))
    }

    /// The address of a memory operand.
    fn address(&mut self, instruction: &Instruction) -> Option<Number> {
        if instruction.is_ip_rel_memory_operand() {
            let distance = instruction.ip_rel_memory_address().wrapping_sub(self.returns);
            return self.step(Step::Register(Register::RETURN_ADDRESS, distance.cast_signed()));
        }
        let mut sum = self.step(Step::Constant(instruction.memory_displacement64()))?;
        if instruction.memory_base() != Iced::None {
            let base = self.register(instruction.memory_base())?;
            sum = self.binary(Binary::Add, base, sum)?;
        }
        if instruction.memory_index() != Iced::None {
            let index = self.register(instruction.memory_index())?;
            let scale = self.step(Step::Constant(instruction.memory_index_scale().into()))?;
            let index = self.binary(Binary::Mul, index, scale)?;
            sum = self.binary(Binary::Add, sum, index)?;
        }
        Some(sum)
    }

    /// What an instruction compares.
    fn compared(&mut self, instruction: &Instruction) -> Option<Flags> {
        if is_of_canary(instruction) {
            return Some(Flags::Canary);
        }
        let mut registers = [instruction.op0_kind(), instruction.op1_kind()]
            .into_iter()
            .zip([instruction.op0_register(), instruction.op1_register()])
            .filter(|(kind, _)| *kind == OpKind::Register)
            .filter_map(|(_, register)| index_of(register));
        let has_canary = registers.any(|(index, _)| self.registers[index] == Some(Held::Canary));
        let is_comparison = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Sub | Mnemonic::Xor);
        if has_canary {
            return is_comparison.then_some(Flags::Canary);
        }
        let of_floats = match instruction.mnemonic() {
            Mnemonic::Comiss | Mnemonic::Ucomiss => Some(4),
            Mnemonic::Comisd | Mnemonic::Ucomisd => Some(8),
            _ => None,
        };
        if let Some(bytes) = of_floats {
            let (left, right) =
                (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
            return Some(Flags::OfFloats(left, right, bytes));
        }
        let bytes = match instruction.op0_kind() {
            OpKind::Register => instruction.op0_register().size() as u8,
            OpKind::Memory => u8::try_from(instruction.memory_size().size()).ok()?,
            _ => return None,
        };
        if bytes > 8 {
            return None;
        }
        match instruction.mnemonic() {
            Mnemonic::Cmp | Mnemonic::Sub => {
                let (left, right) =
                    (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
                Some(Flags::Of(left, right, bytes))
            }
            Mnemonic::Neg => {
                let (zero, value) = (self.step(Step::Constant(0))?, self.operand(instruction, 0, bytes)?.0);
                Some(Flags::Of(zero, value, bytes))
            }
            // As after a comparison with 0.
            Mnemonic::Test | Mnemonic::And => {
                let (left, right) =
                    (self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0);
                let (both, zero) = (self.binary(Binary::And, left, right)?, self.step(Step::Constant(0))?);
                Some(Flags::Of(both, zero, bytes))
            }
            _ => None,
        }
    }

    /// Whether a condition holds: 1 or 0.
    fn condition(&mut self, condition: ConditionCode) -> Option<Number> {
        match self.flags? {
            Flags::Of(left, right, bytes) => self.of_integers(condition, left, right, bytes),
            Flags::OfFloats(left, right, bytes) => self.of_floats(condition, left, right, bytes),
            Flags::Canary => None,
        }
    }

    /// Whether a condition holds after the comparison of two floats. Those that are unordered are
    /// equal and below each other.
    fn of_floats(
        &mut self,
        condition: ConditionCode,
        left: Number,
        right: Number,
        bytes: u8,
    ) -> Option<Number> {
        let (less, less_equal) = match bytes {
            4 => (Binary::LessFloat, Binary::LessEqualFloat),
            _ => (Binary::LessDouble, Binary::LessEqualDouble),
        };
        use ConditionCode as C;
        let holds = match condition {
            C::a | C::be => self.step(Step::Binary(less, right, left))?,
            C::ae | C::b => self.step(Step::Binary(less_equal, right, left))?,
            C::e | C::ne => self.either(less, left, right)?,
            C::p | C::np => self.either(less_equal, left, right)?,
            _ => return None,
        };
        match condition {
            C::be | C::b | C::e | C::p => self.negated(holds),
            _ => Some(holds),
        }
    }

    /// Whether a comparison holds in one direction or the other.
    fn either(&mut self, operation: Binary, left: Number, right: Number) -> Option<Number> {
        let (one, other) = (
            self.step(Step::Binary(operation, left, right))?,
            self.step(Step::Binary(operation, right, left))?,
        );
        self.step(Step::Binary(Binary::Or, one, other))
    }

    fn negated(&mut self, holds: Number) -> Option<Number> {
        let one = self.step(Step::Constant(1))?;
        self.step(Step::Binary(Binary::Xor, holds, one))
    }

    /// Whether a condition holds after the comparison of two integers.
    fn of_integers(
        &mut self,
        condition: ConditionCode,
        left: Number,
        right: Number,
        bytes: u8,
    ) -> Option<Number> {
        let (unsigned_left, unsigned_right) =
            (self.zero_extend(left, bytes)?, self.zero_extend(right, bytes)?);
        let (signed_left, signed_right) =
            (self.step(Step::SignExtend(left, bytes))?, self.step(Step::SignExtend(right, bytes))?);
        use Binary::{Equal, LessSigned, LessUnsigned};
        use ConditionCode as C;
        let (operation, left, right, is_negated) = match condition {
            C::e => (Equal, unsigned_left, unsigned_right, false),
            C::ne => (Equal, unsigned_left, unsigned_right, true),
            C::b => (LessUnsigned, unsigned_left, unsigned_right, false),
            C::ae => (LessUnsigned, unsigned_left, unsigned_right, true),
            C::a => (LessUnsigned, unsigned_right, unsigned_left, false),
            C::be => (LessUnsigned, unsigned_right, unsigned_left, true),
            C::l => (LessSigned, signed_left, signed_right, false),
            C::ge => (LessSigned, signed_left, signed_right, true),
            C::g => (LessSigned, signed_right, signed_left, false),
            C::le => (LessSigned, signed_right, signed_left, true),
            C::s | C::ns => {
                let difference = self.binary(Binary::Sub, left, right)?;
                let difference = self.step(Step::SignExtend(difference, bytes))?;
                (LessSigned, difference, self.step(Step::Constant(0))?, condition == C::ns)
            }
            _ => return None,
        };
        let holds = self.step(Step::Binary(operation, left, right))?;
        if is_negated { self.negated(holds) } else { Some(holds) }
    }

    /// An operand of at most this number of bytes, and how many it has. Its other bytes are 0.
    fn operand(&mut self, instruction: &Instruction, number: u32, most: u8) -> Option<(Number, u8)> {
        match instruction.op_kind(number) {
            OpKind::Register => {
                let register = instruction.op_register(number);
                let bytes = u8::try_from(register.size()).ok()?.min(most);
                let (index, true) = index_of(register)? else { return None };
                Some((self.value(index, bytes)?, bytes))
            }
            OpKind::Memory => {
                let bytes = u8::try_from(instruction.memory_size().size()).ok()?.min(most);
                Some((self.loaded(instruction, bytes)?, bytes))
            }
            _ => {
                let value = zero_extended(instruction.try_immediate(number).ok()?, most);
                Some((self.step(Step::Constant(value))?, most))
            }
        }
    }

    /// A register as a whole; the other bytes of a narrow one are 0.
    fn register(&mut self, register: Iced) -> Option<Number> {
        let (index, true) = index_of(register)? else { return None };
        self.value(index, u8::try_from(register.size()).ok()?)
    }

    /// The lower bytes of a register; the others are 0.
    fn value(&mut self, index: usize, bytes: u8) -> Option<Number> {
        match self.registers[index]? {
            Held::Value(value, known) if known >= bytes => self.zero_extend(value, bytes),
            _ => None,
        }
    }

    /// A memory operand: in the frame, or a constant.
    fn loaded(&mut self, instruction: &Instruction, bytes: u8) -> Option<Number> {
        if instruction.has_segment_prefix() {
            return None;
        }
        if instruction.is_ip_rel_memory_operand() {
            let value = self.object.constant(instruction.ip_rel_memory_address(), bytes)?;
            return self.step(Step::Constant(value));
        }
        if instruction.memory_index() != Iced::None {
            return None;
        }
        let base = self.register(instruction.memory_base())?;
        self.load(base, instruction.memory_displacement64().cast_signed(), bytes)
    }

    /// Bytes in the frame, at a distance from a value.
    fn load(&mut self, base: Number, offset: i64, bytes: u8) -> Option<Number> {
        let Step::Register(register, added) = self.steps[usize::from(base)] else { return None };
        if ![Register::RSP, Register::RBP].contains(&register) || ![1, 2, 4, 8].contains(&bytes) {
            return None;
        }
        let offset = i32::try_from(added.checked_add(offset)?).ok()?;
        self.step(Step::Memory(register, offset, bytes))
    }

    fn zero_extend(&mut self, value: Number, bytes: u8) -> Option<Number> {
        match self.steps[usize::from(value)] {
            _ if bytes >= 8 => Some(value),
            Step::Constant(constant) => self.step(Step::Constant(zero_extended(constant, bytes))),
            Step::ZeroExtend(_, known) | Step::Memory(_, _, known) if known <= bytes => Some(value),
            _ => self.step(Step::ZeroExtend(value, bytes)),
        }
    }

    /// An operation on integers. Constants that are added to a register stay with it, so that
    /// places in the frame are known.
    fn binary(&mut self, operation: Binary, left: Number, right: Number) -> Option<Number> {
        match (operation, self.steps[usize::from(left)], self.steps[usize::from(right)]) {
            (Binary::Add, Step::Register(register, added), Step::Constant(value)) => {
                self.step(Step::Register(register, added.wrapping_add_unsigned(value)))
            }
            (Binary::Sub, Step::Register(register, added), Step::Constant(value)) => {
                self.step(Step::Register(register, added.wrapping_sub_unsigned(value)))
            }
            _ => self.step(Step::Binary(operation, left, right)),
        }
    }

    /// The number of a step, which is added if it is new.
    fn step(&mut self, step: Step) -> Option<Number> {
        if let Some(known) = self.steps.iter().position(|known| *known == step) {
            return Number::try_from(known).ok();
        }
        if self.steps.len() == MAX_STEPS {
            return None;
        }
        self.steps.push(step);
        Number::try_from(self.steps.len() - 1).ok()
    }
}

/// Whether an operand is the value of the stack protector.
fn is_of_canary(instruction: &Instruction) -> bool {
    instruction.segment_prefix() == Iced::FS
        && instruction.memory_base() == Iced::None
        && instruction.memory_index() == Iced::None
        && instruction.memory_displacement64() == CANARY
}
