//! The index of an object: records which bodies have been executed. Arrivals look it up and mark
//! it.
//!
//! A *body* is a range of code given by the unwind table or a symbol: a function, or a part of one.
//! Each *interval*, from the start of one body to the start of the next, has a word with its state:
//!
//! ```text
//! 0                no call has arrived from there
//! QUEUED           probes are wanted for its sites; its block of 64 intervals is marked in `marks`
//! DONE             its sites are probes, or cannot be
//! the low bits     entries of the function that starts there, counted until DONE
//! ```
//!
//! Arrivals read and mark it with atomics only, on any thread and in signal handlers. The service
//! thread takes the marked blocks. An index is not changed in any other way, and never freed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const QUEUED: u32 = 1 << 31;
const DONE: u32 = 1 << 30;
const COUNT: u32 = DONE - 1;

/// Number of intervals per bit of `marks`.
const BLOCK: usize = 64;

/// The state of an interval before it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PriorState {
    /// The interval was not queued; this call has queued it.
    Unmarked,
    /// The interval was queued.
    Queued,
    /// The sites of the interval were already probes, or cannot be.
    Done,
}

/// The kind of a call that arrives from an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// An entry of the function that starts there, which is counted.
    Entry,
    /// Any other call.
    Other,
}

/// The word of an interval when a call arrived.
#[derive(Clone, Copy, Debug)]
struct Counted {
    seen: u32,
    /// Whether the call is part of the interval's count.
    is_counted: bool,
}

/// The blocks that are searched for queued intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    /// The marked blocks.
    Marked,
    /// All blocks, because a mark may have been lost at a fork.
    All,
}

/// The intervals of one object.
#[derive(Debug)]
pub(super) struct Index {
    /// The address to which `starts` are relative.
    base: usize,
    /// The starts of the intervals, ascending. The last one ends with the object.
    starts: Box<[u32]>,
    words: Box<[AtomicU32]>,
    /// A bit per block, set if an interval of the block was queued.
    marks: Box<[AtomicU64]>,
}

impl Index {
    /// Creates an index with intervals that start at these offsets from `base`, ascending.
    pub(super) fn new(base: usize, starts: Vec<u32>) -> Self {
        debug_assert!(starts.is_sorted_by(|a, b| a < b));
        let words = starts.iter().map(|_| AtomicU32::new(0)).collect();
        let marks = (0..starts.len().div_ceil(BLOCK * 64)).map(|_| AtomicU64::new(0)).collect();
        Self { base, starts: starts.into_boxed_slice(), words, marks }
    }

    /// Whether the intervals start at these offsets.
    pub(super) fn has_starts(&self, starts: &[u32]) -> bool {
        *self.starts == *starts
    }

    /// The number of intervals.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The number of the interval that contains this address of the object.
    pub(super) fn find(&self, address: usize) -> Option<usize> {
        let offset = u32::try_from(address.checked_sub(self.base)?).ok()?;
        self.starts.partition_point(|start| *start <= offset).checked_sub(1)
    }

    /// The start of an interval.
    pub(super) fn start(&self, number: usize) -> usize {
        self.base + self.starts[number] as usize
    }

    /// The start of the next interval, if there is one.
    pub(super) fn end(&self, number: usize) -> Option<usize> {
        self.starts.get(number + 1).map(|start| self.base + *start as usize)
    }

    /// Records the arrival of a call from an interval. An entry is counted, unless the result is
    /// [`PriorState::Done`].
    pub(super) fn arrive(&self, number: usize, arrival: Arrival) -> PriorState {
        let counted = self.count(number, arrival);
        self.queue_counted(number, counted)
    }

    fn count(&self, number: usize, arrival: Arrival) -> Counted {
        let word = &self.words[number];
        let seen = word.load(Ordering::Relaxed);
        // The count stays far below the flags, even if many threads increment it concurrently.
        if arrival == Arrival::Entry && seen & DONE == 0 && seen & COUNT < COUNT / 2 {
            let seen = word.fetch_add(1, Ordering::Relaxed);
            return Counted { seen, is_counted: seen & DONE == 0 };
        }
        Counted { seen, is_counted: false }
    }

    fn queue_counted(&self, number: usize, Counted { seen, is_counted }: Counted) -> PriorState {
        if seen & DONE != 0 {
            PriorState::Done
        } else if seen & QUEUED != 0 {
            PriorState::Queued
        } else {
            match self.queue(number) {
                // Others have queued it since the entry was counted.
                PriorState::Done if is_counted => PriorState::Queued,
                state => state,
            }
        }
    }

    /// Queues an interval, unless it is already queued or done.
    pub(super) fn queue(&self, number: usize) -> PriorState {
        let seen = self.words[number].fetch_or(QUEUED, Ordering::Relaxed);
        if seen & DONE != 0 {
            return PriorState::Done;
        }
        if seen & QUEUED != 0 {
            return PriorState::Queued;
        }
        let block = number / BLOCK;
        // Release: pairs with the Acquire of `take_queued`; a thread that takes the bit sees the
        // word marked. A thread that is interrupted here sets the bit later. If the process is
        // forked here, the bit is never set in the child; therefore the child searches all blocks.
        self.marks[block / 64].fetch_or(1 << (block % 64), Ordering::Release);
        PriorState::Unmarked
    }

    /// Returns the queued intervals of these blocks, and clears the marks.
    pub(super) fn take_queued(&self, blocks: Blocks) -> Vec<usize> {
        let mut queued = Vec::new();
        for (at, marks) in self.marks.iter().enumerate() {
            if blocks == Blocks::Marked && marks.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let taken = marks.swap(0, Ordering::Acquire);
            for bit in (0..64).filter(|bit| blocks == Blocks::All || taken >> bit & 1 == 1) {
                let first = (at * 64 + bit) * BLOCK;
                let block = first.min(self.len())..(first + BLOCK).min(self.len());
                queued.extend(block.filter(|number| self.is_queued(*number)));
            }
        }
        queued
    }

    fn is_queued(&self, number: usize) -> bool {
        self.words[number].load(Ordering::Relaxed) & (QUEUED | DONE) == QUEUED
    }

    /// Marks an interval as done, which ends its counting, and returns the count.
    pub(super) fn finish(&self, number: usize) -> u32 {
        let seen = self.words[number].swap(DONE, Ordering::Relaxed);
        if seen & DONE == 0 { seen & COUNT } else { 0 }
    }

    /// Clears the states, for an object that may be loaded again. Returns the counts that were not
    /// taken, indexed by the starts of their intervals.
    pub(super) fn reset(&self) -> Vec<(usize, u64)> {
        self.marks.iter().for_each(|marks| marks.store(0, Ordering::Relaxed));
        let counted = |(number, word): (usize, &AtomicU32)| {
            let seen = word.swap(0, Ordering::Relaxed);
            let calls = u64::from(seen & COUNT);
            (seen & DONE == 0 && calls > 0).then(|| (self.start(number), calls))
        };
        self.words.iter().enumerate().filter_map(counted).collect()
    }

    /// The memory of the index, in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.words) + size_of_val(&*self.marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_last_interval_that_starts_at_or_before_it() {
        let index = Index::new(1000, vec![100, 200, 300]);
        let check = |address, expected| assert_eq!(index.find(address), expected, "{address}");
        check(999, None);
        check(1099, None);
        check(1100, Some(0));
        check(1299, Some(1));
        check(1300, Some(2));
        check(9999, Some(2));
        assert_eq!((index.start(1), index.end(1), index.end(2)), (1200, Some(1300), None));
    }

    #[test]
    fn an_interval_is_queued_once_and_its_entries_are_counted_until_it_is_done() {
        let index = Index::new(0, (0..10_000).collect());
        assert_eq!(index.arrive(7, Arrival::Entry), PriorState::Unmarked);
        assert_eq!(index.arrive(7, Arrival::Entry), PriorState::Queued);
        assert_eq!(index.arrive(7, Arrival::Other), PriorState::Queued);
        assert_eq!(index.arrive(9_999, Arrival::Other), PriorState::Unmarked);
        assert_eq!(index.take_queued(Blocks::Marked), [7, 9_999]);
        assert_eq!(index.take_queued(Blocks::Marked), []);
        assert_eq!(
            index.take_queued(Blocks::All),
            [7, 9_999],
            "an interval stays queued when its mark is taken"
        );
        assert_eq!(index.arrive(7, Arrival::Entry), PriorState::Queued);
        assert_eq!((index.finish(7), index.finish(9_999)), (3, 0));
        assert_eq!(index.arrive(7, Arrival::Entry), PriorState::Done);
        assert_eq!(index.take_queued(Blocks::All), []);
        assert_eq!(index.finish(7), 0);
        assert_eq!(index.arrive(8, Arrival::Entry), PriorState::Unmarked);
        assert_eq!(index.reset(), [(8, 1)]);
        assert_eq!(index.arrive(7, Arrival::Other), PriorState::Unmarked);
    }

    /// A thread is interrupted between the two steps of an arrival.
    #[test]
    fn an_entry_is_counted_once_if_others_queue_the_interval_meanwhile() {
        let index = Index::new(0, vec![0]);
        let counted = index.count(0, Arrival::Entry);
        assert_eq!(index.arrive(0, Arrival::Other), PriorState::Unmarked);
        assert_eq!(index.finish(0), 1);
        assert_ne!(index.queue_counted(0, counted), PriorState::Done);
        let other = Index::new(0, vec![0]);
        let counted = other.count(0, Arrival::Other);
        other.queue(0);
        assert_eq!(other.finish(0), 0);
        assert_eq!(other.queue_counted(0, counted), PriorState::Done);
    }

    #[test]
    fn entries_of_concurrent_threads_are_counted_exactly() {
        const EACH: u32 = 20_000;
        let index = Index::new(0, vec![0]);
        let missed = AtomicU32::new(0);
        let counted = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        if index.arrive(0, Arrival::Entry) == PriorState::Done {
                            missed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            while index.take_queued(Blocks::All).is_empty() {
                std::thread::yield_now();
            }
            index.finish(0)
        });
        assert_eq!(counted + missed.into_inner(), 3 * EACH);
    }
}
