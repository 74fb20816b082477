//! Calls that arrive at the exported instrumentation functions, from sites that are not probes, or
//! not yet.
//!
//! The return address of the call determines its object and the interval of code
//! ([`super::index`]). The first arrival from an interval queues the interval and wakes the service
//! thread. Entries are counted: in the word of the interval if the function starts there, otherwise
//! (inlined functions, objects that were not examined yet) in a table by function.
//!
//! An exit that is a tail call returns to the caller of its function; it therefore queues the
//! caller's code, which is being executed as well.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use fastinst_sigsafe::Segments;

use super::index::{Arrival, Index, PriorState};
use crate::loaded;
use crate::probe::{ProbeId, ProbeKind};
use crate::provider::EarlyCalls;
use crate::service;

/// An instrumented object that is or was loaded.
pub(super) struct KnownObject {
    pub(super) range: Range<usize>,
    /// Whether the object is loaded now, as far as known.
    pub(super) alive: AtomicBool,
    /// Whether it is never unloaded.
    pub(super) stays: bool,
    /// The number of entries that have arrived from the object although their sites are probes.
    pub(super) arrivals: AtomicU32,
    pub(super) index: Index,
}

impl KnownObject {
    fn is_loaded_at(&self, address: usize) -> bool {
        self.alive.load(Ordering::Relaxed) && self.range.contains(&address)
    }
}

/// The intervals of the sites from which calls have arrived recently: a search in the index takes
/// several times as long, and calls to a frequently called function arrive many times before its
/// probes are made.
///
/// An entry is a word, so it is always consistent: from its high bits, the address of the site
/// without the bits that select the entry, the number of the interval, and the number of the object
/// plus one.
struct Cache {
    entries: [AtomicU64; Self::ENTRIES],
}

static CACHE: Cache = Cache { entries: [const { AtomicU64::new(0) }; Cache::ENTRIES] };

impl Cache {
    const ENTRIES: usize = 1 << 12;
    const BITS_OF_OBJECT: u32 = 5;
    const BITS_OF_INTERVAL: u32 = 24;
    const TAG: u32 = Self::BITS_OF_OBJECT + Self::BITS_OF_INTERVAL;

    fn find(&self, site: usize) -> Option<(&'static KnownObject, usize)> {
        let entry = self.entries[site % Self::ENTRIES].load(Ordering::Relaxed);
        if entry >> Self::TAG != (site / Self::ENTRIES) as u64 {
            return None;
        }
        let object = (entry & ((1 << Self::BITS_OF_OBJECT) - 1)).checked_sub(1)?;
        // The object may have been unloaded, and another one loaded in its place.
        let known = KNOWN.get(object as usize).filter(|known| known.is_loaded_at(site))?;
        let interval = entry >> Self::BITS_OF_OBJECT & ((1 << Self::BITS_OF_INTERVAL) - 1);
        Some((known, interval as usize))
    }

    /// Does nothing if a number is too large for an entry.
    fn keep(&self, site: usize, object: usize, interval: usize) {
        let tag = (site / Self::ENTRIES) as u64;
        let (object, interval) = (object as u64 + 1, interval as u64);
        if object >> Self::BITS_OF_OBJECT == 0
            && interval >> Self::BITS_OF_INTERVAL == 0
            && tag >> (u64::BITS - Self::TAG) == 0
        {
            let entry = tag << Self::TAG | interval << Self::BITS_OF_OBJECT | object;
            self.entries[site % Self::ENTRIES].store(entry, Ordering::Relaxed);
        }
    }
}

/// If this number of calls arrives from code whose sites are probes, the code makes calls in other
/// forms. Fewer arrivals may come from threads that were executing the calls when the sites were
/// retargeted.
pub(super) const TOO_MANY_ARRIVALS: u32 = 100;

pub(super) static KNOWN: Segments<KnownObject> = Segments::new();

/// Set when discovery begins. Arrivals before that need no notification, since all objects are
/// examined then.
pub(super) static STARTED: AtomicBool = AtomicBool::new(false);

/// Set by an arrival that notifies, until the service thread handles it.
pub(super) static ARRIVALS_PENDING: AtomicBool = AtomicBool::new(false);

/// Handles a call to the exported `__cyg_profile_func_enter` or `..._exit`, which pass their kind,
/// their first argument, and their return address. Safe at any time in a process, in any context:
/// it uses atomics, and makes at most one system call.
pub fn arrival(kind: ProbeKind, this_fn: usize, return_address: usize) {
    if !STARTED.load(Ordering::Relaxed) {
        return;
    }
    // The last byte of the call, since the return address may belong to another body.
    let site = return_address.wrapping_sub(1);
    let is_entry = kind == ProbeKind::ENTRY;
    let (known, number) = match CACHE.find(site) {
        Some(found) => found,
        None => {
            let holds = |known: &KnownObject, address| known.is_loaded_at(address);
            let Some((at, known)) = (0..).zip(KNOWN.iter()).find(|(_, known)| holds(known, site)) else {
                // A tail call may return to any object.
                if !KNOWN.iter().any(|known| holds(known, this_fn)) {
                    notify();
                }
                if is_entry {
                    COUNTS.add(this_fn);
                }
                return;
            };
            let Some(number) = known.index.find(site) else { return };
            CACHE.keep(site, at, number);
            (known, number)
        }
    };
    let starts_here = known.index.start(number) == this_fn;
    let arrival = if is_entry && starts_here { Arrival::Entry } else { Arrival::Other };
    match known.index.arrive(number, arrival) {
        PriorState::Unmarked => notify(),
        PriorState::Queued => {}
        PriorState::Done if is_entry => {
            // Stops counting at the limit, so that threads do not contend for the counter's cache
            // line. But if the object was unloaded and loaded again, its sites are not probes yet.
            let is_within_limit = known.arrivals.load(Ordering::Relaxed) < TOO_MANY_ARRIVALS;
            if is_within_limit {
                known.arrivals.fetch_add(1, Ordering::Relaxed);
            }
            if is_within_limit || !known.stays {
                COUNTS.add(this_fn);
            }
            return;
        }
        PriorState::Done => {}
    }
    if is_entry && !starts_here {
        COUNTS.add(this_fn);
    }
}

fn notify() {
    if !ARRIVALS_PENDING.swap(true, Ordering::Relaxed) {
        service::notify();
    }
}

/// The probe function of an entry site, from when it becomes a probe until it is announced.
pub(super) unsafe extern "C" fn count(_: ProbeId, _call_site: usize, this_fn: usize) {
    COUNTS.add(this_fn);
}

/// Counts an entry of a function.
pub(super) fn add(this_fn: usize) {
    COUNTS.add(this_fn);
}

/// The number of slots of the first table, and of the second one, whose pages are used only in
/// programs that fill the first.
const SLOTS: usize = 8192;
const MORE_SLOTS: usize = 65_536;

/// Number of slots that are searched for a function.
const PROBED: usize = 16;

/// Number of slots per bit of `marks`.
const SLOTS_PER_MARK: usize = 64;

struct Slot {
    /// 0 for a free slot; never changed once it is set.
    function: AtomicUsize,
    calls: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self { function: AtomicUsize::new(0), calls: AtomicU64::new(0) }
    }
}

/// Calls by function, counted without locks.
struct Counts<const SLOTS: usize, const MARKS: usize> {
    slots: [Slot; SLOTS],
    /// A bit per `SLOTS_PER_MARK` slots, set if one of them has calls.
    marks: [AtomicU64; MARKS],
}

static COUNTS: Table<SLOTS, { marks(SLOTS) }, MORE_SLOTS, { marks(MORE_SLOTS) }> = Table::new();

const fn marks(slots: usize) -> usize {
    slots / SLOTS_PER_MARK / 64
}

/// Number of bytes of the tables that are in use.
pub(super) fn memory() -> usize {
    let more = if COUNTS.is_full.load(Ordering::Relaxed) { size_of_val(&COUNTS.more) } else { 0 };
    size_of_val(&COUNTS) - size_of_val(&COUNTS.more) + more + size_of_val(&CACHE)
}

impl<const SLOTS: usize, const MARKS: usize> Counts<SLOTS, MARKS> {
    const fn new() -> Self {
        const { assert!(MARKS == marks(SLOTS) && SLOTS.is_multiple_of(SLOTS_PER_MARK * 64)) };
        Self { slots: [const { Slot::new() }; SLOTS], marks: [const { AtomicU64::new(0) }; MARKS] }
    }

    /// Returns whether there was room.
    fn add(&self, function: usize) -> bool {
        let first = (function as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        for step in 0..PROBED {
            let number = (first as usize + step) % SLOTS;
            let slot = &self.slots[number];
            let taken = match slot.function.load(Ordering::Relaxed) {
                0 => slot
                    .function
                    .compare_exchange(0, function, Ordering::Relaxed, Ordering::Relaxed)
                    .unwrap_or_else(|taken| if taken == function { 0 } else { taken }),
                taken if taken == function => 0,
                taken => taken,
            };
            if taken == 0 {
                // Acquire: pairs with the Release of the `swap` in `take`. If that has taken the
                // calls before these, the mark is seen cleared here.
                slot.calls.fetch_add(1, Ordering::AcqRel);
                let (mark, bit) = self.mark(number);
                if mark.load(Ordering::Relaxed) & bit == 0 {
                    mark.fetch_or(bit, Ordering::Release);
                }
                return true;
            }
        }
        false
    }

    /// The word and the bit of a slot.
    fn mark(&self, slot: usize) -> (&AtomicU64, u64) {
        let block = slot / SLOTS_PER_MARK;
        (&self.marks[block / 64], 1 << (block % 64))
    }

    fn take(&self, take: &mut impl FnMut(usize, u64)) {
        for (at, marks) in self.marks.iter().enumerate() {
            if marks.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let taken = marks.swap(0, Ordering::AcqRel);
            for bit in (0..64).filter(|bit| taken >> bit & 1 == 1) {
                let first = (at * 64 + bit) * SLOTS_PER_MARK;
                for slot in &self.slots[first..first + SLOTS_PER_MARK] {
                    let calls = slot.calls.swap(0, Ordering::AcqRel);
                    if calls != 0 {
                        take(slot.function.load(Ordering::Relaxed), calls);
                    }
                }
            }
        }
    }
}

/// Two tables of counts; the second one is for functions that have no room in the first.
struct Table<const SLOTS: usize, const MARKS: usize, const MORE: usize, const MORE_MARKS: usize> {
    first: Counts<SLOTS, MARKS>,
    more: Counts<MORE, MORE_MARKS>,
    /// Whether the second one is in use.
    is_full: AtomicBool,
    /// Calls to functions for which there was no slot.
    missed: AtomicU64,
}

impl<const SLOTS: usize, const MARKS: usize, const MORE: usize, const MORE_MARKS: usize>
    Table<SLOTS, MARKS, MORE, MORE_MARKS>
{
    const fn new() -> Self {
        Self {
            first: Counts::new(),
            more: Counts::new(),
            is_full: AtomicBool::new(false),
            missed: AtomicU64::new(0),
        }
    }

    fn add(&self, function: usize) {
        if self.first.add(function) {
            return;
        }
        if !self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(true, Ordering::Relaxed);
        }
        if !self.more.add(function) {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(&self, mut take: impl FnMut(usize, u64)) -> u64 {
        self.first.take(&mut take);
        self.more.take(&mut take);
        self.missed.swap(0, Ordering::Relaxed)
    }
}

/// Counts that the next [`take`] returns.
struct PendingCounts {
    /// The counts of finished intervals, and the functions whose sites were off.
    of_functions: Vec<(usize, EarlyCalls)>,
    /// Probes that were off when their functions were not known.
    interrupted: BTreeSet<ProbeId>,
}

static KEPT: Mutex<PendingCounts> =
    Mutex::new(PendingCounts { of_functions: Vec::new(), interrupted: BTreeSet::new() });

fn kept() -> MutexGuard<'static, PendingCounts> {
    KEPT.lock().unwrap_or_else(|e| e.into_inner())
}

/// Keeps the count of an interval for [`take`]. If its object is not loaded any more, another one
/// may have been loaded in its place.
pub(super) fn keep(function: usize, calls: u64, is_loaded: bool) {
    if calls > 0 {
        let calls = if is_loaded { EarlyCalls::Counted(calls) } else { EarlyCalls::OfUnloaded(calls) };
        kept().of_functions.push((function, calls));
    }
}

/// The loader's number of unloads up to which the provider knows what is loaded, and the number
/// before counts were last taken.
pub(super) static FOLLOWED: AtomicU64 = AtomicU64::new(0);
static BEFORE_LAST_TAKE: AtomicU64 = AtomicU64::new(0);

/// An entry site of this function was off while it was retargeted.
pub(super) fn interrupted(function: usize) {
    kept().of_functions.push((function, EarlyCalls::Interrupted));
}

/// The site of a probe, whose function is not known, was off while it was retargeted.
pub(super) fn interrupted_unknown(probe: ProbeId) {
    kept().interrupted.insert(probe);
}

/// The function of a probe has become known.
pub(super) fn resolved(probe: ProbeId, function: usize) {
    let mut kept = kept();
    if kept.interrupted.remove(&probe) {
        kept.of_functions.push((function, EarlyCalls::Interrupted));
    }
}

/// Takes the entries that were counted before the probes of their functions were ready: calls
/// `take` with the address of a function and its entries, possibly several times for the
/// same function. Returns the number of further entries, of functions for which the table had no
/// room.
///
/// All entries of instrumented functions are counted from the beginning of discovery until their
/// probes are announced; the count of a function becomes available when its code is scanned. A
/// forked child starts with the counts that its parent had not taken.
///
/// Functions are identified by their addresses. If objects were unloaded meanwhile, counts of
/// functions outside of the objects that stay loaded are [`EarlyCalls::OfUnloaded`].
///
/// The exceptions, which are not counted:
/// * entries before the beginning of discovery;
/// * entries of a site that cannot stay on while it is retargeted to its stub ([`super::relays`]),
///   for two calls to `membarrier`, and longer if the thread is preempted in between; its function
///   is [`EarlyCalls::Interrupted`];
/// * in code whose calls never become probes, all entries except the first 100, unless its object
///   was loaded while the program ran.
///
/// Takes a lock and may free memory. Callbacks may call it.
pub(super) fn take(mut take: impl FnMut(usize, EarlyCalls)) -> u64 {
    let kept = std::mem::take(&mut kept().of_functions);
    kept.into_iter().for_each(|(function, calls)| take(function, calls));
    let mut counted = Vec::new();
    let unloads = || loaded::counters().map(|counters| counters.unloads);
    let before = unloads();
    let missed = COUNTS.take(|function, calls| counted.push((function, calls)));
    let after = unloads();
    // Nothing was unloaded while these calls were counted, and nothing is left to be retired.
    let is_certain = before.zip(after).is_some_and(|(before, after)| {
        BEFORE_LAST_TAKE.swap(before, Ordering::Relaxed) == after && FOLLOWED.load(Ordering::Relaxed) == after
    });
    let stays = |function| KNOWN.iter().any(|known| known.stays && known.range.contains(&function));
    for (function, calls) in counted {
        let calls = if is_certain || stays(function) {
            EarlyCalls::Counted(calls)
        } else {
            EarlyCalls::OfUnloaded(calls)
        };
        take(function, calls);
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = 64 * SLOTS_PER_MARK;
    const MORE: usize = 2 * SLOTS;
    type Small = Table<SLOTS, { marks(SLOTS) }, MORE, { marks(MORE) }>;

    #[test]
    fn calls_are_counted_by_function_and_calls_without_room_are_reported() {
        static TABLE: Small = Small::new();
        for round in 1..=3 {
            for function in 1..=2 * (SLOTS + MORE) {
                TABLE.add(function * 16);
            }
            let (mut functions, mut calls) = (0, 0);
            let missed = TABLE.take(|function, times| {
                assert!(function % 16 == 0 && (1..=2 * (SLOTS + MORE)).contains(&(function / 16)));
                assert_eq!(times, 1, "round {round}");
                (functions, calls) = (functions + 1, calls + times);
            });
            assert!(functions > (SLOTS + MORE) / 2, "{functions} functions had room");
            assert_eq!(calls + missed, 2 * (SLOTS + MORE) as u64);
        }
        assert_eq!(TABLE.take(|function, _| panic!("{function} was taken twice")), 0);
    }

    #[test]
    fn the_interval_of_a_site_is_kept_until_its_object_is_unloaded_or_another_site_takes_its_place() {
        let cache = Cache { entries: [const { AtomicU64::new(0) }; Cache::ENTRIES] };
        // No other test adds objects.
        let starts = vec![0, 0x2000, 0x4000];
        let range = 1 << 46..(1 << 46) + 0x6000;
        let known = KnownObject {
            range: range.clone(),
            alive: AtomicBool::new(true),
            stays: true,
            arrivals: AtomicU32::new(0),
            index: Index::new(range.start, starts),
        };
        let object = KNOWN.push_with(|_| known).expect("room for an object");
        let known = KNOWN.get(object).expect("it was added");
        let number = |site| cache.find(site).map(|(_, number)| number);
        let (one, same_place) = (range.start + 0x2345, range.start + 0x4345);
        assert_eq!(number(one), None);
        cache.keep(one, object, 1);
        assert_eq!((number(one), number(one + 1), number(same_place)), (Some(1), None, None));
        cache.keep(same_place, object, 2);
        assert_eq!((number(one), number(same_place)), (None, Some(2)));
        cache.keep(one, object, 1 << Cache::BITS_OF_INTERVAL);
        cache.keep(one, 31, 1);
        cache.keep(usize::MAX, object, 1);
        assert_eq!((number(one), number(same_place), number(usize::MAX)), (None, Some(2), None));
        known.alive.store(false, Ordering::Relaxed);
        assert_eq!(number(same_place), None);
    }

    #[test]
    fn interruptions_are_reported_once_the_function_is_known() {
        // Addresses and ids that no other test uses.
        let (known, unknown, probe) = (usize::MAX - 1, usize::MAX, ProbeId(u32::MAX - 7));
        let taken = || {
            let mut taken = Vec::new();
            take(|function, calls| taken.push((function, calls)));
            taken.retain(|(function, _)| *function >= known);
            taken
        };
        interrupted(known);
        interrupted_unknown(probe);
        assert_eq!(taken(), [(known, EarlyCalls::Interrupted)]);
        resolved(probe, unknown);
        resolved(probe, unknown);
        assert_eq!(taken(), [(unknown, EarlyCalls::Interrupted)]);
    }

    /// As many functions as the first table has slots; only a few slots are searched for each.
    #[test]
    fn functions_without_room_in_the_first_table_are_counted_in_the_second() {
        static TABLE: Small = Small::new();
        (1..=SLOTS).for_each(|function| TABLE.add(function * 16));
        assert!(TABLE.is_full.load(Ordering::Relaxed), "the first table had room for all");
        let mut functions = 0;
        assert_eq!(TABLE.take(|_, times| functions += times), 0);
        assert_eq!(functions, SLOTS as u64);
    }

    /// Calls that are counted while others are taken are marked again.
    #[test]
    fn threads_count_the_same_functions_exactly_while_counts_are_taken() {
        static TABLE: Small = Small::new();
        const EACH: u64 = 20_000;
        let mut calls = 0;
        std::thread::scope(|scope| {
            let count = || (0..EACH).for_each(|number| TABLE.add(1 + (number % 7) as usize));
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(count)).collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                assert_eq!(TABLE.take(|_, times| calls += times), 0);
            }
        });
        assert_eq!(TABLE.take(|_, times| calls += times), 0);
        assert_eq!(calls, 3 * EACH);
    }
}
