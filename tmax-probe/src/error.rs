//! Errors of a run.

use std::io;
use std::path::PathBuf;

/// The reason why `tmax-probe` has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory for the site was refused.
    #[error("no executable memory for the trials: {source}; run it where memory can be made executable")]
    Memory {
        /// The system's error.
        source: region::Error,
    },

    /// wordpatch refused the site's writable view, or membarrier.
    #[error(transparent)]
    Wordpatch(#[from] wordpatch::Error),

    /// The process of a trial could not be started.
    #[error("the trial's own process could not be started: {source}; allow the command to start itself")]
    Child {
        /// The system's error.
        source: io::Error,
    },

    /// The process of a trial ended without a result.
    #[error("the trial's own process failed: {reason}")]
    Trial {
        /// How it ended, or what it printed.
        reason: String,
    },

    /// The process of a trial got no processor time for a long time.
    #[error("a trial got no processor for {seconds} s: try again on a machine that is less busy")]
    Starved {
        /// The time limit, in seconds.
        seconds: u64,
    },

    /// A measured system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system call's error.
        source: io::Error,
    },

    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// A file has invalid contents.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },

    /// A plot could not be drawn.
    #[error("{}: the plot could not be drawn: {reason}", .path.display())]
    Plot {
        /// The path of the file.
        path: PathBuf,
        /// The drawing library's message.
        reason: String,
    },

    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}
