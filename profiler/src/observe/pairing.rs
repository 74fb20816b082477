//! Pairing of exits with entries, on one thread.
//!
//! Entries are kept on a stack. The entry of an exit need not be on top: probes are off most of the
//! time, and longjmp, exceptions and coroutines leave entries behind. An exit matches the topmost
//! entry that has
//!
//! 1. the same function,
//! 2. the same return address (both probes get it: for a recursive function, it distinguishes calls
//!    from different call sites),
//! 3. the same *exit period*: the function's exit probes have been on since the entry, so its own
//!    exit cannot have been missed, and
//! 4. the same observation, if that is not over, or a stack pointer that is not above the exit's.
//!    During an observation, no entry of the function is missed, so the topmost one is correct.
//!    Afterwards, an entry whose stack pointer is above the exit's may be that of an outer call,
//!    and the exit that of an inner one whose entry was missed.
//!
//! If the compiler has split a function ([`crate::binary::parts`]), the entry of a call is in the
//! frame of its caller, and has another return address than an exit in the part that was called
//! from there. Therefore an exit without a match also matches the topmost entry of the same
//! function, exit period and observation whose stack pointer is not below the exit's, if the
//! observation is not over.
//!
//! The entries above a match have ended without an observed exit. An entry whose frame is below the
//! stack pointer of a later entry has ended as well; so has one of the same function at the same
//! stack pointer, with those above it. Therefore a latency is never computed from another call's
//! entry, but it may be lost.
//!
//! # Calls whose exits are missed
//! Exits of a long call are missed if the function's exit probes are deactivated before it returns:
//! they are not kept on indefinitely at every call inside it ([`crate::observe::function`]). When
//! the entry is removed, the call has ended. It had not ended when an entry was left that was
//! pushed above it while its exit probes were on, because calls are nested. Therefore its duration
//! has an upper and a lower limit ([`Entry::held`]). In the main loop of an interpreter, for
//! example, both are those of the run. Nor had it ended at the exit of another call to the same
//! function with a lower stack pointer, if its exit probes were on; nor when the exit probes were
//! deactivated, because its own exit would have been seen: a call that waits, while other threads
//! call the function and their exits end the period, has taken at least until then. All this holds
//! as long as the thread has one stack ([`crate::observe::stack`]) and calls are left by exits: if
//! the entry of a call that was left by an exception or a longjmp is removed while its exit probes
//! are on, nothing is concluded; if it is removed later, its lower limit may be too high.
//!
//! Where frames have an address that does not change and is known to both probes
//! ([`Frames::Fixed`]), an exit matches the entry of its function that has the same frame and the
//! same exit period.
//!
//! The stack is written only by its thread. The service thread reads it for the calls that are open
//! when the report is made, so it consists of atomics, which cost nothing extra here.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use crate::estimate::callers::Origin;
use crate::observe::preemption;

/// Maximum depth of the stack. Unused pages are never allocated.
pub(crate) const DEPTH: usize = 4096;

/// The number of entries that an exit searches.
const LOOK: usize = 64;

/// An observed entry.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) function: u32,
    /// The observation of the function to which the entry belongs.
    pub(crate) observation: u32,
    /// The function's exit period at the entry.
    pub(crate) period: u32,
    /// The number of calls that the entry represents.
    pub(crate) weight: f32,
    /// The number of the entry probe, or [`NO_PROBE`](crate::estimate::callers::NO_PROBE).
    pub(crate) probe: u32,
    /// The return address of the function.
    pub(crate) call_site: usize,
    /// The stack pointer at the probe.
    pub(crate) stack_pointer: usize,
    /// The time at which the entry probe was left, in ticks.
    pub(crate) ticks: u64,
    /// The time that the thread had spent in probes by then, in ticks.
    pub(crate) overhead: u64,
    /// The time for which the thread had been preempted by then.
    pub(crate) preempted: preemption::Time,
    /// The number of first entries of windows that the thread had made by then.
    pub(crate) cold: u64,
    /// Whether the call of the entry below was certainly open then.
    pub(crate) is_nested: bool,
    /// The last time at which the call is known to have been open, or 0; for an exit, its time. In
    /// own time of the thread, without probes and preemption, in ticks.
    pub(crate) held: u64,
}

impl Entry {
    /// Where the call comes from.
    pub(crate) fn origin(&self) -> Origin {
        Origin { return_address: self.call_site, probe: self.probe }
    }

    /// The time for which the call is known to have been open, in ticks of own time.
    pub(crate) fn held_for(&self) -> u64 {
        let entered = self.ticks.saturating_sub(self.overhead).saturating_sub(self.preempted.value);
        self.held.saturating_sub(entered)
    }
}

/// The stored form of an [`Entry`] on the stack.
#[derive(Debug, Default)]
struct Slot {
    function: AtomicU32,
    observation: AtomicU32,
    period: AtomicU32,
    /// The bits of an f32.
    weight: AtomicU32,
    probe: AtomicU32,
    call_site: AtomicUsize,
    stack_pointer: AtomicUsize,
    ticks: AtomicU64,
    overhead: AtomicU64,
    preempted: preemption::SharedTime,
    cold: AtomicU64,
    is_nested: AtomicBool,
    held: AtomicU64,
}

impl Slot {
    fn store(&self, entry: &Entry) {
        self.function.store(entry.function, Relaxed);
        self.observation.store(entry.observation, Relaxed);
        self.period.store(entry.period, Relaxed);
        self.weight.store(entry.weight.to_bits(), Relaxed);
        self.probe.store(entry.probe, Relaxed);
        self.call_site.store(entry.call_site, Relaxed);
        self.stack_pointer.store(entry.stack_pointer, Relaxed);
        self.ticks.store(entry.ticks, Relaxed);
        self.overhead.store(entry.overhead, Relaxed);
        self.preempted.store(entry.preempted);
        self.cold.store(entry.cold, Relaxed);
        self.is_nested.store(entry.is_nested, Relaxed);
        self.held.store(entry.held, Relaxed);
    }

    fn load(&self) -> Entry {
        Entry {
            function: self.function.load(Relaxed),
            observation: self.observation.load(Relaxed),
            period: self.period.load(Relaxed),
            weight: f32::from_bits(self.weight.load(Relaxed)),
            probe: self.probe.load(Relaxed),
            call_site: self.call_site.load(Relaxed),
            stack_pointer: self.stack_pointer.load(Relaxed),
            ticks: self.ticks.load(Relaxed),
            overhead: self.overhead.load(Relaxed),
            preempted: self.preempted.load(),
            cold: self.cold.load(Relaxed),
            is_nested: self.is_nested.load(Relaxed),
            held: self.held.load(Relaxed),
        }
    }

    /// Records that the call was open at this time.
    fn hold(&self, time: u64) {
        self.held.store(self.held.load(Relaxed).max(time), Relaxed);
    }
}

/// The open entries of one thread.
#[derive(Debug)]
pub(crate) struct EntryStack {
    slots: [Slot; DEPTH],
    height: AtomicUsize,
    /// The number, plus one, of entries that found no space since the entire stack was last found
    /// to be open; or 0.
    refused: AtomicUsize,
}

/// The meaning of [`Entry::stack_pointer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frames {
    /// The stack pointer at the probe, which may differ at the exit.
    Varying,
    /// The address of the frame, which is the same at the entry and the exits of a call, and
    /// different for any two open calls.
    Fixed,
}

/// The stack of the calling thread.
pub(crate) struct Own<'a>(&'a EntryStack, Frames);

impl EntryStack {
    /// The stack as used by its own thread, which writes it.
    pub(crate) fn own(&self) -> Own<'_> {
        Own(self, Frames::Varying)
    }

    /// The same, where frames have fixed addresses.
    pub(crate) fn of_frames(&self) -> Own<'_> {
        Own(self, Frames::Fixed)
    }

    /// The entries from the lowest on, for the service thread. An entry that is being changed is
    /// skipped.
    pub(crate) fn look(&self) -> impl Iterator<Item = Entry> {
        let height = self.height.load(Relaxed).min(DEPTH);
        self.slots[..height].iter().filter_map(|slot| {
            let entry = slot.load();
            (entry == slot.load()).then_some(entry)
        })
    }
}

impl Own<'_> {
    fn at(&self, index: usize) -> Entry {
        self.0.slots[index].load()
    }

    fn height(&self) -> usize {
        self.0.height.load(Relaxed)
    }

    fn cut(&self, height: usize, discarded: &mut impl FnMut(&Entry)) {
        for index in (height..self.height()).rev() {
            let entry = self.at(index);
            self.hold_below(index, &entry, entry.held);
            discarded(&entry);
        }
        self.0.height.store(height, Relaxed);
    }

    /// Records that the call of an entry that is removed was open at this time, and so was that of
    /// the entry below, if the former is nested in it.
    #[inline(always)]
    fn hold_below(&self, index: usize, entry: &Entry, time: u64) {
        if entry.is_nested && index > 0 {
            self.0.slots[index - 1].hold(time);
        }
    }

    /// Whether the call of the entry below this index is certainly open.
    #[inline(always)]
    pub(crate) fn is_nested(&self, index: usize, is_open: impl Fn(&Entry) -> bool) -> bool {
        index > 0 && is_open(&self.at(index - 1))
    }

    /// Makes space for an entry, and returns its index. If the stack is full, the entries that no
    /// exit can match any more are removed, which are those for which `is_open` returns false.
    /// `discarded` is called with the entries that have ended without an exit.
    pub(crate) fn push(
        &mut self,
        entry: &Entry,
        is_open: impl Fn(&Entry) -> bool,
        mut discarded: impl FnMut(&Entry),
    ) -> Option<usize> {
        let is_stale = |below: &Entry| {
            below.stack_pointer < entry.stack_pointer
                || (below.stack_pointer == entry.stack_pointer
                    && (below.function == entry.function || self.1 == Frames::Fixed))
        };
        let mut height = self.height();
        while height > 0 && is_stale(&self.at(height - 1)) {
            height -= 1;
        }
        height = self.again(height, entry).unwrap_or(height);
        if height < self.height() {
            self.cut(height, &mut discarded);
        }
        if height == DEPTH {
            height = self.make_space(is_open);
        } else if height < DEPTH / 2 && self.0.refused.load(Relaxed) > 0 {
            self.0.refused.store(0, Relaxed);
        }
        self.0.slots.get(height)?;
        Some(height)
    }

    /// Below this height, the index of an entry of the same function in the same frame. Functions
    /// that were inlined into a frame, or were called from it one after the other with their exits
    /// unseen, have the same stack pointer; when one of them is entered again, it has ended, and
    /// so have those that were entered after it.
    #[inline(always)]
    fn again(&self, height: usize, entry: &Entry) -> Option<usize> {
        let slots = &self.0.slots[height.saturating_sub(LOOK)..height];
        let is_in_frame = |slot: &&Slot| slot.stack_pointer.load(Relaxed) == entry.stack_pointer;
        let mut in_frame = slots.iter().rev().take_while(is_in_frame);
        let above = in_frame.position(|slot| slot.function.load(Relaxed) == entry.function)?;
        Some(height - 1 - above)
    }

    /// Removes entries that no exit can match any more from a full stack, and returns its height.
    /// In a deep recursion there are none, and examining all entries for each new one would take a
    /// thousand times as long as the call; therefore it is done once in [`DEPTH`] entries.
    #[cold]
    fn make_space(&mut self, is_open: impl Fn(&Entry) -> bool) -> usize {
        let refused = self.0.refused.load(Relaxed);
        let is_full = (1..DEPTH).contains(&refused);
        let height = if is_full { DEPTH } else { self.squeeze(is_open) };
        let refused = match height {
            DEPTH if is_full => refused + 1,
            DEPTH => 1,
            _ => 0,
        };
        self.0.refused.store(refused, Relaxed);
        height
    }

    fn squeeze(&mut self, is_open: impl Fn(&Entry) -> bool) -> usize {
        let mut kept = 0;
        for index in 0..DEPTH {
            let entry = self.at(index);
            if is_open(&entry) {
                self.0.slots[kept].store(&entry);
                kept += 1;
            }
        }
        self.0.height.store(kept, Relaxed);
        kept
    }

    /// Stores the entry at the index that [`Own::push`] has returned.
    pub(crate) fn put(&mut self, index: usize, entry: &Entry) {
        self.0.slots[index].store(entry);
        self.0.height.store(index + 1, Relaxed);
    }

    /// Removes the entry to which an exit belongs, and calls `discarded` with those above it, which
    /// are also removed. The exit is described like an entry.
    pub(crate) fn pop(&mut self, exit: &Entry, discarded: impl FnMut(&Entry)) -> Option<Entry> {
        let is_frame = |entry: &Entry| match self.1 {
            Frames::Varying => {
                entry.call_site == exit.call_site
                    && (entry.observation == exit.observation || entry.stack_pointer <= exit.stack_pointer)
            }
            Frames::Fixed => entry.stack_pointer == exit.stack_pointer,
        };
        let height = self.height();
        let (mut outer, mut caller) = (None, None);
        for index in (height.saturating_sub(LOOK)..height).rev() {
            if self.0.slots[index].function.load(Relaxed) != exit.function {
                continue;
            }
            let entry = self.at(index);
            if entry.period != exit.period {
                continue;
            }
            if is_frame(&entry) {
                return Some(self.take(index, exit, discarded));
            }
            if outer.is_none() && entry.stack_pointer > exit.stack_pointer {
                outer = Some(index);
            }
            let is_of_part = self.1 == Frames::Varying
                && entry.observation == exit.observation
                && entry.stack_pointer >= exit.stack_pointer;
            if caller.is_none() && is_of_part {
                caller = Some(index);
            }
        }
        if let Some(index) = caller {
            return Some(self.take(index, exit, discarded));
        }
        // This is the exit of a call inside another call to the same function: the exit of that one
        // cannot have been missed, so it is still open.
        outer.into_iter().for_each(|index| self.0.slots[index].hold(exit.held));
        None
    }

    /// Removes the entry at this index, to which an exit belongs, and those above it.
    #[inline(always)]
    fn take(&mut self, index: usize, exit: &Entry, mut discarded: impl FnMut(&Entry)) -> Entry {
        let entry = self.at(index);
        if index + 1 < self.height() {
            self.cut(index + 1, &mut discarded);
        }
        self.hold_below(index, &entry, exit.held);
        self.0.height.store(index, Relaxed);
        entry
    }

    /// Removes the entry of the frame at this address, which is about to be left without an exit,
    /// and those of the frames that it has called, which are left as well. `discarded` is called
    /// with the latter ones.
    pub(crate) fn leave(&mut self, frame: usize, mut discarded: impl FnMut(&Entry)) -> Option<Entry> {
        let mut height = self.height();
        while height > 0 && self.at(height - 1).stack_pointer < frame {
            height -= 1;
        }
        self.cut(height, &mut discarded);
        let entry = self.at(height.checked_sub(1)?);
        (entry.stack_pointer == frame).then(|| {
            self.0.height.store(height - 1, Relaxed);
            entry
        })
    }

    /// Moves the entries of all open calls by a time, in ticks, for which the thread has not
    /// executed the program: their calls do not include it. `spent` of it counts as spent in
    /// probes.
    pub(crate) fn exclude(&mut self, time: u64, spent: u64) {
        let add = |to: &AtomicU64, ticks: u64| to.store(to.load(Relaxed).wrapping_add(ticks), Relaxed);
        for slot in &self.0.slots[..self.height()] {
            add(&slot.ticks, time);
            add(&slot.overhead, spent);
        }
    }

    /// Removes every entry.
    pub(crate) fn clear(&mut self, mut discarded: impl FnMut(&Entry)) {
        self.cut(0, &mut discarded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(function: u32, observation: u32, call_site: usize, stack_pointer: usize) -> Entry {
        Entry { function, observation, call_site, stack_pointer, ..Entry::default() }
    }

    fn push(stack: &EntryStack, entry: Entry, is_open: impl Fn(&Entry) -> bool) -> bool {
        let mut own = stack.own();
        let place = own.push(&entry, is_open, |_| {});
        place.into_iter().for_each(|place| own.put(place, &entry));
        place.is_some()
    }

    fn stack(entries: &[(u32, u32, usize, usize)]) -> EntryStack {
        let stack = EntryStack {
            slots: std::array::from_fn(|_| Slot::default()),
            height: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        };
        for (function, observation, call_site, stack_pointer) in entries.iter().copied() {
            assert!(push(&stack, exit(function, observation, call_site, stack_pointer), |_| true));
        }
        stack
    }

    fn pop(stack: &EntryStack, exit: Entry) -> Option<Entry> {
        stack.own().pop(&exit, |_| {})
    }

    #[test]
    fn an_exit_takes_its_entry_and_what_was_left_above() {
        // An inlined function has the frame of the enclosing one.
        let nested = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xa, 0x90), (3, 1, 0xb, 0x80)]);
        let mut discarded = Vec::new();
        assert!(nested.own().pop(&exit(2, 1, 0xa, 0x90), |entry| discarded.push(entry.function)).is_some());
        assert_eq!((nested.height.load(Relaxed), &discarded[..]), (1, &[3][..]), "left by an exception");
        assert!(pop(&nested, exit(2, 1, 0xa, 0x90)).is_none());
        assert!(pop(&nested, exit(1, 1, 0xa, 0x98)).is_some(), "a tail call leaves its frame first");
    }

    #[test]
    fn entries_below_the_stack_pointer_are_discarded() {
        let jumped = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xb, 0x50)]);
        let (mut discarded, next) = (Vec::new(), exit(3, 1, 0xc, 0x70));
        assert_eq!(jumped.own().push(&next, |_| true, |entry| discarded.push(entry.function)), Some(1));
        assert_eq!(discarded, [2]);
        assert!(pop(&jumped, exit(2, 1, 0xb, 0x50)).is_none());
    }

    /// Removes entries, and adds the functions and the times of [`Entry::held`] of those discarded.
    type Removal<'a> = &'a dyn Fn(&mut Own<'_>, &mut Vec<(u32, u64)>);

    /// The entry of function 1 is removed by that of function 4, or by the exit of function 5.
    #[test]
    fn a_call_whose_exit_is_missed_was_open_while_calls_inside_it_were() {
        let held = |nested: [bool; 2], removal: Removal<'_>| {
            let empty = stack(&[]);
            let mut own = empty.own();
            let entries = [(5, 100, false), (1, 90, true), (2, 80, nested[0]), (3, 70, nested[1])];
            for (number, (function, stack_pointer, is_nested)) in entries.into_iter().enumerate() {
                own.put(number, &Entry { is_nested, ticks: 1, ..exit(function, 1, 0x10, stack_pointer) });
            }
            let mut discarded = Vec::new();
            for (function, stack_pointer, time) in [(3, 70, 500), (2, 80, 600)] {
                let exit = Entry { held: time, ..exit(function, 1, 0x10, stack_pointer) };
                assert!(own.pop(&exit, |_| {}).is_some());
            }
            removal(&mut own, &mut discarded);
            discarded
        };
        let pushed = |own: &mut Own<'_>, discarded: &mut Vec<(u32, u64)>| {
            let note = |entry: &Entry| discarded.push((entry.function, entry.held));
            own.push(&exit(4, 1, 0x10, 95), |_| true, note);
        };
        let left = |own: &mut Own<'_>, discarded: &mut Vec<(u32, u64)>| {
            let exit = Entry { held: 900, ..exit(5, 1, 0x10, 100) };
            own.pop(&exit, |entry| discarded.push((entry.function, entry.held)));
        };
        assert_eq!(held([true, true], &pushed), [(1, 600)]);
        assert_eq!(held([true, true], &left), [(1, 600)]);
        assert_eq!(held([false, true], &left), [(1, 0)], "function 1 may have ended before");
        // Those inside end unseen, too.
        let all = |own: &mut Own<'_>, discarded: &mut Vec<(u32, u64)>| {
            own.put(2, &Entry { is_nested: true, held: 700, ..exit(2, 1, 0x10, 80) });
            own.put(3, &Entry { is_nested: true, held: 800, ..exit(3, 1, 0x10, 70) });
            left(own, discarded);
        };
        assert_eq!(held([true, true], &all), [(3, 800), (2, 800), (1, 800)]);
    }

    #[test]
    fn a_call_is_held_for_the_own_time_since_its_entry() {
        let preempted = preemption::Time { least: 0, value: 50, most: 70 };
        let entry = Entry { ticks: 1000, overhead: 100, preempted, ..Entry::default() };
        assert_eq!(entry.held_for(), 0, "nothing is known");
        // What the thread loses later does not matter.
        assert_eq!(Entry { held: 900, ..entry }.held_for(), 50);
    }

    #[test]
    fn an_exit_without_an_entry_is_inside_an_outer_call_of_the_same_function() {
        let held = |function: u32, period: u32, stack_pointer: usize| {
            let outer = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xa, 0x80)]);
            let stray = Entry { period, held: 70, ..exit(function, 2, 0xb, stack_pointer) };
            assert!(pop(&outer, stray).is_none());
            outer.look().map(|entry| entry.held).collect::<Vec<_>>()
        };
        assert_eq!(held(1, 0, 0x60), [70, 0]);
        assert_eq!(held(1, 1, 0x60), [0, 0], "the exit of the outer one may have been missed");
        assert_eq!(held(1, 0, 0x98), [0, 0], "the outer one has ended");
        assert_eq!(held(3, 0, 0x60), [0, 0]);
    }

    #[test]
    fn a_recursive_call_that_was_missed_is_not_mistaken_for_the_outer_one() {
        let outer = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(pop(&outer, exit(1, 2, 0xa, 0x60)).is_none(), "an inner exit of a later observation");
        assert!(pop(&outer, exit(1, 2, 0xb, 0x90)).is_none(), "called from elsewhere");
        assert!(pop(&outer, exit(1, 2, 0xa, 0x90)).is_some(), "a long call, found in a later observation");
    }

    #[test]
    fn an_entry_whose_exit_may_have_been_missed_is_not_taken_for_a_long_call() {
        let repeated = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(pop(&repeated, Entry { period: 1, ..exit(1, 2, 0xa, 0x90) }).is_none());
    }

    #[test]
    fn within_an_observation_a_frame_may_have_grown() {
        let alloca = stack(&[(1, 1, 0xa, 0x90)]);
        assert!(pop(&alloca, exit(1, 1, 0xa, 0x60)).is_some());
    }

    /// Each entry is in the frame of the caller, and the exit in a part that was called from there.
    #[test]
    fn within_an_observation_an_exit_in_another_frame_belongs_to_the_innermost_call() {
        let split = stack(&[(1, 1, 0xa, 0x90), (1, 1, 0xb, 0x60)]);
        assert!(pop(&split, exit(1, 2, 0xd, 0x50)).is_none(), "the observation is over");
        let entry = pop(&split, exit(1, 1, 0xd, 0x50)).unwrap();
        assert_eq!(entry.stack_pointer, 0x60);
        assert!(pop(&split, exit(1, 1, 0xc, 0x98)).is_none(), "a frame above that of the entry");
        assert!(pop(&split, exit(1, 1, 0xc, 0x90)).is_some(), "a tail call leaves its frame first");
    }

    /// A loop calls two functions, whose exits are not seen.
    #[test]
    fn calls_from_one_frame_do_not_hide_the_call_that_makes_them() {
        let entries = [(1, 1, 0xa, 0x90)].into_iter();
        let inner = [(2, 1, 0xb, 0x80), (3, 1, 0xc, 0x80)].into_iter().cycle().take(4 * LOOK);
        let all = stack(&entries.chain(inner).collect::<Vec<_>>());
        assert_eq!(all.own().height(), 3, "the last call of each function");
        assert!(pop(&all, exit(1, 1, 0xa, 0x90)).is_some());
    }

    #[test]
    fn frames_are_told_apart_by_their_addresses() {
        let recursive = stack(&[(1, 1, 0xa, 0x90), (1, 1, 0xa, 0x60)]);
        let pop = |entry| recursive.of_frames().pop(&entry, |_| {});
        assert!(pop(exit(1, 1, 0xa, 0x50)).is_none(), "the entry of this call was not observed");
        assert!(pop(exit(1, 2, 0xb, 0x60)).is_some(), "whatever else has changed");
        assert!(pop(exit(1, 1, 0xa, 0x90)).is_some());
        // One function has replaced the other, by a tail call.
        let replaced = stack(&[(1, 1, 0xa, 0x90)]);
        let next = exit(2, 1, 0xa, 0x90);
        assert_eq!(replaced.of_frames().push(&next, |_| true, |_| {}), Some(0));
    }

    #[test]
    fn frames_are_left_with_those_that_they_have_called() {
        let nested = stack(&[(1, 1, 0xa, 0x90), (2, 1, 0xb, 0x80), (3, 1, 0xc, 0x70)]);
        let mut discarded = Vec::new();
        let mut leave = |frame| nested.of_frames().leave(frame, |entry| discarded.push(entry.function));
        assert_eq!(leave(0x60), None);
        assert_eq!(leave(0x80).map(|entry| entry.function), Some(2));
        assert_eq!(leave(0x80), None);
        assert_eq!(leave(0x90).map(|entry| entry.function), Some(1));
        assert_eq!((discarded, nested.height.load(Relaxed)), (vec![3], 0));
    }

    #[test]
    fn a_full_stack_is_reported() {
        let entries: Vec<_> = (0..DEPTH).map(|i| (1, 1, 0xa, 0x9000 - i)).collect();
        let full = stack(&entries);
        let one_more = Entry { stack_pointer: 1, ..Entry::default() };
        assert!(!push(&full, one_more, |_| true));
        // All entries are looked at once for every DEPTH pushes that find no space.
        let looks = std::cell::Cell::new(0);
        let is_open = |_: &Entry| looks.replace(looks.get() + 1) >= 0;
        assert!((0..4 * DEPTH).all(|_| !push(&full, one_more, is_open)));
        assert!(looks.get() <= 5 * DEPTH as i32, "{} looks", looks.get());
        assert!((0..DEPTH).any(|_| push(&full, one_more, |entry| entry.stack_pointer % 2 == 0)));
        assert_eq!(full.height.load(Relaxed), DEPTH / 2 + 1);
        // After the recursion is over, the next full stack is looked through at once.
        let again = stack(&entries);
        assert!(!push(&again, one_more, |_| true));
        again.own().clear(|_| {});
        entries.iter().for_each(|&(function, observation, call_site, stack_pointer)| {
            assert!(push(&again, exit(function, observation, call_site, stack_pointer), |_| true));
        });
        assert!(push(&again, one_more, |entry| entry.stack_pointer % 2 == 0));
    }

    #[test]
    fn open_calls_do_not_include_the_time_for_which_probes_were_made() {
        let stack = stack(&[]);
        let entry = Entry { ticks: 1000, overhead: 100, ..Entry::default() };
        (0..2).for_each(|index| stack.own().put(index, &entry));
        // For a part of the time, the thread waited.
        stack.own().exclude(500, 300);
        stack.own().put(2, &entry);
        let moved = Entry { ticks: 1500, overhead: 400, ..entry };
        assert_eq!(stack.look().collect::<Vec<_>>(), [moved, moved, entry]);
    }

    #[test]
    fn stored_entries_are_visible_to_other_threads() {
        let entry = Entry {
            function: 1,
            observation: u32::MAX,
            period: 3,
            weight: 1.5,
            probe: 7,
            call_site: usize::MAX,
            stack_pointer: 5,
            ticks: 6,
            overhead: 7,
            preempted: preemption::Time { least: 8, value: 13, most: 14 },
            cold: 9,
            is_nested: true,
            held: 77,
        };
        let stack = stack(&[]);
        stack.own().put(0, &entry);
        assert_eq!(stack.look().collect::<Vec<_>>(), [entry]);
        let mut discarded = 0;
        stack.own().clear(|_| discarded += 1);
        assert_eq!((discarded, stack.look().count()), (1, 0));
    }
}
