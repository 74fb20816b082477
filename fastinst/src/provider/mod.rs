//! Providers: what knows where probes can be.
//!
//! A provider tells where sites are, what they look like and when they fire; ids, callbacks and the
//! calls that switch a probe are the same for all. There are two ways to have probes:
//!
//! * Sites that stay as long as the process, or come back when a library is loaded again, are in
//!   fastinst's own table. [`cyg_profile`] makes such probes.
//! * Sites that come and go, as code does that is compiled while the process runs, are answered by
//!   an object of the provider: see [`group`](crate::group).
//!
//! A provider that looks for sites, or has something to say in reports, [registers](register)
//! itself. The service thread then calls it regularly.

pub mod cyg_profile;

use std::ffi::CStr;
use std::time::Instant;

use fastinst_sigsafe::Segments;

use crate::discovery::Discovery;
use crate::error::Error;

/// How many sites a provider looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All: every probe is known when the look is over.
    All,
    /// Those in code that is being executed: a program pays for what it runs, not for all that it
    /// has.
    Executed,
    /// All if they are in this many functions at most, else those in code that is being executed.
    AllUpTo {
        /// How many functions there may be.
        functions: usize,
    },
}

/// What knows where probes can be, and makes them.
///
/// A provider is called by one thread at a time, with the right of [`Discovery`], except where a
/// method says otherwise.
pub trait Provider: Sync {
    /// Its name, in the metadata of its probes. No two providers have the same.
    fn name(&self) -> &'static CStr;

    /// Looks for sites, and makes them probes, from now on: called by [`begin`], perhaps several
    /// times. What was begun with a larger extent stays so.
    fn begin(&self, discovery: &Discovery, extent: Extent);

    /// Looks what has come or gone since the last look. Called by the service thread: regularly,
    /// and after [`service::notify`](crate::service::notify). Returns when to look again, if that
    /// is before there is news.
    fn discover(&self, discovery: &Discovery) -> Option<Instant>;

    /// A service thread is about to start, perhaps in a forked child: what other threads were about
    /// to report may have been lost with them. Called without the right of discovery.
    fn service_starts(&self) {}

    /// What could not be made probes, one line for each reason and object. Called without the right
    /// of discovery.
    fn notes(&self) -> Vec<String>;

    /// How many bytes of memory its probes and the discovery of more hold. Called without the right
    /// of discovery, also by callbacks.
    fn memory_bytes(&self) -> usize;

    /// Takes the calls that were counted before their functions' entry probes were known: calls
    /// `take` with the address of a function and how many, perhaps several times for one function.
    /// Returns how many more there were whose functions are not known. Called without the right of
    /// discovery, also by callbacks.
    fn take_early_calls(&self, take: &mut dyn FnMut(usize, u64)) -> u64 {
        let _ = take;
        0
    }
}

/// Those that are registered.
static PROVIDERS: Segments<&'static dyn Provider, 8, 8> = Segments::new();

/// Has the provider called from now on. Does nothing for one that is registered already.
///
/// # Errors
/// [`Error::TooManyProviders`]; [`Error::CalledFromCallback`].
pub fn register(provider: &'static dyn Provider) -> Result<(), Error> {
    // One at a time.
    let _discovery = Discovery::begin()?;
    if PROVIDERS.iter().any(|registered| registered.name() == provider.name()) {
        return Ok(());
    }
    let limit = Segments::<&dyn Provider, 8, 8>::LIMIT;
    PROVIDERS.push_with(|_| provider).map(drop).ok_or(Error::TooManyProviders { limit })
}

/// Has every provider look for sites. Blocks for the time of the look; called again, also for what
/// has come since.
///
/// # Errors
/// [`Error::CalledFromCallback`]. What cannot be looked at is passed over; [`notes`] tells.
pub fn begin(extent: Extent) -> Result<(), Error> {
    let discovery = Discovery::begin()?;
    PROVIDERS.iter().for_each(|provider| provider.begin(&discovery, extent));
    Ok(())
}

/// Has every provider look what has come or gone. Returns when to look again, if that is before
/// there is news.
pub(crate) fn discover(discovery: &Discovery) -> Option<Instant> {
    PROVIDERS.iter().filter_map(|provider| provider.discover(discovery)).min()
}

/// Tells every provider that a service thread is about to start.
pub(crate) fn service_starts() {
    PROVIDERS.iter().for_each(|provider| provider.service_starts());
}

/// What could not be made probes, one line for each reason and object, of all providers.
pub fn notes() -> Vec<String> {
    PROVIDERS.iter().flat_map(|provider| provider.notes()).collect()
}

/// How many bytes of memory probes and the discovery of more hold, of all providers: tables, names,
/// stubs, indices.
pub fn memory_bytes() -> usize {
    PROVIDERS.iter().map(|provider| provider.memory_bytes()).sum()
}

/// Takes the calls that were counted before their functions' entry probes were known, of all
/// providers: see [`Provider::take_early_calls`]. May be called from a callback.
pub fn take_early_calls(mut take: impl FnMut(usize, u64)) -> u64 {
    PROVIDERS.iter().map(|provider| provider.take_early_calls(&mut take)).sum()
}
