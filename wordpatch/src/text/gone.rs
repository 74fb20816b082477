//! Text that was unmapped, or that other text has replaced: its aliases end, and can be used again
//! if it returns.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::mapping::{MAPPINGS, TextMapping};
use super::{TextRef, alias};
use crate::{Error, site_table};

/// Discards all information about mappings that overlap `range`, after the text there was unmapped
/// or replaced. References that were resolved through a writable alias remain safe to use: their
/// stores go to memory that is not executed. With
/// [`TextAccess::Mprotect`](super::TextAccess::Mprotect), and in memory that is mapped writable and
/// executable, they must not be used any more.
///
/// Instructions whose patches were [given up](crate::Error::MembarrierRefused) can be patched again
/// in text that is mapped there later.
///
/// This and the other functions for mappings block while another thread resolves or copies text,
/// for milliseconds at most. They must not be called from signal handlers.
pub fn forget(range: &Range<usize>) {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    if site_table::has_abandoned(range)
        && let Ok(files) = alias::Files::now()
    {
        end_abandoned(range, &mappings, &files);
    }
    mappings.retain(|m| m.range.end <= range.start || range.end <= m.range.start);
}

/// Frees the sites that were given up, except in text that is still there: it was forgotten too
/// early, or mapped since.
fn end_abandoned(range: &Range<usize>, mappings: &[TextMapping], files: &alias::Files) {
    let shown = |m: &TextMapping| m.writable.map_or(Vec::new(), |view| files.shown(&m.range, view));
    let shown: Vec<_> = mappings.iter().filter(|m| m.copied).flat_map(shown).collect();
    site_table::end_abandoned(range, |site| shown.iter().any(|part| part.contains(&site)));
}

impl TextRef {
    /// As [`TextRef::resolve`], in the text that is mapped now: an earlier text is
    /// [forgotten](TextRef::forget_text) if these bytes are others in its alias. If they are the
    /// same, only a store shows that the result [is stale](TextRef::is_stale).
    ///
    /// # Errors
    /// As [`TextRef::resolve`].
    ///
    /// # Safety
    /// As [`TextRef::resolve`]. The bytes are mapped, or were never resolved.
    pub unsafe fn resolve_current(address: usize, length: usize) -> Result<Self, Error> {
        // SAFETY: the caller's obligation.
        let place = unsafe { Self::resolve(address, length)? };
        // SAFETY: as above.
        if !unsafe { place.is_stale(length) } {
            return Ok(place);
        }
        place.forget_text();
        // SAFETY: as above.
        unsafe { Self::resolve(address, length) }
    }

    /// Discards all information about the mapping in which this location was resolved, if
    /// [something else](TextRef::is_stale) is mapped there now. Unlike [`forget`], keeps what was
    /// resolved there since.
    pub fn forget_text(&self) {
        let wanted = self.address..self.address + 1;
        let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
        mappings.retain(|m| !m.contains(&wanted) || m.at(self.address).writable != self.writable);
    }
}

/// The remaining writable aliases of released texts: the former range of each text, and its alias.
static RELEASED: Mutex<Vec<(Range<usize>, View)>> = Mutex::new(Vec::new());

/// Start of a writable alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View(NonNull<u8>);

// SAFETY: an address; see `TextMapping`.
unsafe impl Send for View {}

/// As [`forget`], for text that has been unmapped completely; also frees its pages and their file.
/// The address space of the alias is kept, with empty memory, so that references resolved in the
/// text can still be used without effect; [`revive`] reuses it. Keeps what was resolved in text
/// that was mapped there since. Does nothing if `/proc` cannot be read, so that it is not known
/// which text that is.
///
/// # Safety
/// The mappings that overlap `range` must have been unmapped completely. Other mappings may have
/// taken their addresses.
pub unsafe fn release(range: &Range<usize>) {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let Ok(files) = alias::Files::now() else { return };
    end_abandoned(range, &mappings, &files);
    let is_shown =
        |m: &TextMapping| m.copied && m.writable.is_some_and(|view| !files.shown(&m.range, view).is_empty());
    let gone = |m: &mut TextMapping| range.start < m.range.end && m.range.start < range.end && !is_shown(m);
    for mapping in mappings.extract_if(.., gone).filter(|mapping| mapping.copied) {
        let view = mapping.writable.expect("a copied mapping has a writable view");
        // SAFETY: the alias is ours, and its pages are not executed: its text was unmapped.
        unsafe { alias::empty(view, mapping.range.len()) };
        RELEASED.lock().unwrap_or_else(|e| e.into_inner()).push((mapping.range, View(view)));
    }
}

/// For text that is mapped again where the text of `old`, a location in it, was before it was
/// released: moves its writable alias to the old one's address. Old references are then valid
/// again, and new ones must no longer be used. Returns whether there was such a text, with the same
/// extent, and all references to the new one were resolved in
/// [`preparing`](crate::internal::preparing); otherwise nothing is changed.
///
/// # Safety
/// 1. The text is mapped, and no [`TextRef`] or [`TogglePair`](super::TogglePair) that was resolved
///    in it in [`preparing`](crate::internal::preparing) is in use or used afterwards.
/// 2. Changes through the old references must be correct in the new text.
pub unsafe fn revive(old: &TextRef) -> bool {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let wanted = old.address..old.address + 1;
    let Some(mapping) = mappings.iter_mut().find(|m| m.contains(&wanted)) else { return false };
    let (Some(now), Some(before)) = (mapping.writable, old.writable) else {
        return mapping.writable == old.writable;
    };
    let view = before.as_ptr().wrapping_sub(old.address - mapping.range.start);
    let mut released = RELEASED.lock().unwrap_or_else(|e| e.into_inner());
    let is_old = |(range, start): &(Range<usize>, View)| *range == mapping.range && start.0.as_ptr() == view;
    let Some(index) = released.iter().position(is_old) else { return false };
    let View(place) = released[index].1;
    if !mapping.copied || mapping.is_given_out {
        return false;
    }
    // SAFETY: both aliases are ours and of this length; the caller's obligations.
    if unsafe { alias::move_view(now, place, mapping.range.len()) }.is_err() {
        return false;
    }
    released.swap_remove(index);
    mapping.writable = Some(place);
    true
}
