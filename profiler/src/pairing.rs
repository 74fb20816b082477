//! Which exit belongs to which entry, on one thread.
//!
//! Entries are kept on a stack of their own. An exit need not find its entry on top: probes are off most of the time, and
//! longjmp, exceptions and coroutines leave entries behind. An exit matches the topmost entry that has
//!
//! 1. the same function,
//! 2. the same return address (both probes get it: for a recursive function, it tells calls from different places apart),
//! 3. the same *exit period*: the function's exit probes have been on since the entry, so its own exit cannot have gone unseen,
//!    and
//! 4. the same burst, or a stack pointer that is not above the exit's. Within a burst no entry of the function has gone
//!    unseen, so the topmost one is right. Across bursts, an entry whose stack pointer is above the exit's may be that of an outer
//!    call, the exit that of an inner one that went unseen.
//!
//! What lies above a match has ended without an exit that was seen. An entry whose frame is below the stack pointer of a later
//! entry is gone as well, and one of the same function at the same stack pointer. A latency is thus never taken from another call's entry, but may be lost.

/// How deep the stack is: at the start of a program every function is in its first burst, and some nest deeply. Pages that are
/// not used are not there.
pub(crate) const DEPTH: usize = 4096;

/// How far down an exit looks for its entry.
const LOOK: usize = 64;

/// An entry that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) function: u32,
    pub(crate) burst: u32,
    /// The exit period of the function at the time.
    pub(crate) period: u32,
    /// Whether it was the last of its burst.
    pub(crate) last: bool,
    /// Where the function returns to.
    pub(crate) call_site: usize,
    /// The stack pointer at the probe.
    pub(crate) stack_pointer: usize,
    /// When the entry probe was left, in ticks.
    pub(crate) ticks: u64,
    /// What the thread had spent in probes by then, in ticks.
    pub(crate) overhead: u64,
}

/// The entries of one thread that have not come out.
#[derive(Debug)]
pub(crate) struct EntryStack {
    entries: [Entry; DEPTH],
    height: usize,
}

impl EntryStack {
    /// Adds an entry, if there is room. When there is none, entries that no exit can match any more make it: those for which
    /// `is_open` does not hold.
    pub(crate) fn push(&mut self, entry: Entry, is_open: impl Fn(&Entry) -> bool) -> Option<&mut Entry> {
        let is_gone = |below: &Entry| {
            below.stack_pointer < entry.stack_pointer
                || (below.stack_pointer == entry.stack_pointer && below.function == entry.function)
        };
        while self.height > 0 && is_gone(&self.entries[self.height - 1]) {
            self.height -= 1;
        }
        if self.height == DEPTH {
            let mut kept = 0;
            for index in 0..DEPTH {
                if is_open(&self.entries[index]) {
                    self.entries[kept] = self.entries[index];
                    kept += 1;
                }
            }
            self.height = kept;
        }
        let place = self.entries.get_mut(self.height)?;
        self.height += 1;
        *place = entry;
        Some(place)
    }

    /// Takes the entry that an exit belongs to, and what lies above it. The exit is described like an entry.
    pub(crate) fn pop(&mut self, exit: &Entry) -> Option<Entry> {
        let matches = |entry: &Entry| {
            entry.function == exit.function
                && entry.call_site == exit.call_site
                && entry.period == exit.period
                && (entry.burst == exit.burst || entry.stack_pointer <= exit.stack_pointer)
        };
        let lowest = self.height.saturating_sub(LOOK);
        let index = (lowest..self.height).rev().find(|index| matches(&self.entries[*index]))?;
        self.height = index;
        Some(self.entries[index])
    }

    /// Forgets every entry.
    pub(crate) fn clear(&mut self) {
        self.height = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(function: u32, burst: u32, call_site: usize, stack_pointer: usize) -> Entry {
        Entry { function, burst, call_site, stack_pointer, ..Entry::default() }
    }

    fn stack(entries: &[(u32, u32, usize, usize)]) -> EntryStack {
        let mut stack = EntryStack { entries: [Entry::default(); DEPTH], height: 0 };
        for (function, burst, call_site, stack_pointer) in entries.iter().copied() {
            assert!(stack.push(exit(function, burst, call_site, stack_pointer), |_| true).is_some());
        }
        stack
    }

    #[test]
    fn an_exit_takes_its_entry_and_what_was_left_above() {
        // An inlined function has the frame of the one around it.
        let mut nested = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xa, 0x90), (3, 1, 0xb, 0x80)]);
        assert!(nested.pop(&exit(2, 1, 0xa, 0x90)).is_some());
        assert_eq!(nested.height, 1, "the entry of 3, left by an exception, is gone");
        assert!(nested.pop(&exit(2, 1, 0xa, 0x90)).is_none());
        assert!(nested.pop(&exit(1, 1, 0xa, 0x98)).is_some(), "a tail call leaves its frame first");
    }

    #[test]
    fn entries_below_the_stack_pointer_are_gone() {
        let mut jumped = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xb, 0x50), (3, 1, 0xc, 0x70)]);
        assert_eq!(jumped.height, 2);
        assert!(jumped.pop(&exit(2, 1, 0xb, 0x50)).is_none());
    }

    #[test]
    fn a_recursive_call_that_went_unseen_is_not_mistaken_for_the_outer_one() {
        let mut outer = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(outer.pop(&exit(1, 2, 0xa, 0x60)).is_none(), "an inner exit of a later burst");
        assert!(outer.pop(&exit(1, 2, 0xb, 0x90)).is_none(), "called from elsewhere");
        assert!(outer.pop(&exit(1, 2, 0xa, 0x90)).is_some(), "a long call, met again in a later burst");
    }

    #[test]
    fn an_entry_whose_exit_may_have_gone_unseen_is_not_taken_for_a_long_call() {
        let mut repeated = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(repeated.pop(&Entry { period: 1, ..exit(1, 2, 0xa, 0x90) }).is_none());
    }

    #[test]
    fn within_a_burst_a_frame_may_have_grown() {
        let mut alloca = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(alloca.pop(&exit(1, 1, 0xa, 0x60)).is_some());
    }

    #[test]
    fn a_full_stack_says_so() {
        let entries: Vec<_> = (0..DEPTH).map(|i| (1, 1, 0xa, 0x9000 - i)).collect();
        let mut full = stack(&entries);
        let one_more = Entry { stack_pointer: 1, ..Entry::default() };
        assert!(full.push(one_more, |_| true).is_none());
        assert!(full.push(one_more, |entry| entry.stack_pointer % 2 == 0).is_some());
        assert_eq!(full.height, DEPTH / 2 + 1);
    }
}
