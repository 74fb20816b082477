//! The error type.

use std::path::PathBuf;

use crate::ProbeId;

/// The reason why a probe was not registered, activated or deactivated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No probe has this id.
    #[error("there is no probe {}; callbacks for probes report the valid ids", .id.0)]
    UnknownProbe {
        /// The id in question.
        id: ProbeId,
    },

    /// The function of the probe is not known before the site has been executed once.
    #[error("probe {} is not discovered yet: its site has not been executed; wait for the callback", .id.0)]
    Undiscovered {
        /// The probe.
        id: ProbeId,
    },

    /// The library that contains the probe was unloaded.
    #[error("the library that holds probe {} was unloaded; the id is valid again if it is loaded at the same address", .id.0)]
    Unloaded {
        /// The probe.
        id: ProbeId,
    },

    /// The group of the probe was dropped: see [`Group`](crate::group::Group).
    #[error("the module that held probe {} was dropped; forget the id", .id.0)]
    Retired {
        /// The probe.
        id: ProbeId,
    },

    /// There are more probes than a 32-bit id, or the tables, can represent.
    #[error("more than {limit} probes; instrument fewer functions")]
    TooManyProbes {
        /// The maximum number.
        limit: usize,
    },

    /// There are more providers than the table can hold.
    #[error("more than {limit} providers; register one for each kind of probe")]
    TooManyProviders {
        /// The maximum number.
        limit: usize,
    },

    /// A discovery callback tried to register another callback, or to discover probes.
    #[error(
        "a discovery callback must not register callbacks or discover probes; do it after the callback has returned"
    )]
    CalledFromCallback,

    /// The file of a loaded object could not be read or parsed.
    #[error("{}: {reason}; its probes are not available", .path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        reason: String,
    },

    /// The provider of the probe refuses, for a reason of its own.
    #[error("the provider of the probe refuses: {reason}")]
    Provider {
        /// The reason.
        reason: &'static str,
    },

    /// An error of callpatch.
    #[error(transparent)]
    Call(#[from] callpatch::Error),

    /// An error of wordpatch.
    #[error(transparent)]
    Text(#[from] wordpatch::Error),

    /// The service thread could not be started.
    #[error("the service thread could not be started: {source}; allow the process one more thread")]
    Thread {
        /// The system call's error.
        source: std::io::Error,
    },
}
