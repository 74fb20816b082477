//! References to values of the host.
//!
//! In WebAssembly a value of the host is a number: its index in a table of the store, tagged so
//! that no small number looks like one, and neither does a reference to an object of the heap, nor
//! an `i31`: an `anyref` may be any of these, and so may an `externref`. The collector frees an
//! entry when it finds no reference to it (`collect`).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use wasm_jit_codegen::objects::{HOST_BIT, NO_OBJECT};

/// A value of the host that WebAssembly can hold and pass on, but not inspect. A clone refers to
/// the same value.
#[derive(Clone)]
pub struct ExternRef(Arc<dyn Any + Send + Sync>);

impl ExternRef {
    /// A reference to this value.
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(value))
    }

    /// The value.
    pub fn data(&self) -> &(dyn Any + Send + Sync) {
        &*self.0
    }

    /// Whether both refer to the same value.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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

/// The values of the host that WebAssembly may hold.
#[derive(Debug, Default)]
pub(crate) struct ExternRefs {
    values: Vec<Option<ExternRef>>,
    free: Vec<u32>,
}

impl ExternRefs {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Number of entries; marks of the collector are numbered by entry.
    pub(crate) fn places(&self) -> usize {
        self.values.len()
    }

    /// The lowered reference.
    pub(crate) fn lower(&mut self, value: ExternRef) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            let place = self.values.len() as u32 - 1;
            assert!(place < 1 << (u32::BITS - INDEX_SHIFT), "fewer than 2^30 references");
            place
        });
        self.values[place as usize] = Some(value);
        MARK | u64::from(place) << INDEX_SHIFT
    }

    /// The value of a lowered reference, or `None` for null.
    pub(crate) fn lift(&self, raw: u64) -> Option<ExternRef> {
        let place = self.place(raw)?;
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
