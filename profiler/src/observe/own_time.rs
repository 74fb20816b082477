//! Estimates the part of elapsed time that is the program's own: it excludes time in which threads
//! of the program were ready to run but none had a processor.
//!
//! Probes measure the part of its time for which a thread was preempted
//! ([`crate::observe::preemption`]), up to its last probe. The number of threads times this part is
//! the average number of preempted threads. The processor time of all threads gives the average
//! number of running threads. The sum of both is n, the average number of ready threads, each
//! preempted for a part p of the time in which it is ready. Under the assumption that threads are
//! preempted independently, all of them are preempted for p^n of the time; if n is below 1, one is
//! ready and preempted for n p of the time.
//!
//! If a program has more threads than processors, preemption of its threads is not independent. If
//! it uses nearly all processors, its threads preempt each other, and the time with no thread
//! running is at most the time during which some processor is not used by the program. Otherwise
//! other processes preempt them; then windows ([`crate::observe::policy`]) open more often than
//! average right after the program has lost its processor, which has the opposite effect on the
//! estimates. With two busy loops on two processors, the two effects cancelled.
//!
//! If the program has a quota ([`crate::observe::quota`]), all of its threads wait for a processor
//! at once when it is used up: if nothing else preempts them, nobody runs for p of the time. The
//! other extreme are threads that wait for each other although processors are free, because they
//! may not use them: then one of them always runs. The error of the part is the distance to these.

use crate::estimate::strata::Systematic;
use crate::observe::busiest::{Busiest, MIN_PART};
use crate::observe::displaced::number_of_processors;
use crate::observe::thread::Seen;
use crate::observe::{governor, quota};
use crate::processor_time;

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

/// The largest relative error that is stated for the program's own part of the time, if it has
/// several threads that nothing stops at once. Measured: on two processors, with none to four other
/// processes, the numbers of calls to functions that three or four threads call were estimated at
/// 0.76 to 1.13 of the truth.
const MAX_ERROR: f64 = 0.25;

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

    /// The part of the elapsed time that is the program's own, given its number of threads, the
    /// number of processors that it may use, and whether it has a quota.
    fn own(&self, threads: f64, processors: f64, has_quota: bool) -> Part {
        if self.seen <= 0.0 || self.passed <= 0.0 {
            return Part::ALL;
        }
        let preempted = threads * (self.preempted / self.seen).min(1.0);
        let running = self.processor / self.passed;
        let ready = running + preempted;
        if ready <= 0.0 {
            return Part::ALL;
        }
        let independent = if ready < 1.0 { preempted } else { (preempted / ready).powf(ready) };
        let unused = (1.0 - running / processors).max(0.0);
        let nobody_runs = if unused < FEW { independent.min(unused) } else { independent };
        let part = |nobody_runs: f64| (1.0 - nobody_runs).clamp(MIN_PART, 1.0);
        let value = part(nobody_runs);
        let at_once = part((preempted / ready.max(1.0)).min(unused));
        let one_runs = if ready < 1.0 { value } else { running.min(1.0) };
        let least = if has_quota { at_once.min(value) } else { value };
        Part { value, least, most: one_runs.max(value) }
    }
}

/// A part of the time that is the program's own.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    value: f64,
    /// The part if all threads wait for a processor at once, if they may.
    least: f64,
    /// The part if one of them runs whenever possible.
    most: f64,
}

impl Part {
    /// See [`OwnPart::error`].
    fn error(&self) -> Systematic {
        let Self { value, least, most } = *self;
        let usual = (1.0 / value - 1.0).min(MAX_ERROR);
        Systematic { below: usual.max(1.0 - least / value), above: usual.max(most / value - 1.0) }
    }

    const ALL: Self = Self { value: 1.0, least: 1.0, most: 1.0 };
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
    has_quota: bool,
}

impl OwnPart {
    pub(crate) fn new() -> Self {
        Self { has_quota: quota::is_set(), ..Self::default() }
    }

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
        self.part().value
    }

    /// The error of the part, relative to it, if the program has several threads.
    pub(crate) fn error(&self) -> Systematic {
        self.part().error()
    }

    fn part(&self) -> Part {
        let threads = self.recent.active / self.recent.passed.max(1.0);
        self.recent.own(threads, number_of_processors() as f64, self.has_quota)
    }

    /// The thread that has run most in recent time.
    pub(crate) fn busiest(&self) -> &Busiest {
        &self.busiest
    }
}

/// The processor time of the program's threads, in nanoseconds. Called by the service thread; the
/// time of this thread and of its companion is subtracted.
pub(crate) fn processor_time() -> f64 {
    processor_time::of_process() - governor::of_own_threads()
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
        let own = times.own(threads, 2.0, false);
        assert!((own.value - expected).abs() < 1e-9, "{own:?}");
    }

    /// The limits of the own part of threads that are always ready, and have this processor time in
    /// a second, on eight processors.
    fn limits(threads: f64, processor: f64, has_quota: bool) -> (f64, f64) {
        let [processor, seen] = [processor, threads].map(|seconds| seconds * 1e9);
        let times =
            Times { passed: 1e9, processor, seen, preempted: seen - processor, waits: 0.0, active: 0.0 };
        let part = times.own(threads, 8.0, has_quota);
        let Systematic { below, above } = part.error();
        (part.value * (1.0 - below), part.value * (1.0 + above))
    }

    /// When a quota is used up, no thread runs.
    #[test]
    fn a_quota_stops_all_threads_at_once() {
        for (threads, quota, own) in [(4.0, 2.0, 0.5), (4.0, 1.0, 0.25), (8.0, 2.0, 0.25)] {
            let (least, most) = limits(threads, quota, true);
            assert!(
                least <= own + 1e-9 && most > 0.999,
                "{threads} threads, quota {quota}: {least} to {most}"
            );
            let (least, _) = limits(threads, quota, false);
            assert!(least > own, "without a quota, others preempt them");
        }
        // They have used nearly all processors.
        assert!(limits(8.0, 7.9, true).0 > 0.95);
    }

    #[test]
    fn threads_on_one_of_several_processors_preempt_each_other() {
        assert!(limits(2.0, 1.0, false).1 > 0.999);
        assert!(limits(6.0, 1.0, false).1 > 0.999);
        // Others have the processor for half of the time.
        let (_, most) = limits(2.0, 0.5, false);
        assert!((0.5..0.6).contains(&most), "{most}");
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
