//! Estimates with their 95 % intervals.

use statrs::distribution::{ContinuousCDF, Gamma, StudentsT};

/// A figure and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    /// Nothing if no upper limit is known.
    pub(crate) high: Option<f64>,
}

impl Estimate {
    /// A figure that is known.
    pub(crate) const fn exact(value: f64) -> Self {
        Self { value, low: value, high: Some(value) }
    }

    /// The figure in another unit.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high.map(|high| high * factor) }
    }

    /// Not above what is possible.
    pub(crate) fn bounded(self, most: f64) -> Self {
        let most = most.max(self.low);
        Self { value: self.value.min(most), low: self.low, high: self.high.map(|high| high.min(most)) }
    }
}

/// Two-sided 95 % of Student's distribution.
pub(crate) fn student(degrees_of_freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees_of_freedom.clamp(1.0, 1e6)).map_or(1.96, |student| student.inverse_cdf(0.975))
}

/// The largest mean of a Poisson distribution that gives no more than `seen` events with a probability of 2.5 % (Garwood, 1936).
pub(crate) fn most_for(seen: f64) -> f64 {
    Gamma::new(seen + 1.0, 1.0).map_or(f64::INFINITY, |gamma| gamma.inverse_cdf(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_tables() {
        #[track_caller]
        fn check(found: f64, expected: f64) {
            assert!((found - expected).abs() < 0.01, "{found}, not {expected}");
        }
        check(student(1.0), 12.706);
        check(student(10.0), 2.228);
        check(student(1e9), 1.960);
        check(most_for(0.0), 3.689);
        check(most_for(10.0), 18.390);
    }
}
