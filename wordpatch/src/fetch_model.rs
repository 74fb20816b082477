//! The assumptions of patches about this processor's instruction fetch.
//!
//! The paper (section 3) assumes that a store inside a cache line is atomic for instruction fetch.
//! This does not hold on every processor: AMD Zen 4 and Zen 5 were seen to tear at 32-byte
//! boundaries inside a line. Therefore the unit here is the *fetch window*.
//!
//! # Without a calibration
//! The window is an aligned quadword, and waits are `membarrier` SYNC_CORE. The basis for this:
//!
//! | | stores inside an aligned quadword | everything else |
//! | --- | --- | --- |
//! | AMD | guaranteed: one such store may modify code that other processors execute (APM volume 2, section 7.6.1) | serialization, as guaranteed |
//! | Intel | **assumed**: the manual (SDM volume 3, "Handling Self- and Cross-Modifying Code") guarantees nothing for code that is executed before the executing processor has serialized | the manual's protocol as far as it can be followed without stopping threads: see [`crate::protocol`] |
//!
//! The quadword is used on Intel too, because INT3 for every patch, as in Linux's text_poke, would
//! require a SIGTRAP handler even in programs that only toggle calls, most of which lie inside a
//! quadword. No tear inside a quadword is known on any x86-64 processor, and JIT compilers rely on
//! the same. Each run of `tmax-probe` looks for such tears, and reports a machine on which it finds
//! one as unsafe.
//!
//! # With a calibration
//! [`crate::calibration`] provides a measured window, which only a run that could have refuted it
//! may claim, and possibly a T_max.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::calibration;

/// The size of a naturally aligned block that instruction fetch reads atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FetchWindow {
    /// An aligned quadword. Architectural on AMD.
    Bytes8 = 8,
    /// An aligned 16-byte block. Measured on some processors.
    Bytes16 = 16,
    /// An aligned 32-byte block. Measured on some processors.
    Bytes32 = 32,
    /// A cache line: the paper's assumption.
    Bytes64 = 64,
}

/// The position of a patch's bytes relative to fetch windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All bytes lie in one window.
    Inside,
    /// The first `front` bytes lie in one window, the rest in the next.
    Crossing {
        /// The number of bytes before the boundary, at least 1.
        front: usize,
    },
}

impl FetchWindow {
    /// All window sizes, in ascending order.
    pub const ALL: [Self; 4] = [Self::Bytes8, Self::Bytes16, Self::Bytes32, Self::Bytes64];

    /// The size of the window in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// The window of this size in bytes, if it exists.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            8 => Some(Self::Bytes8),
            16 => Some(Self::Bytes16),
            32 => Some(Self::Bytes32),
            64 => Some(Self::Bytes64),
            _ => None,
        }
    }

    /// The position of `length` bytes (at most 8) at `address` relative to the boundaries of this
    /// window.
    #[inline]
    pub const fn split(self, address: usize, length: usize) -> Split {
        let room = self.bytes() - (address & (self.bytes() - 1));
        if length <= room { Split::Inside } else { Split::Crossing { front: room } }
    }
}

/// The maximum time, in TSC ticks, for which a processor may execute stale instruction bytes (paper
/// section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TMax(pub u32);

impl TMax {
    /// The assumed T_max where it is unknown and `membarrier` cannot be used: it does not reach a
    /// forked child, and may be refused in the middle of a change. No vendor guarantees a bound.
    /// This is more than ten times the measured values of T_max (see the README).
    pub(crate) const OF_CHILDREN: Self = Self(50_000);
}

/// How the *waits* of a protocol are made. A calibration contains the cheaper policy for its
/// machine. This does not depend on the size of a batch, since each batch pays for its waits once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum WaitPolicy {
    /// `membarrier` SYNC_CORE: the vendors' protocol. If the kernel refuses it, T_max if it is
    /// known.
    Membarrier = 1,
    /// Until T_max has passed: no system call, and no effect on other threads.
    TMax = 2,
    /// Both `membarrier` and T_max, for callers who trust neither alone. If the kernel refuses
    /// `membarrier`, patches that need a wait are refused.
    Both = 3,
}

/// The source of a fetch model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// Only the vendors' guarantees.
    VendorGuarantee = 1,
    /// Set by the caller of [`FetchModel::force`].
    Forced = 2,
    /// Measured on this machine ([`crate::calibration`]).
    Calibrated = 3,
}

/// The fetch window and T_max that patches rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchModel {
    /// The largest block inside which a store is atomic for instruction fetch.
    pub window: FetchWindow,
    /// The bound on the execution of stale bytes, if known.
    pub t_max: Option<TMax>,
    /// How waits are made. [`WaitPolicy::Membarrier`] if T_max is unknown.
    pub wait: WaitPolicy,
    /// The source of these values.
    pub source: Source,
}

/// The model in force, packed: bits 0..8 window, 8..12 source, 12..16 wait policy, bit 16 T_max
/// known, bits 32..64 T_max. 0 until it is first used or forced.
static IN_FORCE: AtomicU64 = AtomicU64::new(0);

const T_MAX_KNOWN: u64 = 1 << 16;

impl FetchModel {
    /// The vendors' guarantees: windows of eight bytes, no T_max.
    pub const VENDOR_GUARANTEE: Self = Self {
        window: FetchWindow::Bytes8,
        t_max: None,
        wait: WaitPolicy::Membarrier,
        source: Source::VendorGuarantee,
    };

    /// The model on which patches rely now. The first call of a process reads the calibration file,
    /// if there is one.
    pub fn in_force() -> Self {
        #[cfg(model)]
        if let Some(window) = wordpatch_model::environment::window() {
            let window = FetchWindow::from_bytes(window).expect("a window");
            return Self { window, t_max: Some(TMax(0)), wait: WaitPolicy::TMax, source: Source::Forced };
        }
        match IN_FORCE.load(Ordering::Acquire) {
            0 => Self::put_in_force(),
            packed => Self::unpack(packed),
        }
    }

    #[cold]
    fn put_in_force() -> Self {
        let model = calibration::status().fetch_model();
        // A model that was forced in the meantime takes precedence.
        match IN_FORCE.compare_exchange(0, model.pack(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => model,
            Err(packed) => Self::unpack(packed),
        }
    }

    /// Makes patches rely on another window, T_max and wait policy from now on; without a T_max,
    /// waits are `membarrier` calls regardless of `wait`. Sites that were decoded before keep their
    /// window.
    ///
    /// # Safety
    /// 1. On every processor this process runs on, a store inside an aligned block of `window`
    ///    bytes must be atomic for instruction fetch.
    /// 2. `t_max`, if given, must bound the time for which any of these processors executes stale
    ///    bytes.
    pub unsafe fn force(window: FetchWindow, t_max: Option<TMax>, wait: WaitPolicy) {
        let wait = if t_max.is_some() { wait } else { WaitPolicy::Membarrier };
        IN_FORCE.store(Self { window, t_max, wait, source: Source::Forced }.pack(), Ordering::Release);
    }

    const fn pack(self) -> u64 {
        let t_max = match self.t_max {
            Some(TMax(ticks)) => T_MAX_KNOWN | (ticks as u64) << 32,
            None => 0,
        };
        self.window as u64 | (self.source as u64) << 8 | (self.wait as u64) << 12 | t_max
    }

    const fn unpack(packed: u64) -> Self {
        Self {
            window: match FetchWindow::from_bytes((packed & 0xff) as usize) {
                Some(window) => window,
                None => FetchWindow::Bytes8,
            },
            t_max: if packed & T_MAX_KNOWN != 0 { Some(TMax((packed >> 32) as u32)) } else { None },
            wait: match packed >> 12 & 0xf {
                2 => WaitPolicy::TMax,
                3 => WaitPolicy::Both,
                _ => WaitPolicy::Membarrier,
            },
            source: match packed >> 8 & 0xf {
                2 => Source::Forced,
                3 => Source::Calibrated,
                _ => Source::VendorGuarantee,
            },
        }
    }
}

/// The model is global, so unit tests that force one are serialized.
#[cfg(all(test, not(loom)))]
pub(crate) mod in_tests {
    use std::sync::{Mutex, MutexGuard};

    use super::{FetchModel, FetchWindow, TMax, WaitPolicy};

    pub(crate) fn forced(
        window: FetchWindow,
        t_max: Option<TMax>,
        wait: WaitPolicy,
    ) -> MutexGuard<'static, ()> {
        static MODEL: Mutex<()> = Mutex::new(());
        let guard = MODEL.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: unit tests execute no text that they patch.
        unsafe { FetchModel::force(window, t_max, wait) };
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first call of [`FetchModel::in_force`], when another thread forces a model while the
    /// file is read.
    #[cfg(not(loom))]
    #[test]
    fn a_model_that_was_forced_while_the_file_was_read_stays() {
        let _model = in_tests::forced(FetchWindow::Bytes16, Some(TMax(7)), WaitPolicy::Both);
        let forced = FetchModel {
            window: FetchWindow::Bytes16,
            t_max: Some(TMax(7)),
            wait: WaitPolicy::Both,
            source: Source::Forced,
        };
        assert_eq!(FetchModel::put_in_force(), forced);
        assert_eq!(FetchModel::in_force(), forced);
    }

    #[test]
    fn the_vendors_guarantee_eight_bytes_and_no_t_max() {
        let FetchModel { window, t_max, wait, source } = FetchModel::VENDOR_GUARANTEE;
        assert_eq!((window.bytes(), t_max, wait), (8, None, WaitPolicy::Membarrier));
        assert_eq!(source, Source::VendorGuarantee);
    }

    #[test]
    fn sizes_are_those_of_all_windows_and_no_others() {
        for bytes in 0..=128 {
            let expected = FetchWindow::ALL.into_iter().find(|window| window.bytes() == bytes);
            assert_eq!(FetchWindow::from_bytes(bytes), expected);
        }
        assert_eq!(FetchWindow::ALL.map(FetchWindow::bytes), [8, 16, 32, 64]);
    }

    #[test]
    fn a_model_is_what_was_packed() {
        for window in FetchWindow::ALL {
            for t_max in [None, Some(TMax(0)), Some(TMax(u32::MAX))] {
                for wait in [WaitPolicy::Membarrier, WaitPolicy::TMax, WaitPolicy::Both] {
                    for source in [Source::VendorGuarantee, Source::Forced, Source::Calibrated] {
                        let model = FetchModel { window, t_max, wait, source };
                        assert_eq!(FetchModel::unpack(model.pack()), model);
                    }
                }
            }
        }
    }

    #[test]
    fn splits_are_where_the_window_ends() {
        let check = |window: FetchWindow, address, length, expected| {
            assert_eq!(window.split(address, length), expected, "{window:?} {address:#x} {length}");
        };
        check(FetchWindow::Bytes8, 0x1000, 8, Split::Inside);
        check(FetchWindow::Bytes8, 0x1003, 5, Split::Inside);
        check(FetchWindow::Bytes8, 0x1004, 5, Split::Crossing { front: 4 });
        check(FetchWindow::Bytes8, 0x1007, 5, Split::Crossing { front: 1 });
        check(FetchWindow::Bytes16, 0x1007, 5, Split::Inside);
        check(FetchWindow::Bytes32, 0x101e, 5, Split::Crossing { front: 2 });
        check(FetchWindow::Bytes64, 0x101e, 5, Split::Inside);
        check(FetchWindow::Bytes64, 0x103f, 2, Split::Crossing { front: 1 });
    }
}
