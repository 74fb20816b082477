//! Errors of precompiled modules.

use crate::code::sections::printable;

/// A precompiled module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrecompiledError {
    /// It does not begin like one.
    #[error("this is not a precompiled module: compile it with `wasm-jit compile -o FILE`")]
    NotPrecompiled,
    /// It is incomplete, or was changed.
    #[error("the precompiled module is damaged ({what}): compile it again")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// It was compiled by another version, for another processor, or with other settings.
    #[error(
        "the module was precompiled with {what} {}, which is {expected} here: compile it again",
        printable(found)
    )]
    Incompatible {
        /// What differs.
        what: &'static str,
        /// Its value in this engine.
        expected: String,
        /// Its value in the engine that compiled the module.
        found: String,
    },
}
