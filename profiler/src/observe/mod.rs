//! Observation of functions: what probes do, when they are on, and what is observed.
//!
//! # Probes
//! * `fire`: the probe functions: no locks, no allocation; a system call only in a thread's first
//!   probe, after a preemption (`preemption`), to wake the service thread (`waking`), and for
//!   memory of several functions (`function::details`).
//! * `function`: the state of a function that all threads share; `switching`: which thread may
//!   switch its probes. `thread`: per-thread memory; `reclaiming`: of threads that have ended.
//! * `pairing`: pairs exits with entries; `stack`: whether a thread has one stack.
//!
//! # The service thread
//! * `policy`: when a function is observed. `schedule`: implements it. `opening`: which of the
//!   windows that are due open now; `retry`: the ticks in which the others open. `counting`: counts
//!   the calls to functions that are called very often. `measured`: all results of one function.
//! * `governor`: keeps observation within the budget; `long_calls`, `rare_calls`: what functions
//!   cost that stay on.
//! * `own_time`, `busiest`, `displaced`, `quota`: which part of the time the program had a
//!   processor.

pub(crate) mod busiest;
#[cfg(test)]
pub(crate) mod competitors_in_tests;
pub(crate) mod counting;
pub(crate) mod displaced;
pub(crate) mod fire;
pub(crate) mod function;
pub(crate) mod governor;
pub(crate) mod long_calls;
pub(crate) mod measured;
pub(crate) mod opening;
pub(crate) mod own_time;
pub(crate) mod pairing;
pub(crate) mod policy;
pub(crate) mod preemption;
pub(crate) mod probe_type;
pub(crate) mod quota;
pub(crate) mod rare_calls;
pub(crate) mod reclaiming;
pub(crate) mod retry;
pub(crate) mod schedule;
pub(crate) mod stack;
pub(crate) mod switching;
pub(crate) mod task_stat;
pub(crate) mod thread;
pub(crate) mod waking;
