//! What all threads share about a function: its probes, and whether its calls are observed now.
//!
//! An *observation* is a span of time in which every entry counts and is followed to its exit: time that the function is on, or a
//! window ([`crate::policy`]). Each step is made by whoever brings it about:
//!
//! 1. The daemon begins an observation: it sets its limits, then switches the exit probes on, then the entry probes.
//! 2. Entries before `opens` do not count. Each later one is numbered; the one with the number `limit` goes on with a refilled
//!    allowance, or ends the observation.
//! 3. The first entry after `closes` switches the entry probes off. No timer is needed, and none that is late does harm. What
//!    probes take is not the program's time: each thread's window is longer by what the thread has spent in probes since it opened.
//! 4. The exit probes stay on until all entries of the observation have come out. The thread that sees the last exit switches them
//!    off; so does the one that sees too many exits of calls that were entered before.
//! 5. The daemon reads the number of entries once the observation is over, and begins the next.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

use fastinst::{ProbeId, ProbeType, Segments};

use crate::governor;
use crate::policy::Allowance;

/// Exits of calls that were not observed, after which the exit probes are switched off, whatever is still open: the outer calls of a
/// recursive function are not waited for at any price. Some tenths of a millisecond, while a function is on.
const STRAY_EXITS: i64 = 20_000;

/// The same for a window, in which few entries are expected.
const STRAY_EXITS_IN_WINDOW: i64 = 200;

/// A probe's function, and the next probe of the same function and kind.
#[derive(Default)]
pub(crate) struct ProbeLink {
    /// Index of the function plus one; 0 for a probe that is not ours.
    function: AtomicU32,
    /// Number of the next probe plus one.
    next: AtomicU32,
}

/// Links by probe id.
static LINKS: Segments<ProbeLink> = Segments::new();

/// The functions, in order of discovery.
pub(crate) static FUNCTIONS: Segments<Function> = Segments::new();

/// Head of the list of functions that have used their allowance up: index plus one.
static EXHAUSTED: AtomicU32 = AtomicU32::new(0);

/// One function. On cache lines of its own: threads that call different functions do not disturb each other. Times in ticks.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Function {
    /// The observation: from when to when, its entries so far, and how many it may have.
    opens: AtomicU64,
    closes: AtomicU64,
    entries: AtomicU64,
    limit: AtomicU64,
    /// Where the limit was reached.
    ended: AtomicU64,
    /// A window that opens when the program is seen to run: from when on, or 0; and how long after that, and for how long.
    floats_from: AtomicU64,
    float_delay: AtomicU64,
    float_length: AtomicU64,
    /// A thread that is known to have spent so much in probes when the window opened, or nearly; and what it had spent since when the
    /// window closed.
    known: AtomicUsize,
    spent_before: AtomicU64,
    overhead: AtomicU64,
    /// Its number, and how many calls each of its own stands for, as the bits of an f32.
    observation: AtomicU32,
    weight: AtomicU32,
    /// Counts how often the exit probes went off, and on again: odd while they are off.
    exit_period: AtomicU32,
    /// Entries of this exit period that have not come out.
    open: AtomicU32,
    /// Exits of other calls that may still come.
    strays_left: AtomicI64,
    /// Whether the function is on, not in a window.
    is_on: AtomicBool,
    /// Whether the entry probes are being switched off, or are off.
    is_closed: AtomicBool,
    is_listed: AtomicBool,
    next_listed: AtomicU32,
    /// When the allowance was refilled, and with how many calls.
    refilled: AtomicU64,
    chunk: AtomicU64,
    /// The entry in the middle between the last refill and the limit, and when it was.
    middle: AtomicU64,
    middle_at: AtomicU64,
    entry_probes: AtomicU32,
    exit_probes: AtomicU32,
}

/// A function whose windows take microseconds is called within so many ticks if the program runs, some 50 us, or is not in a busy
/// phase.
const AT_ONCE: u64 = 130_000;

/// How much longer than its time a window may take, for threads that spend most of it in probes.
const STRETCH: u64 = 8;

/// What a window must know of the thread that enters: how much of its time is not the program's.
pub(crate) trait OwnTime {
    /// A number for the thread, not 0.
    fn number(&self) -> usize;
    /// What the thread has spent in probes so far, in ticks of the clock.
    fn spent(&self) -> u64;
    /// Whether there is no other thread.
    fn is_alone(&self) -> bool;
}

/// So many entries of a window run through code that was just rewritten.
const COLD: u64 = 2;

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entered {
    /// Its window is about to open.
    Early,
    /// It does not count.
    Not,
    Observed(Observed),
}

/// What an observed entry is part of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observed {
    pub(crate) observation: u32,
    pub(crate) period: u32,
    pub(crate) weight: f32,
    /// Whether it is one of the first of a window: its code, and that of its probes, was just rewritten.
    pub(crate) is_cold: bool,
}

/// An observation to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) opens: u64,
    /// `u64::MAX`: the function is on.
    pub(crate) closes: u64,
    pub(crate) limit: u64,
    pub(crate) weight: f32,
}

/// What an observation has counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) entries: u64,
    /// Where the limit was reached, if it was.
    pub(crate) exceeded: Option<Exceeded>,
    /// Time that a thread spent in probes during the window, in ticks.
    pub(crate) overhead: u64,
}

/// The limit was reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exceeded {
    /// When, in ticks.
    pub(crate) at: u64,
    /// The rate at the end, in calls per tick: over the second half of what was allowed, since the first may have begun long before
    /// the function became hot.
    pub(crate) rate: f64,
}

impl Function {
    /// The function that a probe belongs to, and its index.
    #[inline]
    pub(crate) fn of_probe(id: ProbeId) -> Option<(u32, &'static Self)> {
        let index = LINKS.get(id.0 as usize)?.function.load(Acquire).checked_sub(1)?;
        Some((index, FUNCTIONS.get(index as usize)?))
    }

    /// Makes a probe one of this function's. Called under the session's lock.
    pub(crate) fn adopt(index: u32, id: ProbeId, kind: ProbeType) -> Option<()> {
        while LINKS.len() <= id.0 as usize {
            LINKS.push_with(|_| ProbeLink::default())?;
        }
        let (function, link) = (FUNCTIONS.get(index as usize)?, LINKS.get(id.0 as usize)?);
        let head = function.probes(kind);
        link.next.store(head.load(Relaxed), Relaxed);
        link.function.store(index + 1, Release);
        head.store(id.0 + 1, Release);
        Some(())
    }

    fn probes(&self, kind: ProbeType) -> &AtomicU32 {
        match kind {
            ProbeType::Entry => &self.entry_probes,
            ProbeType::Exit => &self.exit_probes,
        }
    }

    /// Calls `act` for each probe of a kind.
    pub(crate) fn for_each_probe(&self, kind: ProbeType, mut act: impl FnMut(ProbeId)) {
        let mut next = self.probes(kind).load(Acquire);
        while let Some(id) = next.checked_sub(1) {
            act(ProbeId(id));
            next = LINKS.get(id as usize).map_or(0, |link| link.next.load(Acquire));
        }
    }

    /// Whether the probes of a kind are on now: what a probe that is found later begins with.
    pub(crate) fn has_on(&self, kind: ProbeType) -> bool {
        match kind {
            ProbeType::Entry => self.observation.load(Relaxed) > 0 && !self.is_closed.load(Relaxed),
            ProbeType::Exit => self.observation.load(Relaxed) > 0 && self.exit_period().is_multiple_of(2),
        }
    }

    fn switch_off(&self, kind: ProbeType) {
        // A refusal (an unloaded library, text still shared with the parent process) leaves the probe firing, which costs
        // time; its entries do not count.
        self.for_each_probe(kind, |id| _ = fastinst::deactivate(id));
    }

    /// An entry at this moment: whether it is observed, and as what.
    #[inline]
    pub(crate) fn enter(&self, index: u32, now: u64, thread: &impl OwnTime) -> Entered {
        // Acquire: pairs with the Release in `observe`, which sets the rest first.
        if now < self.opens.load(Acquire) {
            return Entered::Early;
        }
        let closes = self.closes.load(Relaxed);
        if now >= closes && !self.is_still_open(now, closes, thread) {
            return Entered::Not;
        }
        let number = self.entries.fetch_add(1, Relaxed) + 1;
        let limit = self.limit.load(Relaxed);
        if number == self.middle.load(Relaxed) {
            self.middle_at.store(now, Relaxed);
        }
        if number >= limit {
            if number > limit {
                return Entered::Not;
            }
            self.reached_limit(index, number, now);
        }
        if number == 1 && self.known.load(Relaxed) == 0 {
            self.begins_for(thread);
        }
        self.open.fetch_add(1, SeqCst);
        Entered::Observed(Observed {
            observation: self.observation.load(Relaxed),
            period: self.exit_period(),
            weight: f32::from_bits(self.weight.load(Relaxed)),
            is_cold: number <= COLD && !self.is_on.load(Relaxed),
        })
    }

    /// What this thread spends in probes from now on is not the window's time. Called after each early entry, and for the first that
    /// counts if there was none.
    pub(crate) fn begins_for(&self, thread: &impl OwnTime) {
        self.spent_before.store(thread.spent(), Relaxed);
        self.known.store(thread.number(), Relaxed);
    }

    /// Whether the window is open for a thread that has spent time in probes since it opened. If it is over for all threads, closes it.
    #[cold]
    fn is_still_open(&self, now: u64, closes: u64, thread: &impl OwnTime) -> bool {
        if self.is_closed.load(Relaxed) {
            return false;
        }
        // Of other threads it is not known what they have spent since.
        let is_known = self.known.load(Relaxed) == thread.number();
        let before = self.spent_before.load(Relaxed);
        let overhead = if is_known { thread.spent().wrapping_sub(before) } else { 0 };
        if now.saturating_sub(overhead) < closes {
            return true;
        }
        if is_known {
            self.overhead.store(overhead, Relaxed);
        }
        // Another thread may have spent more.
        let opens = self.opens.load(Relaxed);
        if thread.is_alone() || now > closes + STRETCH * closes.saturating_sub(opens) {
            self.close();
        }
        false
    }

    /// The observation is over: the entry probes go off, and the exit probes unless a call is open.
    #[cold]
    fn close(&self) {
        if self.is_closed.swap(true, SeqCst) {
            return;
        }
        self.switch_off(ProbeType::Entry);
        if self.open.load(SeqCst) == 0 {
            self.end_exits();
        }
    }

    /// The entry with the number of the limit.
    #[cold]
    fn reached_limit(&self, index: u32, number: u64, now: u64) {
        if self.is_on.load(Relaxed) {
            let elapsed = governor::nanoseconds(now.saturating_sub(self.refilled.load(Relaxed)));
            if let Allowance::More(calls) = Allowance::refilled(elapsed, &governor::intensity()) {
                self.refilled.store(now, Relaxed);
                self.chunk.store(calls.into(), Relaxed);
                self.middle.store(number + u64::from(calls) / 2, Relaxed);
                self.strays_left.store(STRAY_EXITS, Relaxed);
                self.limit.store(number + u64::from(calls), Relaxed);
                return;
            }
        }
        // This entry is the last that counts.
        self.ended.store(now, SeqCst);
        self.opens.store(u64::MAX, SeqCst);
        self.is_closed.store(true, SeqCst);
        self.switch_off(ProbeType::Entry);
        self.put_on_list(index);
    }

    /// The number of the last observation.
    #[inline]
    pub(crate) fn observation(&self) -> u32 {
        self.observation.load(Relaxed)
    }

    /// The exit probes have been on as long as this number stays the same.
    #[inline]
    pub(crate) fn exit_period(&self) -> u32 {
        self.exit_period.load(Relaxed)
    }

    /// An observed call has come out, or is known to be gone: the last one of an observation that is over switches the exit probes off.
    #[inline]
    pub(crate) fn left(&self, period: u32) {
        if period != self.exit_period() {
            return;
        }
        // SeqCst: either this sees that the observation is over, or `close` sees that nothing is open.
        if self.open.fetch_sub(1, SeqCst) == 1 && self.is_closed.load(SeqCst) {
            self.end_exits();
        }
    }

    /// An exit whose entry was not observed.
    #[inline]
    pub(crate) fn stray_exit(&self) {
        if self.strays_left.fetch_sub(1, Relaxed) == 0 {
            self.end_exits();
        }
    }

    #[cold]
    fn end_exits(&self) {
        // Before the code: an exit that is missed is one of an earlier period.
        if self.exit_period.fetch_or(1, SeqCst).is_multiple_of(2) {
            self.switch_off(ProbeType::Exit);
        }
    }

    fn put_on_list(&self, index: u32) {
        if self.is_listed.swap(true, Relaxed) {
            return;
        }
        let mut head = EXHAUSTED.load(Relaxed);
        loop {
            self.next_listed.store(head, Relaxed);
            match EXHAUSTED.compare_exchange_weak(head, index + 1, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        governor::wake_daemon();
    }

    /// Begins an observation, whose number it gives. For the daemon.
    pub(crate) fn observe(&self, observation: &Observation, switch_on: impl Fn(ProbeId, ProbeType)) -> u32 {
        let number = self.prepare(observation, switch_on);
        self.release(observation.opens, observation.closes, observation.weight);
        number
    }

    /// The second half of [`Function::observe`]: from when to when entries count, and for how many. Stores only.
    pub(crate) fn release(&self, opens: u64, closes: u64, weight: f32) {
        self.weight.store(weight.to_bits(), Relaxed);
        self.closes.store(closes, Relaxed);
        // Release: pairs with the Acquire in `enter`.
        self.opens.store(opens, Release);
    }

    /// As [`Function::release`], for a window of a few microseconds. The daemon may have taken the program's processor, or another
    /// process has it: then the window would be over before the program runs again. It opens `delay` after the first entry from
    /// `from` on, if that comes at once but for time in which its thread was preempted; otherwise no call is observed.
    pub(crate) fn release_floating(&self, from: u64, delay: u64, length: u64, weight: f32) {
        self.weight.store(weight.to_bits(), Relaxed);
        self.float_delay.store(delay, Relaxed);
        self.float_length.store(length, Relaxed);
        // Release: pairs with the Acquire in `lands`.
        self.floats_from.store(from, Release);
    }

    /// An early entry of a thread that was preempted for so long lately: a window that waits for it opens.
    #[inline]
    pub(crate) fn lands(&self, now: u64, preempted: impl Fn() -> u64) {
        let from = self.floats_from.load(Acquire);
        if from == 0 || now < from || self.floats_from.compare_exchange(from, 0, SeqCst, Relaxed).is_err() {
            return;
        }
        let is_at_once = now - from <= AT_ONCE || now - from <= AT_ONCE + preempted();
        let opens = if is_at_once { now + self.float_delay.load(Relaxed) } else { 0 };
        let closes = if is_at_once { opens + self.float_length.load(Relaxed) } else { 0 };
        self.closes.store(closes, Relaxed);
        self.opens.store(opens, Release);
    }

    /// The first half of [`Function::observe`]: the probes are on, and nothing counts yet.
    pub(crate) fn prepare(&self, observation: &Observation, switch_on: impl Fn(ProbeId, ProbeType)) -> u32 {
        self.opens.store(u64::MAX, SeqCst);
        let number = self.observation.load(Relaxed).wrapping_add(1).max(1);
        self.observation.store(number, Relaxed);
        self.floats_from.store(0, Relaxed);
        self.known.store(0, Relaxed);
        self.overhead.store(0, Relaxed);
        self.entries.store(0, Relaxed);
        self.limit.store(observation.limit, Relaxed);
        let is_on = observation.closes == u64::MAX;
        self.strays_left.store(if is_on { STRAY_EXITS } else { STRAY_EXITS_IN_WINDOW }, Relaxed);
        self.is_on.store(is_on, Relaxed);
        self.refilled.store(observation.opens, Relaxed);
        self.chunk.store(observation.limit, Relaxed);
        self.middle.store(observation.limit / 2, Relaxed);
        self.is_listed.store(false, Relaxed);
        self.closes.store(u64::MAX, Relaxed);
        let period = self.exit_period();
        if !period.is_multiple_of(2) {
            self.open.store(0, Relaxed);
            self.for_each_probe(ProbeType::Exit, |id| switch_on(id, ProbeType::Exit));
            self.exit_period.store(period.wrapping_add(1), SeqCst);
        }
        let was_closed = self.is_closed.swap(false, SeqCst);
        if was_closed || number == 1 {
            self.for_each_probe(ProbeType::Entry, |id| switch_on(id, ProbeType::Entry));
        }
        number
    }

    /// What the observation has counted so far. For the daemon.
    pub(crate) fn counted(&self) -> Counted {
        let (entries, limit) = (self.entries.load(Acquire), self.limit.load(Relaxed));
        let exceeded = (entries >= limit && self.is_listed.load(Relaxed)).then(|| {
            let at = self.ended.load(Relaxed);
            let calls = limit.saturating_sub(self.middle.load(Relaxed));
            let ticks = at.saturating_sub(self.middle_at.load(Relaxed));
            Exceeded { at, rate: calls as f64 / ticks.max(1) as f64 }
        });
        Counted { entries: entries.min(limit), exceeded, overhead: self.overhead.load(Relaxed) }
    }

    /// Nothing is observed, and the probes of both kinds count as off: a new function, or one of a forked child, whose code is in
    /// whatever state the parent had it in. The next observation switches them on.
    pub(crate) fn reset(&self) {
        self.opens.store(u64::MAX, Relaxed);
        self.open.store(0, Relaxed);
        self.exit_period.fetch_or(1, Relaxed);
        self.is_closed.store(true, Relaxed);
        self.is_listed.store(false, Relaxed);
    }
}

/// Takes the functions that have used their allowance up since the last call. For the daemon.
pub(crate) fn take_exhausted() -> Vec<u32> {
    let mut taken = Vec::new();
    let mut next = EXHAUSTED.swap(0, Acquire);
    while let Some(index) = next.checked_sub(1) {
        taken.push(index);
        next = FUNCTIONS.get(index as usize).map_or(0, |function| function.next_listed.load(Relaxed));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that has spent this in probes.
    struct Own(u64);

    impl OwnTime for Own {
        fn number(&self) -> usize {
            1
        }

        fn spent(&self) -> u64 {
            self.0
        }

        fn is_alone(&self) -> bool {
            true
        }
    }

    fn enter(function: &Function, now: u64, own: &Own) -> Option<Observed> {
        match function.enter(0, now, own) {
            Entered::Observed(observed) => Some(observed),
            Entered::Early => {
                function.begins_for(own);
                None
            }
            Entered::Not => None,
        }
    }

    #[test]
    fn time_in_probes_makes_a_window_longer() {
        let function = Function::default();
        observed(&function, 1000, 200);
        assert!(enter(&function, 90, &Own(1000)).is_none());
        assert!(enter(&function, 150, &Own(1030)).is_some());
        assert!(enter(&function, 349, &Own(1150)).is_some(), "its own time is 199");
        assert!(enter(&function, 350, &Own(1150)).is_none());
        assert!(!function.has_on(ProbeType::Entry));
        assert_eq!(function.counted().overhead, 150);
    }

    fn observed(function: &Function, limit: u64, closes: u64) -> u32 {
        function.reset();
        function.observe(&Observation { opens: 100, closes, limit, weight: 2.0 }, |_, _| {})
    }

    #[test]
    fn entries_count_from_the_opening_to_the_closing() {
        let function = Function::default();
        let number = observed(&function, 1000, 200);
        assert_eq!(enter(&function, 99, &Own(0)), None);
        let first = enter(&function, 100, &Own(0)).unwrap();
        assert_eq!((first.observation, first.weight, first.period % 2), (number, 2.0, 0));
        assert!(enter(&function, 199, &Own(0)).is_some());
        assert_eq!(function.counted().entries, 2);
        assert_eq!(enter(&function, 200, &Own(0)), None);
        assert!(!function.has_on(ProbeType::Entry) && function.has_on(ProbeType::Exit), "two calls are open");
        assert_eq!(enter(&function, 201, &Own(0)), None);
        assert_eq!((function.counted().entries, function.counted().exceeded), (2, None));
        function.left(first.period);
        assert!(function.has_on(ProbeType::Exit));
        function.left(first.period);
        assert!(!function.has_on(ProbeType::Exit), "the last one is out");
        function.left(first.period);
        assert_eq!(function.open.load(Relaxed), 0, "one of an earlier period");
    }

    #[test]
    fn a_window_ends_with_its_limit_and_says_when() {
        let function = Function::default();
        observed(&function, 3, 1000);
        (0..3).for_each(|at| assert!(enter(&function, 100 + at, &Own(0)).is_some()));
        assert_eq!(enter(&function, 103, &Own(0)), None);
        let exceeded = Some(Exceeded { at: 102, rate: 1.0 });
        assert_eq!(function.counted(), Counted { entries: 3, exceeded, overhead: 0 });
        take_exhausted();
    }

    #[test]
    fn a_floating_window_opens_when_the_program_runs() {
        let function = Function::default();
        let check = |at: u64, preempted: u64, expected: bool| {
            observed(&function, 1000, 0);
            function.opens.store(u64::MAX, Relaxed);
            function.release_floating(1000, 10, 50, 2.0);
            assert!(enter(&function, 900, &Own(0)).is_none());
            function.lands(900, || 0);
            assert!(enter(&function, at, &Own(0)).is_none());
            function.lands(at, || preempted);
            assert!(enter(&function, at + 9, &Own(0)).is_none());
            assert_eq!(enter(&function, at + 10, &Own(0)).is_some(), expected);
            assert!(enter(&function, at + 60, &Own(0)).is_none());
        };
        check(1100, 0, true);
        check(1000 + 2 * AT_ONCE, 0, false);
        check(1000 + 2 * AT_ONCE, AT_ONCE, true);
    }

    #[test]
    fn too_many_exits_of_other_calls_end_the_exit_period() {
        let function = Function::default();
        observed(&function, 1000, 1000);
        let entry = enter(&function, 150, &Own(0)).unwrap();
        (0..=STRAY_EXITS_IN_WINDOW).for_each(|_| function.stray_exit());
        assert!(!function.has_on(ProbeType::Exit));
        function.left(entry.period);
        let next =
            function.observe(&Observation { opens: 0, closes: 1000, limit: 10, weight: 1.0 }, |_, _| {});
        assert_eq!(function.open.load(Relaxed), 0, "what was open then is nothing to this period");
        assert_eq!(next, entry.observation + 1);
        assert!(function.has_on(ProbeType::Exit));
    }

    #[test]
    fn calls_that_are_open_keep_the_exit_probes_on_through_the_next_window() {
        let function = Function::default();
        observed(&function, 1000, 200);
        let outer = enter(&function, 150, &Own(0)).unwrap();
        enter(&function, 300, &Own(0));
        function.observe(&Observation { opens: 400, closes: 500, limit: 10, weight: 1.0 }, |_, kind| {
            assert_eq!(kind, ProbeType::Entry, "the exit probes are on");
        });
        assert_eq!(function.exit_period(), outer.period);
    }
}
