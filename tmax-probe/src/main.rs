//! The command `tmax-probe`: calibrates this machine for patching running code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
