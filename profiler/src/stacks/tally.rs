//! Counts samples, and estimates times from the counts.
//!
//! A thread's samples are a fixed amount of processor time apart. Therefore the number of samples
//! in which a function has been entered and not left, times the period, estimates the processor
//! time of its calls; a recursive function counts once. The number of samples in which it is the
//! innermost instrumented function estimates its self time.
//!
//! # Limits
//! 1. **Sampling.** The interval is Wilson's for a binomial share (1927), with [`Z`]. Samples at
//!    equal distances have a smaller variance than independent ones, unless the program repeats
//!    itself in step with the period.
//! 2. **Incomplete samples**, in which only the inner frames or not all contexts are known, may
//!    contain any other function: they are part of the upper limit of all functions that were not
//!    seen in them.
//! 3. **Time without samples** is part of every upper limit: the time of threads that ended within
//!    their first period, and the time in the kernel if the process may not observe it.
//! 4. **Thinning.** While unwinding costs too much, a random part of the samples is left out, and
//!    each of the others weighs more ([`super::thinning`]). The interval is then that of the number
//!    of equal samples with the same variance, which is the variance of a ratio of weighted sums
//!    (Särndal, Swensson and Wretman 1992, section 5.6).
//! 5. **Waits** belong to the latency of the function that waits, and are estimated from separate
//!    snapshots ([`super::waits`]). Without these, the time of all waiting threads is part of every
//!    upper limit.
//!
//! Samples in the profiler's own code are left out: without the profiler, the program would not
//! have executed it.

use std::collections::HashMap;

use super::waits::Waits;
use crate::report::Estimate;

/// Quantile of the normal distribution for the intervals: slightly more than the 1.96 of 95 %.
const Z: f64 = 2.1;

/// Parts of the samples below this are rounding errors.
const ROUNDING: f64 = 1e-9;

/// Minimum number of samples for an estimate.
const FEW: u64 = 20;

/// A number of samples, each of which represents several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weight {
    /// The sum of the weights, and the sum of their squares.
    sum: f64,
    squares: f64,
}

impl Weight {
    fn add(&mut self, weight: f64) {
        self.sum += weight;
        self.squares += weight * weight;
    }

    fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, squares: self.squares + other.squares }
    }

    fn minus(self, other: Self) -> Self {
        Self { sum: self.sum - other.sum, squares: self.squares - other.squares }
    }

    /// Limits of the expected sum, out of the weight `all`.
    fn limits(self, all: Self) -> (f64, f64) {
        // Sums in different orders may differ in their last digits.
        let share = match self.sum / all.sum {
            none if none < ROUNDING => 0.0,
            whole if whole > 1.0 - ROUNDING => 1.0,
            part => part,
        };
        let rest = all.minus(self).squares.max(0.0);
        let variance =
            (self.squares * (1.0 - share) * (1.0 - share) + rest * share * share) / all.sum.powi(2);
        let equal = match share * (1.0 - share) {
            0.0 => all.sum * all.sum / all.squares,
            of_one => of_one / variance,
        };
        let (low, high) = limits(share * equal, equal);
        let scale = all.sum / equal;
        (low * scale, high * scale)
    }
}

/// The samples of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    total: Weight,
    own: Weight,
    /// The part of `total` whose other functions are not all known.
    partial: Weight,
}

/// The counts of all samples so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    functions: HashMap<u32, Count>,
    arcs: HashMap<(Option<u32>, u32), Weight>,
    /// The weight of all samples, and their number.
    all: Weight,
    number: u64,
    /// The weight of the samples in the profiler's own code, and their number.
    profiler: f64,
    of_profiler: u64,
    /// The number of samples that the kernel has dropped.
    pub(super) lost: u64,
    /// Samples whose functions are not all known.
    partial: Weight,
    /// Samples whose innermost function is not known.
    headless: Weight,
}

/// The functions of a sample.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Innermost first; `None` between two functions that are separated by code without probes.
    pub(super) chain: Vec<Option<u32>>,
    /// Whether there may be other functions further out.
    pub(super) is_partial: bool,
    /// Whether there may be other functions further in.
    pub(super) is_headless: bool,
}

impl Functions {
    /// Whether some functions are not known.
    pub(super) fn are_incomplete(&self) -> bool {
        self.is_partial || self.is_headless
    }

    /// Calls `function` for each function, with whether it is the innermost one, and `arc` for each
    /// arc; once for recursive calls.
    pub(super) fn each(&self, mut function: impl FnMut(u32, bool), mut arc: impl FnMut((Option<u32>, u32))) {
        let is_partial = self.are_incomplete();
        let caller_of = |at: usize| self.chain.get(at).copied().or((!is_partial).then_some(None));
        let mut is_innermost = !self.is_headless;
        for (at, called) in self.chain.iter().enumerate() {
            let Some(called) = *called else { continue };
            if !self.chain[..at].contains(&Some(called)) {
                function(called, std::mem::take(&mut is_innermost));
            }
            let Some(caller) = caller_of(at + 1) else { continue };
            let is_same =
                |inner: usize| self.chain[inner] == Some(called) && caller_of(inner + 1) == Some(caller);
            if !(0..at).any(is_same) {
                arc((caller, called));
            }
        }
    }
}

impl Tally {
    /// Adds a sample with this weight.
    pub(super) fn add(&mut self, functions: &Functions, weight: f64) {
        let Self { partial, headless, functions: by_function, arcs, .. } = self;
        let is_partial = functions.are_incomplete();
        let weight_if = |is: bool| if is { weight } else { 0.0 };
        self.number += 1;
        self.all.add(weight);
        partial.add(weight_if(is_partial));
        headless.add(weight_if(functions.is_headless));
        functions.each(
            |function, is_own| {
                let count = by_function.entry(function).or_default();
                count.total.add(weight);
                count.partial.add(weight_if(is_partial));
                count.own.add(weight_if(is_own));
            },
            |arc| arcs.entry(arc).or_default().add(weight),
        );
    }

    /// A sample without a stack.
    pub(super) fn add_unreadable(&mut self) {
        self.add(&Functions { is_headless: true, ..Functions::default() }, 1.0);
    }

    /// A sample in the profiler's own code.
    pub(super) fn add_of_profiler(&mut self, weight: f64) {
        self.profiler += weight;
        self.of_profiler += 1;
    }

    /// The number of samples.
    pub(crate) fn taken(&self) -> u64 {
        self.number + self.of_profiler
    }

    /// Bytes of memory of the counts.
    pub(super) fn memory(&self) -> usize {
        self.functions.capacity() * size_of::<(u32, Count)>()
            + self.arcs.capacity() * size_of::<((Option<u32>, u32), Weight)>()
    }
}

/// The estimated times of all functions.
#[derive(Debug)]
pub(crate) struct Times<'a> {
    tally: &'a Tally,
    /// The waits, if they are known.
    waits: Option<&'a Waits>,
    /// Nanoseconds that a sample represents.
    period: f64,
    /// Nanoseconds of the program's threads that have no samples.
    unsampled: f64,
}

/// The estimated time of one function, in nanoseconds: processor time, and waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FunctionTime {
    /// The time of the function's calls.
    pub(crate) total: Estimate,
    /// The self time: the part that was spent in no other instrumented function.
    pub(crate) own: Estimate,
}

impl<'a> Times<'a> {
    /// Estimates times from samples that are `period` nanoseconds apart. The program's threads,
    /// without the profiler's, have run for `running` nanoseconds and waited for `waiting`. `None`
    /// if there are too few samples.
    pub(crate) fn new(
        tally: &'a Tally,
        waits: Option<&'a Waits>,
        period: f64,
        running: f64,
        waiting: f64,
    ) -> Option<Self> {
        if tally.number < FEW {
            return None;
        }
        let taken = tally.all.sum + tally.profiler;
        let sampled = period * (taken + tally.lost as f64);
        let waits = waits.filter(|waits| waits.are_known());
        let unsampled = (running - sampled).max(0.0) + waits.map_or(waiting, Waits::unseen);
        Some(Self { tally, waits, period: sampled / taken, unsampled })
    }

    /// The time of a function.
    pub(crate) fn of(&self, function: u32) -> FunctionTime {
        let tally = self.tally;
        let count = tally.functions.get(&function).copied().unwrap_or_default();
        FunctionTime {
            total: self.estimate(count.total, tally.partial.minus(count.partial), |waits| waits.of(function)),
            own: self.estimate(count.own, tally.headless, |waits| waits.of_own(function)),
        }
    }

    /// The time of calls from `caller` to `callee`; `None` stands for code without probes.
    pub(crate) fn of_arc(&self, caller: Option<u32>, callee: u32) -> Estimate {
        let seen = self.tally.arcs.get(&(caller, callee)).copied().unwrap_or_default();
        self.estimate(seen, self.tally.partial, |waits| waits.of_arc((caller, callee)))
    }

    /// The arcs in the samples, some of them twice.
    pub(crate) fn arcs(&self) -> impl Iterator<Item = (Option<u32>, u32)> {
        self.tally.arcs.keys().copied().chain(self.waits.into_iter().flat_map(Waits::arcs))
    }

    /// The time of a function or arc that is in the samples `seen`, may be in the samples
    /// `unknown`, and has waited for the time that `waited` returns.
    fn estimate(&self, seen: Weight, unknown: Weight, waited: impl FnOnce(&Waits) -> Estimate) -> Estimate {
        let (low, _) = seen.limits(self.tally.all);
        let (_, high) = seen.plus(unknown).limits(self.tally.all);
        let time = |samples: f64| samples * self.period;
        let ran = Estimate::within(time(seen.sum), time(low), time(high));
        let both = self.waits.map_or(ran, |waits| ran.plus(&waited(waits)));
        Estimate { high: both.high.map(|high| high + self.unsampled), ..both }
    }
}

/// Wilson's limits for the expected number of `seen` among `all` samples.
pub(super) fn limits(seen: f64, all: f64) -> (f64, f64) {
    let all = all.max(1.0);
    let (share, z) = ((seen / all).min(1.0), Z * Z / all);
    let middle = (share + z / 2.0) / (1.0 + z);
    let half = (share * (1.0 - share) * z + z * z / 4.0).sqrt() / (1.0 + z);
    let low = if seen == 0.0 { 0.0 } else { all * (middle - half).max(0.0) };
    let high = if seen >= all { all } else { all * (middle + half).min(1.0) };
    (low, high)
}

#[cfg(test)]
pub(super) mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::super::blocked::Snapshot;
    use super::super::watched::{Spot, Wait};
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
            (0..*number).for_each(|_| tally.add(functions, 1.0));
        }
        tally
    }

    #[test]
    fn recursive_calls_count_once_and_own_time_is_that_of_the_innermost() {
        let tally = added(&[(chain(&[2, 1, 2, 1]), 30), (chain(&[1]), 10)]);
        let times = Times::new(&tally, None, 100.0, 4000.0, 0.0).unwrap();
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
        let times = Times::new(&tally, None, 10.0, 1000.0, 0.0).unwrap();
        let (one, two) = (times.of(1), times.of(2));
        assert_eq!((one.total.value, two.total.value), (800.0, 500.0));
        assert!(one.total.high == Some(1000.0) && two.total.high == Some(1000.0), "{one:?} {two:?}");
        assert!(one.own.high.unwrap() >= 1000.0 && two.own.high.unwrap() < 300.0, "{one:?} {two:?}");
    }

    /// Half of the time is waiting, and the kernel has dropped a fifth of the samples.
    #[test]
    fn time_without_samples_may_belong_to_any_function() {
        let mut tally = added(&[(chain(&[1]), 400), (chain(&[2]), 400)]);
        tally.lost = 200;
        let times = Times::new(&tally, None, 1000.0, 1e6, 1e6).unwrap();
        let one = times.of(1).total;
        assert_eq!(one.value, 5e5);
        assert!(one.low > 4.5e5 && one.high.unwrap() > 1.5e6, "{one:?}");
        assert!(Times::new(&added(&[(chain(&[1]), FEW - 1)]), None, 1.0, 1.0, 0.0).is_none());
    }

    /// Half a second was waited in function 2, and another tenth was not seen.
    #[test]
    fn time_that_was_not_seen_may_belong_to_any_function() {
        let tally = added(&[(chain(&[1]), 500)]);
        let mut waits = Waits::default();
        for _ in 0..50 {
            let spot = Spot { thread: 7, ip: 0, sp: 0 };
            let wait = Wait { spot, waited: 1e7, hides: false, own: None };
            let snapshot = Snapshot { span: Some(1e7), unseen: 1e8, ..Snapshot::default() };
            waits.add(&snapshot, &[(wait, chain(&[2]))]);
        }
        let times = Times::new(&tally, Some(&waits), 1e6, 5e8, 1e9).unwrap();
        let (one, two) = (times.of(1).total, times.of(2).total);
        assert_eq!((one.value, two.value), (5e8, 5e8));
        assert!(
            (6e8..7e8).contains(&one.high.unwrap()) && (6e8..7e8).contains(&two.high.unwrap()),
            "{two:?}"
        );
        assert!(times.arcs().any(|arc| arc == (None, 2)));
    }

    /// Weights whose sums depend on the order; any function may be in the partial samples.
    #[test]
    fn a_function_that_may_be_in_all_thinned_samples_has_all_of_the_time_as_its_limit() {
        let mut random = SmallRng::seed_from_u64(9);
        for _ in 0..500 {
            let mut tally = Tally::default();
            for _ in 0..200 {
                let is_partial = random.random_bool(0.3);
                let functions = Functions { is_partial, ..chain(if is_partial { &[2] } else { &[2, 1] }) };
                tally.add(&functions, 1.0 / random.random_range(0.1..1.0));
            }
            let all = tally.all.sum;
            let times = Times::new(&tally, None, 1.0, all, 0.0).unwrap();
            let (one, two) = (times.of(1).total, times.of(2).total);
            assert!((0.999..1.001).contains(&(one.high.unwrap() / all)), "{one:?} of {all}");
            assert!((0.999..1.001).contains(&(two.value / all)), "{two:?} of {all}");
            assert!(one.low > 0.0 && one.low < one.value && two.low > one.low, "{one:?} {two:?}");
        }
    }

    #[test]
    fn limits_hold_the_truth() {
        let mut random = SmallRng::seed_from_u64(7);
        for (share, all) in [(0.5, 40), (0.02, 400), (0.002, 1000), (0.97, 200), (0.1, 100)] {
            let runs = 4000;
            let holds = (0..runs).filter(|_| {
                let seen = (0..all).filter(|_| random.random_bool(share)).count() as f64;
                let (low, high) = limits(seen, f64::from(all));
                (low..=high).contains(&(share * f64::from(all)))
            });
            let part = holds.count() as f64 / f64::from(runs);
            assert!(part > 0.94, "{share} of {all}: {part}");
        }
        assert_eq!(limits(0.0, 100.0).0, 0.0);
        assert_eq!(limits(100.0, 100.0).1, 100.0);
    }

    /// Of 2,000 samples, those of the second half of the time are thinned to a tenth; function 1
    /// runs in 10 % of the first half, and in half of the second.
    #[test]
    fn intervals_of_thinned_samples_hold_the_truth() {
        let mut random = SmallRng::seed_from_u64(8);
        let truth = 1000.0 * 0.1 + 1000.0 * 0.5;
        let (mut holds, mut sum, runs) = (0, 0.0, 1000);
        for _ in 0..runs {
            let mut tally = Tally::default();
            for number in 0..2000 {
                let (share, kept) = if number < 1000 { (0.1, 1.0) } else { (0.5, 0.1) };
                let function = if random.random_bool(share) { 1 } else { 2 };
                if random.random_bool(kept) {
                    tally.add(&chain(&[function]), 1.0 / kept);
                }
            }
            // The time of all samples is known.
            let times = Times::new(&tally, None, 1.0, 2000.0, 0.0).unwrap();
            let total = times.of(1).total;
            sum += total.value;
            holds += u32::from(total.low <= truth && total.high.is_none_or(|high| high >= truth));
        }
        let (mean, part) = (sum / f64::from(runs), f64::from(holds) / f64::from(runs));
        assert!((0.98 * truth..1.02 * truth).contains(&mean), "{mean} of {truth}");
        assert!(part > 0.93, "{part}");
    }
}
