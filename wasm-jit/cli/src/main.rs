//! The command `wasm-jit`: runs WebAssembly programs, and shows their machine code. One file for
//! each subcommand.
//!
//! Results go to standard output. A diagnostic on standard error starts with `wasm-jit: `; further
//! lines have details, such as a backtrace. A subcommand returns a [`Failure`], which is printed
//! here, once; clap reports errors in the command line itself, with exit code 2.

mod attach;
mod code_settings;
mod compile;
mod count;
mod debug;
mod execution;
mod folders;
mod host;
mod limits;
mod listed_probes;
mod loading;
mod monitor_modules;
mod monitors;
mod objdump;
mod output_file;
mod program;
mod record;
mod recordings;
mod replay;
mod replayed;
mod run;
mod script_report;
mod shared_monitors;
mod signals;
mod units;
mod values;
mod whamm;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fastinst_command_line::Generate;
use loading::load;
use nix::sys::signal::{SigHandler, Signal, signal};

const EXAMPLES: &str = "\
Examples:
  wasm-jit run --dir .::/ app.wasm input.txt     run a WASI program that may use this directory
  wasm-jit run --invoke fib math.wat 30          call an exported function, print its results
  wasm-jit run --count main app.wasm             how often a function is called
  wasm-jit run --monitors=hotness app.wasm       what is executed how often
  wasm-jit debug app.wasm                        breakpoints, steps, values
  wasm-jit record -o app.trace app.wasm          record the host's calls, to replay them
  wasm-jit compile --stats app.wasm              how large the code gets, and how fast
  wasm-jit compile -o app.cwasm app.wasm         compile once, for run --allow-precompiled
  wasm-jit objdump --function main app.wasm      WebAssembly and machine code side by side";

const TEMPLATE: &str = "{about}\n\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Run WebAssembly with a single-pass compiler for x86-64
#[derive(Debug, Parser)]
#[command(name = "wasm-jit", version, before_help = EXAMPLES, help_template = TEMPLATE)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(execution::Run),
    Compile(compile::Compile),
    Objdump(objdump::Objdump),
    Monitors(monitors::List),
    Attach(attach::Attach),
    Debug(debug::Debug),
    Whamm(whamm::Whamm),
    Record(record::Record),
    Trace(replay::Trace),
    Reduce(replay::Reduce),
    ReplayGen(replay::ReplayGen),
    #[command(flatten)]
    Generate(Generate),
}

/// The failure of a subcommand.
#[derive(Debug)]
struct Failure {
    /// The exit code.
    code: u8,
    /// The message; its first line is complete by itself.
    message: String,
}

impl Failure {
    /// A failure that the program did not cause: exit code 1.
    fn new(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// As [`Failure::new`], for a file.
    fn of_file(file: &Path, message: impl Display) -> Self {
        Self::new(message).about(file.display())
    }

    /// Prefixes the message with its subject.
    fn about(self, what: impl Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }

    /// Appends what to do next to the first line; a backtrace may follow.
    fn advise(mut self, hint: &str) -> Self {
        let end = self.message.find('\n').unwrap_or(self.message.len());
        self.message.insert_str(end, hint);
        self
    }

    /// The same failure without further lines.
    fn in_one_line(mut self) -> Self {
        self.message.truncate(self.message.lines().next().map_or(0, str::len));
        self
    }

    /// Prints the message; returns the exit code.
    fn report(&self) -> u8 {
        fastinst_command_line::say("wasm-jit", &self.message);
        self.code
    }
}

/// Writes a subcommand's result to standard output.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    fastinst_command_line::print(write).map_err(|error| Failure::new(error).about("standard output"))
}

/// Generates completions or manual pages.
fn generate(what: &Generate) -> Result<ExitCode, Failure> {
    what.run(Cli::command()).map_err(Failure::new)?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the command line, runs the subcommand and returns the exit code.
fn main() -> ExitCode {
    // Where a file may not become larger, the signal would end the process without a message;
    // without it, writing fails.
    // SAFETY: no code of this process runs when the signal is ignored.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    debug_assert!(ignored.is_ok());
    let done = match Cli::parse().verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Compile(arguments) => compile::run(&arguments),
        Verb::Objdump(arguments) => objdump::run(&arguments),
        Verb::Monitors(arguments) => monitors::run(&arguments),
        Verb::Attach(arguments) => attach::run(&arguments),
        Verb::Debug(arguments) => debug::run(arguments),
        Verb::Whamm(arguments) => whamm::run(&arguments),
        Verb::Record(arguments) => record::record(arguments),
        Verb::Trace(arguments) => replay::trace(arguments),
        Verb::Reduce(arguments) => replay::reduce(arguments),
        Verb::ReplayGen(arguments) => replay::generate(&arguments),
        Verb::Generate(what) => generate(&what),
    };
    done.unwrap_or_else(|failure| ExitCode::from(failure.report()))
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
        assert!(page("wasm-jit.1").contains("Examples:"));
        assert!(page("wasm-jit-objdump.1").contains(".SH OPTIONS"));
    }

    #[test]
    fn every_verb_states_its_exit_codes() {
        let mut command = Cli::command();
        command.build();
        let others = ["help", "completions", "man"];
        for verb in command.get_subcommands().filter(|verb| !others.contains(&verb.get_name())) {
            let help = verb.clone().render_help().to_string();
            assert!(help.contains("Exit codes:"), "{}", verb.get_name());
        }
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
        check("wasm-jit", "Usage: wasm-jit <COMMAND>");
        check("wasm-jit start", "unrecognized subcommand 'start'");
        check("wasm-jit run", "<FILE>");
        check("wasm-jit run --directory . a.wasm", "unexpected argument '--directory'");
        check("wasm-jit run --dir :: a.wasm", "expected HOST or HOST::GUEST");
        check("wasm-jit run --env =x a.wasm", "expected NAME=VALUE or NAME");
        check("wasm-jit run --cache-size 1M a.wasm", "--cache[=<DIR>]");
        check("wasm-jit run --lazy --cache a.wasm", "cannot be used with '--cache[=<DIR>]'");
        check("wasm-jit run --timeout soon a.wasm", "expected a duration such as 10s, 500ms or 2m");
        check("wasm-jit run --max-stack 1T a.wasm", "expected a number of bytes such as 65536, 512K or 8M");
        check("wasm-jit compile --threads 0 a.wasm", "'0' for '--threads <N>': expected a number from 1 on");
        let record = "wasm-jit record -o a.trace --from f --calls";
        check(&format!("{record} 0 a.wasm"), "'0' for '--calls <N>': expected a number from 1 on");
        check(&format!("{record} x a.wasm"), "'x' for '--calls <N>': expected a number from 1 on");
        check("wasm-jit attach 1 record --calls 0 -o a", "'--calls <N>': expected a number from 1 on");
        check("wasm-jit compile --json a.wasm", "--stats");
        check("wasm-jit compile --fuel 5 a.wasm", "unexpected argument");
        check("wasm-jit run --replay a.trace --dir . a.wasm", "cannot be used with");
        check("wasm-jit objdump", "<FILE>");
    }

    #[test]
    fn options_after_the_file_are_the_programs() {
        let line = "wasm-jit run --env A=1 a.wasm --env B=2 -- -x";
        let Verb::Run(run) = Cli::try_parse_from(line.split(' ')).unwrap().verb else {
            panic!("another verb")
        };
        assert_eq!(run.program(), ["a.wasm", "--env", "B=2", "--", "-x"]);
    }
}
