//! A location in text, and single stores to it.

use std::ptr::NonNull;

use super::mapping::{IS_PREPARING, MAPPINGS, TextMapping};
use super::shown::Place;
use super::stale::LOOKS;
use super::{atfork, fork, moves, protect, reading};
use crate::protocol::INT3;
use crate::store::Quadword;
use crate::{Bytes, Error, FetchWindow, store};
#[cfg(model)]
use wordpatch_model::environment;

/// A location in text, with its writable alias looked up in advance. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRef {
    pub(super) address: usize,
    pub(super) writable: Option<NonNull<u8>>,
    /// Whether a forked child shares the text.
    pub(super) is_shared: bool,
    pub(super) is_private: bool,
    pub(super) stays_mapped: bool,
}

// SAFETY: a `TextRef` gives access through atomic stores only.
unsafe impl Send for TextRef {}
// SAFETY: as above.
unsafe impl Sync for TextRef {}

impl TextRef {
    /// Looks up the `length` bytes of text at `address`, and makes them writable if they are not
    /// yet. Takes a lock; the first call for a mapping copies it (about a millisecond for 4 MB)
    /// while other threads continue to execute it.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::NotExecutable`], [`Error::AliasRefused`].
    ///
    /// # Safety
    /// No other thread changes the mapping of these bytes (munmap, mremap, mprotect) during the
    /// call, and nothing but this crate writes text in it from now on. A mapping is what
    /// `/proc/self/maps` shows as one: adjacent anonymous pages belong to one mapping, regardless
    /// of which code has mapped them. Texts of several owners must be separated by a page of
    /// something else.
    pub unsafe fn resolve(address: usize, length: usize) -> Result<Self, Error> {
        #[cfg(model)]
        if environment::window().is_some() {
            return Ok(Self {
                address,
                writable: None,
                is_shared: false,
                is_private: false,
                stays_mapped: false,
            });
        }
        let end = address.checked_add(length).ok_or(Error::NotMapped { address })?;
        let wanted = address..end;
        // From now on, a fork waits for the lock.
        atfork::follow();
        let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(mapping) = mappings.iter_mut().find(|m| m.contains(&wanted)) {
            mapping.is_given_out |= !IS_PREPARING.get();
            return Ok(mapping.at(address));
        }
        // SAFETY: the caller's obligation.
        let mapping = unsafe { TextMapping::new(&wanted)? };
        let place = mapping.at(address);
        mappings.push(mapping);
        Ok(place)
    }

    /// The location `offset` bytes further, in the same mapping.
    #[inline]
    pub(crate) fn at_offset(&self, offset: usize) -> Self {
        let writable = match self.writable {
            Some(view) => NonNull::new(view.as_ptr().wrapping_add(offset)),
            None => None,
        };
        Self { address: self.address.wrapping_add(offset), writable, ..*self }
    }

    /// The location of another address. It can be used if the address is in the same mapping;
    /// otherwise it can only be used to compute other locations.
    #[inline]
    #[must_use]
    pub fn at(&self, address: usize) -> Self {
        self.at_offset(address.wrapping_sub(self.address))
    }

    /// The same location, with the caller's guarantee that its text stays mapped. If a debugger has
    /// copied a page, stores become visible in it immediately, at the cost of a load.
    ///
    /// # Safety
    /// The text must stay mapped, and nothing else be mapped there, as long as the result, or
    /// anything made from it, is used.
    #[must_use]
    pub unsafe fn staying_mapped(self) -> Self {
        Self { stays_mapped: true, ..self }
    }

    /// The address at which the bytes are executed.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The address at which the byte can be written: the same address for text that is writable
    /// where it is executed, none with [`TextAccess::Mprotect`](super::TextAccess::Mprotect). For
    /// tools that test the processor with stores of their own; patches go through
    /// [`TextRef::compare_exchange`].
    pub fn writable_view(&self) -> Option<*mut u8> {
        self.writable.map(NonNull::as_ptr)
    }

    /// Reads `length` bytes (1 to 8), `offset` bytes after the address.
    ///
    /// # Safety
    /// The bytes must belong to the mapping in which this location was resolved, and with
    /// [`TextAccess::Mprotect`](super::TextAccess::Mprotect) still be mapped.
    pub unsafe fn read(&self, offset: usize, length: usize) -> Bytes {
        #[cfg(model)]
        if let Some(found) = environment::read(self.address + offset, length) {
            return Bytes::new(&found).expect("1 to 8 bytes");
        }
        let start = match self.writable {
            Some(writable) => writable.as_ptr().cast_const().wrapping_add(offset),
            None => std::ptr::with_exposed_provenance(self.address + offset),
        };
        let mut bytes = [0; crate::MAX_PATCH];
        for (i, byte) in bytes[..length].iter_mut().enumerate() {
            // SAFETY: the caller's obligation.
            *byte = unsafe { start.add(i).read_volatile() };
        }
        Bytes::new(&bytes[..length]).expect("1 to 8 bytes")
    }

    /// Whether the byte at the location is INT3, in the alias or in the text, which may be unmapped
    /// or replaced.
    pub(crate) fn has_int3(&self) -> bool {
        // SAFETY: the alias outlives the text; without one, the text is mapped by the contract of
        // `TextRef`.
        let is_written = unsafe { self.read(0, 1) }[0] == INT3;
        #[cfg(model)]
        if environment::window().is_some() {
            return is_written;
        }
        let mut shown = [0];
        is_written || reading::read_if_mapped(self.address, &mut shown) && shown == [INT3]
    }

    /// Replaces `old` by `new`, `offset` bytes after the address, by one atomic store inside
    /// `window`. Never allocates; probe functions and signal handlers may call it.
    ///
    /// It blocks, for ten seconds at most ([`Error::Contended`]), and enters the kernel
    /// 1. with [`TextAccess::Mprotect`](super::TextAccess::Mprotect), and in a page that a debugger
    ///    has copied: four system calls, after those of other threads that do the same;
    /// 2. while another thread moves text to other pages
    ///    ([`leave_text_to_children`](super::leave_text_to_children)), which it does only after a
    ///    fork: until the end of the move, a millisecond for 4 MB of text.
    ///
    /// With [`TextAccess::Private`](super::TextAccess::Private), it also reads text that may be
    /// unmapped ([`TextRef::staying_mapped`]) by a system call. In all other cases it does neither.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the bytes are not `old`, [`Error::SharedWithParent`] in a forked
    /// child before [`unshare`](super::unshare), [`Error::Contended`]; with
    /// [`TextAccess::Mprotect`](super::TextAccess::Mprotect), or on a copied page, also
    /// [`Error::ProtectRefused`], and [`Error::NotMapped`] if the text was found unmapped.
    ///
    /// # Panics
    /// If the bytes cross a boundary of `window`, or `old` and `new` differ in length.
    ///
    /// # Safety
    /// 1. The bytes must belong to the mapping in which this location was resolved, and with
    ///    [`TextAccess::Mprotect`](super::TextAccess::Mprotect) still be mapped.
    /// 2. Every thread that executes `new`, or any mixture of old and new bytes outside `window`,
    ///    must run valid code.
    /// 3. With [`TextAccess::Private`](super::TextAccess::Private), text in a page that a debugger
    ///    has copied must not be unmapped during the call. (Text that is already unmapped is left
    ///    unchanged.)
    pub unsafe fn compare_exchange(
        &self,
        window: FetchWindow,
        offset: usize,
        old: &Bytes,
        new: &Bytes,
    ) -> Result<(), Error> {
        let address = self.address + offset;
        #[cfg(model)]
        if let Some(stored) = environment::exchange(address, old, new) {
            assert_eq!(window.split(address, old.len()), crate::Split::Inside);
            let found = |found: wordpatch_model::Code| Bytes::new(&found).expect("1 to 8 bytes");
            return stored.map_err(|bytes| Error::Mismatch { address, expected: *old, found: found(bytes) });
        }
        if self.is_shared && fork::is_unprepared_child() {
            return Err(Error::SharedWithParent { address });
        }
        // SAFETY: the caller's obligations.
        let store = || unsafe { self.store(window, offset, old, new) }.map(|()| true);
        moves::despite_moves(address, store).map(|_| ())
    }

    /// [`TextRef::compare_exchange`], whose store may be lost if the text is moved meanwhile.
    ///
    /// # Safety
    /// As [`TextRef::compare_exchange`].
    unsafe fn store(
        &self,
        window: FetchWindow,
        offset: usize,
        old: &Bytes,
        new: &Bytes,
    ) -> Result<(), Error> {
        let address = self.address + offset;
        match self.writable {
            // SAFETY: obligation 1; a writable alias begins at a page boundary, like its text.
            Some(writable) => unsafe {
                let view = writable.as_ptr().wrapping_add(offset);
                let stored = store::compare_exchange(window, view, old, new);
                if stored.is_ok() && self.is_private {
                    self.at_offset(offset).show(window, old, new)?;
                }
                stored
            },
            None => {
                let _writable = if self.stays_mapped {
                    protect::PageGuard::new(address)?
                } else {
                    protect::PageGuard::if_unchanged(address, old)?
                };
                let text = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: obligation 1; the guard makes the page writable, and a fetch window never
                // crosses a page.
                unsafe { store::compare_exchange(window, text, old, new) }
            }
        }
        .map_err(|found| Error::Mismatch { address, expected: *old, found })
    }
}

impl TextRef {
    /// These eight bytes in the alias and in the text, where the text is a private mapping.
    fn private_place(&self, quadword: Quadword) -> Option<Place> {
        let view = self.writable.filter(|_| self.is_private)?;
        let start = view.as_ptr().wrapping_sub(quadword.back()).cast();
        Some(Place::new(quadword, start, self.address))
    }

    /// Makes a completed store through the alias visible in the text.
    ///
    /// # Safety
    /// As [`TextRef::compare_exchange`].
    unsafe fn show(&self, window: FetchWindow, old: &Bytes, new: &Bytes) -> Result<(), Error> {
        let quadword = Quadword::of(window, self.address, old.len());
        let Some(place) = self.private_place(quadword) else { return Ok(()) };
        let (old, new) = (quadword.word(old), quadword.word(new));
        // SAFETY: the caller's obligation of `staying_mapped`.
        let shown = || unsafe { place.shown(self.stays_mapped) };
        // SAFETY: the alias outlives the text.
        let is_in_view = |shown| unsafe { quadword.load(place.view) == shown };
        // If another thread has stored since, the two differ only briefly.
        if shown().is_none_or(|shown| shown == new) || (0..LOOKS).any(|_| shown().is_none_or(is_in_view)) {
            return Ok(());
        }
        // Other text may have been mapped there before the call: then the location is stale, and
        // its store has no effect on text.
        if !self.is_copied_page(1) {
            return Ok(());
        }
        // SAFETY: the text was mapped just now, its page is a copy, and it stays mapped during the
        // call: obligation 3 of `compare_exchange`, or that of `staying_mapped`. The other
        // obligations are the caller's.
        unsafe { place.follow_store(old, new) }
    }

    /// Whether the text has an INT3 at the location and the alias does not: a debugger's
    /// breakpoint.
    pub(crate) fn has_breakpoint(&self) -> bool {
        let quadword = Quadword::of(FetchWindow::Bytes8, self.address, 1);
        let Some(place) = self.private_place(quadword) else { return false };
        let is_int3 = |_| {
            // SAFETY: the caller's obligation of `staying_mapped`.
            let shown = unsafe { place.shown(self.stays_mapped) };
            // SAFETY: the alias outlives the text.
            let written = unsafe { quadword.load(place.view) };
            quadword.bytes(written)[0] != INT3 && shown.is_some_and(|word| quadword.bytes(word)[0] == INT3)
        };
        (0..LOOKS).all(is_int3)
    }

    /// Writes `bytes` at the location, not atomically.
    ///
    /// # Safety
    /// 1. As [`TextRef::compare_exchange`].
    /// 2. No thread executes these bytes during the call.
    pub(super) unsafe fn put_back(&self, bytes: &Bytes) {
        for (i, byte) in bytes.iter().enumerate() {
            let (to, _writable) = match self.writable {
                Some(writable) => (writable.as_ptr().wrapping_add(i), None),
                None => {
                    let address = self.address + i;
                    let Ok(guard) = protect::PageGuard::new(address) else { return };
                    (std::ptr::with_exposed_provenance_mut(address), Some(guard))
                }
            };
            // SAFETY: the caller's obligations; the guard makes the page writable.
            unsafe { to.write_volatile(*byte) };
        }
    }
}
