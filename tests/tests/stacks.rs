//! Times of functions that are called millions of times, from stack samples, compared with the
//! times that the program measures itself.
//!
//! The program does things that the profiler cannot see: it is descheduled between two readings of
//! its clock, and its batches take a little longer than the calls in them. A time may therefore be
//! off by [`SLACK`]; and since 1 interval in 20 does not contain the truth, a measurement is
//! repeated.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::Compiler::{self, Clang, Gcc};
use tests::{Competitors, Report, TIME_LIMIT, compile, preloaded, profiled};

/// The share of loops, of calls to functions outside the list, and of clock readings, in the time
/// of all threads.
const SLACK: f64 = 0.04;

const ATTEMPTS: usize = 5;

/// Serializes measurements.
static QUIET: Mutex<()> = Mutex::new(());

/// The estimate of a time: value, and interval.
fn estimate(figure: &serde_json::Value) -> Option<(f64, f64, f64)> {
    Some((figure["value"].as_f64()?, figure["low"].as_f64()?, figure["high"].as_f64()?))
}

fn measure(binary: &std::path::Path) -> Result<(), String> {
    let profiled = profiled(binary, &["1"], "budget=2%");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    if report.json["stacks"] == 0 {
        let refused =
            |note: &&serde_json::Value| note.as_str().is_some_and(|note| note.contains("perf_event_open"));
        let notes = report.json["notes"].as_array();
        let note = notes.and_then(|notes| notes.iter().find(refused)).expect("the reason is in the report");
        println!("not tested: {note}");
        return Ok(());
    }
    let output = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
    let all: f64 = 1.5e9;
    let mut lines = 0;
    for line in output.lines() {
        lines += 1;
        let words: Vec<&str> = line.split(' ').collect();
        let [name, total, own] = words[..] else { panic!("{line}") };
        let function = report.function(name).unwrap_or_else(|| panic!("no {name} in the report"));
        for (key, truth) in [("total_ns", total), ("self_ns", own)] {
            let truth: f64 = truth.parse().expect("a number");
            // A function that calls nothing, but is called in a loop, has self time only.
            let Some((value, low, high)) = estimate(&function[key]) else {
                return Err(format!("{name}: {key} has no upper limit: {}", function[key]));
            };
            println!("{name}: {key} {value:.0} ({low:.0} to {high:.0}), true {truth:.0}");
            let slack = SLACK * all;
            if truth < low - slack || truth > high + slack {
                return Err(format!(
                    "{name}: {key} is {value:.0} ({low:.0} to {high:.0}), the truth {truth:.0}"
                ));
            }
            if high - low > 0.6 * all {
                return Err(format!("{name}: {key} is hardly known: {low:.0} to {high:.0}"));
            }
        }
    }
    assert_eq!(lines, 5, "five functions measure themselves: {output}");
    Ok(())
}

fn check(compiler: Compiler, optimization: &str, competitors: usize) {
    let binary = compile("fixtures/stacks.c", &[optimization, "-pthread"], compiler);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let _competitors = Competitors::start(competitors);
    let mut faults = Vec::new();
    for _ in 0..ATTEMPTS {
        match measure(&binary) {
            Ok(()) => return,
            Err(fault) => faults.push(fault),
        }
    }
    panic!("missed in every attempt: {faults:#?}");
}

#[test]
fn times_of_millions_of_calls_by_gcc() {
    check(Gcc, "-O2", 0);
}

#[test]
fn times_of_millions_of_calls_by_clang() {
    check(Clang, "-O2", 0);
}

#[test]
fn times_of_millions_of_calls_without_optimization() {
    check(Gcc, "-O1", 0);
}

#[test]
fn times_of_millions_of_calls_while_others_have_the_processors() {
    check(Gcc, "-O2", 2);
}

/// A function is called hundreds of thousands of times, and waits in some of its calls; the kernel
/// knows for how long. Two other threads wait all the time.
fn measure_waits(binary: &std::path::Path) -> Result<(), String> {
    let profiled = profiled(binary, &["1.2"], "budget=2%");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    if report.json["stacks"] == 0 {
        println!("not tested: {}", report.json["notes"]);
        return Ok(());
    }
    let output = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
    let [take, client] = ["take ", "client "].map(|name| {
        let line = output.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|time| time.parse::<f64>().ok()).unwrap_or_else(|| panic!("{output}"))
    });
    for (name, least, most) in [("take", take, take), ("client", client, client), ("compute", 0.0, 1.2e9)] {
        let function = report.function(name).unwrap_or_else(|| panic!("no {name} in the report"));
        let Some((value, low, high)) = estimate(&function["total_ns"]) else {
            return Err(format!("{name} has no upper limit: {}", function["total_ns"]));
        };
        println!("{name}: {value:.0} ({low:.0} to {high:.0}), true {least:.0} to {most:.0}");
        let slack = SLACK * 1.2e9;
        if most < low - slack || least > high + slack {
            return Err(format!(
                "{name} took {value:.0} ({low:.0} to {high:.0}), not {least:.0} to {most:.0}"
            ));
        }
        // Waiting time of the threads need not be inside a function.
        if high - low > 0.8 * 1.2e9 {
            return Err(format!("{name} is hardly known: {low:.0} to {high:.0}"));
        }
    }
    let sleeper = estimate(&report.function("sleeper").expect("it was called")["self_ns"]);
    match sleeper {
        Some((_, low, _)) if low > 1e9 => Ok(()),
        _ => Err(format!("sleeper does nothing but wait: {sleeper:?}")),
    }
}

fn check_waits(competitors: usize) {
    let binary = compile("fixtures/waits.c", &["-O2", "-pthread"], Gcc);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let _competitors = Competitors::start(competitors);
    let faults: Vec<String> = (0..ATTEMPTS).map_while(|_| measure_waits(&binary).err()).collect();
    assert!(faults.len() < ATTEMPTS, "missed in every attempt: {faults:#?}");
}

#[test]
fn waits_of_functions_that_are_called_often() {
    check_waits(0);
}

#[test]
fn waits_while_others_have_the_processors() {
    check_waits(2);
}

/// The relative difference of the clocks of the program and the profiler.
const CLOCKS: f64 = 1e-3;

/// The self time of `idle` in a report must be possible: ten threads have waited there for `least`
/// to `most` nanoseconds. The snapshots are random, but all that they leave uncertain is in the
/// interval. Only the time without a processor in calls that have waited as well is a guess; it is
/// stated as `off_cpu`.
#[track_caller]
fn assert_idle(report: &Report, least: f64, most: f64, what: &str) {
    if report.json["stacks"] == 0 {
        println!("not tested: {}", report.json["notes"]);
        return;
    }
    let idle = report.function("idle").expect("it was called");
    let guess = idle["off_cpu"]["ns"].as_f64().unwrap_or(0.0);
    for key in ["self_ns", "total_ns"] {
        let (low, high) = (idle[key]["low"].as_f64().expect("a number"), idle[key]["high"].as_f64());
        println!("{what}: {key} {low:.0} to {high:.0?}, true {least:.0} to {most:.0}");
        let is_possible = |high: f64| high + guess >= least * (1.0 - CLOCKS);
        assert!(
            low <= most * (1.0 + CLOCKS) && high.is_none_or(is_possible),
            "{what}: {}, not {least} to {most}",
            idle[key]
        );
    }
}

/// The figures behind a word in the lines that a fixture has printed.
fn figures(output: &str, word: &str) -> Vec<f64> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(word));
    lines.flat_map(str::split_whitespace).map(|figure| figure.parse().expect("a number")).collect()
}

/// How long the threads can have waited at most until a report was made.
fn most_until(report: &Report, begun: &[f64]) -> f64 {
    let [start, duration] =
        ["started_us", "duration_ns"].map(|key| report.json[key].as_f64().expect("a number"));
    // The report has microseconds.
    begun.iter().map(|begun| start * 1e3 + duration + 1e3 - begun).sum()
}

const KINDS: [&str; 4] = ["cond", "read", "poll", "sleep"];

/// Threads wait all the time. A report while the program runs and the one at its end have all of
/// it.
#[test]
fn threads_that_wait_until_the_report_are_charged_until_then() {
    let binary = compile("fixtures/idle.c", &["-O2"], Gcc);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let _competitors = Competitors::start(1);
    for kind in KINDS {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("report.json");
        let options = format!("output={}:snapshot=USR1:budget=1%", path.display());
        let mut command = preloaded(&binary, &[kind, "exit"], &options);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let (mut output, mut lines) =
            (String::new(), child.stdout.take().map(BufReader::new).expect("a pipe"));
        while !output.contains("idle") {
            assert!(lines.read_line(&mut output).expect("it prints") > 0, "{output}");
        }
        let (begun, least) = (figures(&output, "begun "), figures(&output, "idle ")[0]);
        let process = Pid::from_raw(child.id().cast_signed());
        kill(process, Signal::SIGUSR1).expect("it runs");
        let start = Instant::now();
        while !path.exists() {
            assert!(start.elapsed() < TIME_LIMIT, "no report of the running program");
            thread::sleep(Duration::from_millis(10));
        }
        let report = Report::read(&path);
        assert_idle(&report, least, most_until(&report, &begun), kind);
        drop(child.stdin.take());
        let passed = start.elapsed().as_nanos() as f64 * begun.len() as f64;
        let status = child.wait().expect("it can be awaited");
        assert!(status.success(), "{status}");
        let report = Report::read(&path);
        assert!(!report.json["notes"].to_string().contains("was running"), "the last one");
        assert_idle(&report, least + passed, most_until(&report, &begun), kind);
    }
}

#[test]
fn threads_that_wait_until_they_end_are_charged_until_then() {
    let binary = compile("fixtures/idle.c", &["-O2"], Gcc);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, competitors) in KINDS.into_iter().zip([0, 2, 0, 2]) {
        let _competitors = Competitors::start(competitors);
        let profiled = profiled(&binary, &[kind, "join"], "budget=1%");
        assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
        let output = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
        let figures = figures(&output, "idle ");
        assert_idle(profiled.report(), figures[0], figures[1], kind);
    }
}

#[test]
fn samples_can_be_switched_off() {
    let binary = compile("fixtures/stacks.c", &["-O2", "-pthread"], Gcc);
    let profiled = profiled(&binary, &["1"], "budget=2%:stacks=0");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    assert_eq!((&report.json["stacks"], &report.json["cost"]["stacks_ns"]), (&0.into(), &0.into()));
    let notes = report.json["notes"].to_string();
    assert!(notes.contains("not sampled") && notes.contains("(stacks=0)"), "{notes}");
    assert!(!profiled.run.stderr.contains("not sampled"), "the user has asked for it");
}

/// A frame that is larger than what the kernel copies of a stack hides the functions further out.
#[test]
fn samples_without_the_outer_functions_are_noted() {
    let binary = compile("fixtures/large_frame.c", &["-O2"], Gcc);
    for (frame, is_noted) in [("1", false), ("100", true)] {
        let profiled = profiled(&binary, &[frame], "budget=5%");
        assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
        let notes = profiled.report().json["notes"].to_string();
        if notes.contains("perf_event_open") {
            println!("not tested: {notes}");
            return;
        }
        assert_eq!(
            notes.contains("stack samples lack the outer functions"),
            is_noted,
            "{frame} KiB: {notes}"
        );
    }
}

/// Twenty thousand threads, one after the other: the kernel's work for sampling them would be a
/// tenth of their time, however few samples there are.
#[test]
fn sampling_ends_if_the_program_begins_very_many_threads() {
    let binary = compile("fixtures/short_threads.c", &["-O1"], Gcc);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let profiled = profiled(&binary, &[], "budget=1%");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    let notes = report.json["notes"].to_string();
    if notes.contains("perf_event_open") {
        println!("not tested: {notes}");
        return;
    }
    let begun = |note: &str| note.split("the program began ").nth(1)?.split(' ').next()?.parse().ok();
    let begun: u64 = begun(&notes).unwrap_or_else(|| panic!("sampling has not ended: {notes}"));
    assert!((1..20_000).contains(&begun), "{begun} threads until then");
    // Most of the cost is that of the threads, not of samples.
    let cost = &report.json["cost"]["stacks_ns"];
    assert!(cost.as_u64() > Some(7_000 * begun), "{cost} ns for {begun} threads");
}
