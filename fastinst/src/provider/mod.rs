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
pub(crate) mod registered;

use std::ffi::CStr;
use std::time::Instant;

use crate::discovery::Discovery;
pub use registered::{begin, notes, register};

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
