//! [`Dirty`]: the parts of a memory that may have been written.

use std::ops::Range;

/// Number of bytes of a block.
const BLOCK: u64 = 256;

/// Only blocks below this address are distinguished. Only large 64-bit memories have others.
const FAR: u64 = 1 << 32;

/// A set of blocks of a memory.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// One bit per block.
    bits: Vec<u64>,
    /// The indices of the words that are not 0, each once.
    words: Vec<usize>,
    /// One range that includes all bytes from [`FAR`] on.
    far: Option<Range<u64>>,
}

impl Dirty {
    /// Adds the blocks of a range of bytes, which may be out of bounds.
    pub(crate) fn insert(&mut self, address: u64, size: u64) {
        if size == 0 {
            return;
        }
        let end = address.saturating_add(size);
        if end > FAR {
            let added = address.max(FAR)..end;
            let far = self.far.get_or_insert(added.clone());
            *far = far.start.min(added.start)..far.end.max(added.end);
        }
        for block in address / BLOCK..end.min(FAR).div_ceil(BLOCK) {
            let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
            if word >= self.bits.len() {
                self.bits.resize(word + 1, 0);
            }
            if self.bits[word] == 0 {
                self.words.push(word);
            }
            self.bits[word] |= bit;
        }
    }

    /// Takes the bytes of all blocks, as ranges that are ordered and as long as possible. The set
    /// is empty afterwards.
    pub(crate) fn take(&mut self) -> Vec<Range<u64>> {
        let mut words = std::mem::take(&mut self.words);
        words.sort_unstable();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for word in words {
            let bits = std::mem::take(&mut self.bits[word]);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                let start = (word as u64 * 64 + bit) * BLOCK;
                match ranges.last_mut() {
                    Some(last) if last.end == start => last.end += BLOCK,
                    _ => ranges.push(start..start + BLOCK),
                }
            }
        }
        ranges.extend(self.far.take());
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(written: &[(u64, u64)], expected: &[(u64, u64)]) {
        let mut dirty = Dirty::default();
        written.iter().for_each(|(address, size)| dirty.insert(*address, *size));
        let taken: Vec<_> = dirty.take().into_iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(taken, expected, "{written:?}");
        assert_eq!(dirty.take(), [], "{written:?}");
    }

    #[test]
    fn blocks_that_are_next_to_each_other_are_one_range() {
        check(&[], &[]);
        check(&[(0, 0), (70_000, 0)], &[]);
        check(&[(255, 1)], &[(0, 256)]);
        check(&[(255, 2)], &[(0, 512)]);
        check(&[(100_000, 8), (16_383, 2), (3, 1)], &[(0, 256), (16_128, 16_640), (99_840, 100_096)]);
    }

    #[test]
    fn beyond_four_gibibytes_there_is_one_range() {
        check(&[(FAR - 1, 1)], &[(FAR - 256, FAR)]);
        check(&[(FAR - 1, 2)], &[(FAR - 256, FAR), (FAR, FAR + 1)]);
        check(&[(FAR + 900, 8), (3, 1), (FAR + 70, 1)], &[(0, 256), (FAR + 70, FAR + 908)]);
        check(&[(FAR - 1, u64::MAX), (u64::MAX, 1)], &[(FAR - 256, FAR), (FAR, u64::MAX)]);
    }
}
