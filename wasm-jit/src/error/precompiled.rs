//! Errors of precompiled modules.

use crate::code::sections::printable;

/// A precompiled module cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrecompiledError {
    /// The file does not begin like a precompiled module.
    #[error("this is not a precompiled module: compile it with `wasm-jit compile -o FILE`")]
    NotPrecompiled,
    /// The module is incomplete, or was changed.
    #[error("the precompiled module is damaged ({what}): compile it again")]
    Damaged {
        /// A description of the damage.
        what: &'static str,
    },
    /// The module was compiled by another version, for another processor, or with other settings.
    #[error(
        "the module was precompiled with {what} {}, which is {expected} here: compile it again",
        printable(found)
    )]
    Incompatible {
        /// The name of the requirement that differs.
        what: &'static str,
        /// The value of the requirement in this engine.
        expected: String,
        /// The value in the engine that compiled the module.
        found: String,
    },
}
