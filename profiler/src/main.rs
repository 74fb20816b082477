//! The command `fastinst`: starts programs under the profiler and prints their reports.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
