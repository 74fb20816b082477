//! Processes that end, start other programs, or fork, in ways that have lost reports, written too
//! many of them, or kept the program waiting.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tests::Compiler::Gcc;
use tests::{Profiled, bare, compile, ensure_built, preloaded, profiled, reports_in, run};

/// The number of runs of a test for a race, which is lost in most of them.
const RUNS: usize = 5;

/// Runs a fixture without and with the profiler, and asserts that it does the same.
fn check(source: &str, args: &[&str], options: &str) -> Profiled {
    let binary = compile(&format!("fixtures/{source}"), &["-O2"], Gcc);
    let without = run(&mut bare(&binary, args));
    assert!(without.status.code() != Some(99), "{source} {args:?}: {}", without.stderr);
    let with = profiled(&binary, args, options);
    with.run.assert_same(&without, &format!("{source} {args:?}"));
    with
}

/// The numbers of calls that the reports show.
fn calls(profiled: &Profiled, name: &str) -> Vec<u64> {
    let of = |report: &tests::Report| report.function(name)?["calls"]["value"].as_u64();
    profiled.reports.iter().filter_map(of).collect()
}

#[test]
fn fatal_signals_in_many_threads_wait_for_one_report() {
    for _ in 0..RUNS {
        let profiled = check("ends_together.c", &["signals"], "");
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGTERM));
        assert_eq!(calls(&profiled, "work_outer").len(), 1, "{}", profiled.run.stderr);
    }
}

#[test]
fn exits_of_many_threads_wait_for_one_report() {
    for _ in 0..RUNS {
        let profiled = check("ends_together.c", &["exits"], "");
        assert_eq!(profiled.run.status.code(), Some(7));
        assert_eq!(calls(&profiled, "work_outer").len(), 1, "{}", profiled.run.stderr);
    }
}

#[test]
fn processes_that_end_repeatedly_print_one_report() {
    let binary = compile("fixtures/ends_together.c", &["-O2"], Gcc);
    for case in ["exits", "again"] {
        let run = run(&mut preloaded(&binary, &[case], ""));
        assert_eq!(run.status.code(), Some(7), "{case}: {}", run.stderr);
        assert_eq!(rows(&run.stderr, "work_outer"), 1, "{case}: {}", run.stderr);
    }
}

/// A thread that forks holds locks for which the service thread waits: its signals wait for the end
/// of the fork.
#[test]
fn a_signal_during_a_fork_waits_for_the_report_only() {
    const KILLED: u32 = 100;
    let binary = compile("fixtures/fork_often.c", &["-O2"], Gcc);
    for number in 0..KILLED {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let output = format!("output={}", folder.path().join("report.json").display());
        let mut command = preloaded(&binary, &[], &output);
        let mut program = command.stdout(Stdio::piped()).spawn().expect("it can be started");
        let stdout = program.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut String::new()).expect("it prints text");
        // At different points of a fork, which takes about a millisecond.
        thread::sleep(Duration::from_micros(u64::from(5_000 + number * 370 % 1000)));
        let begin = Instant::now();
        kill(Pid::from_raw(program.id().cast_signed()), Signal::SIGTERM).expect("it runs");
        let status = program.wait().expect("it ends");
        assert_eq!(status.signal(), Some(libc::SIGTERM));
        assert!(begin.elapsed() < Duration::from_secs(5), "run {number} took {:?}", begin.elapsed());
        let reports = reports_in(folder.path());
        let names = |report: &tests::Report| report.function("work_outer").is_some();
        assert_eq!(reports.iter().filter(|report| names(report)).count(), 1, "run {number}: {reports:?}");
    }
}

/// A child has the loader's lock as another thread held it at the fork: the child, whose service
/// thread looks for libraries, must not wait for it.
#[test]
fn children_do_not_wait_for_the_loaders_lock() {
    let plugin = compile("fixtures/plugin_a.c", &["-O2", "-shared", "-fPIC"], Gcc);
    let plugin = plugin.to_str().expect("its path is UTF-8");
    for (how, forks, long) in [("open", 200, 5000), ("visit", 200, 5000), ("callback", 50, 1000)] {
        let forks = if tests::is_long() { long } else { forks };
        let profiled = check("fork_while_loading.c", &[how, &forks.to_string(), plugin], "merge=1");
        assert!(profiled.run.status.success(), "{how}: {}", profiled.run.stderr);
        assert!(!profiled.run.stderr.contains("took more than 10 s"), "{how}: {}", profiled.run.stderr);
        assert!(!calls(&profiled, "forked_work").is_empty(), "{how}: {profiled:?}");
    }
}

/// Its filter permits what docs/limits.md names.
#[test]
fn a_process_that_permits_few_system_calls_is_reported() {
    let profiled = check("permits_few.c", &[], "");
    assert_eq!(calls(&profiled, "restricted_work").len(), 1, "{}", profiled.run.stderr);
}

#[test]
fn processes_that_end_together_are_all_in_the_merged_report() {
    let profiled = check("workers.c", &[], "merge=1:counts=exact");
    let [report] = profiled.reports.as_slice() else { panic!("{profiled:?}") };
    assert_eq!(report.json["processes"], 33, "{}", profiled.run.stderr);
    assert_eq!(calls(&profiled, "worker_work"), [32_000], "{}", profiled.run.stderr);
}

#[test]
fn the_first_of_several_pending_signals_ends_the_process() {
    let profiled = check("ends_together.c", &["both"], "");
    assert_eq!(profiled.run.status.signal(), Some(libc::SIGUSR1));
    assert_eq!(calls(&profiled, "work_outer").len(), 1, "{}", profiled.run.stderr);
}

/// The number of rows of a function in the tables on standard error.
fn rows(stderr: &str, function: &str) -> usize {
    stderr.lines().filter(|line| line.split_whitespace().last() == Some(function)).count()
}

#[test]
fn both_images_are_reported_for_each_way_to_exec() {
    for how in ["execv", "execvp", "execl", "fexecve", "execveat"] {
        let profiled = check("exec.c", &[how], "");
        assert_eq!(profiled.reports.len(), 2, "{how}: {profiled:?}");
        for function in ["work_before_exec", "work_after_exec"] {
            assert_eq!(calls(&profiled, function).len(), 1, "{how}: {function}: {profiled:?}");
        }
    }
}

#[test]
fn reports_of_both_images_are_merged() {
    let binary = compile("fixtures/exec.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a directory");
    let template = folder.path().join("r.json");
    run(&mut preloaded(&binary, &["execv"], &format!("output={}", template.display())));
    let files = fs::read_dir(folder.path()).expect("the directory exists");
    let files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let mut command = bare(&ensure_built().join("fastinst"), &["report", "--csv"]);
    let merged = run(command.args(&files));
    let text = String::from_utf8_lossy(&merged.stdout).into_owned();
    assert!(merged.status.success(), "{}", merged.stderr);
    assert!(["work_before_exec,", "work_after_exec,"].iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn a_process_that_becomes_a_daemon_and_the_daemon_are_reported() {
    let profiled = check("daemon_function.c", &[], "");
    for function in ["launcher_work", "daemon_work"] {
        assert_eq!(calls(&profiled, function), [3], "{function}: {profiled:?}");
    }
}

#[test]
fn attempts_to_exec_what_is_not_there_print_nothing() {
    let binary = compile("fixtures/exec.c", &["-O2"], Gcc);
    let run = run(&mut preloaded(&binary, &[], ""));
    assert_eq!(run.status.code(), Some(6), "{}", run.stderr);
    for function in ["work_before_exec", "work_after_exec"] {
        assert_eq!(rows(&run.stderr, function), 1, "{function}:\n{}", run.stderr);
    }
}

#[test]
fn children_between_fork_and_exec_leave_nothing() {
    let binary = compile("fixtures/fork_exec.c", &["-O2"], Gcc);
    let run = run(&mut preloaded(&binary, &[], ""));
    assert!(run.status.success(), "{}", run.stderr);
    assert_eq!(run.own_lines().count(), 1, "more than the heading of one table:\n{}", run.stderr);
    assert_eq!(rows(&run.stderr, "parent_work"), 1, "{}", run.stderr);
    let stdout = String::from_utf8_lossy(&run.stdout);
    let children: Vec<_> =
        stdout.lines().filter_map(|line| line.strip_prefix("child ")?.split(':').next()).collect();
    assert_eq!(children.len(), 4, "{stdout}");
    let name = binary.file_name().expect("a name").to_str().expect("a UTF-8 name");
    for child in children {
        let path = format!("/tmp/fastinst.{name}.{child}.txt");
        assert!(fs::remove_file(&path).is_err(), "{path} was written");
    }
    // A file was asked for: the child that has called a function has one.
    let profiled = profiled(&binary, &[], "");
    assert_eq!(profiled.reports.len(), 2, "{profiled:?}");
    assert_eq!(calls(&profiled, "prepare_child"), [1], "{profiled:?}");
}

#[test]
fn all_functions_that_set_handlers_hide_the_profilers() {
    let functions = ["signal", "bsd_signal", "ssignal", "sysv_signal", "__sysv_signal", "sigset", "unknown"];
    for function in functions {
        let profiled = check("signal_functions.c", &[function], "");
        assert_eq!(profiled.run.status.signal(), Some(libc::SIGTERM), "{function}");
        assert_eq!(calls(&profiled, "work_outer").len(), 1, "{function}: {}", profiled.run.stderr);
    }
}

/// A script.
const COUNTS: &str = "native:func:entry { report var calls: u64; calls++; }";

/// What ends the text in a pipe that has no end of its own.
const END: &str = "end of the test";

/// Nothing can be sampled in a child that ends before the first tick of its service thread: memory
/// for samples, and a thread that looks for waits, would only delay its end.
#[test]
fn a_child_that_ends_at_once_does_not_begin_to_sample_stacks() {
    let memory = |options: &str| -> Vec<u64> {
        let profiled = check("fork_short.c", &["20"], options);
        let children = profiled.reports.iter().filter(|report| report.json["pid"] != profiled.run.pid);
        children.filter_map(|report| report.json["cost"]["memory_bytes"].as_u64()).collect()
    };
    let most = memory("stacks=0").into_iter().max().expect("children have reports");
    // A busy machine may give the service thread its first tick before.
    let least = memory("").into_iter().min().expect("children have reports");
    println!("{least} bytes, {most} without stack samples");
    assert!(least < most + (64 << 10), "{least} bytes, {most} without stack samples");
}

/// Runs a program that forks while its report is being written to this pipe, which is full. The
/// reader does not read before the fork has returned. Returns the text in the pipe.
fn fork_during_report(mut command: Command, reader: impl Read + Send, mut writer: impl Write) -> String {
    let mut program = command.stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut line = String::new();
    let stdout = program.stdout.take().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it prints text");
    let reads = || {
        let lines = BufReader::new(reader).lines().map(|line| line.expect("the report is text"));
        lines.take_while(|line| line != END).map(|line| line + "\n").collect::<String>()
    };
    let (status, output) = thread::scope(|scope| {
        let output = scope.spawn(reads);
        let status = program.wait().expect("it ends");
        writeln!(writer, "{END}").expect("the reader reads");
        (status, output.join().expect("it does not panic"))
    });
    assert_eq!((line.as_str(), status.code()), ("0 additional descriptors\n", Some(0)), "{output}");
    output
}

/// Leaves no room in a pipe.
fn fill(mut writer: impl Write + AsFd) {
    let capacity = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("it is a pipe");
    writer.write_all(&vec![b'\n'; capacity as usize]).expect("there is room");
}

#[test]
fn a_fork_does_not_wait_for_the_reader_of_standard_error() {
    let binary = compile("fixtures/fork_during_report.c", &["-O2"], Gcc);
    let (reader, writer) = io::pipe().expect("a pipe can be made");
    fill(&writer);
    let mut command = preloaded(&binary, &[], "snapshot=USR1");
    command.stderr(writer.try_clone().expect("it can be duplicated"));
    let output = fork_during_report(command, reader, writer);
    assert_eq!(rows(&output, "parent_work"), 2, "one report when asked for, one at the end:\n{output}");
}

#[test]
fn a_fork_does_not_wait_for_the_reader_of_a_scripts_messages() {
    let binary = compile("fixtures/fork_during_report.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let script = folder.path().join("calls.mm");
    fs::write(&script, COUNTS).expect("the folder can be written");
    let (reader, writer) = io::pipe().expect("a pipe can be made");
    fill(&writer);
    let mut command = bare(&ensure_built().join("fastinst"), &["run", "--toggle"]);
    command.arg(script).arg("--").arg(binary).arg(libc::SIGUSR2.to_string());
    command.stderr(writer.try_clone().expect("it can be duplicated"));
    let output = fork_during_report(command, reader, writer);
    assert!(output.contains("is switched on: observing 1 of 1 functions"), "{output}");
}

#[test]
fn a_fork_does_not_wait_for_the_reader_of_a_fifo_nor_inherit_it() {
    let binary = compile("fixtures/fork_during_report.c", &["-O2"], Gcc);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("report.txt");
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO can be made");
    // Opening one end would wait for the other.
    let fifo = File::options().read(true).write(true).open(&path).expect("it can be opened");
    fill(&fifo);
    let command = preloaded(&binary, &[], &format!("output={}:snapshot=USR1", path.display()));
    let output = fork_during_report(command, &fifo, &fifo);
    assert_eq!(rows(&output, "parent_work"), 2, "one report when asked for, one at the end:\n{output}");
}

#[test]
fn a_process_without_proc_ends_after_its_main_thread() {
    let binary = compile("fixtures/main_pthread_exit.c", &["-O2"], Gcc);
    let root = tempfile::tempdir().expect("a temporary folder can be made");
    let script = root.path().join("calls.mm");
    fs::write(&script, COUNTS).expect("the folder can be written");
    let script = script.to_str().expect("a UTF-8 path");
    for arguments in [&["record"][..], &["run", script]] {
        let mut command = bare(Path::new("unshare"), &["--map-root-user"]);
        command.arg(ensure_built().join("fastinst")).args(arguments);
        let run = run(command.arg("--").arg(&binary).arg(root.path()));
        if matches!(run.status.code(), Some(1 | 77)) {
            eprintln!("skipped: this system does not permit other root directories: {}", run.stderr);
            return;
        }
        assert!(run.status.success(), "{arguments:?}: {}: {}", run.status, run.stderr);
        assert!(run.stderr.contains("worker_work"), "{arguments:?}: {}", run.stderr);
    }
}
