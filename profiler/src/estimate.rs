//! From bursts to numbers of calls, with the error that is to be expected.
//!
//! # What is seen and what is not
//! A function's entries are seen until its burst is full, and not from then to the daemon's next tick. That gap is no fair
//! sample of the program's time: it begins when the function is busy. Calls come in clusters (a loop in a caller), so neither
//! the rate in the burst nor that since the last tick tells how many calls fall into the gap.
//!
//! # The estimate
//! One burst in some is a *counting* one: there the entry probe stays on, so the calls in its gap are counted. Which bursts
//! count does not depend on the program; so for the others
//!
//! ```text
//! calls in a gap = its length * (sum of calls counted / sum of gaps' lengths), over the counting bursts
//! ```
//!
//! whatever the pattern of calls. Counting stops early for a hot function; the rest of that gap is taken to be like the
//! beginning for as long as the program runs. A gap has pauses, in which the program waits or another process has its processor;
//! its beginning has few, being where the calls are. How long the program runs is the processor time of all its threads, but
//! not more than the time that passes. What the thread spent in probes is taken off, where one thread made the calls.
//!
//! # Classes
//! A function that is called a million times a second in one phase of the program, and once in ten milliseconds in another,
//! has calls of different lengths there as well. So bursts are put into classes by the mean interval between their entries, a
//! factor of four wide, and everything is reckoned within a class: the rate in the gaps, and the mean latency that it is
//! multiplied with for the total time. The last call of a burst has no part in the interval between entries, so a long one among
//! short ones would be taken for the rule in a class of short ones: it counts for itself only. A class without a counting
//! burst borrows the ratio of the rate in a gap to the rate in its burst from the others.
//!
//! Calls of a function that is not recursive and runs on one thread cannot take longer together than the gap they are in. How
//! many calls were open at once when bursts were full bounds the total time that gaps add.
//!
//! # The error
//! 95 % interval, from the scatter of the counting bursts around the common rate, plus what the cost of the probes
//! themselves leaves uncertain: for a function of a few nanoseconds that is much of the time between two calls, and the
//! error says so.

use std::collections::BTreeMap;

use crate::fire;
use crate::function::{BurstEnd, Moment, Stopped};
use crate::gaps::{Gap, Gaps, SHORTEST_CALL};
use crate::thread::Sample;

/// Two-sided 95 % of a normal distribution.
const Z_95: f64 = 1.96;

/// The logarithm of how wide a class is.
const CLASS_WIDTH: f64 = 2.0;

/// A number of calls and a total time, as they add up over blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    /// Calls that were seen.
    seen: f64,
    /// Calls that were not.
    unseen: f64,
    /// Of the unseen calls.
    variance: f64,
    /// Half-width that does not average out.
    systematic: f64,
    /// Sum of all calls' latencies, in ticks.
    pub(crate) total_ticks: f64,
}

impl Estimate {
    /// Seen and unseen calls.
    pub(crate) fn calls(&self) -> f64 {
        self.seen + self.unseen
    }

    /// Half-width of the 95 % interval as a part of the number of calls: 0 when every call was seen, nothing when there is
    /// no telling.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        if self.calls() == 0.0 {
            return Some(0.0);
        }
        let error = (Z_95 * self.variance.sqrt() + self.systematic) / self.calls();
        error.is_finite().then_some(error)
    }
}

/// Sums over samples.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    count: f64,
    ticks: f64,
    /// Without the last of each burst.
    inner_count: f64,
    inner_ticks: f64,
}

impl Samples {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.ticks += other.ticks;
        self.inner_count += other.inner_count;
        self.inner_ticks += other.inner_ticks;
    }

    fn mean(&self) -> Option<f64> {
        (self.inner_count > 0.0).then(|| self.inner_ticks / self.inner_count)
    }
}

/// Bursts of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Calls that were seen, and time that was not (ticks).
    seen: f64,
    unseen_time: f64,
    /// What calls the unseen time would hold at the rates of the bursts themselves.
    unseen_at_own_rate: f64,
    /// Samples that came in with these bursts.
    samples: Samples,
    /// Gaps of counting bursts: what calls they would have held at the rates of their bursts, the time in which calls were counted,
    /// and that in which they were not.
    gaps: Gaps,
    calls_at_own_rate: f64,
    counted_time: f64,
    rest_time: f64,
}

/// The estimator of one function.
#[derive(Debug, Default)]
pub(crate) struct Estimator {
    /// By the logarithm of the interval between entries.
    classes: BTreeMap<i32, Class>,
    /// Since the last burst.
    samples: Samples,
    /// The most calls that were open at once.
    open: u32,
}

/// Time that passed between two moments, less what was spent in probes. Across threads there is no telling whose probes
/// delayed whom.
fn net_time(passed: f64, from: &Moment, to: &Moment) -> f64 {
    let overhead = if from.thread == to.thread { to.overhead.wrapping_sub(from.overhead) } else { 0 };
    passed - overhead as f64
}

/// Ticks from one moment to another.
fn ticks(from: &Moment, to: u64) -> f64 {
    to.saturating_sub(from.ticks) as f64
}

impl Class {
    /// Takes the gap of a counting burst.
    fn count_gap(
        &mut self,
        calls: f64,
        full: &Moment,
        stopped: Option<&Stopped>,
        now: u64,
        ran: Option<[f64; 2]>,
    ) {
        self.seen += calls;
        let time = ticks(full, now).max(1.0);
        let Some(stopped) = stopped else {
            self.counted_time += time;
            return self.gaps.add(&Gap::Counted { calls, time });
        };
        let (passed, rest) = (ticks(full, stopped.moment.ticks), ticks(&stopped.moment, now));
        let [ran, rest_ran] = ran.unwrap_or([passed, rest]);
        let (ran, rest_ran) = (net_time(ran.min(passed), full, &stopped.moment), rest_ran.min(rest));
        self.counted_time += ran.max(calls * SHORTEST_CALL);
        self.rest_time += rest;
        self.gaps.add(&Gap::Begun { calls, ran, rest_ran, time });
    }

    /// Calls that were not seen, and the variance of that number. `carry_on` is how the rate in a gap compares to the rate in
    /// its burst, over all classes, if any burst counted.
    fn unseen(&self, carry_on: Option<f64>) -> (f64, f64) {
        if self.gaps.is_empty() {
            // A burst is when the function is busy: a gap that is busier still belongs to another class.
            let calls = self.unseen_at_own_rate * carry_on.unwrap_or(1.0).min(1.0);
            return (calls, calls * calls);
        }
        if self.unseen_time + self.rest_time == 0.0 {
            return (0.0, 0.0);
        }
        let calls = self.gaps.rest_calls() + self.gaps.rate() * self.unseen_time;
        (calls, self.gaps.variance(self.unseen_time))
    }

    /// Calls in a tick while the program runs.
    fn rate(&self) -> f64 {
        if !self.gaps.is_empty() {
            self.gaps.busy_rate()
        } else if self.unseen_time > 0.0 {
            self.unseen_at_own_rate / self.unseen_time
        } else {
            0.0
        }
    }
}

impl Estimator {
    /// Takes a sample of a latency.
    pub(crate) fn sample(&mut self, sample: &Sample) {
        let ticks = sample.ticks as f64;
        let (inner_count, inner_ticks) = if sample.last { (0.0, 0.0) } else { (1.0, ticks) };
        self.samples.add(&Samples { count: 1.0, ticks, inner_count, inner_ticks });
    }

    /// Takes a burst that is over `now`, in ticks. `ran` tells of one whose counting stopped before how long the program ran
    /// while calls were counted, and since then, in ticks of processor time.
    pub(crate) fn burst(&mut self, end: &BurstEnd, now: u64, ran: Option<[f64; 2]>) {
        let entries = f64::from(end.entries);
        let interval = end.full.map(|full| {
            let intervals = (entries - 1.0).max(1.0);
            net_time(ticks(&end.first, full.ticks), &end.first, &full).max(intervals * SHORTEST_CALL)
                / intervals
        });
        // Those that were not filled have a class of their own: all their calls were seen.
        let key = interval.map_or(i32::MAX, |interval| (interval.log2() / CLASS_WIDTH) as i32);
        let class = self.classes.entry(key).or_default();
        class.samples.add(&std::mem::take(&mut self.samples));
        class.seen += entries;
        let (Some(full), Some(interval)) = (end.full, interval) else { return };
        self.open = self.open.max(end.open);
        let gap_at_own_rate = ticks(&full, now).max(1.0) / interval;
        match end.counted {
            None => {
                class.unseen_time += ticks(&full, now).max(1.0);
                class.unseen_at_own_rate += gap_at_own_rate;
            }
            Some(counted) => {
                class.calls_at_own_rate += gap_at_own_rate;
                class.count_gap(counted.entries.into(), &full, counted.stopped.as_ref(), now, ran);
            }
        }
    }

    /// Everything so far.
    pub(crate) fn estimate(&self) -> Estimate {
        let sum = |value: fn(&Class) -> f64| self.classes.values().map(value).sum::<f64>();
        let at_own_rate = sum(|class| class.calls_at_own_rate);
        let carry_on = (at_own_rate > 0.0).then(|| sum(|class| class.gaps.calls()) / at_own_rate);
        let all = sum(|class| class.samples.ticks) / sum(|class| class.samples.count).max(1.0);
        let mut estimate = Estimate::default();
        for class in self.classes.values() {
            let (unseen, variance) = class.unseen(carry_on);
            let mean = class.samples.mean().unwrap_or(all);
            estimate.seen += class.seen;
            estimate.unseen += unseen;
            estimate.variance += variance;
            estimate.systematic += unseen * class.rate() * fire::unseen_in_a_pair() as f64 / 2.0;
            let counted = (class.seen - class.samples.count).max(0.0);
            let bounded = |calls: f64, time: f64| (calls * mean).min(time * f64::from(self.open.max(1)));
            estimate.total_ticks += class.samples.ticks
                + bounded(counted, class.counted_time)
                + bounded(unseen, class.unseen_time + class.rest_time);
        }
        estimate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{COUNTED_ENTRIES, COUNTED_TICKS, Counted};

    const EPOCH: f64 = 26_000_000.0;
    const SAMPLES: u32 = 10;

    /// Numbers between 0 and 1, the same in every run (SplitMix64).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    /// The profiler's policy over a program that calls at these times.
    fn simulate(calls: &[f64]) -> Estimate {
        simulate_running(calls, |_| 0.0, |time| time)
    }

    /// The same, with a latency for each time.
    fn simulate_lasting(calls: &[f64], latency: impl Fn(f64) -> f64) -> Estimate {
        simulate_running(calls, latency, |time| time)
    }

    /// The same, with how long the program has run by each time.
    fn simulate_running(calls: &[f64], latency: impl Fn(f64) -> f64, ran: impl Fn(f64) -> f64) -> Estimate {
        let ran_since = |end: &BurstEnd, now: f64| {
            let [full, stopped] = [end.full?, end.counted?.stopped?.moment].map(|at| ran(at.ticks as f64));
            Some([stopped - full, ran(now) - stopped])
        };
        let mut estimator = Estimator::default();
        let mut random = Random(7);
        let mut burst = BurstEnd { entries: 0, first: Moment::default(), full: None, open: 1, counted: None };
        let mut bursts = 0;
        let mut tick = EPOCH;
        let mut counting = false;
        for call in calls {
            while *call >= tick {
                if burst.full.is_some() {
                    estimator.burst(&burst, tick as u64, ran_since(&burst, tick));
                    burst =
                        BurstEnd { entries: 0, first: Moment::default(), full: None, open: 1, counted: None };
                    bursts += 1;
                    counting = bursts == 5 || bursts > 7 && random.next() < 1.0 / 8.0;
                }
                tick += EPOCH;
            }
            let moment = Moment { ticks: *call as u64, ..Moment::default() };
            if burst.entries < SAMPLES {
                burst.entries += 1;
                let last = burst.entries == SAMPLES;
                estimator.sample(&Sample { function: 0, last, ticks: latency(*call) as u64 });
                if burst.entries == 1 {
                    burst.first = moment;
                }
                if burst.entries == SAMPLES {
                    burst.full = Some(moment);
                    burst.counted = counting.then_some(Counted { entries: 0, stopped: None });
                }
            } else if let Some(counted) = &mut burst.counted
                && counted.stopped.is_none()
            {
                counted.entries += 1;
                let full = burst.full.unwrap().ticks;
                let enough = counted.entries >= COUNTED_ENTRIES && moment.ticks - full >= COUNTED_TICKS;
                counted.stopped = enough.then_some(Stopped { moment, ran: None });
            }
        }
        let last = *calls.last().unwrap();
        estimator.burst(&burst, last as u64, ran_since(&burst, last));
        estimator.estimate()
    }

    fn check(name: &str, calls: &[f64], tolerance: f64) {
        let (estimate, truth) = (simulate(calls), calls.len() as f64);
        let error = estimate.calls() / truth - 1.0;
        let said = estimate.relative_error().unwrap();
        assert!(error.abs() < tolerance, "{name}: off by {error:.3} of {truth}, said {said:.3}");
        assert!(error.abs() < 1.5 * said + 0.03, "{name}: off by {error:.3}, said {said:.3}");
    }

    /// Call times with these intervals, for so many epochs.
    fn times(epochs: usize, mut interval: impl FnMut() -> f64) -> Vec<f64> {
        let mut now = 0.0;
        std::iter::from_fn(|| {
            now += interval();
            (now < EPOCH * epochs as f64).then_some(now)
        })
        .collect()
    }

    #[test]
    fn a_steady_rate() {
        for interval in [260.0, 26_000.0, 400_003.0, 2_500_000.0] {
            check("steady", &times(100, || interval), 0.03);
        }
    }

    #[test]
    fn random_calls() {
        let mut random = Random(1);
        check("Poisson", &times(300, || -50_000.0 * (1.0 - random.next()).ln()), 0.05);
    }

    #[test]
    fn calls_in_clusters() {
        // A loop of 100 calls in a caller that runs every 10 us; and one of 40 calls in one that runs every few ticks.
        for (size, inside, between, epochs) in [(100, 26.0, 26_000.0, 100), (40, 2_600.0, 4.0 * EPOCH, 4_000)]
        {
            let mut random = Random(2);
            let mut left = size;
            let calls = times(epochs, || {
                left = if left == 0 { size } else { left - 1 };
                if left == size { between * (0.5 + random.next()) } else { inside }
            });
            check("clusters", &calls, 0.15);
        }
    }

    #[test]
    fn phases_of_different_rates() {
        let mut calls = times(1000, || 26_000.0);
        let quiet: Vec<_> = times(1000, || 1_300_000.0).iter().map(|t| t + 1000.0 * EPOCH).collect();
        calls.extend(quiet);
        check("phases", &calls, 0.1);
    }

    #[test]
    fn short_calls_in_one_phase_and_long_ones_in_another() {
        let mut calls = times(500, || 2_600.0);
        let slow: Vec<_> = times(500, || 0.6 * EPOCH).iter().map(|t| t + 500.0 * EPOCH).collect();
        calls.extend(&slow);
        let latency = |time: f64| if time < 500.0 * EPOCH { 1_300.0 } else { 0.5 * EPOCH };
        let truth: f64 = calls.iter().map(|time| latency(*time)).sum();
        let estimate = simulate_lasting(&calls, latency);
        let error = estimate.total_ticks / truth - 1.0;
        assert!(error.abs() < 0.05, "total off by {error:.3}");
        check("phases of calls of different lengths", &calls, 0.05);
    }

    #[test]
    fn a_program_that_does_not_always_run() {
        // Slices of a millisecond to eight in which it runs, and as long pauses on average: another process has its processor.
        let mut random = Random(3);
        let mut slices = Vec::new();
        let (mut ran, mut time) = (0.0, 0.0);
        while time < 400.0 * EPOCH {
            let [slice, pause] = [(); 2].map(|()| EPOCH * (0.1 + 0.7 * random.next()));
            slices.push((ran, time, slice));
            ran += slice;
            time += slice + pause;
        }
        for interval in [260.0, 2_600.0, 26_000.0] {
            let calls: Vec<f64> = slices
                .iter()
                .flat_map(|(_, start, slice)| {
                    (0..(slice / interval) as u64).map(move |call| start + call as f64 * interval)
                })
                .collect();
            let ran = |time: f64| {
                let (ran, start, slice) = slices[slices.partition_point(|(_, start, _)| *start <= time) - 1];
                ran + (time - start).min(slice)
            };
            let estimate = simulate_running(&calls, |_| 0.0, ran);
            let error = estimate.calls() / calls.len() as f64 - 1.0;
            let said = estimate.relative_error().unwrap();
            assert!(
                error.abs() < said + 0.03 && said < 0.2,
                "every {interval} ticks: off by {error:.3}, said {said:.3}"
            );
        }
    }

    #[test]
    fn too_few_calls_to_fill_a_burst_are_counted_exactly() {
        let calls = times(20, || EPOCH * 3.0);
        let estimate = simulate(&calls);
        assert_eq!((estimate.calls(), estimate.relative_error()), (calls.len() as f64, Some(0.0)));
    }
}
