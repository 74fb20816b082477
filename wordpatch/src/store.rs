//! The store that changes live text: up to eight bytes inside one fetch window, atomically, without
//! changing neighbouring bytes.
//!
//! Call sites five bytes apart share a quadword. If two threads each loaded it, modified their
//! bytes and stored it back, one of the two updates would be lost. Therefore the store is a locked
//! compare-exchange of the eight bytes around the patch. It also checks the expected old bytes; if
//! only a neighbour has changed, it is tried again. The eight bytes never leave the fetch window of
//! the patch, and therefore not its cache line.

use std::arch::asm;

use crate::{Bytes, FetchWindow, MAX_PATCH, Split};

/// The start of the store's eight bytes: the aligned quadword if it contains the patch, else the
/// patch itself. A patch that crosses into the next quadword begins before the last quadword of its
/// window, so eight bytes from there do not leave the window either.
#[inline]
fn base_of(address: usize, length: usize) -> usize {
    if FetchWindow::Bytes8.split(address, length) == Split::Inside {
        address & !(MAX_PATCH - 1)
    } else {
        address
    }
}

/// The position of a patch within the eight bytes of its store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quadword {
    back: u8,
    length: u8,
}

impl Quadword {
    /// The position of `length` bytes at `address`.
    ///
    /// # Panics
    /// If they cross a boundary of `window`.
    #[inline]
    pub(crate) fn of(window: FetchWindow, address: usize, length: usize) -> Self {
        assert_eq!(window.split(address, length), Split::Inside, "a store must not cross a fetch window");
        let back = address - base_of(address, length);
        Self { back: back as u8, length: length as u8 }
    }

    /// Offset of the patch from the start of the eight bytes.
    #[inline]
    pub(crate) fn back(&self) -> usize {
        usize::from(self.back)
    }

    /// Length of the patch in bytes.
    pub(crate) fn length(&self) -> usize {
        usize::from(self.length)
    }

    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        u32::from(self.back) * 8
    }

    fn mask(&self) -> u64 {
        (u64::MAX >> (64 - u32::from(self.length) * 8)) << self.shift()
    }

    /// A word with `bytes` at the patch's position, and zero elsewhere.
    pub(crate) fn word(&self, bytes: &Bytes) -> u64 {
        bytes.word() << self.shift()
    }

    /// Extracts the patch's bytes from such a word.
    pub(crate) fn bytes(&self, word: u64) -> Bytes {
        Bytes::new(&(word >> self.shift()).to_le_bytes()[..self.length()]).expect("1 to 8 bytes")
    }

    /// Clears all bytes of a word except the patch's.
    #[inline(always)]
    pub(crate) fn masked(&self, word: u64) -> u64 {
        word & self.mask()
    }

    /// Loads the eight bytes at `base`, and clears all except the patch's.
    ///
    /// # Safety
    /// The eight bytes must be mapped readable, and lie in one cache line.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, base: *const u64) -> u64 {
        let word: u64;
        // SAFETY: as in `exchange`.
        unsafe { asm!("mov {}, qword ptr [{}]", out(reg) word, in(reg) base, options(nostack, readonly)) };
        self.masked(word)
    }

    /// Replaces `old` by `new` in the eight bytes at `base`; fails with the bytes found there if
    /// they are not `old`. One atomic store.
    ///
    /// # Safety
    /// The eight bytes must be mapped readable and writable, and lie in one cache line.
    #[inline(always)]
    pub(crate) unsafe fn exchange(&self, base: *mut u64, old: u64, new: u64) -> Result<(), u64> {
        let mut current: u64;
        let mask = self.mask();
        // A plain eight-byte load inside a cache line is atomic on x86-64. SAFETY: the caller's
        // obligation. Other threads change these bytes, so the load is written in assembly: it must
        // be one instruction.
        unsafe { asm!("mov {}, qword ptr [{}]", out(reg) current, in(reg) base, options(nostack, readonly)) };
        loop {
            if current & mask != old {
                return Err(current & mask);
            }
            let wanted = current & !mask | new;
            let seen: u64;
            // SAFETY: as above; CMPXCHG accepts an unaligned operand, and inside a cache line it is
            // not a split lock.
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

/// Replaces `old` by `new` at `writable`; fails with the bytes found there if they are not `old`.
/// One store, atomic for data and, inside `window`, for instruction fetch.
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
    let base = writable.wrapping_sub(quadword.back()).cast();
    // SAFETY: obligation 1; the eight bytes are inside the window by `base_of`.
    unsafe { quadword.exchange(base, quadword.word(old), quadword.word(new)) }
        .map_err(|found| quadword.bytes(found))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
                    // SAFETY: `line` is an entire writable cache line, and is its own executed
                    // address.
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

    /// If the patch fits into an aligned quadword, that quadword is used: AMD guarantees nothing
    /// for other groups of eight bytes.
    #[test]
    fn the_eight_bytes_hold_the_patch_and_stay_inside_the_window() {
        for window in FetchWindow::ALL {
            for length in 1..=8 {
                for address in
                    (0x1000..=0x1040 - length).filter(|at| window.split(*at, length) == Split::Inside)
                {
                    let base = base_of(address, length);
                    let what = format!("{window:?}, {length} bytes at {address:#x}: base {base:#x}");
                    assert!(base <= address && address + length <= base + 8, "{what}");
                    assert_eq!(window.split(base, 8), Split::Inside, "{what}");
                    if FetchWindow::Bytes8.split(address, length) == Split::Inside {
                        assert!(base.is_multiple_of(8), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "a store must not cross a fetch window")]
    fn bytes_that_cross_the_window_are_refused() {
        Quadword::of(FetchWindow::Bytes32, 0x101e, 5);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn forms_of_different_lengths_are_refused() {
        let mut line = Line([0; 64]);
        let (old, new) = (Bytes::new(&[0; 4]).unwrap(), Bytes::new(&[1; 5]).unwrap());
        // SAFETY: `line` is an entire writable cache line, and is its own executed address.
        let _ = unsafe { compare_exchange(FetchWindow::Bytes64, line.0.as_mut_ptr(), &old, &new) };
    }

    #[inline(never)]
    unsafe fn exchange_for_disassembly(
        quadword: &Quadword,
        base: *mut u64,
        old: u64,
        new: u64,
    ) -> Result<(), u64> {
        // SAFETY: the caller's obligation.
        unsafe { quadword.exchange(base, old, new) }
    }

    /// A lost update occurs only if two processors store within the same few cycles, but the
    /// instruction can be inspected on any machine.
    #[test]
    fn the_store_is_a_locked_compare_exchange() {
        use iced_x86::{Decoder, DecoderOptions, Mnemonic};
        let start = exchange_for_disassembly as *const () as usize;
        // SAFETY: the function and what the linker puts after it are mapped text; this test module
        // alone is longer.
        let code = unsafe { std::slice::from_raw_parts(start as *const u8, 256) };
        let found = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE)
            .into_iter()
            .find(|instruction| instruction.mnemonic() == Mnemonic::Cmpxchg);
        let store = found.expect("a CMPXCHG among the first instructions of `exchange`");
        assert!(store.has_lock_prefix(), "{store} at {:#x}", store.ip());
    }

    /// Two sites of one quadword, each toggled by a thread on its own processor: a thread that does
    /// not find its own last update has lost it. The strength of the test is not its duration but
    /// the number of times that the threads interfere, so it ends after a number of these.
    #[test]
    fn neighbours_on_two_processors_lose_no_update() {
        /// Rounds of either thread that found the neighbour's bytes changed since the round before.
        const MEETINGS: u64 = 300_000;
        let Some(processors) = crate::processors_in_tests::two() else { return };
        let mut line = Line([0; 64]);
        let start = line.0.as_mut_ptr() as usize;
        let meetings = [const { AtomicU64::new(0) }; 2];
        let has_failed = AtomicBool::new(false);
        // One quadword; and eight bytes that cross quadwords, inside the line.
        for (window, sites) in [(FetchWindow::Bytes8, [0, 3]), (FetchWindow::Bytes64, [22, 27])] {
            meetings.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            std::thread::scope(|scope| {
                for number in 0..2 {
                    let (meetings, has_failed) = (&meetings, &has_failed);
                    scope.spawn(move || {
                        crate::processors_in_tests::pin(processors[number]);
                        let (own, other) =
                            ((start + sites[number]) as *mut u8, (start + sites[1 - number]) as *const u8);
                        let _failed = SetIfPanicking(has_failed);
                        let length = if window == FetchWindow::Bytes8 { 3 } else { 5 };
                        let form = |value| Bytes::new(&[value; 5][..length]).unwrap();
                        let (mut old, mut neighbour) = (form(0), 0);
                        for round in 1_u64.. {
                            let new = form((round % 251) as u8);
                            // SAFETY: the line outlives the scope and is its own executed address.
                            unsafe { compare_exchange(window, own, &old, &new) }.expect("an update was lost");
                            old = new;
                            // SAFETY: as above.
                            let seen = unsafe { other.read_volatile() };
                            if seen != neighbour {
                                neighbour = seen;
                                meetings[number].fetch_add(1, Ordering::Relaxed);
                            }
                            let enough = round % 64 == 0
                                && meetings.iter().all(|count| count.load(Ordering::Relaxed) >= MEETINGS);
                            if enough || has_failed.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        // SAFETY: as above.
                        unsafe { compare_exchange(window, own, &old, &form(0)) }.expect("an update was lost");
                    });
                }
            });
            assert_eq!(line.0, [0; 64]);
        }
    }

    /// Keeps the other thread from waiting for one that has failed.
    struct SetIfPanicking<'a>(&'a AtomicBool);

    impl Drop for SetIfPanicking<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
}
