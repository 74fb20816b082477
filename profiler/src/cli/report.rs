//! `fastinst report`: prints a recorded report again.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use clap::Args;
use profiler::report::{json, text};

use super::Failure;

const EXAMPLES: &str = "\
Examples:
  fastinst report app.json
  fastinst report app.json --limit 20
  fastinst report app.json --json | jq '.functions[0].latency_ns.p99'";

const EXIT_CODES: &str = "\
Exit codes:
  0  printed
  1  the file cannot be read or is no report of this version
  2  wrong usage";

/// Print the table of a recorded report
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
pub(super) struct Report {
    /// A report that `fastinst record -o FILE.json` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Rows of the table (default: all); the functions with the longest totals are kept, the others are only counted
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Print normalised JSON instead of the table: known fields only, functions by total
    #[arg(long, conflicts_with = "limit")]
    json: bool,
}

pub(super) fn run(arguments: &Report) -> Result<(), Failure> {
    let report =
        json::read(&arguments.file).map_err(|error| Failure { code: 1, message: error.to_string() })?;
    let text = if arguments.json { json::to_string(&report) } else { text::render(&report, arguments.limit) };
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // The reader, `head` for example, has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure { code: 1, message: format!("cannot write to standard output: {error}") }),
        Ok(()) => Ok(()),
    }
}
