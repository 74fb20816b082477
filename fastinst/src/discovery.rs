//! Announcement of probes to callbacks: each callback is called once for each probe, regardless of
//! which came first.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use crate::error::Error;
use crate::probe::ProbeMetadata;

pub(crate) type Callback = Box<dyn Fn(&ProbeMetadata<'_>) + Send>;

/// The callbacks. Locked while probes are registered and announced; forks wait for the lock.
static DISCOVERY: Mutex<Vec<Callback>> = Mutex::new(Vec::new());

thread_local! {
    static DISCOVERING: Cell<bool> = const { Cell::new(false) };
}

/// The exclusive right to announce probes. Only one thread has it at a time, so calls to callbacks
/// do not overlap.
///
/// Providers receive it as an argument, or [begin](Self::begin) a discovery themselves.
pub struct Discovery {
    callbacks: MutexGuard<'static, Vec<Callback>>,
}

impl Discovery {
    /// Acquires the right; blocks while another thread has it.
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

    /// Calls every callback with the metadata of a probe, which have just become complete.
    pub(crate) fn announce(&self, metadata: &ProbeMetadata<'_>) {
        self.callbacks.iter().for_each(|callback| callback(metadata));
    }

    /// Adds a callback, which has been called for all earlier probes.
    pub(crate) fn add(&mut self, callback: Callback) {
        self.callbacks.push(callback);
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        DISCOVERING.set(false);
    }
}
