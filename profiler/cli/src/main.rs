//! The command `fastinst`: starts programs under the profiler and prints their reports. One file
//! for each subcommand.
//!
//! Results go to standard output. A diagnostic is one line on standard error that starts with
//! `fastinst: `. A subcommand returns a [`Failure`], which is printed here, once; clap reports
//! errors in the command line itself, with exit code 2.

mod attach;
mod info;
mod record;
mod report;
mod run;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fastinst_command_line::Generate;

const EXAMPLES: &str = "\
Examples:
  fastinst record -- ./app --size 10         profile, the table goes to stderr at exit
  fastinst record -o app.json -- ./app       profile into a file
  fastinst report app.json --limit 20        print the 20 functions with the longest totals
  fastinst report app.json --callers hash    print who calls hash
  fastinst run calls.mm -- ./app             observe calls with a script
  fastinst attach 1234 calls.mm --for 10     observe a process that was started with run --control
  fastinst info ./app                        print what can be measured in a binary";

const TEMPLATE: &str = "{about}\n\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Measure the latency of functions in programs compiled with -finstrument-functions
#[derive(Debug, Parser)]
#[command(name = "fastinst", version, before_help = EXAMPLES, help_template = TEMPLATE)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(record::Record),
    Run(run::Run),
    Attach(attach::Attach),
    Report(report::Report),
    Info(info::Info),
    #[command(flatten)]
    Generate(Generate),
}

/// The failure of a subcommand.
#[derive(Debug)]
struct Failure {
    /// The exit code.
    code: u8,
    /// The diagnostic, as one line.
    message: String,
}

impl Failure {
    /// A failure with exit code 1.
    fn new(message: impl ToString) -> Self {
        Self { code: 1, message: message.to_string() }
    }
}

/// Writes a diagnostic to standard error.
fn say(message: impl Display) {
    fastinst_command_line::say("fastinst", message);
}

/// Writes a subcommand's result to standard output.
fn print(text: &[u8]) -> Result<(), Failure> {
    fastinst_command_line::print(|out| out.write_all(text))
        .map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Record(arguments) => record::run(&arguments).map(|never| match never {}),
        Verb::Run(arguments) => run::run(&arguments).map(|never| match never {}),
        Verb::Attach(arguments) => attach::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Info(arguments) => info::run(&arguments),
        Verb::Generate(what) => what.run(Cli::command()).map_err(Failure::new),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            say(message);
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert_eq!(fastinst_command_line::wide_lines(&Cli::command()), Vec::<String>::new());
    }

    #[test]
    fn every_verb_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let man = Generate::Man { directory: folder.path().to_path_buf() };
        man.run(Cli::command()).expect("the folder can be written");
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a page");
        assert!(page("fastinst.1").contains("Examples:"));
        assert!(page("fastinst-report.1").contains(".SH OPTIONS"));
    }

    #[test]
    fn mistakes_are_found_before_anything_runs() {
        #[track_caller]
        fn check(line: &str, expected: &str) {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            let message = error.to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
        check("fastinst", "Usage: fastinst <COMMAND>");
        check("fastinst profile", "unrecognized subcommand 'profile'");
        check("fastinst record", "PROGRAM");
        check("fastinst record --", "PROGRAM");
        check("fastinst record --samples 3 -- a", "unexpected argument '--samples'");
        check("fastinst record --budget 0% -- a", "budget=0%: expected a percentage");
        check("fastinst record --counts all -- a", "counts=all: expected sampled or exact");
        check("fastinst record --only a,,b -- a", "only=a,,b: expected patterns");
        check("fastinst record --merge -- a", "--output <FILE>");
        check("fastinst record --text rwx -- a", "text=rwx: expected private or alias or mprotect");
        check("fastinst record -o a.csv -- a", "output=a.csv: expected stderr or a file name");
        check("fastinst record -o %n.txt -- a", "`%n` is not a valid sequence");
        check("fastinst attach 1", "<SCRIPT>");
        check("fastinst attach x a.mm", "invalid value 'x' for '<PID>'");
        check("fastinst attach 1 a.mm --for 0", "invalid value '0' for '--for <SECONDS>'");
        check("fastinst attach 1 a.mm --for soon", "invalid value 'soon' for '--for <SECONDS>'");
        check("fastinst info", "<FILE>");
        check("fastinst report", "<FILE>");
        check("fastinst report a.json --limit x", "invalid value 'x' for '--limit <N>'");
        check("fastinst report a.json --csv --callers f", "cannot be used with");
        check("fastinst report a.json --callees g --callers f", "cannot be used with");
        check("fastinst report a.json --json --csv", "cannot be used with");
        check("fastinst report a.json --tree --callers f", "cannot be used with");
        check("fastinst report a.json --callers f --sort self", "cannot be used with");
        check("fastinst report a.json --sort p95", "sort=p95: expected total, self,");
        check("fastinst report a.json --filter a,", "filter=a,: expected patterns");
    }
}
