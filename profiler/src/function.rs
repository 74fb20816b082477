//! What all threads share about a function: its probes, and its current burst.
//!
//! A burst goes through these states; each step is made by whoever brings it about:
//! 1. **armed**: the daemon switches the exit probes on, then the entry probes.
//! 2. **full**: the thread that makes the last entry of the burst switches the entry probes off, and puts the function on the
//!    daemon's list. In a *counting* burst, one in some, the entry probes stay on: further entries are counted, but not
//!    followed to their exits, until enough are; see [`crate::estimate`].
//! 3. **out**: the thread that sees the last exit switches the exit probes off. So does the one that sees far more exits than
//!    the burst had entries: those of calls that were entered before it.
//! 4. At its next tick, the daemon takes what the burst tells and arms the function again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use fastinst::{ProbeId, ProbeType, Segments};

use crate::cpu;

/// How many exits, as a multiple of the entries of a burst, are let through before the exit probes are switched off.
const EXITS_PER_ENTRY: u32 = 4;

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

/// How many entries a burst has. Set before the first probe is armed.
pub(crate) static SAMPLES: AtomicU32 = AtomicU32::new(10);

/// Counting ends after this many entries beyond the burst, if [`COUNTED_TICKS`] have passed as well, or at the next tick of the
/// daemon.
pub(crate) const COUNTED_ENTRIES: u32 = 2_000;

/// About 0.1 ms.
pub(crate) const COUNTED_TICKS: u64 = 250_000;

/// One burst in so many is a counting one, at the most: what a hot function pays for it is this part of 0.1 ms in each period.
const COUNT_ONE_IN: u32 = 8;

/// How many functions may be counting at once: at some 25 ns for each entry that is counted, the program pays no more than some
/// three hundredths of its time, however many functions it has.
const COUNTING_AT_ONCE: u32 = 6;

/// One burst in so many is a counting one, for the number of functions that are armed now. Set by the daemon.
static COUNTING: AtomicU32 = AtomicU32::new(COUNT_ONE_IN);

/// Tells how many functions are about to be armed, for how many of them may count.
pub(crate) fn about_to_arm(functions: usize) {
    let functions = u32::try_from(functions).unwrap_or(u32::MAX);
    COUNTING.store((functions / COUNTING_AT_ONCE).max(COUNT_ONE_IN), Ordering::Relaxed);
}

/// Head of the daemon's list of full functions: index plus one.
static FULL: AtomicU32 = AtomicU32::new(0);

/// One function. On cache lines of its own: threads that call different functions do not disturb each other.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Function {
    /// High half: the number of the burst; low half: entries seen in it.
    burst: AtomicU64,
    /// Exits seen in the burst.
    exits: AtomicU32,
    /// Exits that were matched to entries of the burst.
    matched: AtomicU32,
    /// Counts how often the exit probes went off, and on again.
    exit_period: AtomicU32,
    /// Whether entries beyond the burst are counted.
    counting: AtomicBool,
    /// When the first entry of the burst was, and when it was full.
    first: [AtomicU64; 3],
    full: [AtomicU64; 3],
    open: AtomicU32,
    /// When counting ended, if before the daemon's tick, and how many had been counted.
    stopped: [AtomicU64; 3],
    stopping: AtomicBool,
    counted: AtomicU32,
    /// What the program had run by the time the burst was full and by the end of counting, in nanoseconds; 0 where that is not
    /// known.
    ran: [AtomicU64; 2],
    entry_probes: AtomicU32,
    exit_probes: AtomicU32,
    listed: AtomicBool,
    next_full: AtomicU32,
}

/// When and where an entry was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    /// A number for the thread.
    pub(crate) thread: u64,
    /// What the thread had spent in probes, in ticks, without pauses there.
    pub(crate) overhead: u64,
}

/// What a burst tells when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BurstEnd {
    /// Its entries, without those that were only counted.
    pub(crate) entries: u32,
    /// The first of them.
    pub(crate) first: Moment,
    /// The last, if the burst was full.
    pub(crate) full: Option<Moment>,
    /// How many calls of the burst were open then: 1 unless the function is recursive or runs on several threads.
    pub(crate) open: u32,
    /// What was counted from then on.
    pub(crate) counted: Option<Counted>,
}

/// Entries that were counted after a burst was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) entries: u32,
    /// Where counting stopped; it went on to the end if that is missing.
    pub(crate) stopped: Option<Stopped>,
}

/// The end of counting, before the daemon's tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) moment: Moment,
    /// Processor time of the program in nanoseconds by the time the burst was full and by now, see [`cpu`].
    pub(crate) ran: Option<[u64; 2]>,
}

fn store(place: &[AtomicU64; 3], moment: Moment) {
    let values = [moment.ticks, moment.thread, moment.overhead];
    place.iter().zip(values).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
}

fn load(place: &[AtomicU64; 3]) -> Moment {
    let [ticks, thread, overhead] = place.each_ref().map(|place| place.load(Ordering::Relaxed));
    Moment { ticks, thread, overhead }
}

/// The place of an entry in its burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) burst: u32,
    /// From 1.
    pub(crate) number: u32,
}

/// Whether this burst of this function is a counting one: one of its first so many, then one in as many, in no step with anything
/// periodic. Never all functions at once: they would count each other's probes.
fn is_counting(index: u32, burst: u32) -> bool {
    let one_in = COUNTING.load(Ordering::Relaxed);
    if burst <= one_in {
        return burst.wrapping_add(index).is_multiple_of(one_in);
    }
    let mixed = (burst ^ index.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    (mixed >> 16).is_multiple_of(one_in)
}

impl Function {
    /// The function that a probe belongs to, and its index.
    #[inline]
    pub(crate) fn of_probe(id: ProbeId) -> Option<(u32, &'static Self)> {
        let index = LINKS.get(id.0 as usize)?.function.load(Ordering::Acquire).checked_sub(1)?;
        Some((index, FUNCTIONS.get(index as usize)?))
    }

    /// Makes a probe one of this function's. Called under the session's lock.
    pub(crate) fn adopt(index: u32, id: ProbeId, kind: ProbeType) -> Option<()> {
        while LINKS.len() <= id.0 as usize {
            LINKS.push_with(|_| ProbeLink::default())?;
        }
        let (function, link) = (FUNCTIONS.get(index as usize)?, LINKS.get(id.0 as usize)?);
        let head = function.probes(kind);
        link.next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        link.function.store(index + 1, Ordering::Release);
        head.store(id.0 + 1, Ordering::Release);
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
        let mut next = self.probes(kind).load(Ordering::Acquire);
        while let Some(id) = next.checked_sub(1) {
            act(ProbeId(id));
            next = LINKS.get(id as usize).map_or(0, |link| link.next.load(Ordering::Acquire));
        }
    }

    /// Whether the probes of a kind are on now: what a probe that is found later begins with.
    pub(crate) fn is_on(&self, kind: ProbeType) -> bool {
        match kind {
            ProbeType::Entry => (self.burst.load(Ordering::Relaxed) as u32) < SAMPLES.load(Ordering::Relaxed),
            ProbeType::Exit => self.exit_period().is_multiple_of(2),
        }
    }

    /// How many sites the function has.
    pub(crate) fn sites(&self) -> usize {
        let mut sites = 0;
        for kind in [ProbeType::Entry, ProbeType::Exit] {
            self.for_each_probe(kind, |_| sites += 1);
        }
        sites
    }

    fn switch_off(&self, kind: ProbeType) {
        // A refusal (an unloaded library, text still shared with the parent process) leaves the probe firing, which costs
        // time; entries beyond the burst are not counted as samples.
        self.for_each_probe(kind, |id| _ = fastinst::deactivate(id));
    }

    /// Counts an entry, and tells its place in the burst.
    #[inline]
    pub(crate) fn enter(&self) -> Place {
        let before = self.burst.fetch_add(1, Ordering::Relaxed);
        Place { burst: (before >> 32) as u32, number: (before as u32).wrapping_add(1) }
    }

    /// Keeps the moment of the first entry of the burst.
    #[inline]
    pub(crate) fn is_first(&self, moment: Moment) {
        store(&self.first, moment);
    }

    /// The burst is full with the entry at this moment: the entry probes go off, unless the burst is a counting one.
    #[cold]
    pub(crate) fn is_full(&self, index: u32, moment: Moment) {
        store(&self.full, moment);
        let matched = self.matched.load(Ordering::Relaxed);
        self.open.store(SAMPLES.load(Ordering::Relaxed).saturating_sub(matched), Ordering::Relaxed);
        if self.counting.load(Ordering::Relaxed) {
            self.ran[0].store(cpu::of_program().unwrap_or(0), Ordering::Relaxed);
        } else {
            self.switch_off(ProbeType::Entry);
        }
        self.put_on_list(index);
    }

    /// An entry beyond the burst: ends the counting when enough were counted.
    #[inline]
    pub(crate) fn beyond(&self, place: Place, samples: u32, moment: Moment) {
        let counted = place.number.wrapping_sub(samples);
        if counted >= COUNTED_ENTRIES
            && self.counting.load(Ordering::Relaxed)
            && moment.ticks.wrapping_sub(self.full[0].load(Ordering::Relaxed)) >= COUNTED_TICKS
            && !self.stopping.swap(true, Ordering::Relaxed)
        {
            store(&self.stopped, moment);
            self.ran[1].store(cpu::of_program().unwrap_or(0), Ordering::Relaxed);
            // Release: pairs with the Acquire in `burst_end`, which then finds the moment.
            self.counted.store(counted, Ordering::Release);
            self.switch_off(ProbeType::Entry);
        }
    }

    /// The number of the burst now.
    #[inline]
    pub(crate) fn current_burst(&self) -> u32 {
        (self.burst.load(Ordering::Relaxed) >> 32) as u32
    }

    /// The exit probes have been on as long as this number stays the same.
    #[inline]
    pub(crate) fn exit_period(&self) -> u32 {
        self.exit_period.load(Ordering::Relaxed)
    }

    /// Counts an exit, and switches the exit probes off when no more are wanted.
    #[inline]
    pub(crate) fn left(&self, index: u32, matched_burst: Option<u32>) {
        let samples = SAMPLES.load(Ordering::Relaxed);
        let exits = self.exits.fetch_add(1, Ordering::Relaxed) + 1;
        let matched = if matched_burst == Some(self.current_burst()) {
            self.matched.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            0
        };
        if matched == samples || exits == samples * EXITS_PER_ENTRY {
            // Odd while they are off. Before the code: an exit that goes unseen is one of an earlier period.
            self.exit_period.fetch_or(1, Ordering::Relaxed);
            self.switch_off(ProbeType::Exit);
            self.put_on_list(index);
        }
    }

    fn put_on_list(&self, index: u32) {
        if self.listed.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut head = FULL.load(Ordering::Relaxed);
        loop {
            self.next_full.store(head, Ordering::Relaxed);
            match FULL.compare_exchange_weak(head, index + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// What the burst tells so far. For the daemon.
    pub(crate) fn burst_end(&self) -> BurstEnd {
        let samples = SAMPLES.load(Ordering::Relaxed);
        let entries = self.burst.load(Ordering::Acquire) as u32;
        let full = (entries >= samples).then(|| load(&self.full));
        let stopped = match self.counted.load(Ordering::Acquire) {
            0 => Counted { entries: entries.saturating_sub(samples), stopped: None },
            counted => {
                let ran = self.ran.each_ref().map(|ran| ran.load(Ordering::Relaxed));
                let ran = ran.iter().all(|ran| *ran != 0).then_some(ran);
                Counted { entries: counted, stopped: Some(Stopped { moment: load(&self.stopped), ran }) }
            }
        };
        let counted = (full.is_some() && self.counting.load(Ordering::Relaxed)).then_some(stopped);
        let (first, open) = (load(&self.first), self.open.load(Ordering::Relaxed));
        BurstEnd { entries: entries.min(samples), first, full, open, counted }
    }

    /// Begins to count bursts anew: for a forked child.
    pub(crate) fn forget(&self) {
        self.burst.store(0, Ordering::Relaxed);
    }

    /// Begins a burst: the exit probes go on, then the entry probes. For the daemon.
    pub(crate) fn arm(&self, index: u32, switch_on: impl Fn(ProbeId, ProbeType)) {
        let burst = self.current_burst().wrapping_add(1);
        self.exits.store(0, Ordering::Relaxed);
        self.matched.store(0, Ordering::Relaxed);
        self.counting.store(is_counting(index, burst), Ordering::Relaxed);
        self.stopping.store(false, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
        self.listed.store(false, Ordering::Relaxed);
        self.burst.store(u64::from(burst) << 32, Ordering::Release);
        self.for_each_probe(ProbeType::Exit, |id| switch_on(id, ProbeType::Exit));
        let period = self.exit_period();
        self.exit_period.store(period.wrapping_add(period & 1), Ordering::Relaxed);
        self.for_each_probe(ProbeType::Entry, |id| switch_on(id, ProbeType::Entry));
    }
}

/// Takes the functions that became full since the last call off the list. For the daemon.
pub(crate) fn take_full() -> Vec<u32> {
    let mut full = Vec::new();
    let mut next = FULL.swap(0, Ordering::Acquire);
    while let Some(index) = next.checked_sub(1) {
        full.push(index);
        next = FUNCTIONS.get(index as usize).map_or(0, |function| function.next_full.load(Ordering::Relaxed));
    }
    full
}
