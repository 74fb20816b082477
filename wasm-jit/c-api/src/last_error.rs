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

/// The last failure of a function of this library on this thread, null-terminated; an empty text if
/// there was none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_last_error(out: Out<'_, u8>) {
    let reason = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
    store(out, reason.bytes().chain([0]).collect());
}
