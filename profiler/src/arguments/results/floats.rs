//! Instructions that assign to the lower halves of vector registers: SSE instructions, and their
//! AVX forms, which have an additional operand.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::super::computation::{Binary, Step, Unary};
use super::super::copies::index_of;
use super::{Held, State};

impl State<'_> {
    /// The value that an instruction assigns to the lower half of a vector register.
    pub(super) fn vector(&mut self, instruction: &Instruction) -> Option<Held> {
        use Mnemonic as M;
        let last = instruction.op_count() - 1;
        match instruction.mnemonic() {
            M::Pxor | M::Xorps | M::Xorpd | M::Vpxor | M::Vxorps | M::Vxorpd if is_of_same(instruction) => {
                Some(Held::Value(self.step(Step::Constant(0))?, 8))
            }
            M::Movss | M::Movd | M::Vmovss | M::Vmovd => {
                Some(Held::Value(self.operand(instruction, last, 4)?.0, 4))
            }
            M::Movsd | M::Movq | M::Vmovsd | M::Vmovq => {
                Some(Held::Value(self.operand(instruction, last, 8)?.0, 8))
            }
            M::Movaps | M::Movapd | M::Movups | M::Movupd | M::Movdqa | M::Movdqu => self.copied(instruction),
            M::Vmovaps | M::Vmovapd | M::Vmovups | M::Vmovupd | M::Vmovdqa | M::Vmovdqu => {
                self.copied(instruction)
            }
            // The lowest lane is unchanged.
            M::Unpcklps | M::Vunpcklps if is_of_same(instruction) => {
                Some(Held::Value(self.operand(instruction, last, 4)?.0, 4))
            }
            M::Cvtss2sd | M::Cvtps2pd | M::Vcvtss2sd | M::Vcvtps2pd => {
                self.converted(instruction, 4, Unary::FloatToDouble, 8)
            }
            M::Cvtsd2ss | M::Cvtpd2ps | M::Vcvtsd2ss | M::Vcvtpd2ps => {
                self.converted(instruction, 8, Unary::DoubleToFloat, 4)
            }
            M::Sqrtss | M::Vsqrtss => self.converted(instruction, 4, Unary::SqrtFloat, 4),
            M::Sqrtsd | M::Vsqrtsd => self.converted(instruction, 8, Unary::SqrtDouble, 8),
            M::Cvtsi2ss | M::Vcvtsi2ss => self.converted(instruction, 8, Unary::IntegerToFloat, 4),
            M::Cvtsi2sd | M::Vcvtsi2sd => self.converted(instruction, 8, Unary::IntegerToDouble, 8),
            M::Addss | M::Vaddss => self.arithmetic(instruction, Binary::AddFloat, 4),
            M::Subss | M::Vsubss => self.arithmetic(instruction, Binary::SubFloat, 4),
            M::Mulss | M::Vmulss => self.arithmetic(instruction, Binary::MulFloat, 4),
            M::Divss | M::Vdivss => self.arithmetic(instruction, Binary::DivFloat, 4),
            M::Addsd | M::Vaddsd => self.arithmetic(instruction, Binary::AddDouble, 8),
            M::Subsd | M::Vsubsd => self.arithmetic(instruction, Binary::SubDouble, 8),
            M::Mulsd | M::Vmulsd => self.arithmetic(instruction, Binary::MulDouble, 8),
            M::Divsd | M::Vdivsd => self.arithmetic(instruction, Binary::DivDouble, 8),
            M::Andps | M::Andpd | M::Pand | M::Vandps | M::Vandpd | M::Vpand => {
                self.bitwise(instruction, Binary::And)
            }
            M::Orps | M::Orpd | M::Por | M::Vorps | M::Vorpd | M::Vpor => {
                self.bitwise(instruction, Binary::Or)
            }
            M::Xorps | M::Xorpd | M::Pxor | M::Vxorps | M::Vxorpd | M::Vpxor => {
                self.bitwise(instruction, Binary::Xor)
            }
            _ => None,
        }
    }

    /// The entire second operand.
    fn copied(&mut self, instruction: &Instruction) -> Option<Held> {
        match instruction.op1_kind() {
            OpKind::Register => self.registers[index_of(instruction.op1_register())?.0],
            _ => Some(Held::Value(self.operand(instruction, 1, 8)?.0, 8)),
        }
    }

    fn converted(&mut self, instruction: &Instruction, from: u8, operation: Unary, to: u8) -> Option<Held> {
        let (mut value, bytes) = self.operand(instruction, instruction.op_count() - 1, from)?;
        if bytes < from {
            value = self.step(Step::SignExtend(value, bytes))?;
        }
        Some(Held::Value(self.step(Step::Unary(operation, value))?, to))
    }

    fn arithmetic(&mut self, instruction: &Instruction, operation: Binary, bytes: u8) -> Option<Held> {
        let last = instruction.op_count() - 1;
        let left = self.operand(instruction, last - 1, bytes)?.0;
        let right = self.operand(instruction, last, bytes)?.0;
        Some(Held::Value(self.step(Step::Binary(operation, left, right))?, bytes))
    }

    /// A bitwise operation on as many bytes as are known of the left operand.
    fn bitwise(&mut self, instruction: &Instruction, operation: Binary) -> Option<Held> {
        let last = instruction.op_count() - 1;
        let (index, _) = index_of(instruction.op_register(last - 1))?;
        let Some(Held::Value(_, bytes)) = self.registers[index] else { return None };
        let left = self.operand(instruction, last - 1, bytes)?.0;
        let right = self.operand(instruction, last, bytes)?.0;
        Some(Held::Value(self.binary(operation, left, right)?, bytes))
    }
}

/// Whether the last two operands are the same register.
fn is_of_same(instruction: &Instruction) -> bool {
    let last = instruction.op_count() - 1;
    instruction.op_kind(last) == OpKind::Register
        && instruction.op_register(last) == instruction.op_register(last - 1)
}
