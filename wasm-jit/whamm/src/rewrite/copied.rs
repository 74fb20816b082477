//! Rules whose code is copied to the places that they match, in place of a call.
//!
//! These are short functions without locals, branches and calls: most of those that count. Where
//! they read a parameter, the copy has the value that the rule binds there.

use std::convert::Infallible;

use wasm_encoder::Encode;
use wasm_encoder::reencode::Reencode;
use wasm_jit::wasmparser::Operator as O;
use wasmparser::FunctionBody;

use super::RewriteError;

/// Maximum number of operators of a copied function.
const MAX_OPERATORS: usize = 24;

/// A part of a function.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    /// Instructions, as they are encoded.
    Code(Vec<u8>),
    /// The value of the parameter with this number.
    Parameter(u32),
}

/// A function in pieces, if it can be copied.
pub(super) fn pieces<R: Reencode<Error = Infallible>>(
    reencoder: &mut R,
    function: &FunctionBody<'_>,
) -> Result<Option<Vec<Piece>>, RewriteError> {
    if function.get_locals_reader()?.get_count() > 0 {
        return Ok(None);
    }
    let mut pieces = Vec::new();
    let (mut reader, mut depth) = (function.get_operators_reader()?, 0);
    for _ in 0..MAX_OPERATORS {
        let operator = reader.read()?;
        match operator {
            O::End if depth == 0 => return Ok(Some(pieces)),
            O::LocalGet { local_index } => {
                pieces.push(Piece::Parameter(local_index));
                continue;
            }
            O::End => depth -= 1,
            O::If { .. } => depth += 1,
            _ if !is_simple(&operator) => return Ok(None),
            _ => {}
        }
        if !matches!(pieces.last(), Some(Piece::Code(_))) {
            pieces.push(Piece::Code(Vec::new()));
        }
        let Some(Piece::Code(code)) = pieces.last_mut() else { unreachable!("just pushed") };
        reencoder.instruction(operator)?.encode(code);
    }
    Ok(None)
}

/// Whether an operator does the same in another function, and does not trap in the memory of a
/// monitor.
fn is_simple(operator: &O<'_>) -> bool {
    matches!(
        operator,
        O::Else
            | O::I32Const { .. }
            | O::I64Const { .. }
            | O::I32Load { .. }
            | O::I64Load { .. }
            | O::I32Store { .. }
            | O::I64Store { .. }
            | O::I32Add
            | O::I64Add
            | O::I32Sub
            | O::I64Sub
            | O::I32And
            | O::I64And
            | O::I32Eqz
            | O::I64Eqz
            | O::I32Eq
            | O::I64Eq
            | O::I32Ne
            | O::I64Ne
            | O::I32LtS
            | O::I32LtU
            | O::I64LtS
            | O::I64LtU
            | O::I32GtS
            | O::I32GtU
            | O::I64GtS
            | O::I64GtU
            | O::I64ExtendI32S
            | O::I64ExtendI32U
            | O::I32WrapI64
    )
}
