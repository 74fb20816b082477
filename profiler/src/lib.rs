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
//! * `observe`: what probes do, when they are on, and what is observed: the policy, the service
//!   thread that implements it, and the budget.
//! * `estimate`: from observations to calls, times and percentiles, with their intervals.
//! * `stacks`: times of functions that are called often, from stack samples.
//! * [`session`]: start, changes of the [`settings`], report. [`process`]: events of the process:
//!   fork, exec, exit, fatal signals. [`embedded`] replaces these in an engine that compiles code
//!   and has its own probes.
//! * [`report`]: the report as a value, and its forms; [`output`]: where it is written.
//! * [`options`], [`filter`], [`settings`]: what the user has chosen.
//! * [`binary`]: what the files of a program contain: names, source lines, how it was built.
//! * [`script`]: scripts that observe calls instead of the profiler. [`arguments`]: where entry
//!   probes find a function's arguments, and exit probes its result.
//!
//! # Safety, errors, features
//! Code that probes and signal handlers reach (`fire`, `thread`, `pairing`, `preemption` in
//! `observe`, parts of [`process`]) does not allocate, lock or format. [`error::Error`] has a
//! one-line message for each user error; only [`session`] prints, to the standard error of the
//! profiled program. There are no features.

pub mod arguments;
pub mod binary;
pub mod embedded;
pub mod error;
mod estimate;
pub mod filter;
mod observe;
pub mod options;
pub mod output;
pub mod process;
mod processor_time;
pub mod report;
pub mod script;
pub mod session;
pub mod settings;
mod stacks;
mod stderr;
