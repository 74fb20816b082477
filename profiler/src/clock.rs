//! Conversion of TSC ticks to nanoseconds.
//!
//! The rate is measured over the entire run, against CLOCK_MONOTONIC, when it is needed: the longer
//! the run, the more accurate. A run shorter than 2 ms is extended to 2 ms, for an accuracy of 1 in
//! 10,000.

use std::time::{Duration, Instant};

use wordpatch::tsc;

/// Minimum interval over which the rate is measured.
const MIN_DURATION: Duration = Duration::from_millis(2);

/// An instant in both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    ticks: u64,
    instant: Instant,
}

impl Clock {
    /// The current instant.
    pub(crate) fn start() -> Self {
        // The middle of two readings, from the least disturbed attempt.
        let read = || {
            let before = tsc::now();
            let instant = Instant::now();
            let after = tsc::now();
            (after.wrapping_sub(before), before, instant)
        };
        let (width, ticks, instant) = (0..8).map(|_| read()).min_by_key(|read| read.0).expect("eight tries");
        Self { ticks: ticks + width / 2, instant }
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.instant.elapsed()
    }

    /// TSC ticks per nanosecond, to within a thousandth. Takes a tenth of a millisecond.
    pub(crate) fn estimate_ticks_per_ns(&self) -> f64 {
        while self.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        self.rate_since_start()
    }

    /// TSC ticks per nanosecond, measured since the start.
    pub(crate) fn ticks_per_ns(&self) -> f64 {
        while self.elapsed() < MIN_DURATION {
            std::hint::spin_loop();
        }
        self.rate_since_start()
    }

    fn rate_since_start(&self) -> f64 {
        let now = Self::start();
        let nanoseconds = now.instant.duration_since(self.instant).as_nanos() as f64;
        now.ticks.wrapping_sub(self.ticks) as f64 / nanoseconds
    }
}

/// Whether the processor reports that its TSC runs at a constant rate in all states (AMD APM volume
/// 3, CPUID 8000_0007 EDX bit 8; Intel SDM volume 3, "invariant TSC").
pub(crate) fn tsc_is_invariant() -> bool {
    const LEAF: u32 = 0x8000_0007;
    std::arch::x86_64::__cpuid(0x8000_0000).eax >= LEAF
        && std::arch::x86_64::__cpuid(LEAF).edx & (1 << 8) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_same_measured_twice() {
        let clock = Clock::start();
        let first = clock.ticks_per_ns();
        while clock.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let second = clock.ticks_per_ns();
        assert!((first / second - 1.0).abs() < 0.01, "{first} {second}");
    }
}
