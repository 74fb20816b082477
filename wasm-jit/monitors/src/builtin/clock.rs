//! The clock of monitors that measure times.
//!
//! Probes read the processor's time-stamp counter, which takes a few nanoseconds; reports convert
//! ticks to nanoseconds with a rate that is measured against the system's clock over the complete
//! run. On processors whose counter does not run at a constant rate, the system's clock is read
//! instead.

use std::arch::x86_64::__cpuid;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use wordpatch::tsc;

/// Minimum time over which the rate is measured, for an accuracy of 1 in 10,000.
const MIN_DURATION: Duration = Duration::from_millis(2);

/// A source of times in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    started: Instant,
    ticks: u64,
    has_counter: bool,
}

impl Clock {
    /// The clock of the process.
    pub(super) fn get() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let has_counter = has_constant_rate();
            // The middle of two readings, from the least disturbed attempt.
            let read = || {
                let before = tsc::now();
                let instant = Instant::now();
                (tsc::now().wrapping_sub(before), before, instant)
            };
            let (width, ticks, started) = (0..8).map(|_| read()).min_by_key(|read| read.0).expect("eight");
            Self { started, ticks: ticks + width / 2, has_counter }
        })
    }

    /// The current time, in ticks.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        if self.has_counter { tsc::now() } else { self.started.elapsed().as_nanos() as u64 }
    }

    /// Whether the clock is the processor's counter.
    pub(super) fn is_counter(&self) -> bool {
        self.has_counter
    }

    /// The time since the first use of the clock. Never decreases.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Nanoseconds per tick. The measurement becomes more accurate with the time since the first
    /// use of the clock, so two calls return slightly different rates.
    pub(super) fn nanoseconds_per_tick(&self) -> f64 {
        if !self.has_counter {
            return 1.0;
        }
        while self.started.elapsed() < MIN_DURATION {
            std::hint::spin_loop();
        }
        let ticks = tsc::now().wrapping_sub(self.ticks);
        self.started.elapsed().as_nanos() as f64 / ticks as f64
    }
}

/// Whether the processor says that its counter has the same rate in all states (AMD APM volume 3,
/// CPUID 8000_0007 EDX bit 8; Intel SDM volume 3, "invariant TSC").
fn has_constant_rate() -> bool {
    const LEAF: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= LEAF && __cpuid(LEAF).edx & (1 << 8) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_converted_to_the_time_of_the_system() {
        let clock = Clock::get();
        let (started, ticks) = (Instant::now(), clock.now());
        while started.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let elapsed = (clock.now() - ticks) as f64 * clock.nanoseconds_per_tick();
        // Preemption between the readings makes the second one later.
        let outside = started.elapsed().as_nanos() as f64;
        assert!(elapsed > 0.99 * 20e6 && elapsed < 1.01 * outside, "{elapsed} {outside}");
    }
}
