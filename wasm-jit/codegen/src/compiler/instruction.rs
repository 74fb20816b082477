//! What is known about the instruction that is being compiled, from its first byte of code to the
//! next instruction.

use wasmparser::Operator;

use crate::asm::{Precision, Width};

/// The operator after the current one, as far as it affects the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// `local.set` or `local.tee`.
    SetLocal(u32),
    /// Takes a condition.
    Condition(Taker),
    /// Takes the top operand as the right one of a 64-bit or 32-bit integer operation.
    Int {
        width: Width,
    },
    /// `i32.add` or `i64.add`.
    Add {
        width: Width,
    },
    /// Takes the top operand as the right one of a float operation.
    Float {
        precision: Precision,
    },
    Other,
}

/// An operator that takes a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// `br_if`, and its depth.
    BrIf(u32),
    If,
    Select,
    Eqz,
}

/// The current instruction.
#[derive(Debug)]
pub(super) struct Instruction {
    /// The offset of the instruction in the module.
    pub(super) position: u32,
    pub(super) next: Next,
    /// Whether the next instruction's site is settled (`sites/settle.rs`).
    pub(super) next_is_settled: bool,
    /// Whether the load that the instruction would do has been done.
    pub(super) load_is_done: bool,
    /// Whether the value that the instruction overwrites has been stored.
    pub(super) old_value_is_stored: bool,
}

impl Instruction {
    /// An instruction for which nothing has been done.
    pub(super) fn new(position: u32, next: Next) -> Self {
        Self { position, next, next_is_settled: false, load_is_done: false, old_value_is_stored: false }
    }
}

impl Next {
    /// Whether the operator takes a condition.
    pub(super) fn takes_condition(self) -> bool {
        matches!(self, Self::Condition(_))
    }

    /// The kind of an operator.
    #[inline(always)]
    pub(super) fn of(operator: &Operator<'_>) -> Self {
        use Operator as O;
        match operator {
            O::LocalSet { local_index } | O::LocalTee { local_index } => Next::SetLocal(*local_index),
            O::BrIf { relative_depth } => Next::Condition(Taker::BrIf(*relative_depth)),
            O::If { .. } => Next::Condition(Taker::If),
            O::Select | O::TypedSelect { .. } => Next::Condition(Taker::Select),
            O::I32Eqz => Next::Condition(Taker::Eqz),
            O::I32Add => Next::Add { width: Width::W32 },
            O::I64Add => Next::Add { width: Width::W64 },
            O::I32Sub | O::I32And | O::I32Or | O::I32Xor | O::I32Mul => Next::Int { width: Width::W32 },
            O::I64Sub | O::I64And | O::I64Or | O::I64Xor | O::I64Mul => Next::Int { width: Width::W64 },
            O::I32Eq | O::I32Ne | O::I32LtS | O::I32LtU | O::I32GtS | O::I32GtU => {
                Next::Int { width: Width::W32 }
            }
            O::I32LeS | O::I32LeU | O::I32GeS | O::I32GeU => Next::Int { width: Width::W32 },
            O::I64Eq | O::I64Ne | O::I64LtS | O::I64LtU | O::I64GtS | O::I64GtU => {
                Next::Int { width: Width::W64 }
            }
            O::I64LeS | O::I64LeU | O::I64GeS | O::I64GeU => Next::Int { width: Width::W64 },
            O::F32Add | O::F32Sub | O::F32Mul | O::F32Div => Next::Float { precision: Precision::Single },
            O::F64Add | O::F64Sub | O::F64Mul | O::F64Div => Next::Float { precision: Precision::Double },
            _ => Next::Other,
        }
    }
}
