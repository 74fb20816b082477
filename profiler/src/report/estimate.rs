//! A figure with its 95 % confidence interval.

use serde::{Deserialize, Serialize};

/// A figure that was estimated from samples, counted, or has only a lower bound.
///
/// All values are finite, not negative, and ordered: `low <= value`, and `value <= high` if there
/// is a `high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best estimate. In a report, equal to `low` if there is no `high`, except for latencies,
    /// where it is that of the timed calls.
    pub value: f64,
    /// The lower end of the 95 % confidence interval.
    pub low: f64,
    /// The upper end of the 95 % confidence interval; `None` if the samples give no upper bound.
    pub high: Option<f64>,
}

impl Estimate {
    /// A figure without error: `value == low == high`.
    #[must_use]
    pub fn exact(value: f64) -> Estimate {
        let value = sane(value);
        Estimate { value, low: value, high: Some(value) }
    }

    /// A figure of which only a lower bound is known.
    #[must_use]
    pub fn at_least(low: f64) -> Estimate {
        let low = sane(low);
        Estimate { value: low, low, high: None }
    }

    /// A figure with this 95 % confidence interval. An end that is infinite or not a number is no
    /// bound; ends on the wrong side of `value` are set to it.
    #[must_use]
    pub fn within(value: f64, low: f64, high: f64) -> Estimate {
        let value = sane(value);
        let high = high.is_finite().then(|| high.max(value));
        Estimate { value, low: sane(low).min(value), high }
    }

    /// The figure multiplied by a factor, for another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate {
            value: sane(self.value * factor),
            low: sane(self.low * factor),
            high: self.high.map(|high| sane(high * factor)),
        }
    }

    /// Whether nothing is known but a lower bound.
    fn is_least(&self) -> bool {
        self.high.is_none() && self.value <= self.low
    }

    /// The figure in multiples of `1 / scale`. The interval is never narrowed, and a lower bound
    /// stays one; exact values stay exact.
    pub(super) fn rounded(self, scale: f64) -> Estimate {
        let round = |value: f64, direction: fn(f64) -> f64| {
            rounded(value, scale, if self.is_exact() { f64::round } else { direction })
        };
        Estimate {
            value: round(self.value, if self.is_least() { f64::floor } else { f64::round }),
            low: round(self.low, f64::floor),
            high: self.high.map(|high| round(high, f64::ceil)),
        }
    }

    /// The figure with an additional upper limit.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Estimate {
        let limit = sane(limit);
        Estimate {
            value: self.value.min(limit),
            low: self.low.min(limit),
            high: self.high.map(|high| high.min(limit)),
        }
    }

    /// The figure, with its lower end as its value if it has no upper end: a value that may be
    /// wrong by any factor is of no use.
    #[must_use]
    pub fn or_least(self) -> Estimate {
        if self.high.is_none() { Estimate::at_least(self.low) } else { self }
    }

    /// The sum of two figures of the same kind, from two processes. The errors are added: some of
    /// their causes, such as the time that a probe takes, have the same effect in both. Of a figure
    /// without an upper end, only the lower end is used.
    #[must_use]
    pub fn plus(&self, other: &Estimate) -> Estimate {
        let (one, two) = (self.or_least(), other.or_least());
        let high = one.high.zip(two.high).map_or(f64::INFINITY, |(one, two)| one + two);
        Estimate::within(one.value + two.value, one.low + two.low, high)
    }

    /// Whether the figure has no error.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.low == self.value && self.high == Some(self.value)
    }

    /// The distance from `value` to the farther end of the interval; `None` without an upper end.
    #[must_use]
    pub fn half_width(&self) -> Option<f64> {
        Some((self.value - self.low).max(self.high? - self.value))
    }

    /// [`Estimate::half_width`] relative to the value: 0 if the figure is exact, `None` if it has
    /// no upper end or is 0 and not exact.
    #[must_use]
    pub fn relative_error(&self) -> Option<f64> {
        match self.half_width()? {
            0.0 => Some(0.0),
            half_width => Some(half_width / self.value).filter(|error| error.is_finite()),
        }
    }
}

/// Replaces negative and non-finite values by 0.
fn sane(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// A number in multiples of `1 / scale`: rounded down, up or to the nearest by `direction`, unless
/// it was rounded before.
pub(super) fn rounded(number: f64, scale: f64, direction: fn(f64) -> f64) -> f64 {
    let scaled = number * scale;
    let nearest = scaled.round();
    // The error of the multiplication.
    let is_round = (scaled - nearest).abs() <= (scaled * 1e-15).max(1e-6);
    (if is_round { nearest } else { direction(scaled) }) / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_ordered_and_finite() {
        #[track_caller]
        fn check(estimate: Estimate, value: f64, low: f64, high: Option<f64>) {
            assert_eq!(estimate, Estimate { value, low, high });
        }
        check(Estimate::exact(3.0), 3.0, 3.0, Some(3.0));
        check(Estimate::exact(-3.0), 0.0, 0.0, Some(0.0));
        check(Estimate::at_least(3.0), 3.0, 3.0, None);
        check(Estimate::at_least(f64::NAN), 0.0, 0.0, None);
        check(Estimate::within(3.0, 2.0, 5.0), 3.0, 2.0, Some(5.0));
        check(Estimate::within(3.0, 4.0, 2.0), 3.0, 3.0, Some(3.0));
        check(Estimate::within(3.0, -4.0, f64::INFINITY), 3.0, 0.0, None);
        check(Estimate::within(3.0, f64::NAN, f64::NAN), 3.0, 0.0, None);
    }

    #[test]
    fn errors_of_several_processes_add_up() {
        #[track_caller]
        fn check(one: Estimate, two: Estimate, expected: Estimate) {
            assert_eq!((one.plus(&two), two.plus(&one)), (expected, expected));
        }
        let three = Estimate::within(10.0, 7.0, 16.0);
        check(Estimate::exact(1.0), Estimate::exact(2.0), Estimate::exact(3.0));
        check(three, Estimate::exact(2.0), Estimate::within(12.0, 9.0, 18.0));
        check(three, Estimate::within(10.0, 6.0, 18.0), Estimate::within(20.0, 13.0, 34.0));
        check(Estimate::at_least(1.0), three, Estimate::within(11.0, 8.0, f64::INFINITY));
        // Each of them may be anything from 50 on, whatever its value.
        let guess = Estimate::within(60_000.0, 50.0, f64::INFINITY);
        check(guess, guess, Estimate::at_least(100.0));
        check(guess, three, Estimate::within(60.0, 57.0, f64::INFINITY));
    }

    /// The shortest call takes at most as long as the lower limit of a percentile.
    #[test]
    fn numbers_are_rounded_in_one_direction() {
        let tenths = |number, direction| rounded(number, 10.0, direction);
        let shortest = 9_206_335.46;
        assert_eq!(tenths(shortest, f64::floor), Estimate::at_least(shortest).rounded(10.0).value);
        assert_eq!([f64::floor, f64::ceil].map(|down_or_up| tenths(34.56, down_or_up)), [34.5, 34.6]);
        assert_eq!(tenths(900.1, f64::floor), 900.1, "it was rounded before");
    }

    #[test]
    fn intervals_are_rounded_outwards() {
        let check = |estimate: Estimate, scale, rounded| assert_eq!(estimate.rounded(scale), rounded);
        check(Estimate::within(2.6, 1.7, 3.2), 1.0, Estimate::within(3.0, 1.0, 4.0));
        check(Estimate::within(2.66, 1.77, 3.22), 10.0, Estimate::within(2.7, 1.7, 3.3));
        check(Estimate::exact(2.6), 1.0, Estimate::exact(3.0));
        // The function may not have been called more often.
        check(Estimate::at_least(2.6), 1.0, Estimate::at_least(2.0));
        let open = |value, low| Estimate { value, low, high: None };
        check(open(2.6, 1.6), 1.0, open(3.0, 1.0));
    }

    /// A systematic error of a tenth, in each of the children of a server.
    #[test]
    fn the_number_of_processes_does_not_reduce_the_relative_error() {
        let one = Estimate::within(655.0, 590.0, 720.0);
        let all = (1..32).fold(one, |sum, _| sum.plus(&one));
        assert_eq!(all, one.scaled(32.0));
    }

    #[test]
    fn errors_are_those_of_the_farther_end() {
        #[track_caller]
        fn check(estimate: Estimate, half_width: Option<f64>, relative: Option<f64>) {
            assert_eq!((estimate.half_width(), estimate.relative_error()), (half_width, relative));
            assert_eq!(estimate.is_exact(), half_width == Some(0.0));
        }
        check(Estimate::exact(8.0), Some(0.0), Some(0.0));
        check(Estimate::exact(0.0), Some(0.0), Some(0.0));
        check(Estimate::within(8.0, 6.0, 12.0), Some(4.0), Some(0.5));
        check(Estimate::within(8.0, 2.0, 9.0), Some(6.0), Some(0.75));
        check(Estimate::within(0.0, 0.0, 9.0), Some(9.0), None);
        check(Estimate::at_least(8.0), None, None);
    }
}
