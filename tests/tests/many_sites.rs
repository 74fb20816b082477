//! A function is inlined at many places, few of which are executed: the others cost nothing, and a
//! place that is executed for the first time in the middle of the run counts.

use std::sync::{Mutex, PoisonError};

use tests::Compiler::Gcc;
use tests::{Profiled, compile, profiled};

/// Serializes measurements.
static QUIET: Mutex<()> = Mutex::new(());

fn measured(seconds: &str, options: &str) -> (Profiled, f64) {
    let profiled = profiled(&compile("fixtures/many_sites.c", &["-O2"], Gcc), &[seconds], options);
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let output = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
    let calls = output.trim().rsplit(' ').next().and_then(|calls| calls.parse().ok());
    (profiled, calls.unwrap_or_else(|| panic!("no number: {output}")))
}

#[test]
fn sites_that_were_not_executed_are_not_toggled() {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let (profiled, _) = measured("2", "budget=5%");
    let report = profiled.report();
    let figure = |name: &str| report.json[name].as_u64().unwrap_or_else(|| panic!("no {name}"));
    let (probes, toggles, samples) = (figure("probes"), figure("toggles"), report.samples("small"));
    assert!(probes > 2000, "{probes} probes: an entry and an exit for each site");
    assert!(samples > 200, "{samples} calls were timed");
    // Each probe is switched on once. After that, there are about ten toggles for each window of 40
    // calls; with all sites, there would be thousands.
    assert!(toggles < probes + 5 * samples, "{toggles} toggles of {probes} probes for {samples} timed calls");
}

#[test]
fn sites_that_are_first_executed_late_count() {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let misses: Vec<String> = (0..5)
        .map_while(|_| {
            let (profiled, calls) = measured("2", "budget=20%");
            let estimate =
                profiled.report().function("small").expect("it was called")["calls"]["value"].clone();
            let estimate = estimate.as_f64().expect("a number");
            // Without the sites of the second half, the estimate would be half as large.
            let is_right = (0.7..1.4).contains(&(estimate / calls));
            (!is_right).then(|| format!("{estimate} calls estimated, {calls} made"))
        })
        .collect();
    assert!(misses.len() < 5, "{misses:#?}");
}

/// The function is sampled when the second half begins, and its windows are far from each other.
#[test]
fn sites_that_are_first_executed_between_two_windows_are_switched_off() {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    let (profiled, _) = measured("3", "budget=0.1%");
    let cost =
        |name: &str| profiled.report().json["cost"][name].as_f64().unwrap_or_else(|| panic!("no {name}"));
    let share = cost("probes_ns") / cost("cpu_ns");
    assert!(share < 0.01, "probes took {share} of the processor time");
}
