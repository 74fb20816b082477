//! Providers: the sources of probes.
//!
//! A provider determines where sites are, what they look like and when they fire. Ids, callbacks
//! and the functions that switch a probe are the same for all providers. There are two kinds of
//! probes:
//!
//! * Permanent probes, which exist as long as the process; if their library is unloaded, they work
//!   again when it is loaded again. They are in a table of fastinst; [`cyg_profile`] makes them.
//! * Temporary probes, such as those of code that is compiled at run time. An object of the
//!   provider implements them: see [`group`](crate::group).
//!
//! A provider that searches for sites, or contributes notes to reports, is [registered](register).
//! The service thread then calls it regularly.

pub mod cyg_profile;

use std::ffi::CStr;
use std::time::Instant;

use fastinst_sigsafe::Segments;

use crate::discovery::Discovery;
use crate::error::Error;

/// The sites of which a provider makes probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All sites: every probe is known when [`begin`] returns.
    All,
    /// Sites in code that has been executed: the cost depends on the code that the program runs,
    /// not on its size.
    Executed,
    /// As `All` if the sites are in at most this many functions, else as `Executed`.
    AllUpTo {
        /// The maximum number of functions.
        functions: usize,
    },
}

/// A source of probes.
///
/// `begin` and `discover` are called by one thread at a time, which holds the right of
/// [`Discovery`]. The other methods may be called at any time, without it.
pub trait Provider: Sync {
    /// The name of the provider, which is part of the metadata of its probes. No two providers have
    /// the same name.
    fn name(&self) -> &'static CStr;

    /// Starts to search for sites and to make probes of them. May be called again; a larger extent
    /// stays in force.
    fn begin(&self, discovery: &Discovery, extent: Extent);

    /// Handles sites that have appeared or disappeared since the last call. The service thread
    /// calls it regularly, and after [`service::notify`](crate::service::notify). Returns when it
    /// must be called again, if that is before the next notification.
    fn discover(&self, discovery: &Discovery) -> Option<Instant>;

    /// A service thread is about to start, perhaps in a forked child: notifications by threads of
    /// the parent may have been lost.
    fn service_starts(&self) {}

    /// Whether any code is known that may contain sites, whether they are probes yet or not.
    /// Must not be called from callbacks.
    fn has_code(&self) -> bool;

    /// Calls that could not be made probes: one line for each reason and object.
    fn notes(&self) -> Vec<String>;

    /// The number of bytes of memory used by its probes and its search for sites. Callbacks may
    /// call it.
    fn memory_bytes(&self) -> usize;

    /// Takes the calls that were counted before the entry probes of their functions were announced:
    /// calls `take` with the address of a function and its calls, possibly several times for the
    /// same function. Returns the number of further calls, whose functions are unknown. Callbacks
    /// may call it.
    fn take_early_calls(&self, take: &mut dyn FnMut(usize, EarlyCalls)) -> u64 {
        let _ = take;
        0
    }

    /// The function at this address, if it is in an object that may have probes and is loaded now:
    /// also a function without any. Must not be called from callbacks.
    fn function_at(&self, address: usize) -> Option<KnownFunction> {
        let _ = address;
        None
    }
}

/// A function that a provider knows by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFunction {
    /// The name, according to the symbols.
    pub name: &'static CStr,
    /// The file of the executable or library that contains the function.
    pub object_path: &'static CStr,
    /// The lowest address of that object in memory.
    pub object_base: usize,
}

/// What is known about the calls of a function before its entry probes were announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCalls {
    /// This number of calls was counted.
    Counted(u64),
    /// The function was not counted for a while.
    Interrupted,
}

/// The registered providers.
static PROVIDERS: Segments<&'static dyn Provider, 8, 8> = Segments::new();

/// Registers a provider. Does nothing if one of the same name is registered already. Blocks while
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

/// [`Provider::discover`] of every provider. Returns the earliest time at which to call it again.
pub(crate) fn discover(discovery: &Discovery) -> Option<Instant> {
    PROVIDERS.iter().filter_map(|provider| provider.discover(discovery)).min()
}

/// [`Provider::service_starts`] of every provider.
pub(crate) fn service_starts() {
    PROVIDERS.iter().for_each(|provider| provider.service_starts());
}

/// Whether any provider knows code that may contain sites, whether they are probes yet or not: a
/// process without it has nothing to observe. Must not be called from callbacks.
pub fn has_code() -> bool {
    PROVIDERS.iter().any(|provider| provider.has_code())
}

/// Calls that could not be made probes, from all providers: one line for each reason and object.
/// Allocates, and may block while another thread discovers probes: must not be called from signal
/// handlers or callbacks.
pub fn notes() -> Vec<String> {
    PROVIDERS.iter().flat_map(|provider| provider.notes()).collect()
}

/// The number of bytes of memory that all providers use: tables, names, stubs, indices. Callbacks
/// may call it.
pub fn memory_bytes() -> usize {
    PROVIDERS.iter().map(|provider| provider.memory_bytes()).sum()
}

/// [`Provider::take_early_calls`] of every provider; returns the sum. Callbacks may call it.
pub fn take_early_calls(mut take: impl FnMut(usize, EarlyCalls)) -> u64 {
    PROVIDERS.iter().map(|provider| provider.take_early_calls(&mut take)).sum()
}

/// [`Provider::function_at`] of the first provider that knows the function. Must not be called from
/// callbacks.
pub fn function_at(address: usize) -> Option<KnownFunction> {
    PROVIDERS.iter().find_map(|provider| provider.function_at(address))
}
