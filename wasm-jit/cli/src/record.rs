//! `wasm-jit record`: runs a program, and records what the host does.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::Failure;
use super::execution::Run;
use super::recordings::{FunctionCalls, Recorded};
use super::run;

const EXAMPLES: &str = "\
Examples:
  wasm-jit record -o app.trace --dir .::/ app.wasm input.txt
  wasm-jit record --from parse -o app.trace app.wasm        one call of a function
  wasm-jit record --from parse:1000 --calls 20 -o app.trace app.wasm
  wasm-jit record --each -o traces --preload lib=lib.wasm app.wasm   program.trace, lib.trace
  wasm-jit trace dump app.trace                             what was recorded
  wasm-jit replay-gen app.trace app.wasm -o bench.wasm      the same run, alone, in any engine";

const EXIT_CODES: &str = "\
Exit codes: as for wasm-jit run, but 1 instead of 0 if the function of --from was not called, or its
calls could not be recorded. The trace is complete up to the last call between the program and its
host, however the program ends.";

/// Run a program, and record what its host does
///
/// All calls between the program and its host are recorded, and all changes by the host in
/// memories, globals and tables. Programs with threads are refused. Calls between the program and
/// its host need more stack than without a recording: if they are nested thousands of times,
/// --max-stack must be larger.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
#[command(override_usage = "wasm-jit record [OPTIONS] --output <TRACE> <FILE> [ARGS]...")]
#[command(mut_arg("replay", |replay| replay.hide(true)))]
pub(super) struct Record {
    /// The trace; overwritten if it exists
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,

    /// Write a trace of each module, in one run: `program.trace` and, for each
    /// `--preload NAME=FILE`, `NAME.trace`, in the directory TRACE, which is created if it does not
    /// exist. Each can be replayed separately, with its module
    #[arg(long, requires = "preloads", conflicts_with = "from")]
    each: bool,

    #[command(flatten)]
    calls: FunctionCalls,

    #[command(flatten)]
    run: Run,
}

pub(super) fn record(arguments: Record) -> Result<ExitCode, Failure> {
    let Record { output, each, calls, mut run } = arguments;
    if run.replay.is_some() {
        return Err(Failure { code: 2, message: "record: a replay is recorded already".to_owned() });
    }
    run.recorded = Some(Recorded { output, each, calls });
    run::run(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_not_recorded() {
        let mut command = Record::augment_args(clap::Command::new("record"));
        let help = command.render_long_help().to_string();
        assert!(help.contains("--output") && help.contains("--dir") && !help.contains("--replay"));
    }
}
