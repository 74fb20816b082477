//! [`Error`].

use std::io;

use super::event::Event;

/// The reason why a program cannot be recorded or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The module uses something that cannot be recorded.
    #[error("cannot be recorded: {what}")]
    Unsupported {
        /// What it is.
        what: String,
    },
    /// What is recorded of the program can be replayed in this engine, but not by a module or a
    /// host in JavaScript.
    #[error("cannot be replayed as a module: {what}")]
    NotGenerated {
        /// What it is.
        what: String,
    },
    /// The trace is damaged or not complete.
    #[error("the trace is damaged at byte {offset}: {what}")]
    Damaged {
        /// Offset of the frame in the decompressed stream.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The trace is of a later version of its format.
    #[error(
        "the trace has version {version} of the format, and the versions up to {known} can be read: use the \
         version of the program that has written it, or record the run again"
    )]
    Version {
        /// The trace's.
        version: u32,
        /// The last one that can be read.
        known: u32,
    },
    /// The trace is of another module.
    #[error("the trace was recorded with another module")]
    OtherModule,
    /// The events do not form a run of the module.
    #[error("event {number} of the trace does not fit the module: {what}{}", of(values))]
    Mismatch {
        /// Number of the event; the first is 0.
        number: u64,
        /// What does not fit.
        what: &'static str,
        /// What the program does, and what it should do.
        values: Option<Box<Difference>>,
    },
    /// The program fails, and did not when it was recorded.
    #[error("the program fails, instead of event {number} of the trace: {source}")]
    Failed {
        /// Number of the event that is next in the trace; the first is 0.
        number: u64,
        /// The program's error, or the one with which something ended its call.
        source: wasm_jit::Error,
    },
    /// A trace in the text format is wrong, or does not fit the program.
    #[error("line {line}: {what}")]
    Text {
        /// The line, from 1 on.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// The run has no calls of the function.
    #[error("function {function} is not called in this run")]
    NotCalled {
        /// Its index.
        function: u32,
    },
    /// The module is not valid.
    #[error("{0}")]
    Module(#[from] wasm_jit::wasmparser::BinaryReaderError),
    /// The trace cannot be read or written.
    #[error("the trace: {0}")]
    Io(#[from] io::Error),
    /// An error of the engine, or of the program.
    #[error(transparent)]
    Engine(#[from] wasm_jit::Error),
}

/// A program does something else than was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it does, as an event.
    pub found: Event,
    /// The event of the trace.
    pub recorded: Event,
}

/// The most characters of an event in a message: a write may have 64 KiB.
const MAX_SHOWN: usize = 200;

fn of(values: &Option<Box<Difference>>) -> String {
    let Some(values) = values else { return String::new() };
    let [found, recorded] = [&values.found, &values.recorded].map(|event| {
        let text = event.to_string();
        match text.floor_char_boundary(MAX_SHOWN) {
            all if all == text.len() => text,
            some => format!("{} ...", &text[..some]),
        }
    });
    format!(": `{found}` instead of `{recorded}`")
}

pub(crate) fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported { what: what.into() }
}

pub(crate) fn not_generated(what: impl Into<String>) -> Error {
    Error::NotGenerated { what: what.into() }
}
