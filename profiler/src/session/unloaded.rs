//! Calls whose functions, or whose number, will never be known.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt;

use crate::estimate::strata::Strata;

/// Calls of functions in libraries that were unloaded before their probes were made, and those in a
/// forked child before it had its own text.
pub(crate) struct MissedCalls {
    /// The number of the former.
    calls: u64,
    /// The paths of the objects that are never unloaded, if there are such calls.
    lasting: HashSet<Vec<u8>>,
    /// Whether there may be any number of the latter.
    before_start: bool,
}

impl MissedCalls {
    /// None.
    pub(crate) fn none() -> Self {
        Self::of(0, false)
    }

    pub(super) fn of(calls: u64, before_start: bool) -> Self {
        let objects = (calls > 0).then(fastinst::internal::loaded::objects).flatten();
        let lasting = objects.into_iter().flatten().filter(|object| object.stays);
        let lasting = lasting.map(|object| object.path.into_os_string().into_vec()).collect();
        Self { calls, lasting, before_start }
    }

    /// Adds the calls that may be of a function of this object.
    pub(crate) fn add_to(&self, strata: &mut Strata, path: &CStr) {
        if self.calls > 0 && !self.lasting.contains(path.to_bytes()) {
            strata.missed(self.calls);
        }
        if self.before_start {
            strata.counted_at_least(0);
        }
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let unloaded = (self.calls > 0).then(|| {
            format!(
                "{} calls of functions in libraries that were unloaded before their probes were made are missing",
                self.calls
            )
        });
        let before = self
            .before_start
            .then(|| "calls that a forked child made before its first tick are missing".to_owned());
        unloaded.into_iter().chain(before)
    }
}
