//! Limits of the distributions that 95 % intervals are made of.

use std::sync::LazyLock;

use statrs::distribution::{ContinuousCDF, Gamma, StudentsT};

/// Limits that are computed once: a report needs thousands, and each takes microseconds.
const TABLE: usize = 40;

/// Two-sided 95 % of Student's distribution for 1, 2, ... degrees of freedom; the last is for infinitely many.
static STUDENT: LazyLock<[f64; TABLE]> = LazyLock::new(|| {
    let limit =
        |degrees: f64| StudentsT::new(0.0, 1.0, degrees).map_or(1.96, |student| student.inverse_cdf(0.975));
    std::array::from_fn(|index| if index + 1 < TABLE { limit(index as f64 + 1.0) } else { 1.96 })
});

/// For 0, 1, 2, ... events.
static MOST_FOR: LazyLock<[f64; TABLE]> = LazyLock::new(|| {
    let limit =
        |seen: f64| Gamma::new(seen + 1.0, 1.0).map_or(f64::INFINITY, |gamma| gamma.inverse_cdf(0.975));
    std::array::from_fn(|index| limit(index as f64))
});

/// Two-sided 95 % of Student's distribution, for at least one degree of freedom. Between whole numbers, and from 39 on, interpolated in the
/// reciprocal: good to a hundredth.
pub(crate) fn student(degrees_of_freedom: f64) -> f64 {
    let degrees = degrees_of_freedom.max(1.0);
    let below = (degrees as usize).clamp(1, TABLE - 1);
    let (near, far) = (STUDENT[below - 1], STUDENT[below]);
    let reciprocal = |index: usize| if index < TABLE { 1.0 / index as f64 } else { 0.0 };
    let part = (reciprocal(below) - 1.0 / degrees) / (reciprocal(below) - reciprocal(below + 1));
    near + (far - near) * part.clamp(0.0, 1.0)
}

/// The largest mean of a Poisson distribution that gives no more than `seen` events with a probability of 2.5 % (Garwood, 1936).
/// For fewer than 40.
pub(crate) fn most_for(seen: f64) -> f64 {
    MOST_FOR[(seen.ceil() as usize).min(TABLE - 1)]
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
        check(student(2.0), 4.303);
        check(student(100.0), 1.984);
        check(student(1e9), 1.960);
        check(student(0.3), 12.706);
        check(most_for(0.0), 3.689);
        check(most_for(10.0), 18.390);
    }
}
