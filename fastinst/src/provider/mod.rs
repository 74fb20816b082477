//! Providers: the sources of probes.
//!
//! A provider determines where sites are, what they look like and when they fire. Ids, callbacks
//! and the functions that toggle a probe are the same for all providers. There are two kinds of
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

/// The sites that become probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All sites: every probe is known when [`begin`] returns.
    All,
    /// Sites in code that has been executed, and, when [`begin`] returns, those of `main` and of
    /// the first thousand functions to which it leads by direct calls. The cost depends on the code
    /// that the program runs, not on its size.
    Executed,
    /// As `All` if the sites are in at most this many functions, otherwise as `Executed`.
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
    /// calls it regularly, and after [`service::notify`](crate::service::notify). Returns the time
    /// at which it must be called again without a notification, if any.
    fn discover(&self, discovery: &Discovery) -> Option<Instant>;

    /// Called when a service thread is about to start, perhaps in a forked child: notifications by
    /// threads of the parent may have been lost.
    fn service_starts(&self) {}

    /// Whether any known code may contain sites, whether these are probes yet or not. Must not be
    /// called from callbacks.
    fn has_code(&self) -> bool;

    /// The calls that could not be made probes: one line for each reason and object.
    fn notes(&self) -> Vec<String>;

    /// The memory of the provider's probes and of its search for sites, in bytes. Callbacks may
    /// call this.
    fn memory_bytes(&self) -> usize;

    /// Takes the calls that were counted before the entry probes of their functions were announced:
    /// calls `take` with the address of a function and its calls, possibly several times for the
    /// same function. Returns the number of further calls, whose functions are unknown. Callbacks
    /// may call it.
    fn take_early_calls(&self, take: &mut dyn FnMut(usize, EarlyCalls)) -> u64 {
        let _ = take;
        0
    }

    /// Whether this is the address of code that the provider has generated for probes, and that the
    /// program would not execute without them. Does not block. Callbacks may call it.
    fn has_generated(&self, address: usize) -> bool {
        let _ = address;
        false
    }

    /// The function at this address, if it is in a loaded object that may have probes; the function
    /// itself need not have any. Must not be called from callbacks.
    fn function_at(&self, address: usize) -> Option<KnownFunction> {
        let _ = address;
        None
    }
}

/// A function that a provider knows by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFunction {
    /// The function's name in the symbol table.
    pub name: &'static CStr,
    /// The path of the executable or library that contains the function.
    pub object_path: &'static CStr,
    /// The lowest address in memory of the object that contains the function.
    pub object_base: usize,
}

/// The known number of calls to a function before its entry probes were announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyCalls {
    /// This number of calls was counted.
    Counted(u64),
    /// Calls to the function were not counted for a while.
    Interrupted,
    /// This number of calls was counted, either to the function or to another one that was loaded
    /// at the same address before or after it.
    OfUnloaded(u64),
}

/// The registered providers.
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
