//! The state of a function that all threads share: its probes, and the current observation.
//!
//! An *observation* is a period in which all entries count and are paired with their exits: a time
//! during which the function is on, or a window ([`crate::observe::policy`]). There is no central
//! control; each step is made by the thread that causes it:
//!
//! 1. The service thread begins an observation: it sets the limits, then activates the exit probes,
//!    then the entry probes.
//! 2. The first entry after that determines the times of a window. A window is a period of the
//!    program's *own time*, which excludes probes and preemption. It begins [`Window::delay`] after
//!    the service thread's last store, and later if the thread was preempted in between
//!    ([`REFILL`]). If the window is already over at this entry, it had no calls.
//! 3. Entries before `opens` do not count. Later entries are numbered; the entry with the number
//!    `limit` either refills the allowance or ends the observation.
//! 4. The first entry after `closes` deactivates the entry probes, unless its thread has lost time
//!    to probes or preemption since the window opened: then the window is extended by this time. No
//!    timer is needed, so late timers have no effect.
//! 5. The exit probes stay on until all calls of the observation have returned. The thread that
//!    makes the last exit deactivates them, as does a thread that finds too many exits of calls
//!    that were entered before or after ([`exits`]).
//! 6. The service thread reads the number of entries after the end of the observation, and begins
//!    the next one, unless a thread is still deactivating probes ([`crate::observe::switching`]),
//!    or the program has not had a processor for as long as the window takes
//!    ([`Function::is_unfinished`]).
//!
//! A small function may have been inlined at a thousand sites, of which a run of the program
//! executes ten. Only probes that have been *executed* are toggled for an observation. The others
//! are on all the time, at no cost. A probe that is executed for the first time is added to a list;
//! if there is no observation at that time, the thread that executed the probe deactivates it.

mod cut_off;
pub(crate) mod details;
mod exits;
mod lost;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use fastinst::ProbeId;
use fastinst_sigsafe::Segments;

use self::details::{Detailed, Details};
use self::exits::STRAY_EXITS;
use crate::observe::policy::Allowance;
use crate::observe::probe_type::ProbeType;
use crate::observe::rare_calls::RESERVE;
use crate::observe::switching::{Entries, EntrySwitch, ExitSwitch, Phase};
use crate::observe::{governor, long_calls};

/// One in this number of windows is patient ([`Window::is_patient`]).
pub(crate) const PATIENT: u32 = 8;

/// The function of a probe, and the next probes of the same function and kind.
#[derive(Default)]
pub(crate) struct ProbeLink {
    /// Index of the function plus one; 0 for a probe that is not ours.
    function: AtomicU32,
    /// Index of the next probe plus one; 0 for none.
    next: AtomicU32,
    /// The same for the next executed probe. [`NOT_EXECUTED`] if this probe has not been executed.
    next_executed: AtomicU32,
}

impl ProbeLink {
    fn next(&self, set: ProbeSet) -> u32 {
        match set {
            ProbeSet::All => self.next.load(Acquire),
            ProbeSet::Executed => self.next_executed.load(Acquire),
        }
    }
}

/// See [`ProbeLink::next_executed`]. No probe has this index.
const NOT_EXECUTED: u32 = u32::MAX;

/// A set of a function's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeSet {
    All,
    Executed,
}

/// Bytes of memory of the links between probes and functions.
pub(crate) fn memory_of_links() -> usize {
    LINKS.len() * size_of::<ProbeLink>()
}

/// A probe that is being executed.
#[derive(Clone, Copy)]
pub(crate) struct Executed {
    /// Index of the probe's function.
    pub(crate) index: u32,
    pub(crate) function: &'static Function,
    link: &'static ProbeLink,
}

/// There may be a million functions.
const _: () = assert!(size_of::<Function>() == 128);

/// Links, indexed by probe id.
static LINKS: Segments<ProbeLink> = Segments::new();

/// The functions, in order of discovery.
pub(crate) static FUNCTIONS: Segments<Function> = Segments::new();

/// Head of the list of functions that have exhausted their allowance: index plus one.
static EXHAUSTED: AtomicU32 = AtomicU32::new(0);

/// A function. It does not share cache lines with others, so threads that call different functions
/// do not contend for them. Times are in ticks.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Function {
    /// The observation: its start and end, the number of entries, and their limit.
    opens: AtomicU64,
    closes: AtomicU64,
    entries: AtomicU64,
    limit: AtomicU64,
    /// For a window whose times are not determined yet: the time at which it was begun, or 0.
    pending_since: AtomicU64,
    /// The number of calls that were counted in all counting windows.
    calls: AtomicU64,
    /// Calls of this exit period that were entered before this time would have been cut off if
    /// their window had not been patient; 0 for none.
    late_before: AtomicU64,
    /// What most functions do not need.
    details: Detailed,
    entry_switch: EntrySwitch,
    exit_switch: ExitSwitch,
    /// The number of entries from the middle between the last refill of the allowance and the limit
    /// to the limit.
    second_half: AtomicU32,
    /// The weight of the observation's calls, as the bits of an f32.
    weight: AtomicU32,
    /// The number of open calls that were entered in this exit period.
    open: AtomicU32,
    /// The number of exits of other calls that are still tolerated.
    strays_left: AtomicI32,
    /// Entries that did not count while the function was on, because their threads were in a probe.
    interrupting: AtomicU32,
    next_listed: AtomicU32,
    /// For each kind of probes, see [`Function::probes`].
    probes: [ProbeLists; 2],
    /// The number of executed probes of both kinds.
    executed: AtomicU32,
    /// Whether the function is on, as opposed to being in a window.
    is_on: AtomicBool,
    is_listed: AtomicBool,
    /// Whether the window ends at its limit rather than at a certain time.
    is_limited: AtomicBool,
    /// See [`Window::is_patient`].
    is_patient: AtomicBool,
    /// Whether the probes that have not been executed are off as well.
    are_all_off: AtomicBool,
    /// Whether an [engine](crate::embedded) toggles the probes: see [`ProbeLists::all`].
    has_ids: AtomicBool,
}

/// The probes of one kind: the index of the first one plus one, or 0.
#[derive(Default)]
struct ProbeLists {
    /// If an engine toggles the probes: the id that stands for all of them, or 0.
    all: AtomicU32,
    executed: AtomicU32,
}

/// The maximum extension of a window, relative to its length, for threads that spend most of their
/// time in probes.
const STRETCH: u64 = 8;

/// The time of the entering thread that is not the program's own, in ticks.
pub(crate) trait OwnTime {
    /// The thread's number, which is not 0.
    fn number(&self) -> usize;
    /// The total time that the thread has spent in probes.
    fn spent(&self) -> u64;
    /// The total time for which the thread was preempted.
    fn preempted(&self) -> u64;
    /// The time for which the thread was preempted since the service thread began a window at the
    /// time `since`, or only a part of it if the service thread has begun windows in many ticks
    /// since.
    fn preempted_since(&self, since: u64) -> u64;
    /// The current time, in a probe that began at the time `began`.
    fn now(&self, began: u64) -> u64;
    /// Whether this is the only thread.
    fn is_alone(&self) -> bool;
    /// Records the time that the thread has spent in probes, at an entry in this window: the first
    /// one, or any of them.
    fn enters_window(&self, window: WindowNumber);
    /// The time that the thread has spent in probes since its first entry in this window; `None` if
    /// it made none, or if the time is no longer known.
    fn spent_since_entry(&self, window: WindowNumber) -> Option<u64>;
}

/// A window of a function, identified by the numbers of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowNumber {
    pub(crate) function: u32,
    pub(crate) observation: u32,
}

/// The number of entries of a window that execute code that was just rewritten.
const COLD: u64 = 2;

/// The time, in ticks, by which a window opens later if the thread was preempted after the window
/// was begun: a few tens of microseconds, in which the caches are filled again. Windows that are
/// begun while the thread has no processor would all be at the beginning of its time slices, and
/// represent the milliseconds after that.
pub(crate) const REFILL: u64 = 130_000;

/// In ticks; a shorter preemption may be an error of the kernel's figures.
const MIN_PREEMPTION: u64 = 20_000;

/// The length of a window that ends at its limit.
const FOR_EVER: u64 = 1 << 60;

/// How an entry is treated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Entered {
    /// The window is about to open.
    Early,
    /// The entry does not count.
    Not,
    Observed(Observed),
}

/// The observation of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observed {
    pub(crate) observation: u32,
    pub(crate) period: u32,
    pub(crate) weight: f32,
    /// Whether this is one of the first entries of a window: its code, and that of its probes, was
    /// just rewritten.
    pub(crate) is_cold: bool,
}

/// The kinds of observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observation {
    /// Every entry counts, up to an allowance.
    On,
    /// Entries count from the opening to the closing.
    Window { is_patient: bool },
}

/// A window to be opened. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The own time from now until the window opens.
    pub(crate) delay: u64,
    /// The window's length in own time; `None` if it ends at its limit, however long that takes.
    pub(crate) length: Option<u64>,
    /// The maximum number of entries that count.
    pub(crate) limit: u64,
    /// The number of calls that each observed one represents.
    pub(crate) weight: f32,
    /// The total time that the program's threads have spent in probes.
    pub(crate) spent: u64,
    /// Whether the exit probes stay on for much longer than usual, while calls are open and other
    /// threads call the function.
    pub(crate) is_patient: bool,
}

/// The counts of an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) entries: u64,
    /// The end at the limit, if it was reached.
    pub(crate) exceeded: Option<Exceeded>,
    /// Time that a thread spent in probes during the window, in ticks.
    pub(crate) overhead: u64,
}

/// The end of an observation at its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exceeded {
    /// The time at which the limit was reached, in ticks.
    pub(crate) at: u64,
    /// The rate at the end, in calls per tick of the program's own time: over the second half of
    /// the allowance, since the first may have begun long before the function became hot.
    pub(crate) rate: f64,
}

impl Function {
    /// The function to which a probe belongs.
    #[inline]
    pub(crate) fn of_probe(id: ProbeId) -> Option<Executed> {
        let link = LINKS.get(id.0 as usize)?;
        let index = link.function.load(Acquire).checked_sub(1)?;
        Some(Executed { index, function: FUNCTIONS.get(index as usize)?, link })
    }

    /// Adds a probe to this function. Called under the session's lock.
    pub(crate) fn adopt(index: u32, id: ProbeId, kind: ProbeType) -> Option<()> {
        while LINKS.len() <= id.0 as usize {
            LINKS.push_with(|_| ProbeLink::default())?;
        }
        let (function, link) = (FUNCTIONS.get(index as usize)?, LINKS.get(id.0 as usize)?);
        let head = &function.probes(kind).all;
        link.next.store(head.load(Relaxed), Relaxed);
        link.next_executed.store(NOT_EXECUTED, Relaxed);
        link.function.store(index + 1, Release);
        head.store(id.0 + 1, Release);
        Some(())
    }

    fn probes(&self, kind: ProbeType) -> &ProbeLists {
        match kind {
            ProbeType::Entry => &self.probes[0],
            ProbeType::Exit => &self.probes[1],
        }
    }

    /// Calls `act` for each of these probes of a kind.
    fn for_each_probe(&self, kind: ProbeType, set: ProbeSet, mut act: impl FnMut(ProbeId)) {
        if self.has_ids.load(Acquire) {
            return match self.probes(kind).all.load(Relaxed) {
                0 => {}
                id => act(ProbeId(id)),
            };
        }
        let lists = self.probes(kind);
        let first = match set {
            ProbeSet::All => &lists.all,
            ProbeSet::Executed => &lists.executed,
        };
        let mut next = first.load(Acquire);
        while let Some(id) = next.checked_sub(1) {
            act(ProbeId(id));
            next = LINKS.get(id as usize).map_or(0, |link| link.next(set));
        }
    }

    /// The number of probes that an observation toggles.
    pub(crate) fn executed_probes(&self) -> u32 {
        self.executed.load(Relaxed)
    }

    /// Gives the function an id for its entry probes, followed by one for its exit probes; or
    /// removes its probes.
    pub(crate) fn set_ids(&self, entry: Option<ProbeId>) {
        self.probes[0].all.store(entry.map_or(0, |id| id.0), Relaxed);
        self.probes[1].all.store(entry.map_or(0, |id| id.0 + 1), Relaxed);
        self.has_ids.store(true, Release);
    }

    /// Whether a probe that is found now is to be activated.
    pub(crate) fn wants_probes(&self) -> bool {
        !self.are_all_off.load(Relaxed)
    }

    /// Whether the probes of a kind that have been executed are on.
    #[cfg(test)]
    pub(crate) fn has_on(&self, kind: ProbeType) -> bool {
        match kind {
            ProbeType::Entry => !self.entry_switch.now().are_over(),
            ProbeType::Exit => self.exit_switch.phase() == Phase::On,
        }
    }

    fn switch_off(&self, kind: ProbeType, set: ProbeSet) {
        // After an error (an unloaded library, text still shared with the parent process), the
        // probe continues to fire, which costs time; its entries do not count.
        self.for_each_probe(kind, set, |id| _ = fastinst::deactivate(id));
    }

    /// Counts a call in a counting window.
    #[inline]
    pub(crate) fn count(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    /// As [`Function::count`], while no other thread calls the function: without a locked
    /// instruction, which takes several times as long. If there is another one, some calls are
    /// missing.
    #[inline]
    pub(crate) fn count_alone(&self) {
        self.calls.store(self.calls.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// The number of calls that were counted in all counting windows.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Activates the entry probes to count calls, after [`Function::stop`]. The function is not
    /// observed otherwise. Returns false, and does nothing, while a thread is deactivating a probe.
    pub(crate) fn begin_counting(&self, switch_on: impl Fn(ProbeId)) -> bool {
        self.entry_switch.begin_counting(|| {
            self.for_each_probe(ProbeType::Entry, ProbeSet::Executed, switch_on);
        })
    }

    /// Ends the observation, if there is one: no entry counts from now on, except for that of a
    /// thread which is about to count it. Returns whether the entry probes are off; this is false
    /// while another thread is deactivating them. Called by the service thread.
    pub(crate) fn stop(&self) -> bool {
        self.opens.store(u64::MAX, SeqCst);
        self.pending_since.store(0, SeqCst);
        let is_off = self.entry_switch.end_any(|| self.switch_off(ProbeType::Entry, ProbeSet::Executed));
        if is_off {
            self.end_exits_if_unused(self.observation());
        }
        is_off
    }

    /// As [`Function::stop`], for longer: entry probes that have not been executed are deactivated,
    /// too. Exit probes stay on while observed calls are open, or until they are executed.
    pub(crate) fn suspend(&self) {
        self.stop();
        self.are_all_off.store(true, Relaxed);
        self.switch_off(ProbeType::Entry, ProbeSet::All);
    }

    /// As [`Function::suspend`]; all exit probes are deactivated as well, whichever calls are open.
    pub(crate) fn end(&self) {
        self.suspend();
        self.end_exits(self.exit_period(), || true);
        self.switch_off(ProbeType::Exit, ProbeSet::All);
    }

    /// Whether a thread is deactivating probes, or is determining the times of a window: no
    /// observation can begin or be evaluated.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.entry_switch.now().phase, Phase::Placing | Phase::SwitchingOff)
            || self.exit_switch.phase() == Phase::SwitchingOff
    }

    /// Ends what [`Function::begin_counting`] has begun.
    pub(crate) fn end_counting(&self) {
        self.entry_switch.end_counting(|| self.switch_off(ProbeType::Entry, ProbeSet::Executed));
    }

    /// Handles an entry that is not observed. If the function's probes are off, this one was
    /// executed for the first time: it is deactivated, too, unless calls are being counted.
    #[inline]
    pub(crate) fn unobserved_entry(&self, id: ProbeId) {
        match self.entry_switch.now().phase {
            Phase::Off => self.entry_switch.while_off(|| _ = fastinst::deactivate(id)),
            Phase::Counting => self.count(),
            Phase::On | Phase::Held | Phase::Placing | Phase::SwitchingOff => {}
        }
    }

    /// Handles an entry at the time `now`: returns whether it is observed, and how.
    #[inline]
    pub(crate) fn enter(&self, index: u32, now: u64, thread: &impl OwnTime) -> Entered {
        // Before the times, so that they are not those of an earlier observation.
        let entries = self.entry_switch.now();
        // Acquire: pairs with the Release in `turn_on` and `place`, which set the other fields
        // first.
        if now < self.opens.load(Acquire)
            && (self.pending_since.load(Acquire) == 0 || !self.place(now, entries, thread))
        {
            return Entered::Early;
        }
        let closes = self.closes.load(Relaxed);
        if now >= closes && !self.is_still_open(index, now, closes, entries, thread) {
            return Entered::Not;
        }
        let number = self.entries.fetch_add(1, Relaxed) + 1;
        let limit = self.limit.load(Relaxed);
        if number == limit.wrapping_sub(self.second_half.load(Relaxed).into()) {
            let details = self.details.get_or_make();
            details.middle_at.store(now, Relaxed);
            details.middle_lost.note(thread);
        }
        if number >= limit {
            let is_limited = self.is_limited.load(Relaxed);
            if number > limit {
                if is_limited {
                    self.close(entries.observation);
                }
                return Entered::Not;
            }
            if !is_limited {
                self.reached_limit(index, now, entries, thread);
            }
        }
        let is_in_window = !self.is_on.load(Relaxed);
        if is_in_window {
            if number == 1 && self.details.get_or_make().before.is_empty() {
                self.begins_for(thread);
            }
            thread.enters_window(WindowNumber { function: index, observation: entries.observation });
        }
        self.open.fetch_add(1, SeqCst);
        Entered::Observed(Observed {
            observation: self.observation(),
            period: self.exit_period(),
            weight: f32::from_bits(self.weight.load(Relaxed)),
            is_cold: number <= COLD && is_in_window,
        })
    }

    /// Records an entry in a signal handler that has interrupted a probe, which cannot be observed.
    #[cold]
    pub(crate) fn lost_entry(&self) {
        if self.is_on.load(Relaxed) && !self.entry_switch.now().are_over() {
            self.interrupting.fetch_add(1, Relaxed);
        }
    }

    /// The number of entries that were not counted since [`Function::reset`], while the function
    /// was on.
    pub(crate) fn lost_entries(&self) -> u64 {
        self.interrupting.load(Relaxed).into()
    }

    /// Excludes from the window's time the time that this thread spends in probes from now on,
    /// unless that of another thread is excluded. Called after each early entry, and for the first
    /// that counts if there was none.
    pub(crate) fn begins_for(&self, thread: &impl OwnTime) {
        self.details.get_or_make().before.note_if_first(thread);
    }

    /// At the first entry after the service thread has begun a window: determines the window's
    /// start and end. Returns whether it is already open.
    #[cold]
    fn place(&self, now: u64, entries: Entries, thread: &impl OwnTime) -> bool {
        let mut is_open = false;
        self.entry_switch.place(entries.observation, || {
            let since = self.pending_since.load(Acquire);
            if since > 0 && now >= since {
                is_open = self.place_after(since, now, thread);
                self.pending_since.store(0, SeqCst);
            }
        });
        if now >= self.closes.load(Relaxed) {
            self.close(entries.observation);
        }
        is_open
    }

    /// Determines the times of a window that was begun at `since`, in a probe that began at
    /// `began`. Returns whether it is open.
    fn place_after(&self, since: u64, began: u64, thread: &impl OwnTime) -> bool {
        let details = self.details.get_or_make();
        let (delay, length) = (details.delay.load(Relaxed), details.length.load(Relaxed));
        let spent = if thread.is_alone() {
            thread.spent().saturating_sub(details.spent_by_then.load(Relaxed))
        } else {
            0
        };
        let preempted = thread.preempted_since(since);
        // The thread may have been preempted in this probe, and have measured that, too.
        let now = if preempted > 0 { thread.now(began) } else { began };
        // Of a window that ends at its limit, only the latencies are used.
        let is_cold = preempted > MIN_PREEMPTION && !self.is_limited.load(Relaxed);
        let delay = if is_cold { delay + REFILL } else { delay };
        let own = (now - since).saturating_sub(preempted + spent);
        let (opens, closes) = ((now + delay).saturating_sub(own), (now + delay + length).saturating_sub(own));
        if closes <= now {
            // For this probe, too, the window is over; it deactivates the others.
            self.closes.store(began, Relaxed);
            return false;
        }
        self.closes.store(closes, Relaxed);
        self.opens.store(opens, Release);
        self.begins_for(thread);
        opens <= now
    }

    /// Whether the window is open for a thread that has lost time since it opened. If it is over
    /// for all threads, closes it.
    #[cold]
    fn is_still_open(
        &self,
        index: u32,
        now: u64,
        closes: u64,
        entries: Entries,
        thread: &impl OwnTime,
    ) -> bool {
        if entries.are_over() {
            return false;
        }
        let details = self.details.get_or_make();
        let lost = details.before.since(thread);
        let (overhead, preempted) = lost.unwrap_or_else(|| {
            // For other threads, it is known from their first entry on, without preemption: that is
            // mostly time in which they make no entries.
            let window = WindowNumber { function: index, observation: entries.observation };
            (thread.spent_since_entry(window).unwrap_or(0), 0)
        });
        if now.saturating_sub(overhead + preempted) < closes {
            return true;
        }
        if lost.is_some() {
            details.overhead.store(overhead, Relaxed);
        }
        // Another thread may have spent more.
        let opens = self.opens.load(Relaxed);
        if thread.is_alone() || now > closes + STRETCH * closes.saturating_sub(opens) {
            self.close(entries.observation);
        }
        false
    }

    /// Ends an observation: deactivates the entry probes, and the exit probes unless a call is
    /// open.
    #[cold]
    fn close(&self, observation: u32) {
        if self.entry_switch.end(observation, || self.switch_off(ProbeType::Entry, ProbeSet::Executed)) {
            self.end_exits_if_unused(observation);
        }
    }

    /// Whether an observation is over, and none has begun since.
    fn is_over(&self, observation: u32) -> bool {
        let now = self.entry_switch.now_ordered();
        now.observation == observation && now.are_over()
    }

    /// Handles the entry whose number equals the limit.
    #[cold]
    fn reached_limit(&self, index: u32, now: u64, entries: Entries, thread: &impl OwnTime) {
        let observation = self.observation();
        if observation != entries.observation && self.entries.load(SeqCst) < self.limit.load(SeqCst) {
            // It was the limit of an earlier observation.
            return;
        }
        let is_on = self.is_on.load(Relaxed);
        let details = self.details.get_or_make();
        if is_on {
            let refilled = match details.refilled.load(Relaxed) {
                0 => self.opens.load(Relaxed),
                refilled => refilled,
            };
            let elapsed = governor::nanoseconds(now.saturating_sub(refilled));
            let inside = governor::nanoseconds(details.inside.swap(0, Relaxed));
            let intensity = governor::intensity();
            if let Allowance::More(calls) = Allowance::refilled(elapsed, inside, &intensity) {
                let for_rare = intensity.added_for_rare(elapsed);
                RESERVE.take(for_rare);
                let for_rare = details.for_rare.swap(for_rare as u32, Relaxed);
                if details.refilled.swap(now, Relaxed) != 0 {
                    let used = 2 * self.second_half.load(Relaxed);
                    long_calls::add(used.saturating_sub(for_rare).into());
                }
                self.second_half.store(calls - calls / 2, Relaxed);
                self.strays_left.store(STRAY_EXITS, Relaxed);
                // Other threads may have entered in the meantime: one of them must reach the new
                // limit.
                loop {
                    let limit = self.entries.load(SeqCst) + u64::from(calls);
                    self.limit.store(limit, SeqCst);
                    if self.entries.load(SeqCst) < limit {
                        return;
                    }
                }
            }
        }
        let (spent, preempted) = details.middle_lost.since(thread).unwrap_or_default();
        let passed = now.saturating_sub(details.middle_at.load(Relaxed)).saturating_sub(preempted);
        // The time of probes is known only roughly. If calls take little other time, the estimate
        // has a lower bound.
        let own = passed.saturating_sub(spent).max(passed / STRETCH);
        // This is the last entry that counts.
        let is_ended = self.entry_switch.end(observation, || {
            details.own_since_middle.store(own, Relaxed);
            details.ended.store(now, SeqCst);
            self.opens.store(u64::MAX, SeqCst);
            self.switch_off(ProbeType::Entry, ProbeSet::Executed);
            details.exceeded_in.store(observation, SeqCst);
        });
        // A window that was cut short is examined when its stratum is over.
        if is_ended && is_on {
            self.put_on_list(index);
        }
    }

    /// The number of the last observation.
    #[inline]
    pub(crate) fn observation(&self) -> u32 {
        self.entry_switch.now().observation
    }

    /// The number of the observation if all entries at the time `now` belong to it, otherwise a
    /// number that no entry has.
    #[inline]
    pub(crate) fn observation_of_all(&self, now: u64) -> u32 {
        // Before the times, as in `enter`.
        let entries = self.entry_switch.now();
        let belong = matches!(entries.phase, Phase::On | Phase::Placing)
            && (self.opens.load(Acquire)..self.closes.load(Relaxed)).contains(&now)
            && self.entries.load(Relaxed) <= self.limit.load(Relaxed);
        if belong { entries.observation } else { entries.observation.wrapping_add(1 << 31) }
    }

    /// Records that a long call, which took `ticks`, has returned.
    #[cold]
    pub(crate) fn earn(&self, ticks: u64) {
        self.details.get_or_make().inside.fetch_add(ticks, Relaxed);
    }

    fn put_on_list(&self, index: u32) {
        if self.is_listed.swap(true, AcqRel) {
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
        governor::wake_service_thread();
    }

    /// Switches the function on: every entry counts from now on, up to a limit. Returns false, and
    /// does nothing, while a thread is deactivating probes. Called by the service thread.
    pub(crate) fn turn_on(
        &self,
        now: u64,
        limit: u64,
        weight: f32,
        switch_on: impl Fn(ProbeId, ProbeType),
    ) -> bool {
        if self.begin(Observation::On, limit, switch_on).is_none() {
            return false;
        }
        self.weight.store(weight.to_bits(), Relaxed);
        // Release: pairs with the Acquire in `enter`.
        self.opens.store(now, Release);
        true
    }

    /// Begins a window at `now`, and returns the number of the observation; `None`, without any
    /// effect, while a thread is deactivating probes. Called by the service thread.
    pub(crate) fn open(
        &self,
        now: u64,
        window: &Window,
        switch_on: impl Fn(ProbeId, ProbeType),
    ) -> Option<u32> {
        let kind = Observation::Window { is_patient: window.is_patient };
        let number = self.begin(kind, window.limit, switch_on)?;
        self.weight.store(window.weight.to_bits(), Relaxed);
        let details = self.details.get_or_make();
        details.delay.store(window.delay, Relaxed);
        details.length.store(window.length.unwrap_or(FOR_EVER), Relaxed);
        details.spent_by_then.store(window.spent, Relaxed);
        self.is_limited.store(window.length.is_none(), Relaxed);
        // Release: pairs with the Acquire in `enter` and `place`.
        self.pending_since.store(now.max(1), Release);
        Some(number)
    }

    /// Begins an observation: activates the probes, but no entry counts yet. `None` while a thread
    /// is deactivating probes.
    fn begin(&self, kind: Observation, limit: u64, switch_on: impl Fn(ProbeId, ProbeType)) -> Option<u32> {
        if self.is_busy() {
            return None;
        }
        self.opens.store(u64::MAX, SeqCst);
        self.pending_since.store(0, SeqCst);
        let before = self.entry_switch.hold()?;
        let number = before.observation.wrapping_add(1).max(1);
        if let Some(details) = self.details.get() {
            details.before.forget();
            details.overhead.store(0, Relaxed);
            details.refilled.store(0, Relaxed);
            details.inside.store(0, Relaxed);
        }
        self.entries.store(0, Relaxed);
        self.limit.store(limit, Relaxed);
        self.tolerate_strays(kind);
        self.is_on.store(kind == Observation::On, Relaxed);
        self.is_limited.store(false, Relaxed);
        let second_half = u32::try_from(limit - limit / 2).unwrap_or(u32::MAX);
        self.second_half.store(second_half, Relaxed);
        self.closes.store(u64::MAX, Relaxed);
        self.entry_switch.begin(number);
        let set = if self.are_all_off.load(Relaxed) { ProbeSet::All } else { ProbeSet::Executed };
        // After that step: see `ExitSwitch::end`.
        let begin_exits = || {
            self.open.store(0, Relaxed);
            self.for_each_probe(ProbeType::Exit, set, |id| switch_on(id, ProbeType::Exit));
        };
        if self.exit_switch.phase() != Phase::On && !self.exit_switch.begin(begin_exits) {
            self.entry_switch.cancel(number, before);
            return None;
        }
        if before.phase == Phase::Off {
            self.for_each_probe(ProbeType::Entry, set, |id| switch_on(id, ProbeType::Entry));
        }
        self.are_all_off.store(false, Relaxed);
        Some(number)
    }

    /// Whether the window may contain further calls, if the program has not run for as long as it
    /// lasts. If other threads execute probes, too, a window that has opened ends at a point in
    /// time.
    pub(crate) fn is_unfinished(&self, is_alone: bool) -> bool {
        self.is_pending() || is_alone && !self.entry_switch.now().are_over()
    }

    /// Whether the times of the window are not determined yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending_since.load(Acquire) != 0
    }

    /// The part of the window that has passed by `now`.
    pub(crate) fn passed(&self, now: u64) -> f64 {
        let (opens, closes) = (self.opens.load(Acquire), self.closes.load(Relaxed));
        if self.entry_switch.now().are_over() || now >= closes {
            return 1.0;
        }
        now.saturating_sub(opens) as f64 / closes.saturating_sub(opens).max(1) as f64
    }

    /// The current counts of the observation. Called by the service thread.
    pub(crate) fn counted(&self) -> Counted {
        let (entries, limit) = (self.entries.load(Acquire), self.limit.load(Relaxed));
        let observation = self.observation();
        let details = self.details.get();
        let is_exceeded =
            |details: &&Details| observation > 0 && details.exceeded_in.load(Acquire) == observation;
        let exceeded = details.filter(is_exceeded).map(|details| {
            let at = details.ended.load(Relaxed);
            let calls = self.second_half.load(Relaxed);
            let ticks = details.own_since_middle.load(Relaxed).max(1);
            Exceeded { at, rate: f64::from(calls) / ticks as f64 }
        });
        // After the limit, entries count until the probes are off.
        let entries = if exceeded.is_some() { entries.min(limit) } else { entries };
        let overhead = details.map_or(0, |details| details.overhead.load(Relaxed));
        Counted { entries, exceeded, overhead }
    }

    /// Resets the state to that of a function that is not observed and whose probes are considered
    /// off: a new function, or one in a forked child, whose code is in the state that the parent
    /// left. The next observation activates them.
    pub(crate) fn reset(&self) {
        self.opens.store(u64::MAX, Relaxed);
        self.pending_since.store(0, Relaxed);
        self.open.store(0, Relaxed);
        self.interrupting.store(0, Relaxed);
        self.entry_switch.reset();
        self.exit_switch.reset();
        self.is_listed.store(false, Relaxed);
    }
}

impl Executed {
    /// Called at each execution of a probe: records the first one.
    #[inline]
    pub(crate) fn note(&self, id: ProbeId, kind: ProbeType) {
        if self.link.next_executed.load(Relaxed) == NOT_EXECUTED {
            self.note_first(id, kind);
        }
    }

    #[cold]
    fn note_first(&self, id: ProbeId, kind: ProbeType) {
        let lists = self.function.probes(kind);
        let mut head = lists.executed.load(Acquire);
        if self.link.next_executed.compare_exchange(NOT_EXECUTED, head, Relaxed, Relaxed).is_err() {
            // Another thread, or the one that this signal handler has interrupted, does it.
            return;
        }
        self.function.executed.fetch_add(1, Relaxed);
        // Release: pairs with the Acquire of a thread that goes through the list.
        while let Err(now) = lists.executed.compare_exchange_weak(head, id.0 + 1, Release, Relaxed) {
            head = now;
            self.link.next_executed.store(head, Relaxed);
        }
    }
}

/// Takes the functions that have exhausted their allowance since the last call. Called by the
/// service thread.
pub(crate) fn take_exhausted() -> Vec<u32> {
    let mut taken = Vec::new();
    let mut next = EXHAUSTED.swap(0, Acquire);
    while let Some(index) = next.checked_sub(1) {
        taken.push(index);
        let Some(function) = FUNCTIONS.get(index as usize) else { break };
        next = function.next_listed.load(Relaxed);
        // From now on, it may be put on the list again. AcqRel: after the load; and what a thread
        // did before it found the function on the list is seen by the caller.
        function.is_listed.swap(false, AcqRel);
    }
    taken
}

#[cfg(test)]
mod tests;
