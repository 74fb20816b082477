//! The heap of a store: WebAssembly structures and arrays, and their collection.
//!
//! It is a mark-region heap in the manner of Immix (Blackburn and McKinley, "Immix: a mark-region
//! garbage collector with space efficiency, fast collection, and mutator performance", PLDI 2008),
//! but it never moves objects.
//!
//! # Design
//! - Memory is mapped in chunks of 1 MiB (`chunk.rs`), which are divided into blocks of 32 KiB, and
//!   these into lines of 128 bytes. Compiled code allocates by incrementing a pointer within a
//!   [`Span`]: a free block, or a run of free lines in a block that contains objects
//!   (`allocate.rs`).
//! - An object of more than [`MAX_SMALL`] bytes has its own blocks, or its own chunk if it does not
//!   fit into a chunk with others.
//! - A collection marks objects, and the lines that they occupy (`mark.rs`). Then it examines only
//!   the marks of lines, 32 bytes for each block, not the objects (`sweep.rs`): lines without a
//!   mark are available again.
//!
//! # Roots and references
//! A word of a stack may be anything, so the heap must know whether an object starts there. For the
//! objects that survived a collection, it has a bitmap: their marks. Objects that were allocated
//! since are added to the bitmap on demand, for the block that such a word leads to, by a walk over
//! the objects of its spans, which follow one another. Compiled code writes no bits.
//!
//! A reference in an object is exact: null, a host value (a word of 2^47 or more), an `i31` (a
//! smaller word that is odd), or the first address of an object of this heap. The chunk and the
//! mark of an object are found by masking its address. Fields that hold exceptions are listed
//! separately.
//!
//! Nothing moves, since a word on a stack is not known to be a reference, and could not be updated.
//! Compiled code and the host can therefore keep addresses without registering them. The price is
//! holes between survivors; a line is reused as soon as all objects in it are dead.
//!
//! # What is guaranteed
//! - Only complete objects are read. The objects of a span are those before its bump pointer, which
//!   compiled code increments when it has written all fields. Where an incomplete object may be,
//!   [`Heap::refill`] and [`Heap::begin`] write a zero, which ends the walk.
//! - Every object that is marked or reachable from a marked object survives at its address. Every
//!   other object is freed, but a small one only together with all others in its lines; until then
//!   it can neither be found nor reached.
//! - A word of a stack that is an address inside an object, or at its end, keeps nothing alive.
//! - Marking does not recurse: its use of the thread's stack does not depend on the depth of
//!   structures.
//! - A request does not make the memory of blocks and large objects exceed the limit that is given
//!   with it. A request that cannot be satisfied returns `None`.
//!
//! # Costs
//! - The bitmaps of a chunk are 2 of its 32 blocks, of which 36 KiB are used: 3.7% of the memory of
//!   objects. They are not counted in [`Heap::bytes`]. The memory of host values is counted,
//!   although it is elsewhere: it makes collections due earlier, and the limit includes it.
//! - A large object in a chunk with others occupies a multiple of 32 KiB.
//! - A collection takes time in proportion to the live objects, plus a small constant for each
//!   block. It is due when as much has been allocated as survived the last one, so the heap is
//!   about twice as large as the live objects, plus [`MINIMUM_ALLOWANCE`]. The memory of exceptions
//!   counts here too.

mod allocate;
mod bits;
mod chunk;
mod layout;
mod mark;
mod sweep;
#[cfg(test)]
mod tests;

use wasm_jit_codegen::objects::MAX_SMALL_OBJECT;

use chunk::Chunk;

/// Bytes of the largest objects that are allocated in spans.
pub(crate) const MAX_SMALL: usize = MAX_SMALL_OBJECT as usize;

/// Bytes that may be allocated between collections even if almost nothing is alive.
const MINIMUM_ALLOWANCE: u64 = 8 << 20;

/// The maximum size in bytes of a heap that is collected at every allocation, if the engine is
/// configured for that.
const SMALL_HEAP: u64 = 128 << 10;

/// Memory in which compiled code may allocate, as addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first bump pointer.
    pub(crate) start: usize,
    /// The end of the memory for objects.
    pub(crate) end: usize,
}

/// The collected objects of a store, and their memory.
///
/// Its safety depends on the users of its memory: from the start of the current span to the bump
/// pointer there are complete objects, as [`layout`] describes them, one directly after the other;
/// those outside of spans are complete when a collection begins; references are as described there;
/// and types live as long as their objects. Nobody uses objects while one of the methods runs.
#[derive(Debug)]
pub(crate) struct Heap {
    /// The chunks, by address.
    chunks: Vec<Chunk>,
    /// Blocks with objects in which there may be holes, to be used from the last one on.
    recyclable: Vec<usize>,
    /// As `recyclable`: blocks whose holes are too small for some object that was requested.
    narrow: Vec<usize>,
    /// Where compiled code allocates now.
    span: Option<Span>,
    /// Memory of all blocks and large objects that has not been returned to the system.
    bytes: u64,
    /// Memory of host values ([`Heap::add_external`]).
    external: u64,
    /// Number of free blocks.
    free_blocks: usize,
    /// Bytes that were handed out since the last collection.
    allocated: u64,
    /// Bytes that may be handed out until the next collection.
    allowance: u64,
    /// The chunk of the last block that was handed out.
    last_block: usize,
    /// The chunk of the last large object that was allocated.
    last_large: usize,
    /// Objects that are marked, but not traced yet (`mark.rs`).
    pending: Vec<usize>,
}

impl Heap {
    /// A heap without memory.
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            recyclable: Vec::new(),
            narrow: Vec::new(),
            span: None,
            bytes: 0,
            external: 0,
            free_blocks: 0,
            allocated: 0,
            allowance: MINIMUM_ALLOWANCE,
            last_block: 0,
            last_large: 0,
            pending: Vec::new(),
        }
    }

    /// The memory of all blocks and large objects, and of host values, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.saturating_add(self.external)
    }

    /// Counts memory of a host value to which the program now has a reference: it is allocated
    /// elsewhere, but freed when a collection finds that the program cannot reach the value.
    pub(crate) fn add_external(&mut self, bytes: u64) {
        self.external = self.external.saturating_add(bytes);
        self.allocated = self.allocated.saturating_add(bytes);
    }

    /// Sets the remaining memory of host values, before a collection is completed by
    /// [`Heap::sweep`].
    pub(crate) fn set_external(&mut self, bytes: u64) {
        self.external = bytes;
    }

    /// Whether there may be host values with this many more bytes.
    pub(crate) fn has_room_for(&mut self, bytes: u64, limit: u64) -> bool {
        if self.exceeds(bytes, limit) {
            // Returning the memory of free blocks may suffice.
            self.trim(0);
        }
        !self.exceeds(bytes, limit)
    }

    /// Whether there should be a collection before more memory is requested, in a heap with this
    /// limit: if much has been allocated since the last collection, compared to the memory that was
    /// alive then or to the limit.
    pub(crate) fn is_due(&self, limit: u64) -> bool {
        self.allocated >= self.allowance.min(limit / 4)
    }

    /// As [`Heap::is_due`], if `fresh` bytes of exceptions, which are elsewhere, have been
    /// allocated since the last collection, and `retained` bytes were alive then. The limit does
    /// not include them.
    pub(crate) fn is_due_with_exceptions(&self, fresh: u64, retained: u64) -> bool {
        self.allocated.saturating_add(fresh) >= self.allowance.saturating_add(retained)
    }

    /// Whether a collection before an allocation is affordable: the heap is small, or enough of it
    /// has been allocated since the last collection.
    pub(crate) fn may_always_collect(&self) -> bool {
        self.bytes <= SMALL_HEAP || self.allocated >= self.bytes / 16
    }
}
