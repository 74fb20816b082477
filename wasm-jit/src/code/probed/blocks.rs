//! The memory of versions, and a table of their addresses, which is read without locks, also by
//! signal handlers.
//!
//! Memory is allocated in arenas, each twice as large as the previous one. A block is appended to
//! the last arena, so the blocks of an arena are in ascending order. Versions are freed with their
//! image, so entries never change.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fastinst_sigsafe::Segments;
use wordpatch::code_memory::CodeArena;

use crate::code::CodeImage;
use crate::code::registry::{self, Registered};

/// The first arena.
const FIRST_ARENA: usize = 1 << 20;
/// Arenas are not larger than this, unless a single block is.
const MAX_ARENA: usize = 64 << 20;
const MAX_ARENAS: usize = 64;

/// Alignment of blocks: a cache line, as for the code of functions.
pub(super) const ALIGNMENT: usize = 64;

/// A block of code: its addresses, and the version of a function that it contains, or to which its
/// stub belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub start: usize,
    pub end: usize,
    pub function: u32,
    pub version: usize,
    /// The position of the instruction, if the block is the stub of a list of probes.
    pub stub: Option<u32>,
}

/// An arena, as readers without locks see it.
#[derive(Debug)]
struct Known {
    /// Dropped first: nobody finds the arena any more when its code is freed.
    _registered: Registered,
    pages: Range<usize>,
    /// In ascending order. There is room for as many as fit into the largest arena.
    blocks: Segments<Block, 512, { MAX_ARENA / ALIGNMENT / 512 }>,
}

impl Known {
    /// The last block that begins at the address or before.
    fn find(&self, pc: usize) -> Option<&Block> {
        let (mut from, mut to) = (0, self.blocks.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.blocks.get(middle)?.start <= pc { from = middle + 1 } else { to = middle }
        }
        self.blocks.get(from.checked_sub(1)?)
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Blocks([OnceLock<Box<Known>>; MAX_ARENAS]);

impl Default for Blocks {
    fn default() -> Self {
        Self([const { OnceLock::new() }; MAX_ARENAS])
    }
}

impl Blocks {
    /// The arena that contains the address.
    fn known(&self, address: usize) -> Option<&Known> {
        let mut known = self.0.iter().map_while(OnceLock::get).map(AsRef::as_ref);
        known.find(|known: &&Known| known.pages.contains(&address))
    }

    /// The block that contains the address, or the last one before it in its arena. Atomics only.
    pub(super) fn find(&self, pc: usize) -> Option<Block> {
        self.known(pc)?.find(pc).copied()
    }

    /// The end of the arena that contains the address.
    pub(super) fn end(&self, pc: usize) -> Option<usize> {
        Some(self.known(pc)?.pages.end)
    }

    pub(super) fn push(&self, block: Block) {
        let known = self.known(block.start).expect("blocks are in arenas");
        known.blocks.push_with(|_| block).expect("an arena has room for fewer blocks");
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
            let _ = place.set(Box::new(Known {
                _registered: registry::register_more(image, &arena.pages()),
                pages: arena.pages(),
                blocks: Segments::new(),
            }));
            self.0.push(arena);
        }
        Ok(self.0.last_mut().expect("there is one with room"))
    }

    /// The arena that the address is in.
    pub(super) fn of(&self, address: usize) -> Option<&CodeArena> {
        self.0.iter().find(|arena| arena.pages().contains(&address))
    }
}
