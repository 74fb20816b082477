//! An append-only table that is read without locks: elements never move, and a valid index stays
//! valid.
//!
//! Elements are stored in segments of a fixed size, which are allocated when the first of their
//! elements is pushed. A reader computes the segment and the position in it from the index.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A table of `T` that only grows, up to `SEGMENTS` segments of `SEGMENT` elements each.
///
/// An empty table in a static uses no memory except eight bytes for each segment.
pub struct Segments<T, const SEGMENT: usize = 4096, const SEGMENTS: usize = 4096> {
    segments: [AtomicPtr<MaybeUninit<T>>; SEGMENTS],
    length: AtomicUsize,
    appending: Mutex<()>,
}

// SAFETY: the elements are sent with the table.
unsafe impl<T: Send, const SEGMENT: usize, const SEGMENTS: usize> Send for Segments<T, SEGMENT, SEGMENTS> {}

// SAFETY: elements are shared between threads by reference, and moved into the table from any of
// them.
unsafe impl<T: Send + Sync, const SEGMENT: usize, const SEGMENTS: usize> Sync
    for Segments<T, SEGMENT, SEGMENTS>
{
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> Segments<T, SEGMENT, SEGMENTS> {
    /// The maximum number of elements.
    pub const LIMIT: usize = SEGMENT * SEGMENTS;

    /// Creates an empty table.
    pub const fn new() -> Self {
        Self {
            segments: [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS],
            length: AtomicUsize::new(0),
            appending: Mutex::new(()),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        // Acquire: pairs with the Release of `push_with`; below the length, elements can be read.
        self.length.load(Ordering::Acquire)
    }

    /// Whether the table is empty.
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
        // SAFETY: below the length, the segment is allocated and the element initialized, for as
        // long as the table exists.
        Some(unsafe { (*segment.add(index % SEGMENT)).assume_init_ref() })
    }

    /// Iterates over the elements that are in the table now.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Appends the element that `make` returns for the new index. Returns the index, or `None` if
    /// the table is full. Takes a lock and may allocate: must not be called from signal handlers.
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
        // SAFETY: inside the segment, and at or above the length, where no thread reads.
        unsafe { segment.load(Ordering::Relaxed).add(index % SEGMENT).write(element) };
        self.length.store(index + 1, Ordering::Release);
        Some(index)
    }
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> Drop for Segments<T, SEGMENT, SEGMENTS> {
    fn drop(&mut self) {
        let length = *self.length.get_mut();
        for (number, segment) in self.segments.iter_mut().enumerate() {
            let start = *segment.get_mut();
            if start.is_null() {
                return;
            }
            let elements = std::ptr::slice_from_raw_parts_mut(start, SEGMENT);
            // SAFETY: leaked by `push_with`, with this length; no reader is left.
            let mut elements = unsafe { Box::from_raw(elements) };
            for element in elements.iter_mut().take(length.saturating_sub(number * SEGMENT)) {
                // SAFETY: below the length, elements are initialized; each is dropped once.
                unsafe { element.assume_init_drop() };
            }
        }
    }
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> fmt::Debug for Segments<T, SEGMENT, SEGMENTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("length", &self.len()).finish_non_exhaustive()
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

    /// With segments so small that every path is common.
    type Segments<T> = super::Segments<T, 4, 4096>;

    #[test]
    fn elements_stay_in_place_while_the_table_grows() {
        /// Enough for the threads to run concurrently, whichever starts first.
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
    fn an_element_is_appended_only_when_the_previous_one_is_complete() {
        use std::sync::atomic::AtomicBool;
        /// How often the processor is yielded, so that the other thread appends if it can.
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
    fn an_element_is_not_visible_before_it_is_made() {
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
    fn a_full_table_refuses_elements() {
        static TABLE: Segments<u8> = Segments::new();
        for index in 0..Segments::<u8>::LIMIT {
            assert_eq!(TABLE.push_with(|_| 0), Some(index));
        }
        assert_eq!(TABLE.push_with(|_| 0), None);
    }

    #[test]
    fn every_element_is_dropped_once_with_its_table() {
        let element = std::sync::Arc::new(());
        for length in [0, 1, 3, 4, 5, 8, 9] {
            let table = Segments::new();
            for _ in 0..length {
                table.push_with(|_| element.clone()).unwrap();
            }
            assert_eq!(std::sync::Arc::strong_count(&element), 1 + length);
            drop(table);
            assert_eq!(std::sync::Arc::strong_count(&element), 1);
        }
    }
}
