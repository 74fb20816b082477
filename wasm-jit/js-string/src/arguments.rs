//! The arguments of the functions: strings, and arrays of code units. What is neither traps.

use wasm_jit::{AnyRef, ArrayRef, Caller, Error, ExternRef, Trap, WasmBacktrace};

use super::string::JsString;

/// The code units of a string.
pub(super) fn units<'s, T: 'static>(
    caller: &Caller<'_, T>,
    string: &'s Option<ExternRef>,
) -> Result<&'s [u16], Error> {
    match units_or_null(caller, string)? {
        Some(units) => Ok(units),
        None => Err(trap(caller, Trap::NullReference)),
    }
}

/// The code units of a string, or `None` for null.
pub(super) fn units_or_null<'s, T: 'static>(
    caller: &Caller<'_, T>,
    string: &'s Option<ExternRef>,
) -> Result<Option<&'s [u16]>, Error> {
    let Some(value) = string else { return Ok(None) };
    match JsString::from_extern(value) {
        Some(string) => Ok(Some(string.units())),
        None => Err(trap(caller, Trap::CastFailure)),
    }
}

/// An array of code units.
pub(super) fn array<T: 'static>(caller: &Caller<'_, T>, array: Option<AnyRef>) -> Result<ArrayRef, Error> {
    let Some(array) = array else { return Err(trap(caller, Trap::NullReference)) };
    Ok(array.as_array(caller).expect("the function's type permits arrays only"))
}

/// The error of a call that traps, with the frames that led to it.
#[cold]
pub(super) fn trap<T: 'static>(caller: &Caller<'_, T>, trap: Trap) -> Error {
    Error::Trap { trap, backtrace: WasmBacktrace::capture(caller) }
}
