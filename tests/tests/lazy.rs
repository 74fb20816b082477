//! Discovery of functions when they are first executed, as used by the profiler.

use tests::Compiler::{Clang, Gcc};
use tests::{Profiled, bare, compile, is_long, profiled, run};

/// Three functions out of more than two thousand are called.
#[test]
fn only_functions_that_are_executed_have_probes() {
    const NAMES: [&str; 3] = ["early", "late", "inlined"];
    const ATTEMPTS: usize = 5;
    let all = [
        (Gcc, &["-O2", "-fno-plt"][..]),
        (Gcc, &["-O2", "-Wl,--no-eh-frame-hdr"]),
        (Clang, &["-O2"]),
        (Gcc, &["-O0"]),
        (Gcc, &["-O2"]),
        (Gcc, &["-O2", "-fno-asynchronous-unwind-tables"]),
    ];
    for &(compiler, flags) in &all[..if is_long() { all.len() } else { 3 }] {
        let what = format!("{compiler:?} {flags:?}");
        let binary = compile("fixtures/many_functions.c", flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        // The service thread may get no processor while one of the functions is called.
        let is_sampled = |with: &Profiled| {
            with.run.assert_same(&without, &what);
            NAMES.iter().all(|name| with.report().samples(name) > 0)
        };
        let mut runs = (0..ATTEMPTS).map(|_| profiled(&binary, &[], "discovery=lazy"));
        let with = runs.find(is_sampled).unwrap_or_else(|| panic!("{what}: no samples of some functions"));
        let report = with.report();
        // An entry and an exit each; two for the inlined function, unless it is inlined nowhere.
        let probes = report.json["probes"].as_u64().expect("a number of probes");
        assert!((8..=16).contains(&probes), "{what}: {probes} probes");
        let names: Vec<_> = report.functions().filter_map(|function| function["name"].as_str()).collect();
        assert!(!names.iter().any(|name| name.starts_with("never")), "{what}: {names:?}");
    }
}

/// Functions to which the program leads by direct calls, or as threads, have probes before it runs,
/// so that their only calls are timed.
#[test]
fn the_first_calls_of_the_outermost_functions_are_timed() {
    for (compiler, flags) in [(Gcc, &["-O2"][..]), (Gcc, &["-O0", "-no-pie"]), (Clang, &["-O2"])] {
        let binary = compile("fixtures/outermost.c", flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        let with = profiled(&binary, &[], "discovery=lazy");
        let what = format!("{compiler:?} {flags:?}");
        with.run.assert_same(&without, &what);
        let report = with.report();
        let max = |name: &str| {
            let row = report.function(name).unwrap_or_else(|| panic!("{what}: no {name} in the report"));
            assert_eq!(row["calls"]["value"], 1, "{what}: {name}");
            row["latency_ns"]["max"].as_f64()
        };
        for name in ["main", "outer", "inner", "thread"] {
            assert!(max(name).is_some(), "{what}: {name} was not timed");
        }
        assert_eq!(max("by_variable"), None, "{what}: it is found when it is executed");
    }
}

/// The probes of functions are made while they are being called in a loop. No call is missed, at
/// whichever split a window boundary cuts the call instructions.
#[test]
fn calls_are_counted_exactly_while_the_probes_are_made() {
    /// As in the fixture.
    const CALLS: f64 = 300.0;
    const FUNCTIONS: usize = 1024;
    for (compiler, flags) in [(Gcc, &["-O2"][..]), (Clang, &["-O2"]), (Gcc, &["-O2", "-falign-functions=1"])]
    {
        let binary = compile("fixtures/first_calls.c", flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        for attempt in 0..if is_long() { 3 } else { 1 } {
            let what = format!("{compiler:?} {flags:?}, run {attempt}");
            let with = profiled(&binary, &[], "discovery=lazy:counts=exact");
            with.run.assert_same(&without, &what);
            let report = with.report();
            let called = report
                .functions()
                .filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with("f_")));
            let calls: Vec<_> = called.map(|row| (row["name"].to_string(), &row["calls"])).collect();
            assert_eq!(calls.len(), FUNCTIONS, "{what}");
            for (name, calls) in calls {
                let interval = ["low", "high"].map(|end| calls[end].as_f64());
                assert_eq!(interval, [Some(CALLS); 2], "{what}: {name}");
            }
        }
    }
}

/// A child does not execute calls of probes that its parent has made since the fork: it has no
/// memory where their stubs are.
#[test]
fn children_do_not_execute_probes_that_their_parent_makes_after_the_fork() {
    const CHILDREN: usize = 32;
    let binary = compile("fixtures/fork_large.c", &["-O2"], Gcc);
    let without = run(&mut bare(&binary, &[]));
    for text in ["private", "alias"] {
        let with = profiled(&binary, &[], &format!("discovery=lazy:text={text}"));
        with.run.assert_same(&without, text);
        assert_eq!(with.reports.len(), 1 + CHILDREN, "{text}");
        for report in &with.reports {
            let names = report.functions().filter_map(|function| function["name"].as_str());
            let number = names.filter(|name| name.starts_with("first_called_")).count();
            let is_parent = report.json["functions"].as_array().is_some_and(|rows| rows.len() >= CHILDREN);
            assert!(number == CHILDREN || !is_parent, "{text}: {number} functions");
            assert!(number > 0, "{text}: a process has no probe of the function that it has executed");
        }
    }
}

/// A child with so much text is observed from its first tick on: how often it has called functions
/// before is not known.
#[test]
fn children_do_not_state_an_upper_limit_for_calls_that_they_may_have_missed() {
    let binary = compile("fixtures/fork_large.c", &["-O2"], Gcc);
    let with = profiled(&binary, &["pause"], "discovery=eager:counts=exact");
    let mut checked = 0;
    for line in with.run.stderr.lines().filter_map(|line| line.strip_prefix("child ")) {
        let (pid, calls) = line.split_once(' ').expect("two numbers");
        let [pid, made] = [pid, calls].map(|number| number.parse::<f64>().expect("a number"));
        let Some(report) = with.reports.iter().find(|report| report.json["pid"] == pid as u64) else {
            continue;
        };
        for row in report.functions() {
            let calls = &row["calls"];
            let (low, high) = (calls["low"].as_f64().expect("a number"), calls["high"].as_f64());
            assert!(low <= made && high.is_none_or(|high| made <= high), "{made} calls, stated {calls}");
            checked += 1;
        }
        let notes = report.json["notes"].to_string();
        assert!(notes.contains("made before its first tick"), "{notes}");
    }
    assert!(checked > 0, "{checked} children were observed: {}", with.run.stderr);
}

/// The calls to a function are counted even if its sites must be executed to determine it,
/// including those between the first one and the announcement of the probe.
#[test]
fn entries_of_a_site_are_counted_while_its_function_is_being_determined() {
    /// As in the fixture.
    const CALLS: f64 = 300.0;
    for (compiler, flags) in [(Gcc, &["-O2"][..]), (Gcc, &["-O2", "-fno-plt"]), (Clang, &["-O2"])] {
        let binary = compile("fixtures/late_functions.c", flags, compiler);
        let without = run(&mut bare(&binary, &[]));
        for discovery in ["discovery=eager", "discovery=lazy"] {
            let what = format!("{compiler:?} {flags:?} {discovery}");
            let with = profiled(&binary, &[], discovery);
            with.run.assert_same(&without, &what);
            for number in 1..=8 {
                let name = format!("inlined_{number}");
                let function = with.report().function(&name);
                let calls = &function.unwrap_or_else(|| panic!("{what}: no {name} in the report"))["calls"];
                let low = calls["low"].as_f64().expect("a lower limit");
                let high = calls["high"].as_f64().unwrap_or(f64::INFINITY);
                assert!((low..=high).contains(&CALLS), "{what}: {name}: {CALLS} calls, stated {calls}");
            }
        }
    }
}
