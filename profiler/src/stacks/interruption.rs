//! Measures how long a stack sample interrupts the program.
//!
//! The kernel's work for a sample (an interrupt, a copy of the stack, and setting the timer again)
//! depends on the machine: in a virtual machine, setting the timer may take several times as long
//! as the rest, because the hypervisor does it. The time is charged to the interrupted thread, so
//! no clock shows it. The calling thread is therefore sampled a few times, more often than usual,
//! while it does nothing but read the time stamp counter: a sample is a gap between two readings.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wordpatch::tsc;

use super::events::Events;
use crate::observe::governor;

/// Nanoseconds between two samples.
const PERIOD: u64 = 40_000;

/// A gap of this length, in nanoseconds, is an interruption.
const MIN_GAP: f64 = 500.0;

/// The number of interruptions that are measured. Some may have another cause, such as the
/// scheduler's tick.
const INTERRUPTIONS: usize = 5;

/// Measuring ends after this time, in nanoseconds, with what is known then: in a few milliseconds,
/// a thread is interrupted whether it is sampled or not.
const LIMIT: f64 = 1e6;

/// The time that is assumed where it cannot be measured, in nanoseconds.
const ASSUMED: f64 = 10_000.0;

/// The time of an interruption by a sample, in nanoseconds. Measured by the first call, which takes
/// about a quarter of a millisecond; forked children know it.
pub(super) fn time() -> f64 {
    /// The bits of the time; 0 before it is known.
    static TIME: AtomicU64 = AtomicU64::new(0);
    match TIME.load(Relaxed) {
        0 => {
            let time = measured().unwrap_or(ASSUMED);
            TIME.store(time.to_bits(), Relaxed);
            time
        }
        known => f64::from_bits(known),
    }
}

/// The median time of interruptions of the calling thread, in nanoseconds; `None` if there were
/// few. Takes at most a millisecond, unless the thread is preempted.
fn measured() -> Option<f64> {
    let _events = Events::of_this_thread(PERIOD).ok()?;
    let [min_gap, limit] = [MIN_GAP, LIMIT].map(|time| (time * governor::ticks_per_ns()) as u64);
    let mut gaps = Vec::with_capacity(INTERRUPTIONS);
    let start = tsc::now();
    let mut last = start;
    while gaps.len() < INTERRUPTIONS && last - start < limit {
        let now = tsc::now();
        if now.saturating_sub(last) >= min_gap {
            gaps.push(now - last);
        }
        last = now.max(last);
    }
    median(gaps).map(governor::nanoseconds)
}

/// The median; `None` of fewer than three gaps, which may all have other causes.
fn median(mut gaps: Vec<u64>) -> Option<u64> {
    gaps.sort_unstable();
    (gaps.len() >= 3).then(|| gaps[gaps.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_at_least_three() {
        assert_eq!(median(vec![9, 1]), None);
        assert_eq!(median(vec![9, 1, 4]), Some(4));
        assert_eq!(median(vec![900, 3, 1, 4, 5]), Some(4));
    }

    #[test]
    fn an_interruption_takes_microseconds() {
        governor::Governor::new(None, false, 2.0);
        if Events::of_this_thread(PERIOD).is_err() {
            eprintln!("skipped: the kernel refuses perf_event_open here");
            return;
        }
        // A thread that is preempted at once has no time left for a measurement.
        let time = (0..1000).find_map(|_| measured()).expect("a thread that runs is sampled");
        assert!((MIN_GAP..1e6).contains(&time), "{time}");
    }
}
