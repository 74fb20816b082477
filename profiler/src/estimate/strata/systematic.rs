//! Errors that do not average out over windows.
//!
//! Windows lie in the program's own time, so each is longer by what its probes take. That time is
//! known only in part; and a program that waits for points in time, like a loop that polls a clock,
//! is not delayed by probes at all: then the longer window has more calls, as many as fit into the
//! time of its probes.

/// The maximum part by which a window may have been shorter than it is known to be.
const MAX_SHORTER: f64 = 0.9;

/// Relative to the estimate in a window, absolute in a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Systematic {
    /// By how much the truth may be below the estimate.
    pub(crate) below: f64,
    /// By how much it may be above.
    pub(crate) above: f64,
}

impl Systematic {
    pub(crate) const NONE: Self = Self { below: 0.0, above: 0.0 };

    /// The same error in both directions.
    pub(crate) fn of_both(error: f64) -> Self {
        Self { below: error, above: error }
    }

    /// The relative error of a rate if the window may have been shorter by this part: its calls
    /// were made in less time, but not in none.
    pub(crate) fn of_shorter_window(part: f64) -> f64 {
        let part = part.min(MAX_SHORTER);
        part / (1.0 - part)
    }

    pub(super) fn add(&mut self, relative: Self, estimate: f64) {
        self.below += relative.below * estimate;
        self.above += relative.above * estimate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::strata::{Strata, Times};

    /// Each window of 100 calls is a tenth of its stratum.
    #[test]
    fn errors_add_up_in_their_direction() {
        let mut strata = Strata::default();
        for number in 0..50 {
            strata.opened(number, 10.0, 1e6);
            strata.closed(100, 0.0, Systematic { below: 0.15, above: 0.05 });
            (0..100).for_each(|_| strata.timed_in_window(number, 10.0, 1000.0, true));
        }
        let strata = strata.finished();
        let of_windows = {
            let calls = strata.calls();
            assert_eq!(calls.value, 50_000.0);
            let high = calls.high.expect("there are many windows") - calls.value;
            assert!(high > 2500.0, "{calls:?}");
            high - 2500.0
        };
        let calls = strata.calls();
        assert!((calls.value - calls.low - 7500.0 - of_windows).abs() < 0.01 * calls.value, "{calls:?}");
        let Times { total, mean } = strata.ticks(0.0).expect("calls were timed");
        assert!(total.low < 0.86 * total.value && total.low > 0.8 * total.value, "{total:?}");
        let high = total.high.expect("there are many windows");
        assert!(high > 1.04 * total.value && high < 1.1 * total.value, "{total:?}");
        assert_eq!(mean.low, mean.value, "calls are as long");
    }
}
