//! [`Error`]: the reasons why a request or an expression fails.

use wasm_jit::probes::{AccessError, ProbeError};

/// The reason why a request fails, or a value cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No thread of the program is stopped.
    #[error("the program is not stopped")]
    Running,
    /// The program cannot go back, because its run is not repeatable.
    #[error("the program does not go back: only a recorded run can")]
    NotRepeatable,
    /// A repeated run differed from the one before.
    #[error("the run does not repeat; it has ended: {outcome}")]
    NotRepeated {
        /// The outcome of the repeated run.
        outcome: String,
    },
    /// Values cannot be changed, because the program's run is a recorded one.
    #[error("a recorded run cannot be changed")]
    Recorded,
    /// Values cannot be changed, because the program has trapped and is about to end.
    #[error("the program is about to end: its values cannot be changed")]
    Ending,
    /// No breakpoint or watchpoint has this number.
    #[error("there is no breakpoint {number}")]
    NoBreakpoint {
        /// The requested number.
        number: u32,
    },
    /// The module has no object with this name.
    #[error("there is no {what} `{name}`")]
    Unknown {
        /// The kind of object.
        what: &'static str,
        /// The requested name.
        name: String,
    },
    /// A name has several meanings.
    #[error("`{name}` is not unique: {found}")]
    Ambiguous {
        /// The requested name.
        name: String,
        /// Some of the objects that the name may denote.
        found: String,
    },
    /// The function is in the source, but has no code.
    #[error("`{name}` has no code: it was removed by the linker, or by the compiler")]
    Removed {
        /// The requested name.
        name: String,
    },
    /// No instruction is at this offset.
    #[error("there is no instruction at {offset:#x} of the module")]
    NoInstruction {
        /// The offset in the module.
        offset: u64,
    },
    /// A location or an expression cannot be parsed.
    #[error("`{text}`: expected {expected}")]
    Syntax {
        /// The unexpected part, or the full text.
        text: String,
        /// The expected form.
        expected: &'static str,
    },
    /// A value cannot be computed, for this reason.
    #[error("{0}")]
    Value(String),
    /// The watched expression always has the same value.
    #[error("the value of `{text}` never changes")]
    Constant {
        /// The expression.
        text: String,
    },
    /// The address in an expression is outside of the memory.
    #[error("the address {address} is outside of the memory, which has {size} bytes at the start")]
    Outside {
        /// The address.
        address: u64,
        /// The initial size of the memory in bytes, before the program grows it.
        size: u64,
    },
    /// The stack has fewer frames.
    #[error("there is no frame {level}")]
    NoFrame {
        /// The requested frame, counted from the innermost one.
        level: usize,
    },
    /// The frame's function belongs to another module, or its location is unknown.
    #[error("frame {level} is in another module")]
    OtherModule {
        /// The requested frame, counted from the innermost one.
        level: usize,
    },
    /// A value of a frame cannot be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A probe cannot be made or toggled.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A memory or global cannot be accessed.
    #[error(transparent)]
    Engine(#[from] wasm_jit::Error),
}
