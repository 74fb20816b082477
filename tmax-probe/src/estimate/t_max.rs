//! The T_max that can be claimed from the trials.
//!
//! The *clean wait* is the smallest wait of the grid with no torn trial at it and at any longer
//! one, over all splits, boundaries and executors. T_max is [`SAFETY_FACTOR`] times that, rounded
//! up. It is claimed only if
//!
//! 1. at least [`MIN_TORN_TRIALS`] trials tore at shorter waits, so that the run was able to detect
//!    tears;
//! 2. with [`CONFIDENCE`](super::CONFIDENCE), the share of trials that tear at the clean wait and
//!    beyond is below a sixth ([`MARGIN`]) of the share just below it. Longer waits do not tear
//!    more often than shorter ones, so the bound holds at T_max.
//!
//! Otherwise T_max is not known, and waits use `membarrier`, which does not need it.

use serde::{Deserialize, Serialize};

use super::count::Count;
use crate::trial::{Method, Trial};

/// T_max divided by the smallest clean wait. The paper's factor was 5 (600 ticks observed, 3,000
/// used), without trials that delay the fetch of the second part. A larger factor makes patches of
/// straddlers slower; a smaller one may crash a program.
pub const SAFETY_FACTOR: f64 = 3.0;

/// Minimum number of torn trials for a T_max. With this number and [`MARGIN`], none of 5,000
/// simulated machines got a T_max that was too short; with 20 and 4, 13 did.
pub(crate) const MIN_TORN_TRIALS: u64 = 60;

/// The number of torn trials from which the share just below the clean wait is computed.
const JUST_BELOW: u64 = 12;

/// Minimum ratio of the share just below the clean wait to the bound at it.
pub(super) const MARGIN: f64 = 6.0;

/// T_max is rounded up to a multiple of this number of ticks.
const ROUND: u32 = 100;

/// The trials at one wait, by the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AtWait {
    /// The wait, in ticks.
    pub wait: u32,
    /// The count over all splits, boundaries and executors.
    pub count: Count,
}

/// The verdict on T_max.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TMaxVerdict {
    /// T_max can be claimed.
    Known {
        /// The longest wait that tore, in ticks.
        last_torn: u32,
        /// The smallest clean wait, in ticks.
        clean: u32,
        /// T_max, including the safety factor, in ticks.
        t_max: u32,
        /// The share of trials that tore just below the clean wait, from 0 to 1.
        share_below: f64,
        /// The upper bound on the share of trials that tear at the clean wait and beyond, from 0
        /// to 1.
        at_most: f64,
    },
    /// Too few trials tore to determine where tears end.
    FewTears {
        /// The number of torn trials.
        torn_trials: u64,
        /// The smallest clean wait so far, in ticks; `None` if the longest wait tore.
        clean: Option<u32>,
    },
    /// Too few trials were made at clean waits.
    TooWeak {
        /// The smallest clean wait so far, in ticks.
        clean: u32,
        /// The share of trials that tore just below the clean wait, from 0 to 1.
        share_below: f64,
        /// The upper bound on the share of trials that tear at the clean wait and beyond, from 0
        /// to 1.
        at_most: f64,
    },
    /// The longest waits tore too.
    NoBound,
    /// No trial was made.
    NotTried,
}

impl TMaxVerdict {
    /// The smallest clean wait in ticks, whether T_max is known or not.
    pub fn clean(&self) -> Option<u32> {
        match *self {
            Self::Known { clean, .. } | Self::TooWeak { clean, .. } => Some(clean),
            Self::FewTears { clean, .. } => clean,
            Self::NoBound | Self::NotTried => None,
        }
    }
}

/// The trials by wait, in ascending order.
pub(super) fn by_wait(trials: &[Trial]) -> Vec<AtWait> {
    let wait_of = |trial: &Trial| match trial.spec.method {
        Method::Protocol { wait } => Some(wait),
        Method::Store | Method::LockedStore | Method::Wordpatch => None,
    };
    let mut waits: Vec<u32> = trials.iter().filter_map(wait_of).collect();
    waits.sort_unstable();
    waits.dedup();
    let at =
        |wait| AtWait { wait, count: Count::of(trials.iter().filter(|trial| wait_of(trial) == Some(wait))) };
    waits.into_iter().map(at).collect()
}

/// The verdict that follows from `waits`.
pub(super) fn verdict(waits: &[AtWait]) -> TMaxVerdict {
    if waits.is_empty() {
        return TMaxVerdict::NotTried;
    }
    let sum = |waits: &[AtWait]| waits.iter().fold(Count::default(), |sum, at| sum.plus(&at.count));
    let first_clean = waits.iter().rposition(|at| at.count.torn_trials > 0).map_or(0, |last| last + 1);
    let (torn, clean) = waits.split_at(first_clean);
    let torn_trials = sum(torn).torn_trials;
    let clean_wait = clean.first().map(|at| at.wait);
    if torn_trials < MIN_TORN_TRIALS {
        return TMaxVerdict::FewTears { torn_trials, clean: clean_wait };
    }
    let Some(clean_wait) = clean_wait else { return TMaxVerdict::NoBound };
    // The longest torn waits, as many as necessary.
    let from = (0..torn.len()).rev().find(|from| sum(&torn[*from..]).torn_trials >= JUST_BELOW);
    let share_below = sum(&torn[from.unwrap_or(0)..]).torn_share();
    let at_most = sum(clean).share_at_most();
    if at_most * MARGIN > share_below {
        return TMaxVerdict::TooWeak { clean: clean_wait, share_below, at_most };
    }
    let t_max = (f64::from(clean_wait) * SAFETY_FACTOR).ceil() as u32;
    TMaxVerdict::Known {
        last_torn: torn.last().map_or(0, |at| at.wait),
        clean: clean_wait,
        t_max: t_max.next_multiple_of(ROUND),
        share_below,
        at_most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each wait with its number of torn trials out of `trials`.
    fn at(trials: u64, waits: &[(u32, u64)]) -> TMaxVerdict {
        let count = |torn_trials| Count { trials, torn_trials, ..Count::default() };
        let waits: Vec<_> = waits.iter().map(|&(wait, torn)| AtWait { wait, count: count(torn) }).collect();
        verdict(&waits)
    }

    #[track_caller]
    fn check(verdict: TMaxVerdict, expected: &str) {
        let found = format!("{verdict:?}");
        assert!(found.starts_with(expected), "{found}, not {expected}");
    }

    #[test]
    fn the_clean_wait_has_no_tear_at_it_or_above() {
        let many = [(0, 60), (100, 40), (200, 0), (300, 0)];
        check(
            at(100, &many),
            "Known { last_torn: 100, clean: 200, t_max: 600, share_below: 0.4, at_most: 0.02",
        );
        let gap = [(0, 60), (100, 0), (200, 20), (250, 0), (300, 0)];
        check(at(100, &gap), "Known { last_torn: 200, clean: 250, t_max: 800");
        check(at(100, &[(0, 60), (100, 1)]), "NoBound");
        check(at(100, &[]), "NotTried");
    }

    /// Seven tears, as a quick run once had, do not justify a bound; nor does a bound that is
    /// weaker than the share it bounds.
    #[test]
    fn few_tears_or_a_weak_bound_are_not_enough() {
        check(at(100, &[(0, 0), (100, 0)]), "FewTears { torn_trials: 0, clean: Some(0) }");
        check(at(100, &[(0, 5), (91, 2), (300, 0)]), "FewTears { torn_trials: 7, clean: Some(300) }");
        check(at(100, &[(0, 59), (91, 0), (300, 0)]), "FewTears { torn_trials: 59");
        check(
            at(100, &[(0, 60), (91, 13), (300, 0)]),
            "TooWeak { clean: 300, share_below: 0.13, at_most: 0.045",
        );
        // The share just below the clean wait counts, not that without a wait.
        check(at(100, &[(0, 99), (50, 13), (91, 1), (300, 0)]), "TooWeak { clean: 300, share_below: 0.07");
    }
}
