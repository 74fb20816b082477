//! Reading the time-stamp counter around a piece of work.
//!
//! On some processors the counter advances in steps of tens of ticks, so a single short piece of
//! work cannot be resolved: time many of them between two readings, or take the mean of many
//! readings.

use std::arch::x86_64::_mm_lfence;

use wordpatch::tsc;

/// The time-stamp counter, read after all preceding instructions and before all following ones.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: LFENCE is part of x86-64 and touches no memory.
    unsafe { _mm_lfence() };
    let ticks = tsc::now();
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// The ticks that `act` takes, including the two readings ([`own_cost`] measures them), and its
/// result.
#[inline(always)]
pub fn ticks<R>(act: impl FnOnce() -> R) -> (f64, R) {
    let begin = now();
    let result = act();
    (now().wrapping_sub(begin) as f64, result)
}

/// Processor time of this thread, in nanoseconds: for work that is long enough for the thread to be
/// preempted.
pub fn thread_time_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the memory is of the right type.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "Linux has this clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The result of [`ticks`] for an empty closure, several times.
pub fn own_cost(count: usize) -> Vec<f64> {
    (0..count).map(|_| ticks(|| ()).0).collect()
}
