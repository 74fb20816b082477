//! Marking: finds the objects that are reachable from the roots.
//!
//! An object is marked when it is found, and is `pending` until its references have been followed.
//! The end of `pending` is its top. An entry is the address of an object, or the rest of an array
//! whose first elements have been followed: the end of the array, and above it the address of the
//! next element plus 1.

use wasm_jit_codegen::objects::{ARRAY_ELEMENTS, array_size};

use super::chunk::{Bitmaps, CHUNK, LINE, base_of, bitmaps, block_of, line_words};
use super::layout::{layout_of, length_of, read, size_of_object};
use super::{Heap, MAX_SMALL, bits};
use crate::object_type::{Elements, ObjectLayout};

/// The number of elements of an array that are followed at once. Everything they lead to is
/// followed before the next elements, which bounds the number of pending objects.
const ELEMENTS_AT_ONCE: usize = 128;

impl Heap {
    /// Begins a collection. The current span, whose bump pointer is `next`, is retired: compiled
    /// code must not allocate before the next [`Heap::refill`]. Then the caller calls
    /// [`Heap::mark_ambiguous`] and [`Heap::mark_reference`] for all roots, [`Heap::trace`], these
    /// methods again if that led to other roots, and finally [`Heap::sweep`].
    pub(crate) fn begin(&mut self, next: usize) {
        self.retire(next);
        debug_assert!(self.pending.is_empty());
    }

    /// Marks the object that starts at the address `word`, if there is one. The word may be
    /// anything. Returns whether there is such an object.
    pub(crate) fn mark_ambiguous(&mut self, word: u64) -> bool {
        let address = word as usize;
        let (Some(first), Some(last)) = (self.chunks.first(), self.chunks.last()) else { return false };
        if !address.is_multiple_of(8) || address < first.base || address >= last.base + CHUNK {
            return false;
        }
        if self.chunks.binary_search_by_key(&base_of(address), |chunk| chunk.base).is_err() {
            return false;
        }
        // SAFETY: the address is in the first bytes of a chunk; there is no other reference to its
        // bitmaps.
        let bitmaps = unsafe { bitmaps(address) };
        let block = 1 << block_of(address);
        if bits::test(&bitmaps.fresh_lines, address % CHUNK / LINE) && bitmaps.walked & block == 0 {
            bitmaps.walked |= block;
            walk(bitmaps, address);
        }
        let is_object = bits::test(&bitmaps.starts, address % CHUNK / 8);
        if is_object {
            self.mark(address);
        }
        is_object
    }

    /// Marks an object of this heap.
    #[inline(always)]
    fn mark(&mut self, object: usize) {
        // SAFETY: the start of an object is in the first bytes of a chunk; there is no other
        // reference to its bitmaps.
        let marks = unsafe { &mut bitmaps(object).marks };
        let place = object % CHUNK / 8;
        let bit = 1 << (place % 64);
        if marks[place / 64] & bit == 0 {
            marks[place / 64] |= bit;
            self.pending.push(object);
        }
    }

    /// Marks the object to which a reference refers: a word of a field, element, global or table
    /// whose type is `anyref`, `externref` or a subtype of one of them. A host value is passed to
    /// `other`.
    #[inline(always)]
    pub(crate) fn mark_reference(&mut self, word: u64, other: &mut dyn FnMut(u64)) {
        if word >> 47 != 0 {
            other(word);
        } else if word != 0 && word & 1 == 0 {
            self.mark(word as usize);
        }
    }

    /// Marks everything that marked objects refer to, directly or through others. Host values and
    /// exceptions to which they refer are passed to `other`; the same word may be passed several
    /// times.
    pub(crate) fn trace(&mut self, other: &mut dyn FnMut(u64)) {
        while let Some(entry) = self.pending.pop() {
            if entry & 1 == 0 {
                self.scan(entry, other);
            } else {
                let end = self.pending.pop().expect("an end below each rest");
                self.scan_references(entry - 1, end, other);
            }
        }
    }

    /// Follows the references of a marked object, and marks its lines.
    #[inline(always)]
    fn scan(&mut self, object: usize, other: &mut dyn FnMut(u64)) {
        // SAFETY: only complete objects are marked, and their types are alive.
        match unsafe { layout_of(object) } {
            ObjectLayout::Function => unreachable!("functions are not in the heap"),
            ObjectLayout::Struct { size, references, exceptions } => {
                mark_lines(object, *size as usize);
                for offset in references {
                    // SAFETY: a field of the object.
                    self.mark_reference(unsafe { read(object + *offset as usize) }, other);
                }
                for offset in exceptions {
                    // SAFETY: a field of the object.
                    pass(unsafe { read(object + *offset as usize) }, other);
                }
            }
            ObjectLayout::Array { element_log2, elements } => {
                // SAFETY: the layout is that of an array.
                let length = unsafe { length_of(object) };
                mark_lines(object, array_size(*element_log2, length) as usize);
                let first = object + ARRAY_ELEMENTS as usize;
                let end = first + 8 * length as usize;
                match elements {
                    Elements::Plain => {}
                    Elements::References => self.scan_references(first, end, other),
                    Elements::Exceptions => {
                        for element in (first..end).step_by(8) {
                            // SAFETY: an element of the array.
                            pass(unsafe { read(element) }, other);
                        }
                    }
                }
            }
        }
    }

    /// Follows the next elements of a marked array, from an address up to another.
    fn scan_references(&mut self, from: usize, end: usize, other: &mut dyn FnMut(u64)) {
        let stop = end.min(from + 8 * ELEMENTS_AT_ONCE);
        if stop < end {
            self.pending.extend([end, stop + 1]);
        }
        for element in (from..stop).step_by(8) {
            // SAFETY: an element of a complete array.
            self.mark_reference(unsafe { read(element) }, other);
        }
    }
}

/// Passes the word of a field for exceptions to `other`.
fn pass(word: u64, other: &mut dyn FnMut(u64)) {
    if word != 0 {
        other(word);
    }
}

/// Marks the lines of a small object of this size.
#[inline(always)]
fn mark_lines(object: usize, size: usize) {
    if size > MAX_SMALL {
        return;
    }
    // SAFETY: the object is in a chunk; there is no other reference to its bitmaps.
    let lines = unsafe { &mut bitmaps(object).line_marks };
    let first = object % CHUNK / LINE;
    let last = (object % CHUNK + size - 1) / LINE;
    lines[first / 64] |= 1 << (first % 64);
    if last > first {
        bits::assign(lines, first + 1..last + 1, true);
    }
}

/// Records the starts of the objects in fresh lines of the block that contains an address, in the
/// bitmaps of its chunk.
fn walk(bitmaps: &mut Bitmaps, address: usize) {
    let words = line_words(block_of(address));
    for run in bits::runs(&bitmaps.fresh_lines[words.clone()]) {
        let line = |line: usize| base_of(address) + (words.start * 64 + line) * LINE;
        let (mut at, end) = (line(run.start), line(run.end));
        while at < end {
            // SAFETY: fresh lines contain objects one after the other, or after the last one of a
            // span, a zero.
            if unsafe { read(at) } == 0 {
                at = (at + 1).next_multiple_of(LINE);
                continue;
            }
            let place = at % CHUNK / 8;
            bitmaps.starts[place / 64] |= 1 << (place % 64);
            // SAFETY: an object starts here.
            at += unsafe { size_of_object(at) };
        }
    }
}
