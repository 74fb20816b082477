//! [`Error`]: the reasons why a program cannot be recorded or replayed.

use std::io;

use super::event::Event;

/// The reason why a program cannot be recorded or replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The module uses a feature that cannot be recorded.
    #[error("cannot be recorded: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// The recorded run can be replayed in this engine, but not by a generated module or a
    /// JavaScript host.
    #[error("cannot be replayed as a module: {what}")]
    NotGenerated {
        /// The feature that prevents it.
        what: String,
    },
    /// The trace in the text format belongs to a program for which such a trace cannot be imported.
    #[error("its traces cannot be imported: {what}")]
    NotImported {
        /// The feature that prevents it.
        what: String,
    },
    /// The trace is damaged or incomplete.
    #[error("the trace is damaged at byte {offset}: {what}")]
    Damaged {
        /// The offset of the frame in the decompressed stream.
        offset: u64,
        /// The problem.
        what: &'static str,
    },
    /// The trace has a later version of the format.
    #[error(
        "the trace has version {version} of the format, and the versions up to {known} can be read: use the \
         version of the program that has written it, or record the run again"
    )]
    Version {
        /// The version of the trace.
        version: u32,
        /// The latest version that can be read.
        known: u32,
    },
    /// The trace belongs to another module.
    #[error("the trace was recorded with another module")]
    OtherModule,
    /// The events do not form a run of the module.
    #[error("event {number} of the trace does not fit the module: {what}{}", of(values))]
    Mismatch {
        /// The number of the event, counted from 0.
        number: u64,
        /// The problem.
        what: &'static str,
        /// What the program did, and what it did when it was recorded.
        values: Option<Box<Difference>>,
    },
    /// The program failed, but did not fail when it was recorded.
    #[error("the program fails, instead of event {number} of the trace: {source}")]
    Failed {
        /// The number of the next event in the trace, counted from 0.
        number: u64,
        /// The error of the program, or the error with which its call was ended.
        source: wasm_jit::Error,
    },
    /// A trace in the text format is malformed, or does not fit the program.
    #[error("line {line}: {what}")]
    Text {
        /// The line number, counted from 1.
        line: u64,
        /// The problem in this line.
        what: String,
    },
    /// The run has no calls to the function.
    #[error("`{function}` is not called in this run")]
    NotCalled {
        /// The name of the function.
        function: String,
    },
    /// The run has calls to the function, but fewer than were to be skipped.
    #[error("nothing was recorded: the number of calls to `{function}` in this run is {calls}")]
    FewerCalls {
        /// The name of the function.
        function: String,
        /// The number of calls.
        calls: u64,
    },
    /// The run has no calls.
    #[error("nothing was recorded: no function was called")]
    NothingCalled,
    /// The module is not valid.
    #[error("{0}")]
    Module(#[from] wasm_jit::wasmparser::BinaryReaderError),
    /// The trace cannot be read or written.
    #[error("the trace: {0}")]
    Io(#[from] io::Error),
    /// An error of the engine or of the program.
    #[error(transparent)]
    Engine(#[from] wasm_jit::Error),
}

/// A difference between a program's behaviour and the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What the program did, as an event.
    pub found: Event,
    /// The event in the trace.
    pub recorded: Event,
}

/// Maximum number of characters of an event in a message: a write may have 64 KiB.
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
