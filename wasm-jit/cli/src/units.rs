//! Durations, sizes and numbers on the command line.

use std::str::FromStr;
use std::time::Duration;

/// A number followed by a unit; without a unit, the first one applies.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let is_number = digits.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let number: f64 = if is_number { digits.parse().ok()? } else { return None };
    let scale = match unit {
        "" => units[0].1,
        _ => units.iter().find(|(name, _)| *name == unit)?.1,
    };
    Some(number * scale)
}

/// `10s`, `500ms`, `2m`; a number without a unit is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("h", 3600.0)];
    let seconds = scaled(text, &units);
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(Duration::ZERO) => Err("expected a duration above 0; without it, there is no limit".to_owned()),
        Some(duration) => Ok(duration),
        None => Err("expected a duration such as 10s, 500ms or 2m".to_owned()),
    }
}

/// `65536`, `512K`, `8M`, `1G`: powers of 1024.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let units = [("B", 1.0), ("K", 1024.0), ("M", 1024.0 * 1024.0), ("G", 1024.0 * 1024.0 * 1024.0)];
    let bytes = scaled(text, &units).filter(|bytes| *bytes <= (1_u64 << 40) as f64);
    bytes
        .map(|bytes| bytes as usize)
        .ok_or_else(|| "expected a number of bytes such as 65536, 512K or 8M".to_owned())
}

/// A number that is not 0.
pub(super) fn from_one<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a number from 1 on".to_owned())
}

/// `0x2c1`, or `705`.
pub(super) fn offset(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected an offset such as 0x2c1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let check = |text, milliseconds| {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}")
        };
        check("10s", 10_000);
        check("500ms", 500);
        check("1.5", 1500);
        check("2m", 120_000);
        for text in [
            "0",
            "0s",
            "0.0ms",
            "",
            "s",
            "10x",
            "-1s",
            "inf",
            "nan",
            "1e3",
            "1 s",
            "10ss",
            "99999999999999999999s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn offsets_are_hexadecimal_or_decimal() {
        assert_eq!(offset("0x2c1"), Ok(0x2c1));
        assert_eq!(offset("705"), Ok(705));
        assert!(["", "0x", "x", "2c1", "-1", "0x100000000"].iter().all(|text| offset(text).is_err()));
    }

    #[test]
    fn sizes_have_units() {
        let check = |text, expected| assert_eq!(bytes(text), Ok(expected), "{text}");
        check("65536", 65_536);
        check("512K", 512 << 10);
        check("8M", 8 << 20);
        check("0.5G", 512 << 20);
        for text in ["", "K", "8m", "-1", "1T", "99999999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
