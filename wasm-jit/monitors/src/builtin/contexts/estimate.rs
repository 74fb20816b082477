//! [`Estimate`]: the accuracy of sampled times.

use super::sampler::{PERIOD, Samples};
use crate::Report;

/// The accuracy of sampled times, from all samples of a program, including those that found a
/// thread outside of it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::builtin) struct Estimate {
    /// The number of samples inside the program.
    pub(in crate::builtin) samples: u64,
    /// The number of all samples.
    all: u64,
    /// The sum of the times that the samples represent, in nanoseconds.
    sum: f64,
    /// The sum of the squares of these times.
    squares: f64,
}

/// The 97.5th percentile of the normal distribution.
const Z: f64 = 1.96;
/// With a probability of 95 %, a time without samples is at most this many times the time that a
/// sample represents: -ln 0.05.
const NONE: f64 = 3.0;

impl Estimate {
    pub(super) fn add_sample(&mut self, nanoseconds: u64, is_inside: bool) {
        let nanoseconds = nanoseconds as f64;
        self.samples += u64::from(is_inside);
        self.all += 1;
        self.sum += nanoseconds;
        self.squares += nanoseconds * nanoseconds;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.all += other.all;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.samples = self.samples.saturating_sub(other.samples);
        self.all = self.all.saturating_sub(other.all);
        self.sum = (self.sum - other.sum).max(0.0);
        self.squares = (self.squares - other.squares).max(0.0);
    }

    /// The mean time between two samples of a thread, in nanoseconds.
    fn mean(&self) -> f64 {
        if self.all > 0 { self.sum / self.all as f64 } else { PERIOD.as_nanos() as f64 }
    }

    /// The time that a sample represents for the errors, in nanoseconds. If the samples represent
    /// different times, because the sampler had to wait for a processor, it is longer than the
    /// mean: samples at equal intervals of this length would be as accurate.
    pub(in crate::builtin) fn per_sample(&self) -> f64 {
        if self.sum > 0.0 { self.squares / self.sum } else { PERIOD.as_nanos() as f64 }
    }

    /// The 95 % confidence interval of a time, in nanoseconds: Wilson's for its share in all
    /// samples, which are taken as independent. The times of a program that does the same for many
    /// samples in a row are known better than this; those of several threads that do the same at
    /// the same time are known less well.
    pub(in crate::builtin) fn interval(&self, time: f64) -> (f64, f64) {
        if time <= 0.0 || self.sum <= 0.0 {
            return (0.0, NONE * self.per_sample());
        }
        let count = self.sum / self.per_sample();
        let share = (time / self.sum).min(1.0);
        let scale = 1.0 + Z * Z / count;
        let middle = share + Z * Z / (2.0 * count);
        let variance = share * (1.0 - share) / count + Z * Z / (4.0 * count * count);
        let half = Z * variance.sqrt();
        let [low, high] = [middle - half, middle + half].map(|share| share / scale * self.sum);
        // The ends are exact at shares of 0 and 1, up to rounding.
        (low.clamp(0.0, time), high.clamp(time, self.sum.max(time)))
    }

    /// A time, in nanoseconds, as text in milliseconds: if it has samples, with half the width of
    /// the interval; otherwise as an upper bound.
    pub(in crate::builtin) fn milliseconds(&self, time: f64) -> [String; 2] {
        let (low, high) = self.interval(time);
        match time > 0.0 {
            true => [time, (high - low) / 2.0].map(|time| format!("{:.3}", time / 1e6)),
            false => [format!("<= {:.3}", high / 1e6), String::new()],
        }
    }

    /// The samples in one sentence.
    pub(in crate::builtin) fn summary(&self) -> String {
        format!("{} samples, one per {:.3} ms of a thread on average", self.samples, self.mean() / 1e6)
    }

    /// The explanation for a text in which times are followed by errors.
    pub(in crate::builtin) fn explanation(&self) -> String {
        self.explain("A time is followed by its 95 % error (±)")
    }

    /// The explanation for a text that shows no errors.
    pub(in crate::builtin) fn explanation_of_errors(&self) -> String {
        let each = self.per_sample() / 1e6;
        self.explain(&format!("A time t has a 95 % error (±) of at most about 2 * sqrt(t * {each:.3} ms)"))
    }

    fn explain(&self, errors: &str) -> String {
        let summary = self.summary();
        format!(
            "Times are sampled: {summary}; calls are exact.\n{errors}; <= is an upper bound, without a sample.\n"
        )
    }

    /// Adds an explanation of the figures to a report.
    pub(in crate::builtin) fn add_to(&self, report: &mut Report) {
        report.value("times", "sampled");
        report.value("samples", self.samples);
        report.value("nanoseconds per sample", self.mean().round() as u64);
        report.value("effective nanoseconds per sample", self.per_sample().round() as u64);
    }
}

impl Samples {
    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.nanoseconds += other.nanoseconds;
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.count = self.count.saturating_sub(other.count);
        self.nanoseconds = self.nanoseconds.saturating_sub(other.nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(samples: &[u64]) -> Estimate {
        let mut estimate = Estimate::default();
        samples.iter().for_each(|sample| estimate.add_sample(*sample, true));
        estimate
    }

    /// The values are those of `scipy.stats.binomtest(k, n).proportion_ci(method="wilson")`.
    #[test]
    fn intervals_of_equal_samples_are_those_of_wilson() {
        let estimate = estimate(&[1000; 100]);
        for (count, low, high) in [(1, 0.001767, 0.054488), (50, 0.403830, 0.596170), (100, 0.963006, 1.0)] {
            let (found_low, found_high) = estimate.interval(f64::from(count) * 1000.0);
            assert!((found_low / 1e5 - low).abs() < 2e-5, "{count}: {found_low}");
            assert!((found_high / 1e5 - high).abs() < 2e-5, "{count}: {found_high}");
        }
    }

    #[test]
    fn without_a_sample_there_is_an_upper_bound() {
        assert_eq!(estimate(&[1000; 100]).interval(0.0), (0.0, 3000.0));
        assert_eq!(estimate(&[]).interval(0.0), (0.0, 3e6), "of the period");
        assert_eq!(estimate(&[1_000_000; 100]).milliseconds(0.0), ["<= 3.000", ""]);
    }

    /// Whether a thread is in the program at all is as uncertain as where it is.
    #[test]
    fn samples_outside_of_the_program_count_for_the_error() {
        let mut found = estimate(&[1000; 10]);
        assert_eq!(found.interval(10_000.0).1, 10_000.0);
        (0..10).for_each(|_| found.add_sample(1000, false));
        assert_eq!(found.samples, 10);
        assert!(found.interval(10_000.0).1 > 13_000.0);
    }

    #[test]
    fn late_samples_make_errors_larger() {
        let (equal, late) = (estimate(&[1000; 100]), estimate(&[&[500; 99][..], &[50_500]].concat()));
        assert_eq!(equal.sum, late.sum);
        assert!(late.per_sample() > 20.0 * equal.per_sample());
        assert_eq!(late.summary(), "100 samples, one per 0.001 ms of a thread on average");
        let width = |estimate: Estimate| {
            let (low, high) = estimate.interval(10_000.0);
            high - low
        };
        assert!(width(late) > 2.0 * width(equal));
    }

    #[test]
    fn the_interval_contains_the_time_in_95_of_100_programs() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        for share in [0.01, 0.1, 0.5, 0.9] {
            let contained = (0..2000).filter(|_| {
                let hits = (0..400).filter(|_| random() < share).count();
                let (low, high) = estimate(&[1000; 400]).interval(hits as f64 * 1000.0);
                (low..=high).contains(&(share * 400_000.0))
            });
            let contained = contained.count();
            assert!((1840..=1980).contains(&contained), "{share}: {contained}");
        }
    }
}
