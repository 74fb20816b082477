//! Scenarios in a process of their own: for tests of what belongs to a process as a whole, such as
//! the action of a signal.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const IN_CHILD: &str = "WORDPATCH_TEST_IN_CHILD";

/// Runs the test `name` in a new process, where it calls `scenario`. Returns what became of it, or
/// nothing there.
fn run(name: &str, scenario: impl FnOnce()) -> Option<(Output, String)> {
    if std::env::var_os(IN_CHILD).is_some() {
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

/// Runs `scenario`, the body of the test `name`, in a process of its own; fails unless it succeeds
/// there.
#[track_caller]
pub fn alone(name: &str, scenario: impl FnOnce()) {
    if let Some((output, text)) = run(name, scenario) {
        let status = output.status;
        assert!(status.success() && text.contains("1 passed"), "{status}: {text}");
    }
}

/// Runs `scenario`, the body of the test `name`, in a process of its own, and fails unless `signal`
/// kills that process after the scenario has called [`reached`].
#[track_caller]
pub fn dies_of(signal: libc::c_int, name: &str, scenario: impl FnOnce()) {
    if let Some((output, text)) = run(name, scenario) {
        let status = output.status;
        assert!(status.signal() == Some(signal) && text.contains(REACHED), "{status}: {text}");
    }
}

const REACHED: &str = "all that comes before the end is right";

/// States that the next thing the scenario does must kill its process.
pub fn reached() {
    println!("{REACHED}");
}
