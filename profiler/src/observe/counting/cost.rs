//! The time by which a counting probe delays the program.
//!
//! A processor executes the instructions of a probe at the same time as those of the program, as
//! far as it has execution units and fetches enough of them. Two measurements at the start limit
//! the delay:
//!
//! * [`Cost::least`]: in a loop of calls to the probe function, which only the processor's
//!   throughput limits;
//! * [`Cost::most`]: in the same loop with an LFENCE after each call, so that nothing overlaps;
//!   without the time of the fences.
//!
//! The mean of the two is the estimate. In SQLite on AMD Zen 5, where the limits are 1.9 and 5.0
//! ns, the numbers of calls come out right with a delay between 2.5 and 4 ns.

use std::arch::x86_64::_mm_lfence;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fastinst::ProbeId;
use wordpatch::tsc;

use crate::observe::function::{FUNCTIONS, Function};
use crate::observe::governor;

/// Number of loops, and of calls in each.
const ROUNDS: usize = 400;
const CALLS: u64 = 16;

/// The limits of a probe's delay, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    least: f64,
    most: f64,
}

impl Cost {
    /// The limits, as measured at the start. `is_alone` for the probe function of a program in
    /// which one thread runs, without a locked instruction.
    pub(super) fn of_probe(is_alone: bool) -> Self {
        if is_alone { ALONE.get() } else { SHARED.get() }
    }

    /// The estimate.
    pub(super) fn mean(&self) -> f64 {
        f64::midpoint(self.least, self.most)
    }

    /// The difference of either limit from the estimate, relative to it.
    pub(super) fn error(&self) -> f64 {
        let mean = self.mean();
        if mean > 0.0 { (self.most - mean) / mean } else { 0.0 }
    }
}

/// The measured limits for one probe function, in thousandths of a tick.
struct Measured {
    least: AtomicU64,
    most: AtomicU64,
}

impl Measured {
    const fn new() -> Self {
        Self { least: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    fn store(&self, least: u64, most: u64) {
        self.least.store(least, Relaxed);
        self.most.store(most.max(least), Relaxed);
    }

    fn get(&self) -> Cost {
        let get = |limit: &AtomicU64| governor::nanoseconds(limit.load(Relaxed)) / 1000.0;
        Cost { least: get(&self.least), most: get(&self.most) }
    }
}

static SHARED: Measured = Measured::new();
static ALONE: Measured = Measured::new();

/// Measures the probe functions of this crate, with this function, which is not reported.
pub(crate) fn calibrate(index: u32) {
    for (measured, [least, most]) in measure(index) {
        measured.store(least, most);
    }
}

/// Sets the limits for an engine, in whose code a call to a counting probe takes `least`
/// thousandths of a tick in a loop: the processor overlaps the same part of it.
pub(crate) fn calibrate_of_engine(index: u32, least: u64) {
    for (measured, [of_loop, serialized]) in measure(index) {
        measured.store(least, least * serialized / of_loop.max(1));
    }
}

fn measure(index: u32) -> [(&'static Measured, [u64; 2]); 2] {
    [(&SHARED, limits(index, counts)), (&ALONE, limits(index, counts_alone))]
}

/// The time per call in a loop, and if nothing overlaps it, in thousandths of a tick.
fn limits(index: u32, count: fn(u32)) -> [u64; 2] {
    let call = || black_box(count)(black_box(index));
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has; it accesses nothing.
    let fence = || unsafe { _mm_lfence() };
    let least = time(call);
    let most = time(|| {
        call();
        fence();
    });
    [least, most.saturating_sub(time(fence))]
}

/// A call as [`crate::observe::fire::COUNT`] counts it, of the function at this index.
#[inline(never)]
fn counts(index: u32) {
    found(index).into_iter().for_each(Function::count);
}

/// As [`crate::observe::fire::COUNT_ALONE`].
#[inline(never)]
fn counts_alone(index: u32) {
    found(index).into_iter().for_each(Function::count_alone);
}

/// The function at this index, after a search for the function of some probe.
#[inline(always)]
fn found(index: u32) -> Option<&'static Function> {
    black_box(Function::of_probe(black_box(ProbeId(0))));
    FUNCTIONS.get(index as usize)
}

/// The lower quartile of the time per call, in thousandths of a tick: slower rounds were disturbed.
fn time(act: impl Fn()) -> u64 {
    let mut times: [u64; ROUNDS] = std::array::from_fn(|_| {
        let begin = tsc::now_after_all();
        (0..CALLS).for_each(|_| act());
        1000 * tsc::now_after_all().saturating_sub(begin) / CALLS
    });
    times.sort_unstable();
    times[ROUNDS / 4]
}
