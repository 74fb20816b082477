//! Times of functions that are called millions of times, from stack samples, compared with the
//! times that the program measures itself.
//!
//! The program does things that the profiler cannot see: it is descheduled between two readings of
//! its clock, and its batches take a little longer than the calls in them. A time may therefore be
//! off by [`SLACK`]; and since 1 interval in 20 does not contain the truth, a measurement is
//! repeated.

use std::sync::{Mutex, PoisonError};

use tests::Compiler::{self, Clang, Gcc};
use tests::{Competitors, compile, profiled};

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

#[test]
fn samples_can_be_switched_off() {
    let binary = compile("fixtures/stacks.c", &["-O2", "-pthread"], Gcc);
    let profiled = profiled(&binary, &["1"], "budget=2%:stacks=0");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let report = profiled.report();
    assert_eq!((&report.json["stacks"], &report.json["cost"]["stacks_ns"]), (&0.into(), &0.into()));
    let notes = report.json["notes"].to_string();
    assert!(notes.contains("not sampled") && notes.contains("(stacks=0)"), "{notes}");
}
