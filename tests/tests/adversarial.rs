//! Coverage of the stated intervals, for programs designed to mislead an estimator that samples.
//! Each program counts its own calls (`fixtures/adversarial.c`) and runs several times.
//!
//! Assertions on all runs together:
//! - among the pairs of a row and a run with an estimate, the 95 % confidence intervals contain the
//!   truth in at least 93 %. To avoid failures by chance, the number of permitted misses is such
//!   that, if the coverage were 93 % and the pairs independent, it would be exceeded in one of
//!   10,000 runs of the test. Pairs of one run are not quite independent; the difference between 95
//!   % and 93 % leaves room for that;
//! - at least a tenth of these pairs have an interval with both bounds, because "at least one call"
//!   is never wrong;
//! - no number of calls and no total is off by more than 2 with a stated error below 50 %;
//! - no total exceeds the time of all threads.
//!
//! The machine may be shared: if anything is wrong, everything is measured once more, and anything
//! that is wrong then fails the test.

use std::fmt::Write as _;
use std::num::NonZero;

use serde_json::Value;
use tests::Compiler::Gcc;
use tests::{Competitors, Profiled, compile, is_long, profiled};

/// The programs run for a second or two, on a machine that may be busy.
const BUDGET: &str = "budget=5%";

/// Each program, the number of its runs in the long form, and the number of other processes per
/// processor that compete for it.
const PROGRAMS: [(&str, u32, usize); 13] = [
    ("cluster", 4, 0),
    ("periodic", 6, 0),
    ("phases", 6, 0),
    ("recursion", 5, 0),
    ("interpreter", 5, 0),
    ("threads", 5, 0),
    ("blocking", 5, 0),
    ("blocking", 4, 1),
    ("waiting", 4, 0),
    ("nanoseconds", 4, 1),
    ("many", 4, 2),
    ("tail", 4, 0),
    ("tail", 4, 1),
];

const COVERAGE: f64 = 0.93;
const FAILS_BY_CHANCE: f64 = 1e-4;
/// Relative accuracy of the program's own times: the probes are inside the measured interval, and
/// the clocks differ.
const CLOCKS: f64 = 0.03;

/// An estimate with its interval.
#[derive(Clone, Copy)]
struct Estimate {
    value: f64,
    low: f64,
    high: Option<f64>,
}

impl Estimate {
    fn read(value: &Value) -> Option<Self> {
        let figure = |key: &str| value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"));
        (!value.is_null()).then(|| Self {
            value: figure("value"),
            low: figure("low"),
            high: value["high"].as_f64(),
        })
    }

    fn is_exact(self) -> bool {
        self.high == Some(self.low)
    }

    fn covers(self, (least, most): (f64, f64)) -> bool {
        // The report has integers.
        self.low <= most + 1.0 && self.high.is_none_or(|high| high + 1.0 >= least)
    }

    /// Whether the value is off by more than 2 although the stated error is below 50 %, and by more
    /// than chance explains: 4.5 standard errors, where the stated error is two. Smaller errors
    /// count as intervals that miss.
    fn is_confidently_wrong(self, (least, most): (f64, f64)) -> bool {
        let Some(high) = self.high else { return false };
        let error = (high - self.low) / 2.0;
        let is_off = self.value > 2.0 * most || self.value < least / 2.0;
        let distance = (self.value - most).max(least - self.value);
        error < 0.5 * self.value && is_off && distance > 2.25 * error
    }
}

/// The number of pairs of a row and a run, and of those whose interval misses the truth.
#[derive(Default)]
struct Pairs {
    pairs: u32,
    missed: u32,
    /// The number of intervals without an upper bound.
    open: u32,
}

impl Pairs {
    fn add(&mut self, estimate: Estimate, truth: (f64, f64)) {
        self.pairs += 1;
        self.missed += u32::from(!estimate.covers(truth));
        self.open += u32::from(estimate.high.is_none());
    }

    /// The number of misses that a coverage of [`COVERAGE`] exceeds in [`FAILS_BY_CHANCE`] of all
    /// tests.
    fn allowed(&self) -> u32 {
        let mut probability = COVERAGE.powf(f64::from(self.pairs));
        let (mut missed, mut exceeded) = (0, 1.0 - probability);
        while exceeded > FAILS_BY_CHANCE && missed < self.pairs {
            missed += 1;
            probability *=
                f64::from(self.pairs - missed + 1) / f64::from(missed) * (1.0 - COVERAGE) / COVERAGE;
            exceeded -= probability;
        }
        missed
    }
}

#[test]
fn allowed_misses_leave_one_in_ten_thousand_to_chance() {
    let allowed = |pairs| Pairs { pairs, ..Pairs::default() }.allowed();
    // Quantiles of the binomial distributions with probability 0.07.
    assert_eq!([0, 1, 10, 100, 300].map(allowed), [0, 1, 5, 18, 39]);
}

/// A function's name, its number of calls, and the bounds of its total time in ns.
type Truth = (String, f64, Option<(f64, f64)>);

fn truths(profiled: &Profiled) -> Vec<Truth> {
    assert!(profiled.run.status.success(), "{}\n{}", profiled.run.status, profiled.run.stderr);
    let text = String::from_utf8_lossy(&profiled.run.stdout).into_owned();
    let truth = |line: &str| {
        let (name, figures) = line.split_once(' ').unwrap_or_else(|| panic!("no figures: {line}"));
        let figures: Vec<f64> = figures.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [calls, least, most] = figures[..] else { panic!("not three figures: {line}") };
        let total = (most > 0.0).then_some((least * (1.0 - CLOCKS), most * (1.0 + CLOCKS)));
        (name.to_owned(), calls, total)
    };
    text.lines().map(truth).collect()
}

/// Faults, and numbers of intervals that contain the truth.
#[derive(Default)]
struct Verdict {
    calls: Pairs,
    totals: Pairs,
    faults: String,
}

impl Verdict {
    fn add(&mut self, variant: &str, profiled: &Profiled) {
        let report = profiled.report();
        assert_eq!(report.json["version"], 3, "{variant}");
        let thread_time = report.json["thread_time_ns"].as_f64().expect("the time of all threads");
        for (name, calls, total) in truths(profiled) {
            let Some(function) = report.function(&name) else {
                let _ = writeln!(self.faults, "{variant}: no {name} in the report, called {calls} times");
                continue;
            };
            let found = Estimate::read(&function["calls"]).expect("a number of calls");
            println!("{variant}: {name}: {calls} calls, found {}", function["calls"]);
            let truth = (calls, calls);
            if found.is_exact() {
                if (found.value - calls).abs() > 0.5 {
                    let _ =
                        writeln!(self.faults, "{variant}: {name}: {calls} calls, counted {}", found.value);
                }
            } else {
                self.calls.add(found, truth);
            }
            if found.is_confidently_wrong(truth) {
                let _ =
                    writeln!(self.faults, "{variant}: {name}: {calls} calls, found {}", function["calls"]);
            }
            let Some(found) = Estimate::read(&function["total_ns"]) else { continue };
            println!("{variant}: {name}: total {total:?} ns, found {}", function["total_ns"]);
            if found.value > 1.001 * thread_time {
                let total = found.value;
                let _ =
                    writeln!(self.faults, "{variant}: {name}: total {total} ns of {thread_time} ns in all");
            }
            let Some(total) = total else { continue };
            self.totals.add(found, total);
            if found.is_confidently_wrong(total) {
                let _ = writeln!(
                    self.faults,
                    "{variant}: {name}: total {total:?} ns, found {}",
                    function["total_ns"]
                );
            }
        }
    }

    /// A description of all faults; empty if there are none.
    fn faults(mut self) -> String {
        for (what, pairs) in [("calls", &self.calls), ("totals", &self.totals)] {
            let (missed, allowed) = (pairs.missed, pairs.allowed());
            println!(
                "{what}: {missed} of {} intervals miss, {allowed} may; {} are open",
                pairs.pairs, pairs.open
            );
            if 10 * pairs.open > 9 * pairs.pairs {
                let _ =
                    writeln!(self.faults, "{} of {} intervals of {what} are open", pairs.open, pairs.pairs);
            }
            if missed > allowed {
                let _ = writeln!(
                    self.faults,
                    "{missed} of {} intervals of {what} miss: {allowed} may",
                    pairs.pairs
                );
            }
        }
        self.faults
    }
}

#[test]
fn stated_intervals_hold_for_adversarial_programs() {
    let binary = compile("fixtures/adversarial.c", &["-O2"], Gcc);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let measure = || {
        let mut verdict = Verdict::default();
        for (variant, runs, competitors) in PROGRAMS {
            for _ in 0..if is_long() { runs } else { runs.div_ceil(3) } {
                let _competitors = Competitors::start(competitors * processors);
                verdict.add(variant, &profiled(&binary, &[variant], BUDGET));
            }
        }
        verdict.faults()
    };
    let first = measure();
    if !first.is_empty() {
        println!("repeated, because of:\n{first}");
        let second = measure();
        assert!(second.is_empty(), "first:\n{first}\nand again:\n{second}");
    }
}
