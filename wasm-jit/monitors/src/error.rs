//! [`Error`].

use std::io;
use std::path::PathBuf;

use wasm_jit::probes::ProbeError;

/// The reason why a monitor cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request is not of the form `NAME` or `NAME{key=value,...}`.
    #[error(
        "`{text}` is no monitor: expected NAME or NAME{{key=value,...}}, without spaces around names; a value \
         cannot contain `,` or a single `}}`: in a pattern, `?` matches any character"
    )]
    Syntax {
        /// The request.
        text: String,
    },
    /// There is no such monitor.
    #[error("there is no monitor `{name}`; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The monitor has no such option.
    #[error("the monitor `{monitor}` has no option `{option}`; it has: {known}")]
    UnknownOption {
        /// The monitor.
        monitor: String,
        /// The option.
        option: String,
        /// The options that it has.
        known: String,
    },
    /// The value of an option cannot be read.
    #[error("option `{option}`: `{value}` is not {expected}")]
    Value {
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// The forms that can be read.
        expected: String,
    },
    /// An option has a value that it does not take, or is there more often than it may be.
    #[error("option `{option}` {reason}")]
    Form {
        /// The option.
        option: String,
        /// What is wrong, as the rest of a sentence.
        reason: &'static str,
    },
    /// The monitor has started with other options.
    #[error("the monitor `{name}` has started with other options: {options}")]
    OtherOptions {
        /// The monitor.
        name: String,
        /// The options with which it has started.
        options: String,
    },
    /// The monitor was not started.
    #[error("the monitor `{name}` was not started: `enable {name}` starts it")]
    NotStarted {
        /// The monitor.
        name: String,
    },
    /// The monitor has nothing to observe in this module.
    #[error("{0}")]
    Nothing(String),
    /// A monitor that belongs to another component cannot be started or switched by the session.
    #[error("{name}: {reason}")]
    Other {
        /// The monitor, such as a file.
        name: String,
        /// The reason, which may have several lines.
        reason: String,
    },
    /// A probe cannot be made or switched.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A thread of the monitor cannot be started.
    #[error("the thread of a monitor cannot be started: {source}")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}
