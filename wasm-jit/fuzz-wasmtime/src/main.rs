//! The command `wasm-jit-fuzz-wasmtime`: compares wasm-jit with Wasmtime, also in exceptions,
//! function references, garbage-collected objects and atomic accesses.
//!
//! ```text
//! cargo run --release --manifest-path wasm-jit/fuzz-wasmtime/Cargo.toml -- --seconds 600 --seed 1
//! ```

mod theirs;

use std::process::ExitCode;

use wasm_jit_fuzz::Features;

fn main() -> ExitCode {
    wasm_jit_fuzz::driver::main(theirs::Wasmtime::new(false), Features::ALL)
}
