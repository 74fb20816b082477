//! Reports that are written while the program runs.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::Compiler::Gcc;
use tests::{Report, compile, preloaded, profiled};

/// `fixtures/answers.c`, profiled.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Server {
    fn start(snapshot: &str) -> Self {
        let binary = compile("fixtures/answers.c", &["-O2"], Gcc);
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let options = format!("output={}/report.json:snapshot={snapshot}", folder.path().display());
        let mut command = preloaded(&binary, &[], &options);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is a pipe"));
        Self { child, input, output: BufReader::new(output), folder }
    }

    /// Makes it answer this many times more. Returns how often it has in all.
    fn answer(&mut self, number: u32) -> u64 {
        let input = self.input.as_mut().expect("it has not ended");
        writeln!(input, "{number}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim().parse().expect("it prints a number")
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("report.json")
    }

    /// Waits for a report with this number of answers, written while the program runs.
    fn wait_for(&self, answers: u64) -> Report {
        let start = Instant::now();
        loop {
            if self.path().exists() {
                let report = Report::read(&self.path());
                if calls(&report) == answers {
                    assert!(is_of_a_running_program(&report), "{}", report.json["notes"]);
                    return report;
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no report of {answers} answers");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the program, and returns its last report.
    fn end(mut self) -> Report {
        self.input = None;
        let status = self.child.wait().expect("it can be awaited");
        assert_eq!(status.code(), Some(0));
        Report::read(&self.path())
    }
}

/// The number of answers, which is exact: they are few.
fn calls(report: &Report) -> u64 {
    let Some(function) = report.function("answer") else { return 0 };
    assert_eq!(function["calls"]["low"], function["calls"]["high"], "{function}");
    function["calls"]["value"].as_u64().expect("it is a number")
}

fn is_of_a_running_program(report: &Report) -> bool {
    let notes = report.json["notes"].as_array().expect("there is a list");
    notes.iter().any(|note| note == "written while the program was running")
}

#[test]
fn a_signal_requests_a_report_of_everything_so_far() {
    let mut server = Server::start("USR1");
    let process = Pid::from_raw(server.child.id().cast_signed());
    for (more, all) in [(7, 7), (5, 12)] {
        assert_eq!(server.answer(more), all);
        kill(process, Signal::SIGUSR1).expect("it runs");
        let report = server.wait_for(all);
        assert_eq!(report.json["pid"], server.child.id());
    }
    assert_eq!(server.answer(3), 15);
    let last = server.end();
    assert_eq!(calls(&last), 15);
    assert!(!is_of_a_running_program(&last), "{}", last.json["notes"]);
}

#[test]
fn reports_come_at_an_interval() {
    let mut server = Server::start("1s");
    for (more, all) in [(4, 4), (6, 10)] {
        assert_eq!(server.answer(more), all);
        server.wait_for(all);
    }
    let last = server.end();
    assert!(calls(&last) == 10 && !is_of_a_running_program(&last));
}

/// What one process has merged into a common report cannot be replaced by what it has later.
#[test]
fn reports_of_running_programs_are_not_merged() {
    let binary = compile("fixtures/answers.c", &["-O2"], Gcc);
    let options = "output=/tmp/report.json:merge=1:snapshot=1s";
    let run = tests::run(&mut preloaded(&binary, &[], options));
    assert_eq!(run.status.code(), Some(0));
    assert!(run.stderr.contains("snapshot= and merge=1 exclude each other"), "{}", run.stderr);
}

#[test]
fn a_signal_that_the_program_handles_itself_is_noted() {
    let binary = compile("fixtures/own_usr1.c", &["-O2"], Gcc);
    for (action, is_noted) in [("default", false), ("handle", true), ("ignore", true)] {
        let profiled = profiled(&binary, &[action], "snapshot=USR1");
        let notes = profiled.report().json["notes"].to_string();
        assert_eq!(notes.contains("SIGUSR1 writes no report"), is_noted, "{action}: {notes}");
    }
}
