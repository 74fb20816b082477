//! Floats of 128 bits (IEEE 754 binary128), which are C's `long double` in WebAssembly.
//!
//! They are read, shown and converted. Arithmetic is that of 64-bit floats.

use std::fmt::Write;

/// The sizes of a binary format.
#[derive(Clone, Copy, Debug)]
struct Format {
    /// The number of bits of the fraction.
    fraction: u32,
    /// The exponent of the least bit of the smallest numbers.
    least: i32,
    /// The exponent field of infinity.
    infinite: u128,
}

const QUAD: Format = Format { fraction: 112, least: -16494, infinite: 0x7fff };
const DOUBLE: Format = Format { fraction: 52, least: -1074, infinite: 0x7ff };

impl Format {
    /// The bits of `mantissa` times two to the power of `exponent`, rounded to nearest, to even if
    /// there are two.
    fn encode(self, mantissa: u128, exponent: i32) -> u128 {
        let Some(highest) = mantissa.checked_ilog2() else { return 0 };
        let least = (highest as i32 + exponent - self.fraction as i32).max(self.least);
        let rounded = match u32::try_from(least - exponent) {
            Ok(0) => mantissa,
            Ok(dropped) => {
                let kept = mantissa.checked_shr(dropped).unwrap_or(0);
                let rest = mantissa - kept.checked_shl(dropped).unwrap_or(0);
                // Beyond the mantissa, half of a unit is more than it.
                let half = 1_u128.checked_shl(dropped - 1).unwrap_or(u128::MAX);
                kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
            }
            Err(_) => mantissa << exponent.abs_diff(least),
        };
        // The leading one of a normal number adds one to the exponent, as does a carry.
        let exponent = u128::from((least - self.least).cast_unsigned());
        ((exponent << self.fraction) + rounded).min(self.infinite << self.fraction)
    }

    /// The mantissa and the exponent of the number with these bits and without a sign, if it is
    /// finite.
    fn decode(self, bits: u128) -> Option<(u128, i32)> {
        let (field, fraction) = (bits >> self.fraction, bits & ((1 << self.fraction) - 1));
        match field {
            0 => Some((fraction, self.least)),
            _ if field >= self.infinite => None,
            _ => Some((fraction | 1 << self.fraction, self.least + field as i32 - 1)),
        }
    }
}

const SIGN: u128 = 1 << 127;

/// The nearest 64-bit float.
pub(crate) fn to_f64(bits: u128) -> f64 {
    let magnitude = match QUAD.decode(bits & !SIGN) {
        Some((mantissa, exponent)) => f64::from_bits(DOUBLE.encode(mantissa, exponent) as u64),
        None if is_nan(bits) => f64::NAN,
        None => f64::INFINITY,
    };
    if bits & SIGN == 0 { magnitude } else { -magnitude }
}

/// The bits of a 64-bit float, which has the same value.
pub(crate) fn from_f64(value: f64) -> u128 {
    let sign = u128::from(value.is_sign_negative()) << 127;
    let infinity = QUAD.infinite << QUAD.fraction;
    sign | match DOUBLE.decode(value.abs().to_bits().into()) {
        Some((mantissa, exponent)) => QUAD.encode(mantissa, exponent),
        None if value.is_nan() => infinity | 1 << (QUAD.fraction - 1),
        None => infinity,
    }
}

/// The bits of the number that is nearest to an integer.
pub(crate) fn from_integer(value: i128) -> u128 {
    u128::from(value < 0) << 127 | QUAD.encode(value.unsigned_abs(), 0)
}

fn is_nan(bits: u128) -> bool {
    bits & !SIGN > QUAD.infinite << QUAD.fraction
}

/// The decimal number with the fewest digits that stands for this one and for no other, in the form
/// in which Rust shows floats. A power of two may have a digit more.
pub(crate) fn text(bits: u128) -> String {
    let sign = if bits & SIGN == 0 { "" } else { "-" };
    match QUAD.decode(bits & !SIGN) {
        None if is_nan(bits) => "NaN".to_owned(),
        None => format!("{sign}inf"),
        Some((0, _)) => format!("{sign}0.0"),
        Some((mantissa, exponent)) => {
            let (digits, point) = shortest(mantissa, exponent);
            format!("{sign}{}", with_point(&digits, point))
        }
    }
}

/// The digits of `mantissa` times two to the power of `exponent`, as few as identify it, and how
/// many of them precede the point.
fn shortest(mantissa: u128, exponent: i32) -> (String, i32) {
    // In quarters of a unit. Below a power of two, numbers are half as far apart.
    let is_power = mantissa == 1 << QUAD.fraction && exponent > QUAD.least;
    let below = if is_power { 1 } else { 2 };
    let [value, low, high] = [0, -below, 2]
        .map(|quarters| decimal(4_u128.wrapping_mul(mantissa).wrapping_add_signed(quarters), exponent - 2));
    let length = high.len();
    let [value, low, high] = [value, low, high].map(|digits| format!("{digits:0>length$}"));
    // The limits themselves are rounded to the even number.
    let is_inside = |digits: &str| {
        if mantissa & 1 == 0 {
            *low <= *digits && *digits <= *high
        } else {
            *low < *digits && *digits < *high
        }
    };
    let first = value.find(|digit| digit != '0').unwrap_or(0);
    let rounded = (first + 1..length).map(|end| rounded(&value, end)).find(|digits| is_inside(digits));
    let digits = rounded.unwrap_or(value);
    let places = (2 - exponent).max(0);
    let (leading, digits) = digits.split_at(digits.find(|digit| digit != '0').unwrap_or(0));
    (digits.trim_end_matches('0').to_owned(), length as i32 - leading.len() as i32 - places)
}

/// The digits of `mantissa` times two to the power of `exponent`. If the exponent is negative, as
/// many of them follow the point as it says.
fn decimal(mantissa: u128, exponent: i32) -> String {
    const LIMB: u128 = 10_u128.pow(18);
    let mut limbs = vec![mantissa % LIMB, mantissa / LIMB % LIMB, mantissa / LIMB / LIMB];
    let mut multiply = |by: u64| {
        let mut carry = 0;
        for limb in &mut limbs {
            let product = *limb * u128::from(by) + carry;
            (*limb, carry) = (product % LIMB, product / LIMB);
        }
        if carry > 0 {
            limbs.push(carry);
        }
    };
    // Halves are fives, one place further.
    let (base, at_once) = if exponent < 0 { (5_u64, 24) } else { (2, 59) };
    let mut left = exponent.unsigned_abs();
    while left > 0 {
        let power = left.min(at_once);
        multiply(base.pow(power));
        left -= power;
    }
    let digits: String = limbs.iter().rev().map(|limb| format!("{limb:018}")).collect();
    digits.trim_start_matches('0').to_owned()
}

/// A number in decimal, of which the digits from `end` on are rounded to zeros.
fn rounded(digits: &str, end: usize) -> String {
    let (kept, dropped) = digits.split_at(end);
    let mut kept = kept.as_bytes().to_vec();
    if dropped.as_bytes()[0] >= b'5' {
        while let Some(b'9') = kept.last() {
            kept.pop();
        }
        if let Some(last) = kept.last_mut() {
            *last += 1;
        }
    }
    let mut text = String::from_utf8(kept).unwrap_or_default();
    text.extend(std::iter::repeat_n('0', digits.len() - text.len()));
    text
}

/// A number by its digits, of which `point` precede the point.
fn with_point(digits: &str, point: i32) -> String {
    let count = digits.len() as i32;
    match point {
        // As Rust does: from 0.0001 to 10^16.
        -3..=0 => format!("0.{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
        1..=16 if count <= point => format!("{digits}{}.0", "0".repeat((point - count) as usize)),
        1..=16 => format!("{}.{}", &digits[..point as usize], &digits[point as usize..]),
        _ => {
            let (first, rest) = digits.split_at(1);
            let mut text = first.to_owned();
            if !rest.is_empty() {
                let _ = write!(text, ".{rest}");
            }
            let _ = write!(text, "e{}", point - 1);
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_converted_without_loss() {
        let values =
            [0.0, 1.0, 1.5, 0.1, 1e-5, 9.9e-5, 1e15, 1e16, f64::MAX, f64::MIN_POSITIVE, 5e-324, 3e-310];
        for value in values.into_iter().chain([f64::INFINITY]).flat_map(|value| [value, -value]) {
            let bits = from_f64(value);
            assert_eq!(to_f64(bits).to_bits(), value.to_bits(), "{value:?}");
        }
        assert!(to_f64(from_f64(f64::NAN)).is_nan());
        for value in [0, 1, -7, i64::MIN.into(), u64::MAX.into(), 9_007_199_254_740_993] {
            assert_eq!(text(from_integer(value)).parse::<f64>().unwrap(), value as f64, "{value}");
        }
        assert_eq!(text(from_integer(9_007_199_254_740_993)), "9007199254740993.0", "not a 64-bit float");
        assert_eq!(from_integer(i128::MAX), from_f64(2_f64.powi(127)), "rounded up");
    }

    #[test]
    fn rounding_is_to_nearest_and_to_even() {
        let one = from_f64(1.0);
        // Half of a unit of a 64-bit float.
        let half = 1_u128 << 59;
        for (bits, expected) in [
            (one + half - 1, 1.0),
            (one + half, 1.0),
            (one + half + 1, 1.0 + f64::EPSILON),
            (one + 3 * half, 1.0 + 2.0 * f64::EPSILON),
            (from_f64(f64::MAX) + half, f64::INFINITY),
            (from_f64(f64::MAX) + half - 1, f64::MAX),
            (from_f64(5e-324) - (1 << 112), 0.0),
            (from_f64(5e-324) - (1 << 112) + 1, 5e-324),
            (1, 0.0),
            ((QUAD.infinite << QUAD.fraction) - 1, f64::INFINITY),
        ] {
            assert_eq!(to_f64(bits), expected, "{bits:#x}");
        }
    }

    #[test]
    fn as_many_digits_are_shown_as_identify_the_number() {
        for (bits, expected) in [
            (0, "0.0"),
            (1 << 127, "-0.0"),
            (0x3fff_8000_0000_0000_0000_0000_0000_0000, "1.5"),
            (0xbfff_8000_0000_0000_0000_0000_0000_0000, "-1.5"),
            // 0.1, 1/3 and pi of type long double; 0.1 of type double.
            (0x3ffb_9999_9999_9999_9999_9999_9999_999a, "0.1"),
            (0x3ffd_5555_5555_5555_5555_5555_5555_5555, "0.3333333333333333333333333333333333"),
            (0x4000_921f_b544_42d1_8469_898c_c517_01b8, "3.1415926535897932384626433832795028"),
            (from_f64(0.1), "0.1000000000000000055511151231257827"),
            (from_f64(1e15), "1000000000000000.0"),
            (from_f64(1e16), "1e16"),
            (from_f64(1.25e20), "1.25e20"),
            (from_f64(2_f64.powi(-13)), "0.0001220703125"),
            (from_f64(2_f64.powi(-14)), "6.103515625e-5"),
            (from_integer(99_999_999_999), "99999999999.0"),
            // The greatest, the least normal one, and the least of all.
            ((0x7fff << 112) - 1, "1.189731495357231765085759326628007e4932"),
            (1 << 112, "3.3621031431120935062626778173217526e-4932"),
            (1, "6e-4966"),
            (0x7fff << 112, "inf"),
            (0xffff << 112, "-inf"),
            (0x7_fff8 << 108, "NaN"),
        ] {
            assert_eq!(text(bits), expected, "{bits:#x}");
        }
    }
}
