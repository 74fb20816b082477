//! Processor times of threads and of the process.

use std::time::Duration;

/// The processor time of the calling thread.
pub(crate) fn processor_time() -> Duration {
    of_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The processor time that this clock has measured; 0 if there is no such clock.
pub(crate) fn of_clock(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the variable, if anything.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
