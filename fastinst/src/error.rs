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
        /// The id that was passed.
        id: ProbeId,
    },

    /// The function of the probe is not known until the site has been executed once.
    #[error("probe {} is not discovered yet: its site has not been executed; wait for the callback", .id.0)]
    Undiscovered {
        /// The probe's id.
        id: ProbeId,
    },

    /// The library that contains the probe was unloaded.
    #[error("the library that holds probe {} was unloaded; the id is valid again if it is loaded at the same address", .id.0)]
    Unloaded {
        /// The probe's id.
        id: ProbeId,
    },

    /// The group of the probe was dropped: see [`Group`](crate::group::Group).
    #[error("the module that held probe {} was dropped; forget the id", .id.0)]
    Retired {
        /// The probe's id.
        id: ProbeId,
    },

    /// There would be more probes than a 32-bit id, or the tables, can represent.
    #[error("more than {limit} probes; instrument fewer functions")]
    TooManyProbes {
        /// The maximum number of probes.
        limit: usize,
    },

    /// There would be more providers than the table can hold.
    #[error("more than {limit} providers; register one for each kind of probe")]
    TooManyProviders {
        /// The maximum number of providers.
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
        /// The path of the file.
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },

    /// The probe's provider refuses.
    #[error("the provider of the probe refuses: {reason}")]
    Provider {
        /// The provider's reason.
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
