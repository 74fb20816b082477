//! Operations on numbers.

use wasm_encoder::{BlockType, Instruction, ValType};

use super::super::ast::BinaryOp;
use super::super::types::Type;
use super::code::Code;

impl Code<'_> {
    /// Ends the rule if a division of the operands on the stack has no result.
    pub(super) fn check_division(&mut self, op: BinaryOp, ty: &Type) {
        use Instruction as I;
        let Some(scalar) = ty.scalar().filter(|_| self.is_bounded() && ty.is_integer()) else { return };
        // The remainder of the least number divided by -1 is 0.
        let overflows = op == BinaryOp::Div && ty.is_signed();
        let (dividend, divisor) = (self.local(scalar), self.local(scalar));
        self.emit(I::LocalSet(divisor));
        self.emit(I::LocalSet(dividend));
        let wide = if overflows { Type::I64 } else { Type::U64 };
        if overflows {
            self.emit(I::LocalGet(dividend));
            self.cast(ty, &wide);
        }
        self.emit(I::LocalGet(divisor));
        self.cast(ty, &wide);
        if overflows {
            self.emit(I::I64Const(i64::MIN >> (64 - ty.bits().unwrap_or(64))));
        }
        self.call(if overflows { "check_s64" } else { "check_u64" });
        self.emit(I::LocalGet(dividend));
        self.emit(I::LocalGet(divisor));
    }

    /// Traps if the quotient on the stack is not in the range of a narrow type, as instructions do
    /// for other types.
    pub(super) fn check_quotient(&mut self, ty: &Type) {
        use Instruction as I;
        if self.is_bounded() || !matches!(ty, Type::I8 | Type::I16) {
            return;
        }
        let quotient = self.local(ValType::I32);
        self.emit(I::LocalTee(quotient));
        self.emit(I::LocalGet(quotient));
        self.narrow(ty);
        self.emit(I::I32Ne);
        self.open(I::If(BlockType::Empty));
        for instruction in [I::I32Const(i32::MIN), I::I32Const(-1), I::I32DivS, I::Drop] {
            self.emit(instruction);
        }
        self.close();
        self.emit(I::LocalGet(quotient));
    }

    /// An operation on two operands that are on the stack.
    pub(super) fn operation(&mut self, op: BinaryOp, ty: &Type) {
        use Instruction as I;
        let signed = ty.is_signed();
        let pick = |yes: I<'static>, no: I<'static>| if signed { yes } else { no };
        let instruction = match (ty.scalar(), op) {
            (Some(ValType::I64), op) => match op {
                BinaryOp::Eq => I::I64Eq,
                BinaryOp::Ne => I::I64Ne,
                BinaryOp::Ge => pick(I::I64GeS, I::I64GeU),
                BinaryOp::Gt => pick(I::I64GtS, I::I64GtU),
                BinaryOp::Le => pick(I::I64LeS, I::I64LeU),
                BinaryOp::Lt => pick(I::I64LtS, I::I64LtU),
                BinaryOp::Add => I::I64Add,
                BinaryOp::Sub => I::I64Sub,
                BinaryOp::Mul => I::I64Mul,
                BinaryOp::Div => pick(I::I64DivS, I::I64DivU),
                BinaryOp::Rem => pick(I::I64RemS, I::I64RemU),
                BinaryOp::Shl => I::I64Shl,
                BinaryOp::Shr => pick(I::I64ShrS, I::I64ShrU),
                BinaryOp::BitOr | BinaryOp::Or => I::I64Or,
                BinaryOp::BitXor => I::I64Xor,
                BinaryOp::BitAnd | BinaryOp::And => I::I64And,
            },
            (Some(ValType::F32), op) => match op {
                BinaryOp::Eq => I::F32Eq,
                BinaryOp::Ne => I::F32Ne,
                BinaryOp::Ge => I::F32Ge,
                BinaryOp::Gt => I::F32Gt,
                BinaryOp::Le => I::F32Le,
                BinaryOp::Lt => I::F32Lt,
                BinaryOp::Sub => I::F32Sub,
                BinaryOp::Mul => I::F32Mul,
                BinaryOp::Div => I::F32Div,
                // Other operators have no meaning for these types, and are refused.
                _ => I::F32Add,
            },
            (Some(ValType::F64), op) => match op {
                BinaryOp::Eq => I::F64Eq,
                BinaryOp::Ne => I::F64Ne,
                BinaryOp::Ge => I::F64Ge,
                BinaryOp::Gt => I::F64Gt,
                BinaryOp::Le => I::F64Le,
                BinaryOp::Lt => I::F64Lt,
                BinaryOp::Sub => I::F64Sub,
                BinaryOp::Mul => I::F64Mul,
                BinaryOp::Div => I::F64Div,
                _ => I::F64Add,
            },
            (_, op) => match op {
                BinaryOp::Eq => I::I32Eq,
                BinaryOp::Ne => I::I32Ne,
                BinaryOp::Ge => pick(I::I32GeS, I::I32GeU),
                BinaryOp::Gt => pick(I::I32GtS, I::I32GtU),
                BinaryOp::Le => pick(I::I32LeS, I::I32LeU),
                BinaryOp::Lt => pick(I::I32LtS, I::I32LtU),
                BinaryOp::Add => I::I32Add,
                BinaryOp::Sub => I::I32Sub,
                BinaryOp::Mul => I::I32Mul,
                BinaryOp::Div => pick(I::I32DivS, I::I32DivU),
                BinaryOp::Rem => pick(I::I32RemS, I::I32RemU),
                BinaryOp::Shl => I::I32Shl,
                BinaryOp::Shr => pick(I::I32ShrS, I::I32ShrU),
                BinaryOp::BitOr | BinaryOp::Or => I::I32Or,
                BinaryOp::BitXor => I::I32Xor,
                BinaryOp::BitAnd | BinaryOp::And => I::I32And,
            },
        };
        self.emit(instruction);
        if op == BinaryOp::Div {
            self.check_quotient(ty);
        }
        if !op.is_comparison() {
            self.narrow(ty);
        }
    }

    /// Wraps a result to the bits of a narrow integer.
    pub(super) fn narrow(&mut self, ty: &Type) {
        let mask = match ty {
            Type::I8 => return self.emit(Instruction::I32Extend8S),
            Type::I16 => return self.emit(Instruction::I32Extend16S),
            Type::U8 => 0xff,
            Type::U16 => 0xffff,
            _ => return,
        };
        self.int(mask);
        self.emit(Instruction::I32And);
    }

    pub(super) fn cast(&mut self, from: &Type, to: &Type) {
        use Instruction as I;
        use ValType::{F32, F64, I32, I64};
        let (Some(source), Some(target)) = (from.scalar(), to.scalar()) else { return };
        if *to == Type::Bool {
            self.zero(source);
            self.emit(match source {
                I64 => I::I64Ne,
                F32 => I::F32Ne,
                F64 => I::F64Ne,
                _ => I::I32Ne,
            });
            return;
        }
        let (of_signed, to_signed) = (from.is_signed(), to.is_signed());
        let either = |is_signed, signed, unsigned| if is_signed { signed } else { unsigned };
        // Narrow integers are converted to and from 32 bits, and then wrap.
        let instruction = match (source, target) {
            (I32, I64) => either(of_signed, I::I64ExtendI32S, I::I64ExtendI32U),
            (I32, F32) => either(of_signed, I::F32ConvertI32S, I::F32ConvertI32U),
            (I32, F64) => either(of_signed, I::F64ConvertI32S, I::F64ConvertI32U),
            (I64, I32) => I::I32WrapI64,
            (I64, F32) => either(of_signed, I::F32ConvertI64S, I::F32ConvertI64U),
            (I64, F64) => either(of_signed, I::F64ConvertI64S, I::F64ConvertI64U),
            (F32, I32) => either(to_signed, I::I32TruncSatF32S, I::I32TruncSatF32U),
            (F32, I64) => either(to_signed, I::I64TruncSatF32S, I::I64TruncSatF32U),
            (F32, F64) => I::F64PromoteF32,
            (F64, I32) => either(to_signed, I::I32TruncSatF64S, I::I32TruncSatF64U),
            (F64, I64) => either(to_signed, I::I64TruncSatF64S, I::I64TruncSatF64U),
            (F64, F32) => I::F32DemoteF64,
            _ => return self.narrow(to),
        };
        self.emit(instruction);
        self.narrow(to);
    }
}
