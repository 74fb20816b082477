//! Limits of the distributions that 95 % intervals are made of.

use statrs::distribution::{ContinuousCDF, Gamma, StudentsT};

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
