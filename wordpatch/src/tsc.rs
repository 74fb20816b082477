//! The time-stamp counter, the unit of every cost and of T_max.

use std::arch::x86_64::_rdtsc;

/// The time-stamp counter now, in ticks. Not serializing: neighbouring instructions may be executed before or after.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC has no memory effects; Linux leaves it enabled for user mode (a process that turned it off by
    // PR_SET_TSC gets SIGSEGV, not undefined behaviour).
    unsafe { _rdtsc() }
}
