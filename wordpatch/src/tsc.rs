//! The time-stamp counter, the unit of every cost and of T_max.

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// The time-stamp counter now, in ticks. Not serializing: neighbouring instructions may be executed before or after.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC has no memory effects; Linux leaves it enabled for user mode (a process that turned it off by
    // PR_SET_TSC gets SIGSEGV, not undefined behaviour).
    unsafe { _rdtsc() }
}

/// The time-stamp counter once every earlier instruction is done: behind a locked store, once all cores can see the store.
#[inline(always)]
pub fn now_after_all() -> u64 {
    // SAFETY: LFENCE has no effect but the order; it is part of SSE2, which every x86-64 processor has.
    unsafe { _mm_lfence() };
    now()
}
