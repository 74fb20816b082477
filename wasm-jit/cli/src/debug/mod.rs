//! `wasm-jit debug`: runs a program in a debugger.
//!
//! The main thread reads commands, and the program runs on a separate thread. Ctrl-C stops it: the
//! signal is blocked in all threads, and one thread waits for it. With a client of the GDB remote
//! protocol, which stops the program itself, Ctrl-C ends the process.

mod address;
mod commands;
mod memory;
mod port;
mod program;
mod remote;
mod repl;
mod server;
mod show;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, Args};
use nix::sys::signal::Signal;
use wasm_jit_debug::Debugger;

use super::execution::Run;
use super::monitors::Monitors;
use super::signals::{Signals, end_by};
use super::{Failure, replay};
use commands::{Answer, Session};
pub(super) use port::Port;
use program::Launcher;

const EXAMPLES: &str = "\
Examples:
  wasm-jit debug --dir .::/ app.wasm input.txt        then: break main, run, next, print x, help
  wasm-jit debug --invoke fib math.wat 30
  wasm-jit debug --replay app.trace app.wasm          a recorded run, which can go back
  wasm-jit debug --command 'break gcd' --command run --command backtrace --batch \\
      --invoke gcd math.wat 1071 462";

const EXIT_CODES: &str = "\
Exit codes:
  0   the debugger was left, whatever the program did
  1   the program cannot be loaded, or with --batch, a command has failed
  2   mistake in the command line";

/// An option of `run` that the debugger refuses.
struct OnlyRun {
    id: &'static str,
    option: &'static str,
    is_given: fn(&Run) -> bool,
    reason: &'static str,
}

/// The options of `run` that the debugger refuses, which its help does not list.
const ONLY_RUN: [OnlyRun; 5] = {
    const OF_RUN: &str = "is an option of run";
    [
        OnlyRun { id: "counts", option: "--count", is_given: |run| !run.counts.is_empty(), reason: OF_RUN },
        OnlyRun {
            id: "debug_port",
            option: "--debug-port",
            is_given: |run| run.debug_port.is_some(),
            reason: OF_RUN,
        },
        OnlyRun { id: "gdb", option: "--gdb", is_given: |run| run.gdb, reason: OF_RUN },
        OnlyRun { id: "perf_map", option: "--perf-map", is_given: |run| run.perf_map, reason: OF_RUN },
        OnlyRun {
            id: "timeout",
            option: "--timeout",
            is_given: |run| run.limits.timeout.is_some(),
            reason: "would count the time in which the program is stopped",
        },
    ]
};

/// Hides an argument of `run` that the debugger refuses.
fn without_only_run(argument: Arg) -> Arg {
    match ONLY_RUN.iter().any(|only| argument.get_id() == only.id) {
        true => argument.hide(true),
        false => argument,
    }
}

/// The arguments of `debug` and `run` that belong to a program which the debugger starts.
const NOT_WITH_CONNECT: [&str; 29] = [
    "allow_precompiled",
    "allow_unknown_functions",
    "bounds_checks",
    "cache",
    "cache_size",
    "control",
    "counts",
    "debug_port",
    "directories",
    "environment",
    "fuel",
    "gdb",
    "gdb_server",
    "harden_speculation",
    "invoke",
    "lazy",
    "max_heap",
    "max_stack",
    "monitor_format",
    "monitor_out",
    "monitor_toggle",
    "monitors",
    "no_avx512",
    "perf_map",
    "preloads",
    "program",
    "replay",
    "string_constants",
    "timeout",
];

/// Run a WebAssembly program in a debugger
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = super::TEMPLATE)]
#[command(override_usage = "wasm-jit debug [OPTIONS] <FILE> [ARGS]...")]
#[command(mut_args(without_only_run))]
pub(super) struct Debug {
    /// Execute this debugger command first; may be repeated
    #[arg(long = "command", value_name = "COMMAND")]
    commands: Vec<String>,

    /// End after these commands, and at the first of them that fails
    #[arg(long)]
    batch: bool,

    /// Wait for a client of the GDB remote protocol at this port of 127.0.0.1, instead of reading
    /// commands; LLDB 22 or later: process connect --plugin wasm connect://127.0.0.1:PORT
    #[arg(long, value_name = "PORT", conflicts_with_all = ["commands", "batch"])]
    gdb_server: Option<u16>,

    /// Attach to a program that was started by run --debug-port ADDRESS; only --command and
    /// --batch go with it
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = NOT_WITH_CONNECT)]
    connect: Option<String>,

    #[command(flatten)]
    run: Run,
}

pub(super) fn run(mut arguments: Debug) -> Result<ExitCode, Failure> {
    if let Some(address) = &arguments.connect {
        return remote::connect(&address.parse()?, &arguments.commands, arguments.batch);
    }
    if let Some(only) = ONLY_RUN.iter().find(|only| (only.is_given)(&arguments.run)) {
        let message = format!("debug: {} {}", only.option, only.reason);
        return Err(Failure { code: 2, message });
    }
    let requests = arguments.run.monitors.requests()?;
    if !requests.files.is_empty() {
        return Err(Failure::new("--monitors: the debugger runs no monitor modules"));
    }
    if arguments.run.replay.is_some() {
        if arguments.run.monitors.any() {
            let message = "debug --replay: monitors would observe what is repeated: use run --replay";
            return Err(Failure { code: 2, message: message.to_owned() });
        }
        arguments.run.goes_back = true;
    }
    let pauses = arguments.gdb_server.is_none();
    let of_monitors = arguments.run.monitors.signals().into_iter();
    // Before there are threads.
    let signals = Signals::block(of_monitors.chain(pauses.then_some(Signal::SIGINT)))?;
    let module = arguments.run.load()?;
    if let Some(trace) = &arguments.run.replay {
        // A file that is no trace is not the end of a program.
        replay::check_head(trace)?;
    }
    let debugger = Arc::new(Debugger::new(&module));
    let monitors = Monitors::start(&module, &arguments.run.inputs(), &arguments.run.monitors, requests)?;
    let (of_signals, paused) = (monitors.clone(), debugger.clone());
    let launcher = Arc::new(Launcher::new(arguments.run, module, debugger.clone(), monitors));
    signals.obey(move |signal| match signal {
        Signal::SIGINT if pauses => paused.pause(),
        signal => of_signals.act(signal),
    });
    let done = match arguments.gdb_server {
        Some(port) => server::serve_one(&debugger, &launcher, port),
        None => {
            let mut session = Session::new(debugger, launcher.clone());
            converse(&arguments.commands, arguments.batch, |line| session.execute_or_complete(line))
        }
    };
    launcher.end();
    // The monitors have ended.
    signals.obey(end_by);
    done
}

/// Executes the commands of the command line, then those of the terminal.
fn converse(
    commands: &[String],
    is_batch: bool,
    mut execute: impl FnMut(&str) -> Result<Answer, String>,
) -> Result<ExitCode, Failure> {
    for command in commands {
        say(&format!("(wasm-jit) {command}\n"));
        match execute(command) {
            Ok(Answer::Quit) => return Ok(ExitCode::SUCCESS),
            Ok(Answer::Text(text)) => say(&text),
            Err(message) if is_batch => {
                return Err(Failure::new(message).about(format_args!("`{command}`")));
            }
            Err(message) => say(&format!("{message}\n")),
        }
    }
    if !is_batch {
        repl::read(execute)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints for the user of the debugger, who may have gone.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_refused_are_not_listed() {
        let shown = |mut command: clap::Command| command.render_long_help().to_string();
        let debug = shown(Debug::augment_args(clap::Command::new("debug")));
        let run = shown(Run::augment_args(clap::Command::new("run")));
        for OnlyRun { option, .. } in ONLY_RUN {
            let starts = |line: &str| line.trim().split([' ', '=']).next() == Some(option);
            assert!(run.lines().any(starts) && !debug.lines().any(starts), "{option}");
        }
        for option in ["--fuel", "--monitors", "--command"] {
            assert!(debug.contains(option), "{option}");
        }
    }

    #[test]
    fn connect_goes_with_commands_only() {
        let command = Debug::augment_args(clap::Command::new("debug"));
        let ids = command.get_arguments().map(|argument| argument.get_id().as_str());
        let others = ids.filter(|id| !matches!(*id, "connect" | "commands" | "batch"));
        let mut others: Vec<&str> = others.collect();
        let mut listed = NOT_WITH_CONNECT.to_vec();
        others.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, others);
    }
}
