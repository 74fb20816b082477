//! A sampling latency profiler on togglable probes, and its reports.
//!
//! The user interfaces are the command `fastinst` and `libfastinst.so` (`docs/profiler.md` of the
//! repository). Both share this crate; as a library, it reads and renders the reports:
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
//! entry probe to before the exit probe, callees included), how much of that was self time, and
//! from where it was called. Figures that were not counted are estimated, and every estimate has a
//! 95 % confidence interval.
//!
//! # How
//! The paper's profiler (section 9) switches a function off after 10 calls and on again every 10
//! ms. Here, the selection of observed calls does not depend on the program: rarely called
//! functions stay on, the others are observed in windows at random instants (`policy`, with the
//! proof), as many as the budget allows (`governor`). The times of functions that are called
//! millions of times come from stack samples (`stacks`).
//!
//! # Parts
//! * [`session`]: start, changes of the [`settings`], report. [`process`]: events of the process:
//!   fork, exec, exit, fatal signals. [`embedded`]: replaces these in an engine that compiles code
//!   and has its own probes.
//! * `policy`: when a function is observed. `schedule`: the service thread that implements it.
//!   `counting`: counts the calls to functions that are called very often. `opening`: which of the
//!   windows that are due open now; `retry`: the ticks in which the others open. `governor`: keeps
//!   observation within the budget. `own_time`, `busiest`, `displaced`: which part of the time the
//!   program had a processor.
//! * `stacks`: times of functions that are called often, from stack samples.
//! * `fire`: the probe functions: no locks, no allocation; a system call only in a thread's first
//!   probe, after a preemption (`preemption`), to wake the service thread, and for memory of
//!   several functions (`function::details`). `thread`: per-thread memory. `function`: the state of
//!   a function that all threads share.
//! * `pairing`: pairs exits with entries.
//! * `strata`: from observations to calls and times; `quantiles`: percentiles; `interval`:
//!   quantiles for intervals. `measured`: all results of one function; `callers`, `cycles` and
//!   `summary`: of all functions together.
//! * [`script`], [`attach`]: scripts that observe calls instead of the profiler. [`arguments`]:
//!   where entry probes find a function's arguments, and exit probes its result. `debug_file`: the
//!   files with debugging information.
//! * [`environment`]: of the programs that the process starts.
//! * [`report`], [`output`], [`options`], [`filter`], [`symbol`], [`locations`], [`elf_check`]: the
//!   user interface.
//!
//! # Safety, errors, features
//! Code that probes and signal handlers reach (`fire`, `thread`, `pairing`, `preemption`, parts of
//! [`process`]) does not allocate, lock or format. [`error::Error`] has a one-line message for each
//! user error; only [`session`] prints, to the standard error of the profiled program. There are no
//! features.

pub mod arguments;
pub mod attach;
mod busiest;
mod callers;
mod children;
mod clock;
#[cfg(test)]
mod competitors_in_tests;
mod counting;
mod cycles;
mod debug_file;
mod displaced;
pub mod elf_check;
pub mod embedded;
pub mod environment;
pub mod error;
pub mod filter;
mod fire;
mod function;
mod governor;
mod interval;
pub mod locations;
mod measured;
mod opening;
pub mod options;
pub mod output;
mod own_process;
mod own_time;
mod pairing;
pub mod parts;
mod policy;
mod preemption;
mod probe_type;
pub mod process;
mod quantiles;
mod quota;
mod reclaiming;
pub mod report;
mod retry;
mod schedule;
pub mod script;
pub mod session;
pub mod settings;
#[cfg(test)]
mod simulation_in_tests;
mod snapshot;
mod stack;
mod stacks;
mod stderr;
mod strata;
mod summary;
mod switching;
pub mod symbol;
mod task_stat;
mod thread;
mod waking;
