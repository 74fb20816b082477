//! Leaves out samples when unwinding them exceeds its budget.
//!
//! The kernel's period cannot be changed for threads that exist, and on a busy machine, where other
//! data is in the caches, unwinding takes twice as long as otherwise. The samples that are left out
//! are drawn at random, with a probability that depends only on the cost of earlier ones, so the
//! program has no influence on it. A sample that is kept with probability p has the weight 1/p.
//!
//! Samples are kept while windows have exceeded the budget ([`crate::observe::governor::part`]):
//! the interruption has been paid for, unwinding costs little more, and for a given cost a sample
//! tells more about the times of functions than windows do.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The minimum part of the samples that is kept.
const MIN_KEPT: f64 = 0.1;

/// The cost is an average over about this number of recent samples.
const RECENT: f64 = 100.0;

/// Decides which samples are kept.
pub(super) struct Thinning {
    random: SmallRng,
    /// The affordable cost of unwinding for each sample that is taken, in nanoseconds.
    affordable: f64,
    /// The cost of unwinding for each sample that is kept, in nanoseconds.
    cost: f64,
    kept: f64,
    left_out: u64,
}

impl Thinning {
    /// Keeps all samples.
    pub(super) fn new() -> Self {
        let random = SmallRng::from_rng(&mut rand::rng());
        Self { random, affordable: f64::INFINITY, cost: 0.0, kept: 1.0, left_out: 0 }
    }

    /// Sets the affordable cost of unwinding for each sample that is taken, and the assumed initial
    /// cost for each one that is kept, in nanoseconds.
    pub(super) fn begin(&mut self, affordable: f64, cost: f64) {
        (self.affordable, self.cost) = (affordable.max(0.0), cost);
    }

    /// The weight of the next sample; `None` if it is left out.
    pub(super) fn weight(&mut self) -> Option<f64> {
        if self.random.random_bool(self.kept) {
            return Some(1.0 / self.kept);
        }
        self.left_out += 1;
        None
    }

    /// Records the cost of the last `samples` that were kept, in nanoseconds of processor time,
    /// without that of work which would not be less if fewer were kept.
    pub(super) fn has_cost(&mut self, cost: f64, samples: u32) {
        if samples > 0 {
            let (cost, samples) = (cost.max(0.0), f64::from(samples));
            self.cost = (RECENT * self.cost + cost) / (RECENT + samples);
        }
        self.kept = (self.affordable / self.cost.max(1.0)).clamp(MIN_KEPT, 1.0);
    }

    /// The number of samples left out.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_represent_those_that_are_left_out_and_the_cost_is_what_it_may_be() {
        let mut thinning = Thinning { random: SmallRng::seed_from_u64(1), ..Thinning::new() };
        thinning.begin(10_000.0, 10_000.0);
        let (mut weights, mut kept, taken) = (0.0, 0, 20_000);
        for _ in 0..taken {
            let weight = thinning.weight();
            kept += u64::from(weight.is_some());
            weights += weight.unwrap_or(0.0);
            // Each costs three times what was assumed.
            thinning.has_cost(weight.map_or(0.0, |_| 30_000.0), weight.is_some().into());
        }
        assert!((0.97..1.03).contains(&(weights / f64::from(taken))), "{weights} of {taken}");
        assert_eq!(kept + thinning.left_out(), taken as u64);
        let part = kept as f64 / f64::from(taken) * 3.0;
        assert!((0.95..1.1).contains(&part), "{part} of what it may cost");
        thinning.begin(0.0, 10_000.0);
        thinning.has_cost(0.0, 0);
        assert!((0..10_000).any(|_| thinning.weight().is_some()), "some are always kept");
    }
}
