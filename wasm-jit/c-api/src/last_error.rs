//! `wasm_jit_last_error`: why a function has failed, where `wasm.h` has no place for the reason.

use std::cell::RefCell;
use std::fmt::Display;

use crate::vector::{Out, store};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Remembers the reason of a failure on this thread.
pub(crate) fn failed(reason: impl Display) {
    // At the end of a thread, when C code may still delete its objects, there is no place for it.
    let _ = LAST.try_with(|last| last.replace(reason.to_string()));
}

/// An argument that must not be null: otherwise the function fails.
pub(crate) fn required<T>(argument: Option<T>, what: &str) -> Option<T> {
    if argument.is_none() {
        failed(null(what));
    }
    argument
}

/// The reason of a failure because of a null pointer.
pub(crate) fn null(what: &str) -> String {
    format!("a null pointer instead of {what}")
}

/// What `get` finds in an argument. The function fails if the argument is null, or of another kind,
/// so that nothing is found.
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

/// The reason of a failure because of an argument of another kind.
pub(crate) fn other(what: &str) -> String {
    format!("expected {what}, found another object")
}

/// The last failure of a function of this library on this thread, null-terminated; an empty text if
/// there was none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_last_error(out: Out<'_, u8>) {
    let reason = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
    store(out, reason.bytes().chain([0]).collect());
}
