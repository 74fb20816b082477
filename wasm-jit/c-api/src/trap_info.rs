//! What a trap is: its message, and where it comes from.

use std::sync::Arc;

use wasm_jit::{Error, ExnRef, WasmBacktrace};

/// A trap.
#[derive(Debug)]
pub(crate) struct TrapInfo {
    /// Without a null at its end.
    pub(crate) message: Vec<u8>,
    pub(crate) backtrace: Arc<WasmBacktrace>,
    /// The exception that was not caught, if that is the reason.
    pub(crate) exception: Option<ExnRef>,
}

impl TrapInfo {
    /// A trap of the host.
    pub(crate) fn of_host(message: Vec<u8>, backtrace: Arc<WasmBacktrace>) -> Self {
        Self { message, backtrace, exception: None }
    }

    /// What the engine reports when a call has failed.
    pub(crate) fn of_error(error: Error) -> Self {
        let (message, backtrace, exception) = match error {
            Error::Trap { trap, backtrace } => (trap.to_string(), backtrace, None),
            Error::Exception { exception, backtrace } => {
                (Error::from(exception.clone()).to_string(), backtrace, Some(exception))
            }
            other => (other.to_string(), WasmBacktrace::default(), None),
        };
        Self { message: message.into_bytes(), backtrace: Arc::new(backtrace), exception }
    }
}
