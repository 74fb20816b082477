//! Allocation: spans for compiled code, and large objects.

use std::ptr::{self, NonNull};

use super::chunk::{BLOCK, CHUNK, Chunk, LINE, MAX_BLOCKS, bitmaps, block_of, line_words, place_words};
use super::{Heap, MAX_SMALL, Span, bits};

/// For objects of up to this many lines it is worth searching blocks for a hole in which they fit.
const SEARCHED_LINES: usize = 8;

impl Heap {
    /// Retires the current span, whose bump pointer is `next`, and finds one with at least `size`
    /// bytes, up to [`MAX_SMALL`]: in holes of blocks with objects, or else in a free block, which
    /// may be taken from the system as long as [`Heap::bytes`] does not exceed `limit`. `None` if
    /// there is no memory; then there is no current span: compiled code must not allocate.
    pub(crate) fn refill(&mut self, next: usize, size: usize, limit: u64) -> Option<Span> {
        debug_assert!(size <= MAX_SMALL, "{size}");
        self.retire(next);
        let lines = size.div_ceil(LINE);
        let span = self.hole(lines).or_else(|| self.block(limit)).or_else(|| self.any_hole(lines))?;
        self.allocated += (span.end - span.start) as u64;
        self.span = Some(span);
        Some(span)
    }

    /// Makes the objects of the current span, which end at `next`, findable, and its other lines
    /// available.
    pub(super) fn retire(&mut self, next: usize) {
        let Some(span) = self.span.take() else { return };
        debug_assert!((span.start..=span.end).contains(&next), "{next:x} in {span:x?}");
        if next == span.end {
            return;
        }
        // SAFETY: in the span, after the last complete object.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(next).write(0) };
        let rest = next.next_multiple_of(LINE)..span.end;
        if rest.is_empty() {
            return;
        }
        // SAFETY: the span is in a chunk of this heap; there is no other reference to its bitmaps.
        let bitmaps = unsafe { bitmaps(span.start) };
        let first = rest.start % CHUNK / LINE;
        let lines = first..first + rest.len() / LINE;
        let list = if lines.len() > SEARCHED_LINES { &mut self.recyclable } else { &mut self.narrow };
        bits::assign(&mut bitmaps.fresh_lines, lines.clone(), false);
        bits::assign(&mut bitmaps.free_lines, lines, true);
        self.allocated -= rest.len() as u64;
        if list.last() != Some(&block_start(span.start)) {
            list.push(block_start(span.start));
        }
    }

    /// The next hole with at least `lines` lines.
    fn hole(&mut self, lines: usize) -> Option<Span> {
        if lines <= 1 {
            while let Some(block) = self.narrow.last() {
                if let Some(span) = take_hole(*block, lines) {
                    return Some(span);
                }
                self.narrow.pop();
            }
        }
        while let Some(block) = self.recyclable.last() {
            if let Some(span) = take_hole(*block, lines) {
                return Some(span);
            }
            if lines > SEARCHED_LINES {
                return None;
            }
            let block = self.recyclable.pop();
            if lines > 1 {
                self.narrow.extend(block);
            }
        }
        None
    }

    /// Any hole with at least `lines` lines.
    fn any_hole(&self, lines: usize) -> Option<Span> {
        self.recyclable.iter().chain(&self.narrow).find_map(|block| take_hole(*block, lines))
    }

    /// A block without objects.
    fn block(&mut self, limit: u64) -> Option<Span> {
        let index = if self.free_blocks > 0 {
            self.free_blocks -= 1;
            self.search(self.last_block, |chunk| chunk.free != 0)?
        } else {
            if self.exceeds(BLOCK as u64, limit) {
                return None;
            }
            let index = match self.search(self.last_block, |chunk| chunk.absent != 0) {
                Some(index) => index,
                None => self.insert(Chunk::new()?),
            };
            self.bytes += BLOCK as u64;
            index
        };
        self.last_block = index;
        let chunk = &mut self.chunks[index];
        let candidates = if chunk.free != 0 { &mut chunk.free } else { &mut chunk.absent };
        let block = candidates.trailing_zeros() as usize;
        *candidates &= *candidates - 1;
        chunk.bitmaps().fresh_lines[line_words(block)].fill(u64::MAX);
        let start = chunk.address(block);
        Some(Span { start, end: start + BLOCK })
    }

    /// The index of a chunk with a property: the first one at or after index `from`, or else before
    /// it.
    fn search(&self, from: usize, property: impl Fn(&Chunk) -> bool) -> Option<usize> {
        let from = from.min(self.chunks.len());
        (from..self.chunks.len()).chain(0..from).find(|index| property(&self.chunks[*index]))
    }

    /// Adds a chunk; returns its index.
    fn insert(&mut self, chunk: Chunk) -> usize {
        let index = self.chunks.partition_point(|other| other.base < chunk.base);
        self.chunks.insert(index, chunk);
        index
    }

    /// Whether the heap would be larger than a limit with this many more bytes.
    pub(super) fn exceeds(&self, bytes: u64, limit: u64) -> bool {
        self.bytes().checked_add(bytes).is_none_or(|bytes| bytes > limit)
    }

    /// Memory for an object of more than [`MAX_SMALL`] bytes: zeros. The caller writes the header
    /// before the next collection. `None` if that would make [`Heap::bytes`] exceed `limit`, or if
    /// the system has no memory.
    pub(crate) fn allocate_large(&mut self, size: usize, limit: u64) -> Option<NonNull<u8>> {
        debug_assert!(size > MAX_SMALL, "{size}");
        let address = self.large(size, limit).or_else(|| {
            // Perhaps the memory of free blocks elsewhere suffices.
            self.trim(0);
            self.large(size, limit)
        })?;
        // SAFETY: the address is in a chunk of this heap; there is no other reference to its
        // bitmaps.
        let bitmaps = unsafe { bitmaps(address) };
        bitmaps.starts[place_words(block_of(address))][0] = 1;
        NonNull::new(ptr::with_exposed_provenance_mut(address))
    }

    /// As [`Heap::allocate_large`], if no free blocks have to be returned to the system for it. The
    /// address is not recorded as that of an object.
    fn large(&mut self, size: usize, limit: u64) -> Option<usize> {
        let count = size.div_ceil(BLOCK);
        if count > MAX_BLOCKS {
            if self.exceeds(size as u64, limit) {
                return None;
            }
            let chunk = Chunk::dedicated(size)?;
            let address = chunk.dedicated_address();
            self.bytes += chunk.dedicated_size() as u64;
            self.allocated += chunk.dedicated_size() as u64;
            self.insert(chunk);
            return Some(address);
        }
        let index = match self.search(self.last_large, |chunk| chunk.room(count).is_some()) {
            Some(index) => index,
            None if self.exceeds((count * BLOCK) as u64, limit) => return None,
            None => self.insert(Chunk::new()?),
        };
        self.last_large = index;
        let blocks = self.chunks[index].room(count)?;
        let used = self.chunks[index].free_among(&blocks);
        let absent = count - used.count_ones() as usize;
        if self.exceeds((absent * BLOCK) as u64, limit) {
            return None;
        }
        self.bytes += (absent * BLOCK) as u64;
        self.allocated += (count * BLOCK) as u64;
        self.free_blocks -= used.count_ones() as usize;
        let chunk = &mut self.chunks[index];
        chunk.occupy(blocks.clone());
        for block in blocks.clone().filter(|block| used & 1 << block != 0) {
            // SAFETY: the block is mapped, and contains no objects.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(chunk.address(block)).write_bytes(0, BLOCK) };
        }
        Some(chunk.address(blocks.start))
    }
}

/// The first address of the block that contains an address.
fn block_start(address: usize) -> usize {
    address & !(BLOCK - 1)
}

/// Takes the first hole with at least `lines` lines of a block with objects.
fn take_hole(block: usize, lines: usize) -> Option<Span> {
    // SAFETY: the lists of blocks are those of mapped chunks; there is no other reference to these
    // bitmaps.
    let bitmaps = unsafe { bitmaps(block) };
    let words = line_words(block_of(block));
    let hole = bits::runs(&bitmaps.free_lines[words.clone()]).find(|hole| hole.len() >= lines)?;
    let address = |line| block + line * LINE;
    let span = Span { start: address(hole.start), end: address(hole.end) };
    bits::assign(&mut bitmaps.free_lines[words.clone()], hole.clone(), false);
    bits::assign(&mut bitmaps.fresh_lines[words], hole, true);
    Some(span)
}
