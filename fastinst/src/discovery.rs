//! Telling callbacks about probes: each callback once for each probe, whichever came first.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use crate::error::Error;
use crate::group;
use crate::probe::ProbeMetadata;
use crate::registry::{PROBES, Probe};

type Callback = Box<dyn Fn(&ProbeMetadata<'_>) + Send>;

/// What is held while probes are registered and callbacks told. Forking waits for it.
static DISCOVERY: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

thread_local! {
    static DISCOVERING: Cell<bool> = const { Cell::new(false) };
}

/// The right to announce probes. One thread has it at a time, so calls of callbacks do not overlap.
///
/// Providers are passed one when they are called, or [begin](Self::begin) a discovery of their own.
pub struct Discovery {
    callbacks: MutexGuard<'static, Vec<Callback>>,
}

impl Discovery {
    /// Waits for the right.
    ///
    /// # Errors
    /// [`Error::CalledFromCallback`]: a callback runs while this very thread has the right.
    pub fn begin() -> Result<Self, Error> {
        if DISCOVERING.get() {
            return Err(Error::CalledFromCallback);
        }
        let callbacks = DISCOVERY.lock().unwrap_or_else(|e| e.into_inner());
        DISCOVERING.set(true);
        Ok(Self { callbacks })
    }

    /// Tells every callback about a probe whose metadata has just become complete.
    pub(crate) fn announce(&self, probe: &Probe) {
        if let Some(metadata) = probe.metadata() {
            self.tell(&metadata);
        }
    }

    /// Calls every callback.
    pub(crate) fn tell(&self, metadata: &ProbeMetadata<'_>) {
        self.callbacks.iter().for_each(|callback| callback(metadata));
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        DISCOVERING.set(false);
    }
}

/// Has `callback` called for every probe that is known, now and on this thread, and for every probe
/// that is discovered later, on the thread that discovers it. A callback may activate and
/// deactivate probes; it must not register callbacks.
///
/// Blocks while another thread discovers probes.
///
/// # Errors
/// [`Error::CalledFromCallback`].
pub fn register_callback(callback: impl Fn(&ProbeMetadata<'_>) + Send + 'static) -> Result<(), Error> {
    let mut discovery = Discovery::begin()?;
    PROBES.iter().filter_map(Probe::metadata).for_each(|metadata| callback(&metadata));
    group::for_each_announced(&callback);
    discovery.callbacks.push(Box::new(callback));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::ProbeId;
    use crate::probe_in_tests::{alone, name, probe};

    #[test]
    fn every_callback_is_called_once_for_each_probe_whichever_came_first() {
        let _alone = alone();
        let known = probe();
        known.name.store(name(), Ordering::Release);
        let nameless = probe();
        let told: [Arc<Mutex<Vec<ProbeId>>>; 2] = Default::default();
        for list in &told {
            let list = Arc::clone(list);
            register_callback(move |probe| list.lock().unwrap().push(probe.id)).unwrap();
        }
        let times = |number: usize, probe: &Probe| {
            told[number].lock().unwrap().iter().filter(|id| **id == probe.id()).count()
        };
        for number in [0, 1] {
            assert_eq!((times(number, known), times(number, nameless)), (1, 0));
        }
        let discovery = Discovery::begin().unwrap();
        discovery.announce(nameless);
        nameless.name.store(name(), Ordering::Release);
        discovery.announce(nameless);
        drop(discovery);
        for number in [0, 1] {
            assert_eq!((times(number, known), times(number, nameless)), (1, 1));
        }
    }

    #[test]
    fn a_callback_cannot_register_another_and_the_next_registration_can() {
        let _alone = alone();
        probe().name.store(name(), Ordering::Release);
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        register_callback(move |_| {
            if matches!(register_callback(|_| {}), Err(Error::CalledFromCallback)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_ne!(refused.load(Ordering::Relaxed), 0);
        register_callback(|_| {}).unwrap();
    }
}
