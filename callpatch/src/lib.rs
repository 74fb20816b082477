//! Toggles CALL instructions of running code: each toggle is one atomic store, without a trap. It
//! blocks only in the exceptional cases that [`CallSite::activate`] lists.
//!
//! Use it to deactivate and activate existing calls, such as those to instrumentation functions,
//! and to give them other targets. The crate `wordpatch` patches other instructions; the crate
//! `fastinst` manages many such calls by id.
//!
//! # Example
//! ```
//! use std::arch::global_asm;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use callpatch::{CallSite, Clobbers};
//!
//! // A function that calls the hook.
//! global_asm!(
//!     ".globl work, work_call",
//!     "work: sub rsp, 8",
//!     "work_call: call {hook}",
//!     "add rsp, 8",
//!     "ret",
//!     hook = sym hook,
//! );
//!
//! unsafe extern "C" {
//!     safe fn work();
//!     static work_call: u8;
//! }
//!
//! static CALLS: AtomicU32 = AtomicU32::new(0);
//!
//! extern "C" fn hook() {
//!     CALLS.fetch_add(1, Ordering::Relaxed);
//! }
//!
//! fn main() -> Result<(), callpatch::Error> {
//!     // SAFETY: 1. an instruction starts there, in text that only callpatch writes; 2. `work` is right without the
//!     // call; 3. nothing branches into the middle of it.
//!     let site = unsafe { CallSite::decode(&raw const work_call as usize, Clobbers::Nothing)? };
//!     work();
//!     site.deactivate()?;
//!     work();
//!     site.activate()?;
//!     work();
//!     assert_eq!(CALLS.load(Ordering::Relaxed), 2);
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//! * **Site**: a CALL or a tail-call JMP, decoded and verified once ([`CallSite::decode`]).
//! * **Split**: how a boundary of the fetch window in force divides the instruction, written
//!   *front|back* in bytes.
//! * **Strategy**: which bytes change when the site is toggled ([`Strategy`]). Each changes bytes
//!   on one side of the split only, so each toggle is one atomic store (paper section 6).
//! * **Island**: a RET within reach, for the one split whose front is a single byte.
//!
//! # Toggling and retargeting
//! [`CallSite::activate`] and [`CallSite::deactivate`] are single stores, which never allocate, and
//! may be made by a signal handler or a probe function. They block and enter the kernel only if
//! text access is by mprotect, if a debugger has copied the page, or while text is moved after a
//! fork ([`TextRef::compare_exchange`](wordpatch::TextRef::compare_exchange) has the details).
//! Another core may still execute the old form for T_max.
//!
//! [`retarget`] changes the target of sites. If the operand itself crosses a window it takes two
//! waits, paid once for a batch, and no trap: while a site is inactive its operand is dead.
//! [`retarget_as`] changes the target of sites that stay active: no execution is missed.
//!
//! # Main types
//! * [`CallSite`]: a decoded call: [`activate`](CallSite::activate),
//!   [`deactivate`](CallSite::deactivate), [`state`](CallSite::state). [`Switch`]: the part that is
//!   needed to toggle it, in 40 bytes. [`PackedSite`]: the same in 8 bytes, if many sites share a
//!   [`SiteText`].
//! * [`retarget`]: another target, a batch at a time. [`stub`]: stubs that pass a number to a
//!   common callee.
//! * [`activate_call`], [`deactivate_call`]: the same by address, with a table and a lock.
//!
//! # Safety
//! [`CallSite::decode`] and [`retarget`] are `unsafe`: the caller guarantees that an instruction
//! starts at the address, in text that only these crates write, and that the program is correct
//! without the call and with the registers changed that [`Clobbers`] names. Operations on a decoded
//! site are safe.
//!
//! # Errors
//! [`Error`]: no call at the address, a form or a split that cannot be switched, foreign bytes, a
//! refused wait. Foreign bytes are never overwritten.
//!
//! # Features
//! None.
//!
//! # Further reading
//! `README.md` has guarantees, obligations and the form of an inactive call at each split;
//! `examples/` has programs that toggle and retarget a call under a running thread.
//!
//! Shadow stacks (CET) stay consistent in every form: calls and returns are always executed as CALL
//! and RET, never imitated, and an inactive site is a RET, a CALL of a RET, or an instruction that
//! pushes nothing.
//!
//! The paper is "Living on the Edge: Rapid-Toggling Probes with Cross-Modification on x86" (PLDI
//! 2016).

mod by_address;
mod encoding;
mod error;
#[cfg(all(test, model))]
mod exploration;
mod forks;
mod island;
mod packed;
mod retarget;
mod site;
mod strategy;
pub mod stub;
mod switch;

pub use by_address::{activate_call, deactivate_call};
pub use encoding::Shape;
pub use error::Error;
pub use packed::{PackedSite, SiteText};
pub use retarget::{retarget, retarget_as};
pub use site::CallSite;
pub use strategy::{Clobbers, Strategy};
pub use switch::{State, Switch, Toggle};

/// Compiles the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
