//! A trial in a separate process.
//!
//! The child is this program with a hidden subcommand. It has new pages, a new loop and new
//! threads, so that trials are as independent of each other as possible, and it may crash: a
//! mixture of a CALL and a NOP does. It periodically prints the number of toggles, and finally the
//! trial.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
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

/// The hidden subcommand that runs one trial.
pub(crate) const VERB: &str = "trial";

/// A child that has not ended by this time after its limit got no processor time, or has jumped to
/// a random address: SIGALRM ends it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Toggles between two progress lines.
const REPORT_EVERY: u64 = 1 << 16;

/// The request to the child.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    spec: Spec,
    /// The model that its patches rely on; null for the one in force.
    model: Option<Model>,
}

/// The child's time limit.
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
    match trial {
        Some(trial) => Ok(trial),
        None => {
            let said = String::from_utf8_lossy(&output.stderr);
            let trial = without_result(spec, output.status, said.lines().last())?;
            let (toggles, milliseconds) = (toggles.max(1), start.elapsed().as_millis() as u32);
            Ok(Trial { toggles, executions: toggles, milliseconds, ..trial })
        }
    }
}

/// The trial of a process that ended with this status, and this last line on standard error, before
/// it printed a result. It crashed if a fault of its code killed it: then it has toggled at least
/// once, regardless of its output. Other signals come from outside, and are no evidence.
fn without_result(spec: &Spec, status: ExitStatus, said: Option<&str>) -> Result<Trial, Error> {
    match status.signal() {
        Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP) => Err(Error::Interrupted),
        Some(libc::SIGALRM) => Err(Error::Starved { seconds: limit_of(spec).as_secs() }),
        Some(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP)
            if spec.kernel == Kernel::Call =>
        {
            Ok(Trial { tears: 1, ..Trial::nothing(spec) })
        }
        _ => {
            let said = said.unwrap_or("it printed nothing");
            Err(Error::Trial { reason: format!("it ended with {status}: {said}") })
        }
    }
}

/// Runs, in the child, the trial that `request` describes, and prints its progress.
///
/// # Errors
/// `request` is invalid, or the trial cannot be run.
pub(crate) fn run_as_child(request: &str) -> Result<(), Error> {
    let invalid = |reason: String| Error::Trial { reason };
    let Request { spec, model } =
        serde_json::from_str(request).map_err(|error| invalid(format!("invalid request: {error}")))?;
    // The trial is useless without the parent process.
    let _ = set_pdeathsig(Signal::SIGKILL);
    if spec.kernel == Kernel::Call {
        // A crash is expected, and its core is not needed.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    }
    nix::unistd::alarm::set(limit_of(&spec).as_secs() as u32);
    if let Some(Model { window_bytes, t_max_ticks, wait }) = model {
        let window = FetchWindow::from_bytes(window_bytes)
            .ok_or_else(|| invalid(format!("no fetch window of {window_bytes} bytes")))?;
        // SAFETY: not known to hold, which is what the trial tests. This process patches only the
        // trial's instruction, all of whose mixtures are valid instructions.
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
    writeln!(std::io::stdout(), "{}", text(&trial)).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Depth};

    fn ended(kernel: Kernel, signal: i32) -> Result<u64, Error> {
        let spec = Spec { kernel, ..plan::calls(Depth::Quick)[0] };
        without_result(&spec, ExitStatus::from_raw(signal), None).map(|trial| trial.tears)
    }

    #[test]
    fn only_a_fault_of_a_call_is_a_tear() {
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            assert!(matches!(ended(Kernel::Call, fault), Ok(1)), "{fault}");
            assert!(matches!(ended(Kernel::Opcode, fault), Err(Error::Trial { .. })), "{fault}");
        }
        // The kernel kills a process when memory is short.
        assert!(matches!(ended(Kernel::Call, libc::SIGKILL), Err(Error::Trial { .. })));
        assert!(matches!(ended(Kernel::Call, libc::SIGALRM), Err(Error::Starved { .. })));
        // Signals to the process group interrupt the run.
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            assert!(matches!(ended(Kernel::Call, signal), Err(Error::Interrupted)), "{signal}");
        }
    }
}
