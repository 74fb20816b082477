//! A mutator: allocates as compiled code does.

use std::ptr;

use wasm_jit_codegen::objects::{ARRAY_ELEMENTS, ARRAY_LENGTH, array_size};

use super::super::chunk::{BLOCK, LINE};
use super::super::{Heap, MAX_SMALL, bits};
use crate::object_type::{Elements, ObjectLayout, ObjectType};
use crate::vmctx::VmKind;

/// The word that overwrites the memory of dead objects: as a header, an address at which nothing is
/// mapped.
const POISON: u64 = 0x0000_7fff_dead_dea8;

/// A type that lives as long as the tests.
pub(super) type Type = &'static ObjectType;

fn new_type(layout: ObjectLayout) -> Type {
    Box::leak(Box::new(ObjectType::new(0, VmKind::Struct, layout, None)))
}

/// A struct of this many words, with the header, with references in these ones.
pub(super) fn struct_type(words: u32, references: impl IntoIterator<Item = u32>) -> Type {
    let references = references.into_iter().map(|word| 8 * word).collect();
    new_type(ObjectLayout::Struct { size: 8 * words, references, exceptions: [].into() })
}

/// A struct of a word, a reference and an exception.
pub(super) fn struct_type_with_exception() -> Type {
    new_type(ObjectLayout::Struct { size: 32, references: [16].into(), exceptions: [24].into() })
}

/// An array of elements of 8 bytes.
pub(super) fn array_type(elements: Elements) -> Type {
    new_type(ObjectLayout::Array { element_log2: 3, elements })
}

/// An array of numbers of 2^`element_log2` bytes.
pub(super) fn plain_array_type(element_log2: u8) -> Type {
    new_type(ObjectLayout::Array { element_log2, elements: Elements::Plain })
}

/// The word at an address of the heap.
pub(super) fn load(address: usize) -> u64 {
    // SAFETY: the tests use addresses of objects only.
    unsafe { ptr::with_exposed_provenance::<u64>(address).read() }
}

/// Writes the word at an address of the heap.
pub(super) fn store(address: usize, word: u64) {
    // SAFETY: the tests use addresses of objects, and of their own spans.
    unsafe { ptr::with_exposed_provenance_mut::<u64>(address).write(word) }
}

/// A heap, and the registers of the code that uses it.
pub(super) struct Mutator {
    pub(super) heap: Heap,
    pub(super) next: usize,
    pub(super) end: usize,
    pub(super) limit: u64,
}

impl Mutator {
    pub(super) fn new() -> Self {
        Self { heap: Heap::new(), next: 0, end: 0, limit: u64::MAX }
    }

    /// Memory for a small object: `next` is not incremented.
    pub(super) fn reserve(&mut self, size: usize) -> Option<usize> {
        if self.next + size > self.end {
            let span = self.heap.refill(self.next, size, self.limit);
            (self.next, self.end) = span.map_or((0, 0), |span| (span.start, span.end));
            span?;
        }
        assert!(self.next.is_multiple_of(8) && self.next + size <= self.end);
        Some(self.next)
    }

    /// An object of these words after the header, without a collection; `None` at the limit.
    pub(super) fn try_object(&mut self, ty: Type, words: &[u64]) -> Option<usize> {
        let size = 8 + 8 * words.len();
        let object = if size > MAX_SMALL {
            let object = self.heap.allocate_large(size, self.limit)?.as_ptr().expose_provenance();
            assert!((0..=words.len()).all(|word| load(object + 8 * word) == 0), "not zeroed");
            object
        } else {
            self.reserve(size)?
        };
        store(object, (&raw const ty.vm).expose_provenance() as u64);
        for (index, word) in words.iter().enumerate() {
            store(object + 8 + 8 * index, *word);
        }
        if size <= MAX_SMALL {
            self.next += size;
        }
        Some(object)
    }

    /// As [`Self::try_object`], without a limit.
    pub(super) fn object(&mut self, ty: Type, words: &[u64]) -> usize {
        self.try_object(ty, words).expect("there is no limit")
    }

    /// An array of elements of 8 bytes.
    pub(super) fn array(&mut self, ty: Type, elements: &[u64]) -> usize {
        let length = elements.len() as u64;
        self.object(ty, &[&[length], elements].concat())
    }

    /// An array of numbers whose bits are all set.
    pub(super) fn plain_array(&mut self, ty: Type, element_log2: u8, length: u32) -> usize {
        let mut words = vec![u64::MAX; array_size(element_log2, length) as usize / 8 - 1];
        words[0] = u64::from(length);
        self.object(ty, &words)
    }

    /// Collects; asserts that each root is an object. Returns what was passed to `other`.
    pub(super) fn collect(&mut self, roots: &[usize]) -> Vec<u64> {
        let mut other = Vec::new();
        self.begin();
        for root in roots {
            assert!(self.heap.mark_ambiguous(*root as u64), "{root:x}");
        }
        self.heap.trace(&mut |word| other.push(word));
        self.finish();
        other
    }

    /// Begins a collection.
    pub(super) fn begin(&mut self) {
        self.heap.begin(self.next);
        (self.next, self.end) = (0, 0);
    }

    /// Ends a collection, and overwrites all lines that are available.
    pub(super) fn finish(&mut self) {
        self.heap.sweep();
        for chunk in self.heap.chunks.iter_mut().filter(|chunk| !chunk.is_dedicated()) {
            let base = chunk.base;
            for line in bits::runs(&chunk.bitmaps().free_lines).flatten() {
                (0..LINE / 8).for_each(|word| store(base + line * LINE + 8 * word, POISON));
            }
            for block in (0..32).filter(|block| chunk.free & 1 << block != 0) {
                (0..BLOCK / 8).for_each(|word| store(chunk.address(block) + 8 * word, POISON));
            }
        }
    }

    /// The number of objects that can be found. Meaningful directly after a collection.
    pub(super) fn objects(&mut self) -> usize {
        let chunks = self.heap.chunks.iter_mut();
        chunks.flat_map(|chunk| chunk.bitmaps().starts).map(|word| word.count_ones() as usize).sum()
    }

    /// Asserts the invariants between collections, exactly if a value can be derived in another
    /// way.
    pub(super) fn check(&mut self) {
        let (mut bytes, mut free) = (0, 0);
        for chunk in &mut self.heap.chunks {
            let bitmaps = chunk.bitmaps();
            assert!(bitmaps.marks.iter().chain(&bitmaps.line_marks).all(|word| *word == 0));
            let lines = bitmaps.free_lines.iter().zip(&bitmaps.fresh_lines);
            assert!(lines.clone().all(|(free, fresh)| free & fresh == 0));
            free += chunk.free.count_ones() as usize;
            bytes += if chunk.is_dedicated() { chunk.dedicated_size() as u64 } else { chunk.present_bytes() };
        }
        assert_eq!((self.heap.free_blocks, self.heap.bytes()), (free, bytes));
        assert!(self.heap.chunks.is_sorted_by(|one, other| one.base < other.base));
    }
}

/// The address of the word of an array that contains its length, and of its first element.
pub(super) fn array_parts(array: usize) -> (usize, usize) {
    (array + ARRAY_LENGTH as usize, array + ARRAY_ELEMENTS as usize)
}
