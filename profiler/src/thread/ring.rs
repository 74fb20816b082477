//! A thread's samples on their way to the service thread.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Sample;
use crate::waking;

/// The number of samples in a ring: more than a thread should make between two ticks of the service
/// thread. Unused pages are never allocated.
const RING: usize = 8192;

/// The service thread is woken when a ring has this many samples.
const HALF: usize = RING / 2;

/// The number of slots after the last written one that get their memory in advance: those of
/// several windows.
const AHEAD: usize = 256;

/// While samples are read, their slots are returned to the thread in groups of this size.
const BETWEEN: usize = 64;

const PAGE: usize = 4096;

/// A ring with one writer, the thread, and one reader, the service thread. All zero is an empty
/// ring.
pub(super) struct Ring {
    samples: [UnsafeCell<Sample>; RING],
    /// Written by the thread.
    written: AtomicUsize,
    /// Written by the service thread.
    read: AtomicUsize,
    /// The slots before this one have memory. Used by the service thread.
    populated: AtomicUsize,
}

impl Ring {
    /// Appends a sample, unless the ring is full. Called by the owning thread only.
    #[inline(always)]
    pub(super) fn push(&self, sample: Sample) -> bool {
        let at = self.written.load(Ordering::Relaxed);
        // Acquire: pairs with the service thread's Release; the slot was read before it is written
        // again.
        match at.wrapping_sub(self.read.load(Ordering::Acquire)) {
            RING => return false,
            HALF => waking::notify(),
            _ => {}
        }
        // SAFETY: the service thread does not read this slot before `written` is advanced.
        unsafe { *self.samples[at % RING].get() = sample };
        // Release: pairs with the Acquire in `drain`.
        self.written.store(at.wrapping_add(1), Ordering::Release);
        true
    }

    /// Calls `take` with every sample, and provides memory for the next ones. Called by the service
    /// thread.
    pub(super) fn drain(&self, take: &mut impl FnMut(Sample)) {
        let (from, to) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Acquire));
        for number in 0..to.wrapping_sub(from) {
            let at = from.wrapping_add(number);
            // SAFETY: between `read` and `written` the slots belong to the service thread.
            take(unsafe { *self.samples[at % RING].get() });
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
        let from = self.populated.load(Ordering::Relaxed);
        let until = written.saturating_add(AHEAD).min(RING);
        if until <= from {
            return;
        }
        let page = |slot: usize| (self.samples.as_ptr().addr() + slot * size_of::<Sample>()) & !(PAGE - 1);
        let (begin, end) = (page(from), page(until - 1) + PAGE);
        let pages = ptr::with_exposed_provenance_mut(begin);
        // SAFETY: pages of this ring, and of its neighbours in the block, whose contents do not
        // change. Before Linux 5.14 this fails, and has no effect.
        unsafe { libc::madvise(pages, end - begin, libc::MADV_POPULATE_WRITE) };
        self.populated.store(until, Ordering::Relaxed);
    }
}
