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
            let (ticks, started) = both_clocks();
            Self { started, ticks, has_counter: has_constant_rate() }
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
        let (ticks, now) = both_clocks();
        (now - self.started).as_nanos() as f64 / ticks.wrapping_sub(self.ticks) as f64
    }
}

/// The processor's counter and the system's clock at the same time: the counter is that in the
/// middle of two readings, from the least disturbed of several attempts.
fn both_clocks() -> (u64, Instant) {
    let read = || {
        let before = tsc::now();
        let instant = Instant::now();
        (tsc::now().wrapping_sub(before), before, instant)
    };
    let (width, ticks, instant) = (0..8).map(|_| read()).min_by_key(|read| read.0).expect("eight");
    (ticks + width / 2, instant)
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
        let rate = clock.nanoseconds_per_tick();
        // Preemption between the readings makes the second one of each pair later.
        let (outer, outer_ticks) = (Instant::now(), clock.now());
        let (inner_ticks, inner) = (clock.now(), Instant::now());
        while inner.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let within = inner.elapsed().as_nanos() as f64;
        let now = clock.now();
        let outside = outer.elapsed().as_nanos() as f64;
        let longer = (now - inner_ticks) as f64 * rate;
        let shorter = (now - outer_ticks) as f64 * rate;
        assert!(longer > 0.99 * within && shorter < 1.01 * outside, "{shorter} {longer} {within} {outside}");
    }
}
