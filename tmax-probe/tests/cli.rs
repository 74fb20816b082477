//! The command as a user runs it. Nothing here depends on this machine's instruction fetch:
//! findings are those of simulated machines.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// The command with its own home directory.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tmax-probe"));
    command.args(arguments).env("HOME", home);
    for name in ["FASTINST_CALIBRATION", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command
}

#[track_caller]
fn run(home: &Path, arguments: &[&str], expected: i32) -> (String, String) {
    let Output { status, stdout, stderr } = command(home, arguments).output().expect("it can be started");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert_eq!(status.code(), Some(expected), "{arguments:?}: {stdout}\n{stderr}");
    (stdout, stderr)
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

#[test]
fn a_simulated_machine_is_recovered_and_nothing_is_kept() {
    let home = home();
    let (stdout, stderr) = run(home.path(), &["--simulate", "16:500"], 0);
    assert!(stdout.contains("fetch window   16 bytes"), "{stdout}");
    assert!(stderr.matches("(recovered)").count() == 2, "{stderr}");
    assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 0, "no file in the user's home");
    // A minute is enough for the window only; and if tears occur only across lines, nothing shows
    // that a tear inside a line would be detected.
    let (stdout, _) = run(home.path(), &["--quick", "--simulate", "16:500"], 3);
    assert!(
        stdout.contains("fetch window   16 bytes") && stdout.contains("T_max          not tried"),
        "{stdout}"
    );
    let (stdout, _) = run(home.path(), &["--simulate", "64:500"], 3);
    assert!(
        stdout.contains("fetch window   not known: there were tears across cache lines only"),
        "{stdout}"
    );
}

#[test]
fn many_simulated_machines_are_counted_and_none_is_unsafe() {
    let home = home();
    let (stdout, _) = run(home.path(), &["--quick", "--simulate", "100"], 0);
    assert!(stdout.contains("100 simulated machines: 0 unsafe results"), "{stdout}");
    let (stdout, _) = run(home.path(), &["--quick", "--simulate", "100", "--json"], 0);
    let value: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&value["machines"], &value["unsafe_calibrations"]), (&100.into(), &0.into()), "{stdout}");
}

#[test]
fn json_has_the_promised_keys_and_report_reads_it_again() {
    let home = home();
    let file = home.path().join("run.json");
    let file = file.to_str().expect("UTF-8");
    let (stdout, _) = run(home.path(), &["--simulate=32:800", "--json", "--output", file], 0);
    let value: Value = serde_json::from_str(&stdout).expect("JSON");
    for key in ["version", "cpu", "window_bytes", "t_max_ticks", "confidence", "tears"] {
        assert!(!value[key].is_null(), "{key}");
    }
    assert_eq!(value["window_bytes"], 32);
    let plot = home.path().join("plot.svg");
    let (report, _) = run(home.path(), &["report", file, "--plot", plot.to_str().expect("UTF-8")], 0);
    assert!(report.contains("fetch window   32 bytes"), "{report}");
    assert!(fs::read_to_string(plot).expect("a plot").starts_with("<svg"));
}

#[test]
fn files_that_cannot_be_written_are_found_before_the_measurement() {
    let home = home();
    for file in ["missing/results.json", "missing/plot.svg"] {
        let path = home.path().join(file);
        let option = if file.ends_with("json") { "--output" } else { "--plot" };
        let arguments = ["--simulate=32:800", option, path.to_str().unwrap()];
        let (stdout, stderr) = run(home.path(), &arguments, 1);
        assert_eq!(stdout, "");
        assert!(stderr.contains(file) && stderr.lines().count() == 1, "{stderr}");
    }
    // A file that is there is not touched, and none remains of a run without results.
    let unused = home.path().join("unused.json");
    let arguments =
        ["--simulate=32:800", "--output", unused.to_str().unwrap(), "--plot", "/nowhere/plot.svg"];
    run(home.path(), &arguments, 1);
    assert!(!unused.exists());
}

#[test]
fn invalid_results_are_rejected_in_one_line() {
    let home = home();
    for (text, expected) in [
        ("", "no results"),
        ("{}", "no version"),
        ("[1, 2", "no results"),
        ("{\"version\": 99}", "version 99"),
        ("{\"version\": 1}", "version 1"),
        ("{\"version\": 2}", "missing field"),
    ] {
        let file = home.path().join("run.json");
        fs::write(&file, text).expect("written");
        let (stdout, stderr) = run(home.path(), &["report", file.to_str().expect("UTF-8")], 1);
        assert!(stdout.is_empty() && stderr.lines().count() == 1 && stderr.contains(expected), "{stderr}");
    }
    let (_, stderr) = run(home.path(), &["report", "/nowhere/run.json"], 1);
    assert!(stderr.contains("/nowhere/run.json"), "{stderr}");
}

#[test]
fn a_full_disk_for_the_log_does_not_end_a_run() {
    let home = home();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a device of every Linux");
    let output = command(home.path(), &["--simulate", "16:500"]).stderr(full).output().expect("it runs");
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn show_and_verify_say_what_to_do_without_a_calibration() {
    let home = home();
    for verb in ["show", "verify"] {
        let (stdout, stderr) = run(home.path(), &[verb], 3);
        assert!(stdout.is_empty() && stderr.contains("run tmax-probe"), "{verb}: {stderr}");
    }
    let (stdout, stderr) = run(home.path(), &["show", "--json"], 3);
    assert_eq!(stdout, "null\n");
    assert!(stderr.contains("run tmax-probe"), "{stderr}");
    let (_, stderr) = run(home.path(), &["verify", "--toggles", "256"], 3);
    assert!(stderr.contains("--window"), "{stderr}");
    let folder = home.path().join(".config/fastinst");
    fs::create_dir_all(&folder).expect("made");
    fs::write(folder.join("calibration.toml"), "window_bytes = 64\n").expect("written");
    for verb in ["show", "verify"] {
        let (_, stderr) = run(home.path(), &[verb], 1);
        assert!(stderr.contains("changed after it was made") && stderr.lines().count() == 1, "{stderr}");
    }
    assert_eq!(run(home.path(), &["show", "--json"], 1).0, "null\n");
}

/// Number of trials in a journal.
fn trials(journal: &Path) -> usize {
    fs::read_to_string(journal).map_or(0, |text| text.lines().count().saturating_sub(1))
}

/// Interrupts a run and its trial as a terminal or a service manager would, by a signal to the
/// process group, once its journal has more than this many trials. Returns its exit code and
/// standard error.
fn interrupt(mut child: Child, signal: Signal, journal: &Path, more_than: usize) -> (Option<i32>, String) {
    while trials(journal) <= more_than {
        assert_eq!(child.try_wait().expect("a child"), None, "it ended by itself");
        std::thread::yield_now();
    }
    killpg(Pid::from_raw(child.id() as i32), signal).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn an_interrupted_full_run_is_resumed() {
    let home = home();
    let journal = home.path().join(".local/state/fastinst/tmax-probe.journal");
    let start = |arguments: &[&str]| {
        command(home.path(), arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("it can be started")
    };
    let (code, stderr) = interrupt(start(&["--full"]), Signal::SIGINT, &journal, 0);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("`tmax-probe --full` resumes from"), "{stderr}");
    let first = trials(&journal);

    let (code, stderr) = interrupt(start(&["--full"]), Signal::SIGTERM, &journal, first);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("`tmax-probe --full` resumes from"), "{stderr}");
    assert!(stderr.contains(&format!("resuming after {first} trials")), "{stderr}");
    assert!(trials(&journal) > first);
}
