//! 128-bit vectors: from operators to code.
//!
//! Most operators are one instruction and are found in the tables (`tables.rs`). The others
//! are sequences, each in one place with its reason: `int.rs`, `float.rs`,
//! `convert.rs`, `lanes.rs`, `relaxed.rs`; accesses to memory are in
//! `memory.rs`.
//!
//! A vector is in an SSE register, as floats are, or in a 16-byte slot. All instructions belong to
//! AVX and AVX2: they have three operands, so that an operand that is a local need not be copied,
//! and memory operands of any alignment.
//!
//! In a sequence, the register of the result is the target of the next instruction only if it is
//! written last: it may hold a local that is an operand.

mod convert;
mod float;
mod int;
mod lanes;
mod memory;
mod relaxed;
mod tables;

use wasmparser::Operator;

use self::lanes::Lane;
use crate::asm::{Reg, RegClass, Rm, VectorImmOp, VectorOp};
use crate::compiler::abi::{FLOAT_SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{HeldConstant, Local, Operand, SmallBytes, Val};
use tables::One;

/// How an instruction takes the operands of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Given,
    Swapped,
    /// The result does not depend on it.
    Any,
}

impl FunctionCompiler<'_> {
    /// Compiles a vector operator. Returns whether the operator is one.
    pub(crate) fn vector_operator(&mut self, operator: &Operator<'_>) -> bool {
        match tables::one_instruction(operator) {
            Some(One::Binary(op)) => self.vector_binary(op, Order::Given),
            Some(One::Commuting(op)) => self.vector_binary(op, Order::Any),
            Some(One::Swapped(op)) => self.vector_binary(op, Order::Swapped),
            Some(One::Compare(op, predicate)) => self.vector_binary_imm(op, predicate),
            Some(One::Unary(op)) => self.vector_unary(op),
            Some(One::Round(op, how)) => self.vector_unary_imm(op, how as u8),
            None => {
                return self.vector_integer(operator)
                    || self.vector_float(operator)
                    || self.vector_conversion(operator)
                    || self.vector_lane(operator)
                    || self.vector_memory(operator)
                    || self.vector_relaxed(operator);
            }
        }
        true
    }

    pub(crate) fn push_vector(&mut self, reg: Reg) {
        self.push(Ty::V128, Val::Reg(reg));
    }

    /// Pushes a vector that is a constant.
    pub(crate) fn push_vector_const(&mut self, bits: u128) {
        let number = self.vectors.number(bits);
        self.push_const(Ty::V128, number);
    }

    /// A constant in a register that may be written.
    pub(crate) fn vector_const(&mut self, bits: u128) -> Reg {
        let dst = self.alloc(RegClass::Sse);
        let constant = self.constant(bits, 16);
        self.asm.vector_load(dst, constant);
        dst
    }

    /// The value of a vector that is a constant, or a local that is known to hold one: compilers
    /// set a local to a constant that they use several times.
    pub(crate) fn constant_of(&self, operand: &Operand) -> Option<u128> {
        self.number_of_constant(operand).map(|number| self.vectors.get(number))
    }

    fn number_of_constant(&self, operand: &Operand) -> Option<u64> {
        match operand.val {
            Val::Const(number) if operand.ty == Ty::V128 => Some(number),
            Val::Local(local) => self.locals[local as usize].known(self.labels),
            _ => None,
        }
    }

    /// The constant that a local holds after it is set to this operand, if that is a vector and
    /// known.
    pub(crate) fn held_constant(&self, operand: &Operand) -> Option<HeldConstant> {
        let number = self.number_of_constant(operand)?;
        Some(HeldConstant { number, label: Some(self.labels) })
    }

    /// The operand as a source that may be memory, but not data after the code: an instruction with
    /// an immediate cannot have it.
    pub(crate) fn to_rm_with_imm(&mut self, operand: &Operand) -> Rm {
        match operand.val {
            Val::Const(_) => Rm::Reg(self.to_reg(operand)),
            _ => self.to_rm(operand),
        }
    }

    /// Zero, in the scratch register.
    pub(crate) fn vector_zero(&mut self) -> Reg {
        self.asm.float_zero(FLOAT_SCRATCH);
        FLOAT_SCRATCH
    }

    pub(crate) fn vector_binary(&mut self, op: VectorOp, order: Order) {
        let (mut right, mut left) = (self.pop(), self.pop());
        let only_left_in_memory = self.is_in_memory(&left) && !self.is_in_memory(&right);
        if order == Order::Swapped || order == Order::Any && only_left_in_memory {
            std::mem::swap(&mut left, &mut right);
        }
        self.vector_with(op, &left, &right);
    }

    /// Whether the operand is in memory, so that an instruction takes it as its last operand.
    fn is_in_memory(&self, operand: &Operand) -> bool {
        match operand.val {
            Val::Const(_) | Val::Frame(_) => true,
            Val::Local(local) => {
                let Local { reg, cache_reg, .. } = self.locals[local as usize];
                reg.is_none() && cache_reg.is_none()
            }
            _ => false,
        }
    }

    /// Pushes `left op right`, of operands that have been popped.
    pub(crate) fn vector_with(&mut self, op: VectorOp, left: &Operand, right: &Operand) {
        let is_small =
            op == VectorOp::PAND && [left, right].into_iter().any(|operand| self.is_small(operand));
        let left_reg = self.to_reg(left);
        let right_rm = self.to_rm(right);
        let dst = self.float_result(left, right);
        self.asm.vector(op, dst, left_reg, right_rm);
        self.push_vector(dst);
        if is_small {
            self.set_small_bytes(dst);
        }
    }

    /// Whether the operand is a constant, all bytes of which are less than 16.
    fn is_small(&self, operand: &Operand) -> bool {
        self.constant_of(operand).is_some_and(|bits| bits.to_le_bytes().iter().all(|byte| *byte < 16))
    }

    /// Records that all bytes of the result in this register are less than 16.
    pub(crate) fn set_small_bytes(&mut self, reg: Reg) {
        self.small_bytes = Some(SmallBytes { reg, at: self.asm.offset() });
    }

    /// Whether all bytes of the operand are known to be less than 16.
    pub(crate) fn has_small_bytes(&self, operand: &Operand) -> bool {
        let reg = self.current_reg(operand);
        reg.is_some_and(|reg| self.small_bytes == Some(SmallBytes { reg, at: self.asm.offset() }))
    }

    fn vector_binary_imm(&mut self, op: VectorImmOp, imm: u8) {
        let (right, left) = (self.pop(), self.pop());
        let left_reg = self.to_reg(&left);
        let right_rm = self.to_rm_with_imm(&right);
        let dst = self.float_result(&left, &right);
        self.asm.vector_imm(op, dst, left_reg, right_rm, imm);
        self.push_vector(dst);
    }

    fn vector_unary(&mut self, op: VectorOp) {
        let operand = self.pop();
        let src = self.to_rm(&operand);
        let dst = self.result_or(&operand);
        self.asm.vector_unary(op, dst, src);
        self.push_vector(dst);
    }

    pub(crate) fn vector_unary_imm(&mut self, op: VectorImmOp, imm: u8) {
        let operand = self.pop();
        let src = self.to_rm_with_imm(&operand);
        let dst = self.result_or(&operand);
        self.asm.vector_unary_imm(op, dst, src, imm);
        self.push_vector(dst);
    }

    /// The bitwise operation of the top operand with a constant.
    pub(crate) fn vector_with_const(&mut self, op: VectorOp, bits: u128) {
        let operand = self.pop();
        let src = self.to_reg(&operand);
        let constant = self.constant(bits, 16);
        let dst = self.result_or(&operand);
        self.asm.vector(op, dst, src, constant);
        self.push_vector(dst);
    }
}

/// The vector with this value in all lanes.
pub(crate) fn splat(lane: Lane, bits: u64) -> u128 {
    let width = lane.bits();
    let one = u128::from(bits) & ((1 << width) - 1);
    (0..128 / width).fold(0, |all, at| all | one << (at * width))
}
