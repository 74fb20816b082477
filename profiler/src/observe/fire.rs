//! The probe functions. They run on any thread, at any instruction, and in signal handlers: no
//! locks, no allocation, no formatting; little stack.
//!
//! Entry: if it is observed, it is pushed on the thread's stack of entries; the clock is read last.
//! Exit: the clock is read first; the entry is looked up, and the difference is recorded. The time
//! that the thread spent in probes between the two is subtracted, so a function is not charged for
//! the probes of its callees; the time for which the thread was preempted is subtracted as well.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use fastinst::{ProbeFn, ProbeId};
use wordpatch::tsc;

use crate::estimate::callers::NO_PROBE;
use crate::observe::function::{Entered, Executed, FUNCTIONS, Function};
use crate::observe::pairing::{Entry, EntryStack, Own};
use crate::observe::probe_type::{EntryProbe, ProbeType};
use crate::observe::thread::{self, Duration, Sample, Thread, is_open};
use crate::observe::{counting, governor, preemption};
use crate::processor_time;

/// The cost of a probe outside its two readings of the clock, in ticks: measured by [`calibrate`].
static UNSEEN: AtomicU64 = AtomicU64::new(0);

/// The part of a probe's cost that this is, in 1024ths.
static UNSEEN_PART: AtomicU64 = AtomicU64::new(0);

/// The measured latency of a call to an empty function, in thousandths of a tick. It is a mean,
/// because some processors' counters advance in steps (of 26 ticks on AMD family 26), which are
/// longer than such a call.
static EMPTY: AtomicU64 = AtomicU64::new(0);

/// The typical latency of such a call, in ticks: at least as long as a step.
static RESOLUTION: AtomicU64 = AtomicU64::new(0);

/// The number of calls whose exit was earlier than their entry: the clock has gone back.
static BACKWARD: AtomicU64 = AtomicU64::new(0);

/// What the report says if the clock has gone back.
pub(crate) fn note() -> Option<String> {
    let calls = BACKWARD.load(Ordering::Relaxed);
    (calls > 0)
        .then(|| format!("the TSC has gone back during {calls} calls, which are counted and not timed"))
}

/// Forgets the parent's clock, in a forked child.
pub(crate) fn restart() {
    BACKWARD.store(0, Ordering::Relaxed);
}

/// Ends a call that has left before it was entered, according to the clock.
#[cold]
fn untimed(entry: &Entry, function: &Function) {
    BACKWARD.fetch_add(1, Ordering::Relaxed);
    function.left(entry.period);
}

/// A call of at least this many ticks, about 10 us, adds noticeably to its function's allowance.
const LONG_CALL: u64 = 25_000;

/// A probe that takes longer than this, in ticks, until preemption has been measured, was preempted
/// itself.
const LONG_MEASUREMENT: u64 = 10_000;

/// The probe function of entries.
pub(crate) const ENTRY: ProbeFn = entry;

/// The probe function of exits.
pub(crate) const EXIT: ProbeFn = exit;

/// The probe function of entries in counting windows ([`crate::observe::counting`]).
pub(crate) const COUNT: ProbeFn = count;

/// The same in a program with one thread.
pub(crate) const COUNT_ALONE: ProbeFn = count_alone;

/// Whether this probe function only counts.
pub(crate) fn is_counting(function: ProbeFn) -> bool {
    [COUNT, COUNT_ALONE].iter().any(|count| std::ptr::fn_addr_eq(function, *count))
}

unsafe extern "C" fn count(id: ProbeId, _call_site: usize, _this_fn: usize) {
    if let Some(probe) = Function::of_probe(id) {
        probe.function.count();
    }
}

unsafe extern "C" fn count_alone(id: ProbeId, _call_site: usize, _this_fn: usize) {
    if let Some(probe) = Function::of_probe(id) {
        probe.function.count_alone();
    }
}

/// Of the registers that a callee may change, only the three arguments are live at the probe.
/// Replaces the third, the function's address, by the stack pointer at the site, and jumps: there
/// is no frame, so the CFI of a leaf function is correct.
#[unsafe(naked)]
unsafe extern "C" fn entry(id: ProbeId, call_site: usize, this_fn: usize) {
    naked_asm!("lea rdx, [rsp + 8]", "jmp {}", sym entry_at)
}

/// As [`entry`].
#[unsafe(naked)]
unsafe extern "C" fn exit(id: ProbeId, call_site: usize, this_fn: usize) {
    naked_asm!("lea rdx, [rsp + 8]", "jmp {}", sym exit_at)
}

extern "C" fn entry_at(id: ProbeId, call_site: usize, stack_pointer: usize) {
    let begin = tsc::now();
    let Some(probe) = Function::of_probe(id) else { return };
    let Some(thread) = Thread::current() else { return };
    probe.note(id, ProbeType::Entry);
    enter(begin, &Fired { probe: Some(id), call_site, stack_pointer, ..Fired::of(&probe) }, thread);
}

/// A probe that fires.
struct Fired {
    index: u32,
    function: &'static Function,
    /// `None` for a probe of an engine.
    probe: Option<ProbeId>,
    call_site: usize,
    stack_pointer: usize,
}

impl Fired {
    fn of(probe: &Executed) -> Self {
        Self { index: probe.index, function: probe.function, probe: None, call_site: 0, stack_pointer: 0 }
    }
}

#[inline(always)]
fn enter(begin: u64, fired: &Fired, thread: &Thread) {
    enter_with(EntryStack::own, begin, fired, thread);
}

#[inline(always)]
fn enter_with(own: impl FnOnce(&EntryStack) -> Own<'_>, begin: u64, fired: &Fired, thread: &Thread) {
    let &Fired { index, function, call_site, stack_pointer, .. } = fired;
    let is_entered = thread.enter(stack_pointer, |entries| match function.enter(index, begin, thread) {
        Entered::Observed(observed) => {
            let entry = Entry {
                function: index,
                observation: observed.observation,
                period: observed.period,
                weight: observed.weight,
                probe: fired.probe.map_or(NO_PROBE, |id| id.0),
                call_site,
                stack_pointer,
                ..Entry::default()
            };
            push(begin, entry, observed.is_cold, thread, own(entries));
        }
        unobserved => {
            if let Some(id) = fired.probe {
                function.unobserved_entry(id);
            }
            spend(thread, begin, tsc::now());
            if unobserved == Entered::Early {
                function.begins_for(thread);
            }
        }
    });
    if !is_entered {
        function.lost_entry();
    }
}

#[inline(always)]
fn push(begin: u64, mut entry: Entry, is_cold: bool, thread: &Thread, mut own: Own<'_>) {
    let Some(place) = own.push(&entry, is_open, |entry| thread.discarded(entry)) else {
        thread::left(&entry);
        thread.lose();
        return spend(thread, begin, tsc::now());
    };
    entry.is_nested = own.is_nested(place, is_open);
    entry.cold = thread.cold(is_cold);
    entry.preempted = thread.preempted_limits();
    entry.ticks = tsc::now();
    spend(thread, begin, entry.ticks);
    entry.overhead = thread.overhead();
    own.put(place, &entry);
}

/// Calls `act`, the handler of a call whose probes have not been made yet. Its time counts as that
/// of a probe, and as a cost of the start.
#[inline(always)]
pub(crate) fn before_probes(act: impl FnOnce()) {
    let begin = tsc::now();
    act();
    // A probe that this signal handler has interrupted is about to add its own time.
    if let Some(thread) = Thread::existing().filter(|thread| !thread.is_inside()) {
        let end = tsc::now();
        thread.spend_before_probes(end.wrapping_sub(begin) + UNSEEN.load(Ordering::Relaxed), end);
    }
}

#[inline(always)]
fn spend(thread: &Thread, begin: u64, end: u64) {
    thread.spend(end.wrapping_sub(begin) + UNSEEN.load(Ordering::Relaxed), end);
}

extern "C" fn exit_at(id: ProbeId, call_site: usize, stack_pointer: usize) {
    let begin = tsc::now();
    let Some(probe) = Function::of_probe(id) else { return };
    let Some(thread) = Thread::current() else { return };
    probe.note(id, ProbeType::Exit);
    let fired = Fired { probe: Some(id), call_site, stack_pointer, ..Fired::of(&probe) };
    exit_with(EntryStack::own, begin, &fired, thread);
}

#[inline(always)]
fn exit_with(own: impl FnOnce(&EntryStack) -> Own<'_>, begin: u64, fired: &Fired, thread: &Thread) {
    let &Fired { index, function, call_site, stack_pointer, .. } = fired;
    thread.enter(stack_pointer, |entries| {
        // During an observation, an entry is identified by its number; any other entry by its stack
        // pointer.
        let (observation, period) = (function.observation_of_all(begin), function.exit_period());
        let held = thread.own_time(begin);
        let exit = Entry {
            function: index,
            observation,
            period,
            call_site,
            stack_pointer,
            held,
            ..Entry::default()
        };
        match (own(entries).pop(&exit, |entry| thread.discarded(entry)), fired.probe) {
            (Some(entry), _) => complete(begin, &entry, function, thread),
            (None, Some(id)) => function.unobserved_exit(id, begin),
            (None, None) => function.stray_exit(begin),
        }
        spend(thread, begin, tsc::now());
    });
}

/// Records the call of an entry that was left at the time `begin`.
#[inline(always)]
fn complete(begin: u64, entry: &Entry, function: &Function, thread: &Thread) {
    let mut preempted = thread.preempted_limits().since(entry.preempted);
    if preempted.most > 0 {
        preempted = until(begin, tsc::now(), preempted);
    }
    let overhead = thread.overhead().wrapping_sub(entry.overhead);
    let Duration { ticks, below, above } = duration(begin.wrapping_sub(entry.ticks), overhead, preempted);
    let &Entry { observation, weight, .. } = entry;
    let is_cold = thread.cold(false) != entry.cold;
    if ticks > LONG_CALL {
        // A negative time is such a number: the usual call needs no comparison.
        if begin < entry.ticks {
            return untimed(entry, function);
        }
        function.earn(ticks);
    }
    thread.record(Sample {
        function: entry.function,
        observation,
        weight,
        below: below as f32,
        above: above as f32,
        origin: entry.origin(),
        ticks,
        least: ticks,
        preempted: preempted.value,
        is_cold,
        is_late: function.is_late(entry.ticks),
        was_left: false,
    });
    function.left(entry.period);
}

/// The preemption of a call that was left at the time `begin`, from that which has been measured by
/// `now`, in the same probe: the thread may have been preempted in the probe.
#[cold]
fn until(begin: u64, now: u64, preempted: preemption::Time) -> preemption::Time {
    let since = now.saturating_sub(begin);
    if since > LONG_MEASUREMENT { preempted.before_last(since) } else { preempted }
}

/// The duration of a call that was open for this many ticks, without its probes and preemption.
#[inline(always)]
pub(crate) fn duration(open: u64, overhead: u64, preempted: preemption::Time) -> Duration {
    let preempted = preempted.within(open);
    let (ticks, error) = without_probes(open - preempted.value, overhead);
    let below = error + (preempted.most - preempted.value);
    Duration { ticks, below: below.min(ticks), above: error + (preempted.value - preempted.least) }
}

/// A duration without that of the probes in it, and its error, in ticks.
///
/// The part of a probe's cost outside its readings of the clock was measured in a loop. In the
/// program, the processor overlaps it more or less with other instructions: it is between nothing
/// and twice as much. If the probes seem to have taken all of the time, because they were preempted
/// for a while, nothing is known.
#[inline(always)]
pub(crate) fn without_probes(ticks: u64, overhead: u64) -> (u64, u64) {
    let unseen = overhead.saturating_mul(UNSEEN_PART.load(Ordering::Relaxed)) >> 10;
    let seen = overhead - unseen;
    if seen >= ticks {
        return (ticks / 2, ticks / 2);
    }
    let most = ticks - seen;
    let error = unseen.min(most / 2);
    (most - error, error)
}

/// The cost of the probes of a call, in ticks, as measured in a loop.
pub(crate) fn cost_of_call() -> f64 {
    let [unseen, part] = [&UNSEEN, &UNSEEN_PART].map(|figure| figure.load(Ordering::Relaxed) as f64);
    2.0 * unseen * 1024.0 / part.max(1.0)
}

/// Stores the cost of a probe outside its readings of the clock, and the cost between them.
fn store_unseen(unseen: u64, seen: u64) {
    UNSEEN.store(unseen, Ordering::Relaxed);
    UNSEEN_PART.store((unseen << 10) / (unseen + seen).max(1), Ordering::Relaxed);
}

/// Handles an entry that an engine's probe reports.
#[inline(always)]
pub(crate) fn entered(index: u32, frame: usize, return_address: usize) {
    let begin = tsc::now();
    let Some(function) = FUNCTIONS.get(index as usize) else { return };
    let Some(thread) = Thread::current() else { return };
    let fired = Fired { index, function, probe: None, call_site: return_address, stack_pointer: frame };
    enter_with(EntryStack::of_frames, begin, &fired, thread);
}

/// Handles an exit that an engine's probe reports.
#[inline(always)]
pub(crate) fn exited(index: u32, frame: usize) {
    let begin = tsc::now();
    let Some(function) = FUNCTIONS.get(index as usize) else { return };
    let Some(thread) = Thread::current() else { return };
    let fired = Fired { index, function, probe: None, call_site: 0, stack_pointer: frame };
    exit_with(EntryStack::of_frames, begin, &fired, thread);
}

/// The frame at this address is about to be left without an exit: its call ends here.
pub(crate) fn left(frame: usize) {
    let begin = tsc::now();
    let Some(thread) = Thread::current() else { return };
    thread.enter(frame, |entries| {
        if let Some(entry) = entries.of_frames().leave(frame, |entry| thread.discarded(entry)) {
            match FUNCTIONS.get(entry.function as usize) {
                Some(function) if is_open(&entry) => complete(begin, &entry, function, thread),
                _ => thread.discarded(&entry),
            }
        }
        spend(thread, begin, tsc::now());
    });
}

/// Calls a function that makes probes while the calls of this thread wait, or waits for a thread
/// that makes them. Its time is part of no call.
pub(crate) fn interrupted(function: &mut dyn FnMut()) {
    let Some(thread) = Thread::current() else { return function() };
    let figures = || (tsc::now(), thread.preempted(), processor_time::of_thread());
    let (begin, preempted_before, ran_before) = figures();
    function();
    let (end, preempted, ran) = figures();
    // Preemption is subtracted from calls anyway.
    let time = end.saturating_sub(begin).saturating_sub(preempted.wrapping_sub(preempted_before));
    let ran = (((ran - ran_before) * governor::ticks_per_ns()) as u64).min(time);
    let anchor = 0_usize;
    thread.enter((&raw const anchor).addr(), |entries| thread.exclude(entries, time, ran));
}

/// The function that [`calibrate_with`] calls: without instructions, with the probes of an engine.
pub(crate) trait Calibrated {
    /// Sets the state of the entry probe. The exit probes are on if the entry probe is timed.
    fn switch(&mut self, entry: EntryProbe);
    /// Calls the function [`CALLS`] times.
    fn call(&mut self);
}

/// The number of calls that [`Calibrated::call`] makes.
pub(crate) const CALLS: u32 = 16;

/// Measures the probes of an engine, on a function without probes of this crate at index 0. Takes a
/// few hundred microseconds. Nothing else may be observed at the same time.
pub(crate) fn calibrate_with(index: u32, function: &Function, calibrated: &mut dyn Calibrated) {
    const ROUNDS: usize = 200;
    let Some(thread) = Thread::current() else { return };
    for figure in [&EMPTY, &RESOLUTION, &UNSEEN] {
        figure.store(0, Ordering::Relaxed);
    }
    let spent = || thread.overhead.load(Ordering::Relaxed);
    // The lower quartile of the time of `CALLS` calls, minus the visible time of the probes: slower
    // rounds were disturbed.
    let mut time = |entry: EntryProbe| {
        calibrated.switch(entry);
        let mut times: [u64; ROUNDS] = std::array::from_fn(|_| {
            let (begin, before) = (tsc::now(), spent());
            calibrated.call();
            tsc::now().wrapping_sub(begin).saturating_sub(spent().wrapping_sub(before))
        });
        times.sort_unstable();
        times[ROUNDS / 4]
    };
    let without = time(EntryProbe::Off);
    let counted = time(EntryProbe::Counted);
    function.reset();
    function.turn_on(0, u64::MAX, 1.0, |_, _| {});
    let before = spent();
    let timed = time(EntryProbe::Timed);
    let seen = spent().wrapping_sub(before) / ROUNDS as u64;
    calibrated.switch(EntryProbe::Off);
    function.reset();
    let mut empty = Vec::new();
    thread::drain(|sample| {
        if sample.function == 0 {
            empty.push(sample.ticks);
        }
    });
    store_empty(&mut empty);
    let calls = u64::from(CALLS);
    store_unseen(timed.saturating_sub(without) / (2 * calls), seen / (2 * calls));
    counting::cost::calibrate_of_engine(index, 1000 * counted.saturating_sub(without) / calls);
}

/// Measures the probes themselves, on a function without probes at this index, which is not
/// reported. Takes a few hundred microseconds.
pub(crate) fn calibrate(index: u32, function: &'static Function) {
    const ROUNDS: usize = 400;
    /// Number of probes that are timed together.
    const REPEAT: u64 = 16;
    let Some(thread) = Thread::current() else { return };
    let anchor = 0_usize;
    let stack_pointer = std::ptr::from_ref(&anchor) as usize;
    let spent = || thread.overhead.load(Ordering::Relaxed);
    let mut empty = [0; ROUNDS];
    let mut unseen = [0; ROUNDS];
    let mut seen = [0; ROUNDS];
    UNSEEN.store(0, Ordering::Relaxed);
    for round in 0..ROUNDS {
        function.reset();
        function.turn_on(0, u64::MAX, 1.0, |_, _| {});
        timed_entry(index, function, thread, stack_pointer);
        let left = tsc::now();
        thread.enter(stack_pointer, |entries| {
            let (observation, period) = (function.observation(), function.exit_period());
            let exit = Entry { function: index, observation, period, stack_pointer, ..Entry::default() };
            let entry = entries.own().pop(&exit, thread::left);
            empty[round] = entry.map_or(0, |entry| left.wrapping_sub(entry.ticks));
        });
        let (begin, before) = (tsc::now(), spent());
        (0..REPEAT).for_each(|_| timed_entry(index, function, thread, stack_pointer));
        let total = tsc::now().wrapping_sub(begin);
        let of_probes = spent().wrapping_sub(before);
        unseen[round] = total.saturating_sub(of_probes) / REPEAT;
        seen[round] = of_probes / REPEAT;
    }
    function.reset();
    store_empty(&mut empty);
    for times in [&mut unseen, &mut seen] {
        times.sort_unstable();
    }
    // The lower quartile: slower rounds were disturbed.
    store_unseen(unseen[ROUNDS / 4], seen[ROUNDS / 4]);
    counting::cost::calibrate(index);
}

/// Stores the mean and the typical latency of empty calls.
fn store_empty(latencies: &mut [u64]) {
    latencies.sort_unstable();
    let Some(median) = latencies.get(latencies.len() / 2) else { return };
    RESOLUTION.store(latencies[latencies.len() / 4], Ordering::Relaxed);
    // Longer calls were disturbed.
    let undisturbed = &latencies[..latencies.partition_point(|latency| *latency <= 2 * median)];
    let sum: u64 = undisturbed.iter().sum();
    EMPTY.store(1000 * sum / undisturbed.len() as u64, Ordering::Relaxed);
}

/// An entry as made by [`entry_at`].
#[inline(never)]
fn timed_entry(index: u32, function: &'static Function, thread: &Thread, stack_pointer: usize) {
    let fired = Fired { index, function, probe: None, call_site: 0, stack_pointer };
    enter(tsc::now(), &fired, thread);
}

/// The mean latency of a call to an empty function, in ticks. It is part of the ticks of each
/// [`Sample`].
pub(crate) fn empty() -> f64 {
    EMPTY.load(Ordering::Relaxed) as f64 / 1000.0
}

/// The typical latency of a call to an empty function, in ticks: the resolution of latencies.
pub(crate) fn resolution() -> u64 {
    RESOLUTION.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::function::OwnTime;

    /// The exit probe wakes the service thread, which gets the processor before preemption is
    /// measured. The call has ended before.
    #[test]
    fn preemption_in_the_exit_probe_is_not_in_the_call() {
        let time = |least, value, most| preemption::Time { least, value, most };
        let measured = time(100_000, 100_000, 100_000);
        assert_eq!(until(1000, 2000, measured), measured, "before the probe");
        assert_eq!(until(1000, 91_000, measured), time(10_000, 10_000, 10_000));
        assert_eq!(until(1000, 91_000, time(0, 50_000, 100_000)), time(0, 0, 10_000));
        assert_eq!(until(1000, 900, measured), measured, "the clock has gone back");
    }

    #[test]
    fn the_duration_of_a_call_is_within_limits_if_the_thread_waited_and_was_preempted() {
        let found = |least, value, most| {
            let Duration { ticks, below, above } = duration(1000, 0, preemption::Time { least, value, most });
            [ticks - below, ticks, ticks + above]
        };
        assert_eq!(found(0, 0, 0), [1000; 3]);
        assert_eq!(found(300, 300, 300), [700; 3]);
        assert_eq!(found(100, 300, 900), [100, 700, 900]);
        assert_eq!(found(100, 3000, 9000), [0, 0, 900], "not longer than the call");
    }

    #[test]
    fn the_cost_of_probes_between_readings_of_the_clock_is_not_known_exactly() {
        let part = UNSEEN_PART.swap(512, Ordering::Relaxed);
        let found = [(1000, 0), (1000, 200), (1000, 1000), (1000, 5000)]
            .map(|(ticks, overhead)| without_probes(ticks, overhead));
        UNSEEN_PART.store(part, Ordering::Relaxed);
        assert_eq!(found, [(1000, 0), (800, 100), (250, 250), (500, 500)]);
    }

    /// Whether the program has one thread or several decides only how fast calls are counted.
    #[test]
    fn both_counting_probes_count_each_call_of_their_function() {
        let index = FUNCTIONS.push_with(|_| Function::default()).unwrap() as u32;
        let function = FUNCTIONS.get(index as usize).unwrap();
        // No provider has this probe.
        let id = ProbeId(50_000);
        Function::adopt(index, id, ProbeType::Entry).unwrap();
        for (number, count) in (1..).zip([COUNT, COUNT_ALONE, COUNT, COUNT_ALONE]) {
            assert!(is_counting(count));
            // SAFETY: as the site of this probe would.
            unsafe { count(id, 0, 0) };
            assert_eq!(function.calls(), number);
        }
        assert!(!is_counting(ENTRY));
    }

    /// Virtual machines that move to another machine have such clocks, and processors whose clocks
    /// are not synchronous.
    #[test]
    fn a_call_that_ends_before_it_begins_is_not_timed() {
        let index = FUNCTIONS.push_with(|_| Function::default()).unwrap() as u32;
        let function = FUNCTIONS.get(index as usize).unwrap();
        let thread = Thread::current().unwrap();
        let entry = Entry { function: index, ticks: 1_000_000_000, ..Entry::default() };
        let mut ticks = Vec::new();
        for end in [entry.ticks + 1000, entry.ticks - 1, 1, entry.ticks + LONG_CALL * 2] {
            complete(end, &entry, function, thread);
        }
        thread::drain(|sample| {
            if sample.function == index {
                ticks.push(sample.ticks);
            }
        });
        assert_eq!(ticks.len(), 2);
        assert!(ticks.iter().all(|ticks| *ticks <= LONG_CALL * 2), "{ticks:?}");
        assert!(note().is_some_and(|note| note.contains("gone back during")));
        let before = (thread.spent(), thread.overhead());
        spend(thread, entry.ticks, entry.ticks - 1_000_000);
        assert_eq!((thread.spent(), thread.overhead()), before);
    }

    #[test]
    fn the_time_of_calls_before_their_probes_are_made_is_not_the_programs_own() {
        let thread = Thread::current().unwrap();
        let waits = || {
            let begin = tsc::now();
            while tsc::now() < begin + 1000 {}
        };
        let before = (thread.overhead(), thread::making());
        before_probes(waits);
        assert!(thread.overhead() >= before.0 + 1000);
        assert!(thread::making() >= before.1 + 1000, "it is a cost of the start");
        let before = thread.overhead();
        thread.enter(usize::MAX, |_| before_probes(waits));
        assert_eq!(thread.overhead(), before, "it has interrupted a probe");
        std::thread::spawn(move || {
            before_probes(waits);
            assert!(Thread::existing().is_none(), "it has no open calls");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn making_probes_is_a_cost_and_not_part_of_open_calls() {
        let index = FUNCTIONS.push_with(|_| Function::default()).unwrap();
        let function = FUNCTIONS.get(index).unwrap();
        function.reset();
        function.turn_on(tsc::now(), 10, 1.0, |_, _| {});
        let thread = Thread::current().unwrap();
        let local = 0_usize;
        let stack_pointer = std::ptr::from_ref(&local).addr();
        let before = (thread.spent(), thread::making());
        let begin = tsc::now();
        let fired = Fired { index: index as u32, function, probe: None, call_site: 0, stack_pointer };
        enter(tsc::now(), &fired, thread);
        let mut took = 0;
        interrupted(&mut || {
            let begin = tsc::now();
            while took < 10_000_000 {
                took = tsc::now().saturating_sub(begin);
            }
        });
        let mut open = None;
        thread::open_calls(|_, entry, limits| {
            if entry.function == index as u32 {
                open = Some(limits.time.ticks);
            }
        });
        let all = tsc::now() - begin;
        let open = open.unwrap();
        assert!(open <= all - took, "{open} of {all} ticks, of which {took} do not belong to it");
        let (spent, making) = (thread.spent() - before.0, thread::making() - before.1);
        assert!(making > 0 && spent >= making, "{making} of {spent}");
        // Waiting for a thread that makes probes costs nothing.
        let before = thread::making();
        interrupted(&mut || std::thread::sleep(std::time::Duration::from_millis(20)));
        assert!(governor::nanoseconds(thread::making() - before) < 20e6);
    }

    #[test]
    fn entries_in_a_handler_that_has_interrupted_a_probe_are_known_to_be_missing() {
        let index = FUNCTIONS.push_with(|_| Function::default()).unwrap();
        let function = FUNCTIONS.get(index).unwrap();
        function.reset();
        let thread = Thread::current().unwrap();
        let local = 0_usize;
        let outer = std::ptr::from_ref(&local).addr();
        let enter_at = |stack_pointer: usize| {
            let fired = Fired { index: index as u32, function, probe: None, call_site: 0, stack_pointer };
            enter(tsc::now(), &fired, thread);
        };
        let interrupted = || _ = thread.enter(outer, |_| enter_at(outer - 1000));
        interrupted();
        assert_eq!(function.lost_entries(), 0, "the function was not on");
        function.turn_on(tsc::now(), 10, 1.0, |_, _| {});
        enter_at(outer);
        interrupted();
        assert_eq!((function.lost_entries(), function.counted().entries), (1, 1));
    }
}
