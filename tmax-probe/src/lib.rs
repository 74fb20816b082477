//! Measures, by stress, what a machine's instruction fetch does to code that is rewritten under it.
//!
//! # The question
//! A store to code that other cores execute is seen by them sooner or later, and perhaps not as a whole. Two numbers tell
//! how code may be rewritten: the **fetch window**, the largest aligned block inside which one store is never seen in part,
//! and **T_max**, the longest time for which a core may go on with bytes that were replaced. The paper (section 3) takes the
//! first for the cache line and measures the second (section 8.1, Figure 9). This crate measures both.
//!
//! # The method
//! 1. A *patcher* toggles one instruction between two forms, while *executors* run it in a loop and look at what it did
//!    ([`trial`], [`kernel`]). Both forms, and all their mixtures, are `mov` instructions that leave different values in registers: a
//!    mixture shows without a crash. The paper's own kernel, which crashes, runs in a process of its own ([`kernel::crash`]).
//! 2. The instruction is cut by every boundary, behind each of its bytes, stored to back to back and with pauses, through one
//!    mapping and through two, under load and not ([`plan`]).
//! 3. Stores in one piece tell the window; the protocol with growing waits tells T_max ([`estimate`]). Both have controls that
//!    tell a machine that does not tear from a run that could not see it.
//! 4. The result becomes a calibration for `wordpatch` ([`results`]), which [`verify`] tries by patches of the library itself.
//!
//! The protocol's lock is an opcode that shows nothing, not INT3: fetch does not care, and executors that do not trap run a hundred
//! times as often. That is what makes rare tears visible.
//!
//! # How it is tested
//! The estimator must recover window and T_max of a simulated machine ([`simulated`]), whatever machine the tests run on.

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
