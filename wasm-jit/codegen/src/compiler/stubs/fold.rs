//! The values of operators of inlined functions whose operands are constants.

use super::inlined::{Binary, Unary};
use crate::asm::{Alu, Cond, Size, Width};

/// The value of an operator, if it has one without a trap.
pub(crate) fn fold(binary: Binary, width: Width, left: u64, right: u64) -> Option<u64> {
    let count = (right & u64::from(width.bits() - 1)) as u32;
    let is_32 = width == Width::W32;
    let value = match binary {
        Binary::Alu(Alu::Add) => left.wrapping_add(right),
        Binary::Alu(Alu::Sub) => left.wrapping_sub(right),
        Binary::Alu(Alu::And) => left & right,
        Binary::Alu(Alu::Or) => left | right,
        Binary::Alu(Alu::Xor) => left ^ right,
        Binary::Alu(Alu::Adc | Alu::Sbb | Alu::Cmp) => return None,
        Binary::Mul => left.wrapping_mul(right),
        Binary::Shl => left << count,
        Binary::ShrU => left >> count,
        Binary::ShrS if is_32 => (left as i32 >> count) as u64,
        Binary::ShrS => (left as i64 >> count) as u64,
        Binary::Rotl if is_32 => u64::from((left as u32).rotate_left(count)),
        Binary::Rotl => left.rotate_left(count),
        Binary::Rotr if is_32 => u64::from((left as u32).rotate_right(count)),
        Binary::Rotr => left.rotate_right(count),
        Binary::DivU => left.checked_div(right)?,
        Binary::RemU => left.checked_rem(right)?,
    };
    Some(if is_32 { u64::from(value as u32) } else { value })
}

pub(crate) fn fold_unary(unary: Unary, bits: u64) -> u64 {
    let narrow = |value: u64, width| if width == Width::W32 { u64::from(value as u32) } else { value };
    match unary {
        Unary::Clz(Width::W32) => (bits as u32).leading_zeros().into(),
        Unary::Clz(Width::W64) => bits.leading_zeros().into(),
        Unary::Ctz(Width::W32) => (bits as u32).trailing_zeros().into(),
        Unary::Ctz(Width::W64) => bits.trailing_zeros().into(),
        Unary::Popcnt(width) => narrow(bits, width).count_ones().into(),
        Unary::Wrap => u64::from(bits as u32),
        Unary::Extend(Size::B1, width) => narrow(bits as i8 as u64, width),
        Unary::Extend(Size::B2, width) => narrow(bits as i16 as u64, width),
        Unary::Extend(_, width) => narrow(bits as i32 as u64, width),
    }
}

/// Whether a comparison holds.
pub(crate) fn holds(cond: Cond, width: Width, left: u64, right: u64) -> bool {
    let signed = |bits: u64| if width == Width::W32 { i64::from(bits as i32) } else { bits as i64 };
    let ([low, high], [first, second]) = ([left, right], [signed(left), signed(right)]);
    match cond {
        Cond::Equal => low == high,
        Cond::NotEqual => low != high,
        Cond::Below => low < high,
        Cond::BelowEqual => low <= high,
        Cond::Above => low > high,
        Cond::AboveEqual => low >= high,
        Cond::Less => first < second,
        Cond::LessEqual => first <= second,
        Cond::Greater => first > second,
        Cond::GreaterEqual => first >= second,
        _ => unreachable!("no comparison of integers"),
    }
}
