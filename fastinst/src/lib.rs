//! Probes that cost nothing while off, with dense ids, discovery callbacks, `activate` and `deactivate`.
//!
//! # Concepts
//! * **Probe**: a place in the program that can call a *probe function*: `if (active) function(id)`, with no test and no
//!   call while it is off.
//! * **Provider**: what knows where probes can be, and what their sites look like. The first is [`provider::cyg_profile`],
//!   for programs compiled with `-finstrument-functions`.
//! * **Discovery**: a provider registers a probe, which gets an id, and every callback is called with it ([`register_callback`]). Ids
//!   are dense and never reused.
//!
//! # What happens when a probe fires
//! ```text
//! site (program text)      stub (near the text)               probe function
//! call stub            →   mov edi, id; jmp *pointer      →   function(id, ...)
//! ```
//! [`activate`] stores the function into the stub's pointer, then toggles the site's code; [`deactivate`] toggles it back.
//! Giving an active probe another function changes the pointer only: data, never code.
//!
//! # Where to start
//! `README.md` has examples in Rust and C, guarantees and obligations; `examples/` has the programs; `include/fastinst.h` is the C
//! interface.
//!
//! The interface is that of Figure 3 in "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86".

mod discovery;
mod error;
mod probe;
#[cfg(test)]
mod probe_in_tests;
pub mod provider;
mod registry;
mod segments;
pub mod service;

pub use discovery::register_callback;
pub use error::Error;
pub use probe::{ProbeFn, ProbeId, ProbeMetadata, ProbeType};
pub use registry::{activate, activate_all, deactivate, deactivate_all, metadata, probe_count, toggle_count};
pub use segments::Segments;
pub use wordpatch::{TextAccess, text::set_access};

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
