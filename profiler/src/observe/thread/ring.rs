//! A thread's samples on their way to the service thread.
//!
//! The writer goes round and round, and so touches every slot, however soon the samples are read. A
//! thread therefore begins with a few slots, and gets many when these were full once: most of a
//! program's thousand threads never need more than the few. A thread that has ended needs none, and
//! its slots have no memory until another thread has its block.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Sample;
use crate::observe::waking;

/// The number of slots in which a thread begins. A power of two.
const FEW: usize = 512;

/// The number of further slots, which are used instead when those are full: more samples than a
/// thread should make between two ticks of the service thread. A power of two.
const MANY: usize = 8192;

/// The service thread is woken when a ring has this many samples.
const HALF: usize = MANY / 2;

/// The number of slots after the last written one that get their memory in advance: those of
/// several windows.
const AHEAD: usize = 256;

/// While samples are read, their slots are returned to the thread in groups of this size.
const BETWEEN: usize = 64;

const PAGE: usize = 4096;

/// A ring with one writer, the thread, and one reader, the service thread. All zero is an empty
/// ring, which a thread [begins](Ring::begin).
pub(super) struct Ring {
    samples: [UnsafeCell<Sample>; FEW + MANY],
    /// Written by the thread.
    written: AtomicUsize,
    /// Written by the service thread.
    read: AtomicUsize,
    /// The number of slots that are used, minus 1, and the first of them. Written by the thread.
    mask: AtomicUsize,
    first: AtomicUsize,
    /// The number of samples that were written before these slots were used.
    begun: AtomicUsize,
    /// The slots of samples before this one have memory. Used by the service thread.
    populated: AtomicUsize,
}

impl Ring {
    /// Prepares the ring for its writer. Called by the owning thread.
    pub(super) fn begin(&self) {
        if self.mask.load(Ordering::Relaxed) == 0 {
            self.mask.store(FEW - 1, Ordering::Relaxed);
        }
    }

    /// Appends a sample, unless the ring is full. Called by the owning thread only.
    #[inline(always)]
    pub(super) fn push(&self, sample: Sample) -> bool {
        let at = self.written.load(Ordering::Relaxed);
        // Acquire: pairs with the service thread's Release; the slot was read before it is written
        // again.
        let filled = at.wrapping_sub(self.read.load(Ordering::Acquire));
        if filled > self.mask.load(Ordering::Relaxed) && !self.grow(at) {
            return false;
        }
        if filled == HALF {
            waking::notify();
        }
        let slot = self.first.load(Ordering::Relaxed) + (at & self.mask.load(Ordering::Relaxed));
        // SAFETY: `first` and `mask` are those of one of the two parts of the slots. The service
        // thread does not read this slot before `written` is advanced.
        unsafe { *self.samples.get_unchecked(slot).get() = sample };
        // Release: pairs with the Acquire in `drain`.
        self.written.store(at.wrapping_add(1), Ordering::Release);
        true
    }

    /// Uses many slots for the samples from this one on. Returns false if it uses them already, and
    /// they are full.
    #[cold]
    fn grow(&self, at: usize) -> bool {
        if self.first.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.begun.store(at, Ordering::Relaxed);
        self.mask.store(MANY - 1, Ordering::Relaxed);
        // Release: pairs with the Acquire in `slot`.
        self.first.store(FEW, Ordering::Release);
        true
    }

    /// The slot of a sample that was written, or is written next. For the service thread.
    fn slot(&self, at: usize) -> usize {
        // Acquire: `begun` is that of these slots.
        match self.first.load(Ordering::Acquire) {
            FEW if at.wrapping_sub(self.begun.load(Ordering::Relaxed)) <= usize::MAX / 2 => FEW + at % MANY,
            _ => at % FEW,
        }
    }

    /// Calls `take` with every sample, and provides memory for the next ones. Called by the service
    /// thread.
    pub(super) fn drain(&self, take: &mut impl FnMut(Sample)) {
        let (from, to) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        for number in 0..to.wrapping_sub(from) {
            let at = from.wrapping_add(number);
            // SAFETY: between `read` and `written` the slots belong to the service thread.
            take(unsafe { *self.samples[self.slot(at)].get() });
            // A probe may wait for space.
            if number % BETWEEN == 0 {
                self.read.store(at.wrapping_add(1), Ordering::Release);
            }
        }
        self.read.store(to, Ordering::Release);
        if from != to {
            self.populate(to);
        }
    }

    /// The number of samples so far.
    #[cfg(test)]
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Allocates the memory of the next slots: a probe that is the first to write to a page waits
    /// for it, a few microseconds, and tens of microseconds in a virtual machine. That counts as
    /// time of probes, which programs that wait for a point in time make up for: the calls of a
    /// window would be too many.
    fn populate(&self, written: usize) {
        let size = if self.first.load(Ordering::Acquire) == 0 { FEW } else { MANY };
        let begun = self.begun.load(Ordering::Relaxed);
        let from = self.populated.load(Ordering::Relaxed).max(begun);
        let until = written.saturating_add(AHEAD).min(begun.saturating_add(size));
        if until <= from {
            return;
        }
        // Up to the last slot; those from the first on are the next ones.
        let slot = self.slot(from);
        let number = (until - from).min(size - from % size);
        let page = |slot: usize| (self.samples.as_ptr().addr() + slot * size_of::<Sample>()) & !(PAGE - 1);
        let (begin, end) = (page(slot), page(slot + number - 1) + PAGE);
        let pages = ptr::with_exposed_provenance_mut(begin);
        // SAFETY: pages of this ring, and of its neighbours in the block, whose contents do not
        // change. Before Linux 5.14 this fails, and has no effect.
        unsafe { libc::madvise(pages, end - begin, libc::MADV_POPULATE_WRITE) };
        self.populated.store(from + number, Ordering::Relaxed);
    }

    /// Whether [`Ring::give_back`] may have something to give back. For the service thread.
    pub(super) fn has_memory(&self) -> bool {
        self.populated.load(Ordering::Relaxed) != self.begun.load(Ordering::Relaxed)
    }

    /// Returns the memory of the slots to the system, unless there are samples. For the service
    /// thread, while no thread writes.
    pub(super) fn give_back(&self) {
        let written = self.written.load(Ordering::Relaxed);
        if self.read.load(Ordering::Relaxed) != written {
            return;
        }
        let start = self.samples.as_ptr().addr();
        let begin = start.next_multiple_of(PAGE);
        let end = (start + size_of_val(&self.samples)) & !(PAGE - 1);
        let pages = ptr::with_exposed_provenance_mut(begin);
        // SAFETY: whole pages of slots without samples, whose bytes may become zero.
        unsafe { libc::madvise(pages, end - begin, libc::MADV_DONTNEED) };
        self.first.store(0, Ordering::Relaxed);
        self.mask.store(FEW - 1, Ordering::Relaxed);
        self.begun.store(written, Ordering::Relaxed);
        self.populated.store(written, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new ring, in its own pages.
    fn ring() -> &'static Ring {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which stays; all zero is an empty ring.
        let ring = unsafe {
            let memory = libc::mmap(ptr::null_mut(), size_of::<Ring>(), protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<Ring>()
        };
        ring.begin();
        ring
    }

    /// The number of pages with memory in the ring.
    fn pages(ring: &Ring) -> usize {
        let start = ring.samples.as_ptr().addr().next_multiple_of(PAGE);
        let size = size_of_val(&ring.samples) - PAGE;
        let mut pages = vec![0_u8; size.div_ceil(PAGE)];
        // SAFETY: `pages` has a byte for each page.
        let result =
            unsafe { libc::mincore(ptr::with_exposed_provenance_mut(start), size, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    /// Passes samples through the ring, `together` at a time; returns the number of the next one.
    fn pass(ring: &Ring, from: u64, number: u64, together: u64) -> u64 {
        let mut expected = from;
        for next in from..from + number {
            assert!(ring.push(Sample { ticks: next, ..Sample::default() }));
            if (next + 1 - from).is_multiple_of(together) {
                ring.drain(&mut |sample| {
                    assert_eq!(sample.ticks, expected, "lost or out of order");
                    expected += 1;
                });
            }
        }
        ring.drain(&mut |sample| {
            assert_eq!(sample.ticks, expected, "lost or out of order");
            expected += 1;
        });
        assert_eq!(expected, from + number);
        expected
    }

    #[test]
    fn a_ring_that_is_read_soon_needs_little_memory() {
        const SIZE: usize = FEW * size_of::<Sample>() / PAGE + 1;
        let ring = ring();
        let next = pass(ring, 0, 5 * MANY as u64, FEW as u64);
        assert!(pages(ring) <= SIZE, "{} pages", pages(ring));
        // In other places of the few slots, and once all of the many.
        let next = pass(ring, next, 3 * MANY as u64 + 100, MANY as u64);
        let next = pass(ring, next, 3 * MANY as u64, 700);
        assert!(pages(ring) > MANY * size_of::<Sample>() / PAGE / 2);
        assert!(ring.has_memory());
        ring.give_back();
        assert_eq!(pages(ring), 0);
        assert!(!ring.has_memory());
        let next = pass(ring, next, MANY as u64, FEW as u64 / 2);
        assert!((1..=SIZE).contains(&pages(ring)), "{} pages", pages(ring));
        pass(ring, next, MANY as u64, MANY as u64);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_keeps_its_samples() {
        let ring = ring();
        let number =
            (0..2 * MANY as u64).take_while(|ticks| ring.push(Sample { ticks: *ticks, ..Sample::default() }));
        assert_eq!(number.count(), MANY);
        ring.give_back();
        let mut read = 0;
        ring.drain(&mut |sample| {
            assert_eq!(sample.ticks, read);
            read += 1;
        });
        assert_eq!(read, MANY as u64);
    }
}
