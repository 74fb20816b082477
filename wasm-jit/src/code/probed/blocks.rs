//! The memory of versions, and a table of their addresses, which is read without locks, including
//! by signal handlers.
//!
//! Memory is allocated in arenas, each twice as large as the previous one. Their addresses were
//! reserved with the image and follow its code. Only when these are used up, or the system has
//! refused to reserve them, free addresses near the image are searched for. A block is appended to
//! the last arena, so the blocks of an arena are in ascending order, and stay where they are.
//! Versions are freed with their image, so their entries never change, except that of a version
//! that was given up before anything led to it. The entry of a stub changes only while no thread is
//! in the stub. So no address in a block is looked up while its entry changes.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use wordpatch::code_memory::CodeArena;

use crate::code::CodeImage;
use crate::code::registry::{self, Registered};

/// The first arena is three times as large as the code, but not larger than this: a module with few
/// probes takes little memory for the table of its blocks.
const MAX_FIRST_ARENA: usize = 1 << 20;
/// Arenas are not larger than this, unless a single block is.
const MAX_ARENA: usize = 64 << 20;
const MAX_ARENAS: usize = 64;

const PAGE: usize = 4096;

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
    /// The range of bytes in which interrupts have no effect.
    pub uninterrupted: [u32; 2],
}

/// The blocks of an arena, in ascending order: a table that only grows. It has room for all blocks
/// that fit into the arena; its pages are allocated as they are written.
#[derive(Debug)]
struct Entries {
    entries: Box<[Entry]>,
    length: AtomicUsize,
}

/// A block.
#[derive(Debug)]
struct Entry {
    start: AtomicUsize,
    length: AtomicU32,
    function: AtomicU32,
    version: AtomicU32,
    /// The position of a stub's instruction, or 0, where no instruction is.
    stub: AtomicU32,
    uninterrupted: [AtomicU32; 2],
}

impl Entry {
    fn load(&self) -> Block {
        let small = |number: &AtomicU32| number.load(Ordering::Relaxed);
        let start = self.start.load(Ordering::Relaxed);
        // Acquire, first: a stub's entry is complete.
        let stub = Some(self.stub.load(Ordering::Acquire)).filter(|position| *position != 0);
        Block {
            start,
            end: start + small(&self.length) as usize,
            function: small(&self.function),
            version: small(&self.version) as usize,
            stub,
            uninterrupted: self.uninterrupted.each_ref().map(small),
        }
    }

    fn store(&self, block: Block) {
        self.start.store(block.start, Ordering::Relaxed);
        self.length.store((block.end - block.start) as u32, Ordering::Relaxed);
        self.function.store(block.function, Ordering::Relaxed);
        self.version.store(block.version as u32, Ordering::Relaxed);
        for (at, offset) in self.uninterrupted.iter().zip(block.uninterrupted) {
            at.store(offset, Ordering::Relaxed);
        }
        self.stub.store(block.stub.unwrap_or(0), Ordering::Release);
    }
}

impl Entries {
    fn of(arena: &Range<usize>) -> Self {
        let zeroed = Box::<[Entry]>::new_zeroed_slice(arena.len() / ALIGNMENT);
        // SAFETY: zero is a valid value of each atomic of an entry.
        Self { entries: unsafe { zeroed.assume_init() }, length: AtomicUsize::new(0) }
    }

    fn get(&self, index: usize) -> Option<Block> {
        // Acquire: below the length, entries are complete.
        let complete = &self.entries[..self.length.load(Ordering::Acquire)];
        complete.get(index).map(Entry::load)
    }

    /// Appends a block; callers take turns.
    fn push(&self, block: Block) {
        let index = self.length.load(Ordering::Relaxed);
        self.entries[index].store(block);
        self.length.store(index + 1, Ordering::Release);
    }

    /// The number of the last block that begins at the address or before.
    fn number(&self, pc: usize) -> Option<usize> {
        let (mut from, mut to) = (0, self.length.load(Ordering::Acquire));
        while from < to {
            let middle = from + (to - from) / 2;
            if self.entries[middle].start.load(Ordering::Relaxed) <= pc {
                from = middle + 1
            } else {
                to = middle
            }
        }
        from.checked_sub(1)
    }

    /// The last block that begins at the address or before.
    fn find(&self, pc: usize) -> Option<Block> {
        self.get(self.number(pc)?)
    }

    /// The entry of the block that begins at the address.
    fn at(&self, start: usize) -> Option<&Entry> {
        let entry = &self.entries[self.number(start)?];
        (entry.start.load(Ordering::Relaxed) == start).then_some(entry)
    }
}

/// An arena, as readers without locks see it.
#[derive(Debug)]
struct Known {
    /// Dropped first: the arena is not found any more when its code is freed.
    _registered: Registered,
    pages: Range<usize>,
    blocks: Entries,
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
        self.known(pc)?.blocks.find(pc)
    }

    /// All blocks.
    pub(super) fn all(&self) -> impl Iterator<Item = Block> {
        let known = self.0.iter().map_while(OnceLock::get);
        known.flat_map(|known| (0..).map_while(|index| known.blocks.get(index)))
    }

    /// The end of the arena that contains the address.
    pub(super) fn end(&self, pc: usize) -> Option<usize> {
        Some(self.known(pc)?.pages.end)
    }

    pub(super) fn push(&self, block: Block) {
        let known = self.known(block.start).expect("blocks are in arenas");
        known.blocks.push(block);
    }

    /// Describes the block of a version, which may be where another one was given up.
    pub(super) fn put(&self, block: Block) {
        let known = self.known(block.start).expect("blocks are in arenas");
        match known.blocks.at(block.start) {
            Some(entry) => entry.store(block),
            None => known.blocks.push(block),
        }
    }

    /// Describes a block that has a new stub.
    pub(super) fn fill(&self, block: Block) {
        self.entry(block.start).store(block);
    }

    /// Records that the block that begins at the address has no code any more.
    pub(super) fn clear(&self, start: usize) {
        let entry = self.entry(start);
        entry.stub.store(0, Ordering::Relaxed);
        entry.length.store(0, Ordering::Relaxed);
    }

    fn entry(&self, start: usize) -> &Entry {
        self.known(start).and_then(|known| known.blocks.at(start)).expect("a block begins there")
    }
}

/// The memory of versions, which one thread at a time may use.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    arenas: Vec<CodeArena>,
    /// Where versions were that were given up before anything led to them.
    given_up: Vec<Range<usize>>,
}

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
        if self.arenas.last().is_none_or(|arena| arena.room() < needed) {
            let first = (3 * image.code_length()).clamp(PAGE, MAX_FIRST_ARENA);
            let size = (first << self.arenas.len().min(16)).min(MAX_ARENA).max(needed);
            let reserved = image.room.lock().unwrap_or_else(|e| e.into_inner()).arena(size)?;
            let arena = match reserved {
                Some(arena) => arena,
                None => CodeArena::near(&self.all_code(image), size)?,
            };
            self.add(image, blocks, arena)?;
        }
        Ok(self.arenas.last_mut().expect("there is one with room"))
    }

    /// Memory for a version of `length` bytes, which may be longer: where another one was given up,
    /// or else the end of an arena. It is taken when it is [written](Self::write).
    ///
    /// # Errors
    /// As [`Arenas::with_room`].
    pub(super) fn for_version(
        &mut self,
        image: &Arc<CodeImage>,
        blocks: &Blocks,
        length: usize,
    ) -> Result<Range<usize>, wordpatch::Error> {
        let fits = self.given_up.iter().filter(|memory| memory.len() >= length);
        if let Some(memory) = fits.min_by_key(|memory| memory.len()) {
            return Ok(memory.clone());
        }
        let start = self.with_room(image, blocks, length)?.next_address(ALIGNMENT);
        Ok(start..start + length)
    }

    /// Writes the code of a version to memory that was found for it.
    pub(super) fn write(&mut self, memory: &Range<usize>, code: &[u8]) -> Result<(), wordpatch::Error> {
        let given_up = self.given_up.iter().position(|other| other == memory);
        let arena = self.of_mut(memory.start).expect("the memory is in an arena");
        match given_up {
            None => _ = arena.append(code, ALIGNMENT)?,
            Some(number) => {
                // SAFETY: nothing has ever led to the code that was there.
                unsafe { arena.overwrite(memory.start, code) }?;
                self.given_up.swap_remove(number);
            }
        }
        Ok(())
    }

    /// Takes back the memory of a version to which nothing has led.
    pub(super) fn give_up(&mut self, memory: Range<usize>) {
        self.given_up.push(memory);
    }

    /// For tests: the number of bytes that were appended.
    #[cfg(test)]
    pub(super) fn appended(&self) -> usize {
        self.arenas.iter().map(|arena| arena.pages().len() - arena.room()).sum()
    }

    /// The addresses of each arena.
    pub(super) fn pages(&self) -> impl Iterator<Item = Range<usize>> {
        self.arenas.iter().map(CodeArena::pages)
    }

    /// From the first to the last address of the image's code and its arenas.
    fn all_code(&self, image: &CodeImage) -> Range<usize> {
        let include =
            |all: Range<usize>, pages: Range<usize>| all.start.min(pages.start)..all.end.max(pages.end);
        self.pages().fold(image.pages(), include)
    }

    fn add(
        &mut self,
        image: &Arc<CodeImage>,
        blocks: &Blocks,
        arena: CodeArena,
    ) -> Result<(), wordpatch::Error> {
        let pages = arena.pages();
        let full = || wordpatch::Error::OutOfReach { address: pages.start, length: pages.len() };
        let place = blocks.0.get(self.arenas.len()).ok_or_else(full)?;
        let _ = place.set(Box::new(Known {
            _registered: registry::register_more(image, &pages),
            blocks: Entries::of(&pages),
            pages,
        }));
        self.arenas.push(arena);
        Ok(())
    }

    /// The arena that the address is in.
    pub(super) fn of_mut(&mut self, address: usize) -> Option<&mut CodeArena> {
        self.arenas.iter_mut().find(|arena| arena.pages().contains(&address))
    }

    /// As [`Arenas::of_mut`].
    pub(super) fn of(&self, address: usize) -> Option<&CodeArena> {
        self.arenas.iter().find(|arena| arena.pages().contains(&address))
    }
}
