//! A trial in a process of its own.
//!
//! The child is this program with a hidden verb. It gets new pages, a new loop and new threads, so
//! that trials are as independent of each other as a program can make them, and it may crash: a
//! mixture of a CALL and a NOP does. It prints how many toggles it has done, a line now and then,
//! and at its end the trial.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use wordpatch::calibration::Model;
use wordpatch::{FetchModel, FetchWindow, TMax};

use super::ThisMachine;
use crate::error::Error;
use crate::trial::{Kernel, Spec, Trial};

/// The child's verb.
pub const VERB: &str = "trial";

/// A child that has not ended this long after its time gets no processor, or has jumped somewhere:
/// it ends itself by SIGALRM.
const PATIENCE: Duration = Duration::from_secs(30);

/// Toggles between two lines of progress.
const REPORT_EVERY: u64 = 1 << 16;

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    spec: Spec,
    /// What its patches rely on; null for what is in force.
    model: Option<Model>,
}

/// How long the child may take.
fn limit_of(spec: &Spec) -> Duration {
    Duration::from_millis(spec.milliseconds.into()) + PATIENCE
}

fn child_error(source: std::io::Error) -> Error {
    Error::Child { source }
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and names")
}

/// Runs a trial in a child process of `program`, under `model` if it patches.
pub(super) fn run_in_child(program: &Path, spec: &Spec, model: Option<Model>) -> Result<Trial, Error> {
    let start = Instant::now();
    let mut child = Command::new(program)
        .args([VERB, &text(&Request { spec: *spec, model })])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(child_error)?;
    let mut toggles = 0;
    let mut trial = None;
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    for line in lines.lines().map_while(Result::ok) {
        match line.parse() {
            Ok(number) => toggles = number,
            Err(_) => trial = serde_json::from_str::<Trial>(&line).ok(),
        }
    }
    let output = child.wait_with_output().map_err(child_error)?;
    match (trial, output.status.signal()) {
        (Some(trial), _) => Ok(trial),
        (None, Some(libc::SIGINT)) => Err(Error::Interrupted),
        (None, Some(libc::SIGALRM)) => Err(Error::Starved { seconds: limit_of(spec).as_secs() }),
        // It crashed: it has toggled at least once, whatever it printed.
        (None, Some(_)) if spec.kernel == Kernel::Call => {
            let (toggles, milliseconds) = (toggles.max(1), start.elapsed().as_millis() as u32);
            Ok(Trial { toggles, executions: toggles, tears: 1, milliseconds, ..Trial::nothing(spec) })
        }
        (None, _) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("it said nothing");
            Err(child_error(std::io::Error::other(format!("it ended with {}: {said}", output.status))))
        }
    }
}

/// The child's side: runs the trial that `request` describes, and prints its course.
///
/// # Errors
/// `request` is no trial, or the trial cannot be run.
pub fn run_as_child(request: &str) -> Result<(), Error> {
    let Request { spec, model } = serde_json::from_str(request).map_err(|error| child_error(error.into()))?;
    // The trial is of no use without the process that asked for it.
    let _ = set_pdeathsig(Signal::SIGKILL);
    if spec.kernel == Kernel::Call {
        // A crash is expected, and nobody wants its core.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    }
    nix::unistd::alarm::set(limit_of(&spec).as_secs() as u32);
    if let Some(Model { window_bytes, t_max_ticks, wait }) = model {
        let window = FetchWindow::from_bytes(window_bytes).ok_or_else(|| {
            child_error(std::io::Error::other(format!("no fetch window of {window_bytes} bytes")))
        })?;
        // SAFETY: not known to hold, which is the question. All that this process patches is the
        // trial's instruction, every mixture of whose forms is a valid instruction.
        unsafe { FetchModel::force(window, t_max_ticks.map(TMax), wait) };
    }
    let mut reported = 0;
    let progress = |toggles| {
        if toggles >= reported + REPORT_EVERY && spec.kernel == Kernel::Call {
            reported = toggles;
            let _ = writeln!(std::io::stdout(), "{toggles}");
        }
    };
    let trial = ThisMachine::in_this_process()?.run_here(&spec, progress)?;
    writeln!(std::io::stdout(), "{}", text(&trial)).map_err(child_error)
}
