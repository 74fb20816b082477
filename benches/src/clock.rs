//! Reading the time-stamp counter around a piece of work.
//!
//! On some processors the counter advances in steps of tens of ticks, so a single short piece of
//! work is not resolved: time many of them between two readings, or take the mean of many readings.

use std::arch::x86_64::_mm_lfence;

use wordpatch::tsc;

/// The time-stamp counter, after everything in front of it and before everything behind it has been
/// executed.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: LFENCE is part of x86-64 and touches no memory.
    unsafe { _mm_lfence() };
    let ticks = tsc::now();
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// How many ticks `act` takes, the two readings included ([`own_cost`] tells what they take), and
/// what it returns.
#[inline(always)]
pub fn ticks<R>(act: impl FnOnce() -> R) -> (f64, R) {
    let begin = now();
    let result = act();
    (now().wrapping_sub(begin) as f64, result)
}

/// Processor time that this thread has taken, in nanoseconds: for work so long that the thread is
/// interrupted in it.
pub fn thread_time_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the memory is of the right type.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "Linux has this clock");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// What [`ticks`] says of nothing, several times.
pub fn own_cost(count: usize) -> Vec<f64> {
    (0..count).map(|_| ticks(|| ()).0).collect()
}
