//! Times that are sampled while programs run.

use std::collections::BTreeMap;
use std::thread;

use wasm_jit_monitors::{Cell, Report};

use super::{Observed, calltree, integers, texts};

/// The same loop, executed three times as long in one function as in the other, many times in turn.
const THREE_TO_ONE: &str = "(module
    (func $turn (param i32)
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
    (func $long (call $turn (i32.const 30000)))
    (func $short (call $turn (i32.const 10000)))
    (func (export \"run\") (param i32)
        (loop (call $long) (call $short)
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";

/// The samples of each path, including all below.
fn samples(report: &Report) -> BTreeMap<String, u64> {
    let callers = report.get_table("contexts").unwrap().column("caller");
    let mut paths: Vec<String> = Vec::new();
    for (caller, name) in callers.zip(texts(report, "contexts", "function")) {
        paths.push(match caller {
            Cell::Int(caller) => format!("{}/{name}", paths[*caller as usize]),
            _ => name,
        });
    }
    paths.into_iter().zip(integers(report, "contexts", "total samples")).collect()
}

/// Runs the program until it has this number of samples; returns its calls by the host.
fn run_until(observed: &Observed, wanted: u64) -> (Report, u64) {
    let mut runs = 0;
    loop {
        observed.call("run", 50).unwrap();
        runs += 1;
        let report = observed.report("calltree");
        if report.get("samples").unwrap() >= wanted {
            return (report, runs);
        }
    }
}

#[test]
fn shares_of_samples_are_those_of_the_work() {
    let observed = Observed::by(THREE_TO_ONE, "calltree{times=sampled},profile{times=sampled}");
    let (report, runs) = run_until(&observed, 400);
    let expected = [
        ("run", runs, 0),
        ("run/long", 50 * runs, 0),
        ("run/long/turn", 50 * runs, 0),
        ("run/short", 50 * runs, 0),
        ("run/short/turn", 50 * runs, 0),
    ];
    calltree::check(&report, &expected);
    let samples = samples(&report);
    assert_eq!(samples["run"], report.get("samples").unwrap());
    let share = samples["run/long"] as f64 / samples["run"] as f64;
    // Three quarters. With 400 independent samples, this is nine standard deviations.
    assert!((0.55..0.95).contains(&share), "{samples:?}");
    assert!(samples["run/long"] + samples["run/short"] + samples["run"] / 10 >= samples["run"]);
    // The other monitor has its own samples: the intervals of both contain one value.
    let profile = observed.report("profile");
    let float = |column: &str, function: &str| {
        let at = texts(&profile, "functions", "function").iter().position(|name| name == function).unwrap();
        match profile.get_table("functions").unwrap().column(column).nth(at) {
            Some(Cell::Float(value, _)) => *value,
            other => panic!("{other:?}"),
        }
    };
    let share = float("cumulative ms", "long") / float("cumulative ms", "run");
    assert!((0.55..0.95).contains(&share), "{share}");
    for function in ["long", "short", "turn", "run"] {
        let [low, time, high] =
            ["cumulative ms low", "cumulative ms", "cumulative ms high"].map(|of| float(of, function));
        assert!(low <= time && time <= high, "{function}: {low} {time} {high}");
    }
}

/// Each thread has its own published context.
#[test]
fn threads_are_sampled_together() {
    let observed = Observed::by(THREE_TO_ONE, "calltree{times=sampled}");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| run_until(&observed, 300).1)).collect();
        let runs: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let report = observed.report("calltree");
        assert_eq!(samples(&report)["run"], report.get("samples").unwrap());
        assert_eq!(report.get("calls"), Some(runs * (1 + 4 * 50)));
    });
    assert_eq!(observed.report("calltree").get("threads"), Some(3));
}

#[test]
fn sampled_reports_are_consistent_while_the_program_runs() {
    let observed = Observed::by(super::LOOP, "calltree{times=sampled}");
    let mut last = (0, 0, 0);
    thread::scope(|scope| {
        let program = scope.spawn(|| observed.call("run", 2_000_000).unwrap());
        while !program.is_finished() {
            let report = observed.report("calltree");
            calltree::check_times(&report);
            let value = |name: &str| report.get(name).unwrap();
            let now = (value("calls"), value("samples"), value("nanoseconds"));
            assert!(now.0 >= last.0 && now.1 >= last.1 && now.2 >= last.2, "{now:?} {last:?}");
            last = now;
        }
    });
    calltree::check(&observed.report("calltree"), &[("run", 1, 0), ("run/leaf", 2_000_000, 0)]);
}

#[test]
fn no_samples_are_taken_while_it_is_off() {
    let observed = Observed::by(THREE_TO_ONE, "calltree{times=sampled}");
    let (before, _) = run_until(&observed, 20);
    observed.session.disable("calltree").unwrap();
    let off = observed.report("calltree");
    assert!(off.get("samples") >= before.get("samples"));
    observed.call("run", 1000).unwrap();
    assert_eq!(observed.report("calltree"), off);
    observed.session.enable("calltree{times=sampled}".parse().unwrap()).unwrap();
    let wanted = off.get("samples").unwrap() + 20;
    let (report, _) = run_until(&observed, wanted);
    calltree::check_times(&report);
}

/// For a run that is shorter than the time between two samples, only bounds of the times are known.
#[test]
fn times_without_samples_are_bounds() {
    let observed =
        Observed::by("(module (func $f) (func (export \"run\") (param i32)))", "calltree{times=sampled}");
    observed.call("run", 0).unwrap();
    let report = observed.report("calltree");
    assert_eq!(report.get("calls"), Some(1));
    // A sample may find the program if the machine is busy.
    if report.get("samples") == Some(0) {
        assert_eq!(integers(&report, "functions", "self ns"), [0]);
        // One may find the thread outside of the program, too. The value is rounded.
        let per_sample = report.get("effective nanoseconds per sample").unwrap();
        let [high] = integers(&report, "functions", "self ns high")[..] else { panic!("one function") };
        assert!(high.abs_diff(3 * per_sample) <= 3, "{high} {per_sample}");
    }
}
