//! Instructions that assign to general-purpose registers.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register as Iced};

use super::super::Register;
use super::super::computation::{Binary, Number, Step, Unary};
use super::{Held, RAX, RDX, State};

impl State<'_> {
    /// RAX and RDX, with the lower and the upper half of a product.
    pub(super) fn product(&mut self, instruction: &Instruction) -> Option<[(usize, Held); 2]> {
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

    /// The value that an instruction assigns to a general-purpose register.
    pub(super) fn integer(&mut self, instruction: &Instruction) -> Option<Number> {
        let bytes = instruction.op0_register().size() as u8;
        let is_same = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        match instruction.mnemonic() {
            Mnemonic::Xor | Mnemonic::Sub if is_same => self.step(Step::Constant(0)),
            Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movd
            | Mnemonic::Movq
            | Mnemonic::Vmovd
            | Mnemonic::Vmovq => Some(self.operand(instruction, 1, bytes)?.0),
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
            Mnemonic::Cvttss2si | Mnemonic::Cvttsd2si | Mnemonic::Vcvttss2si | Mnemonic::Vcvttsd2si => {
                let is_float = matches!(instruction.mnemonic(), Mnemonic::Cvttss2si | Mnemonic::Vcvttss2si);
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
}
