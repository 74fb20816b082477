//! What profiling costs, as a part of the processor time, in programs that make it expensive.

use tests::Compiler::Gcc;
use tests::{compile, profiled};

/// Each call of a recursive function is long enough for it to stay on, and 110 of them are open.
#[test]
fn deep_stacks_of_long_calls_cost_no_more_than_the_budget() {
    let binary = compile("fixtures/deep_long_calls.c", &["-O2"], Gcc);
    let profiled = profiled(&binary, &["4000"], "budget=1%");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let cost =
        |name: &str| profiled.report().json["cost"][name].as_f64().unwrap_or_else(|| panic!("no {name}"));
    let share = cost("probes_ns") / cost("cpu_ns");
    println!("probes took {:.2} % of the processor time", share * 100.0);
    assert!(share < 0.01, "probes took {share} of the processor time");
}

/// A function that is called rarely stays on. If all of a large number did, they would exceed the
/// budget.
#[test]
fn thousands_of_functions_with_few_calls_are_not_all_timed() {
    const ROUNDS: u64 = 160;
    let binary = compile("fixtures/many_rare_functions.c", &["-O2"], Gcc);
    let profiled = profiled(&binary, &[&ROUNDS.to_string()], "budget=0.2%");
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let timed = profiled.report().json["samples"].as_u64().expect("a number");
    let share = timed as f64 / (8192 * ROUNDS) as f64;
    println!("{:.0} % of the calls were timed", share * 100.0);
    assert!(share < 0.5, "{share} of the calls were timed");
}
