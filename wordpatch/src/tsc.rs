//! The time-stamp counter, the unit of every cost and of T_max.

#[cfg(not(loom))]
use std::arch::x86_64::{_mm_lfence, _rdtsc};

#[cfg(loom)]
pub use self::in_loom::{now, now_after_all};

/// The time-stamp counter now, in ticks. Not serializing: neighbouring instructions may be executed before or after.
#[cfg(not(loom))]
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC has no memory effects; Linux leaves it enabled for user mode (a process that turned it off by
    // PR_SET_TSC gets SIGSEGV, not undefined behaviour).
    unsafe { _rdtsc() }
}

/// The time-stamp counter once every earlier instruction is done: behind a locked store, once all cores can see the store.
#[cfg(not(loom))]
#[inline(always)]
pub fn now_after_all() -> u64 {
    // SAFETY: LFENCE has no effect but the order; it is part of SSE2, which every x86-64 processor has.
    unsafe { _mm_lfence() };
    now()
}

/// Time that passes by being looked at, the same in every run.
#[cfg(loom)]
mod in_loom {
    use crate::primitive::{AtomicU64, Ordering, global};

    global! {
        static TICKS: AtomicU64 = AtomicU64::new(0);
    }

    /// The ticks until now.
    pub fn now() -> u64 {
        TICKS.fetch_add(1, Ordering::Relaxed)
    }

    /// The same: loom makes one step at a time.
    pub fn now_after_all() -> u64 {
        now()
    }
}
