//! `fastinst report`: prints recorded reports, single or merged.

use std::collections::HashSet;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use profiler::binary::locations::{Locations, disambiguate, locate};
use profiler::error::Error;
use profiler::filter::Patterns;
use profiler::report::arcs::{self, Direction};
use profiler::report::{self, SortKey, View, csv, json, json_of_view, text, tree};

use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  fastinst report app.json
  fastinst report app.json --sort p99 --filter 'Tree::*' --limit 20
  fastinst report server.json server.*.json      the processes of a run, merged
  fastinst report app.json --callers hash        who calls hash, and how long these calls take
  fastinst report app.json --tree
  fastinst report app.json --csv > app.csv
  fastinst report app.json --json --limit 1 | jq '.functions[0].latency_ns.p99.value'";

const EXIT_CODES: &str = "\
Exit codes:
  0  printed
  1  a file cannot be read or is not a report of this version, or a function is not in it
  2  wrong usage";

const HINT: &str = "--limit 0 shows all of them";

/// Print the table of recorded reports
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = crate::TEMPLATE)]
pub(crate) struct Report {
    /// Reports that `fastinst record -o FILE.json` wrote. Several are merged: calls and times add
    /// up
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print the table (default)
    #[arg(long, group = "form")]
    text: bool,

    /// Print normalised JSON: known fields only. With --filter or --limit, it has these functions,
    /// and the arcs to them; with --callers or --callees, the function and its arcs
    #[arg(long, group = "form")]
    json: bool,

    /// Print comma-separated values: a header, and a line for each function
    #[arg(long, group = "form")]
    csv: bool,

    /// Print the callers of a function, with their calls and times; also with --json
    #[arg(
        long,
        group = "arcs",
        value_name = "FUNCTION",
        conflicts_with_all = ["csv", "tree", "sort", "filter"]
    )]
    callers: Option<String>,

    /// Print the functions that a function calls, with their calls and times; also with --json
    #[arg(
        long,
        group = "arcs",
        value_name = "FUNCTION",
        conflicts_with_all = ["csv", "tree", "sort", "filter"]
    )]
    callees: Option<String>,

    /// Print a call tree. It is computed from pairs of caller and callee, so a function looks the
    /// same on every path
    #[arg(long, group = "form", conflicts_with_all = ["sort", "filter"])]
    tree: bool,

    /// Order of the functions: total, self, calls, mean, p50, p90, p99, max, off-cpu, by the lower
    /// end of their interval, or name (default: total)
    #[arg(long, value_name = "KEY")]
    sort: Option<SortKey>,

    /// Functions to print: NAME, object:NAME or file:NAME, separated by commas; * matches any text,
    /// ? any character
    #[arg(long, value_name = "PATTERN,...", value_parser = |text: &str| Patterns::parse("filter", text))]
    filter: Option<Patterns>,

    /// Rows, 0 for all (default: 30 of a table on a terminal, otherwise all)
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

pub(crate) fn run(arguments: &Report) -> Result<(), Failure> {
    let text = print(arguments).map_err(|error| Failure { code: 1, message: error.to_string() })?;
    crate::print(text.as_bytes())
}

fn print(arguments: &Report) -> Result<String, Error> {
    let report = merged(&arguments.files, arguments.filter.as_ref())?;
    let view = View {
        sort: arguments.sort.unwrap_or_default(),
        filter: arguments.filter.clone().unwrap_or_default(),
        limit: match arguments.limit {
            Some(0) => None,
            None if !(arguments.csv || arguments.json) && io::stdout().is_terminal() => {
                Some(text::ROWS_ON_A_TERMINAL)
            }
            limit => limit,
        },
        hint: HINT,
    };
    let arcs_of = |name: &str, direction| -> Result<String, Error> {
        let render = if arguments.json { json_of_view::render_arcs } else { arcs::render };
        Ok(render(&report, report.function(name)?, direction, &view))
    };
    Ok(match arguments {
        Report { callers: Some(name), .. } => arcs_of(name, Direction::Callers)?,
        Report { callees: Some(name), .. } => arcs_of(name, Direction::Callees)?,
        Report { json: true, .. } => json_of_view::render(&report, &view),
        Report { csv: true, .. } => csv::render(&report, &view),
        Report { tree: true, .. } => tree::render(&report, &view),
        _ => text::render(&report, &view),
    })
}

/// What identifies a report. The processes of containers may have the same id; a process that calls
/// exec has several reports. Old reports do not say when they were started, but how long they took.
fn part(report: &report::Report) -> (String, u32, u64) {
    let time = if report.started_us == 0 { report.duration_ns } else { report.started_us };
    (report.run.clone(), report.pid, time)
}

/// All reports, merged into one. Writes a warning if they are not those of one run, since a pattern
/// of file names may match older ones.
fn merged(files: &[PathBuf], filter: Option<&Patterns>) -> Result<report::Report, Error> {
    let (first, others) = files.split_first().expect("clap requires a file");
    let mut report = json::read(first)?;
    let mut parts = HashSet::from([part(&report)]);
    for file in others {
        let other = json::read(file)?;
        if !parts.insert(part(&other)) {
            return Err(Error::SameReport { path: file.clone() });
        }
        if let Some((function, of_other)) = report.conflict(&other) {
            return Err(Error::OtherBuild {
                path: file.clone(),
                object: function.object.clone(),
                address: function.address,
                function: function.name.clone(),
                other: of_other.name.clone(),
            });
        }
        report.merge(other);
    }
    let runs = parts.iter().map(|(run, ..)| run).collect::<HashSet<_>>().len();
    if runs > 1 {
        crate::say(format_args!(
            "warning: these are reports of {runs} different runs; their figures are added"
        ));
    }
    // The processes have told apart functions with the same symbol, but not those whose symbols
    // have the same demangled form, such as the constructors of a class.
    let written = files.iter().filter_map(|file| fs::metadata(file).and_then(|found| found.modified()).ok());
    if let Some(first) = written.min() {
        let mut locations = Locations::at(first);
        disambiguate(&mut report.functions, &mut locations);
        if filter.is_some_and(Patterns::ask_for_files) {
            locate(&mut report.functions, &mut locations);
            locations.notes().iter().for_each(|note| crate::say(format_args!("note: {note}")));
        }
    }
    Ok(report)
}
