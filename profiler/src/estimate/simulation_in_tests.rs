//! Simulates the policy and the estimator on thousands of synthetic programs, to check the coverage
//! of the intervals.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::estimate::strata::{Strata, Systematic};
use crate::observe::policy::{Allowance, CAP, Intensity, Next, Pace, RARE};
use crate::report::Estimate;

/// Mean time between two ticks of the service thread.
const TICK: f64 = 1e6;

/// Time that the service thread takes to wake up when an allowance is used up.
const WAKE: f64 = 1e5;

const INTENSITY: Intensity =
    Intensity { calls: 50.0, stratum: 10e6, allowance: 1000.0, earned: 0.0, rare: RARE };

/// Simulates one run: the profiler's estimate for a function whose entries are at `times`, in
/// order, in nanoseconds.
fn run(times: &[f64], duration: f64, random: &mut impl Rng) -> Strata {
    let mut strata = Strata::default();
    let mut at = 0;
    let mut now = 0.0;
    let tick_after = |time: f64, random: &mut dyn FnMut() -> f64| time + TICK * random();
    while now < duration {
        // On.
        let mut left = INTENSITY.allowance as u32;
        let mut looked = now;
        let mut chunk = left;
        loop {
            let Some(time) = times.get(at) else { return strata };
            if *time < now {
                at += 1;
                continue;
            }
            strata.counted(1, 0.0);
            at += 1;
            left -= 1;
            if left == 0 {
                match Allowance::refilled(time - looked, 0.0, &INTENSITY) {
                    Allowance::More(calls) => (left, chunk, looked) = (calls, calls, *time),
                    Allowance::Exhausted => {
                        now = *time;
                        break;
                    }
                }
            }
        }
        let rate = f64::from(chunk) / (now - looked).max(1.0);
        let mut pace = Pace::new(rate, None);
        let mut start = (now + WAKE * random.random_range(0.5..2.0)).min(duration);
        strata.gap(start - now, rate);
        // Sampled.
        let mut observation = 0;
        now = loop {
            match pace.next(start, 0.0, &INTENSITY, random) {
                Next::On => break start,
                Next::Window(planned) => {
                    let tick = tick_after(planned.opens, &mut || random.random_range(0.0..1.0));
                    if tick >= duration {
                        strata.gap(duration - start, pace.rate());
                        return strata;
                    }
                    let mut open = planned.open(tick, 1.0, 0.0);
                    let (opens, closes) = (tick, tick + open.length);
                    open.end = open.end.min(duration.max(closes));
                    let from = times.partition_point(|time| *time < opens);
                    let to = times.partition_point(|time| *time < closes);
                    let cap = (CAP * INTENSITY.calls as u32) as usize;
                    let entries = (to - from).min(cap);
                    strata.opened(observation, open.weight(), open.end - open.start);
                    let length = closes - opens;
                    if to - from > cap {
                        let cut = times[from + cap - 1];
                        let rate = cap as f64 / (cut - opens).max(1.0);
                        strata.closed(entries as u64, rate * (closes - cut), Systematic::NONE);
                        pace.exceeded(rate);
                    } else {
                        strata.closed(entries as u64, 0.0, Systematic::NONE);
                        pace.observed(entries as f64 / length);
                    }
                    observation += 1;
                    start = open.end;
                    if start >= duration {
                        return strata;
                    }
                }
            }
        };
        at = times.partition_point(|time| *time < now);
    }
    strata
}

#[derive(Default, Debug)]
struct Outcome {
    covered: u32,
    /// The number of runs that are off by a factor of more than 2.
    off: u32,
    confident: u32,
    mean: f64,
    /// The standard error of the mean.
    error: f64,
    observed: f64,
}

/// Many runs of programs that `program` generates.
fn outcome(runs: u32, duration: f64, mut program: impl FnMut(&mut SmallRng) -> Vec<f64>) -> Outcome {
    let mut random = SmallRng::seed_from_u64(42);
    let mut outcome = Outcome::default();
    let mut squares = 0.0;
    for _ in 0..runs {
        let times = program(&mut random);
        let truth = times.len() as f64;
        let strata = run(&times, duration, &mut random).finished();
        let Estimate { value, low, high } = strata.calls();
        outcome.covered += u32::from(low <= truth + 0.5 && high.is_none_or(|high| truth <= high + 0.5));
        let off = value > 2.0 * truth || value < truth / 2.0;
        outcome.off += u32::from(off);
        outcome.confident += u32::from(off && high.is_some_and(|high| high - value < 0.5 * value));
        outcome.mean += value / truth / f64::from(runs);
        squares += (value / truth).powi(2) / f64::from(runs);
        outcome.observed += strata.observed() / truth / f64::from(runs);
    }
    outcome.error = ((squares - outcome.mean * outcome.mean).max(0.0) / f64::from(runs)).sqrt();
    outcome
}

#[track_caller]
fn check(what: &str, duration: f64, program: impl FnMut(&mut SmallRng) -> Vec<f64>) {
    const RUNS: u32 = 500;
    let outcome = outcome(RUNS, duration, program);
    println!("{what}: {outcome:?}");
    assert!(outcome.covered * 100 >= RUNS * 93, "{what}: {outcome:?}");
    assert!(outcome.confident * 200 <= RUNS, "{what}: {outcome:?}");
    // The only biases are gaps, and windows that open late. In a run with a single cluster, they
    // dominate.
    let is_biased = (outcome.mean - 1.0).abs() > 4.0 * outcome.error.max(0.0) + 0.05;
    assert!(!is_biased || what.starts_with("one cluster"), "{what}: {outcome:?}");
}

/// Calls at random instants at a constant rate per nanosecond.
fn steady(random: &mut SmallRng, from: f64, to: f64, rate: f64) -> Vec<f64> {
    let mut time = from;
    let mut next = |time: &mut f64| {
        *time += -random.random_range(f64::MIN_POSITIVE..1.0_f64).ln() / rate;
        *time
    };
    std::iter::repeat_with(|| next(&mut time)).take_while(|time| *time < to).collect()
}

const SECOND: f64 = 1e9;

#[test]
fn a_steady_function() {
    check("steady, 1 M/s", SECOND, |random| steady(random, 0.0, SECOND, 1e-3));
    check("steady, 20 k/s", SECOND, |random| steady(random, 0.0, SECOND, 2e-5));
    check("steady, 6 k/s", SECOND, |random| steady(random, 0.0, SECOND, 6e-6));
}

#[test]
fn one_cluster_in_a_long_run() {
    for calls in [2_000, 20_000] {
        check(&format!("one cluster of {calls}"), SECOND, |random| {
            let from = random.random_range(0.0..0.9 * SECOND);
            steady(random, from, from + 1e6, f64::from(calls) / 1e6)
        });
    }
}

#[test]
fn clusters() {
    check("clusters of 500, 200 a second", SECOND, |random| {
        let starts = steady(random, 0.0, SECOND, 2e-7);
        starts.iter().flat_map(|start| (0..500).map(move |call| start + 100.0 * f64::from(call))).collect()
    });
}

#[test]
fn periodic_calls() {
    for period in [1e6, 10e6] {
        check(&format!("period {period}"), SECOND, |random| {
            let phase = random.random_range(0.0..period);
            let starts = (0..(SECOND / period) as u32 - 1).map(|number| phase + f64::from(number) * period);
            starts.flat_map(|start| (0..2000).map(move |call| start + 50.0 * f64::from(call))).collect()
        });
    }
}

#[test]
fn phases() {
    check("300 ms hot, 300 ms silent, 300 ms hot", SECOND, |random| {
        let mut times = steady(random, 0.0, 0.3 * SECOND, 5e-4);
        times.extend(steady(random, 0.6 * SECOND, 0.9 * SECOND, 5e-4));
        times
    });
}

#[test]
fn a_short_run() {
    check("70 ms, 2 M/s", 0.07 * SECOND, |random| steady(random, 0.0, 0.07 * SECOND, 2e-3));
    check("70 ms, clusters", 0.07 * SECOND, |random| {
        let starts = steady(random, 0.0, 0.07 * SECOND, 2e-6);
        starts.iter().flat_map(|start| (0..300).map(move |call| start + 100.0 * f64::from(call))).collect()
    });
}
