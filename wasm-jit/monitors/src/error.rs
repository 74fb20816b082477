//! [`Error`]: the reasons why a monitor cannot be used.

use std::io;
use std::path::PathBuf;

use wasm_jit::probes::ProbeError;

/// The reason why a monitor cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request does not have the form `NAME` or `NAME{key=value,...}`.
    #[error(
        "`{text}` is no monitor: expected NAME or NAME{{key=value,...}}, without spaces around names; a value \
         cannot contain `,` or a single `}}`: in a pattern, `?` matches any character"
    )]
    Syntax {
        /// The request as given.
        text: String,
    },
    /// No monitor has this name.
    #[error("there is no monitor `{name}`; there are: {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of the known monitors.
        known: String,
    },
    /// The monitor does not have this option.
    #[error("the monitor `{monitor}` has no option `{option}`; it has: {known}")]
    UnknownOption {
        /// The monitor's name.
        monitor: String,
        /// The requested option.
        option: String,
        /// The options of the monitor.
        known: String,
    },
    /// The value of an option cannot be parsed.
    #[error("option `{option}`: `{value}` is not {expected}")]
    Value {
        /// The option's name.
        option: String,
        /// The value as given.
        value: String,
        /// The accepted forms.
        expected: String,
    },
    /// An option has a value although it takes none, or is given more often than allowed.
    #[error("option `{option}` {reason}")]
    Form {
        /// The option's name.
        option: String,
        /// The problem, as the rest of a sentence.
        reason: &'static str,
    },
    /// A monitor is requested twice at the same time, with different options.
    #[error(
        "the monitor `{name}` is requested twice, as `{first}` and as `{second}`: a program has one monitor of \
         each name; run the program once for each of them"
    )]
    Twice {
        /// The monitor's name.
        name: String,
        /// The first request.
        first: String,
        /// The second request.
        second: String,
    },
    /// The monitor is on with other options.
    #[error(
        "the monitor `{name}` is on with other options, {options}: `disable {name}` first; enabling it with \
         other options discards its observations"
    )]
    OtherOptions {
        /// The monitor's name.
        name: String,
        /// The options with which the monitor was started.
        options: String,
    },
    /// A process has one such monitor at a time, and there is one.
    #[error("the monitor `{name}`: {reason}")]
    Exclusive {
        /// The monitor's name.
        name: &'static str,
        /// What there is already.
        reason: String,
    },
    /// The monitor was not started.
    #[error("the monitor `{name}` was not started: `enable {name}` starts it")]
    NotStarted {
        /// The monitor's name.
        name: String,
    },
    /// The monitor, with this name, has nothing to observe in this module.
    #[error("{0}")]
    Nothing(String),
    /// The monitor belongs to another component; the session cannot start or toggle it.
    #[error("{name}: {reason}")]
    Other {
        /// The monitor's name, such as a file name.
        name: String,
        /// The reason, which may have several lines.
        reason: String,
    },
    /// A probe cannot be made or toggled.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A thread of the monitor cannot be started.
    #[error("the thread of a monitor cannot be started: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
    /// Lines that a monitor writes while the program runs are lost.
    #[error("{}: lines are lost: {source}", path.display())]
    Lost {
        /// The path of the file, or `standard error`.
        path: PathBuf,
        /// The system's error when a line was first lost.
        source: io::Error,
    },
    /// Several errors, which are independent of each other.
    #[error("{}", lines(errors))]
    Several {
        /// The errors: two at least.
        errors: Vec<Error>,
    },
    /// Several files of a report cannot be written.
    #[error("{first}; {others} more {} of the report cannot be written either", files(*others))]
    Files {
        /// The error of the first file.
        first: Box<Error>,
        /// The number of other files.
        others: usize,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The path of the file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// `Ok` without errors; otherwise the error that stands for all of these.
    pub(crate) fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several { errors }),
        }
    }

    /// The independent errors: those in [`Error::Several`], or else this one.
    pub fn each(&self) -> &[Self] {
        match self {
            Self::Several { errors } => errors,
            error => std::slice::from_ref(error),
        }
    }
}

fn lines(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("\n")
}

fn files(count: usize) -> &'static str {
    if count == 1 { "file" } else { "files" }
}
