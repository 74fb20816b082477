//! Support shared by the benchmarks: reading the clock, distributions, the report, code with call
//! sites, programs that are generated and compiled for a run, child processes, and the engines and
//! kernels of the WebAssembly benchmarks.
//!
//! Each benchmark (`toggle/`, `invoke.rs`, `scale/`, `slowdown.rs`, `truth/`, `wasm/`,
//! `wasm_simd/`, `wasm_compile/` next to this directory) answers one question. It checks that the
//! code it times works correctly, then measures everything that is to be compared in one run,
//! alternately, and prints one [`report::Report`] as text or JSON.

pub mod child;
pub mod clock;
pub mod code_speed;
pub mod compiled;
pub mod distribution;
pub mod executor;
pub mod host;
pub mod kernels;
pub mod options;
pub mod pace;
pub mod preload;
pub mod probes;
pub mod report;
pub mod sections;
pub mod sites;
pub mod truth;
pub mod wasm;
