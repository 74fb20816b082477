//! Accuracy of the figures: programs that measure their own durations and call counts, compared
//! with the report.
//!
//! The machine may be shared: a neighbour that takes a processor away in the middle of a run makes
//! the program's own rate unsteady. A measurement that misses its bound is therefore repeated, up
//! to three times in all, and each miss is printed; a wrong figure misses every time.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use tests::Compiler::{Clang, Gcc};
use tests::{Competitors, Profiled, compile, profiled};

const ATTEMPTS: usize = 5;

/// The share of time for which neighbours of the machine may have its processor. Neither the
/// program's clocks nor the stated error show it.
const PREEMPTED: f64 = 0.05;

/// Serializes measurements.
static QUIET: Mutex<()> = Mutex::new(());

/// Repeats a measurement until it finds no fault, at most [`ATTEMPTS`] times.
fn attempt(what: &str, measure: impl Fn() -> Result<(), String>) {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let mut faults = Vec::new();
    for number in 1..=ATTEMPTS {
        match measure() {
            Ok(()) => return,
            Err(fault) => {
                eprintln!("{what}: attempt {number} of {ATTEMPTS}: {fault}");
                faults.push(fault);
            }
        }
    }
    panic!("{what}: missed its bound in every attempt: {faults:#?}");
}

/// The program's own figures: each line of its output has a function's name and numbers.
fn truth(profiled: &Profiled) -> Vec<(String, Vec<f64>)> {
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let text = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        (name, words.map(|word| word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))).collect())
    };
    text.lines().map(line).collect()
}

fn relative_error(found: f64, expected: f64) -> f64 {
    (found - expected) / expected
}

#[test]
fn p50_is_within_5_percent_for_functions_of_10_us_and_more() {
    let binary = compile("fixtures/known_durations.c", &["-O2"], Gcc);
    attempt("known durations", || {
        let profiled = profiled(&binary, &["2"], "");
        let truth = truth(&profiled);
        assert_eq!(truth.len(), 4, "four functions measure themselves");
        for (name, figures) in truth {
            let p50 = profiled.report().latency_ns(&name, "p50").ok_or_else(|| format!("{name}: no p50"))?;
            let true_p50 = figures[2];
            let error = relative_error(p50, true_p50);
            println!("{name}: p50 {p50:.0} ns, true {true_p50:.0} ns ({:+.2} %)", 100.0 * error);
            if error.abs() > 0.05 {
                return Err(format!("{name}: p50 is {p50:.0} ns, the program measured {true_p50:.0} ns"));
            }
        }
        Ok(())
    });
}

/// Runs one variant, with this many processes competing for the processors, and compares the
/// estimated number of calls with the true one.
fn check_calls(variant: &str, competitors: usize, bound: f64) {
    check_calls_beside_threads(variant, 0, competitors, bound);
}

/// The same in a program with some other threads, which wait.
fn check_calls_beside_threads(variant: &str, threads: u32, competitors: usize, bound: f64) {
    let binary = compile("fixtures/steady_rate.c", &["-O2", "-pthread"], Gcc);
    attempt(variant, || {
        let _competitors = Competitors::start(competitors);
        // The program has a processor for a part of the two seconds, and the budget is a part of
        // that.
        let options = if competitors > 0 || variant == "very_often" { "budget=25%" } else { "budget=5%" };
        let profiled = profiled(&binary, &[variant, "2", &threads.to_string()], options);
        let is_disturbed = competitors == 0 && had_part_of_a_processor(&profiled);
        for (name, figures) in truth(&profiled) {
            let function =
                profiled.report().function(&name).unwrap_or_else(|| panic!("no {name} in the report"));
            let made = figures[0];
            if is_disturbed {
                println!("{name}: other processes had the processors; only the stated limits are checked");
                let [low, high] = ["low", "high"].map(|key| function["calls"][key].as_f64());
                let slack = PREEMPTED * made;
                if low.is_some_and(|low| low > made + slack) || high.is_some_and(|high| high < made - slack) {
                    return Err(format!("{name}: {} calls stated, {made:.0} made", function["calls"]));
                }
                continue;
            }
            let figure = |key: &str| {
                function["calls"][key]
                    .as_f64()
                    .ok_or_else(|| format!("{name}: no {key} in {}", function["calls"]))
            };
            let (calls, estimate, stated) =
                (made, figure("value")?, (figure("high")? - figure("low")?) / 2.0);
            let error = relative_error(estimate, calls);
            println!(
                "{name}: {estimate:.0} calls estimated, error stated {stated:.0}, true {calls:.0} ({:+.2} %)",
                100.0 * error
            );
            if error.abs() > bound {
                return Err(format!("{name}: {estimate:.0} calls estimated, {calls:.0} made"));
            }
            // The program waits for points in time, so that probes do not delay it.
            if variant == "1us" && calls < figure("low")? {
                return Err(format!("{name}: at least {} calls stated, {calls:.0} made", figure("low")?));
            }
            if (estimate - calls).abs() > 1.5 * stated + PREEMPTED * calls {
                return Err(format!(
                    "{name}: {estimate:.0} calls estimated, {calls:.0} made, error stated as {stated:.0}"
                ));
            }
        }
        Ok(())
    });
}

/// Whether the program, which is never idle, had less than nine tenths of a processor.
fn had_part_of_a_processor(profiled: &Profiled) -> bool {
    let json = &profiled.report().json;
    let [ran, passed] =
        [&json["cost"]["cpu_ns"], &json["duration_ns"]].map(|figure| figure.as_f64().expect("a number"));
    ran < 0.9 * passed
}

/// Preemption is no part of a latency, but waiting is. Each call has context switches of both
/// kinds, so that only their sum is known; the interval of the mean holds both extremes, and the
/// wait is not taken for preemption.
#[test]
fn the_mean_of_calls_that_wait_next_to_other_processes_is_within_its_limits() {
    let binary = compile("fixtures/naps.c", &["-O2"], Gcc);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    attempt("naps", || {
        let _competitors = Competitors::start(processors);
        let profiled = profiled(&binary, &["3"], "");
        let truth = truth(&profiled);
        let [(name, figures)] = &truth[..] else { panic!("one function: {truth:?}") };
        let row = profiled.report().function(name).ok_or_else(|| format!("{name}: no row"))?;
        let mean = &row["latency_ns"]["mean"];
        let true_mean = figures[1];
        println!("{name}: mean {mean} ns, true {true_mean:.0} ns");
        let [low, value, high] = ["low", "value", "high"].map(|key| mean[key].as_f64());
        let holds = low.is_some_and(|low| low <= 1.01 * true_mean)
            && high.is_none_or(|high| high >= 0.99 * true_mean);
        if !holds || value.is_none_or(|value| value < 0.9 * true_mean) {
            return Err(format!("{name}: the mean is {mean} ns, the program measured {true_mean:.0} ns"));
        }
        Ok(())
    });
}

/// The program gets a processor for a third of the time.
#[test]
fn calls_are_within_25_percent_while_others_have_the_processors() {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    check_calls("1us", 2 * processors, 0.25);
}

/// What the threads that wait might have done must not be in the stated error.
#[test]
fn threads_that_wait_do_not_make_calls_uncertain() {
    check_calls_beside_threads("1us", 6, 0, 0.25);
    check_calls_beside_threads("very_often", 6, 0, 0.75);
}

#[test]
fn calls_are_within_20_percent_at_a_call_every_1_us() {
    check_calls("1us", 0, 0.20);
}

/// The delay caused by counting probes is a noticeable part of the time between two calls, and not
/// known exactly: the stated error covers it.
#[test]
fn calls_every_some_tens_of_nanoseconds_are_within_the_stated_error() {
    check_calls("very_often", 0, 0.75);
}

#[test]
fn calls_are_within_10_percent_at_a_call_every_20_us() {
    check_calls("20us", 0, 0.10);
}

#[test]
fn calls_are_within_10_percent_of_two_functions_with_different_rates() {
    check_calls("alternating", 0, 0.10);
}

/// 1 % of the calls take a thousand times as long as the others, and end without an exit.
#[test]
fn calls_that_fail_late_are_in_the_total() {
    for (compiler, kind) in [
        (Gcc, "exception"),
        (Gcc, "longjmp"),
        (Gcc, "coroutine"),
        (Clang, "exception"),
        (Clang, "longjmp"),
        (Clang, "coroutine"),
    ] {
        let binary = compile("fixtures/fails_late.cpp", &["-O2"], compiler);
        attempt(kind, || {
            let profiled = profiled(&binary, &[kind], "counts=exact:stacks=0");
            let [(name, figures)] = &truth(&profiled)[..] else { panic!("one function measures itself") };
            let function = profiled.report().function(name).expect("it was called");
            let [calls, total] = [figures[0], figures[1]];
            for (figure, truth) in
                [(&function["total_ns"], total), (&function["latency_ns"]["mean"], total / calls)]
            {
                println!("{compiler:?}, {kind}: {figure}, true {truth:.0}");
                let (low, high) = (figure["low"].as_f64().unwrap_or(0.0), figure["high"].as_f64());
                // The program's own figure lacks the time around the call.
                if low > 1.02 * truth || high.is_some_and(|high| high < 0.98 * truth) {
                    return Err(format!("{compiler:?}, {kind}: {figure}, not {truth:.0}"));
                }
                if high.is_some() == (kind == "coroutine") {
                    return Err(format!("{compiler:?}, {kind}: {figure}"));
                }
            }
            Ok(())
        });
    }
}

/// Among hundreds of thousands of calls of 1 us, one waits for two seconds, and no window contains
/// it.
#[test]
fn a_rare_call_that_waits_is_in_the_total_and_ranks_its_function_first() {
    let binary = compile("fixtures/rare_wait.c", &["-O2"], Gcc);
    for competitors in [0, 2] {
        attempt("a rare wait", || {
            let _competitors = Competitors::start(competitors);
            let profiled = profiled(&binary, &["4", "2"], "budget=2%");
            let report = profiled.report();
            if report.json["stacks"] == 0 {
                println!("not tested: {}", report.json["notes"]);
                return Ok(());
            }
            let [(name, figures)] = &truth(&profiled)[..] else { panic!("one function measures itself") };
            let (longest, total) = (figures[1], figures[2]);
            let function = report.function(name).expect("it was called");
            println!("{longest} to {total} ns, found {function}");
            for key in ["total_ns", "self_ns"] {
                let low = function[key]["low"].as_f64().expect("there is always one");
                let high = function[key]["high"].as_f64();
                if low < 0.8 * longest || low > total || high.is_some_and(|high| high < longest) {
                    return Err(format!("{key} is {}, not {longest} to {total}", function[key]));
                }
            }
            let mean = &function["latency_ns"]["mean"];
            let is_possible = |high: f64| high >= longest / figures[0];
            if !mean["high"].as_f64().is_none_or(is_possible) {
                return Err(format!("the mean is {mean}, not {}", longest / figures[0]));
            }
            Ok(())
        });
    }
}

/// Times of calls in which the program ends do not include preemption, like those of calls that
/// have returned. Their probes fire only at their start.
#[test]
fn a_call_in_which_the_program_ends_is_not_charged_for_preemption() {
    let binary = compile("fixtures/ends_inside.c", &["-O2"], Gcc);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    attempt("a call in which the program ends", || {
        let _competitors = Competitors::start(2 * processors);
        let profiled = profiled(&binary, &["300"], "");
        let [(_, figures)] = &truth(&profiled)[..] else { panic!("one function measures itself") };
        let (processor, passed) = (figures[0], figures[1]);
        println!("{processor} ns of processor time in {passed} ns");
        if passed < 1.5 * processor {
            return Err("it was hardly preempted".to_owned());
        }
        for name in ["main", "work"] {
            let total = profiled.report().function(name).expect("it was called")["total_ns"].clone();
            let error = relative_error(total["value"].as_f64().expect("it was timed"), processor);
            println!("{name}: {total} ({:+.2} %)", 100.0 * error);
            if error.abs() > 0.1 {
                return Err(format!("{name}: {total} ns, {processor} ns of processor time"));
            }
        }
        Ok(())
    });
}

/// How long a thread waited, and how long it was preempted, is not known if it did both in a call:
/// the time is not stated as exact. If it did not wait, it is.
#[test]
fn calls_in_which_a_thread_waited_and_was_preempted_are_within_their_interval() {
    let binary = compile("fixtures/waits_and_computes.c", &["-O2"], Gcc);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    attempt("calls that wait and are preempted", || {
        let _competitors = Competitors::start(2 * processors);
        let profiled = profiled(&binary, &["20"], "counts=exact");
        for (name, figures) in truth(&profiled) {
            let function = profiled.report().function(&name).expect("it was called");
            let total = &function["total_ns"];
            println!("{name}: {} ns, found {total}", figures[0]);
            let [low, high] = ["low", "high"].map(|limit| total[limit].as_f64());
            // The clocks are read before and after the calls.
            let limits = 0.95 * low.expect("there is always one")..1.05 * high.unwrap_or(f64::INFINITY);
            if !limits.contains(&figures[0]) {
                return Err(format!("{name}: {} ns, found {total}", figures[0]));
            }
            if function["latency_ns"]["max"].as_f64() < Some(1e6) {
                return Err(format!("{name}: {}", function["latency_ns"]));
            }
        }
        Ok(())
    });
}

/// A handler that interrupts a probe is not observed. The report states the number of such calls.
#[test]
fn calls_in_handlers_that_interrupt_probes_are_not_counted_as_exact() {
    let binary = compile("fixtures/handler.c", &["-O2"], Gcc);
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let profiled = profiled(&binary, &["1000"], "budget=none");
    let [(_, figures)] = &truth(&profiled)[..] else { panic!("one function counts its calls") };
    let calls = profiled.report().function("in_handler").expect("it was called")["calls"].clone();
    let [low, high] = ["low", "high"].map(|limit| calls[limit].as_f64());
    let (low, high) = (low.expect("there is always one"), high.unwrap_or(f64::INFINITY));
    println!("{} calls, found {calls}", figures[0]);
    assert!(low < high, "no call interrupted a probe");
    assert!((low..=high).contains(&figures[0]), "{} calls, found {calls}", figures[0]);
}

/// In several threads, in forked children, and where exceptions and longjmp leave calls.
#[test]
fn with_exact_counts_every_call_is_counted() {
    for compiler in [Gcc, Clang] {
        let binary = compile("fixtures/exact_counts.cpp", &["-O2", "-pthread"], compiler);
        let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
        let profiled = profiled(&binary, &[], "counts=exact:merge=1");
        let truth = truth(&profiled);
        assert_eq!(truth.len(), 7);
        for (name, figures) in truth {
            let found = profiled.report().function(&name).expect("it was called");
            let calls = &found["calls"];
            let [value, low, high] = ["value", "low", "high"].map(|figure| calls[figure].as_f64());
            assert_eq!([value, low, high], [Some(figures[0]); 3], "{name}, {compiler:?}: {calls}");
        }
        assert_eq!(profiled.report().json["processes"], 6);
    }
}
