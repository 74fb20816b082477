//! Which ids are in use: in whole blocks, so that what finds a group by an id has one entry for
//! each block.
//!
//! Blocks are taken in ascending order. Only when the last one has been taken is the search made
//! from the first one again. Nothing is kept of blocks that were given back.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::probe::ProbeId;

/// Ids in a block.
pub(super) const BLOCK: u32 = 64;

/// The blocks that there are. The one with `u32::MAX` is left out: users have that number for no
/// probe.
pub(super) const BLOCKS: Range<u32> = ProbeId::FIRST_OF_GROUPS.0 / BLOCK..u32::MAX / BLOCK;

/// Blocks of ids, given out and given back.
pub(super) struct Ids {
    blocks: Range<u32>,
    /// Those in use: first block and number of blocks. They do not overlap.
    used: BTreeMap<u32, u32>,
    /// Where the next search begins.
    next: u32,
}

impl Ids {
    pub(super) const fn new(blocks: Range<u32>) -> Self {
        let next = blocks.start;
        Self { blocks, used: BTreeMap::new(), next }
    }

    /// Takes consecutive blocks, and gives the number of the first.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let first = self.gap(self.next, count).or_else(|| self.gap(self.blocks.start, count))?;
        self.used.insert(first, count);
        self.next = first + count;
        Some(first)
    }

    /// Gives back what was taken together.
    pub(super) fn give_back(&mut self, first: u32) {
        self.used.remove(&first);
    }

    /// The first place at or above `from` for so many blocks. `from` is not inside a range that is
    /// in use: it is the start of all blocks, or the end of such a range, or of one that was.
    fn gap(&self, from: u32, count: u32) -> Option<u32> {
        let mut place = from;
        for (first, length) in self.used.range(from..) {
            if first - place >= count {
                return Some(place);
            }
            place = first + length;
        }
        (self.blocks.end.saturating_sub(place) >= count).then_some(place)
    }

    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.used.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_is_taken_again_before_all_others_were() {
        let mut ids = Ids::new(10..20);
        assert_eq!([ids.take(3), ids.take(2)], [Some(10), Some(13)]);
        ids.give_back(10);
        assert_eq!([ids.take(2), ids.take(2)], [Some(15), Some(17)]);
        ids.give_back(15);
        // One is left at the end, and 10 to 12 and 15 to 16 before.
        assert_eq!(ids.take(3), Some(10));
        assert_eq!(ids.take(2), Some(15));
        assert_eq!(ids.take(2), None);
        assert_eq!(ids.take(1), Some(19));
        assert_eq!(ids.take(1), None);
        ids.give_back(13);
        assert_eq!(ids.take(2), Some(13));
    }

    #[test]
    fn blocks_in_use_are_never_taken_and_nothing_is_kept_of_others() {
        let mut ids = Ids::new(0..64);
        let mut used: Vec<(u32, u32)> = Vec::new();
        let mut number = 1_u32;
        let mut refused = 0;
        for round in 0..10_000 {
            number = number.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let (count, place) = (1 + (number >> 16) % 7, (number >> 8) as usize);
            if used.len() > 9 {
                ids.give_back(used.swap_remove(place % used.len()).0);
            }
            match ids.take(count) {
                Some(first) => {
                    assert!(first + count <= 64);
                    let is_apart =
                        |(start, length): &(u32, u32)| first + count <= *start || start + length <= first;
                    assert!(used.iter().all(is_apart), "round {round}");
                    used.push((first, count));
                }
                None => refused += 1,
            }
            assert_eq!(ids.in_use(), used.len());
        }
        assert!(refused < 5_000, "{refused}");
    }

    #[test]
    fn the_number_for_no_probe_is_in_no_block() {
        assert!(BLOCKS.end.checked_mul(BLOCK).is_some_and(|end| end - 1 < u32::MAX));
        assert_eq!(BLOCKS.start * BLOCK, ProbeId::FIRST_OF_GROUPS.0);
    }
}
