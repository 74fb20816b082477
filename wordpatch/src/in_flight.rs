//! An in-flight patch.
//!
//! The patch is checked, then its site is acquired and locked in the site table, then the drivers
//! make its stores, with waits between them. A patch that fails before its second store removes its
//! lock, so it has changed nothing.

use iced_x86::{Decoder, DecoderOptions};

use crate::copies::{self, MAX_INSTRUCTION};
use crate::fault::{self, Point};
use crate::layout::{self, Change, MAX_CODE};
use crate::protocol::{INT3, Protocol, Step, Stored};
use crate::site_table::{self, Int3, OwnedSite};
use crate::stepwise::Stepwise;
use crate::text::{self, TextRef};
use crate::{Bytes, Error, FetchModel, FetchWindow, MAX_PATCH, Patch};

/// A patch that has been checked, and its progress.
#[derive(Debug)]
pub(crate) struct InFlightPatch {
    /// The first instruction that changes.
    place: TextRef,
    /// The entire patch: its address and old bytes.
    whole: (TextRef, Bytes),
    change: Option<Change>,
    window: FetchWindow,
    protocol: Protocol,
    /// The number of steps made.
    made: usize,
    /// The site, while this patch owns it.
    owned: Option<OwnedSite>,
}

impl InFlightPatch {
    /// Checks a patch. Writes nothing to the text, but creates its writable alias.
    ///
    /// # Errors
    /// Those of [`crate::patch`].
    ///
    /// # Safety
    /// The obligations of [`crate::patch`], until the patch is finished or dropped.
    pub(crate) unsafe fn check(patch: &Patch<'_>) -> Result<Self, Error> {
        let Patch { address, expected, replacement } = *patch;
        let bytes = (Bytes::new(expected), Bytes::new(replacement));
        let (Some(old), Some(new)) = bytes else {
            return Err(Error::Length { address, expected: expected.len(), replacement: replacement.len() });
        };
        if old.len() != new.len() {
            return Err(Error::Length { address, expected: old.len(), replacement: new.len() });
        }
        // SAFETY: obligation 1.
        let place = unsafe { TextRef::resolve_current(address, old.len())? };
        // SAFETY: obligation 1.
        unsafe { check_old(&place, &old, old.len())? };
        let mut code = [0; MAX_CODE];
        let readable = read_code(&place, &old, &mut code);
        let change = layout::change(address, &code[..readable], &old, &new)?;
        let window = FetchModel::in_force().window;
        let offset = change.map_or(0, |change| change.offset);
        let (from, to) = change.map_or((old, old), |change| (change.old, change.new));
        let protocol = Protocol::new(window, address + offset, &from, &to);
        if protocol.waits() && change.is_some_and(|change| change.several) {
            return Err(Error::SeveralInstructions { address: address + offset });
        }
        // The bytes that the caller has not given are in the same page or mapping as the others:
        // `read_code` has read them there.
        let first = place.at_offset(offset);
        fault::reached(first.address(), Point::Checked);
        Ok(Self { place: first, whole: (place, old), change, window, protocol, made: 0, owned: None })
    }

    /// The address of the first instruction that changes.
    pub(crate) fn address(&self) -> usize {
        self.place.address()
    }

    pub(crate) fn waits(&self) -> bool {
        self.protocol.waits()
    }

    /// Marks the text as staying mapped until the patch is finished or dropped: see
    /// [`TextRef::staying_mapped`].
    ///
    /// # Safety
    /// As [`TextRef::staying_mapped`].
    pub(crate) unsafe fn stay_mapped(&mut self) {
        // SAFETY: the caller's obligation.
        self.place = unsafe { self.place.staying_mapped() };
    }

    /// Acquires the site, if the protocol needs it, and locks it in the table if INT3 will be
    /// stored there.
    ///
    /// # Errors
    /// [`Error::Contended`], or an error of [`InFlightPatch::check`], because another patch may
    /// have been finished since.
    pub(crate) fn acquire(&mut self) -> Result<(), Error> {
        let Some(change) = self.change.filter(|_| self.protocol.waits() && self.owned.is_none()) else {
            return Ok(());
        };
        let mut owned = OwnedSite::acquire(self.address())?;
        // SAFETY: obligation 1 of `check`.
        unsafe { check_old(&self.place, &change.old, change.named)? };
        if self.uses_int3() {
            // The bytes after the eighth, if the instruction is longer.
            let mut code = [0; MAX_CODE];
            let readable = read_code(&self.place, &change.old, &mut code);
            let instruction = &change.original.bytes[..change.original.length];
            if !code[..readable].starts_with(instruction) {
                return Err(Error::Contended { address: self.address() });
            }
            // It could not be distinguished from our INT3, and would be overwritten.
            if self.place.has_breakpoint() {
                return Err(Error::ForeignBreakpoint { address: self.address() });
            }
            owned.lock(copies::copy_of(&change.original)?, &change.old);
        }
        self.owned = Some(owned);
        fault::reached(self.address(), Point::Acquired);
        Ok(())
    }

    /// Replaces the `error` of a store over `old` at `offset` by that of [`check_old`]. An INT3 or
    /// another patch can conflict only at the start of an instruction: the remaining bytes of a
    /// site are stored by its owner only.
    ///
    /// # Safety
    /// Obligation 1 of [`InFlightPatch::check`].
    unsafe fn explain(&self, offset: usize, old: &Bytes, error: Error) -> Error {
        match error {
            Error::Mismatch { found: seen, .. } if offset == 0 => {
                let named = self.change.map_or(0, |change| change.named).min(old.len());
                // SAFETY: the caller's obligation.
                let found = unsafe { check_old(&self.place, old, named) }.err();
                // If the bytes are the expected ones again, another patch had changed them, or a
                // debugger's breakpoint is in the text but not in the alias.
                let address = self.address();
                found.unwrap_or(if seen[0] == INT3 && old[0] != INT3 {
                    Error::ForeignBreakpoint { address }
                } else {
                    Error::Contended { address }
                })
            }
            other => other,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.made == self.protocol.steps().len()
    }

    /// Restores the first byte, if only the INT3 has been stored, and releases the site. If the
    /// INT3 is still there, the site stays locked.
    fn remove_lock(&mut self) {
        let stored = self.protocol.stored(self.made);
        if let (Stored::Lock, Some(Step::Store { old, new, .. })) = (stored, self.protocol.steps().first()) {
            // SAFETY: as in `store`. If this fails, the INT3 is found below.
            let _ = unsafe { self.place.compare_exchange(self.window, 0, new, old) };
        }
        if stored != Stored::Nothing && self.place.has_int3() {
            self.abandon_site();
        }
        self.owned = None;
    }

    /// Prevents any other patch from acquiring the site, if this patch owns it.
    fn abandon_site(&mut self) {
        if let Some(owned) = self.owned.take() {
            owned.abandon();
        }
    }

    /// Whether something else has been mapped there since the patch was checked, so that its stores
    /// had no effect.
    ///
    /// # Safety
    /// The text must be mapped.
    pub(crate) unsafe fn is_stale(&self) -> bool {
        let (place, old) = &self.whole;
        // SAFETY: the caller's obligation.
        unsafe { place.is_stale(old.len()) }
    }

    /// See [`TextRef::forget_text`].
    pub(crate) fn forget_text(&self) {
        self.whole.0.forget_text();
    }

    /// Whether the stores of all these patches are in the text that is executed, which may have
    /// been unmapped.
    pub(crate) fn are_current<'a>(patches: impl Iterator<Item = &'a Self>) -> bool {
        let places: Vec<_> = patches.map(|Self { whole: (place, old), .. }| (*place, old.len())).collect();
        text::are_current(&places)
    }
}

impl Stepwise for InFlightPatch {
    type Error = Error;

    /// Releases the site after the last step.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::Contended`] or [`Error::ForeignBreakpoint`] if a store finds
    /// other bytes; the lock is removed.
    fn store(&mut self) -> Result<(), Error> {
        while let Some(Step::Store { offset, old, new }) = self.protocol.steps().get(self.made) {
            // SAFETY: obligations 1 and 2 of `check`; each store of the protocol is inside a
            // window, and mixtures are never executed, because they start with INT3.
            let stored = unsafe { self.place.compare_exchange(self.window, *offset, old, new) };
            if let Err(error) = stored {
                // SAFETY: obligation 1 of `check`.
                let error = unsafe { self.explain(*offset, old, error) };
                self.remove_lock();
                return Err(error);
            }
            self.made += 1;
            fault::reached(self.address(), Point::Made(self.made));
        }
        if self.is_finished() && self.owned.take().is_some() {
            fault::reached(self.address(), Point::Released);
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        matches!(self.protocol.steps().get(self.made), Some(Step::Wait))
    }

    fn end_wait(&mut self) {
        assert!(self.is_waiting());
        self.made += 1;
        fault::reached(self.address(), Point::Made(self.made));
    }

    /// If only the wait after the last store is missing, the patch is complete, but no other patch
    /// can acquire its site.
    ///
    /// # Errors
    /// Otherwise, the refusal. If the back part has not been stored, the site is restored. If it
    /// has, the patch can be neither completed nor rolled back safely: the site stays locked, and
    /// threads that execute the INT3 continue in the copy.
    fn give_up(&mut self, refusal: Error) -> Result<(), Error> {
        assert!(self.is_waiting());
        match self.protocol.stored(self.made) {
            Stored::All => {
                self.abandon_site();
                self.made = self.protocol.steps().len();
                Ok(())
            }
            Stored::Nothing | Stored::Lock | Stored::LockAndBack => {
                self.remove_lock();
                Err(refusal)
            }
        }
    }

    fn uses_int3(&self) -> bool {
        self.protocol.uses_int3()
    }
}

impl Drop for InFlightPatch {
    fn drop(&mut self) {
        // The site of an unfinished patch stays locked: threads that execute the INT3 continue in
        // the copy. This is also the case if a forked child drops a patch that its parent has
        // begun.
        if !self.is_finished() && self.protocol.stored(self.made) != Stored::Nothing {
            self.abandon_site();
        }
    }
}

/// Reads the code that begins with `old` at `place`, and returns its length: at most up to the end
/// of the page, if the next one is not text.
fn read_code(place: &TextRef, old: &Bytes, code: &mut [u8; MAX_CODE]) -> usize {
    let address = place.address();
    let wanted = old.len() - 1 + MAX_INSTRUCTION;
    let in_page = 4096 - (address & 4095);
    // SAFETY: obligation 1 of `check`: the mapping does not change during the call.
    let further = || unsafe { TextRef::resolve(address, wanted) };
    let (text, readable) = match in_page < wanted {
        true => further().map_or((*place, in_page.max(old.len())), |text| (text, wanted)),
        false => (*place, wanted),
    };
    code[..old.len()].copy_from_slice(old);
    for start in (old.len()..readable).step_by(MAX_PATCH) {
        let end = readable.min(start + MAX_PATCH);
        // SAFETY: in the same page as the first byte, which is text, or resolved as text by
        // `further`.
        code[start..end].copy_from_slice(&unsafe { text.read(start, end - start) });
    }
    readable
}

/// Compares the bytes at `place`, where an instruction starts, with `old`. The first `named` bytes
/// were given by the caller; the others were read when the patch was checked.
///
/// # Errors
/// [`Error::Mismatch`] if bytes differ that the caller has given. [`Error::Contended`] for an INT3
/// of another patch, or if only other bytes differ: another patch has changed this part of the
/// instruction since. [`Error::ForeignBreakpoint`].
///
/// # Safety
/// The bytes must be mapped.
unsafe fn check_old(place: &TextRef, old: &Bytes, named: usize) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    let found = unsafe { place.read(0, old.len()) };
    let Some(differs) = (0..old.len()).find(|i| found[*i] != old[*i]) else { return Ok(()) };
    if differs >= named {
        return Err(Error::Contended { address: place.address() });
    }
    if found[differs] == INT3 && starts_instruction(old, differs) {
        let address = place.address() + differs;
        // SAFETY: the caller's obligation.
        let is_int3 = || unsafe { place.read(differs, 1) }[0] == INT3;
        return Err(match site_table::meaning_of_int3(address, is_int3) {
            Int3::Locked { .. } | Int3::Gone => Error::Contended { address },
            Int3::Foreign => Error::ForeignBreakpoint { address },
        });
    }
    let named = |bytes: &Bytes| Bytes::new(&bytes[..named]).expect("at least the byte that differs");
    Err(Error::Mismatch { address: place.address(), expected: named(old), found: named(&found) })
}

/// Whether an instruction starts at `offset` of this code. If not, a byte with the value of INT3 is
/// part of an operand.
fn starts_instruction(code: &Bytes, offset: usize) -> bool {
    let mut start = 0;
    while start < offset {
        let decoded = Decoder::new(64, &code[start..], DecoderOptions::NONE).decode();
        if decoded.is_invalid() {
            return false;
        }
        start += decoded.len();
    }
    start == offset
}

#[cfg(test)]
mod tests {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;
    use crate::near::NearBlock;

    /// `mov eax, imm32`; then with another opcode and first byte of the operand, with other last
    /// two bytes, and with both changes.
    const OLD: [u8; 5] = [0xb8, 1, 2, 3, 4];
    const FRONT: [u8; 5] = [0xb9, 9, 2, 3, 4];
    const BACK: [u8; 5] = [0xb8, 1, 2, 8, 7];
    const BOTH: [u8; 5] = [0xb9, 9, 2, 8, 7];

    /// The code at `offset` of a cache line whose other bytes are NOPs.
    fn text(offset: usize, code: &[u8]) -> usize {
        let anchor = text as *const () as usize;
        let mut block = NearBlock::allocate(&(anchor..anchor), 128, 0).unwrap();
        block.code_mut()[..128].fill(0x90);
        block.code_mut()[offset..offset + code.len()].copy_from_slice(code);
        block.seal().unwrap().code + offset
    }

    fn check(address: usize, expected: &[u8], replacement: &[u8]) -> Result<InFlightPatch, Error> {
        // SAFETY: text of the test, which is not executed.
        unsafe { InFlightPatch::check(&Patch { address, expected, replacement }) }
    }

    /// The stores of a patch: offset, old and new bytes.
    fn steps(patch: &InFlightPatch) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
        let store = |step: &Step| match step {
            Step::Store { offset, old, new } => Some((*offset, old.to_vec(), new.to_vec())),
            Step::Wait => None,
        };
        patch.protocol.steps().iter().filter_map(store).collect()
    }

    fn read(address: usize, length: usize) -> Vec<u8> {
        // SAFETY: text of the test, which is not written during the call.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length) }.to_vec()
    }

    /// The end of a cache line is a boundary of every fetch window, whichever is in force.
    #[test]
    fn a_patch_of_the_front_of_a_straddler_owns_the_site_and_waits() {
        let site = text(61, &OLD);
        let mut front = check(site, &OLD[..3], &FRONT[..3]).unwrap();
        assert!(front.waits() && !front.uses_int3());
        assert_eq!(steps(&front), [(0, OLD[..3].to_vec(), FRONT[..3].to_vec())]);
        front.acquire().unwrap();
        front.store().unwrap();
        assert!(front.is_waiting());
        // A patch of another part must wait for the end of this one.
        let mut back = check(site, &FRONT, &BOTH).unwrap();
        assert_eq!(steps(&back), [(3, OLD[3..].to_vec(), BACK[3..].to_vec())]);
        assert!(matches!(back.acquire(), Err(Error::Contended { address }) if address == site));
        front.end_wait();
        front.store().unwrap();
        back.acquire().unwrap();
        back.store().unwrap();
        assert_eq!(read(site, 5), BOTH);
        back.end_wait();
        back.store().unwrap();
    }

    #[test]
    fn a_patch_of_a_part_inside_a_window_compares_the_entire_instruction() {
        let site = text(8, &OLD);
        let mut front = check(site, &OLD[..2], &FRONT[..2]).unwrap();
        assert_eq!(steps(&front), [(0, OLD.to_vec(), FRONT.to_vec())]);
        let mut back = check(site, &OLD, &BACK).unwrap();
        back.acquire().unwrap();
        back.store().unwrap();
        assert!(back.is_finished());
        // The bytes that the caller has given are unchanged: not a mismatch.
        front.acquire().unwrap();
        assert!(matches!(front.store(), Err(Error::Contended { address }) if address == site));
        assert_eq!(read(site, 5), BACK);
    }

    /// Another patch is made between the check and the acquisition of the site.
    #[test]
    fn changes_by_another_patch_since_the_check_are_detected() {
        for late in [&FRONT, &BACK, &[0xb8, 1, 2, 3, 7], &BOTH] {
            let site = text(61, &OLD);
            let mut early = check(site, &OLD, &[0xbb, 0x55, 0x66, 0x77, 0x88]).unwrap();
            assert!(early.uses_int3());
            // SAFETY: as in `check`.
            unsafe { crate::patch(site, &OLD, late) }.unwrap();
            let error = early.acquire().unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{late:02x?}: {error:?}");
            assert_eq!(read(site, 5), *late);
            // The site is free.
            // SAFETY: as above.
            unsafe { crate::patch(site, late, &OLD) }.unwrap();
        }
        // In a part that the caller has not given.
        let site = text(61, &OLD);
        let mut early = check(site, &OLD[..3], &FRONT[..3]).unwrap();
        // SAFETY: as in `check`.
        unsafe { crate::patch(site, &OLD, &BACK) }.unwrap();
        assert!(matches!(early.acquire(), Err(Error::Contended { address }) if address == site));
        assert_eq!(read(site, 5), BACK);
    }

    /// `mov rax, imm64`, whose copy contains all ten bytes.
    #[test]
    fn foreign_changes_after_the_eighth_byte_are_detected() {
        let old = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8];
        let site = text(61, &old);
        let mut early = check(site, &old[..8], &[0x48, 0xb9, 1, 2, 3, 9, 5, 6]).unwrap();
        assert!(early.uses_int3());
        let bytes = |bytes: &[u8]| Bytes::new(bytes).unwrap();
        // SAFETY: as in `check`.
        unsafe {
            let place = TextRef::resolve(site, old.len()).unwrap();
            place.compare_exchange(FetchWindow::Bytes8, 9, &bytes(&[8]), &bytes(&[9])).unwrap();
        }
        assert!(matches!(early.acquire(), Err(Error::Contended { address }) if address == site));
        assert_eq!(read(site, 8), old[..8]);
        check(site, &old[..8], &old[..8]).unwrap();
    }

    /// The alias no longer belongs to the text, in which the first byte of the site is still INT3:
    /// another patch must not acquire the site, and threads continue in the copy.
    #[test]
    fn a_lock_stays_while_the_text_has_its_int3() {
        for (byte, is_kept) in [(INT3, true), (OLD[0], false)] {
            let length = const { std::num::NonZeroUsize::new(4096).unwrap() };
            let write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let map = |place, protection, flags| {
                // SAFETY: a new mapping, or one in the place of a page of the test.
                unsafe { mmap_anonymous(place, length, protection, MapFlags::MAP_PRIVATE | flags) }.unwrap()
            };
            let page = map(None, write | ProtFlags::PROT_EXEC, MapFlags::empty());
            let site = page.addr().get() + 61;
            let map_again = |code: &[u8]| {
                let page = map(Some(page.addr()), write, MapFlags::MAP_FIXED);
                // SAFETY: inside the page, which is not executed.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        code.as_ptr(),
                        page.as_ptr().cast::<u8>().add(61),
                        code.len(),
                    );
                    mprotect(page, 4096, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
                }
            };
            map_again(&OLD);
            let mut patch = check(site, &OLD, &BOTH).unwrap();
            patch.acquire().unwrap();
            patch.store().unwrap();
            map_again(&[byte]);
            patch.give_up(Error::TableFull).unwrap_err();
            assert_eq!(OwnedSite::acquire(site).is_err(), is_kept, "{byte:#x}");
            text::forget(&(site..site + 1));
            drop(OwnedSite::acquire(site).expect("the text with the lock is gone"));
        }
    }

    #[test]
    fn several_instructions_are_one_store_or_refused() {
        let (old, new) = ([0xb0, 1, 0xb3, 2], [0xb0, 3, 0xb3, 4]);
        let inside = check(text(8, &old), &old, &new).unwrap();
        assert_eq!(steps(&inside), [(0, old.to_vec(), new.to_vec())]);
        for offset in 61..64 {
            let refused = check(text(offset, &old), &old, &new);
            assert!(matches!(refused, Err(Error::SeveralInstructions { .. })), "{offset}: {refused:?}");
        }
        // The last byte of the second instruction, which is not given and does not change, is in
        // the next window.
        let site = text(60, &[0xb0, 1, 0x83, 0xc3, 5]);
        let refused = check(site, &[0xb0, 1, 0x83, 0xc3], &[0xb0, 3, 0x83, 0xeb]);
        assert!(matches!(refused, Err(Error::SeveralInstructions { .. })), "{refused:?}");
        // Refused even if bytes change in one window only.
        let site = text(61, &[0x50, 0x83, 0xc3, 5]);
        let refused = check(site, &[0x50, 0x83, 0xc3], &[0x51, 0x83, 0xeb]);
        assert!(matches!(refused, Err(Error::SeveralInstructions { .. })), "{refused:?}");
    }
}
