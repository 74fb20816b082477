//! [`Limits`] of programs that run in order to derive a trace from another one.

use std::time::Duration;

use wasm_jit::{Store, StoreLimits, Timeout};

use super::error::Error;

/// Limits of a program that is run once more: see [`reduce_within`](super::reduce_within),
/// [`slice_within`](super::slice_within) and [`import_within`](super::import_within). By default,
/// nothing is limited. The stack is limited by [`wasm_jit::Config::max_wasm_stack`] and the
/// thread's stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Amount of fuel, for an engine that counts it; the program fails when it has consumed more.
    pub fuel: Option<u64>,
    /// Maximum size of the garbage-collected heap, in bytes.
    pub heap: Option<u64>,
    /// Time after which the program is interrupted.
    pub timeout: Option<Duration>,
}

impl Limits {
    /// Applies the limits to a store. Dropping the result ends the timeout.
    ///
    /// # Errors
    /// [`Error::Engine`] if the engine does not count fuel, [`Error::Io`] if there is no thread
    /// for the timeout.
    pub(crate) fn apply<T>(&self, store: &mut Store<T>) -> Result<Option<Timeout>, Error> {
        if let Some(fuel) = self.fuel {
            store.set_fuel(fuel)?;
        }
        if let Some(heap) = self.heap {
            store.set_limits(StoreLimits::new().heap_size(heap).exceptions_size(heap));
        }
        Ok(self.timeout.map(|time| store.interrupt_handle().interrupt_after(time)).transpose()?)
    }
}
