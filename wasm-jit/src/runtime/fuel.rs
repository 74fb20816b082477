//! A store's fuel: how much its programs may still execute, if the engine's code consumes fuel
//! ([`Config::consume_fuel`](crate::Config::consume_fuel)). A new store has none.
//!
//! Compiled code counts down a signed number. Fuel beyond its range is kept in reserve; the range
//! alone lasts for centuries.

use super::caller::Caller;
use super::store::{AsContext, AsContextMut, Store, StoreContext, StoreContextMut, StoreOpaque};
use crate::error::Error;

impl StoreOpaque {
    pub(crate) fn fuel(&self) -> Result<u64, Error> {
        self.check_consumes_fuel()?;
        // SAFETY: the area lives as long as the store; compiled code of the store does not run
        // while the store is borrowed here.
        let left = unsafe { (*self.vm()).fuel };
        Ok(self.fuel_reserve + u64::try_from(left).unwrap_or(0))
    }

    fn set_fuel(&mut self, fuel: u64) -> Result<(), Error> {
        self.check_consumes_fuel()?;
        let left = i64::try_from(fuel).unwrap_or(i64::MAX);
        self.fuel_reserve = fuel - left as u64;
        // SAFETY: as in `fuel`.
        unsafe { (*self.vm()).fuel = left };
        Ok(())
    }

    fn check_consumes_fuel(&self) -> Result<(), Error> {
        if self.engine.code_settings().uses_fuel { Ok(()) } else { Err(Error::NoFuel) }
    }
}

impl<T: 'static> StoreContext<'_, T> {
    /// See [`Store::get_fuel`].
    ///
    /// # Errors
    /// [`Error::NoFuel`].
    pub fn get_fuel(&self) -> Result<u64, Error> {
        self.0.opaque.fuel()
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// See [`Store::set_fuel`].
    ///
    /// # Errors
    /// [`Error::NoFuel`].
    pub fn set_fuel(&mut self, fuel: u64) -> Result<(), Error> {
        self.opaque().set_fuel(fuel)
    }
}

impl<T: 'static> Store<T> {
    /// The remaining fuel; 0 after a trap for lack of fuel.
    ///
    /// # Errors
    /// [`Error::NoFuel`] if programs of this engine do not consume fuel.
    pub fn get_fuel(&self) -> Result<u64, Error> {
        self.as_context().get_fuel()
    }

    /// Replaces the remaining fuel. A program that has trapped for lack of fuel does not continue;
    /// other functions can be called.
    ///
    /// # Errors
    /// [`Error::NoFuel`] if programs of this engine do not consume fuel.
    pub fn set_fuel(&mut self, fuel: u64) -> Result<(), Error> {
        self.as_context_mut().set_fuel(fuel)
    }
}

impl<T: 'static> Caller<'_, T> {
    /// See [`Store::get_fuel`]. The instructions up to the call to this host function have been
    /// paid for.
    ///
    /// # Errors
    /// [`Error::NoFuel`].
    pub fn get_fuel(&self) -> Result<u64, Error> {
        self.as_context().get_fuel()
    }

    /// See [`Store::set_fuel`]. A host function can charge for its work in this way.
    ///
    /// # Errors
    /// [`Error::NoFuel`].
    pub fn set_fuel(&mut self, fuel: u64) -> Result<(), Error> {
        self.as_context_mut().set_fuel(fuel)
    }
}
