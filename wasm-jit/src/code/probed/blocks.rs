//! Where versions were put: memory that grows, and a table of what is where in it, which is read
//! without locks, also by signal handlers.
//!
//! Memory comes in arenas, each twice as long as the one before. A block is appended to the last
//! arena, so blocks are in ascending order in their arena. Entries are never changed: versions go
//! with their image.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use wordpatch::code_memory::CodeArena;

use crate::code::CodeImage;
use crate::code::registry::{self, Registered};

/// The first arena.
const FIRST_ARENA: usize = 1 << 20;
/// Arenas are not longer than this, unless a block is.
const MAX_ARENA: usize = 64 << 20;
const MAX_ARENAS: usize = 64;

/// Entries come in segments, each twice as long as the one before, so that they never move.
const SEGMENTS: usize = 27;
const FIRST_SEGMENT: usize = 16;

/// Blocks begin at multiples of this: a cache line, and what code of functions is aligned to.
pub(super) const ALIGNMENT: usize = 64;

/// A block of code: where it begins, and which version of which function it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub start: usize,
    pub function: u32,
    pub version: usize,
}

/// What is known of an arena without a lock.
#[derive(Debug)]
struct Known {
    /// Dropped first: nobody finds the arena any more when its code goes.
    _registered: Registered,
    pages: Range<usize>,
    used: AtomicUsize,
    segments: [OnceLock<Box<[OnceLock<Block>]>>; SEGMENTS],
}

impl Known {
    fn entry(&self, number: usize) -> Option<&Block> {
        let segment = (number / FIRST_SEGMENT + 1).ilog2() as usize;
        let place = number - FIRST_SEGMENT * ((1 << segment) - 1);
        self.segments[segment].get()?[place].get()
    }

    /// By one thread at a time.
    fn push(&self, block: Block) {
        let number = self.used.load(Ordering::Relaxed);
        let segment = (number / FIRST_SEGMENT + 1).ilog2() as usize;
        let place = number - FIRST_SEGMENT * ((1 << segment) - 1);
        let new = || (0..FIRST_SEGMENT << segment).map(|_| OnceLock::new()).collect();
        let _ = self.segments[segment].get_or_init(new)[place].set(block);
        self.used.store(number + 1, Ordering::Release);
    }

    /// The last block that begins at the address or before.
    fn find(&self, pc: usize) -> Option<&Block> {
        let (mut from, mut to) = (0, self.used.load(Ordering::Acquire));
        while from < to {
            let middle = from + (to - from) / 2;
            if self.entry(middle)?.start <= pc { from = middle + 1 } else { to = middle }
        }
        self.entry(from.checked_sub(1)?)
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Blocks([OnceLock<Known>; MAX_ARENAS]);

impl Default for Blocks {
    fn default() -> Self {
        Self([const { OnceLock::new() }; MAX_ARENAS])
    }
}

impl Blocks {
    /// The block that contains the address, or the last one before it in its arena. Atomics only.
    pub(super) fn find(&self, pc: usize) -> Option<Block> {
        let known = self.0.iter().map_while(OnceLock::get);
        known.into_iter().find(|known| known.pages.contains(&pc))?.find(pc).copied()
    }

    /// Where the arena ends that the address is in.
    pub(super) fn end(&self, pc: usize) -> Option<usize> {
        let mut known = self.0.iter().map_while(OnceLock::get);
        known.find(|known| known.pages.contains(&pc)).map(|known| known.pages.end)
    }

    pub(super) fn push(&self, block: Block) {
        let mut known = self.0.iter().map_while(OnceLock::get);
        if let Some(known) = known.find(|known| known.pages.contains(&block.start)) {
            known.push(block);
        }
    }
}

/// The memory, for one thread at a time.
#[derive(Debug, Default)]
pub(super) struct Arenas(Vec<CodeArena>);

impl Arenas {
    /// The arena that the next block goes to, with room for `length` bytes.
    ///
    /// # Errors
    /// The system refuses memory, or there is none near the image.
    pub(super) fn with_room(
        &mut self,
        image: &Arc<CodeImage>,
        blocks: &Blocks,
        length: usize,
    ) -> Result<&mut CodeArena, wordpatch::Error> {
        let needed = length + ALIGNMENT;
        if self.0.last().is_none_or(|arena| arena.room() < needed) {
            let pages = image.memory().pages();
            let size = (FIRST_ARENA << self.0.len().min(16)).min(MAX_ARENA).max(needed);
            let full = || wordpatch::Error::OutOfReach { address: pages.start, length };
            let place = blocks.0.get(self.0.len()).ok_or_else(full)?;
            let arena = CodeArena::near(&pages, size)?;
            let _ = place.set(Known {
                _registered: registry::register_more(image, &arena.pages()),
                pages: arena.pages(),
                used: AtomicUsize::new(0),
                segments: [const { OnceLock::new() }; SEGMENTS],
            });
            self.0.push(arena);
        }
        Ok(self.0.last_mut().expect("there is one with room"))
    }

    /// The arena that the address is in.
    pub(super) fn of(&self, address: usize) -> Option<&CodeArena> {
        self.0.iter().find(|arena| arena.pages().contains(&address))
    }
}
