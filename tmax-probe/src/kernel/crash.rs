//! Trials whose tears crash: each runs in a child process, and its crashes are counted.
//!
//! The child is this program with a hidden verb. It prints how many toggles it has done, a line now and then, and at the end
//! the trial. When it crashes, the last line says how far it got, and the next child goes on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};

use super::ThisMachine;
use crate::error::Error;
use crate::trial::{Spec, Trial};

/// The child's verb.
pub const VERB: &str = "crash-trial";

/// After so many crashes the point is made.
const ENOUGH: u64 = 20;

/// A child that has not ended so long after its time has jumped somewhere and is killed: a crash as well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Toggles between two lines of progress.
const REPORT_EVERY: u64 = 1 << 16;

fn child_error(source: std::io::Error) -> Error {
    Error::Child { source }
}

/// Runs a trial in child processes of `program`, a new one after each crash.
pub(super) fn run_in_child(program: &Path, spec: &Spec) -> Result<Trial, Error> {
    let start = Instant::now();
    let mut total = Trial::nothing(spec);
    loop {
        let elapsed = start.elapsed().as_millis() as u32;
        let left = Spec {
            toggles: spec.toggles.saturating_sub(total.toggles),
            milliseconds: spec.milliseconds.saturating_sub(elapsed),
            ..*spec
        };
        total.milliseconds = elapsed;
        if left.toggles == 0 || left.milliseconds == 0 || total.tears >= ENOUGH {
            return Ok(total);
        }
        let text = serde_json::to_string(&left).expect("numbers");
        let mut child = Command::new(program)
            .args([VERB, &text])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(child_error)?;
        let mut toggles = 0;
        let mut whole = None;
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        for line in lines.lines().map_while(Result::ok) {
            match line.parse() {
                Ok(number) => toggles = number,
                Err(_) => whole = serde_json::from_str::<Trial>(&line).ok(),
            }
        }
        let status = child.wait().map_err(child_error)?;
        match whole {
            Some(trial) => {
                total.toggles += trial.toggles;
                total.executions += trial.executions;
            }
            None if status.signal().is_some() => {
                // It has toggled once, whatever it has told.
                let toggles = toggles.max(1);
                total.toggles += toggles;
                total.executions += toggles;
                total.tears += 1;
            }
            None => return Err(child_error(std::io::Error::other(format!("it ended with {status}")))),
        }
    }
}

/// The child's side: runs the trial that `text` describes, and prints its course.
///
/// # Errors
/// `text` is no trial, or the trial cannot be run.
pub fn run_as_child(text: &str) -> Result<(), Error> {
    let spec: Spec = serde_json::from_str(text).map_err(|error| child_error(error.into()))?;
    // A crash is expected, and nobody wants its core.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let limit = Duration::from_millis(spec.milliseconds.into()) + PATIENCE;
    nix::unistd::alarm::set(limit.as_secs() as u32);
    let mut reported = 0;
    let progress = |toggles| {
        if toggles >= reported + REPORT_EVERY {
            reported = toggles;
            let _ = writeln!(std::io::stdout(), "{toggles}");
        }
    };
    let trial = ThisMachine::in_this_process()?.run_here(&spec, progress)?;
    let line = serde_json::to_string(&trial).expect("numbers");
    writeln!(std::io::stdout(), "{line}").map_err(child_error)
}
