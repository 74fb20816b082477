//! A WebAssembly engine with a single-pass compiler.

pub(crate) mod compiler;
pub(crate) mod module;
pub(crate) mod vmctx;
pub mod wasi;
