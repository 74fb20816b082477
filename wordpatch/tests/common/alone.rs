//! Scenarios in separate processes, for tests of properties of a process, such as the action for a
//! signal.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const IN_CHILD: &str = "WORDPATCH_TEST_IN_CHILD";

/// Whether this is the process of a scenario.
pub fn is_in_child() -> bool {
    std::env::var_os(IN_CHILD).is_some()
}

/// Runs the test `name` in a new process, where it calls `scenario`. Returns the process's result,
/// or `None` in the new process.
fn run(name: &str, scenario: impl FnOnce()) -> Option<(Output, String)> {
    if is_in_child() {
        scenario();
        return None;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(IN_CHILD, "1")
        .output()
        .unwrap();
    let text = [&output.stdout, &output.stderr].map(|stream| String::from_utf8_lossy(stream).into_owned());
    Some((output, text.concat()))
}

/// Runs `scenario`, the body of the test `name`, in a separate process; fails unless it succeeds
/// there.
#[track_caller]
pub fn alone(name: &str, scenario: impl FnOnce()) {
    if let Some((output, text)) = run(name, scenario) {
        let status = output.status;
        assert!(status.success() && text.contains("1 passed"), "{status}: {text}");
    }
}

/// Runs `scenario`, the body of the test `name`, in a separate process, and fails unless `signal`
/// kills that process after the scenario has called [`reached`].
#[track_caller]
pub fn dies_of(signal: libc::c_int, name: &str, scenario: impl FnOnce()) {
    if let Some((output, text)) = run(name, scenario) {
        let status = output.status;
        assert!(status.signal() == Some(signal) && text.contains(REACHED), "{status}: {text}");
    }
}

const REACHED: &str = "all checks before the end have passed";

/// States that the next action of the scenario must kill its process.
pub fn reached() {
    println!("{REACHED}");
}
