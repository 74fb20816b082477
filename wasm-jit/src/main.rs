//! The command `wasm-jit`: runs WebAssembly programs, and shows what they are compiled to.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
