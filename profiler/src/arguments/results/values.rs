//! The values of operands.

use iced_x86::{Instruction, OpKind, Register as Iced};

use super::super::Register;
use super::super::computation::{Binary, Number, Step, zero_extended};
use super::super::copies::index_of;
use super::{Held, MAX_STEPS, State};

impl State<'_> {
    /// The value of an operand with at most this number of bytes, and its number of bytes. The
    /// upper bytes are 0.
    pub(super) fn operand(
        &mut self,
        instruction: &Instruction,
        number: u32,
        most: u8,
    ) -> Option<(Number, u8)> {
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

    /// An entire register; the upper bytes of a narrow one are 0.
    pub(super) fn register(&mut self, register: Iced) -> Option<Number> {
        let (index, true) = index_of(register)? else { return None };
        self.value(index, u8::try_from(register.size()).ok()?)
    }

    /// The lower bytes of a register; the upper bytes are 0.
    pub(super) fn value(&mut self, index: usize, bytes: u8) -> Option<Number> {
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

    /// Bytes in the frame, at an offset from a value.
    pub(super) fn load(&mut self, base: Number, offset: i64, bytes: u8) -> Option<Number> {
        let Step::Register(register, added) = self.steps[usize::from(base)] else { return None };
        if ![Register::RSP, Register::RBP].contains(&register) || ![1, 2, 4, 8].contains(&bytes) {
            return None;
        }
        let offset = i32::try_from(added.checked_add(offset)?).ok()?;
        self.step(Step::Memory(register, offset, bytes))
    }

    pub(super) fn zero_extend(&mut self, value: Number, bytes: u8) -> Option<Number> {
        match self.steps[usize::from(value)] {
            _ if bytes >= 8 => Some(value),
            Step::Constant(constant) => self.step(Step::Constant(zero_extended(constant, bytes))),
            Step::ZeroExtend(_, known) | Step::Memory(_, _, known) if known <= bytes => Some(value),
            _ => self.step(Step::ZeroExtend(value, bytes)),
        }
    }

    /// An operation on integers. Constants that are added to a register stay with it, so that
    /// addresses in the frame remain known.
    pub(super) fn binary(&mut self, operation: Binary, left: Number, right: Number) -> Option<Number> {
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

    /// The index of a step, which is added if it is new.
    pub(super) fn step(&mut self, step: Step) -> Option<Number> {
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
