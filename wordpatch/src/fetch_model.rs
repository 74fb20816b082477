//! What is assumed of this processor's instruction fetch.
//!
//! The paper (section 3) assumes that a store inside a cache line is atomic for instruction fetch. That is not so on
//! every processor: fetch has been seen to tear at 32-byte boundaries inside a line. So the unit here is the *fetch
//! window*, and uncalibrated it is what the vendors promise: a single store inside a naturally aligned quadword (AMD
//! APM volume 2, section 7.6.1), with core serialization for everything else.

use std::sync::atomic::{AtomicU64, Ordering};

/// A naturally aligned block that instruction fetch reads at once. The only place where these sizes are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FetchWindow {
    /// An aligned quadword. Architectural on AMD.
    Bytes8 = 8,
    /// Measured on some processors.
    Bytes16 = 16,
    /// Measured on some processors.
    Bytes32 = 32,
    /// A cache line: the paper's assumption.
    Bytes64 = 64,
}

/// How the bytes of a patch lie in fetch windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// All in one window.
    Inside,
    /// The first `front` bytes lie in one window, the rest in the next.
    Crossing {
        /// Bytes before the boundary, at least 1.
        front: usize,
    },
}

impl FetchWindow {
    /// Every size, the smallest first.
    pub const ALL: [Self; 4] = [Self::Bytes8, Self::Bytes16, Self::Bytes32, Self::Bytes64];

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// The window with this size in bytes, if there is one.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            8 => Some(Self::Bytes8),
            16 => Some(Self::Bytes16),
            32 => Some(Self::Bytes32),
            64 => Some(Self::Bytes64),
            _ => None,
        }
    }

    /// Where a boundary of this window cuts `length` bytes (at most 8) at `address`.
    pub const fn split(self, address: usize, length: usize) -> Split {
        let room = self.bytes() - (address & (self.bytes() - 1));
        if length <= room { Split::Inside } else { Split::Crossing { front: room } }
    }
}

/// The longest time, in TSC ticks, for which a processor may execute stale instruction bytes (paper section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TMax(pub u32);

/// Where a fetch model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Only what the vendors promise.
    VendorGuarantee,
    /// Set by the caller of [`FetchModel::force`].
    Forced,
}

/// The fetch window and T_max that patches rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchModel {
    /// The largest block inside which a store is atomic for instruction fetch.
    pub window: FetchWindow,
    /// The bound on staleness, if known. Without one, waits are `membarrier` calls.
    pub t_max: Option<TMax>,
    /// Where the two come from.
    pub source: Source,
}

/// The model in force, packed: bits 0..8 window, bit 8 forced, bit 9 T_max known, bits 32..64 T_max.
static IN_FORCE: AtomicU64 = AtomicU64::new(FetchWindow::Bytes8 as u64);

const FORCED: u64 = 1 << 8;
const T_MAX_KNOWN: u64 = 1 << 9;

impl FetchModel {
    /// What the vendors promise: windows of eight bytes, no T_max.
    pub const VENDOR_GUARANTEE: Self =
        Self { window: FetchWindow::Bytes8, t_max: None, source: Source::VendorGuarantee };

    /// The model that patches rely on now.
    pub fn in_force() -> Self {
        let packed = IN_FORCE.load(Ordering::Acquire);
        Self {
            window: FetchWindow::from_bytes((packed & 0xff) as usize).unwrap_or(FetchWindow::Bytes8),
            t_max: (packed & T_MAX_KNOWN != 0).then_some(TMax((packed >> 32) as u32)),
            source: if packed & FORCED != 0 { Source::Forced } else { Source::VendorGuarantee },
        }
    }

    /// Makes patches rely on another window and T_max from now on. Sites that were decoded before keep the
    /// window they were decoded with.
    ///
    /// # Safety
    /// 1. On every processor this process runs on, a store inside an aligned block of `window` bytes must be atomic
    ///    for instruction fetch.
    /// 2. `t_max`, if given, must bound the time for which any of these processors executes stale bytes.
    pub unsafe fn force(window: FetchWindow, t_max: Option<TMax>) {
        let t_max = t_max.map_or(0, |t| T_MAX_KNOWN | u64::from(t.0) << 32);
        IN_FORCE.store(window as u64 | FORCED | t_max, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
