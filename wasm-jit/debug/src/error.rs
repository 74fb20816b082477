//! [`Error`].

use wasm_jit::probes::{AccessError, ProbeError};

/// The reason why something cannot be done, or a value cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No thread of the program is stopped.
    #[error("the program is not stopped")]
    Running,
    /// Only the run of a program that repeats can go back.
    #[error("the program does not go back: only a recorded run can")]
    NotRepeatable,
    /// A run was different from the one before.
    #[error("the run does not repeat; it has ended: {outcome}")]
    NotRepeated {
        /// How it has ended.
        outcome: String,
    },
    /// The program's run is a recorded one.
    #[error("a recorded run cannot be changed")]
    Recorded,
    /// There is no such breakpoint or watchpoint.
    #[error("there is no breakpoint {number}")]
    NoBreakpoint {
        /// Its number.
        number: u32,
    },
    /// The module has nothing of this name.
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
        /// Some of what it may mean.
        found: String,
    },
    /// No instruction is there.
    #[error("there is no instruction at {offset:#x} of the module")]
    NoInstruction {
        /// The offset in the module.
        offset: u64,
    },
    /// A place or an expression cannot be read.
    #[error("`{text}`: expected {expected}")]
    Syntax {
        /// The unexpected part, or the full text.
        text: String,
        /// The expected form.
        expected: &'static str,
    },
    /// A value cannot be computed.
    #[error("{0}")]
    Value(String),
    /// The value of an expression that is to be watched is always the same.
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
        /// The size of the memory, before the program makes it larger.
        size: u64,
    },
    /// The stack has fewer frames.
    #[error("there is no frame {level}")]
    NoFrame {
        /// Counted from the innermost one.
        level: usize,
    },
    /// The frame's function belongs to another module, or its place is unknown.
    #[error("frame {level} is in another module")]
    OtherModule {
        /// Counted from the innermost one.
        level: usize,
    },
    /// A value of a frame cannot be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A probe cannot be made or switched.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A memory or global cannot be accessed.
    #[error(transparent)]
    Engine(#[from] wasm_jit::Error),
}
