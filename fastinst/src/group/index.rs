//! The index: maps a block of ids to the slot of its group. Read without locks, including by signal
//! handlers.
//!
//! It has two levels: a root for all blocks, whose pages are allocated by the kernel when they are
//! first written, and leaves. A leaf that has become empty is reused for other blocks. Leaves are
//! never freed, so a late read is safe: for a block that is not in use, the result may be that of
//! another block, and the caller verifies it. For a block in use, the result is correct.

use std::sync::atomic::{AtomicU32, Ordering};

use fastinst_sigsafe::Segments;

use super::ids::BLOCKS;

/// Number of entries of a leaf.
const LEAF: usize = 1024;

const ROOT: usize = (BLOCKS.end as usize).div_ceil(LEAF);

/// Entries are the index of a slot plus one; 0 for none.
struct Leaf {
    entries: [AtomicU32; LEAF],
    /// The number of entries that are not 0. Changed under the lock of the index's owner.
    used: AtomicU32,
}

/// A two-level table of slots by block.
pub(super) struct Index {
    /// The index of a leaf plus one; 0 for none.
    root: [AtomicU32; ROOT],
    leaves: Segments<Leaf, 8, 8192>,
}

const _: () = assert!(Segments::<Leaf, 8, 8192>::LIMIT >= ROOT, "there is a leaf for every entry");

/// Empty leaves. Changes of the index take it by mutable reference, so they exclude each other.
#[derive(Default)]
pub(super) struct FreeLeaves(Vec<u32>);

impl FreeLeaves {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { root: [const { AtomicU32::new(0) }; ROOT], leaves: Segments::new() }
    }

    /// The slot of a block: correct for a block in use, otherwise any slot or none.
    #[inline]
    pub(super) fn get(&self, block: u32) -> Option<u32> {
        let leaf = self.root.get(block as usize / LEAF)?.load(Ordering::Acquire).checked_sub(1)?;
        self.leaves.get(leaf as usize)?.entries[block as usize % LEAF].load(Ordering::Acquire).checked_sub(1)
    }

    /// Enters the slot of a block.
    pub(super) fn insert(&self, free: &mut FreeLeaves, block: u32, number: u32) {
        let root = &self.root[block as usize / LEAF];
        let leaf = root.load(Ordering::Relaxed).checked_sub(1).unwrap_or_else(|| {
            let new = || {
                let leaf = Leaf { entries: [const { AtomicU32::new(0) }; LEAF], used: AtomicU32::new(0) };
                self.leaves.push_with(|_| leaf).expect("there is a leaf for every entry") as u32
            };
            let leaf = free.0.pop().unwrap_or_else(new);
            root.store(leaf + 1, Ordering::Release);
            leaf
        });
        let leaf = self.leaves.get(leaf as usize).expect("leaves stay");
        leaf.entries[block as usize % LEAF].store(number + 1, Ordering::Release);
        leaf.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes the entry of a block.
    pub(super) fn remove(&self, free: &mut FreeLeaves, block: u32) {
        let root = &self.root[block as usize / LEAF];
        let number = root.load(Ordering::Relaxed).checked_sub(1).expect("the block is in use");
        let leaf = self.leaves.get(number as usize).expect("leaves stay");
        leaf.entries[block as usize % LEAF].store(0, Ordering::Release);
        if leaf.used.fetch_sub(1, Ordering::Relaxed) == 1 {
            root.store(0, Ordering::Release);
            free.0.push(number);
        }
    }

    #[cfg(test)]
    fn leaves(&self) -> usize {
        self.leaves.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_its_slot_from_insertion_to_removal() {
        static INDEX: Index = Index::new();
        let mut free = FreeLeaves::new();
        let last = BLOCKS.end - 1;
        for (block, number) in [(0, 7), (1, 8), (LEAF as u32, 9), (last, 10)] {
            assert_eq!(INDEX.get(block), None);
            INDEX.insert(&mut free, block, number);
        }
        let numbers = || [0, 1, LEAF as u32, last].map(|block| INDEX.get(block));
        assert_eq!(numbers(), [Some(7), Some(8), Some(9), Some(10)]);
        assert_eq!(INDEX.get(2), None);
        INDEX.remove(&mut free, 0);
        assert_eq!(numbers(), [None, Some(8), Some(9), Some(10)]);
        INDEX.remove(&mut free, last);
        assert_eq!(numbers(), [None, Some(8), Some(9), None]);
        assert_eq!(INDEX.get(u32::MAX), None, "there is no such block");
    }

    #[test]
    fn empty_leaves_are_reused() {
        static INDEX: Index = Index::new();
        let mut free = FreeLeaves::new();
        for block in 0..10 * LEAF as u32 {
            INDEX.insert(&mut free, block, block);
            if let Some(old) = block.checked_sub(3) {
                assert_eq!(INDEX.get(old), Some(old));
                INDEX.remove(&mut free, old);
            }
        }
        assert_eq!(INDEX.leaves(), 2, "three blocks are in at most two leaves");
    }
}
