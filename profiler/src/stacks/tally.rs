//! Counts of samples, and the times that are estimated from them.
//!
//! A thread's samples are a fixed amount of its processor time apart, so the number of samples in
//! which a function has been entered and not left, times the period, estimates the processor time
//! of its calls; recursive ones count once. The number in which no other instrumented function was
//! entered after it estimates its own time.
//!
//! # Limits
//! 1. **Sampling.** The interval is Wilson's for a binomial share (1927), with [`Z`]. Samples at
//!    equal distances have a smaller variance than independent ones, unless the program repeats
//!    itself in step with the period.
//! 2. **Samples of which only the inner frames are known**, or not all contexts, may contain any
//!    other function: they are part of the upper limit of all that were not seen in them.
//! 3. **Time without samples** is part of every upper limit: the time of threads that waited, which
//!    belongs to the latency of whatever waits; that of threads which ended before their first
//!    period was over; that in the kernel, if the process may not observe it.
//!
//! Samples in the profiler's own code are left out: the program would not have executed it.

use std::collections::HashMap;

use crate::report::Estimate;

/// Quantile of the normal distribution for the intervals: somewhat more than the 1.96 of 95 %.
const Z: f64 = 2.1;

/// With fewer samples than this, nothing is estimated.
const FEW: u64 = 20;

/// The samples of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    total: u64,
    own: u64,
    /// Of `total`, those whose other functions are not all known.
    partial: u64,
}

/// The samples so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    functions: HashMap<u32, Count>,
    arcs: HashMap<(Option<u32>, u32), u64>,
    all: u64,
    /// In the profiler's own code.
    pub(super) profiler: u64,
    /// Dropped by the kernel.
    pub(super) lost: u64,
    /// Samples whose functions are not all known.
    partial: u64,
    /// Samples whose innermost function is not known.
    headless: u64,
    /// For [`Tally::add`]: the functions and arcs of a sample, once each.
    seen: Vec<u32>,
    seen_arcs: Vec<(Option<u32>, u32)>,
}

/// The functions of a sample.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Innermost first; `None` between two that are separated by code without probes.
    pub(super) chain: Vec<Option<u32>>,
    /// Whether there may be others further out.
    pub(super) is_partial: bool,
    /// Whether there may be others further in.
    pub(super) is_headless: bool,
}

impl Tally {
    pub(super) fn add(&mut self, functions: &Functions) {
        self.all += 1;
        let is_partial = functions.is_partial || functions.is_headless;
        self.partial += u64::from(is_partial);
        self.headless += u64::from(functions.is_headless);
        self.seen.clear();
        self.seen_arcs.clear();
        for (at, function) in functions.chain.iter().enumerate() {
            let Some(function) = *function else { continue };
            if !self.seen.contains(&function) {
                let count = self.functions.entry(function).or_default();
                count.total += 1;
                count.partial += u64::from(is_partial);
                count.own += u64::from(self.seen.is_empty() && !functions.is_headless);
                self.seen.push(function);
            }
            let caller = functions.chain.get(at + 1).copied();
            let Some(caller) = caller.or((!is_partial).then_some(None)) else { continue };
            if !self.seen_arcs.contains(&(caller, function)) {
                *self.arcs.entry((caller, function)).or_default() += 1;
                self.seen_arcs.push((caller, function));
            }
        }
    }

    /// A sample without a stack.
    pub(super) fn add_unreadable(&mut self) {
        self.add(&Functions { is_headless: true, ..Functions::default() });
    }

    /// Samples that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.all + self.profiler
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.functions.capacity() * size_of::<(u32, Count)>()
            + self.arcs.capacity() * size_of::<((Option<u32>, u32), u64)>()
    }
}

/// The times of all functions.
#[derive(Debug)]
pub(crate) struct Times<'a> {
    tally: &'a Tally,
    /// Nanoseconds that a sample stands for.
    period: f64,
    /// Nanoseconds of the program's threads that have no samples.
    unsampled: f64,
}

/// What is known of the processor time of one function, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FunctionTime {
    /// Processor time of its calls.
    pub(crate) total: Estimate,
    /// The part of it that was spent in no other instrumented function.
    pub(crate) own: Estimate,
}

impl<'a> Times<'a> {
    /// From samples that are `period` nanoseconds apart. The program's threads, without the
    /// profiler's, have run for `running` nanoseconds and waited for `waiting`. `None` if there are
    /// too few samples.
    pub(crate) fn new(tally: &'a Tally, period: f64, running: f64, waiting: f64) -> Option<Self> {
        if tally.all < FEW {
            return None;
        }
        let taken = tally.taken() as f64;
        let sampled = period * (taken + tally.lost as f64);
        let unsampled = (running - sampled).max(0.0) + waiting.max(0.0);
        Some(Self { tally, period: sampled / taken, unsampled })
    }

    /// The time of a function.
    pub(crate) fn of(&self, function: u32) -> FunctionTime {
        let tally = self.tally;
        let count = tally.functions.get(&function).copied().unwrap_or_default();
        FunctionTime {
            total: self.estimate(count.total, tally.partial - count.partial),
            own: self.estimate(count.own, tally.headless),
        }
    }

    /// The time of the calls of `callee` that `caller` made; `None` stands for code without probes.
    pub(crate) fn of_arc(&self, caller: Option<u32>, callee: u32) -> Estimate {
        let seen = self.tally.arcs.get(&(caller, callee)).copied().unwrap_or(0);
        self.estimate(seen, self.tally.partial)
    }

    /// The arcs that samples have shown.
    pub(crate) fn arcs(&self) -> impl Iterator<Item = (Option<u32>, u32)> {
        self.tally.arcs.keys().copied()
    }

    /// The time of what was seen in `seen` samples, and may have been in `unknown` others.
    fn estimate(&self, seen: u64, unknown: u64) -> Estimate {
        let (low, _) = limits(seen, self.tally.all);
        let (_, high) = limits(seen + unknown, self.tally.all);
        let time = |samples: f64| samples * self.period;
        Estimate::within(time(seen as f64), time(low), time(high) + self.unsampled)
    }
}

/// Wilson's limits for the expected number of `seen` among `all` samples.
fn limits(seen: u64, all: u64) -> (f64, f64) {
    let (seen, all) = (seen as f64, (all as f64).max(1.0));
    let (share, z) = ((seen / all).min(1.0), Z * Z / all);
    let middle = (share + z / 2.0) / (1.0 + z);
    let half = (share * (1.0 - share) * z + z * z / 4.0).sqrt() / (1.0 + z);
    let low = if seen == 0.0 { 0.0 } else { all * (middle - half).max(0.0) };
    let high = if seen == all { all } else { all * (middle + half).min(1.0) };
    (low, high)
}

#[cfg(test)]
pub(super) mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn chain(functions: &[u32]) -> Functions {
        Functions {
            chain: functions.iter().map(|function| Some(*function)).collect(),
            ..Functions::default()
        }
    }

    /// Counts samples with these functions, innermost first.
    pub(crate) fn of_chains(samples: &[(&[u32], u64)]) -> Tally {
        added(&samples.iter().map(|(functions, number)| (chain(functions), *number)).collect::<Vec<_>>())
    }

    fn added(samples: &[(Functions, u64)]) -> Tally {
        let mut tally = Tally::default();
        for (functions, number) in samples {
            (0..*number).for_each(|_| tally.add(functions));
        }
        tally
    }

    #[test]
    fn recursive_calls_count_once_and_own_time_is_that_of_the_innermost() {
        let tally = added(&[(chain(&[2, 1, 2, 1]), 30), (chain(&[1]), 10)]);
        let times = Times::new(&tally, 100.0, 4000.0, 0.0).unwrap();
        let (one, two) = (times.of(1), times.of(2));
        assert_eq!((one.total.value, one.own.value), (4000.0, 1000.0));
        assert_eq!((two.total.value, two.own.value), (3000.0, 3000.0));
        assert_eq!(times.of_arc(Some(1), 2).value, 3000.0);
        assert_eq!(times.of_arc(None, 1).value, 4000.0);
    }

    #[test]
    fn what_a_sample_does_not_show_may_be_any_function() {
        let partial = Functions { is_partial: true, ..chain(&[1]) };
        let headless = Functions { is_headless: true, ..chain(&[]) };
        let tally = added(&[(chain(&[1, 2]), 50), (partial, 30), (headless, 20)]);
        let times = Times::new(&tally, 10.0, 1000.0, 0.0).unwrap();
        let (one, two) = (times.of(1), times.of(2));
        assert_eq!((one.total.value, two.total.value), (800.0, 500.0));
        assert!(one.total.high == Some(1000.0) && two.total.high == Some(1000.0), "{one:?} {two:?}");
        assert!(one.own.high.unwrap() >= 1000.0 && two.own.high.unwrap() < 300.0, "{one:?} {two:?}");
    }

    /// Half of the time was spent waiting, and the kernel has dropped a fifth of the samples.
    #[test]
    fn time_without_samples_may_belong_to_any_function() {
        let mut tally = added(&[(chain(&[1]), 400), (chain(&[2]), 400)]);
        tally.lost = 200;
        let times = Times::new(&tally, 1000.0, 1e6, 1e6).unwrap();
        let one = times.of(1).total;
        assert_eq!(one.value, 5e5);
        assert!(one.low > 4.5e5 && one.high.unwrap() > 1.5e6, "{one:?}");
        assert!(Times::new(&added(&[(chain(&[1]), FEW - 1)]), 1.0, 1.0, 0.0).is_none());
    }

    #[test]
    fn limits_hold_the_truth() {
        let mut random = SmallRng::seed_from_u64(7);
        for (share, all) in [(0.5, 40), (0.02, 400), (0.002, 1000), (0.97, 200), (0.1, 100)] {
            let runs = 4000;
            let holds = (0..runs).filter(|_| {
                let seen = (0..all).filter(|_| random.random_bool(share)).count() as u64;
                let (low, high) = limits(seen, all);
                (low..=high).contains(&(share * all as f64))
            });
            let part = holds.count() as f64 / f64::from(runs);
            assert!(part > 0.94, "{share} of {all}: {part}");
        }
        assert_eq!(limits(0, 100).0, 0.0);
        assert_eq!(limits(100, 100).1, 100.0);
    }
}
