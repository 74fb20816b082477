//! A WebAssembly engine with a single-pass compiler.

pub(crate) mod code;
pub(crate) mod compiler;
pub(crate) mod module;
mod trap;
pub(crate) mod vmctx;

pub use trap::{FrameInfo, FrameSymbol, InterruptHandle, Timeout, Trap, WasmBacktrace};
