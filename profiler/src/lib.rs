//! A sampling latency profiler on togglable probes, and its reports.
//!
//! Users have the command `fastinst` and `libfastinst.so` (`docs/profiler.md` of the repository).
//! This crate is what the two share; use it to read and render the reports:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use profiler::report::{View, json, text};
//!
//! let report = json::read(Path::new("app.json"))?;
//! for function in report.functions.iter().filter(|function| !function.recursive) {
//!     println!("{}: at least {} calls", function.name, function.calls.low);
//! }
//! print!("{}", text::render(&report, &View { limit: Some(20), ..View::default() }));
//! # Ok::<(), profiler::error::Error>(())
//! ```
//!
//! # What it measures
//! For each instrumented function: how often it was called, how long its calls took (from after the
//! entry probe to before the exit probe, callees included), how much of that was its own, and from
//! where it was called. What was not counted is estimated, and every estimate has a 95 % interval.
//!
//! # How
//! The paper's profiler (section 9) switches a function off after 10 calls and on again every 10
//! ms. Here, what is observed does not depend on what the program does: functions that are called
//! rarely stay on, the others are observed in windows at random instants (`policy`, with the
//! proof), as many as the budget allows (`governor`).
//!
//! # Parts
//! * [`session`]: starting and the report. [`process`]: the life of the process around it: fork,
//!   exec, exit, fatal signals.
//! * `policy`: when a function is observed. `schedule`: the daemon that does it. `governor`: how
//!   much, for the budget.
//! * `fire`: what runs when a probe fires: no locks, no allocation; a system call for a thread's
//!   first, where the thread was off its processor (`preemption`), and to wake the daemon.
//!   `thread`: its per-thread memory. `function`: what all threads share about a function.
//! * `pairing`: which exit belongs to which entry.
//! * `strata`: from observations to calls and times; `quantiles`: percentiles; `interval`: their
//!   limits. `measured`: all that is known of one function; `callers`, `cycles` and `summary`: of
//!   all of them together.
//! * [`report`], [`output`], [`options`], [`filter`], [`symbol`], [`locations`], [`elf_check`]:
//!   what the user sees.
//!
//! # Safety, errors, features
//! Code that probes and signal handlers reach (`fire`, `thread`, `pairing`, `preemption`, parts of
//! [`process`]) does not allocate, lock or format. [`error::Error`] has one line for each mistake
//! that a user can make; nothing here prints but [`session`], to the standard error of the program
//! that is profiled. There are no features.

mod callers;
mod clock;
mod cycles;
pub mod elf_check;
pub mod error;
pub mod filter;
mod fire;
mod function;
mod governor;
mod interval;
pub mod locations;
mod measured;
pub mod options;
pub mod output;
mod own_time;
mod pairing;
mod policy;
mod preemption;
mod probe_type;
pub mod process;
mod quantiles;
pub mod report;
mod schedule;
pub mod session;
#[cfg(test)]
mod simulation_in_tests;
mod stderr;
mod strata;
mod summary;
pub mod symbol;
mod thread;
