//! Measures, by stress, what a machine's instruction fetch does to code that is rewritten while it
//! runs.
//!
//! The command `tmax-probe` writes the result as a calibration for the crate `wordpatch`. The crate
//! is a library as well: the statistics can be run against a simulated machine,
//!
//! ```
//! use tmax_probe::plan::Depth;
//! use tmax_probe::results::Results;
//! use tmax_probe::simulated::Simulated;
//! use tmax_probe::survey::{Unobserved, survey};
//!
//! // Instruction fetch of this machine tears at 32 bytes; stale code is executed for 800 ticks.
//! let mut machine = Simulated::new(32, 800, 1);
//! let results = Results::new(survey(&mut machine, Depth::Quick, &mut Unobserved)?, None);
//! // The 8 bytes that the vendors promise are never in danger; more is claimed on evidence only.
//! assert!(results.calibration().is_none_or(|found| found.model.window_bytes <= 32));
//! # Ok::<(), tmax_probe::error::Error>(())
//! ```
//!
//! or against this one, by [`kernel`].
//!
//! # The question
//! Other cores see a store to code that they execute sooner or later, and perhaps not as a whole.
//! Two properties decide how code may be rewritten: the **fetch window**, the largest aligned block
//! inside which one store is never seen in part, and **T_max**, the longest time for which a core
//! may continue with bytes that were replaced. The paper (section 3) takes the first for the cache
//! line and measures the second (section 8.1, Figure 9). This crate measures both.
//!
//! # The method
//! 1. In a *trial*, a patcher toggles one instruction between two forms while executors run it in a
//!    loop and look at what it did ([`trial`], [`kernel`]). Both forms, and all their mixtures, are
//!    `mov` instructions that leave different values in registers: a mixture shows without a crash.
//!    The paper's own kernel crashes; each trial has a process of its own ([`kernel::child`]).
//! 2. Rounds of trials differ in one thing only ([`plan`]): in the place of the cut, by one store,
//!    for the window; in the wait, by the protocol, for T_max.
//! 3. What counts is whether a trial tore. A window or a T_max is claimed only by a run that had
//!    the power to refute it ([`estimate`]).
//! 4. The result becomes a calibration for `wordpatch` ([`results`]). [`verify`] tries to refute it
//!    by equal trials and by patches of the library itself, and [`watch`] does so for as long as
//!    the machine runs.
//!
//! The protocol's lock is an opcode that shows nothing, not INT3: fetch makes no difference between
//! them, and executors that do not trap run a hundred times as often. That is what makes rare tears
//! visible.
//!
//! # How it is tested
//! On simulated machines that tear rarely and in clusters ([`simulated`]), no run may claim what
//! does not hold, whatever machine the tests run on.
//!
//! # Safety, errors, features
//! The library has no `unsafe` functions; its trials run in child processes, since torn code may do
//! anything. [`error::Error`] says what the machine or the kernel refused. There are no features.

pub mod costs;
pub mod error;
pub mod estimate;
pub mod journal;
pub mod kernel;
pub mod plan;
pub mod report;
pub mod results;
pub mod simulated;
mod surroundings;
pub mod survey;
pub mod trial;
pub mod verify;
pub mod watch;
