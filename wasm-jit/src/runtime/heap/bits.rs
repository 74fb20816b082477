//! Bitmaps of words.

use std::ops::Range;

/// The index of the first bit at or after `from` that differs from the bits of `inverse`: with 0
/// the first that is set, with all ones the first that is clear; the number of bits if there is
/// none.
fn next(words: &[u64], from: usize, inverse: u64) -> usize {
    let mut index = from / 64;
    if index >= words.len() {
        return words.len() * 64;
    }
    let mut word = (words[index] ^ inverse) & (u64::MAX << (from % 64));
    while word == 0 {
        index += 1;
        if index == words.len() {
            return index * 64;
        }
        word = words[index] ^ inverse;
    }
    index * 64 + word.trailing_zeros() as usize
}

/// The maximal runs of set bits, in order.
pub(super) fn runs(words: &[u64]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = next(words, from, 0);
        from = next(words, start, u64::MAX);
        (start < from).then_some(start..from)
    })
}

/// Sets or clears a range of bits.
pub(super) fn assign(words: &mut [u64], range: Range<usize>, value: bool) {
    let mut at = range.start;
    while at < range.end {
        let count = (64 - at % 64).min(range.end - at);
        let mask = (u64::MAX >> (64 - count)) << (at % 64);
        if value {
            words[at / 64] |= mask;
        } else {
            words[at / 64] &= !mask;
        }
        at += count;
    }
}

/// Whether a bit is set.
pub(super) fn test(words: &[u64], bit: usize) -> bool {
    words[bit / 64] & 1 << (bit % 64) != 0
}

/// Index of the first of `count` consecutive set bits.
pub(super) fn consecutive(mask: u32, count: usize) -> Option<usize> {
    // The bits that start a run of at least `length`.
    let (mut starts, mut length) = (mask, 1);
    while length < count {
        let step = length.min(count - length);
        starts &= starts >> step;
        length += step;
    }
    (starts != 0).then_some(starts.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::{assign, consecutive, runs, test};

    #[test]
    fn runs_within_and_across_words() {
        let mut words = [0_u64; 4];
        let expected = [0..1, 3..64, 65..128, 130..131, 190..256];
        for range in &expected {
            assign(&mut words, range.clone(), true);
        }
        assert!(runs(&words).eq(expected));
        assert!(test(&words, 63) && !test(&words, 64) && test(&words, 255));
        assign(&mut words, 4..200, false);
        assert!(runs(&words).eq([0..1, 3..4, 200..256]));
        assert!(runs(&[0; 4]).eq([]));
        assert!(runs(&[u64::MAX; 4]).eq(std::iter::once(0..256)));
    }

    #[test]
    fn consecutive_bits() {
        assert_eq!(consecutive(0b1101_1010, 1), Some(1));
        assert_eq!(consecutive(0b1101_1010, 2), Some(3));
        assert_eq!(consecutive(0b1101_1010, 3), None);
        assert_eq!(consecutive(u32::MAX, 32), Some(0));
        assert_eq!(consecutive(0xe000_0000, 3), Some(29));
        assert_eq!(consecutive(0, 1), None);
    }
}
