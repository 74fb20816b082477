//! Allocation of ids, in blocks: the index has one entry for each block.
//!
//! Blocks are allocated in ascending order. When the last one has been allocated, the search starts
//! at the first one again. Nothing is stored about free blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::probe::ProbeId;

/// Number of ids in a block.
pub(super) const BLOCK: u32 = 64;

/// All blocks. The one with `u32::MAX` is excluded: users represent "no probe" by that number.
pub(super) const BLOCKS: Range<u32> = ProbeId::FIRST_OF_GROUPS.0 / BLOCK..u32::MAX / BLOCK;

/// An allocator of blocks.
pub(super) struct Ids {
    blocks: Range<u32>,
    /// The allocations: first block and number of blocks. They do not overlap.
    used: BTreeMap<u32, u32>,
    /// The block at which the next search starts.
    next: u32,
}

impl Ids {
    pub(super) const fn new(blocks: Range<u32>) -> Self {
        let next = blocks.start;
        Self { blocks, used: BTreeMap::new(), next }
    }

    /// Allocates consecutive blocks, and returns the first.
    pub(super) fn allocate(&mut self, count: u32) -> Option<u32> {
        let first = self.gap(self.next, count).or_else(|| self.gap(self.blocks.start, count))?;
        self.used.insert(first, count);
        self.next = first + count;
        Some(first)
    }

    /// Frees an allocation, by its first block.
    pub(super) fn free(&mut self, first: u32) {
        self.used.remove(&first);
    }

    /// The first gap of `count` blocks at or above `from`, which is the start of all blocks or the
    /// end of an allocation, perhaps a former one, and so never inside an allocation.
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
    fn blocks_are_reused_only_when_all_others_have_been_used() {
        let mut ids = Ids::new(10..20);
        assert_eq!([ids.allocate(3), ids.allocate(2)], [Some(10), Some(13)]);
        ids.free(10);
        assert_eq!([ids.allocate(2), ids.allocate(2)], [Some(15), Some(17)]);
        ids.free(15);
        // Free blocks: one at the end, 10 to 12, and 15 to 16.
        assert_eq!(ids.allocate(3), Some(10));
        assert_eq!(ids.allocate(2), Some(15));
        assert_eq!(ids.allocate(2), None);
        assert_eq!(ids.allocate(1), Some(19));
        assert_eq!(ids.allocate(1), None);
        ids.free(13);
        assert_eq!(ids.allocate(2), Some(13));
    }

    #[test]
    fn allocations_never_overlap_and_nothing_is_stored_about_free_blocks() {
        let mut ids = Ids::new(0..64);
        let mut used: Vec<(u32, u32)> = Vec::new();
        let mut number = 1_u32;
        let mut refused = 0;
        for round in 0..10_000 {
            number = number.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            let (count, place) = (1 + (number >> 16) % 7, (number >> 8) as usize);
            if used.len() > 9 {
                ids.free(used.swap_remove(place % used.len()).0);
            }
            match ids.allocate(count) {
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
    fn the_number_that_means_no_probe_is_in_no_block() {
        assert!(BLOCKS.end.checked_mul(BLOCK).is_some_and(|end| end - 1 < u32::MAX));
        assert_eq!(BLOCKS.start * BLOCK, ProbeId::FIRST_OF_GROUPS.0);
    }
}
