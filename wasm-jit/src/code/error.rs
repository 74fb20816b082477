//! [`CompileError`]: why the functions of a module cannot be compiled.

use wasm_jit_codegen::{Limit, Refusal};
use wasmparser::BinaryReaderError;

/// Compilation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompileError {
    /// A function is not valid.
    #[error(transparent)]
    Invalid(#[from] BinaryReaderError),
    /// A valid function that cannot be compiled.
    #[error(transparent)]
    Limit(#[from] Limit),
    /// The module has more code than a call can span.
    #[error("the module has more than 2 GiB of machine code")]
    TooMuchCode,
    /// The system refused to reserve addresses for the maximum code size, and the code exceeds the
    /// likely size.
    #[error("not enough address space for the machine code")]
    NoAddresses,
    /// The system refused memory for code.
    #[error(transparent)]
    Memory(#[from] wordpatch::Error),
    /// The function was not compiled before the process forked.
    #[error("function {function} cannot be compiled in a forked child of the process that made the module")]
    Forked { function: u32 },
}

impl From<Refusal> for CompileError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(error) => Self::Invalid(error),
            Refusal::Limit(limit) => Self::Limit(limit),
        }
    }
}
