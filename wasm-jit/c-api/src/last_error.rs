//! `wasm_jit_last_error`: the reason for a failure that `wasm.h` cannot report.

use std::cell::RefCell;
use std::fmt::Display;

use crate::vector::{Out, store};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Records the reason for a failure on this thread.
pub(crate) fn failed(reason: impl Display) {
    // While a thread ends, C code may still delete its objects, but the thread-local is gone.
    let _ = LAST.try_with(|last| last.replace(reason.to_string()));
}

/// Returns an argument that must not be null; records a failure if it is.
pub(crate) fn required<T>(argument: Option<T>, what: &str) -> Option<T> {
    if argument.is_none() {
        failed(null(what));
    }
    argument
}

/// The reason for a failure because of a null pointer.
pub(crate) fn null(what: &str) -> String {
    format!("a null pointer instead of {what}")
}

/// What `get` finds in an argument. Records a failure if the argument is null or of another kind.
pub(crate) fn expect<'a, A, T>(
    argument: Option<&'a A>,
    what: &str,
    get: impl FnOnce(&'a A) -> Option<T>,
) -> Option<T> {
    let found = get(required(argument, what)?);
    if found.is_none() {
        failed(other(what));
    }
    found
}

/// The reason for a failure because of an argument of another kind.
pub(crate) fn other(what: &str) -> String {
    format!("expected {what}, found another object")
}

/// Stores the reason for the last failure of a function of this library on this thread,
/// null-terminated; an empty text if there was none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_last_error(out: Out<'_, u8>) {
    let reason = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
    store(out, reason.bytes().chain([0]).collect());
}
