//! Sums over trials of one kind, and bounds on the share of trials that tear.
//!
//! The unit is the trial, see [`crate::trial`]. Bounds are those of Clopper and Pearson: exact for
//! independent trials, one-sided, at the level [`CONFIDENCE`]. With no torn trial of n, the bound
//! is 1 - (1 - CONFIDENCE)^(1/n), about 4.6 / n.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Beta, ContinuousCDF};

use crate::trial::Trial;

/// The confidence level of every bound.
pub const CONFIDENCE: f64 = 0.99;

/// Sums over trials of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// The number of trials.
    pub trials: u64,
    /// The number of trials with a tear.
    pub torn_trials: u64,
    /// The total number of toggles.
    pub toggles: u64,
    /// The total number of executions.
    pub executions: u64,
    /// The total number of torn executions. They come in clusters, so nothing is inferred from
    /// their number.
    pub tears: u64,
}

impl Count {
    /// The sums over these trials.
    pub fn of<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Self {
        trials.into_iter().fold(Self::default(), |sum, trial| {
            sum.plus(&Self {
                trials: 1,
                torn_trials: u64::from(trial.tears > 0),
                toggles: trial.toggles,
                executions: trial.executions,
                tears: trial.tears,
            })
        })
    }

    /// The sum of both counts.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            trials: self.trials + other.trials,
            torn_trials: self.torn_trials + other.torn_trials,
            toggles: self.toggles + other.toggles,
            executions: self.executions + other.executions,
            tears: self.tears + other.tears,
        }
    }

    /// The share of trials that tore, from 0 to 1.
    pub fn torn_share(&self) -> f64 {
        self.torn_trials as f64 / self.trials.max(1) as f64
    }

    /// The upper bound on the share of such trials that tear, with [`CONFIDENCE`]; 1 without a
    /// trial.
    pub fn share_at_most(&self) -> f64 {
        let (torn, clean) = (self.torn_trials as f64, (self.trials - self.torn_trials) as f64);
        if clean == 0.0 { 1.0 } else { quantile(torn + 1.0, clean, CONFIDENCE) }
    }

    /// The lower bound on the share of such trials that tear, with [`CONFIDENCE`]; 0 without a torn
    /// trial.
    pub fn share_at_least(&self) -> f64 {
        let (torn, clean) = (self.torn_trials as f64, (self.trials - self.torn_trials) as f64);
        if torn == 0.0 { 0.0 } else { quantile(torn, clean + 1.0, 1.0 - CONFIDENCE) }
    }

    /// The probability that at least one of these trials would have torn if each tore with
    /// probability `share`.
    pub fn power(&self, share: f64) -> f64 {
        1.0 - (1.0 - share).powf(self.trials as f64)
    }
}

fn quantile(shape_a: f64, shape_b: f64, level: f64) -> f64 {
    Beta::new(shape_a, shape_b).expect("positive shapes").inverse_cdf(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn count(trials: u64, torn_trials: u64) -> Count {
        Count { trials, torn_trials, toggles: trials * 1_000, executions: trials * 1_000, tears: torn_trials }
    }

    #[track_caller]
    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-3 * expected, "{found}, not {expected}");
    }

    #[test]
    fn bounds_are_those_of_clopper_and_pearson() {
        // With no success in n, 1 - 0.01^(1/n); with n successes, the lower bound is 0.01^(1/n).
        for trials in [1, 10, 120, 600, 10_000] {
            close(count(trials, 0).share_at_most(), 1.0 - 0.01_f64.powf(1.0 / trials as f64));
            close(count(trials, trials).share_at_least(), 0.01_f64.powf(1.0 / trials as f64));
        }
        // One-sided 99 % bounds for 3 of 20, from the definition: P(at most 3 | p) = 0.01, P(at
        // least 3 | p) = 0.01.
        close(count(20, 3).share_at_most(), 0.420_73);
        close(count(20, 3).share_at_least(), 0.022_71);
        assert_eq!((count(0, 0).share_at_most(), count(0, 0).share_at_least()), (1.0, 0.0));
        assert_eq!((count(9, 9).share_at_most(), count(9, 0).share_at_least()), (1.0, 0.0));
    }

    #[test]
    fn power_grows_with_the_trials() {
        close(count(120, 0).power(1.0 / 26.0), 0.990_964);
        assert_eq!(count(0, 0).power(0.5), 0.0);
    }
}
