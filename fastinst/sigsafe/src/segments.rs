//! An append-only table that is read without locks: elements never move, and an index once valid
//! stays valid.
//!
//! Elements live in segments of a fixed size, which are allocated when the first of their elements
//! is pushed. A reader computes segment and place from the index.

use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A table of `T` that only grows, up to `SEGMENTS` segments of `SEGMENT` elements each.
///
/// As a static, an empty table takes no memory but eight bytes for each segment.
pub struct Segments<T, const SEGMENT: usize = 4096, const SEGMENTS: usize = 4096> {
    segments: [AtomicPtr<MaybeUninit<T>>; SEGMENTS],
    length: AtomicUsize,
    appending: Mutex<()>,
}

// SAFETY: elements are shared between threads by reference, and moved into the table from any of
// them.
unsafe impl<T: Send + Sync, const SEGMENT: usize, const SEGMENTS: usize> Sync
    for Segments<T, SEGMENT, SEGMENTS>
{
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> Segments<T, SEGMENT, SEGMENTS> {
    /// How many elements a table can hold.
    pub const LIMIT: usize = SEGMENT * SEGMENTS;

    /// An empty table.
    pub const fn new() -> Self {
        Self {
            segments: [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS],
            length: AtomicUsize::new(0),
            appending: Mutex::new(()),
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        // Acquire: pairs with the Release of `push`; below the length, elements are there to be
        // read.
        self.length.load(Ordering::Acquire)
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`. Does not lock or allocate: a signal handler may call it.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len() {
            return None;
        }
        let segment = self.segments[index / SEGMENT].load(Ordering::Relaxed);
        // SAFETY: below the length, the segment is allocated and the element initialized, for ever.
        Some(unsafe { (*segment.add(index % SEGMENT)).assume_init_ref() })
    }

    /// Every element that is there now.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Appends what `make` returns for the new index. Gives the index, or `None` when the table is
    /// full. Locks, and may allocate: not for signal handlers.
    pub fn push_with(&self, make: impl FnOnce(usize) -> T) -> Option<usize> {
        let _appending = self.appending.lock().unwrap_or_else(|e| e.into_inner());
        let index = self.length.load(Ordering::Relaxed);
        if index == Self::LIMIT {
            return None;
        }
        let segment = &self.segments[index / SEGMENT];
        if segment.load(Ordering::Relaxed).is_null() {
            let new = Box::<[T]>::new_uninit_slice(SEGMENT);
            segment.store(Box::leak(new).as_mut_ptr(), Ordering::Relaxed);
        }
        let element = MaybeUninit::new(make(index));
        // SAFETY: inside the segment, and at or above the length nobody reads.
        unsafe { segment.load(Ordering::Relaxed).add(index % SEGMENT).write(element) };
        self.length.store(index + 1, Ordering::Release);
        Some(index)
    }
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> Default for Segments<T, SEGMENT, SEGMENTS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So few to a segment that every path is common.
    type Segments<T> = super::Segments<T, 4, 4096>;

    #[test]
    fn elements_stay_where_they_are_while_the_table_grows() {
        /// Long enough for the threads to meet, whichever is the first to run.
        const EACH: usize = 4_000;
        static TABLE: Segments<String> = Segments::new();
        let begin = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    for _ in 0..EACH {
                        let index = TABLE.push_with(|index| index.to_string()).unwrap();
                        let element = TABLE.get(index).unwrap();
                        assert_eq!(*element, index.to_string());
                        assert!(std::ptr::eq(element, TABLE.get(index).unwrap()));
                    }
                });
            }
        });
        assert_eq!(TABLE.len(), 4 * EACH);
        assert!(TABLE.iter().enumerate().all(|(index, element)| *element == index.to_string()));
        assert!(TABLE.get(4 * EACH).is_none());
    }

    #[test]
    fn an_element_is_appended_only_when_the_one_before_is_complete() {
        use std::sync::atomic::AtomicBool;
        /// How often to give the processor away, for the other thread to append if it could.
        const YIELDS: usize = 1_000;
        static TABLE: Segments<usize> = Segments::new();
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !begun.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                TABLE.push_with(|index| index).unwrap();
                done.store(true, Ordering::Release);
            });
            let make = |index| {
                begun.store(true, Ordering::Release);
                for _ in 0..YIELDS {
                    std::thread::yield_now();
                }
                assert!(!done.load(Ordering::Acquire), "another thread has appended meanwhile");
                index
            };
            TABLE.push_with(make).unwrap();
        });
        assert!(TABLE.iter().copied().eq([0, 1]));
    }

    #[test]
    fn an_element_is_not_there_before_it_is_made() {
        static TABLE: Segments<usize> = Segments::new();
        for expected in 0..10 {
            let make = |index| {
                assert_eq!((index, TABLE.len()), (expected, expected));
                assert!(TABLE.get(index).is_none());
                index
            };
            assert_eq!(TABLE.push_with(make), Some(expected));
            assert_eq!(TABLE.get(expected), Some(&expected));
        }
    }

    #[test]
    fn a_full_table_says_so() {
        static TABLE: Segments<u8> = Segments::new();
        for index in 0..Segments::<u8>::LIMIT {
            assert_eq!(TABLE.push_with(|_| 0), Some(index));
        }
        assert_eq!(TABLE.push_with(|_| 0), None);
    }
}
