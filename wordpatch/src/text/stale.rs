//! Whether the text at a location is what was written there: other text may have been mapped over
//! it, to which stores through the alias do not go.

use super::{TextRef, reading};
use crate::maps;
#[cfg(model)]
use wordpatch_model::environment;

/// Number of comparisons of text and its writable alias that must all differ before a difference
/// counts. A store of another thread may fall between the two reads, and often does if a site is
/// toggled at the processor's full speed.
pub(super) const LOOKS: usize = 64;

impl TextRef {
    /// Whether something else was mapped over the `length` bytes of text, so that they differ from
    /// the writable alias.
    ///
    /// # Safety
    /// The bytes must be mapped readable at the address where they are executed.
    pub unsafe fn is_stale(&self, length: usize) -> bool {
        #[cfg(model)]
        if environment::window().is_some() {
            return false;
        }
        let text = std::ptr::with_exposed_provenance::<u8>(self.address);
        let view = self.writable.map_or(text, |view| view.as_ptr().cast_const());
        (0..LOOKS).all(|_| {
            // SAFETY: the caller's obligation; the alias outlives the text.
            (0..length).any(|i| unsafe { text.add(i).read_volatile() != view.add(i).read_volatile() })
        }) && !self.is_copied_page(length)
    }

    /// Whether the text still belongs to the alias, so that a difference means that its page was
    /// copied. Does not allocate.
    pub(super) fn is_copied_page(&self, length: usize) -> bool {
        let Some(view) = self.writable.filter(|_| self.is_private) else { return false };
        let addresses = [view.addr().get(), self.address, self.address + length - 1];
        maps::files_at(addresses)
            .is_some_and(|[view, first, last]| view.is_some() && view == first && view == last)
    }
}

/// Whether the text at all these locations, with these lengths, is what was written there. Unlike
/// [`TextRef::is_stale`], reads the bytes by system calls, a thousand locations at a time, so the
/// text need not be mapped. Text that is written where it is executed cannot be checked.
pub(crate) fn are_current(places: &[(TextRef, usize)]) -> bool {
    /// The kernel's limit for one call (UIO_MAXIOV).
    const AT_ONCE: usize = 1024;
    let can_be_checked = |(place, _): &&(TextRef, usize)| {
        place.writable.is_some_and(|view| view.addr().get() != place.address)
    };
    let places: Vec<&(TextRef, usize)> = places.iter().filter(can_be_checked).collect();
    // SAFETY: the alias outlives the text.
    let written = |(place, length): &(TextRef, usize)| unsafe { place.read(0, *length) };
    // Bytes in two pages are not checked if they can only be read one page at a time.
    let is_current = |place: &&(TextRef, usize)| {
        let (TextRef { address, .. }, length) = place;
        let mut text = [0; crate::MAX_PATCH];
        let text = &mut text[..*length];
        address % 4096 + length > 4096
            || reading::read_if_mapped(*address, text)
                && (*text == *written(place) || place.0.is_copied_page(*length))
    };
    let are_current = |places: &[&(TextRef, usize)]| {
        let remote: Vec<libc::iovec> = places
            .iter()
            .map(|(place, length)| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(place.address),
                iov_len: *length,
            })
            .collect();
        let mut found = vec![0_u8; places.iter().map(|(_, length)| length).sum()];
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
        // SAFETY: writes at most `found.len()` bytes there; an address that is not mapped ends the
        // read.
        let read = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        if read < 0 && reading::is_refused() {
            return places.iter().all(is_current);
        }
        let mut rest = &found[..];
        let is_same = |(place, length): &&(TextRef, usize)| {
            let (text, behind) = rest.split_at(*length);
            rest = behind;
            // SAFETY: the alias outlives the text.
            text == &*unsafe { place.read(0, *length) } || place.is_copied_page(*length)
        };
        read == found.len() as isize && places.iter().all(is_same)
    };
    places.chunks(AT_ONCE).all(|places| (0..LOOKS).any(|_| are_current(places)))
}
