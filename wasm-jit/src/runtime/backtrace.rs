//! The frames of a program that calls a host function.

use super::store::AsContext;
use crate::trap::{self, WasmBacktrace};

impl WasmBacktrace {
    /// The frames of the functions that led to the call to a host function, given its
    /// [`Caller`](crate::Caller), innermost first. There are none if nothing runs in the store.
    pub fn capture(store: impl AsContext) -> Self {
        let store = &store.as_context().0.opaque;
        // SAFETY: the store is borrowed, so that only host functions that have lent it run; on this
        // thread, because neither the borrow of a running store nor its caller is `Send`.
        unsafe { trap::of_waiting(store.execution()) }
    }
}
