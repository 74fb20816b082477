//! The kernel's clocks of processor time, in nanoseconds.

use nix::time::{ClockId, clock_gettime};

/// The processor time of the process.
pub(crate) fn of_process() -> f64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// The processor time of the calling thread.
pub(crate) fn of_thread() -> f64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// The processor time of a thread of this process, by its kernel id; 0 if it has ended.
pub(crate) fn of(thread: u32) -> f64 {
    read(clock_of(thread))
}

/// The clock of such a thread.
pub(crate) fn clock_of(thread: u32) -> ClockId {
    ClockId::from_raw(fastinst::internal::clock_of(thread))
}

fn read(clock: ClockId) -> f64 {
    clock_gettime(clock).map_or(0.0, |time| time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64)
}
