//! Toggles CALL instructions of running code: no trap, no wait, no change that another thread could see half made.
//!
//! # Concepts
//! * **Site**: a CALL or a tail-call JMP, decoded and verified once ([`CallSite::decode`]).
//! * **Split**: where a boundary of the fetch window in force cuts the instruction, written *front|back* in bytes.
//! * **Strategy**: which bytes change when the site is toggled ([`Strategy`]). Each changes bytes on one side of the
//!   split only, so each toggle is one atomic store (paper section 6).
//! * **Island**: a RET within reach, for the one split whose front is a single byte.
//!
//! # Toggling and retargeting
//! [`CallSite::activate`] and [`CallSite::deactivate`] are single stores: they never block, allocate or enter the kernel, and may
//! be called from a signal handler or a probe function. Another core may still run the old form for T_max.
//!
//! [`retarget`] gives sites another target. Where the operand itself is cut by a window it takes two waits, paid
//! once for a batch, and no trap: while a site is inactive its operand is dead.
//!
//! # Where to start
//! `README.md` has an example, guarantees and obligations; `examples/` has programs that toggle and retarget a call under a running
//! thread.
//!
//! Shadow stacks (CET) stay right in every form: calls and returns are always executed as CALL and RET, never imitated, and an inactive
//! site is a RET, a CALL of a RET, or an instruction that pushes nothing.
//!
//! The paper is "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86" (PLDI 2016).

mod by_address;
mod encoding;
mod error;
#[cfg(all(test, model))]
mod exploration;
mod island;
mod retarget;
mod site;
mod strategy;
pub mod stub;
mod switch;

pub use by_address::{activate_call, deactivate_call};
pub use encoding::Shape;
pub use error::Error;
pub use retarget::retarget;
pub use site::{CallSite, State, Toggle};
pub use strategy::{Clobbers, Strategy};
pub use switch::Switch;

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
