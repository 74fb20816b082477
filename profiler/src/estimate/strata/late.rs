//! Calls that wait while other threads call the same function.
//!
//! After a window, its exit probes stay on until its calls have returned, but not for more than a
//! number of exits of calls that it does not contain ([`crate::observe::function`]). Calls that are
//! open then are *cut off*: each has a lower limit, and an upper one when its thread is found to
//! have left it, perhaps much later. They are not like the others, but the longest. Therefore one
//! window in [`PATIENT`](crate::observe::function::PATIENT), drawn beforehand, is *patient*: it
//! tolerates a hundred times as many exits. Its calls that return after they would have been cut
//! off in another window are a random part of all such *late* calls, and are timed.
//!
//! The number of late calls is estimated from all windows, and their mean from patient ones:
//! two-phase sampling (Neyman 1938; Cochran, "Sampling Techniques", 1977, chapter 12). The variance
//! consists of that of the number, where each call counts as a separate window because late calls
//! are rare, and that of the mean.

use crate::estimate::interval::student;

/// The minimum number of timed late calls from which the mean is estimated. With fewer, the mean of
/// the others is taken to be half-way between their limits.
const ENOUGH: f64 = 3.0;

/// Late calls of one function. Times in ticks.
#[derive(Clone, Debug)]
pub(super) struct Late {
    /// All late calls, weighted, and the sum of the squares of the weights.
    calls: f64,
    squares: f64,
    /// The timed late calls, unweighted; their time, and its square.
    timed: f64,
    ticks: f64,
    squared_ticks: f64,
    /// The limits of the time of all late calls, weighted.
    least: f64,
    most: f64,
}

/// The time of late calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LateTime {
    pub(super) calls: f64,
    pub(super) ticks: f64,
    /// Half the length of the 95 % confidence interval.
    pub(super) error: f64,
}

impl Late {
    pub(super) const NONE: Self =
        Self { calls: 0.0, squares: 0.0, timed: 0.0, ticks: 0.0, squared_ticks: 0.0, least: 0.0, most: 0.0 };

    pub(super) fn timed(&mut self, weight: f64, ticks: f64) {
        self.cut_off(weight, ticks, ticks);
        self.timed += 1.0;
        self.ticks += ticks;
        self.squared_ticks += ticks * ticks;
    }

    pub(super) fn cut_off(&mut self, weight: f64, least: f64, most: f64) {
        self.calls += weight;
        self.squares += weight * weight;
        self.least += weight * least;
        self.most += weight * most;
    }

    /// The time of all late calls.
    pub(super) fn all_ticks(&self) -> f64 {
        if self.timed < ENOUGH {
            self.least.midpoint(self.most)
        } else {
            self.calls * (self.ticks / self.timed)
        }
    }

    /// The time of all late calls, with its error.
    pub(super) fn time(&self) -> LateTime {
        let Self { calls, squares, timed, .. } = *self;
        let ticks = self.all_ticks();
        let of_number = |mean: f64| squares * mean * mean;
        if timed < ENOUGH {
            let mean = if calls > 0.0 { ticks / calls } else { 0.0 };
            let error = (self.most - self.least) / 2.0 + 1.96 * of_number(mean).sqrt();
            return LateTime { calls, ticks, error };
        }
        let mean = self.ticks / timed;
        let variance = ((self.squared_ticks - self.ticks * mean) / (timed - 1.0)).max(0.0);
        let of_mean = calls * calls * variance / timed;
        let error = student(timed - 1.0) * (of_number(mean) + of_mean).sqrt();
        LateTime { calls, ticks, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_late_calls_took_any_time_between_their_limits() {
        assert_eq!(Late::NONE.time(), LateTime { calls: 0.0, ticks: 0.0, error: 0.0 });
        let mut late = Late::NONE;
        late.cut_off(10.0, 100.0, 300.0);
        late.timed(1.0, 500.0);
        let LateTime { calls, ticks, error } = late.time();
        assert_eq!((calls, ticks), (11.0, 2500.0));
        assert!(ticks - error < 1500.0 && ticks + error > 3500.0, "{error}");
    }

    #[test]
    fn many_late_calls_take_the_mean_of_those_that_were_timed() {
        let mut late = Late::NONE;
        // The upper limits say little.
        (0..70).for_each(|_| late.cut_off(10.0, 10.0, 10_000.0));
        (0..10).for_each(|number| late.timed(10.0, 400.0 + 20.0 * f64::from(number)));
        let LateTime { calls, ticks, error } = late.time();
        assert_eq!((calls, ticks), (800.0, 800.0 * 490.0));
        assert!((0.15..0.35).contains(&(error / ticks)), "{error}");
    }
}
