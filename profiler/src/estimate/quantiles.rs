//! Percentiles of weighted, grouped samples, with their confidence intervals.
//!
//! The samples of one window form a group, and have the same weight. When there are too many
//! samples, one of each two successive ones is dropped, at random since calls may alternate, and
//! the others represent twice as many calls: the variance is that between groups, so that many
//! small groups give a narrower interval than a few large ones. With [`MIN_OF_GROUP`] samples in a
//! group, half of the groups are dropped instead, at random, and from then on each new group is
//! kept with half the probability. All groups are kept with the same probability, so weights do not
//! change. Where this would leave no group, samples are dropped again.
//!
//! The interval of a percentile is Woodruff's (1952): the variance of the share of samples below
//! it, over groups (linearized ratio), gives an interval of shares, and the samples at these shares
//! are the limits. Windows that are all alike do not show a phase of the program that none of them
//! was in: of `n` windows, none is in a phase that has up to 3 / `n` of the calls with a
//! probability of 5 % (the rule of three, Hanley and Lippman-Hand 1983), so the interval of shares
//! is at least as wide as if that many calls were not seen.

use crate::estimate::interval::student;
use crate::report::Estimate;

/// The minimum mean number of samples in a group at which groups are dropped instead of samples.
const MIN_OF_GROUP: usize = 4;

/// As many windows as would contain one of a phase, with a probability of 95 %, if one of them were
/// expected to: -ln 0.05.
const UNSEEN: f64 = 3.0;

/// One sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    group: u32,
    ticks: f32,
    weight: f32,
}

/// The kept samples of one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantiles {
    samples: Vec<Sample>,
    /// A group is kept if this many bits of its hash are zero.
    thinned: u32,
    /// Of two to this power successive samples of these groups, one is kept.
    halvings: u32,
    /// The number of samples of these groups so far.
    added: u64,
}

/// Scatters numbers, such as those of groups, so that neighbours are independent.
fn hash(number: u32) -> u32 {
    let mixed = (number ^ (number >> 16)).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    mixed ^ (mixed >> 16)
}

impl Quantiles {
    /// Adds a sample of a group; at most `limit` samples are kept.
    pub(crate) fn add(&mut self, group: u32, ticks: f64, weight: f64, limit: usize) {
        if !self.is_kept(group) {
            return;
        }
        let (run, place) = (self.added >> self.halvings, self.added & ((1 << self.halvings) - 1));
        self.added += 1;
        if place != u64::from(hash(run as u32)) & ((1 << self.halvings) - 1) {
            return;
        }
        let weight = (weight as f32) * (1_u64 << self.halvings) as f32;
        self.samples.push(Sample { group, ticks: ticks as f32, weight });
        while self.samples.len() > limit.max(1) && self.halvings < 63 {
            if self.samples.len() >= 2 * MIN_OF_GROUP * self.groups() {
                self.halve();
                continue;
            }
            let thinned = self.thinned + 1;
            let stays = |sample: &Sample| hash(sample.group).trailing_zeros() >= thinned;
            let before = self.samples.len();
            match self.samples.iter().filter(|sample| stays(sample)).count() {
                0 => self.halve(),
                left if left == before => self.halve(),
                _ => {
                    self.thinned = thinned;
                    self.samples.retain(stays);
                }
            }
        }
    }

    /// Removes one of each two successive samples. The others represent twice as many calls.
    fn halve(&mut self) {
        self.halvings += 1;
        let mut number = 0;
        self.samples.retain(|_| {
            let (pair, place) = (number / 2, number % 2);
            number += 1;
            place == hash(pair) % 2
        });
        self.samples.iter_mut().for_each(|sample| sample.weight *= 2.0);
    }

    /// The number of groups.
    fn groups(&self) -> usize {
        let mut groups: Vec<u32> = self.samples.iter().map(|sample| sample.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.len()
    }

    fn is_kept(&self, group: u32) -> bool {
        hash(group).trailing_zeros() >= self.thinned
    }

    /// Memory of the samples, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.samples.capacity() * size_of::<Sample>()
    }

    /// Whether all added samples are kept.
    fn is_complete(&self) -> bool {
        self.thinned == 0 && self.halvings == 0
    }

    /// The percentiles at these shares, in ticks; `None` without samples. `unknown` is the number
    /// of calls about which nothing is known, relative to those that the samples represent; if it
    /// is 0, the samples are all calls.
    pub(crate) fn at<const N: usize>(&self, shares: [f64; N], unknown: f64) -> Option<[Estimate; N]> {
        let mut sorted: Vec<&Sample> = self.samples.iter().collect();
        sorted.sort_unstable_by(|a, b| a.ticks.total_cmp(&b.ticks));
        let mut grouped = self.samples.clone();
        grouped.sort_unstable_by_key(|sample| sample.group);
        let total: f64 = sorted.iter().map(|sample| f64::from(sample.weight)).sum();
        if sorted.is_empty() || total <= 0.0 {
            return None;
        }
        let value_at = |share: f64| {
            let mut below = 0.0;
            let found = sorted.iter().find(|sample| {
                below += f64::from(sample.weight);
                below >= share * total * (1.0 - 1e-9)
            });
            f64::from(found.unwrap_or_else(|| &sorted[sorted.len() - 1]).ticks)
        };
        Some(shares.map(|share| {
            let value = value_at(share);
            if unknown == 0.0 && self.is_complete() {
                return Estimate::exact(value);
            }
            let Some((error, groups)) = error_of_share(&grouped, value, share, total) else {
                return Estimate { value, low: value_at(0.0), high: None };
            };
            // All other calls may have been shorter than the percentile, or longer.
            let unseen = UNSEEN / groups;
            let least = share - (1.0 - share) * unknown - error.max((1.0 - share) * unseen);
            let most = share + share * unknown + error.max(share * unseen);
            let low = if least > 0.0 { value_at(least) } else { value_at(0.0) };
            // Above the largest sample nothing is known.
            let high = (most < 1.0).then(|| value_at(most));
            Estimate { value, low, high }
        }))
    }
}

/// Half-width of the 95 % confidence interval of the share of samples up to `value`, and the number
/// of groups that represent the calls: this is the number of groups of equal weight that would have
/// the same variance (Kish 1965, section 8.2). `None` if these are fewer than two. The samples are
/// in the order of their groups.
fn error_of_share(grouped: &[Sample], value: f64, share: f64, total: f64) -> Option<(f64, f64)> {
    let residual = |sample: &Sample| {
        let is_below = f64::from(u8::from(f64::from(sample.ticks) <= value));
        f64::from(sample.weight) * (is_below - share)
    };
    let weight = |sample: &Sample| f64::from(sample.weight);
    let (mut count, mut squares, mut fourths, mut squared_weights) = (0.0, 0.0, 0.0, 0.0);
    for group in grouped.chunk_by(|a, b| a.group == b.group) {
        count += 1.0;
        let square = group.iter().map(residual).sum::<f64>().powi(2);
        squares += square;
        fourths += square * square;
        squared_weights += group.iter().map(weight).sum::<f64>().powi(2);
    }
    let groups = total * total / squared_weights;
    // With some tolerance for the rounding of weights.
    if groups < 2.0 - 1e-6 {
        return None;
    }
    let between = squares * count / (count - 1.0) / (total * total);
    // A few groups that happen to agree are not better than as many independent samples.
    let samples = total * total / grouped.iter().map(|sample| weight(sample).powi(2)).sum::<f64>();
    let least = share * (1.0 - share) / samples;
    // A few windows may represent most of the calls. At the ends of the distribution, the residuals
    // do not show this.
    let degrees = if fourths > 0.0 { squares * squares / fourths } else { count - 1.0 };
    Some((student(degrees.min(groups - 1.0)) * between.max(least).sqrt(), groups))
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn samples_of_one_group_are_never_all_removed() {
        for group in 0..50 {
            let mut samples = Quantiles::default();
            (0..1000).for_each(|value| samples.add(group, f64::from(value), 1.0, 100));
            assert!((50..=100).contains(&samples.samples.len()));
            let median = samples.at([0.5], 0.0).expect("there are samples")[0];
            assert!((400.0..=600.0).contains(&median.value), "group {group}: {median:?}");
            assert_eq!(median.high, None, "one group says nothing about others");
        }
    }

    #[test]
    fn calls_that_alternate_are_all_represented() {
        // The first number is that after which samples are dropped for the first time.
        for (calls, first) in [(66, 10.0), (66, 1000.0), (10_000, 10.0), (10_000, 1000.0)] {
            let mut samples = Quantiles::default();
            for number in 0..calls {
                let ticks = if number % 2 == 0 { first } else { 1010.0 - first };
                samples.add(number / 5000, ticks, 1.0, 64);
            }
            let long = samples.samples.iter().filter(|sample| sample.ticks == 1000.0).count();
            let all = samples.samples.len();
            assert!((all / 5..=all - all / 5).contains(&long), "{long} of {all}");
        }
    }

    #[test]
    fn all_samples_are_exact_and_weights_count() {
        let mut all = Quantiles::default();
        (1..=100).for_each(|value| all.add(value, f64::from(value), 1.0, 1000));
        assert_eq!(all.at([0.5, 0.99], 0.0).unwrap(), [Estimate::exact(50.0), Estimate::exact(99.0)]);
        let mut weighted = Quantiles::default();
        weighted.add(1, 10.0, 99.0, 1000);
        weighted.add(2, 1000.0, 1.0, 1000);
        assert_eq!(weighted.at([0.5], 0.0).unwrap()[0].value, 10.0);
        assert!(Quantiles::default().at([0.5], 0.0).is_none());
    }

    #[test]
    fn a_window_that_represents_most_calls_does_not_limit_percentiles() {
        let mut quantiles = Quantiles::default();
        (0..200).for_each(|group| quantiles.add(group, 10.0, 1.0, 2048));
        quantiles.add(1000, 5000.0, 1e6, 2048);
        for share in [0.5, 0.9, 0.99] {
            let [found] = quantiles.at([share], 1e-9).unwrap();
            assert_eq!((found.value, found.low, found.high), (5000.0, 10.0, None), "{share}");
        }
        // Another one, which is different: the percentile may be like either.
        quantiles.add(1001, 20.0, 1e6, 2048);
        let [found] = quantiles.at([0.99], 1e-9).unwrap();
        assert_eq!((found.low, found.high), (20.0, None));
    }

    /// Groups with different levels: the samples of one group are strongly correlated.
    #[test]
    fn intervals_hold_the_true_percentile_for_samples_in_clusters() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut covered, mut known) = ([0; 2], 0);
        const RUNS: u32 = 400;
        for _ in 0..RUNS {
            let mut quantiles = Quantiles::default();
            for group in 0..300_u32 {
                let level = random.random_range(0.0..50.0);
                (0..20).for_each(|_| quantiles.add(group, level + random.random_range(0.0..50.0), 3.0, 2048));
            }
            assert!(quantiles.samples.len() <= 2048);
            let found = quantiles.at([0.5, 0.9], 1e-9).unwrap();
            // The sum of two uniform variables: a triangle over 0 to 100.
            for (index, truth) in [50.0, 100.0 - 50.0 * 0.2_f64.sqrt()].into_iter().enumerate() {
                let Estimate { low, high, .. } = found[index];
                covered[index] += u32::from(low <= truth && high.is_none_or(|high| truth <= high));
                known += u32::from(high.is_some());
            }
        }
        assert!(covered.iter().all(|covered| *covered >= RUNS * 93 / 100), "{covered:?} of {RUNS}");
        assert!(known > RUNS, "{known}");
    }

    /// Few windows, of which often none is in the phase of long calls.
    #[test]
    fn windows_that_are_alike_do_not_rule_out_other_phases() {
        let mut random = SmallRng::seed_from_u64(8);
        const RUNS: u32 = 400;
        let mut covered = 0;
        for _ in 0..RUNS {
            let mut quantiles = Quantiles::default();
            for group in 0..10_u32 {
                let level = if random.random_bool(0.2) { 1000.0 } else { 100.0 };
                (0..20).for_each(|_| quantiles.add(group, level + random.random_range(0.0..50.0), 3.0, 2048));
            }
            let [found] = quantiles.at([0.9], 1e-9).unwrap();
            // Half of the long calls are longer.
            covered += u32::from(found.low <= 1025.0 && found.high.is_none_or(|high| high >= 1025.0));
        }
        assert!(covered >= RUNS * 95 / 100, "{covered} of {RUNS}");
    }

    /// The windows of a long run: what differs between them, one in twenty shows.
    #[test]
    fn many_windows_with_few_samples_are_kept() {
        let mut quantiles = Quantiles::default();
        for window in 0..2_000_u32 {
            let level = f64::from(window % 20);
            (0..40).for_each(|_| quantiles.add(window, level, 100.0, 2048));
        }
        assert!(quantiles.groups() > 200, "{}", quantiles.groups());
        let [found] = quantiles.at([0.9], 1e-9).unwrap();
        assert!(found.low >= 15.0 && found.high.is_some_and(|high| high <= 19.0), "{found:?}");
    }

    #[test]
    fn dropping_groups_leaves_the_distribution_as_it_is() {
        let mut quantiles = Quantiles::default();
        for group in 0..100_000_u32 {
            quantiles.add(group, f64::from(group % 1000), 1.0, 1024);
        }
        assert!((200..=1024).contains(&quantiles.samples.len()));
        let [median] = quantiles.at([0.5], 0.0).unwrap();
        assert!(median.low <= 500.0 && median.high.unwrap() >= 499.0, "{median:?}");
        assert!(median.high.unwrap() - median.low < 200.0, "{median:?}");
    }

    #[test]
    fn calls_that_were_not_seen_may_have_taken_any_time() {
        let mut quantiles = Quantiles::default();
        (0..10_000_u32).for_each(|value| quantiles.add(value, f64::from(value), 1.0, 100_000));
        let bounds = |unknown: f64| {
            let [median] = quantiles.at([0.5], unknown).unwrap();
            (median.low, median.high)
        };
        let (low, high) = bounds(0.1);
        // 1000 more calls: the 5500th of 11,000 is one of those from the 4500th to the 5500th.
        assert!(
            (4200.0..4501.0).contains(&low) && (5500.0..5800.0).contains(&high.unwrap()),
            "{low} {high:?}"
        );
        assert_eq!(bounds(1.1), (0.0, None));
        assert_eq!(bounds(f64::INFINITY), (0.0, None));
    }
}
