//! The command `wasm-jit-fuzz`: compares wasm-jit with wasmi.

mod theirs;

use std::process::ExitCode;

fn main() -> ExitCode {
    let features = wasm_jit_fuzz::Features { relaxed_simd: true, ..Default::default() };
    wasm_jit_fuzz::driver::main(theirs::Wasmi::new(), features)
}
