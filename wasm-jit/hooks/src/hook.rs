//! [`Hook`]: probes that belong together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wasm_jit::probes::{Probe, ProbeError, UnwoundWatch, activate_all, deactivate_all};

/// Events of a module that are reported to a closure, until this is dropped. It keeps the module's
/// code.
///
/// # Consistency
/// The probes of a hook are switched one after the other, while other threads run the program: what
/// they execute meanwhile may be reported in part.
pub struct Hook {
    /// In the order in which they must fire, if several are at one place.
    probes: Vec<Probe>,
    /// Whether frames that are left are reported.
    is_active: Arc<AtomicBool>,
    _watch: Option<UnwoundWatch>,
}

impl Hook {
    pub(crate) fn new(probes: Vec<Probe>) -> Result<Self, ProbeError> {
        Self::with_watch(probes, Arc::default(), None)
    }

    /// A hook, active; `is_active` says whether it is.
    pub(crate) fn with_watch(
        probes: Vec<Probe>,
        is_active: Arc<AtomicBool>,
        watch: Option<UnwoundWatch>,
    ) -> Result<Self, ProbeError> {
        let hook = Self { probes, is_active, _watch: watch };
        hook.activate()?;
        Ok(hook)
    }

    /// Switches it on; does nothing if it is.
    ///
    /// # Errors
    /// Those of [`Probe::activate`]. It is off then.
    pub fn activate(&self) -> Result<(), ProbeError> {
        self.is_active.store(true, Ordering::Relaxed);
        let on: Result<(), ProbeError> = activate_all(&self.probes).into_iter().collect();
        if on.is_err() {
            let _ = self.deactivate();
        }
        on
    }

    /// Switches it off; does nothing if it is. Functions without other active probes return to
    /// their original code.
    ///
    /// # Errors
    /// Those of [`Probe::deactivate`]. Parts of it may still be on.
    pub fn deactivate(&self) -> Result<(), ProbeError> {
        self.is_active.store(false, Ordering::Relaxed);
        deactivate_all(&self.probes).into_iter().collect()
    }

    /// How many probes it consists of.
    pub fn probes(&self) -> usize {
        self.probes.len()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("probes", &self.probes.len()).finish_non_exhaustive()
    }
}
