//! The arguments of the functions: strings, and arrays of code units. Any other value traps.

use wasm_jit::{AnyRef, ArrayRef, AsContext, ExternRef, Trap};

use super::string::JsString;

/// The code units of a string.
pub(super) fn units(string: &Option<ExternRef>) -> Result<&[u16], Trap> {
    units_or_null(string)?.ok_or(Trap::NullReference)
}

/// The code units of a string, or `None` for null.
pub(super) fn units_or_null(string: &Option<ExternRef>) -> Result<Option<&[u16]>, Trap> {
    let Some(value) = string else { return Ok(None) };
    match JsString::from_extern(value) {
        Some(string) => Ok(Some(string.units())),
        None => Err(Trap::CastFailure),
    }
}

/// An array of code units, for a function whose type permits only such arrays and null.
pub(super) fn array(store: impl AsContext, array: Option<AnyRef>) -> Result<ArrayRef, Trap> {
    let array = array.ok_or(Trap::NullReference)?;
    Ok(array.as_array(store).expect("the function's type permits arrays only"))
}
