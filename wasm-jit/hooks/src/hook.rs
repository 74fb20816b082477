//! [`Hook`]: the probes that report one kind of event.

use std::fmt;

use wasm_jit::probes::{Probe, ProbeError, UnwoundWatch, activate_all, deactivate_all};

use crate::period::Period;

/// The reporting of events of a module to a closure, which ends when this is dropped. It keeps the
/// module's code alive.
///
/// # Consistency
/// The probes of a hook are switched one after the other, while other threads run the program: what
/// they execute during the switch may be reported in part.
pub struct Hook {
    /// In the order in which probes of one place must fire.
    probes: Vec<Probe>,
    period: Period,
    _watch: Option<UnwoundWatch>,
}

impl Hook {
    pub(crate) fn new(probes: Vec<Probe>) -> Result<Self, ProbeError> {
        Self::with_period(probes, Period::default(), None)
    }

    /// Makes an active hook, for which `period` is known to its closures.
    pub(crate) fn with_period(
        probes: Vec<Probe>,
        period: Period,
        watch: Option<UnwoundWatch>,
    ) -> Result<Self, ProbeError> {
        let hook = Self { probes, period, _watch: watch };
        hook.activate()?;
        Ok(hook)
    }

    /// Switches the hook on; does nothing if it is on.
    ///
    /// # Errors
    /// As [`Probe::activate`]. The hook is then off.
    pub fn activate(&self) -> Result<(), ProbeError> {
        self.period.begin();
        let on: Result<(), ProbeError> = activate_all(&self.probes).into_iter().collect();
        if on.is_err() {
            let _ = self.deactivate();
        }
        on
    }

    /// Switches the hook off; does nothing if it is off. Functions without other active probes
    /// return to their original code.
    ///
    /// # Errors
    /// As [`Probe::deactivate`]. Some of the hook's probes may still be on.
    pub fn deactivate(&self) -> Result<(), ProbeError> {
        self.period.end();
        deactivate_all(&self.probes).into_iter().collect()
    }

    /// The number of the hook's probes.
    pub fn probes(&self) -> usize {
        self.probes.len()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("probes", &self.probes.len()).finish_non_exhaustive()
    }
}
