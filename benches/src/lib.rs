//! What the benchmarks share: reading the clock, distributions, the report, code with call sites, and programs that are
//! generated and compiled for a run.
//!
//! Each benchmark (`toggle/`, `invoke.rs`, `scale/`, `slowdown.rs` beside this folder) answers one question. It checks that what it
//! times does what it should, then measures everything that is to be compared in one run, in turns, and prints one
//! [`report::Report`] as text or JSON.

pub mod clock;
pub mod compiled;
pub mod distribution;
pub mod executor;
pub mod host;
pub mod options;
pub mod preload;
pub mod report;
pub mod sites;
