//! Conversion of TSC ticks to nanoseconds.
//!
//! The rate is measured over the entire run, against CLOCK_MONOTONIC, when it is needed: the longer
//! the run, the more accurate. A run shorter than 2 ms is extended to 2 ms, for an accuracy of 1 in
//! 10,000.
//!
//! CLOCK_MONOTONIC excludes the time for which the machine is suspended, and the TSC either
//! includes it or begins again: then the rate that was measured at the start is used instead.

use std::time::{Duration, Instant, SystemTime};

use wordpatch::tsc;

/// The difference between the rate at the start and that of the run, relative to it, from which on
/// one of the clocks cannot have run all the time.
const TOLERANCE: f64 = 0.01;

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

    /// The time of day at the start, in microseconds since 1970.
    pub(crate) fn started_us(&self) -> u64 {
        let since = (SystemTime::now() - self.elapsed()).duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_micros() as u64
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

    /// TSC ticks per nanosecond, measured since the start if that agrees with an estimate that was
    /// made at the start.
    pub(crate) fn ticks_per_ns(&self, estimate: f64) -> f64 {
        self.measured(estimate).unwrap_or(estimate)
    }

    /// The reason why the estimate is used, for the report, if it is.
    pub(crate) fn note(&self, estimate: f64) -> Option<String> {
        let is_steady = self.measured(estimate).is_some();
        let note = "the TSC and the system's clock have diverged, as they do while a machine is suspended: \
                    calls and waits at that time have wrong latencies";
        (!is_steady).then(|| note.to_owned())
    }

    fn measured(&self, estimate: f64) -> Option<f64> {
        while self.elapsed() < MIN_DURATION {
            std::hint::spin_loop();
        }
        let rate = self.rate_since_start();
        ((rate / estimate - 1.0).abs() <= TOLERANCE).then_some(rate)
    }

    fn rate_since_start(&self) -> f64 {
        let now = Self::start();
        let nanoseconds = now.instant.duration_since(self.instant).as_nanos() as f64;
        now.ticks.wrapping_sub(self.ticks) as f64 / nanoseconds
    }
}

/// The reason why the TSC may not measure time, for the report, if there is one.
pub(crate) fn note_of_tsc() -> Option<&'static str> {
    /// The kernel compares its clocks, and no longer lists one that was wrong. In a virtual machine
    /// it may use another one although the TSC is right.
    const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    if !tsc_is_invariant() {
        return Some(
            "the TSC of this machine is not invariant: latencies may be off while its frequency changes",
        );
    }
    let clocks = std::fs::read_to_string(CLOCKS).ok()?;
    is_rejected(&clocks).then_some("the kernel has found the TSC of this machine wrong: latencies may be off")
}

/// Whether the TSC is missing among the kernel's clocks.
fn is_rejected(clocks: &str) -> bool {
    clocks.split_whitespace().all(|clock| clock != "tsc")
}

/// Whether the processor reports that its TSC runs at a constant rate in all states (AMD APM volume
/// 3, CPUID 8000_0007 EDX bit 8; Intel SDM volume 3, "invariant TSC").
fn tsc_is_invariant() -> bool {
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
        let estimate = clock.estimate_ticks_per_ns();
        let first = clock.ticks_per_ns(estimate);
        while clock.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let second = clock.ticks_per_ns(estimate);
        assert!((first / second - 1.0).abs() < 0.01, "{first} {second}");
        assert_eq!(clock.note(estimate), None);
    }

    #[test]
    fn a_suspended_machine_does_not_change_the_rate() {
        let clock = Clock::start();
        let estimate = clock.estimate_ticks_per_ns();
        // CLOCK_MONOTONIC stands still while the machine is suspended; the TSC does not, or begins
        // again at 0.
        let second = (1e9 * estimate) as u64;
        for ticks in [clock.ticks.wrapping_sub(second), clock.ticks.wrapping_add(second)] {
            let suspended = Clock { ticks, ..clock };
            assert_eq!(suspended.ticks_per_ns(estimate), estimate);
            assert!(suspended.note(estimate).is_some_and(|note| note.contains("suspended")));
        }
    }

    #[test]
    fn the_kernel_lists_the_clocks_that_it_trusts() {
        let lists =
            [("tsc kvm-clock \n", false), ("kvm-clock tsc acpi_pm\n", false), ("hpet acpi_pm\n", true)];
        for (clocks, is_wrong) in lists {
            assert_eq!(is_rejected(clocks), is_wrong, "{clocks}");
        }
        assert_eq!(note_of_tsc().is_some_and(|note| note.contains("not invariant")), !tsc_is_invariant());
    }

    #[test]
    fn the_start_is_a_time_of_day() {
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64;
        let before = now();
        let clock = Clock::start();
        let started = clock.started_us();
        assert!((before - 1000..=now() + 1000).contains(&started), "{before} {started}");
    }
}
