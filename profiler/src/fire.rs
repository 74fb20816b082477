//! What runs when a probe fires. On any thread, at any instruction, also in a signal handler: no locks, no allocation, no
//! formatting; little stack.
//!
//! Entry: count it in the function's burst, push it on the thread's stack of entries; the clock is read last. Exit: the
//! clock is read first; find the entry, record the difference. What the thread spent in probes between the two is taken off,
//! so a function is not charged for the probes of those it calls.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicU64, Ordering};

use fastinst::{ProbeFn, ProbeId};
use wordpatch::tsc;

use crate::function::{FUNCTIONS, Function, SAMPLES};
use crate::pairing::Entry;
use crate::thread::{Sample, Thread};

/// What a probe costs beyond the time between its own two readings of the clock, in ticks: measured by [`calibrate`].
static UNSEEN: AtomicU64 = AtomicU64::new(0);

/// What a call of an empty function is measured as, in ticks.
static EMPTY: AtomicU64 = AtomicU64::new(0);

/// The probe function of entries.
pub(crate) const ENTRY: ProbeFn = entry;

/// The probe function of exits.
pub(crate) const EXIT: ProbeFn = exit;

/// Live at the probe: the three arguments, and nothing that a callee may change. Replaces the third, the function's address,
/// by the stack pointer as it is at the site, and jumps: no frame, so the CFI of a leaf function is right.
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
    let Some((index, function)) = Function::of_probe(id) else { return };
    let Some(thread) = Thread::current() else { return };
    enter(begin, index, function, thread, call_site, stack_pointer);
}

#[inline(always)]
fn enter(
    begin: u64,
    index: u32,
    function: &Function,
    thread: &Thread,
    call_site: usize,
    stack_pointer: usize,
) {
    thread.enter(stack_pointer, |entries| {
        let place = function.enter();
        let samples = SAMPLES.load(Ordering::Relaxed);
        let moment = thread.moment(begin);
        if place.number > samples {
            function.beyond(place, samples, moment);
            return thread.spend(tsc::now().wrapping_sub(begin) + UNSEEN.load(Ordering::Relaxed));
        }
        if place.number == 1 {
            function.is_first(moment);
        }
        if place.number == samples {
            function.is_full(index, moment);
        }
        let (burst, period) = (place.burst, function.exit_period());
        let last = place.number == samples;
        let entry =
            Entry { function: index, burst, period, last, call_site, stack_pointer, ..Entry::default() };
        let Some(entry) = entries.push(entry, is_open) else { return thread.lose() };
        entry.ticks = tsc::now();
        thread.spend(entry.ticks.wrapping_sub(begin) + UNSEEN.load(Ordering::Relaxed));
        entry.overhead = thread.overhead.load(Ordering::Relaxed);
    });
}

/// Whether the exit of an entry can still be seen, and known for its own.
#[cold]
fn is_open(entry: &Entry) -> bool {
    FUNCTIONS.get(entry.function as usize).is_some_and(|function| function.exit_period() == entry.period)
}

extern "C" fn exit_at(id: ProbeId, call_site: usize, stack_pointer: usize) {
    let begin = tsc::now();
    let Some((index, function)) = Function::of_probe(id) else { return };
    let Some(thread) = Thread::current() else { return };
    exit_from(begin, index, function, thread, call_site, stack_pointer);
}

#[inline(always)]
fn exit_from(
    begin: u64,
    index: u32,
    function: &Function,
    thread: &Thread,
    call_site: usize,
    stack_pointer: usize,
) {
    thread.enter(stack_pointer, |entries| {
        let (burst, period) = (function.current_burst(), function.exit_period());
        let exit = Entry { function: index, burst, period, call_site, stack_pointer, ..Entry::default() };
        let entry = entries.pop(&exit);
        if let Some(entry) = entry {
            let overhead = thread.overhead.load(Ordering::Relaxed).wrapping_sub(entry.overhead);
            let ticks = begin.wrapping_sub(entry.ticks);
            let ticks = ticks.saturating_sub(overhead + EMPTY.load(Ordering::Relaxed));
            thread.record(Sample { function: index, last: entry.last, ticks });
        }
        function.left(index, entry.map(|entry| entry.burst));
        thread.spend(tsc::now().wrapping_sub(begin) + UNSEEN.load(Ordering::Relaxed));
    });
}

/// Measures the probes themselves, on a function without probes at this index, which is not reported. Takes some hundred
/// microseconds.
pub(crate) fn calibrate(index: u32, function: &Function) {
    const ROUNDS: usize = 400;
    /// Probes timed together.
    const REPEAT: u64 = 16;
    let Some(thread) = Thread::current() else { return };
    let anchor = 0_usize;
    let stack_pointer = std::ptr::from_ref(&anchor) as usize;
    let spent = || thread.overhead.load(Ordering::Relaxed);
    let mut empty = [0; ROUNDS];
    let mut unseen = [0; ROUNDS];
    for round in 0..ROUNDS {
        function.arm(index, |_, _| {});
        timed_entry(index, function, thread, stack_pointer);
        let left = tsc::now();
        thread.enter(stack_pointer, |entries| {
            let exit =
                Entry { function: index, burst: function.current_burst(), stack_pointer, ..Entry::default() };
            let entry = entries.pop(&exit);
            empty[round] = entry.map_or(0, |entry| left.wrapping_sub(entry.ticks));
        });
        // Entries beyond the burst: what a counting burst is made of.
        (0..SAMPLES.load(Ordering::Relaxed)).for_each(|_| _ = function.enter());
        let (begin, before) = (tsc::now(), spent());
        (0..REPEAT).for_each(|_| timed_entry(index, function, thread, stack_pointer));
        let total = tsc::now().wrapping_sub(begin);
        unseen[round] = total.saturating_sub(spent().wrapping_sub(before)) / REPEAT;
    }
    empty.sort_unstable();
    unseen.sort_unstable();
    // The lower quartile: what is slower was disturbed.
    EMPTY.store(empty[ROUNDS / 4], Ordering::Relaxed);
    UNSEEN.store(unseen[ROUNDS / 4], Ordering::Relaxed);
}

/// An entry as [`entry_at`] makes it.
#[inline(never)]
fn timed_entry(index: u32, function: &Function, thread: &Thread, stack_pointer: usize) {
    enter(tsc::now(), index, function, thread, 0, stack_pointer);
}

/// What a pair of probes may cost unseen, in ticks: for how far a rate of calls can be trusted.
pub(crate) fn unseen_in_a_pair() -> u64 {
    2 * UNSEEN.load(Ordering::Relaxed)
}
