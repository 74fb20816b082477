//! Estimates how long the program's threads have waited: the time in which they neither ran nor
//! were ready to run.
//!
//! The kernel knows how long a thread was ready without a processor, as long as the thread exists
//! (Documentation/scheduler/sched-stats.rst, `schedstat` of /proc). For threads that have ended,
//! and without /proc, only the preemption that probes have seen is known ([`crate::preemption`]);
//! the rest counts as waiting.

use std::fs;

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
    let statistics = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let (_, queued) = ran_and_queued(&statistics)?;
    Some(queued)
}

/// How long a thread has run, and how long it was ready without a processor, in nanoseconds, from
/// its `schedstat`.
pub(super) fn ran_and_queued(statistics: &str) -> Option<(f64, f64)> {
    let mut figures = statistics.split_ascii_whitespace().map(|figure| figure.parse().ok());
    Some((figures.next()??, figures.next()??))
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
}
