//! The command `wasm-jit-fuzz`: compares wasm-jit with wasmi.

mod theirs;

use std::process::ExitCode;

fn main() -> ExitCode {
    wasm_jit_fuzz::driver::main(theirs::Wasmi::new(), wasm_jit_fuzz::Features::default())
}
