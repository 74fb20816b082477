//! The registered providers, and calls of all of them.

use std::time::Instant;

use fastinst_sigsafe::Segments;

use super::{EarlyCalls, Extent, KnownFunction, Provider};
use crate::discovery::Discovery;
use crate::error::Error;

static PROVIDERS: Segments<&'static dyn Provider, 8, 8> = Segments::new();

/// Registers a provider. Does nothing if one of the same name is already registered. Blocks while
/// another thread discovers probes.
///
/// # Errors
/// [`Error::TooManyProviders`]; [`Error::CalledFromCallback`].
pub fn register(provider: &'static dyn Provider) -> Result<(), Error> {
    // Registrations exclude each other.
    let _discovery = Discovery::begin()?;
    if PROVIDERS.iter().any(|registered| registered.name() == provider.name()) {
        return Ok(());
    }
    let limit = Segments::<&dyn Provider, 8, 8>::LIMIT;
    PROVIDERS.push_with(|_| provider).map(drop).ok_or(Error::TooManyProviders { limit })
}

/// Makes all registered providers search for sites, and blocks until they have finished. May be
/// called again, for sites that have appeared since.
///
/// # Errors
/// [`Error::CalledFromCallback`]. Objects that cannot be read are skipped, and listed by [`notes`].
pub fn begin(extent: Extent) -> Result<(), Error> {
    let discovery = Discovery::begin()?;
    PROVIDERS.iter().for_each(|provider| provider.begin(&discovery, extent));
    Ok(())
}

/// Calls [`Provider::discover`] of every provider. Returns the earliest time at which to call it
/// again.
pub(crate) fn discover(discovery: &Discovery) -> Option<Instant> {
    PROVIDERS.iter().filter_map(|provider| provider.discover(discovery)).min()
}

/// Calls [`Provider::service_starts`] of every provider.
pub(crate) fn service_starts() {
    PROVIDERS.iter().for_each(|provider| provider.service_starts());
}

/// Whether any provider knows code that may contain sites, whether these are probes yet or not: a
/// process without such code has nothing to observe. Must not be called from callbacks.
pub fn has_code() -> bool {
    PROVIDERS.iter().any(|provider| provider.has_code())
}

/// The calls that could not be made probes, from all providers: one line for each reason and
/// object. Allocates, and may block while another thread discovers probes: must not be called from
/// signal handlers or callbacks.
pub fn notes() -> Vec<String> {
    PROVIDERS.iter().flat_map(|provider| provider.notes()).collect()
}

/// The memory of all providers in bytes: tables, names, stubs, indices. Callbacks may call this.
pub fn memory_bytes() -> usize {
    PROVIDERS.iter().map(|provider| provider.memory_bytes()).sum()
}

/// Calls [`Provider::take_early_calls`] of every provider; returns the sum. Callbacks may call
/// this.
pub fn take_early_calls(mut take: impl FnMut(usize, EarlyCalls)) -> u64 {
    PROVIDERS.iter().map(|provider| provider.take_early_calls(&mut take)).sum()
}

/// Whether [`Provider::has_generated`] says so for one of the providers. Callbacks may call this.
#[must_use]
pub fn has_generated(address: usize) -> bool {
    PROVIDERS.iter().any(|provider| provider.has_generated(address))
}

/// Calls [`Provider::function_at`] of the providers, and returns the first result. Must not be
/// called from callbacks.
pub fn function_at(address: usize) -> Option<KnownFunction> {
    PROVIDERS.iter().find_map(|provider| provider.function_at(address))
}
