//! `fastinst attach`: observes calls in a running process, with a script.
//!
//! The connection is the attachment (`profiler::script::attach`): the script observes until this
//! process closes its half or ends; then its probes are deactivated.

use std::fs;
use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use profiler::script::ScriptFormat;
use profiler::script::attach::{Answer, Request, VERSION, connect, receive_answer, send};

use crate::Failure;
use crate::run::{compile, report_format};

const EXAMPLES: &str = "\
Examples:
  fastinst run --control -- ./server &          nothing is observed yet, and nothing costs time
  fastinst attach $! calls.mm                   Ctrl-C ends the observation and prints the report
  fastinst attach $! latency.mm --for 10        the report comes after ten seconds
  fastinst attach $! calls.mm --for 60 -o calls.json

A process that another program starts is prepared by two variables of its environment:
  LD_PRELOAD=/usr/local/lib/libfastinst_script.so FASTINST_SCRIPT=control=1 ./server";

const EXIT_CODES: &str = "\
When the observation ends, all probes that the script needed are switched off. Several scripts may
be attached at a time.

Exit codes:
  0   the report is complete
  1   the process does not listen, refuses the script, or was killed; or the script has failed, and
      the report is what it had counted before
  2   wrong usage, or the script has mistakes; nothing was observed";

/// Observe the calls in a running process with a script
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = EXIT_CODES, help_template = crate::TEMPLATE)]
pub(crate) struct Attach {
    /// End the observation after this time (default: at Ctrl-C, or when the process ends)
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,

    /// The report's destination (default: stdout)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The format of the report (default: by the ending of FILE, .txt, .json, .csv or
    /// .folded; text if it has none)
    #[arg(long, value_name = "text|json|csv|folded", value_parser = ScriptFormat::named)]
    format: Option<ScriptFormat>,

    /// The id of the process, which was started by fastinst run --control or with
    /// FASTINST_SCRIPT=control=1
    #[arg(value_name = "PID", value_parser = process_id)]
    process: u32,

    /// The script, in the Whamm language
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,
}

fn process_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| "expected the id of a process, such as 4242".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("expected a number of seconds above 0".to_owned()),
    }
}

/// Attaches the script, and prints its report when the observation has ended.
pub(crate) fn run(arguments: &Attach) -> Result<(), Failure> {
    let process = arguments.process;
    let name = arguments.script.display().to_string();
    let not_utf8 = |_| Failure { code: 2, message: format!("{name} is not UTF-8") };
    let compiled = compile(&arguments.script)?;
    let source = String::from_utf8(compiled.source.clone()).map_err(not_utf8)?;
    if let Some(output) = &arguments.output {
        check_directory(output)?;
    }
    let output_name = arguments.output.as_ref().map(|output| output.display().to_string());
    let format = report_format(arguments.format, output_name.as_deref())?;
    compiled.fits(format)?;
    // Before the threads are created, which inherit the mask.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().map_err(Failure::new)?;

    let lost = |error: io::Error| Failure::new(format!("process {process}: {error}"));
    let stream = Arc::new(connect(process).map_err(Failure::new)?);
    let request = Request { version: VERSION, name, source, format: format.name().to_owned() };
    send(&stream, &request).map_err(lost)?;
    let mut answers = BufReader::new(&*stream);
    match receive_answer(&mut answers).map_err(lost)? {
        Some(Answer::Attached { matched, functions }) => {
            let until = match arguments.duration {
                Some(duration) => format!("for {} s", duration.as_secs_f64()),
                None => "until Ctrl-C".to_owned(),
            };
            crate::say(format_args!(
                "process {process}: observing {matched} of {functions} functions {until}"
            ));
        }
        Some(Answer::Refused { reason }) => return Err(Failure::new(format!("process {process}: {reason}"))),
        _ => return Err(Failure::new(format!("process {process} has ended"))),
    }
    end_later(&stream, signals, arguments.duration);
    match receive_answer(&mut answers).map_err(lost)? {
        Some(Answer::Report { text, reason }) => {
            deliver(&text, arguments.output.as_deref())?;
            match reason {
                Some(reason) if reason.starts_with("the script has failed") => {
                    Err(Failure::new(format!("process {process}: {reason}")))
                }
                Some(reason) => {
                    crate::say(format_args!("process {process}: {reason}"));
                    Ok(())
                }
                None => Ok(()),
            }
        }
        _ => Err(Failure::new(format!("process {process} was killed; there is no report"))),
    }
}

/// Ends the observation after a time, and at a signal; a second signal ends this process.
fn end_later(stream: &Arc<UnixStream>, signals: SigSet, after: Option<Duration>) {
    let end = |stream: &UnixStream| {
        // An error means that the process has closed the connection.
        let _ = stream.shutdown(Shutdown::Write);
    };
    let of_signals = Arc::clone(stream);
    thread::spawn(move || {
        let _ = signals.wait();
        end(&of_signals);
        let signal = signals.wait().map_or(0, |signal| signal as i32);
        process::exit(128 + signal);
    });
    if let Some(after) = after {
        let of_time = Arc::clone(stream);
        thread::spawn(move || {
            thread::sleep(after);
            end(&of_time);
        });
    }
}

/// Checked beforehand, so that the report is not lost in the end.
fn check_directory(output: &Path) -> Result<(), Failure> {
    let directory = output.parent().filter(|directory| !directory.as_os_str().is_empty());
    match directory {
        Some(directory) if !directory.is_dir() => {
            let message = format!("{} is not a directory; make it first", directory.display());
            Err(Failure { code: 2, message })
        }
        _ => Ok(()),
    }
}

fn deliver(text: &str, output: Option<&Path>) -> Result<(), Failure> {
    let Some(output) = output else { return crate::print(text.as_bytes()) };
    fs::write(output, text).map_err(|error| {
        // The terminal is better than nowhere.
        let _ = crate::print(text.as_bytes());
        Failure::new(format!("{}: {error}; the report is on standard output", output.display()))
    })
}
