//! Counting windows: the number of calls of functions that are called too often to be timed at the
//! same time.
//!
//! The probes that time a call take some 100 ns, and what they take is known only to about a third.
//! A window of the program's own time ([`crate::function`]) is therefore uncertain by its probes'
//! time: by more than its length, for a function that is called every 20 ns. Functions that are
//! called [often](crate::policy::Pace::is_frequent) are counted and timed in separate windows:
//!
//! 1. The service thread switches their entry probes on with a probe function that only increments
//!    a counter. Some microseconds later it reads the counters and the processor time of all
//!    threads that execute probes, and again after [`LENGTH`]. Then it switches the probes off.
//!    This does not need the program's help, and no call of it reads a clock.
//! 2. Each observed call stands for the threads' processor time in the stratum, divided by that in
//!    the window. Time in which threads wait, or are preempted, is in neither.
//! 3. The mean latency is that of a fixed number of calls after the counting window. How they are
//!    combined: [`crate::strata`].
//!
//! Several functions are counted in one window if their probes take little of it together.
//!
//! A window in which the program has hardly run shows nothing and is discarded. That depends on the
//! scheduler, not on what the program calls. The service thread needs a processor of its own for
//! this: with one processor, functions are counted and timed in the same windows.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wordpatch::tsc;

use crate::function::Function;
use crate::{displaced, fire, governor, schedule, thread};

/// Length of a window, in nanoseconds.
const LENGTH: f64 = 10e3;

/// Time before it, in which the rewritten code and the probes get into the caches, in nanoseconds.
/// Random: not in step with the program.
const WARM_UP: Range<f64> = 2e3..4e3;

/// The part of a window that the probes of all its functions may take. A function that takes more
/// has a window for itself.
const LOAD: f64 = 0.15;

/// The part of a window for which the program must have run.
const LEAST: f64 = 0.25;

/// How far the cost of a counting probe may be off, relative to it, and that of a timing probe.
const COUNTING_ERROR: f64 = 0.5;
const TIMING_ERROR: f64 = 0.3;

/// Threads whose processor time is read: about half a microsecond each.
const MAX_THREADS: usize = 32;

/// What counting probes have taken so far, in nanoseconds.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// What a counting window has shown of one function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Count {
    pub(crate) calls: u64,
    /// Processor time of all threads in the window, without probes, in nanoseconds.
    pub(crate) own: f64,
    /// How far that may be off, relative to it.
    pub(crate) uncertain: f64,
}

impl Count {
    /// Calls per nanosecond of processor time.
    pub(crate) fn rate(&self) -> f64 {
        self.calls as f64 / self.own
    }
}

/// Whether the program can run while the service thread does, and its processor time can be read.
pub(crate) fn is_possible() -> bool {
    displaced::has_processors() && (1..=MAX_THREADS).contains(&thread::live().count())
}

/// How many of the functions, which are called so often per nanosecond each, one window has room
/// for.
pub(crate) fn room(rates: impl Iterator<Item = f64>) -> usize {
    let cost = governor::nanoseconds(1) * fire::counting_cost();
    let sum = |sum: &mut f64, rate: f64| {
        *sum += rate * cost;
        Some(*sum)
    };
    rates.scan(0.0, sum).take_while(|sum| *sum <= LOAD).count().max(1)
}

/// Counts calls of the functions in one window, which takes some 15 us. `random` is a number from 0
/// to 1. Gives nothing if the program has hardly run. For the service thread.
pub(crate) fn window(functions: &[&Function], random: f64) -> Option<Vec<Count>> {
    for function in functions {
        function.begin_counting(schedule::switch_on_counting);
    }
    displaced::spin(WARM_UP.start + random * (WARM_UP.end - WARM_UP.start));
    let before = Reading::new(functions);
    displaced::spin(LENGTH);
    let after = Reading::new(functions);
    for function in functions {
        function.end_counting();
    }
    let passed = governor::nanoseconds(after.time - before.time);
    let running = after.processor - before.processor;
    let timing = after.timing - before.timing;
    let calls: Vec<u64> =
        after.calls.iter().zip(&before.calls).map(|(after, before)| after - before).collect();
    let cost = governor::nanoseconds(1) * fire::counting_cost();
    let counting = calls.iter().sum::<u64>() as f64 * cost;
    // Calls before and after the window are about as many, relative to its time.
    SPENT.fetch_add((counting * (1.0 + WARM_UP.end / LENGTH)) as u64, Relaxed);
    if running < LEAST * passed {
        return None;
    }
    let own = (running - timing - counting).max(running / 10.0);
    let uncertain = (COUNTING_ERROR * counting + TIMING_ERROR * timing) / own;
    Some(calls.into_iter().map(|calls| Count { calls, own, uncertain }).collect())
}

/// Processor time of all threads that execute probes, without that of probes, in nanoseconds.
pub(crate) fn own_time() -> f64 {
    thread::processor_time() - governor::nanoseconds(thread::spent()) - spent()
}

/// What counting probes have taken so far, in nanoseconds.
pub(crate) fn spent() -> f64 {
    SPENT.load(Relaxed) as f64
}

/// Clocks and counters at one moment.
struct Reading {
    processor: f64,
    timing: f64,
    calls: Vec<u64>,
    time: u64,
}

impl Reading {
    fn new(functions: &[&Function]) -> Self {
        Self {
            processor: thread::processor_time(),
            timing: governor::nanoseconds(thread::spent()),
            calls: functions.iter().map(|function| function.calls()).collect(),
            time: tsc::now(),
        }
    }
}
