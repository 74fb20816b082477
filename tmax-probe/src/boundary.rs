//! Boundaries at which a site is split, and their classes.

/// Length of a cache line in bytes, on every x86-64 processor so far.
pub(crate) const CACHE_LINE: u32 = 64;

/// Size of a page in bytes. A page boundary is a boundary too: the addresses of its two sides are
/// translated separately.
pub(crate) const PAGE: u32 = 4096;

/// All boundaries in a cache line, as byte offsets. A boundary at an odd multiple of 4 is inside an
/// aligned quadword.
pub(crate) fn boundaries() -> impl Iterator<Item = u32> + Clone {
    (4..=CACHE_LINE).step_by(4)
}

/// The class of a boundary: the largest power of two, up to the cache line, that divides it, which
/// is the alignment that a site with this split crosses.
pub(crate) fn class(boundary: u32) -> u32 {
    1 << boundary.trailing_zeros().min(CACHE_LINE.trailing_zeros())
}

/// The boundaries that a site can cross, by [`class`], in bytes: the candidates for the window, and
/// 4 as the control inside a quadword.
pub(crate) const CLASSES: [u32; 5] = [4, 8, 16, 32, 64];

/// The classes inside a cache line, whose tears determine the window.
pub(crate) const INSIDE_LINE: [u32; 3] = [8, 16, 32];
