//! Blocks of memory for threads: mapped when a thread first needs one, and reused when the thread
//! has ended.
//!
//! Runs in probe functions and signal handlers, at any time in any thread: atomics, and one system
//! call for a new block. No allocator, because the program's allocator may be observed.
//!
//! Blocks are pushed to a list and never removed from it, so that the list is read without locks,
//! and references to blocks stay valid.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::mapping::map_zeroed;

/// A block of a [`Blocks`] list.
///
/// # Safety
/// 1. A block whose bytes are all zero is valid, and is in its initial state.
/// 2. `owner` and `next` return the same fields of the block at each call, and only [`Blocks`]
///    changes `next`.
/// 3. A page is aligned enough for it.
pub unsafe trait Block: Sync + Sized + 'static {
    /// The kernel id of the thread that owns the block; 0 if it is free.
    fn owner(&self) -> &AtomicU32;

    /// The next block of the list.
    fn next(&self) -> &AtomicPtr<Self>;
}

/// A list of blocks, each of which belongs to a thread or is free.
#[derive(Debug)]
pub struct Blocks<B> {
    head: AtomicPtr<B>,
}

impl<B: Block> Blocks<B> {
    /// A list without blocks.
    pub const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Acquires a block for the thread with this kernel id: a free block as its last owner has left
    /// it, or a new one in its initial state. `None` if no memory is available.
    ///
    /// The thread, or another thread once it has ended, frees the block by a store of 0 to its
    /// owner, with Release.
    ///
    /// A vfork child must not call this: it shares the list with its parent, and its id will soon
    /// be that of a thread that has ended.
    pub fn acquire(&self, owner: u32) -> Option<&'static B> {
        // Acquire: pairs with the Release of the last owner, which has finished with the block.
        let is_acquired = |block: &&B| {
            block.owner().compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        self.iter().find(is_acquired).or_else(|| self.map(owner))
    }

    fn map(&self, owner: u32) -> Option<&'static B> {
        let memory = map_zeroed(size_of::<B>())?;
        let pointer = memory.cast::<B>();
        // SAFETY: mapped for reading and writing, never unmapped; zeroed, so it is valid
        // (obligation 1 of `Block`); page-aligned (obligation 3).
        let block = unsafe { &*pointer };
        block.owner().store(owner, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            block.next().store(head, Ordering::Relaxed);
            // Release: pairs with the Acquire of `iter`.
            match self.head.compare_exchange_weak(head, pointer, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(block),
                Err(now) => head = now,
            }
        }
    }

    /// All blocks, free ones included, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &'static B> + use<B> {
        // SAFETY: null or a block, which is never unmapped.
        let at = |pointer: *mut B| unsafe { pointer.as_ref() };
        std::iter::successors(at(self.head.load(Ordering::Acquire)), move |block| {
            at(block.next().load(Ordering::Acquire))
        })
    }

    /// Whether this is the only block in the list.
    pub fn is_only(&self, block: &B) -> bool {
        // New blocks are inserted at the head of the list.
        ptr::eq(self.head.load(Ordering::Relaxed), block) && block.next().load(Ordering::Relaxed).is_null()
    }
}

impl<B: Block> Default for Blocks<B> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    use super::*;

    struct Counter {
        owner: AtomicU32,
        next: AtomicPtr<Counter>,
        count: AtomicU64,
    }

    // SAFETY: 1. atomics; 2. two fields; 3. 8 bytes.
    unsafe impl Block for Counter {
        fn owner(&self) -> &AtomicU32 {
            &self.owner
        }

        fn next(&self) -> &AtomicPtr<Self> {
            &self.next
        }
    }

    #[test]
    fn a_free_block_is_reused_and_a_new_one_is_zeroed() {
        let blocks: Blocks<Counter> = Blocks::new();
        let first = blocks.acquire(1).expect("memory");
        assert_eq!((first.owner.load(Ordering::Relaxed), first.count.load(Ordering::Relaxed)), (1, 0));
        assert!(blocks.is_only(first));
        first.count.store(5, Ordering::Relaxed);
        let second = blocks.acquire(2).expect("memory");
        assert!(!ptr::eq(first, second) && !blocks.is_only(first) && !blocks.is_only(second));
        assert_eq!(second.count.load(Ordering::Relaxed), 0);
        first.owner.store(0, Ordering::Release);
        let third = blocks.acquire(3).expect("memory");
        assert!(ptr::eq(first, third));
        assert_eq!(third.count.load(Ordering::Relaxed), 5);
        assert_eq!(
            blocks.iter().map(|block| block.owner.load(Ordering::Relaxed)).collect::<Vec<_>>(),
            [2, 3]
        );
    }

    /// Threads that acquire and free blocks at the same time never share one: increments that are
    /// not atomic would be lost.
    #[test]
    fn threads_that_acquire_at_the_same_time_have_different_blocks() {
        const THREADS: u32 = 8;
        const ROUNDS: u64 = 2000;
        let blocks: Blocks<Counter> = Blocks::new();
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for owner in 1..=THREADS {
                let (blocks, barrier) = (&blocks, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for _ in 0..ROUNDS {
                        let block = blocks.acquire(owner).expect("memory");
                        assert_eq!(block.owner.load(Ordering::Relaxed), owner);
                        let count = block.count.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        block.count.store(count + 1, Ordering::Relaxed);
                        block.owner.store(0, Ordering::Release);
                    }
                });
            }
        });
        let all: Vec<&Counter> = blocks.iter().collect();
        assert!(all.len() <= THREADS as usize, "{}", all.len());
        assert_eq!(all.iter().map(|block| ptr::from_ref(*block)).collect::<BTreeSet<_>>().len(), all.len());
        let total: u64 = all.iter().map(|block| block.count.load(Ordering::Relaxed)).sum();
        assert_eq!(total, u64::from(THREADS) * ROUNDS);
    }
}
