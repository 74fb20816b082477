//! The command `tmax-probe`: calibrates this machine for patching running code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tmax_probe::cli::run()
}
