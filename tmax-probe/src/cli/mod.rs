//! The command line: one file for each subcommand.
//!
//! Results go to standard output, diagnostics and progress to standard error. A subcommand returns
//! its exit code, or a `Failure`, which is printed here, once.

mod calibrate;
mod progress;
mod report;
mod show;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::Error;
use crate::kernel::child;
use clap::{CommandFactory, Parser, Subcommand};
use fastinst_command_line::Generate;

const EXAMPLES: &str = "\
Examples:
  tmax-probe                                   calibrate this machine: about five minutes
  tmax-probe --quick                           the same in less than one
  tmax-probe --output run.json --plot run.svg  keep every trial, and draw the figures
  tmax-probe verify                            does the stored calibration still hold?
  tmax-probe verify --watch                    check it until interrupted, on idle processors
  tmax-probe report run.json                   the report of an earlier run";

const AFTER: &str = "\
Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    not known: there is no calibration, or none results, or the check could not detect tears
  4    a check failed
  130  interrupted

The calibration is written to, and read by wordpatch from, the first of:
  $FASTINST_CALIBRATION (none: use no calibration)
  $XDG_CONFIG_HOME/fastinst/calibration.toml (default ~/.config)
  /etc/fastinst/calibration.toml (read only; see --calibration)";

const TEMPLATE: &str = "{about}\n\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Measure the fetch window and T_max of this machine, and store them for wordpatch
#[derive(Debug, Parser)]
#[command(
    name = "tmax-probe",
    version,
    before_help = EXAMPLES,
    after_help = AFTER,
    help_template = TEMPLATE,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    calibrate: calibrate::Calibrate,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Show(show::Show),
    Verify(verify::Verify),
    Report(report::Report),
    #[command(flatten)]
    Generate(Generate),
    /// One trial; used by the program itself.
    #[command(name = child::VERB, hide = true)]
    Trial {
        request: String,
    },
}

/// Exit codes other than 0 and 2.
mod code {
    pub(super) const FAILED: u8 = 1;
    pub(super) const UNDECIDED: u8 = 3;
    pub(super) const CHECK_FAILED: u8 = 4;
    pub(super) const INTERRUPTED: u8 = 130;
}

/// The failure of a subcommand: exit code and one line.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = if matches!(error, Error::Interrupted) { code::INTERRUPTED } else { code::FAILED };
        Self { code, message: error.to_string() }
    }
}

/// Prints a line to standard error. A run of hours does not end because its log cannot be written.
fn say(line: &str) {
    fastinst_command_line::say("tmax-probe", line);
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), Failure> {
    fastinst_command_line::print(|out| out.write_all(text.as_bytes()))
        .map_err(|error| Failure { code: code::FAILED, message: format!("standard output: {error}") })
}

/// Generates completions or manual pages.
fn generate(what: &Generate) -> Result<u8, Failure> {
    what.run(Cli::command())
        .map(|()| 0)
        .map_err(|error| Failure { code: code::FAILED, message: error.to_string() })
}

/// The path of this program, for running trials in separate processes.
fn program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// Parses the command line, runs the subcommand and returns the exit code. Blocks until it has
/// ended; prints to standard output and standard error.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb {
        None => calibrate::run(&cli.calibrate),
        Some(Verb::Show(arguments)) => show::run(&arguments),
        Some(Verb::Verify(arguments)) => verify::run(&arguments),
        Some(Verb::Report(arguments)) => report::run(&arguments),
        Some(Verb::Generate(what)) => generate(&what),
        Some(Verb::Trial { request }) => child::run_as_child(&request).map(|()| 0).map_err(Failure::from),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            say(&message);
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
        generate(&Generate::Man { directory: folder.path().to_path_buf() })
            .expect("the folder can be written");
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a page");
        assert!(page("tmax-probe.1").contains("Examples:"));
        assert!(page("tmax-probe-report.1").contains(".SH OPTIONS"));
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
        check("tmax-probe --quick --full", "cannot be used with");
        check("tmax-probe --quick show", "cannot be used with");
        check("tmax-probe --plot x.gif", ".svg or .png");
        check("tmax-probe --simulate 24:800", "8, 16, 32 or 64");
        check("tmax-probe --simulate 32:0", "1 to 2000");
        check("tmax-probe --simulate many", "WINDOW:T_MAX");
        check("tmax-probe --simulate 0", "1 to 100000");
        check("tmax-probe verify --watch --window 64", "cannot be used with");
        check("tmax-probe verify --window 48", "8, 16, 32 or 64");
        check("tmax-probe verify --toggles 0", "1..");
        check("tmax-probe report", "required");
        check("tmax-probe --restart", "--full");
    }
}
