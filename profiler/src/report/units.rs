//! Human-readable numbers: three significant digits and a unit.

use super::Estimate;

/// Nanoseconds as `81.3us`; 0 is `0ns`.
pub(super) fn time(nanoseconds: f64) -> String {
    if nanoseconds <= 0.0 {
        return "0ns".to_owned();
    }
    scaled(nanoseconds, &["ns", "us", "ms", "s"])
}

/// A count: exact below 10,000, then `12.3k`, `12.3M` and so on.
pub(super) fn count(count: u64) -> String {
    if count < 10_000 {
        return count.to_string();
    }
    scaled(count as f64, &["", "k", "M", "G", "T", "P", "E"])
}

/// Events per second as `5.31k/s`; `None` if no time has passed.
pub(super) fn rate(events: u64, nanoseconds: u64) -> Option<String> {
    if nanoseconds == 0 {
        return None;
    }
    Some(format!("{}/s", scaled(events as f64 / nanoseconds as f64 * 1e9, &["", "k", "M", "G"])))
}

/// `part` of `whole` as `12.3%`.
pub(super) fn share(part: f64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    percent(part / whole as f64)
}

/// A fraction as `12.3%`.
pub(super) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent {
        ..=0.0 => "0%".to_owned(),
        ..0.05 => "<0.1%".to_owned(),
        ..99.95 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

/// Bytes as `2.35MB`.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB"])
}

/// Shown for a figure of which nothing is known.
pub(super) const UNKNOWN: &str = "-";

/// An estimate with its uncertainty, in a few characters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Certainty {
    /// A value without error.
    Exact(f64),
    /// A value, and half the width of the interval relative to it, at most 1.
    About(f64, f64),
    /// Only a lower bound.
    AtLeast(f64),
    /// Only an upper bound.
    AtMost(f64),
    /// Both bounds.
    Between(f64, f64),
}

/// A lower bound below this part of the upper one is not shown with it.
const NEGLIGIBLE: f64 = 0.05;

impl Certainty {
    /// If half the width of the interval exceeds the value, or the interval begins at zero, the
    /// bounds are shown.
    pub(super) fn of(estimate: &Estimate) -> Certainty {
        match (estimate.high, estimate.relative_error()) {
            _ if estimate.is_exact() => Certainty::Exact(estimate.value),
            (None, _) => Certainty::AtLeast(estimate.low),
            (Some(high), _) if estimate.low <= 0.0 => Certainty::AtMost(high),
            (_, Some(error)) if error <= 1.0 => Certainty::About(estimate.value, error),
            (Some(high), _) if estimate.low <= NEGLIGIBLE * high => Certainty::AtMost(high),
            (Some(high), _) => Certainty::Between(estimate.low, high),
        }
    }

    /// The value, or the bound with `>=` or `<=`; [`UNKNOWN`] if nothing is known.
    pub(super) fn show(self, unit: impl Fn(f64) -> String) -> String {
        match self {
            Certainty::Exact(value) | Certainty::About(value, _) => unit(value),
            Certainty::AtLeast(..=0.0) => UNKNOWN.to_owned(),
            // A unit may already say "less than 0.1%".
            Certainty::AtLeast(low) => match unit(low) {
                shown if shown.starts_with('<') => ">0%".to_owned(),
                shown => format!(">={shown}"),
            },
            Certainty::AtMost(high) => format!("<={}", unit(high)).replace("<=<", "<"),
            Certainty::Between(low, high) => match (unit(low), unit(high)) {
                (low, high) if low == high => low,
                (low, high) => format!("{low}-{high}"),
            },
        }
    }

    /// The error as `±8%`; empty for a bound or an exact value.
    pub(super) fn error(self) -> String {
        let Certainty::About(_, relative) = self else { return String::new() };
        let percent = relative * 100.0;
        match percent {
            ..0.05 => "±<0.1%".to_owned(),
            ..0.95 => format!("±{percent:.1}%"),
            _ => format!("±{percent:.0}%"),
        }
    }
}

/// Scales up by thousands until three digits are enough, or the last unit is reached.
fn scaled(value: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut rest = units;
    while let [_, larger @ ..] = rest
        && !larger.is_empty()
        && value >= 999.5
    {
        value /= 1000.0;
        rest = larger;
    }
    let decimals = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{}", rest[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        #[track_caller]
        fn check(nanoseconds: f64, expected: &str) {
            assert_eq!(time(nanoseconds), expected);
        }
        check(0.0, "0ns");
        check(0.34, "0.34ns");
        check(9.99, "9.99ns");
        check(9.996, "10.0ns");
        check(99.96, "100ns");
        check(999.4, "999ns");
        check(999.6, "1.00us");
        check(81_250.0, "81.2us");
        check(999_499.0, "999us");
        check(999_500.0, "1.00ms");
        check(2.1e9, "2.10s");
        check(1.234_56e13, "12346s");
    }

    #[test]
    fn counts_are_exact_while_they_are_short() {
        #[track_caller]
        fn check(value: u64, expected: &str) {
            assert_eq!(count(value), expected);
        }
        check(0, "0");
        check(9999, "9999");
        check(10_000, "10.0k");
        check(999_499, "999k");
        check(999_500, "1.00M");
        check(12_345_678, "12.3M");
        check(u64::MAX, "18.4E");
    }

    #[test]
    fn rates_need_time() {
        assert_eq!(rate(11_310, 2_130_000_000).as_deref(), Some("5.31k/s"));
        assert_eq!(rate(0, 1).as_deref(), Some("0.00/s"));
        assert_eq!(rate(5, 0), None);
    }

    #[test]
    fn shares_may_exceed_the_whole() {
        #[track_caller]
        fn check(part: u64, whole: u64, expected: &str) {
            assert_eq!(share(part as f64, whole), expected);
        }
        check(0, 1000, "0%");
        check(1, 100_000, "<0.1%");
        check(1, 1000, "0.1%");
        check(557, 1000, "55.7%");
        check(1000, 1000, "100%");
        check(7890, 1000, "789%");
        check(5, 0, "-");
    }

    #[test]
    fn wide_intervals_are_bounds() {
        #[track_caller]
        fn check(estimate: Estimate, shown: &str, error: &str) {
            let certainty = Certainty::of(&estimate);
            assert_eq!((certainty.show(time).as_str(), certainty.error().as_str()), (shown, error));
        }
        check(Estimate::exact(1e3), "1.00us", "");
        check(Estimate::exact(0.0), "0ns", "");
        check(Estimate::within(1e5, 99_990.0, 1e5), "100us", "±<0.1%");
        check(Estimate::within(1e3, 996.0, 1002.0), "1.00us", "±0.4%");
        check(Estimate::within(1e3, 900.0, 1083.0), "1.00us", "±10%");
        check(Estimate::within(1e3, 50.0, 1900.0), "1.00us", "±95%");
        check(Estimate::within(1e3, 0.0, 2000.0), "<=2.00us", "");
        check(Estimate::within(1e3, 500.0, 50e3), "<=50.0us", "");
        check(Estimate::within(4e3, 3e3, 50e3), "3.00us-50.0us", "");
        check(Estimate::within(1e3, 0.0, 50e3), "<=50.0us", "");
        check(Estimate::within(0.0, 0.0, 30.0), "<=30.0ns", "");
        check(Estimate::at_least(10.0), ">=10.0ns", "");
        check(Estimate::at_least(0.0), "-", "");
        let small = Certainty::of(&Estimate::within(0.0, 0.0, 1.0));
        assert_eq!(small.show(|part| share(part, 1_000_000)), "<0.1%");
        let small = Certainty::of(&Estimate::at_least(1.0));
        assert_eq!(small.show(|part| share(part, 1_000_000)), ">0%");
    }
}
