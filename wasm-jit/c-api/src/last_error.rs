//! `wasm_jit_last_error`: why a function has failed, where `wasm.h` has no place for the reason.

use std::cell::RefCell;
use std::fmt::Display;

use crate::vector::{Out, store};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Remembers the reason of a failure on this thread.
pub(crate) fn failed(reason: impl Display) {
    LAST.replace(reason.to_string());
}

/// The last failure of a function of this library on this thread, null-terminated; an empty text if
/// there was none.
#[unsafe(no_mangle)]
extern "C" fn wasm_jit_last_error(out: Out<'_, u8>) {
    store(out, LAST.with_borrow(|reason| reason.bytes().chain([0]).collect()));
}
