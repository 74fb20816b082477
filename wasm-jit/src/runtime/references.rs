//! References to values of the host.
//!
//! To WebAssembly an `externref` is a number: the place of the host's value in the store's table of
//! them, marked so that no small number looks like one. A place is free again when the collector
//! finds no reference to it (`collect`).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A value of the host that WebAssembly can hold and pass on, but not look into. A clone is the
/// same value.
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

/// The upper half of an `externref`, which makes it unlike any number that programs compute with.
const MARK: u64 = 0x6b1d_e7f5_0000_0000;

/// The host's values that WebAssembly may hold.
#[derive(Debug, Default)]
pub(crate) struct ExternRefs {
    values: Vec<Option<ExternRef>>,
    free: Vec<u32>,
}

impl ExternRefs {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// How many places there are; marks of the collector are numbered by place.
    pub(crate) fn places(&self) -> usize {
        self.values.len()
    }

    /// What WebAssembly sees.
    pub(crate) fn lower(&mut self, value: ExternRef) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            u32::try_from(self.values.len() - 1).expect("fewer references than 32 bits can count")
        });
        self.values[place as usize] = Some(value);
        MARK | u64::from(place)
    }

    /// The value that WebAssembly sees as `raw`, or `None` for null.
    pub(crate) fn lift(&self, raw: u64) -> Option<ExternRef> {
        let place = self.place(raw)?;
        self.values[place].clone()
    }

    /// The place that a word refers to if it is an `externref`.
    pub(crate) fn place(&self, word: u64) -> Option<usize> {
        let place = (word ^ MARK) as usize;
        (place < self.values.len()).then_some(place)
    }

    /// Frees the places that are not marked. Gives the values that were there: to drop one runs
    /// code of the embedder's, which may panic.
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
