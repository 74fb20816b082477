//! Call instructions: whether an instruction calls, and how.

use wasm_jit::wasmparser::Operator;

/// The form of a call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// The index of the function that the instruction names; `None` if the function is found in a
    /// table or by a reference.
    pub callee: Option<u32>,
    /// Whether it is a tail call: the callee replaces the frame.
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
