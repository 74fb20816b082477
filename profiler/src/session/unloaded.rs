//! Calls that were counted and whose functions will never be known.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt;

/// Calls of functions in libraries that were unloaded before their probes were made.
pub(crate) struct MissedCalls {
    calls: u64,
    /// The paths of the objects that are never unloaded, if there are such calls.
    lasting: HashSet<Vec<u8>>,
}

impl MissedCalls {
    /// None.
    pub(crate) fn none() -> Self {
        Self::of_unloaded(0)
    }

    pub(super) fn of_unloaded(calls: u64) -> Self {
        let objects = if calls > 0 { fastinst::loaded::objects() } else { Vec::new() };
        let lasting = objects.into_iter().filter(|object| object.stays);
        Self { calls, lasting: lasting.map(|object| object.path.into_os_string().into_vec()).collect() }
    }

    /// The number of these calls that may be of a function of this object.
    pub(crate) fn in_object(&self, path: &CStr) -> u64 {
        if self.calls == 0 || self.lasting.contains(path.to_bytes()) { 0 } else { self.calls }
    }

    pub(super) fn note(&self) -> Option<String> {
        (self.calls > 0).then(|| {
            format!(
                "{} calls of functions in libraries that were unloaded before their probes were made are missing",
                self.calls
            )
        })
    }
}
