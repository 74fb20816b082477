//! Chunks: what a heap maps. A chunk is divided into blocks, the first of which hold bitmaps of the
//! entire chunk, so masking the address of an object leads to its mark.

use std::ops::Range;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::bits;

/// Bytes of a line: the unit in which memory of small objects is reused.
pub(super) const LINE: usize = 128;
/// Bytes of a block: the unit of what small and large objects occupy.
pub(super) const BLOCK: usize = 32 << 10;
/// Alignment of chunks. It is also their size, unless a chunk is that of one large object.
pub(super) const CHUNK: usize = 1 << 20;

/// Number of blocks of a chunk.
const BLOCKS: usize = CHUNK / BLOCK;
/// Number of blocks for [`Bitmaps`].
const BITMAP_BLOCKS: usize = size_of::<Bitmaps>().div_ceil(BLOCK);
/// The blocks for objects.
const USABLE: u32 = u32::MAX << BITMAP_BLOCKS;
/// The largest number of blocks that an object can occupy in a chunk together with others.
pub(super) const MAX_BLOCKS: usize = BLOCKS - BITMAP_BLOCKS;

/// Lines of a block.
pub(super) const LINES: usize = BLOCK / LINE;
/// The number of positions in a block where an object can start.
const PLACES: usize = BLOCK / 8;

/// The bitmaps at the start of a chunk. A bit stands for a position where an object can start, or
/// for a line of the chunk; the bits for the bitmaps themselves are always clear.
#[repr(C)]
pub(super) struct Bitmaps {
    /// The starts of objects that were reached in this collection; clear between collections.
    pub(super) marks: [u64; CHUNK / 8 / 64],
    /// The starts of objects, except of those in fresh lines of blocks that are not walked.
    pub(super) starts: [u64; CHUNK / 8 / 64],
    /// The lines of small objects that were reached in this collection; clear between collections.
    pub(super) line_marks: [u64; CHUNK / LINE / 64],
    /// The lines that are available for allocation.
    pub(super) free_lines: [u64; CHUNK / LINE / 64],
    /// The lines that were allocated since the last collection. In a run of such lines, objects
    /// follow one another from its start; where there is a zero instead of a header, the next
    /// object is at the start of the next line.
    pub(super) fresh_lines: [u64; CHUNK / LINE / 64],
    /// The blocks for which `starts` includes the objects in fresh lines.
    pub(super) walked: u32,
}

/// The words of a bitmap of positions that stand for a block.
pub(super) fn place_words(block: usize) -> Range<usize> {
    block * (PLACES / 64)..(block + 1) * (PLACES / 64)
}

/// The words of a bitmap of lines that stand for a block.
pub(super) fn line_words(block: usize) -> Range<usize> {
    block * (LINES / 64)..(block + 1) * (LINES / 64)
}

/// The base of the chunk that contains an address.
#[inline(always)]
pub(super) fn base_of(address: usize) -> usize {
    address & !(CHUNK - 1)
}

/// The block of its chunk that contains an address.
#[inline(always)]
pub(super) fn block_of(address: usize) -> usize {
    address % CHUNK / BLOCK
}

/// The bitmaps of the chunk that contains an address.
///
/// # Safety
/// The address is in the first [`CHUNK`] bytes of a chunk that is mapped and stays so while the
/// result is used, and there is no other reference to these bitmaps then.
#[inline(always)]
pub(super) unsafe fn bitmaps<'a>(address: usize) -> &'a mut Bitmaps {
    // SAFETY: they are at the base of the chunk, whose provenance `Chunk::map` exposed. They were
    // mapped as zeros. The rest is required of the caller.
    unsafe { &mut *ptr::with_exposed_provenance_mut(base_of(address)) }
}

/// A mapped chunk. A block for objects whose bit is in none of the masks contains small objects.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Where it is mapped.
    pub(super) base: usize,
    /// Bytes that are mapped.
    length: usize,
    /// Blocks without objects and without memory: they contain zeros.
    pub(super) absent: u32,
    /// Blocks without objects.
    pub(super) free: u32,
    /// First blocks of large objects.
    pub(super) heads: u32,
    /// Other blocks of large objects.
    tails: u32,
}

impl Chunk {
    /// A chunk without objects, or `None` if the system refuses.
    pub(super) fn new() -> Option<Self> {
        Some(Self { base: Self::map(CHUNK)?, length: CHUNK, absent: USABLE, free: 0, heads: 0, tails: 0 })
    }

    /// The chunk of one large object of this size, or `None` if the system refuses.
    pub(super) fn dedicated(size: usize) -> Option<Self> {
        let length = size.checked_add(BITMAP_BLOCKS * BLOCK)?.checked_next_multiple_of(4096)?;
        let heads = 1 << BITMAP_BLOCKS;
        Some(Self { base: Self::map(length)?, length, absent: 0, free: 0, heads, tails: USABLE & !heads })
    }

    /// Maps memory of this length that starts at a multiple of [`CHUNK`]; returns its address.
    fn map(length: usize) -> Option<usize> {
        let reserved = length.checked_add(CHUNK - 4096)?;
        // SAFETY: a new mapping at an address that the system chooses.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = address.ok()?.expose_provenance();
        let base = start.next_multiple_of(CHUNK);
        unmap(start..base);
        unmap(base + length..start + reserved);
        Some(base)
    }

    /// Whether this is the chunk of one large object, larger than a normal chunk.
    pub(super) fn is_dedicated(&self) -> bool {
        self.length > CHUNK
    }

    /// Bytes of the large object of a chunk that has only one.
    pub(super) fn dedicated_size(&self) -> usize {
        self.length - BITMAP_BLOCKS * BLOCK
    }

    /// The bitmaps.
    pub(super) fn bitmaps(&mut self) -> &mut Bitmaps {
        // SAFETY: the chunk is mapped until it is dropped. Other references to bitmaps are not kept
        // across calls.
        unsafe { bitmaps(self.base) }
    }

    /// The address of a block.
    pub(super) fn address(&self, block: usize) -> usize {
        self.base + block * BLOCK
    }

    /// The address of the large object of a chunk that has only one.
    pub(super) fn dedicated_address(&self) -> usize {
        self.address(BITMAP_BLOCKS)
    }

    /// Blocks that contain small objects.
    pub(super) fn small(&self) -> u32 {
        USABLE & !(self.absent | self.free | self.heads | self.tails)
    }

    /// Memory of its blocks, in bytes.
    pub(super) fn present_bytes(&self) -> u64 {
        u64::from((USABLE & !self.absent).count_ones()) * BLOCK as u64
    }

    /// Whether it contains no objects.
    pub(super) fn is_empty(&self) -> bool {
        self.absent | self.free == USABLE
    }

    /// Consecutive blocks without objects.
    pub(super) fn room(&self, count: usize) -> Option<Range<usize>> {
        let first = bits::consecutive(self.free | self.absent, count)?;
        Some(first..first + count)
    }

    /// The mask of the free blocks among these.
    pub(super) fn free_among(&self, blocks: &Range<usize>) -> u32 {
        self.free & mask(blocks)
    }

    /// Makes consecutive blocks without objects those of a large object.
    pub(super) fn occupy(&mut self, blocks: Range<usize>) {
        let mask = mask(&blocks);
        self.absent &= !mask;
        self.free &= !mask;
        self.heads |= 1 << blocks.start;
        self.tails |= mask & !(1 << blocks.start);
    }

    /// The blocks of the large object with this first block.
    pub(super) fn extent(&self, head: usize) -> Range<usize> {
        let rest = u64::from(self.tails) >> (head + 1);
        head..head + 1 + rest.trailing_ones() as usize
    }

    /// Frees the blocks of the large object with this first block.
    pub(super) fn vacate(&mut self, head: usize) {
        let mask = mask(&self.extent(head));
        self.heads &= !mask;
        self.tails &= !mask;
        self.free |= mask;
    }

    /// Returns the memory of at most `count` free blocks to the system; returns their number.
    pub(super) fn release(&mut self, count: usize) -> usize {
        let mut rest = count;
        while rest > 0 && self.free != 0 {
            let start = self.free.trailing_zeros() as usize;
            let run = ((self.free >> start).trailing_ones() as usize).min(rest);
            let address = ptr::with_exposed_provenance_mut(self.address(start));
            // SAFETY: the blocks are mapped, and contain no objects.
            let released = unsafe { madvise(address, run * BLOCK, Advice::LinuxDontNeed) };
            if released.is_err() {
                break;
            }
            let mask = mask(&(start..start + run));
            self.free &= !mask;
            self.absent |= mask;
            rest -= run;
        }
        count - rest
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        unmap(self.base..self.base + self.length);
    }
}

/// The bits of these blocks.
fn mask(blocks: &Range<usize>) -> u32 {
    let mut words = [0];
    bits::assign(&mut words, blocks.clone(), true);
    words[0] as u32
}

/// Unmaps memory of a chunk.
fn unmap(range: Range<usize>) {
    if !range.is_empty() {
        // SAFETY: part of a mapping of `Chunk::map` that nothing uses any more.
        let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(range.start), range.len()) };
        debug_assert!(unmapped.is_ok(), "{range:x?}: {unmapped:?}");
    }
}
