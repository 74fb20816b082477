//! Estimates the part of elapsed time that is the program's own: it excludes time in which threads
//! of the program were ready to run but none had a processor.
//!
//! Probes measure the part of its time for which a thread was preempted ([`crate::preemption`]), up
//! to its last probe. The number of threads times this part is the average number of preempted
//! threads. The processor time of all threads gives the average number of running threads. The sum
//! of both is n, the average number of ready threads, each preempted for a part p of the time in
//! which it is ready. Under the assumption that threads are preempted independently, all of them
//! are preempted for p^n of the time; if n is below 1, one is ready and preempted for n p of the
//! time.
//!
//! If a program has more threads than processors, preemption of its threads is not independent. If
//! it uses nearly all processors, its threads preempt each other, and the time with no thread
//! running is at most the time during which some processor is not used by the program. Otherwise
//! other processes preempt them; then windows ([`crate::policy`]) open more often than average
//! right after the program has lost its processor, which has the opposite effect on the estimates.
//! With two busy loops on two processors, the two effects cancelled.

use nix::time::ClockId;

use crate::busiest::{Busiest, MIN_PART};
use crate::displaced::number_of_processors;
use crate::governor;
use crate::thread::Seen;

/// The time constant of the exponential average, in nanoseconds: older measurements have less than
/// 1/e of the weight.
const MEMORY: f64 = 0.2e9;

/// The minimum time between measurements, in nanoseconds: a scheduler's time slice.
const MIN_INTERVAL: f64 = 3e6;

/// The maximum part of the processors that a program leaves to others if it uses nearly all.
const FEW: f64 = 0.2;

/// A program that begins to wait more often than this, per nanosecond, waits often: 20 times in a
/// second.
const WAITS: f64 = 2e-8;

/// Measured times, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    passed: f64,
    /// Processor time of the program.
    processor: f64,
    /// The time of threads for which probes have measured preemption, and the preempted part of it.
    seen: f64,
    preempted: f64,
    /// How often threads have begun to wait.
    waits: f64,
    /// The sum of the times in which each thread was running at least now and then.
    active: f64,
}

impl Times {
    fn now(passed: f64, seen: Seen, active: f64) -> Self {
        Self {
            active,
            passed,
            processor: processor_time(),
            seen: governor::nanoseconds(seen.time),
            preempted: governor::nanoseconds(seen.preempted),
            waits: seen.waits as f64,
        }
    }

    /// The part of the elapsed time that is the program's own, given its number of threads and the
    /// number of processors that it may use.
    fn own(&self, threads: f64, processors: f64) -> f64 {
        if self.seen <= 0.0 || self.passed <= 0.0 {
            return 1.0;
        }
        let preempted = threads * (self.preempted / self.seen).min(1.0);
        let running = self.processor / self.passed;
        let ready = running + preempted;
        if ready <= 0.0 {
            return 1.0;
        }
        let independent = if ready < 1.0 { preempted } else { (preempted / ready).powf(ready) };
        let unused = (1.0 - running / processors).max(0.0);
        let nobody_runs = if unused < FEW { independent.min(unused) } else { independent };
        (1.0 - nobody_runs).clamp(MIN_PART, 1.0)
    }
}

/// The program's own part of recent time.
#[derive(Debug, Default)]
pub(crate) struct OwnPart {
    last: Times,
    recent: Times,
    busiest: Busiest,
    /// When it was last looked at, and [`Times::active`] until then.
    looked: f64,
    active: f64,
}

impl OwnPart {
    /// Begins now: earlier activity of the threads does not count.
    pub(crate) fn begin(&mut self, seen: Seen) {
        self.last = Times::now(0.0, seen, 0.0);
    }

    /// Reads the clocks. Called by the service thread.
    pub(crate) fn look(&mut self, passed: f64, seen: Seen) {
        self.active += self.busiest.look() as f64 * (passed - self.looked).max(0.0);
        self.looked = passed;
        self.add(Times::now(passed, seen, self.active));
    }

    fn add(&mut self, now: Times) {
        let since = |of: fn(&Times) -> f64| (of(&now) - of(&self.last)).max(0.0);
        let passed = since(|times| times.passed);
        if passed < MIN_INTERVAL {
            return;
        }
        let left = (-passed / MEMORY).exp();
        let sum = |of: fn(&Times) -> f64| left * of(&self.recent) + since(of);
        self.recent = Times {
            passed: sum(|times| times.passed),
            processor: sum(|times| times.processor),
            seen: sum(|times| times.seen),
            preempted: sum(|times| times.preempted),
            waits: sum(|times| times.waits),
            active: sum(|times| times.active),
        };
        self.last = now;
    }

    /// The part after a second in which threads have begun to wait so often.
    #[cfg(test)]
    pub(crate) fn of_waits_in_tests(per_second: u64) -> Self {
        let mut part = Self::default();
        for tenth in 1..=10 {
            let seen = Seen { waits: tenth * per_second / 10, ..Seen::default() };
            part.add(Times::now(tenth as f64 * 1e8, seen, 0.0));
        }
        part
    }

    /// Whether the program often waits, perhaps for a thread or another process.
    pub(crate) fn waits(&self) -> bool {
        self.recent.waits > WAITS * self.recent.passed
    }

    /// The part, from 0 to 1.
    pub(crate) fn get(&self) -> f64 {
        let threads = self.recent.active / self.recent.passed.max(1.0);
        self.recent.own(threads, number_of_processors() as f64)
    }

    /// The thread that has run most in recent time.
    pub(crate) fn busiest(&self) -> &Busiest {
        &self.busiest
    }
}

/// The processor time of the program's threads, in nanoseconds. Called by the service thread; the
/// time of this thread and of its companion is subtracted.
pub(crate) fn processor_time() -> f64 {
    governor::processor_time(ClockId::CLOCK_PROCESS_CPUTIME_ID) - governor::of_own_threads()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(threads: f64, processor: f64, preempted: f64, expected: f64) {
        let [processor, preempted] = [processor, preempted].map(|seconds| seconds * 1e9);
        // The last probe was a while ago.
        let (seen, preempted) = (0.8e9 * threads, 0.8 * preempted);
        let times = Times { passed: 1e9, processor, seen, preempted, waits: 0.0, active: 0.0 };
        let own = times.own(threads, 2.0);
        assert!((own - expected).abs() < 1e-9, "{own}");
    }

    #[test]
    fn part_of_the_time_that_is_the_programs_own() {
        check(0.0, 0.0, 0.0, 1.0);
        check(1.0, 0.3, 0.0, 1.0);
        // One thread with half a processor; then one that waits half of the time, and is preempted
        // for half of the rest.
        check(1.0, 0.5, 0.5, 0.5);
        check(1.0, 0.25, 0.25, 0.75);
        // Two threads on two processors, of which others take half.
        check(2.0, 1.0, 1.0, 0.75);
        // Four threads on two processors, alone; with eight more that wait; and with others, which
        // take a third.
        check(4.0, 2.0, 2.0, 1.0);
        check(12.0, 2.0, 2.0, 1.0);
        check(4.0, 4.0 / 3.0, 8.0 / 3.0, 1.0 - (2.0_f64 / 3.0).powi(4));
        // They use nearly all of both.
        check(4.0, 1.9, 2.1, 0.95);
        check(1.0, 0.0, 1.0, MIN_PART);
    }

    #[test]
    fn a_program_that_waits_in_every_request_waits_often() {
        let waits_often = |per_second| OwnPart::of_waits_in_tests(per_second).waits();
        assert!(!waits_often(0) && !waits_often(10));
        assert!(waits_often(40) && waits_often(10_000));
        assert!(!OwnPart::default().waits());
    }

    #[test]
    fn recent_time_counts_most() {
        let mut part = OwnPart::default();
        let mut now = Times::default();
        let mut run = |seconds: f64, processor: f64| {
            for _ in 0..100 {
                now.passed += 1e7 * seconds;
                now.active += 1e7 * seconds;
                now.seen += 1e7 * seconds;
                now.processor += 1e7 * seconds * processor;
                now.preempted += 1e7 * seconds * (1.0 - processor);
                part.add(now);
            }
            part.get()
        };
        assert!((run(1.0, 1.0) - 1.0).abs() < 1e-9);
        assert!((run(1.0, 0.25) - 0.25).abs() < 0.02);
    }
}
