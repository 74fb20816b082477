//! A sampling latency profiler on togglable probes, and its reports.
//!
//! # What it measures
//! For each instrumented function, how long its calls take (from after the entry probe to before the exit probe, callees
//! included), and an estimate of how many calls there were.
//!
//! # The policy (paper section 9)
//! A function's probes are switched on; after 10 entries they switch themselves off, from the thread that made the last of
//! them; a daemon switches them on again at the next tick, every 10 ms. Between the two, the function runs as if it were not
//! profiled. The entries of one such *burst* are each followed to their exit, so long calls are not left out in favour
//! of short ones: the exit probes stay on until all entries of the burst have come out. In a program with very many sites, a tick
//! switches some on and the next ones the rest, so that the cost of toggling has a bound.
//!
//! # Parts
//! * [`session`]: starting, the daemon's tick, the report. [`process`]: the life of the process around it: fork, exec,
//!   exit, fatal signals.
//! * `fire`: what runs when a probe fires: no locks, no allocation, no system call but for a thread's first, and two in a
//!   counting burst. `thread`: its per-thread memory. `function`: what all threads share about a function.
//! * `pairing`: which exit belongs to which entry. `estimate`: from bursts to numbers of calls; `gaps`: its statistics; `cpu`: how
//!   long the program has run. `measured`: samples and estimate of one function.
//! * [`report`], [`output`], [`options`], [`symbol`], [`elf_check`]: what the user sees.

mod clock;
mod cpu;
pub mod elf_check;
pub mod error;
mod estimate;
mod fire;
mod function;
mod gaps;
mod interval;
mod measured;
pub mod options;
pub mod output;
mod pairing;
mod policy;
pub mod process;
mod quantiles;
pub mod report;
pub mod session;
#[cfg(test)]
mod simulation_in_tests;
mod stderr;
mod strata;
pub mod symbol;
mod thread;
