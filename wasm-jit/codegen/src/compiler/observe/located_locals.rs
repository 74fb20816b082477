//! Where the locals of a frame are, stored so that many places of a function take little memory: a
//! module may have a function of 100,000 instructions and 1,000 locals, of which an instruction
//! changes one or two.

use std::sync::Arc;

use super::located::ValueAt;

/// The number of locals in a chunk.
const CHUNK: usize = 8;

/// Where parameters and locals are, by their index. Consecutive locals form chunks, which places
/// share where they are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocatedLocals {
    /// All are full, except perhaps the last one.
    chunks: Box<[Arc<[ValueAt]>]>,
}

impl LocatedLocals {
    /// The values, which shares the chunks of those at another place that are equal.
    pub(crate) fn new(values: impl Iterator<Item = ValueAt>, other: Option<&Self>) -> Self {
        let mut values = values.peekable();
        let (mut chunks, mut chunk) = (Vec::new(), Vec::with_capacity(CHUNK));
        while values.peek().is_some() {
            chunk.clear();
            chunk.extend(values.by_ref().take(CHUNK));
            let shared = other.and_then(|other| other.chunks.get(chunks.len()));
            chunks.push(match shared.filter(|shared| ***shared == *chunk) {
                Some(shared) => shared.clone(),
                None => Arc::from(&*chunk),
            });
        }
        Self { chunks: chunks.into() }
    }

    /// The same after a change of each value, whose index is given.
    #[must_use]
    pub(crate) fn map(&self, change: impl Fn(usize, ValueAt) -> ValueAt) -> Self {
        let changed = self.iter().enumerate().map(|(index, value)| change(index, *value));
        Self::new(changed, Some(self))
    }

    /// The number of values.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nothing asks for it")]
    pub fn len(&self) -> usize {
        let before_last = self.chunks.len().saturating_sub(1);
        CHUNK * before_last + self.chunks.last().map_or(0, |last| last.len())
    }

    /// The value of a local.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&ValueAt> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// All values, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &ValueAt> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::super::located::At;
    use super::*;
    use crate::compiler::abi::Ty;

    fn values(count: usize) -> Vec<ValueAt> {
        let value = |index| ValueAt { ty: Ty::I64, at: At::Constant(index), writable: false };
        (0..count as u64).map(value).collect()
    }

    #[test]
    fn values_are_found_by_their_index() {
        for count in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK] {
            let values = values(count);
            let locals = LocatedLocals::new(values.iter().copied(), None);
            assert_eq!(locals.len(), count);
            assert!((0..count + CHUNK).all(|index| locals.get(index) == values.get(index)), "{count}");
            assert!(locals.iter().eq(&values), "{count}");
        }
    }

    #[test]
    fn only_chunks_that_differ_take_memory() {
        let first = LocatedLocals::new(values(3 * CHUNK + 2).into_iter(), None);
        let changed = first.map(|index, value| match index {
            CHUNK => ValueAt { writable: true, ..value },
            _ => value,
        });
        let is_shared = |at: usize| Arc::ptr_eq(&first.chunks[at], &changed.chunks[at]);
        assert_eq!([0, 1, 2, 3].map(is_shared), [true, false, true, true]);
        assert!(changed.get(CHUNK).is_some_and(|value| value.writable));
        // Of another number of values, too.
        let longer = LocatedLocals::new(values(4 * CHUNK).into_iter(), Some(&first));
        let is_shared = |at: usize| Arc::ptr_eq(&first.chunks[at], &longer.chunks[at]);
        assert_eq!([0, 1, 2, 3].map(is_shared), [true, true, true, false]);
        assert_eq!(longer.len(), 4 * CHUNK);
    }
}
