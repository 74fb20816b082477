//! Objects that probe functions and signal handlers allocate.
//!
//! Runs at any time in any thread: atomics, and one system call for each segment. No allocator,
//! because the program's allocator may be observed.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::mapping::map_zeroed;

/// An object whose initial state is memory of zeros.
///
/// # Safety
/// An object whose bytes are all zero is valid, and a page is aligned enough for it.
pub unsafe trait Zeroed: Sync + Sized + 'static {}

/// Objects that are never freed, in up to `SEGMENTS` segments of `SEGMENT` objects each.
pub struct Pool<T, const SEGMENT: usize = 256, const SEGMENTS: usize = 65_536> {
    segments: [AtomicPtr<T>; SEGMENTS],
    /// The number of objects that were requested.
    requested: AtomicUsize,
}

impl<T: Zeroed, const SEGMENT: usize, const SEGMENTS: usize> Pool<T, SEGMENT, SEGMENTS> {
    /// An empty pool: in a static, it uses memory only for the pages of `segments` that it needs.
    pub const fn new() -> Self {
        Self {
            segments: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS],
            requested: AtomicUsize::new(0),
        }
    }

    /// A new object, in its initial state. `None` if no memory is available, or the pool is full.
    pub fn take(&self) -> Option<&'static T> {
        let number = self.requested.fetch_add(1, Ordering::Relaxed);
        let segment = self.segments.get(number / SEGMENT)?;
        // Acquire: pairs with the Release in `map`, for the mapping of another thread.
        let mut start = segment.load(Ordering::Acquire);
        if start.is_null() {
            start = Self::map(segment)?;
        }
        // SAFETY: inside a segment, which is mapped, zeroed and never unmapped; no other caller has
        // got this number. Zeros are valid (`Zeroed`).
        Some(unsafe { &*start.add(number % SEGMENT) })
    }

    /// Maps a segment, unless another thread does it at the same time.
    #[cold]
    fn map(segment: &AtomicPtr<T>) -> Option<*mut T> {
        let length = SEGMENT * size_of::<T>();
        let memory = map_zeroed(length)?;
        let new = memory.cast::<T>();
        match segment.compare_exchange(ptr::null_mut(), new, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Some(new),
            Err(other) => {
                // SAFETY: mapped above, and not published.
                unsafe { libc::munmap(memory, length) };
                Some(other)
            }
        }
    }

    /// The memory of the objects so far, in bytes.
    pub fn memory(&self) -> usize {
        self.requested.load(Ordering::Relaxed).min(SEGMENT * SEGMENTS) * size_of::<T>()
    }
}

impl<T: Zeroed, const SEGMENT: usize, const SEGMENTS: usize> Default for Pool<T, SEGMENT, SEGMENTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const SEGMENT: usize, const SEGMENTS: usize> fmt::Debug for Pool<T, SEGMENT, SEGMENTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("requested", &self.requested).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    use super::*;

    struct Counter(AtomicU64);

    // SAFETY: an atomic of 8 bytes.
    unsafe impl Zeroed for Counter {}

    #[test]
    fn every_thread_gets_objects_of_its_own_until_the_pool_is_full() {
        const THREADS: usize = 4;
        static POOL: Pool<Counter, 8, 200> = Pool::new();
        let begin = Barrier::new(THREADS);
        let take = || {
            begin.wait();
            let mut taken = Vec::new();
            while let Some(counter) = POOL.take() {
                assert_eq!(counter.0.fetch_add(1, Ordering::Relaxed), 0);
                taken.push(ptr::from_ref(counter).addr());
            }
            taken
        };
        let addresses: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(addresses.len(), 1600);
        assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 1600);
        assert_eq!(POOL.memory(), 1600 * 8);
    }
}
