//! Quantiles of the distributions from which 95 % confidence intervals are computed.

/// Size of the tables: computing a value takes some hundred microseconds, and a report needs
/// thousands of values.
const TABLE: usize = 40;

/// Two-sided 95 % quantiles of Student's distribution for 1, 2, ... degrees of freedom; the last is
/// for infinitely many.
const STUDENT: [f64; TABLE] = [
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604,
    2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555,
    2.0518, 2.0484, 2.0452, 2.0423, 2.0395, 2.0369, 2.0345, 2.0322, 2.0301, 2.0281, 2.0262, 2.0244, 2.0227,
    1.9600,
];

/// The largest mean of a Poisson distribution for which the probability of at most 0, 1, 2, ...
/// events is 2.5 % (Garwood, 1936).
const MAX_MEAN_FOR: [f64; TABLE] = [
    3.6889, 5.5716, 7.2247, 8.7673, 10.2416, 11.6683, 13.0595, 14.4227, 15.7632, 17.0848, 18.3904, 19.6820,
    20.9616, 22.2304, 23.4896, 24.7402, 25.9830, 27.2186, 28.4478, 29.6709, 30.8884, 32.1007, 33.3083,
    34.5113, 35.7101, 36.9049, 38.0960, 39.2836, 40.4678, 41.6488, 42.8269, 44.0020, 45.1745, 46.3443,
    47.5116, 48.6765, 49.8392, 50.9996, 52.1580, 53.3143,
];

/// Two-sided 95 % quantile of Student's distribution, for at least one degree of freedom. Between
/// integers, and from 39 on, interpolated in the reciprocal: accurate to a hundredth.
pub(crate) fn student(degrees_of_freedom: f64) -> f64 {
    let degrees = degrees_of_freedom.max(1.0);
    let below = (degrees as usize).clamp(1, TABLE - 1);
    let (near, far) = (STUDENT[below - 1], STUDENT[below]);
    let reciprocal = |index: usize| if index < TABLE { 1.0 / index as f64 } else { 0.0 };
    let part = (reciprocal(below) - 1.0 / degrees) / (reciprocal(below) - reciprocal(below + 1));
    near + (far - near) * part.clamp(0.0, 1.0)
}

/// The largest mean of a Poisson distribution for which the probability of at most `seen` events,
/// fewer than 40, is 2.5 %.
pub(crate) fn most_for(seen: f64) -> f64 {
    MAX_MEAN_FOR[(seen.ceil() as usize).min(TABLE - 1)]
}

/// The smallest mean of a Poisson distribution for which the probability of at least `seen` events,
/// more than 2, is 2.5 %: by the approximation of Wilson and Hilferty to the quantile of the gamma
/// distribution (1931).
pub(crate) fn least_for(seen: f64) -> f64 {
    seen * (1.0 - 1.0 / (9.0 * seen) - 1.96 / (3.0 * seen.sqrt())).max(0.0).powi(3)
}

#[cfg(test)]
mod tests {
    use statrs::distribution::{ContinuousCDF, Gamma, StudentsT};

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

    #[test]
    fn the_least_mean_is_near_the_limit_of_the_distribution() {
        for seen in [3.0, 4.5, 10.0, 100.0] {
            let above = Gamma::new(seen, 1.0).unwrap().cdf(least_for(seen));
            assert!((0.02..0.03).contains(&above), "{seen}: {above}");
        }
    }

    #[test]
    fn tables_hold_the_limits_of_the_distributions() {
        for (index, limit) in STUDENT[..TABLE - 1].iter().enumerate() {
            let student = StudentsT::new(0.0, 1.0, index as f64 + 1.0).unwrap();
            assert!((student.cdf(*limit) - 0.975).abs() < 1e-5, "{index}: {limit}");
        }
        for (seen, limit) in MAX_MEAN_FOR.iter().enumerate() {
            let gamma = Gamma::new(seen as f64 + 1.0, 1.0).unwrap();
            assert!((gamma.cdf(*limit) - 0.975).abs() < 1e-5, "{seen}: {limit}");
        }
    }
}
