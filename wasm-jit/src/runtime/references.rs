//! References to host values.
//!
//! In WebAssembly a host value is a number: its index in a table of the store, tagged so that it
//! differs from small numbers, from references to objects of the heap, and from an `i31`: an
//! `anyref` or `externref` may be any of these. The collector frees an entry when it finds no
//! reference to it (`collect`).

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wasm_jit_codegen::objects::{HOST_BIT, NO_OBJECT};

/// A host value, which WebAssembly can hold and pass along, but not inspect. A clone refers to the
/// same value; references to the same value are equal.
#[derive(Clone)]
pub struct ExternRef(Arc<HostValue<dyn Any + Send + Sync>>);

/// A host value, with what the collector must know about it.
struct HostValue<T: ?Sized> {
    /// The memory that the value owns, in bytes.
    bytes: u64,
    value: T,
}

impl ExternRef {
    /// A reference to a new host value.
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self::with_size(value, 0)
    }

    /// A reference to a value that owns this many bytes of memory. While a program can reach the
    /// value, they count as memory of its store's garbage-collected heap: they make collections
    /// due, and leave less of [`StoreLimits::heap_size`](crate::StoreLimits::heap_size) to objects.
    /// Before it creates such a value for a program, a host function calls
    /// [`StoreContextMut::reserve`](crate::StoreContextMut::reserve).
    pub fn with_size(value: impl Any + Send + Sync, bytes: u64) -> Self {
        Self(Arc::new(HostValue { bytes, value }))
    }

    /// The host value itself.
    pub fn data(&self) -> &(dyn Any + Send + Sync) {
        &self.0.value
    }

    /// The memory that the value owns, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.0.bytes
    }

    /// Whether both refer to the same host value.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for ExternRef {
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl Eq for ExternRef {}

impl Hash for ExternRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

impl fmt::Debug for ExternRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExternRef").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// The bits of a reference around the index. The upper half distinguishes it from numbers that
/// programs compute with, the lowest two from other references.
const MARK: u64 = 0x6b1d_e7f5_0000_0000 | HOST_BIT;
/// The lowest bit of the index.
const INDEX_SHIFT: u32 = NO_OBJECT.count_ones();

/// The lowered reference to an entry.
fn word(place: usize) -> u64 {
    MARK | (place as u64) << INDEX_SHIFT
}

/// The host values that WebAssembly may hold.
#[derive(Debug, Default)]
pub(crate) struct ExternRefs {
    values: Vec<Option<ExternRef>>,
    free: Vec<u32>,
    /// The entry of the value that was lifted last.
    last: usize,
}

impl ExternRefs {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// The number of entries; the collector's marks are numbered by entry.
    pub(crate) fn places(&self) -> usize {
        self.values.len()
    }

    /// The memory that the values own, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let mut counted = HashSet::new();
        let mut is_first = |value: &&ExternRef| {
            // A value may have several entries, each of which refers to it.
            Arc::strong_count(&value.0) == 1 || counted.insert(Arc::as_ptr(&value.0).cast::<()>())
        };
        let sizes = self.values.iter().flatten().filter(|value| value.size() > 0);
        sizes.filter(&mut is_first).map(ExternRef::size).fold(0, u64::saturating_add)
    }

    /// The lowered reference to the value that was lifted last, if it is this one: a function that
    /// returns its argument needs no new entry.
    pub(crate) fn lifted_last(&self, value: &ExternRef) -> Option<u64> {
        let last = self.values.get(self.last)?.as_ref()?;
        last.same(value).then(|| word(self.last))
    }

    /// The lowered reference, with a new entry.
    pub(crate) fn lower(&mut self, value: ExternRef) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            let place = self.values.len() as u32 - 1;
            assert!(place < 1 << (u32::BITS - INDEX_SHIFT), "fewer than 2^30 references");
            place
        });
        self.values[place as usize] = Some(value);
        word(place as usize)
    }

    /// The value of a lowered reference, or `None` for null.
    pub(crate) fn lift(&mut self, raw: u64) -> Option<ExternRef> {
        let place = self.place(raw)?;
        self.last = place;
        self.values[place].clone()
    }

    /// The entry to which a word refers if it is an `externref`.
    pub(crate) fn place(&self, word: u64) -> Option<usize> {
        let index = word ^ MARK;
        let place = (index >> INDEX_SHIFT) as usize;
        (index & NO_OBJECT == 0 && place < self.values.len()).then_some(place)
    }

    /// Frees the entries that are not marked. Returns their values: dropping one runs code of the
    /// embedder, which may panic.
    #[must_use]
    pub(crate) fn sweep(&mut self, marked: &[bool]) -> Vec<ExternRef> {
        let mut unreachable = Vec::new();
        for (place, value) in self.values.iter_mut().enumerate() {
            if !marked[place]
                && let Some(value) = value.take()
            {
                unreachable.push(value);
                self.free.push(place as u32);
            }
        }
        unreachable
    }
}
