//! Functions that are about to be called for the first time.

use std::fmt;
use std::sync::Arc;

use super::ProbeError;
use crate::code::CodeImage;
use crate::code::probed::enter::{self, Enters};
use crate::module::Module;

/// The reporting of first calls, which ends when this is dropped: see
/// [`Module::watch_first_calls`]. It keeps the module's code alive.
#[must_use = "the watch ends when it is dropped"]
pub struct FirstCallWatch {
    image: Arc<CodeImage>,
    number: u64,
    _watcher: Arc<dyn Enters>,
}

struct Watcher<F>(F);

impl<F: Fn(u32) + Send + Sync> Enters for Watcher<F> {
    fn comes_first(&self) -> bool {
        false
    }

    fn entered(&self, _: &Arc<CodeImage>, function: u32) {
        (self.0)(function);
    }
}

impl Module {
    /// Calls a closure with the index of each function of the module that is called for the first
    /// time, until the result is dropped. This serves to make probes only in functions that run.
    /// Each function is reported once, even if it was called or probed before the watch began.
    ///
    /// The thread that calls the function calls the closure, and executes no instruction of the
    /// function before the closure returns: the probes that the closure makes and activates in this
    /// function observe the call. While the closure runs, other threads wait that are about to call
    /// a function for the first time, or to make probes in one.
    ///
    /// The closure may do what a [`Callback`](super::Callback) may, but it must not make probes in
    /// other modules, nor wait for a thread that makes probes or runs the module. If it panics, the
    /// process aborts. It may be called once more by another thread after the watch has been
    /// dropped. Each function that has not been called yet costs one store when the watch begins,
    /// and another one when it ends.
    ///
    /// # Errors
    /// [`ProbeError::Patch`] if entries of functions cannot be changed.
    ///
    /// # Example
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (func (export \"a\") (call 2)) (func) (func))")?;
    /// let called = Arc::new(Mutex::new(Vec::new()));
    /// let by_watch = called.clone();
    /// let watch = module.watch_first_calls(move |function| by_watch.lock().unwrap().push(function))?;
    /// let mut store = Store::new(&engine, ());
    /// let a = Instance::new(&mut store, &module, &[])?.get_typed_func::<(), ()>(&mut store, "a")?;
    /// a.call(&mut store, ())?;
    /// a.call(&mut store, ())?;
    /// assert_eq!(*called.lock().unwrap(), [0, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_first_calls(
        &self,
        closure: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<FirstCallWatch, ProbeError> {
        let image = self.code().clone();
        let number = enter::new_number();
        let watcher: Arc<dyn Enters> = Arc::new(Watcher(closure));
        image.wait_for_entries(number, Arc::downgrade(&watcher), |_| false)?;
        Ok(FirstCallWatch { image, number, _watcher: watcher })
    }
}

impl Module {
    /// Whether there are instances of the module, in any store. If there are none after a
    /// [watch](Self::watch_first_calls) has begun, none of the module's functions is running, and
    /// the watch misses no call.
    pub fn has_instances(&self) -> bool {
        self.code().counters.has_instances()
    }
}

impl Drop for FirstCallWatch {
    fn drop(&mut self) {
        self.image.stop_waiting(self.number);
    }
}

impl fmt::Debug for FirstCallWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstCallWatch").finish_non_exhaustive()
    }
}
