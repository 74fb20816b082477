//! Limits what the probes of functions with long calls cost.
//!
//! A function stays on while its calls are long: the time in them adds to its allowance
//! ([`Allowance`](crate::observe::policy::Allowance)), in proportion to [`OF_ONE`] of the budget.
//! Many calls may be open at the same time, one inside the other. What the functions that stay on
//! cost together is therefore counted; if it is more than [`OF_ALL`] of the budget, their calls add
//! less.
//!
//! It does not matter what everything else costs. The start of a large program exceeds the budget
//! for seconds, and these functions, which are most of those with the largest totals, cost little.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The part of the budget that the probes of one function may cost for the time of its calls.
const OF_ONE: f64 = 0.05;

/// The part of the budget that all functions may cost that stay on.
const OF_ALL: f64 = 0.5;

/// Time constant of the counted cost and of the changes, in nanoseconds of program time.
const MEMORY: f64 = 0.3e9;

/// The range of the factor by which calls add less.
const FACTOR: RangeInclusive<f64> = 0.01..=1.0;

/// The maximum change of the factor in [`MEMORY`].
const CHANGE: RangeInclusive<f64> = 0.05..=2.0;

/// The calls of functions that stay on, since they were last taken.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Records this number of calls of a function that stays on.
pub(super) fn add(calls: u64) {
    CALLS.fetch_add(calls, Relaxed);
}

/// Takes the calls that were recorded.
pub(super) fn take() -> f64 {
    CALLS.swap(0, Relaxed) as f64
}

/// What the functions that stay on have cost lately, and what follows from it.
#[derive(Debug)]
pub(super) struct LongCalls {
    /// The time of their probes in the last [`MEMORY`], in nanoseconds.
    cost: f64,
    factor: f64,
}

impl LongCalls {
    pub(super) fn new() -> Self {
        take();
        Self { cost: 0.0, factor: *FACTOR.end() }
    }

    /// Records `calls` in the last `own` nanoseconds of program time, and adapts to the budget.
    pub(super) fn adapt(&mut self, calls: f64, own: f64, budget: f64, cost_of_call: f64) {
        self.cost = self.cost * (-own / MEMORY).exp() + calls * cost_of_call;
        let part = self.cost / MEMORY / (OF_ALL * budget);
        let change = (1.0 / part).clamp(*CHANGE.start(), *CHANGE.end()).powf((own / MEMORY).min(1.0));
        self.factor = (self.factor * change).clamp(*FACTOR.start(), *FACTOR.end());
    }

    /// The calls that are added to a function's allowance for each nanosecond in its calls.
    pub(super) fn earned(&self, budget: f64, cost_of_call: f64) -> f64 {
        self.factor * budget * OF_ONE / cost_of_call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: f64 = 200.0;
    const STEP: f64 = 5e6;

    /// The cost of the probes of functions whose calls take these times and are all inside each
    /// other, in the second half of some seconds, as a part of the budget; and the last factor.
    fn run(budget: f64, means: &[f64]) -> (f64, f64) {
        let mut long = LongCalls::new();
        let (mut cost, steps) = (0.0, 2_000);
        for step in 0..steps {
            let earned = long.earned(budget, COST);
            let calls: f64 = means.iter().filter(|mean| *mean * earned >= 1.0).map(|mean| STEP / mean).sum();
            long.adapt(calls, STEP, budget, COST);
            if step >= steps / 2 {
                cost += calls * COST;
            }
        }
        (cost / (STEP * f64::from(steps / 2)) / budget, long.factor)
    }

    #[test]
    fn few_functions_stay_on() {
        // 0.4 ms are enough at 1 %.
        let (cost, factor) = run(0.01, &[0.41e6, 1e6, 5e6, 1e9]);
        assert_eq!(factor, 1.0);
        assert!((0.05..0.1).contains(&cost), "{cost}");
        assert_eq!(run(0.01, &[0.39e6; 100]), (0.0, 1.0));
    }

    #[test]
    fn many_functions_cost_half_of_the_budget() {
        for budget in [0.001, 0.01, 0.2] {
            let shortest = COST / (OF_ONE * budget);
            let means: Vec<f64> = (0..400).map(|number| shortest * 1.01_f64.powi(number)).collect();
            let (cost, factor) = run(budget, &means);
            assert!((0.4..0.55).contains(&cost), "{cost} of {budget}, factor {factor}");
            // Deep stacks of equally long calls.
            let (cost, _) = run(budget, &[1.5 * shortest; 100]);
            assert!(cost < 0.8, "{cost} of {budget}");
        }
    }
}
