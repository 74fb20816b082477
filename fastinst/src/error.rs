//! Why a probe was not found or not switched.

use std::path::PathBuf;

use crate::ProbeId;

/// Why a probe was not registered, activated or deactivated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No probe has this id.
    #[error("there is no probe {}", .id.0)]
    UnknownProbe {
        /// The id that was given.
        id: ProbeId,
    },

    /// The probe's function is not known before the site has been executed once.
    #[error("probe {} is not discovered yet: its site has not been executed", .id.0)]
    Undiscovered {
        /// The probe.
        id: ProbeId,
    },

    /// The library that holds the probe was unloaded.
    #[error("the library that holds probe {} was unloaded", .id.0)]
    Unloaded {
        /// The probe.
        id: ProbeId,
    },

    /// The group that the probe was in was dropped: see [`Group`](crate::group::Group).
    #[error("the module that held probe {} is gone", .id.0)]
    Retired {
        /// The probe.
        id: ProbeId,
    },

    /// More probes than a 32-bit id, or the tables, can count.
    #[error("more than {limit} probes")]
    TooManyProbes {
        /// How many there can be.
        limit: usize,
    },

    /// More providers than there is room for.
    #[error("more than {limit} providers")]
    TooManyProviders {
        /// How many there can be.
        limit: usize,
    },

    /// A discovery callback tried to register another callback, or to discover probes.
    #[error("a discovery callback must not register callbacks or discover probes")]
    CalledFromCallback,

    /// The file behind a loaded object could not be read or understood.
    #[error("{}: {reason}; its probes are not available", .path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// callpatch refused.
    #[error(transparent)]
    Call(#[from] callpatch::Error),

    /// wordpatch refused.
    #[error(transparent)]
    Text(#[from] wordpatch::Error),

    /// The service thread could not be started.
    #[error("the service thread could not be started: {source}")]
    Thread {
        /// The system call's error.
        source: std::io::Error,
    },
}
