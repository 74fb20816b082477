//! Probes in running code that cost almost nothing while they are off. Callbacks discover them;
//! each probe is toggled by its id with one atomic store, while other threads execute the code.
//!
//! The crate observes functions of C and C++ code that was compiled with `-finstrument-functions`,
//! in the same process: to count, time, trace or test calls, for any length of time and in any
//! selection. The repository includes a profiler that is built on it.
//!
//! # Example
//! ```no_run
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use fastinst::provider::cyg_profile;
//! use fastinst::{ProbeId, ProbeKind};
//!
//! static CALLS: AtomicU32 = AtomicU32::new(0);
//! static ENTRY: AtomicU32 = AtomicU32::new(u32::MAX);
//!
//! unsafe extern "C" fn count(_id: ProbeId, _return_address: usize, _function: usize) {
//!     CALLS.fetch_add(1, Ordering::Relaxed);
//! }
//!
//! # fn run_the_c_code() {}
//! // Makes a probe, switched off, of each instrumentation call in the loaded objects.
//! cyg_profile::start()?;
//! fastinst::register_callback(|probe| {
//!     if probe.kind == ProbeKind::ENTRY && probe.function_name == c"work" {
//!         ENTRY.store(probe.id.0, Ordering::Relaxed);
//!     }
//! })?;
//! let entry = ProbeId(ENTRY.load(Ordering::Relaxed));
//! // SAFETY: `count` is never unloaded, and has no probes of its own.
//! unsafe { fastinst::activate(entry, count)? };
//! run_the_c_code();
//! fastinst::deactivate(entry)?; // one store; from now on, the call is skipped
//! println!("{} calls of work", CALLS.load(Ordering::Relaxed));
//! # Ok::<(), fastinst::Error>(())
//! ```
//!
//! # Concepts
//! * **Probe**: a point in the program that can call a *probe function*:
//!   `if (active) function(id)`, with no test and no call while it is off.
//! * **Provider**: a source of probes, which finds their sites and knows their form: see
//!   [`provider`]. [`provider::cyg_profile`] is for programs compiled with
//!   `-finstrument-functions`.
//! * **Discovery**: a provider makes a probe, which gets an id, and every callback is called with
//!   it ([`register_callback`]). The ids of permanent probes are dense. (A *permanent* probe exists
//!   as long as the process.)
//! * **Group**: probes that are created and retired together, such as those of code that is
//!   compiled at run time and freed: see [`group`].
//!
//! # What happens when a probe fires
//! ```text
//! site (program text)      stub (near the text)               probe function
//! call stub            →   mov edi, id; jmp *pointer      →   function(id, ...)
//! ```
//! [`activate`] stores the function in the stub's pointer, then toggles the code of the site;
//! [`deactivate`] toggles it back. Activating an active probe with another function changes only
//! the pointer, which is data, not code.
//!
//! # Main types
//! * [`ProbeId`], [`ProbeMetadata`], [`ProbeKind`]: the description of a probe that callbacks get.
//!   [`ProbeFn`]: the function that a probe calls.
//! * [`register_callback`]; [`activate`] and [`deactivate`], and their batch forms
//!   [`activate_all`] and [`deactivate_all`]; [`with_metadata`], [`lasting_metadata`].
//! * [`provider::Provider`], [`Discovery`]; [`group::Sites`], [`group::Group`]: for providers.
//! * [`service`]: the thread that runs later discoveries, and the handling of forks.
//! * [`internal`]: for the profiler and the other crates of this workspace, and not for other
//!   users.
//!
//! # Safety
//! [`activate`] is `unsafe`: the probe function must stay callable for as long as any thread may
//! execute the site; it must neither be instrumented itself nor call an instrumented function whose
//! active probes call it. From the first discovery on, only the crates of this workspace may write
//! the program's code. [`activate`] and [`deactivate`] may be called from signal handlers, probe
//! functions and callbacks.
//!
//! # Errors
//! [`Error`]: an unknown id, a probe whose library was unloaded or whose group was dropped, a site
//! that holds foreign bytes, a call that must not be made by a callback. Calls that could not be
//! made probes are reported by [`provider::notes`].
//!
//! # Features
//! None.
//!
//! # Further reading
//! `README.md` contains complete examples in Rust and C, guarantees and obligations; `examples/`
//! contains the programs; `include/fastinst.h` is the C interface.
//!
//! The interface is that of Figure 3 in "Living on the Edge: Rapid-Toggling Probes with
//! Cross-Modification on x86".

mod discovery;
mod error;
pub mod group;
pub mod internal;
mod loaded;
mod mapped;
mod merged;
mod permanent;
mod probe;
#[cfg(test)]
mod probe_in_tests;
mod processor_time;
pub mod provider;
mod registry;
pub mod service;

pub use callpatch::Toggle;
pub use discovery::Discovery;
pub use error::Error;
pub use probe::{ModulePlace, ProbeFn, ProbeId, ProbeKind, ProbeMetadata};
pub use registry::{
    activate, activate_all, deactivate, deactivate_all, is_loaded, lasting_metadata, probe_count,
    register_callback, toggle_count, with_metadata,
};
pub use wordpatch::{TextAccess, text::set_access};

/// Compiles the example programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
