//! Counting windows: the number of calls to functions that are called very often.
//!
//! The probes that time a call take about 100 ns. The length of a window, in the program's own time
//! ([`crate::observe::function`]), is uncertain by the error of its probes' time: by more than 100
//! % if a function is called every 20 ns. Functions that are called [very
//! often](crate::observe::policy::Pace::is_frequent) are therefore counted and timed in separate
//! windows:
//!
//! 1. The service thread activates their entry probes, with a probe function that only increments a
//!    counter. About ten microseconds later it reads the counters and the processor time of all
//!    threads that execute probes, and again after [`LENGTH`]. Then it deactivates the probes. The
//!    probes do not read a clock, and the program takes no part in opening or closing the window.
//!    While one thread of the program runs alone ([`crate::observe::busiest`]), the counter is not
//!    incremented by a locked instruction, which would take most of the probe's time on some
//!    processors.
//! 2. Each counted call represents the processor time of the threads in the stratum, divided by
//!    that in the window. Neither includes time in which threads wait or are preempted.
//! 3. A fixed number of calls after the counting window is timed. [`crate::estimate::strata`]
//!    combines the two figures.
//!
//! Functions share a window as long as their probes take a small part of it ([`cost`]).
//!
//! A window in which the program hardly ran is discarded. This depends on the scheduler, not on the
//! functions that the program calls. While a window is open, the service thread occupies a
//! processor: on a machine with a single processor, functions are counted and timed in the same
//! windows.
//!
//! Two threads that increment one counter delay each other by an unknown amount. If several threads
//! run in a window, the stated uncertainty covers it ([`SHARED_ERROR`]).

pub(crate) mod cost;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wordpatch::tsc;

use self::cost::Cost;
use crate::estimate::strata::Systematic;
use crate::observe::function::Function;
use crate::observe::{displaced, governor, schedule, thread};

/// Length of a window, in nanoseconds.
const LENGTH: f64 = 10e3;

/// The time before a window in which the caches are filled with the rewritten code and the probes,
/// in nanoseconds. It is random, so that windows do not keep in step with the program.
const WARM_UP: Range<f64> = 8e3..12e3;

/// The maximum part of a window that the probes of all its functions take. A function whose probes
/// take more has a separate window.
const LOAD: f64 = 0.08;

/// The minimum part of a window for which the program must have run.
const MIN_RUNNING: f64 = 0.25;

/// A probe's delay may exceed the estimate by this multiple of the estimate's error: the program
/// loses cache lines and predictions to it as well.
const MORE: f64 = 4.0;

/// The error of the delay, relative to the estimate, in a window in which several threads run, and
/// wait for each other's counters. While software builds used both processors, the number of calls
/// every 40 ns came out 27 to 38 % too low.
const SHARED_ERROR: f64 = 8.0;

/// Total time spent in counting probes, in nanoseconds.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// The result of a counting window for one function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Count {
    pub(crate) calls: u64,
    /// The processor time of all threads in the window, without probes, in nanoseconds.
    pub(crate) own: f64,
    /// The relative error of a rate computed from `own`.
    pub(crate) systematic: Systematic,
}

impl Count {
    /// Calls per nanosecond of processor time.
    pub(crate) fn rate(&self) -> f64 {
        self.calls as f64 / self.own
    }
}

/// Whether the program can run while the service thread does, and its processor time can be read.
pub(crate) fn is_possible() -> bool {
    displaced::has_processors() && (1..=thread::MAX_READ).contains(&thread::live().count())
}

/// The number of functions that are counted in one window: at least 1. They are the first ones of
/// those with these calls per nanosecond. `is_alone`: as for [`window`].
pub(crate) fn room(is_alone: bool, rates: impl Iterator<Item = f64>) -> usize {
    room_at(Cost::of_probe(is_alone).mean(), rates)
}

/// As [`room`], if a counting probe delays the program by `delay` nanoseconds.
fn room_at(delay: f64, rates: impl Iterator<Item = f64>) -> usize {
    let sum = |sum: &mut f64, rate: f64| {
        *sum += rate * delay;
        Some(*sum)
    };
    rates.scan(0.0, sum).take_while(|sum| *sum <= LOAD).count().max(1)
}

/// Counts calls to the functions in one window, which takes about 25 us. `is_alone` tells whether
/// one thread of the program is expected to run alone; `random` is a number from 0 to 1. Returns
/// `None` if the program hardly ran, or if a thread is deactivating probes of one of the functions.
/// Called by the service thread.
pub(crate) fn window(functions: &[&Function], is_alone: bool, random: f64) -> Option<Vec<Count>> {
    if !functions.iter().all(|function| function.stop()) {
        return None;
    }
    let switch_on = if is_alone { schedule::switch_on_counting_alone } else { schedule::switch_on_counting };
    let begins = |function: &&&Function| function.begin_counting(switch_on);
    let begun = functions.iter().take_while(begins).count();
    if begun < functions.len() {
        functions[..begun].iter().for_each(|function| function.end_counting());
        return None;
    }
    displaced::spin(WARM_UP.start + random * (WARM_UP.end - WARM_UP.start));
    let before = Reading::new(functions);
    displaced::spin(LENGTH);
    let after = Reading::new(functions);
    for function in functions {
        function.end_counting();
    }
    let passed = after.since(&before);
    let delay = Cost::of_probe(is_alone);
    let counting = passed.calls.iter().sum::<u64>() as f64 * delay.mean();
    // Calls during the warm-up are not counted; they are at most this part of the counted ones.
    SPENT.fetch_add((counting * (1.0 + WARM_UP.end / LENGTH)) as u64, Relaxed);
    // Some calls of threads that were not expected to run may be missing.
    let error = if passed.running > 1 { SHARED_ERROR } else { MORE * delay.error() };
    passed.counts(counting, error)
}

/// The processor time of all threads that execute probes, without the probes, in nanoseconds.
pub(crate) fn own_time() -> f64 {
    thread::processor_time() - spent_in_probes()
}

/// The total time of all threads in probes of both kinds, in nanoseconds.
pub(crate) fn spent_in_probes() -> f64 {
    governor::nanoseconds(thread::spent()) + SPENT.load(Relaxed) as f64
}

/// Clocks and counters at one moment. Times are in nanoseconds.
#[derive(Debug)]
struct Reading {
    time: f64,
    /// The processor time of the threads: in total, and of each live one, by kernel id.
    processor: f64,
    threads: Vec<(u32, u64)>,
    /// The part of the processor time that was spent in timing probes.
    timing: f64,
    calls: Vec<u64>,
}

impl Reading {
    fn new(functions: &[&Function]) -> Self {
        let threads: Vec<_> = thread::processor_times().collect();
        let live = threads.iter().map(|(_, time)| time).sum::<u64>() as f64;
        Self {
            processor: live + thread::processor_time_of_ended(),
            threads,
            timing: governor::nanoseconds(thread::spent()),
            calls: functions.iter().map(|function| function.calls()).collect(),
            time: governor::nanoseconds(tsc::now()),
        }
    }

    fn since(&self, before: &Self) -> Passed {
        let calls = self.calls.iter().zip(&before.calls);
        let running = self.threads.iter().filter(|time| !before.threads.contains(time)).count();
        Passed {
            time: self.time - before.time,
            processor: self.processor - before.processor,
            running,
            timing: self.timing - before.timing,
            calls: calls.map(|(now, before)| now.saturating_sub(*before)).collect(),
        }
    }
}

/// The difference of two readings. Times are in nanoseconds.
#[derive(Debug)]
struct Passed {
    time: f64,
    processor: f64,
    /// The number of threads that have run.
    running: usize,
    timing: f64,
    calls: Vec<u64>,
}

impl Passed {
    /// The result of a window in which counting probes delayed the program by the time `counting`,
    /// or by more, up to this relative error. A program that waits for points in time is not
    /// delayed at all.
    fn counts(self, counting: f64, error: f64) -> Option<Vec<Count>> {
        if self.processor < MIN_RUNNING * self.time {
            return None;
        }
        let own = (self.processor - self.timing - counting).max(self.processor / 10.0);
        let shorter = error * counting + schedule::OVERHEAD_ERROR.above * self.timing;
        let above = Systematic::of_shorter_window(shorter / own);
        let systematic = Systematic { below: 1.0 - own / self.processor, above };
        Some(self.calls.into_iter().map(|calls| Count { calls, own, systematic }).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    use super::*;

    /// A thread that has executed a probe runs until the end of the test.
    fn with_a_running_thread(test: impl FnOnce()) {
        use std::sync::atomic::AtomicBool;
        let (ready, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                thread::Thread::current().expect("a block");
                ready.store(true, Relaxed);
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            while !ready.load(Relaxed) {
                std::hint::spin_loop();
            }
            test();
            done.store(true, Relaxed);
        });
    }

    #[test]
    fn processor_time_of_another_thread_includes_the_current_time_slice() {
        with_a_running_thread(|| {
            let start = Instant::now();
            let mut last = thread::processor_time();
            let mut steps = 0;
            // A clock that is as old as the last timer tick advances every few milliseconds.
            while steps < 1000 && start.elapsed() < Duration::from_secs(60) {
                let now = thread::processor_time();
                let step = now - last;
                last = now;
                steps += u32::from(step > 0.0 && step < 100e3);
            }
            assert_eq!(steps, 1000);
        });
    }

    #[test]
    fn calls_are_relative_to_the_processor_time_without_that_of_probes() {
        let window = |processor| {
            Passed { time: 10e3, processor, running: 1, timing: 1000.0, calls: vec![60, 0] }
                .counts(600.0, 2.0)
        };
        let counts = window(7600.0).expect("it ran for three quarters");
        let systematic = Systematic { below: 1600.0 / 7600.0, above: 2200.0 / 3800.0 };
        assert_eq!(counts[0], Count { calls: 60, own: 6000.0, systematic });
        assert_eq!((counts[0].rate(), counts[1].rate()), (0.01, 0.0));
        assert_eq!(window(2400.0), None, "it ran for less than a quarter");
        let counts = window(2600.0).expect("it ran for more than a quarter");
        assert_eq!(counts[0].own, 1000.0);
        // Whatever the probes took, some time remains.
        let all_of_it = Passed { time: 10e3, processor: 10e3, running: 1, timing: 0.0, calls: vec![900] };
        assert_eq!(all_of_it.counts(12e3, 1.0).expect("it ran")[0].own, 1000.0);
    }

    #[test]
    fn threads_that_wait_do_not_run_in_a_window() {
        let reading = |threads: &[(u32, u64)]| Reading {
            time: 0.0,
            processor: 0.0,
            threads: threads.to_vec(),
            timing: 0.0,
            calls: Vec::new(),
        };
        let before = reading(&[(1, 500), (2, 70), (3, 10)]);
        assert_eq!(reading(&[(1, 600), (2, 70), (3, 10)]).since(&before).running, 1);
        assert_eq!(reading(&[(1, 600), (2, 71), (3, 10)]).since(&before).running, 2);
        assert_eq!(reading(&[(4, 1), (1, 500), (2, 70)]).since(&before).running, 1, "one has begun");
    }

    #[test]
    fn a_window_is_shared_as_long_as_its_probes_take_little_of_it() {
        governor::Governor::new(None, false, 2.0);
        static FUNCTION: LazyLock<Function> = LazyLock::new(Function::default);
        crate::observe::fire::calibrate(0, &FUNCTION);
        let delays = [true, false].map(|is_alone| Cost::of_probe(is_alone).mean());
        assert!(delays.iter().all(|delay| *delay > 0.0), "{delays:?}");
        let delay = delays[0];
        let rate = LOAD / delay / 3.5;
        let room = |rate| room_at(delay, [rate; 10].into_iter());
        assert_eq!([rate, 100.0 * rate, 1e-9].map(room), [3, 1, 10]);
    }
}
