//! The time-stamp counter, the unit of every cost and of T_max.

#[cfg(not(loom))]
use std::arch::x86_64::{_mm_lfence, _rdtsc};

#[cfg(loom)]
pub use self::in_loom::{now, now_after_all};

/// The time-stamp counter now, in ticks. Not serializing: neighbouring instructions may be executed
/// before or after.
#[cfg(not(loom))]
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC has no memory effects; Linux leaves it enabled for user mode (a process that
    // turned it off by PR_SET_TSC gets SIGSEGV, not undefined behaviour).
    unsafe { _rdtsc() }
}

/// The time-stamp counter once every earlier instruction is done: behind a locked store, once all
/// cores can see the store.
#[cfg(not(loom))]
#[inline(always)]
pub fn now_after_all() -> u64 {
    #[cfg(model)]
    if let Some(now) = wordpatch_model::environment::clock() {
        return now;
    }
    // SAFETY: LFENCE has no effect but the order; it is part of SSE2, which every x86-64 processor
    // has.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[inline(never)]
    fn now_for_disassembly() -> u64 {
        super::now_after_all()
    }

    /// Without the fence, the time of a store may be read before the store is visible: by how much,
    /// no test can tell on all processors.
    #[test]
    fn the_counter_is_read_after_a_fence() {
        let start = now_for_disassembly as *const () as usize;
        // SAFETY: the function and what the linker puts after it are mapped text.
        let code = unsafe { std::slice::from_raw_parts(start as *const u8, 128) };
        let first = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE)
            .into_iter()
            .find(|instruction| matches!(instruction.mnemonic(), Mnemonic::Lfence | Mnemonic::Rdtsc));
        assert_eq!(first.map(|instruction| instruction.mnemonic()), Some(Mnemonic::Lfence));
    }
}
