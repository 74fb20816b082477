//! [`Limits`] of programs that run in order to make a trace from another one.

use std::time::Duration;

use wasm_jit::{Store, StoreLimits, Timeout};

use super::error::Error;

/// What a program may use while it runs once more: see [`reduce_within`](super::reduce_within),
/// [`slice_within`](super::slice_within) and [`import_within`](super::import_within). Without
/// limits by default. Its stack is limited by [`wasm_jit::Config::max_wasm_stack`] and that of the
/// thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Units of fuel, of an engine that counts them; with more, the program fails.
    pub fuel: Option<u64>,
    /// Bytes of the garbage-collected heap.
    pub heap: Option<u64>,
    /// Time until the program is interrupted.
    pub timeout: Option<Duration>,
}

impl Limits {
    /// Limits a store. The time ends with what is returned.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine does not count fuel, [`Error::Io`] if there is no thread
    /// for the timeout.
    pub(crate) fn apply<T>(&self, store: &mut Store<T>) -> Result<Option<Timeout>, Error> {
        if let Some(fuel) = self.fuel {
            store.set_fuel(fuel)?;
        }
        if let Some(heap) = self.heap {
            store.set_limits(StoreLimits::new().heap_size(heap));
        }
        Ok(self.timeout.map(|time| store.interrupt_handle().interrupt_after(time)).transpose()?)
    }
}
