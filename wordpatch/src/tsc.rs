//! The time-stamp counter, whose tick is the unit of costs and of T_max.

#[cfg(not(loom))]
use std::arch::x86_64::{__rdtscp, _mm_lfence, _rdtsc};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(loom)]
pub use self::in_loom::{now, now_after_all};

/// The current value of the time-stamp counter, in ticks. Not serializing: neighbouring
/// instructions may be executed before or after it.
#[cfg(not(loom))]
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: RDTSC has no memory effects; Linux leaves it enabled for user mode (a process that
    // turned it off by PR_SET_TSC gets SIGSEGV, not undefined behaviour).
    unsafe { _rdtsc() }
}

/// The time-stamp counter, in ticks, after all earlier instructions are complete. After a locked
/// store, this is after all cores can see the store.
#[cfg(not(loom))]
#[inline(always)]
pub fn now_after_all() -> u64 {
    #[cfg(model)]
    if let Some(now) = wordpatch_model::environment::clock() {
        return now;
    }
    // SAFETY: LFENCE only affects the order of execution; it is part of SSE2, which every x86-64
    // processor has.
    unsafe { _mm_lfence() };
    now()
}

/// A time by the counter of one processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) ticks: u64,
    /// The processor's number; 0 if processors cannot be distinguished.
    pub(crate) processor: u32,
}

impl Moment {
    /// The current time, after all earlier instructions are complete, as [`now_after_all`].
    pub(crate) fn now_after_all() -> Self {
        #[cfg(model)]
        if let Some(ticks) = wordpatch_model::environment::clock() {
            return Self { ticks, processor: 0 };
        }
        #[cfg(not(loom))]
        // SAFETY: as in `now_after_all`.
        unsafe {
            _mm_lfence();
        }
        Self::now()
    }

    /// The current time.
    pub(crate) fn now() -> Self {
        #[cfg(not(loom))]
        if has_processor_numbers() {
            let mut processor = 0;
            // SAFETY: as for RDTSC; writes the number, which Linux has given the processor.
            let ticks = unsafe { __rdtscp(&mut processor) };
            return Self { ticks, processor };
        }
        Self { ticks: now(), processor: 0 }
    }
}

/// Whether the processor tells its number together with its counter (RDTSCP).
#[cfg(not(loom))]
pub(crate) fn has_processor_numbers() -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HAS: AtomicU8 = AtomicU8::new(0);
    match HAS.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        _ => {
            let features = raw_cpuid::CpuId::new().get_extended_processor_and_feature_identifiers();
            let has = features.is_some_and(|features| features.has_rdtscp());
            HAS.store(if has { YES } else { NO }, Ordering::Relaxed);
            has
        }
    }
}

/// Whether the counter measures time: it runs at a constant rate in all states of the processor
/// (AMD APM volume 3, CPUID 8000_0007 EDX bit 8; Intel SDM volume 3, "invariant TSC"), and the
/// kernel, which keeps comparing the counters of all processors, uses it as its clock. Reads a file
/// of `/sys`.
pub(crate) fn is_reliable() -> bool {
    const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_invariant =
        raw_cpuid::CpuId::new().get_advanced_power_mgmt_info().is_some_and(|power| power.has_invariant_tsc());
    is_invariant && std::fs::read_to_string(CLOCK).is_ok_and(|clock| clock.trim() == "tsc")
}

/// A deterministic clock, which advances with each read.
#[cfg(loom)]
mod in_loom {
    use crate::primitive::{AtomicU64, Ordering, global};

    global! {
        static TICKS: AtomicU64 = AtomicU64::new(0);
    }

    /// The current time, in ticks.
    pub fn now() -> u64 {
        TICKS.fetch_add(1, Ordering::Relaxed)
    }

    /// As [`now`]: loom makes one step at a time.
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

    /// Without the fence, the counter may be read before an earlier store is visible. No test can
    /// measure this on all processors, so the code is checked.
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
