//! Probes in running code that cost next to nothing while they are off: discovered by callbacks,
//! numbered, and switched by number with one atomic store, while other threads execute the code.
//!
//! Use it to observe functions of C and C++ code in the same process that was compiled with
//! `-finstrument-functions`: count, time, trace or test, for as long and as much as is needed. A
//! profiler that is built on it comes with the repository.
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
//! // Makes the instrumentation calls of all loaded objects probes, switched off.
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
//! fastinst::deactivate(entry)?; // one store; from here on, the call is not made
//! println!("{} calls of work", CALLS.load(Ordering::Relaxed));
//! # Ok::<(), fastinst::Error>(())
//! ```
//!
//! # Concepts
//! * **Probe**: a place in the program that can call a *probe function*:
//!   `if (active) function(id)`, with no test and no call while it is off.
//! * **Provider**: what knows where probes can be, and what their sites look like: see
//!   [`provider`]. The first is [`provider::cyg_profile`], for programs compiled with
//!   `-finstrument-functions`.
//! * **Discovery**: a provider makes a probe, which gets an id, and every callback is called with
//!   it ([`register_callback`]). Ids of probes that stay as long as the process are dense.
//! * **Group**: probes that come and go together, such as those of code that is compiled at run
//!   time and freed: see [`group`].
//!
//! # What happens when a probe fires
//! ```text
//! site (program text)      stub (near the text)               probe function
//! call stub            →   mov edi, id; jmp *pointer      →   function(id, ...)
//! ```
//! [`activate`] stores the function into the stub's pointer, then toggles the site's code;
//! [`deactivate`] toggles it back. Giving an active probe another function changes the pointer
//! only: data, never code.
//!
//! # Main types
//! * [`ProbeId`], [`ProbeMetadata`], [`ProbeKind`], [`ProbeFn`]: what a callback learns about a
//!   probe, and what a probe calls.
//! * [`register_callback`]; [`activate`], [`deactivate`] and both for many probes,
//!   [`activate_all`], [`deactivate_all`]; [`with_metadata`], [`lasting_metadata`].
//! * [`provider::Provider`], [`Discovery`]; [`group::Sites`], [`group::Group`]: for providers.
//! * [`service`]: the thread that has the providers discover what comes later, and forks.
//!
//! # Safety
//! [`activate`] is `unsafe`: the probe function stays callable for as long as any thread may
//! execute the site, and neither is instrumented itself nor calls an instrumented function whose
//! active probes call it. From the first discovery on, only the crates of this workspace write the
//! program's code. Both switches may be called from signal handlers, probe functions and callbacks.
//!
//! # Errors
//! [`Error`]: an unknown id, a probe whose library was unloaded or whose group is gone, a site that holds foreign bytes, a call from a callback that must not
//! be made there. What could not be made a probe is in [`provider::notes`].
//!
//! # Features
//! None.
//!
//! # Further reading
//! `README.md` has complete examples in Rust and C, guarantees and obligations; `examples/` has the
//! programs; `include/fastinst.h` is the C interface.
//!
//! The interface is that of Figure 3 in "Living on the Edge: Rapid-Toggling Probes with
//! Cross-Modification on x86".

mod discovery;
mod error;
pub mod group;
mod probe;
#[cfg(test)]
mod probe_in_tests;
pub mod provider;
mod registry;
pub mod service;

pub use callpatch::Toggle;
pub use discovery::{Discovery, register_callback};
pub use error::Error;
pub use probe::{ProbeFn, ProbeId, ProbeKind, ProbeMetadata};
pub use registry::{
    activate, activate_all, deactivate, deactivate_all, lasting_metadata, probe_count, toggle_count,
    with_metadata,
};
pub use wordpatch::{TextAccess, text::set_access};

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
