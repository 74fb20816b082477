//! The command `tmax-probe`: calibrates this machine for the patching of running code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
