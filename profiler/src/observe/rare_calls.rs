//! Limits what the functions cost together that stay on because they are called rarely.
//!
//! Each of them costs next to nothing, but a large program may have a hundred thousand. Therefore
//! their allowances ([`Allowance`](crate::observe::policy::Allowance)) are refilled from one
//! reserve of calls. It grows with the program's processor time, by as many calls as [`OF_ALL`] of
//! the budget pays for. While it is empty, functions that have used up their allowances are
//! observed in windows, as those that are called often.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The part of the budget that all these functions may cost.
const OF_ALL: f64 = 0.5;

/// The reserve is at most what it grows by in this program time, in nanoseconds.
const CAPACITY: f64 = 1e9;

/// The time for which a function that is switched on again takes calls, in nanoseconds.
const AHEAD: f64 = 10e9;

/// The reserve of the process.
pub(super) static RESERVE: Reserve = Reserve(AtomicI64::new(0));

/// A number of calls; negative if more were taken than there were.
pub(super) struct Reserve(AtomicI64);

impl Reserve {
    /// Whether functions may stay on because they are called rarely.
    pub(super) fn is_left(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    pub(super) fn take(&self, calls: f64) {
        self.0.fetch_sub(calls as i64, Relaxed);
    }

    /// Takes the calls of a function that is switched on again: it was called at this rate, per
    /// nanosecond, and has this allowance.
    pub(super) fn take_for(&self, rate: f64, allowance: f64) {
        self.take((rate * AHEAD).min(allowance));
    }

    /// Makes it full. `None` stands for no limit.
    pub(super) fn fill(&self, budget: Option<f64>, cost_of_call: f64) {
        let calls = budget.map_or(i64::MAX, |budget| paid_in(CAPACITY, budget, cost_of_call));
        self.0.store(calls, Relaxed);
    }

    /// Adds what `own` nanoseconds of program time pay for.
    pub(super) fn grow(&self, own: f64, budget: f64, cost_of_call: f64) {
        self.0.fetch_add(paid_in(own, budget, cost_of_call), Relaxed);
        self.0.fetch_min(paid_in(CAPACITY, budget, cost_of_call), Relaxed);
    }
}

/// The calls that the budget pays for in `own` nanoseconds of program time.
fn paid_in(own: f64, budget: f64, cost_of_call: f64) -> i64 {
    (own * OF_ALL * budget / cost_of_call) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_functions_together_cost_half_of_the_budget() {
        const STEP: f64 = 5e6;
        let (budget, cost_of_call, steps) = (0.01, 200.0, 4_000);
        let reserve = Reserve(AtomicI64::new(0));
        reserve.fill(Some(budget), cost_of_call);
        let mut calls = 0.0;
        for _ in 0..steps {
            reserve.grow(STEP, budget, cost_of_call);
            // A hundred thousand functions have used up their allowances at the same time.
            for _ in (0..100_000).take_while(|_| reserve.is_left()) {
                reserve.take(40.0);
                calls += 40.0;
            }
        }
        let cost = calls * cost_of_call / (STEP * f64::from(steps)) / budget;
        assert!((0.5..0.55).contains(&cost), "{cost} of the budget");
    }

    #[test]
    fn what_was_not_taken_is_not_kept_for_long() {
        let reserve = Reserve(AtomicI64::new(0));
        (0..100).for_each(|_| reserve.grow(1e9, 0.01, 200.0));
        assert_eq!(reserve.0.into_inner(), 25_000);
        let unlimited = Reserve(AtomicI64::new(0));
        unlimited.fill(None, 200.0);
        unlimited.take(1e12);
        assert!(unlimited.is_left());
    }

    #[test]
    fn functions_that_are_silent_take_nothing_when_they_are_switched_on() {
        let reserve = Reserve(AtomicI64::new(100));
        reserve.take_for(0.0, 40.0);
        reserve.take_for(1e-9, 40.0);
        assert_eq!(reserve.0.load(Relaxed), 90);
        reserve.take_for(1e-3, 40.0);
        assert_eq!(reserve.0.into_inner(), 50);
    }
}
