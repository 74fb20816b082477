//! The file descriptors of a profiled program: their numbers, and what happens to them, are the
//! same as without the profiler.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tests::Compiler::{Clang, Gcc};
use tests::{TIME_LIMIT, bare, compile, preloaded, profiled, run};

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

#[test]
fn numbers_are_those_that_the_program_expects() {
    let binary = compile("fixtures/descriptors.c", &["-O2", "-pthread"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let without = run(&mut bare(&binary, &[text(&data)]));
    assert_eq!(String::from_utf8_lossy(&without.stdout), "0 descriptors had other numbers\n");
    let with = profiled(&binary, &[text(&data)], "");
    with.run.assert_same(&without, "descriptors.c");
    assert_eq!(fs::read_to_string(&data).unwrap(), "", "the program's data");
    // The reports are complete, though the program has closed every descriptor that it did not
    // know.
    let children = with.with_samples_of("own_work").count();
    assert!(children > 1, "{} reports", with.reports.len());
}

#[test]
fn numbers_are_those_that_a_program_expects_whose_library_is_instrumented() {
    let library = compile("fixtures/plugin_a.c", &["-O2", "-shared", "-fPIC"], Gcc);
    let binary = compile("fixtures/late_library.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[text(&library)]));
    assert_eq!(String::from_utf8_lossy(&without.stdout), "0 descriptors had other numbers\n");
    let with = profiled(&binary, &[text(&library)], "");
    with.run.assert_same(&without, "late_library.c");
    assert!(with.with_samples_of("plugin_run").next().is_some(), "{} reports", with.reports.len());
}

#[test]
fn a_daemon_is_reported_and_its_descriptors_are_its_own() {
    for compiler in [Gcc, Clang] {
        let binary = compile("fixtures/daemon.c", &["-O2"], compiler);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let written = |name: &str| fs::read_to_string(path(name)).expect("the daemon's data");

        let without = run(&mut bare(&binary, &[text(&path("without"))]));
        let to_file = profiled(&binary, &[text(&path("to_file"))], "");
        to_file.run.assert_same(&without, "daemon.c");
        assert_eq!(written("to_file"), written("without"), "the daemon's data");
        assert!(to_file.with_samples_of("daemon_work").next().is_some(), "{} reports", to_file.reports.len());

        // The table goes to stderr by default, which is now the daemon's data file.
        let to_stderr = run(&mut preloaded(&binary, &[text(&path("to_stderr"))], ""));
        to_stderr.assert_same(&without, "daemon.c with the report on stderr");
        assert_eq!(written("to_stderr"), written("without"), "the daemon's data");
    }
}

/// Whoever has started a daemon waits for the end of its standard error.
#[test]
fn streams_that_the_program_closes_are_closed() {
    let binary = compile("fixtures/closed_streams.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let options = format!("output={}", folder.path().join("report.json").display());
    let mut command = preloaded(&binary, &[text(&fifo)], &options);
    let mut program =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (program.stdout.take().unwrap(), program.stderr.take().unwrap());
    let (sender, ends) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        stderr.read_to_string(&mut text).unwrap();
        // The test may have failed.
        let _ = sender.send(text);
    });
    let end = ends.recv_timeout(TIME_LIMIT);
    if end.is_err() {
        program.kill().unwrap();
    } else {
        // The program may not have opened it, and waits for a writer then.
        drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    }
    let status = program.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(end.as_deref(), Ok(""), "the end of the streams");
    assert!(status.success(), "{status}");
}

#[test]
fn a_report_is_on_standard_error_that_was_redirected_meanwhile() {
    let binary = compile("fixtures/redirected.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let with = run(&mut preloaded(&binary, &[], ""));
    with.assert_same(&without, "redirected.c");
    assert!(with.stderr.contains("redirected_work"), "{}", with.stderr);
}

/// The last thread that remains, which is the profiler's, writes the report.
#[test]
fn a_report_after_the_end_of_the_main_thread_is_on_standard_error() {
    let binary = compile("fixtures/main_pthread_exit.c", &["-O2", "-pthread"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    let with = run(&mut preloaded(&binary, &[], ""));
    with.assert_same(&without, "main_pthread_exit.c");
    assert!(with.stderr.contains("p50"), "{}", with.stderr);
}

#[test]
fn without_file_descriptors_the_report_goes_to_standard_error() {
    let binary = compile("fixtures/few_descriptors.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().unwrap();
    let options = format!("output={}", folder.path().join("report.txt").display());
    let run = run(&mut preloaded(&binary, &[], &options));
    assert!(run.status.success(), "{}", run.stderr);
    assert!(
        run.stderr.contains("closed_work") && run.stderr.contains("Too many open files"),
        "{}",
        run.stderr
    );
}
