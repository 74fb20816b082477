//! Instructions that compare, and the conditions that follow from them.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind};

use super::super::computation::{Binary, Number, Step};
use super::super::copies::index_of;
use super::{Flags, Held, State, is_of_canary};

impl State<'_> {
    /// The comparison that an instruction makes.
    pub(super) fn compared(&mut self, instruction: &Instruction) -> Option<Flags> {
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
            Mnemonic::Comiss | Mnemonic::Ucomiss | Mnemonic::Vcomiss | Mnemonic::Vucomiss => Some(4),
            Mnemonic::Comisd | Mnemonic::Ucomisd | Mnemonic::Vcomisd | Mnemonic::Vucomisd => Some(8),
            _ => None,
        };
        if let Some(bytes) = of_floats {
            let (left, right) = self.both_operands(instruction, bytes)?;
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
                let (left, right) = self.both_operands(instruction, bytes)?;
                Some(Flags::Of(left, right, bytes))
            }
            Mnemonic::Neg => {
                let (zero, value) = (self.step(Step::Constant(0))?, self.operand(instruction, 0, bytes)?.0);
                Some(Flags::Of(zero, value, bytes))
            }
            // The same as after a comparison with 0.
            Mnemonic::Test | Mnemonic::And => {
                let (left, right) = self.both_operands(instruction, bytes)?;
                let (both, zero) = (self.binary(Binary::And, left, right)?, self.step(Step::Constant(0))?);
                Some(Flags::Of(both, zero, bytes))
            }
            _ => None,
        }
    }

    /// The two operands of an instruction.
    fn both_operands(&mut self, instruction: &Instruction, bytes: u8) -> Option<(Number, Number)> {
        Some((self.operand(instruction, 0, bytes)?.0, self.operand(instruction, 1, bytes)?.0))
    }

    /// Whether a condition holds: 1 or 0.
    pub(super) fn condition(&mut self, condition: ConditionCode) -> Option<Number> {
        match self.flags? {
            Flags::Of(left, right, bytes) => self.of_integers(condition, left, right, bytes),
            Flags::OfFloats(left, right, bytes) => self.of_floats(condition, left, right, bytes),
            Flags::Canary => None,
        }
    }

    /// Whether a condition holds after the comparison of two floats. Unordered operands count as
    /// both equal and below.
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
}
