//! The contents of a trap: its message and origin.

use std::sync::Arc;

use wasm_jit::{Error, ExnRef, WasmBacktrace};

/// The contents of a trap.
#[derive(Debug)]
pub(crate) struct TrapInfo {
    /// The message, without a final null.
    pub(crate) message: Vec<u8>,
    pub(crate) backtrace: Arc<WasmBacktrace>,
    /// The uncaught exception, if that is the reason.
    pub(crate) exception: Option<ExnRef>,
}

impl TrapInfo {
    /// A trap that the host creates.
    pub(crate) fn of_host(message: Vec<u8>, backtrace: Arc<WasmBacktrace>) -> Self {
        Self { message, backtrace, exception: None }
    }

    /// The trap for an error of the engine.
    pub(crate) fn of_error(error: Error) -> Self {
        let message = error.reason();
        let backtrace = error.backtrace().cloned().unwrap_or_default();
        let exception = match error {
            Error::Exception { exception, .. } => Some(exception),
            _ => None,
        };
        Self { message: message.into_bytes(), backtrace: Arc::new(backtrace), exception }
    }
}
