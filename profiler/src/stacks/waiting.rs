//! Estimates how long the program's threads have waited: the time in which they neither ran nor
//! were ready to run.
//!
//! The kernel knows how long a thread was ready without a processor, as long as the thread exists
//! (Documentation/scheduler/sched-stats.rst, `schedstat` of /proc). For threads that have ended,
//! and without /proc, only the preemption that probes have seen is known
//! ([`crate::observe::preemption`]); the rest counts as waiting.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum number of threads whose statistics are read; each takes a few microseconds.
const MAX_THREADS: usize = 1000;

/// The preemption that probes have seen, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preempted {
    /// The preemption of threads that have ended.
    pub(crate) ended: f64,
    /// The preemption of the other threads.
    pub(crate) live: f64,
}

/// The waiting time of threads that existed for `lived` nanoseconds in total and ran for `running`.
/// `live` has the kernel ids of those that still exist.
pub(crate) fn time(lived: f64, running: f64, preempted: Preempted, live: impl Iterator<Item = u32>) -> f64 {
    let queued: f64 = live.take(MAX_THREADS).filter_map(queued).sum();
    (lived - running - preempted.ended - preempted.live.max(queued)).max(0.0)
}

/// The time for which a thread was ready and had no processor, in nanoseconds.
pub(crate) fn queued(thread: u32) -> Option<f64> {
    let statistics = File::open(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    Some(Scheduled::of(&statistics)?.queued)
}

/// A thread's `schedstat`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scheduled {
    /// How long the thread has run, and how long it was ready without a processor, in nanoseconds.
    ran: f64,
    queued: f64,
    /// How often it was given a processor.
    pub(super) turns: u64,
}

impl Scheduled {
    pub(super) fn of(statistics: &File) -> Option<Self> {
        let mut line = [0; 128];
        let length = statistics.read_at(&mut line, 0).ok()?;
        Self::parse(std::str::from_utf8(&line[..length]).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut figures = line.split_ascii_whitespace();
        let mut time = || figures.next()?.parse().ok();
        Some(Self { ran: time()?, queued: time()?, turns: figures.next()?.parse().ok()? })
    }

    /// How long the thread was awake: it ran, or was ready to run.
    pub(super) fn awake(self) -> f64 {
        self.ran + self.queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_is_not_waiting() {
        let nobody = std::iter::empty;
        let preempted = Preempted { ended: 20.0, live: 10.0 };
        assert_eq!(time(100.0, 60.0, preempted, nobody()), 10.0);
        assert_eq!(time(100.0, 90.0, preempted, nobody()), 0.0);
        let own = nix::unistd::gettid().as_raw() as u32;
        let known = queued(own).expect("the kernel counts it");
        let waited = time(known + 1e9, 0.0, Preempted::default(), [own].into_iter());
        assert!((0.0..=1e9).contains(&waited), "{waited}: it may have waited for a processor meanwhile");
        assert_eq!(queued(0), None, "there is no such thread");
    }

    #[test]
    fn figures_are_those_of_the_manual() {
        let figures = Scheduled::parse("1200 34 5\n").expect("three figures");
        assert_eq!((figures.awake(), figures.queued, figures.turns), (1234.0, 34.0, 5));
        assert_eq!(Scheduled::parse("1200 34"), None);
    }
}
