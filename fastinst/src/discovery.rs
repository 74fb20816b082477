//! Announcement of probes to callbacks: each callback is called once for each probe, regardless of
//! which came first.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use crate::error::Error;
use crate::group;
use crate::probe::ProbeMetadata;
use crate::registry::{PROBES, Probe};

type Callback = Box<dyn Fn(&ProbeMetadata<'_>) + Send>;

/// The callbacks. Locked while probes are registered and announced; forks wait for the lock.
static DISCOVERY: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

thread_local! {
    static DISCOVERING: Cell<bool> = const { Cell::new(false) };
}

/// The exclusive right to announce probes. Only one thread has it at a time, so calls of callbacks
/// do not overlap.
///
/// Providers receive it as an argument, or [begin](Self::begin) a discovery themselves.
pub struct Discovery {
    callbacks: MutexGuard<'static, Vec<Callback>>,
}

impl Discovery {
    /// Acquires the right, and blocks while another thread has it.
    ///
    /// # Errors
    /// [`Error::CalledFromCallback`]: this thread already has the right and is running a callback.
    pub fn begin() -> Result<Self, Error> {
        if DISCOVERING.get() {
            return Err(Error::CalledFromCallback);
        }
        let callbacks = DISCOVERY.lock().unwrap_or_else(|e| e.into_inner());
        DISCOVERING.set(true);
        Ok(Self { callbacks })
    }

    /// Announces a probe whose metadata have just become complete to every callback.
    pub(crate) fn announce(&self, probe: &Probe) {
        if let Some(metadata) = probe.metadata() {
            self.tell(&metadata);
        }
    }

    /// Calls every callback with these metadata.
    pub(crate) fn tell(&self, metadata: &ProbeMetadata<'_>) {
        self.callbacks.iter().for_each(|callback| callback(metadata));
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        DISCOVERING.set(false);
    }
}

/// Registers a callback. It is called for every known probe before this function returns, on this
/// thread, and for every probe that is discovered later, on the thread that discovers it. A
/// callback may activate and deactivate probes; it must not register callbacks.
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
    fn each_callback_is_called_once_for_each_earlier_and_later_probe() {
        let _alone = alone();
        let known = probe();
        known.name.store(name(), Ordering::Release);
        let nameless = probe();
        let reported: [Arc<Mutex<Vec<ProbeId>>>; 2] = Default::default();
        for list in &reported {
            let list = Arc::clone(list);
            register_callback(move |probe| list.lock().unwrap().push(probe.id)).unwrap();
        }
        let times = |number: usize, probe: &Probe| {
            reported[number].lock().unwrap().iter().filter(|id| **id == probe.id()).count()
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
    fn registration_fails_inside_a_callback_and_succeeds_after_it() {
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
