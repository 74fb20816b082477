//! Sweeping: frees the objects that were not marked.

use super::chunk::{BLOCK, Chunk, LINE, LINES, line_words, place_words};
use super::{Heap, MINIMUM_ALLOWANCE};

/// Entries of the list of pending objects whose memory is kept between collections.
const PENDING_CAPACITY: usize = 4096;

impl Heap {
    /// Ends a collection, when [`Heap::trace`] has nothing left to do: frees the objects that are
    /// not marked.
    pub(crate) fn sweep(&mut self) {
        debug_assert!(self.pending.is_empty());
        self.recyclable.clear();
        self.narrow.clear();
        let (mut live, mut bytes, mut free_blocks) = (0, 0, 0);
        let recyclable = &mut self.recyclable;
        self.chunks.retain_mut(|chunk| {
            if chunk.is_dedicated() {
                let alive = sweep_large(chunk, chunk.heads.trailing_zeros() as usize);
                if alive {
                    live += chunk.dedicated_size() as u64;
                    bytes += chunk.dedicated_size() as u64;
                }
                return alive;
            }
            for head in ones(chunk.heads) {
                let size = (chunk.extent(head).len() * BLOCK) as u64;
                if sweep_large(chunk, head) {
                    live += size;
                } else {
                    chunk.vacate(head);
                }
            }
            for block in ones(chunk.small()) {
                let lines = sweep_small(chunk, block);
                live += (lines * LINE) as u64;
                if lines == 0 {
                    chunk.free |= 1 << block;
                } else if lines < LINES {
                    recyclable.push(chunk.address(block));
                }
            }
            free_blocks += chunk.free.count_ones() as usize;
            bytes += chunk.present_bytes();
            true
        });
        self.pending.shrink_to(PENDING_CAPACITY);
        // The lowest addresses first.
        self.recyclable.reverse();
        (self.last_block, self.last_large) = (0, 0);
        self.allocated = 0;
        self.allowance = live.saturating_add(self.external).max(MINIMUM_ALLOWANCE);
        self.bytes = bytes;
        self.free_blocks = free_blocks;
        // As much as will be allocated until the next collection.
        self.trim((live.max(MINIMUM_ALLOWANCE) / BLOCK as u64) as usize);
    }

    /// Returns the memory of free blocks to the system, except for `keep` of them.
    pub(super) fn trim(&mut self, keep: usize) {
        let mut excess = self.free_blocks.saturating_sub(keep);
        let mut released = 0;
        self.chunks.retain(|chunk| {
            let free = chunk.free.count_ones() as usize;
            let retained = !chunk.is_empty() || free > excess;
            if !retained {
                excess -= free;
                released += free;
            }
            retained
        });
        for chunk in self.chunks.iter_mut().rev() {
            if excess == 0 {
                break;
            }
            let count = chunk.release(excess);
            excess -= count;
            released += count;
        }
        self.free_blocks -= released;
        self.bytes -= (released * BLOCK) as u64;
    }
}

/// Resets the bitmaps of a large object, of which this is the first block; returns whether it is
/// alive.
fn sweep_large(chunk: &mut Chunk, head: usize) -> bool {
    let bitmaps = chunk.bitmaps();
    let place = place_words(head).start;
    bitmaps.starts[place] = std::mem::take(&mut bitmaps.marks[place]);
    bitmaps.starts[place] != 0
}

/// Resets the bitmaps of a block with small objects; returns how many lines are in use.
fn sweep_small(chunk: &mut Chunk, block: usize) -> usize {
    let bitmaps = chunk.bitmaps();
    bitmaps.walked &= !(1 << block);
    let lines = line_words(block);
    let mut used = 0;
    for index in lines {
        let marks = std::mem::take(&mut bitmaps.line_marks[index]);
        used += marks.count_ones() as usize;
        bitmaps.free_lines[index] = !marks;
        bitmaps.fresh_lines[index] = 0;
    }
    let places = place_words(block);
    if used == 0 {
        bitmaps.free_lines[line_words(block)].fill(0);
        bitmaps.starts[places].fill(0);
    } else {
        bitmaps.starts[places.clone()].copy_from_slice(&bitmaps.marks[places.clone()]);
        bitmaps.marks[places].fill(0);
    }
    used
}

/// The indices of the set bits.
fn ones(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (index < 32).then_some(index)
    })
}
