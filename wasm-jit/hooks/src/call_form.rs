//! The instructions that call.

use wasm_jit::wasmparser::Operator;

/// The form of an instruction that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// The function that the instruction names; `None` if it is found in a table or by a reference.
    pub callee: Option<u32>,
    /// Whether the callee replaces the frame.
    pub is_tail: bool,
}

impl CallForm {
    /// The form of this instruction; `None` if it does not call.
    #[must_use]
    pub fn of(operator: &Operator<'_>) -> Option<Self> {
        let (callee, is_tail) = match operator {
            Operator::Call { function_index } => (Some(*function_index), false),
            Operator::ReturnCall { function_index } => (Some(*function_index), true),
            Operator::CallIndirect { .. } | Operator::CallRef { .. } => (None, false),
            Operator::ReturnCallIndirect { .. } | Operator::ReturnCallRef { .. } => (None, true),
            _ => return None,
        };
        Some(Self { callee, is_tail })
    }

    /// Whether this instruction is a tail call.
    #[must_use]
    pub fn is_tail_call(operator: &Operator<'_>) -> bool {
        Self::of(operator).is_some_and(|form| form.is_tail)
    }
}
