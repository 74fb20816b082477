//! The profiler's settings, changed while the program runs.

use std::path::{Path, PathBuf};

use fastinst::ProbeId;
use fastinst::provider::cyg_profile;
use profiler::error::Error;
use profiler::filter::{Filter, Patterns};
use profiler::options::{Budget, Counts, Options, Output};
use profiler::process;
use profiler::report::{Estimate, FunctionReport, Report, json};
use profiler::session::{self, Leaving, reconfigure};
use profiler::settings::Settings;
use tests::load_plugin;

/// Called once, once for each round, and twice for each round.
const RUN: &str = "plugin_run";
const INNER: &str = "plugin_a_inner";
const LEAF: &str = "plugin_a_leaf";

/// The code of all probes of a function, which shows whether they are on.
fn code_of(name: &str) -> Vec<[u8; 5]> {
    let ids = (0..fastinst::probe_count() as u32).map(ProbeId);
    let probes = ids.filter_map(fastinst::lasting_metadata);
    let own = probes.filter(|probe| probe.function_name.to_str() == Ok(name));
    // SAFETY: the library stays loaded, and each site is a call of five bytes or more.
    let code: Vec<[u8; 5]> =
        own.map(|probe| unsafe { (probe.site_address as *const [u8; 5]).read() }).collect();
    assert!(code.len() >= 2, "an entry and an exit of {name}");
    code
}

fn patterns(text: &str) -> Patterns {
    Patterns::parse("only", text).expect("a valid pattern")
}

fn skip(name: &str) -> Filter {
    Filter { skip: patterns(name), ..Filter::default() }
}

fn only(name: &str) -> Filter {
    Filter { only: patterns(name), ..Filter::default() }
}

fn exact(filter: Filter) -> Settings {
    Settings { counts: Counts::Exact, filter, ..Settings::default() }
}

/// Everything measured so far.
fn report_in(file: &Path) -> Report {
    session::finish(Leaving::Exec);
    json::read(file).expect("a report was written")
}

fn row<'a>(report: &'a Report, name: &str) -> Option<&'a FunctionReport> {
    report.functions.iter().find(|function| function.name == name)
}

/// The numbers of calls to the three functions, all of them exact; `None` for a function without a
/// row.
fn calls(report: &Report) -> [Option<u64>; 3] {
    [RUN, INNER, LEAF].map(|name| {
        let function = row(report, name)?;
        let Estimate { value, low, high } = function.calls;
        assert_eq!((low, high), (value, Some(value)), "{name} is exact");
        assert_eq!(function.samples as f64, value, "every call of {name} was timed");
        Some(value as u64)
    })
}

/// The report of a forked child that has called `run`.
fn report_of_child(run: extern "C" fn(u32) -> u32, file: &Path) -> Report {
    // SAFETY: the child calls instrumented code and the profiler, which work after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        run(10);
        session::finish(Leaving::Exit);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is valid memory.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let own: PathBuf = file.with_extension(format!("{child}.json"));
    json::read(&own).expect("the child has written its report")
}

#[test]
fn settings_are_changed_while_the_program_runs() {
    let run = load_plugin();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    assert!(matches!(reconfigure(Settings::default()), Err(Error::NotRunning)));
    assert_eq!(session::settings(), None);

    // Finds all probes, which are off.
    cyg_profile::start().expect("the provider starts");
    let code_when_off = [RUN, INNER, LEAF].map(code_of);
    let sites_that_are_off = |name: &str| {
        let function = [RUN, INNER, LEAF].iter().position(|other| *other == name).expect("one of three");
        code_of(name).iter().zip(&code_when_off[function]).filter(|(now, off)| now == off).count()
    };
    let are_off = |name: &str| sites_that_are_off(name) == code_of(name).len();
    let are_on = |name: &str| sites_that_are_off(name) == 0;
    let output: Output = file.to_str().expect("UTF-8").parse().expect("a valid name");
    session::start(Options { output, settings: exact(skip(LEAF)), ..Options::default() }).expect("it starts");
    process::follow();
    let wrong = Settings { budget: Budget::Fraction(0.0), ..Settings::default() };
    assert!(matches!(reconfigure(wrong), Err(Error::BadValue { key: "budget", .. })));
    assert!(are_off(LEAF) && are_on(INNER) && are_on(RUN));
    run(10);
    let report = report_in(&file);
    assert_eq!(calls(&report), [Some(1), Some(10), None]);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert_eq!(report.settings, format!("budget=1%:counts=exact:skip={LEAF}"));
    assert_eq!(session::settings(), Some(exact(skip(LEAF))));

    // A function that had no profiler probes.
    reconfigure(exact(Filter::default())).expect("in force");
    assert!(are_on(LEAF) && are_on(INNER));
    run(10);
    let report = report_in(&file);
    assert_eq!(calls(&report), [Some(2), Some(20), Some(20)]);
    let [run_row, inner, leaf] = [RUN, INNER, LEAF].map(|name| row(&report, name).expect("it was called"));
    assert!(run_row.self_ns.is_some() && inner.self_ns.is_some());
    assert_eq!(leaf.self_ns, None, "it may have made calls while it was not measured");
    let note = &report.notes[0];
    assert!(note.contains("to counts=exact; the figures of 1 functions"), "{note}");

    // A function that has been measured keeps its figures, and a child inherits the selection.
    let before = inner.clone();
    reconfigure(exact(skip(INNER))).expect("in force");
    assert!(are_off(INNER) && are_on(LEAF));
    run(10);
    let child = report_of_child(run, &file);
    assert_eq!(calls(&child), [Some(1), None, Some(20)]);
    assert!(child.notes.is_empty(), "it has had these settings all the time: {:?}", child.notes);
    let report = report_in(&file);
    assert_eq!(calls(&report), [Some(3), Some(20), Some(40)]);
    let after = row(&report, INNER).expect("it was called");
    assert_eq!(after.total_ns, before.total_ns);
    assert!(report.notes[0].contains("2 times, last after"), "{:?}", report.notes);

    reconfigure(exact(only(INNER))).expect("in force");
    assert!(are_on(INNER) && are_off(LEAF) && are_off(RUN));
    run(10);
    assert_eq!(calls(&report_in(&file)), [Some(3), Some(30), Some(40)]);

    // Sampled: such a function is soon switched off. The figures from before are a lower bound.
    let sampled = Settings { budget: Budget::Fraction(0.5), ..Settings::default() };
    reconfigure(sampled.clone()).expect("in force");
    assert_eq!(session::settings(), Some(sampled));
    run(200_000);
    let report = report_in(&file);
    assert_eq!(report.cost.budget, Some(0.5));
    let leaf = row(&report, LEAF).expect("it was called").calls;
    assert!(leaf.low >= 40.0 && leaf.high != Some(leaf.low), "{leaf:?}");

    // Exact again: estimates remain estimates, and every further call is counted.
    reconfigure(exact(Filter::default())).expect("in force");
    assert!(are_on(LEAF) && are_on(INNER) && are_on(RUN));
    let before = row(&report_in(&file), LEAF).expect("it was called").calls;
    run(10_000);
    let after = row(&report_in(&file), LEAF).expect("it was called").calls;
    let counted_all = |before: &Estimate, after: &Estimate| {
        // Without an upper end, the value is the lower end.
        let has_value = before.high.is_some() && after.high.is_some();
        (!has_value || after.value - before.value == 20_000.0) && after.low >= before.low + 20_000.0
    };
    assert!(counted_all(&before, &after), "{before:?} {after:?}");

    // The same holds without a budget.
    reconfigure(Settings { budget: Budget::Unlimited, ..Settings::default() }).expect("in force");
    run(10_000);
    let report = report_in(&file);
    assert_eq!(report.settings, "budget=none:counts=exact");
    let last = row(&report, LEAF).expect("it was called").calls;
    assert!(counted_all(&after, &last), "{after:?} {last:?}");
}
