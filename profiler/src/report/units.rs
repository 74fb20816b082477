//! Numbers as people read them: three significant digits and a unit.

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

/// Events per second as `5.31k/s`; none if no time has passed.
pub(super) fn rate(events: u64, nanoseconds: u64) -> Option<String> {
    if nanoseconds == 0 {
        return None;
    }
    Some(format!("{}/s", scaled(events as f64 / nanoseconds as f64 * 1e9, &["", "k", "M", "G"])))
}

/// `part` of `whole` as `12.3%`; may exceed 100 %.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let percent = part as f64 / whole as f64 * 100.0;
    match percent {
        _ if part == 0 => "0%".to_owned(),
        ..0.05 => "<0.1%".to_owned(),
        ..99.95 => format!("{percent:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}

/// A relative error as `±8%`: empty if it is 0, `±?` if it is not known.
pub(super) fn error(relative: Option<f64>) -> String {
    let Some(relative) = relative.filter(|relative| relative.is_finite()) else {
        return "±?".to_owned();
    };
    let percent = relative * 100.0;
    match percent {
        ..=0.0 => String::new(),
        ..0.05 => "±<0.1%".to_owned(),
        ..0.95 => format!("±{percent:.1}%"),
        ..999.5 => format!("±{percent:.0}%"),
        _ => "±>999%".to_owned(),
    }
}

/// Goes up the units by thousands until three digits are enough; the last unit takes what is left.
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
            assert_eq!(share(part, whole), expected);
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
    fn errors_tell_counted_from_unknown() {
        #[track_caller]
        fn check(relative: Option<f64>, expected: &str) {
            assert_eq!(error(relative), expected);
        }
        check(None, "±?");
        check(Some(f64::NAN), "±?");
        check(Some(0.0), "");
        check(Some(0.0001), "±<0.1%");
        check(Some(0.004), "±0.4%");
        check(Some(0.083), "±8%");
        check(Some(1.0), "±100%");
        check(Some(50.0), "±>999%");
    }
}
