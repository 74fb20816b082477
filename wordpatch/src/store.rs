//! The one store that changes live text: up to eight bytes inside one fetch window, neighbours untouched.
//!
//! Call sites five bytes apart share a quadword. Two threads that each load it, modify their bytes and store it back
//! lose one of the two updates. So the store is a locked compare-exchange of the eight bytes around the patch; it
//! fails when a neighbour changed meanwhile and is tried again, and it checks the expected old bytes in the same
//! moment. The eight bytes never leave the fetch window of the patch, hence neither its cache line.

use std::arch::asm;

use crate::{Bytes, FetchWindow, MAX_PATCH, Split};

/// Where the eight bytes of the store begin: the aligned quadword if it holds the patch, else the last
/// place in the window that does.
fn base_of(window: FetchWindow, address: usize, length: usize) -> usize {
    if FetchWindow::Bytes8.split(address, length) == Split::Inside {
        address & !(MAX_PATCH - 1)
    } else {
        let end = (address & !(window.bytes() - 1)) + window.bytes();
        address.min(end - MAX_PATCH)
    }
}

/// Where the eight bytes of a store lie, and which of them are the patch's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quadword {
    /// Distance from the patch back to the eight bytes' start.
    pub(crate) back: usize,
    mask: u64,
    shift: u32,
}

impl Quadword {
    /// For `length` bytes at `address`.
    ///
    /// # Panics
    /// When they cross a boundary of `window`.
    pub(crate) fn of(window: FetchWindow, address: usize, length: usize) -> Self {
        assert_eq!(window.split(address, length), Split::Inside, "a store must not cross a fetch window");
        let back = address - base_of(window, address, length);
        let shift = back as u32 * 8;
        Self { back, mask: (u64::MAX >> (64 - length * 8)) << shift, shift }
    }

    /// `bytes` in their place, the rest zero.
    pub(crate) fn word(&self, bytes: &Bytes) -> u64 {
        let mut quad = [0; MAX_PATCH];
        quad[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(quad) << self.shift
    }

    /// The patch's bytes of such a word.
    pub(crate) fn bytes(&self, word: u64) -> Bytes {
        let length = 8 - (self.mask >> self.shift).leading_zeros() as usize / 8;
        Bytes::new(&(word >> self.shift).to_le_bytes()[..length]).expect("1 to 8 bytes")
    }

    /// Replaces `old` by `new` in the eight bytes at `base` if `old` stands there, else gives what does. One atomic store.
    ///
    /// # Safety
    /// The eight bytes must be mapped readable and writable, and lie in one cache line.
    #[inline(always)]
    pub(crate) unsafe fn exchange(&self, base: *mut u64, old: u64, new: u64) -> Result<(), u64> {
        let mut current: u64;
        // A plain eight-byte load inside a cache line is atomic on x86-64.
        // SAFETY: the caller's obligation. Other threads change these bytes, so the load is spelled as the one instruction it
        // must be.
        unsafe { asm!("mov {}, qword ptr [{}]", out(reg) current, in(reg) base, options(nostack, readonly)) };
        loop {
            if current & self.mask != old {
                return Err(current & self.mask);
            }
            let wanted = current & !self.mask | new;
            let seen: u64;
            // SAFETY: as above; CMPXCHG takes an unaligned operand, and inside a cache line it is no split lock.
            unsafe {
                asm!(
                    "lock cmpxchg qword ptr [{base}], {wanted}",
                    base = in(reg) base,
                    wanted = in(reg) wanted,
                    inout("rax") current => seen,
                    options(nostack),
                );
            }
            if seen == current {
                return Ok(());
            }
            current = seen;
        }
    }
}

/// Replaces `old` by `new` at `address` if `old` stands there, else says what does. One atomic store for data and,
/// inside `window`, for instruction fetch.
///
/// # Safety
/// 1. The window around `writable` must be mapped readable and writable.
/// 2. `writable` and the address it is executed at must be equal modulo 64.
pub(crate) unsafe fn compare_exchange(
    window: FetchWindow,
    writable: *mut u8,
    old: &Bytes,
    new: &Bytes,
) -> Result<(), Bytes> {
    assert_eq!(old.len(), new.len());
    let quadword = Quadword::of(window, writable as usize, old.len());
    let base = writable.wrapping_sub(quadword.back).cast();
    // SAFETY: obligation 1; the eight bytes are inside the window by `base_of`.
    unsafe { quadword.exchange(base, quadword.word(old), quadword.word(new)) }
        .map_err(|found| quadword.bytes(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Line([u8; 64]);

    #[test]
    fn only_the_patched_bytes_change_at_every_offset_and_length() {
        for window in FetchWindow::ALL {
            for length in 1..=8 {
                for offset in 0..=64 - length {
                    if window.split(offset, length) != Split::Inside {
                        continue;
                    }
                    let mut line = Line(std::array::from_fn(|i| i as u8));
                    let before = line.0;
                    let old = Bytes::new(&before[offset..offset + length]).unwrap();
                    let new = Bytes::new(&[0xee; 8][..length]).unwrap();
                    let at = line.0.as_mut_ptr().wrapping_add(offset);
                    // SAFETY: `line` is a whole writable cache line, and is its own executed address.
                    unsafe {
                        assert_eq!(compare_exchange(window, at, &new, &old), Err(old));
                        assert_eq!(line.0, before);
                        assert_eq!(compare_exchange(window, at, &old, &new), Ok(()));
                    }
                    for (i, byte) in line.0.iter().enumerate() {
                        let inside = (offset..offset + length).contains(&i);
                        assert_eq!(*byte, if inside { 0xee } else { i as u8 });
                    }
                }
            }
        }
    }

    #[test]
    fn neighbours_five_bytes_apart_lose_no_update() {
        const ROUNDS: usize = 200_000;
        let mut line = Line([0; 64]);
        let start = line.0.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            for site in [1_usize, 6, 11] {
                scope.spawn(move || {
                    let at = (start + site) as *mut u8;
                    let forms = [Bytes::new(&[0; 5]).unwrap(), Bytes::new(&[site as u8; 5]).unwrap()];
                    for round in 0..ROUNDS {
                        let (old, new) = (&forms[round % 2], &forms[(round + 1) % 2]);
                        // SAFETY: the line outlives the scope and is its own executed address.
                        unsafe { compare_exchange(FetchWindow::Bytes64, at, old, new) }
                            .expect("an update was lost");
                    }
                });
            }
        });
        assert_eq!(line.0, [0; 64]);
    }
}
