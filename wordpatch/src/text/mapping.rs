//! The mappings whose text has been made writable.

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{TextAccess, TextRef, access, alias, atfork, debugger, fork};
use crate::{Error, maps, site_table};

/// One executable mapping that can be written.
pub(crate) struct TextMapping {
    pub(super) range: Range<usize>,
    /// Start of the writable alias of `range`; none if each store changes the protection.
    pub(super) writable: Option<NonNull<u8>>,
    /// Whether the pages are a memory file of ours, so that a forked child shares them.
    pub(super) copied: bool,
    /// Whether the caller has mapped the text shared, so that a forked child shares it for good.
    pub(super) stays_shared: bool,
    /// Whether the text is a private mapping of that file.
    pub(super) is_private: bool,
    /// Whether `fork` gives a child its own copy of the pages.
    pub(super) is_copied_by_fork: bool,
    /// Whether addresses in it were resolved outside [`preparing`].
    pub(super) is_given_out: bool,
    /// Of [generated code](crate::code_memory): the number of bytes, from its start, that were
    /// written.
    pub(super) written: Option<Arc<AtomicUsize>>,
    /// [`forks`](super::atfork::forks) when this process got the pages: children that were forked
    /// later share them.
    pub(super) forks: u32,
}

// SAFETY: the pointer is an address in a mapping that any thread may write, by the atomic store
// only.
unsafe impl Send for TextMapping {}

/// All mappings that were made writable and not forgotten.
pub(super) static MAPPINGS: Mutex<Vec<TextMapping>> = Mutex::new(Vec::new());

thread_local! {
    pub(super) static IS_PREPARING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, which keeps the references that it resolves to itself: a text in which no others
/// have been resolved can be [revived](super::gone::revive).
pub fn preparing<R>(act: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_PREPARING.set(self.0);
        }
    }
    // Also if `act` panics: references that are resolved later count as given out.
    let _restore = Restore(IS_PREPARING.replace(true));
    act()
}

impl TextMapping {
    /// Makes the mapping around `wanted` writable.
    ///
    /// # Safety
    /// As [`TextRef::resolve`].
    pub(super) unsafe fn new(wanted: &Range<usize>) -> Result<Self, Error> {
        let mapping = maps::mapping_at(wanted.start).ok_or(Error::NotMapped { address: wanted.start })?;
        let range = mapping.range.clone();
        if range.end < wanted.end {
            return Err(Error::NotMapped { address: range.end });
        }
        if !mapping.executable || !mapping.readable {
            return Err(Error::NotExecutable { address: wanted.start });
        }
        let stays_shared = mapping.shared && !alias::is_of_own_pages(&mapping);
        if stays_shared {
            // Sets up the mark by which a child is detected, which finds its parent's locked sites
            // in the table.
            site_table::reserve()?;
        }
        let mut is_private = !mapping.writable && !mapping.shared && access() == TextAccess::Private;
        // If the text is already one of our files, it was forgotten while it was mapped: another
        // file would disconnect the earlier alias.
        let known = if mapping.is_ours && !mapping.shared && !mapping.writable {
            // SAFETY: aliases are emptied or moved with the caller's lock held, and only if the
            // text is gone or known.
            unsafe { alias::duplicate_view_of(&mapping)? }
        } else {
            None
        };
        let (writable, copied) = if known.is_some() {
            is_private = true;
            (known, true)
        } else if mapping.writable {
            (NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)), false)
        } else if access() == TextAccess::Mprotect {
            // A child inherits the guard of a page that is writable during the fork, but not its
            // holder.
            atfork::follow();
            (None, false)
        } else if mapping.shared {
            // SAFETY: the range is mapped, and stays so by the caller's obligation.
            (Some(unsafe { alias::duplicate_shared(&range)? }), !stays_shared)
        } else {
            // Before a child can share this text and its locked sites. Also sets up the mark by
            // which a child is detected.
            site_table::reserve()?;
            // SAFETY: the range is mapped readable, and not written or remapped by other code, by
            // the caller's obligation.
            let (writable, private_pages) = unsafe { alias::replace_by_own_pages(&range, is_private)? };
            is_private = private_pages;
            (Some(writable), true)
        };
        let is_given_out = !IS_PREPARING.get();
        Ok(Self {
            range,
            writable,
            copied,
            stays_shared,
            is_private,
            is_copied_by_fork: !mapping.shared && !copied,
            is_given_out,
            written: None,
            forks: fork::forks(),
        })
    }

    pub(super) fn contains(&self, wanted: &Range<usize>) -> bool {
        self.range.start <= wanted.start && wanted.end <= self.range.end
    }

    /// Number of bytes, from its start, that may have been written: whole pages.
    pub(super) fn written_bytes(&self) -> usize {
        let length = self.range.len();
        let written = self.written.as_ref().map_or(length, |written| written.load(Ordering::Acquire));
        written.next_multiple_of(4096).min(length)
    }

    pub(super) fn at(&self, address: usize) -> TextRef {
        let offset = address - self.range.start;
        TextRef {
            address,
            writable: self.writable.and_then(|w| NonNull::new(w.as_ptr().wrapping_add(offset))),
            is_shared: self.copied || self.stays_shared,
            is_private: self.is_private,
            stays_mapped: false,
        }
    }
}

/// Registers generated code, which has a writable alias from the start. `written` is the number of
/// bytes, from its start, that were written.
pub(crate) fn register(range: Range<usize>, writable: NonNull<u8>, written: Arc<AtomicUsize>) {
    let mapping = TextMapping {
        range,
        writable: Some(writable),
        copied: true,
        stays_shared: false,
        is_private: false,
        is_copied_by_fork: false,
        is_given_out: true,
        written: Some(written),
        forks: fork::forks(),
    };
    MAPPINGS.lock().unwrap_or_else(|e| e.into_inner()).push(mapping);
}

/// The addresses of pages in `range` that a debugger has copied: stores to text there become
/// visible only after [`TogglePair::settle`](super::TogglePair::settle), unless it was marked as
/// staying mapped. Reads the page table, which takes a few microseconds per megabyte.
pub fn copied_pages(range: &Range<usize>) -> Vec<usize> {
    let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let overlap = |m: &TextMapping| m.range.start.max(range.start)..m.range.end.min(range.end);
    let private = mappings.iter().filter(|m| m.is_private).map(overlap).filter(|range| !range.is_empty());
    private.flat_map(|range| debugger::copied_pages(&range)).collect()
}

/// Number of bytes that [`unshare`](super::unshare) copies; 0 if it would not copy anything, or if
/// another thread is just resolving text. Does not block.
pub fn copied_bytes() -> usize {
    let Ok(mappings) = MAPPINGS.try_lock() else { return 0 };
    mappings.iter().filter(|mapping| mapping.copied).map(TextMapping::written_bytes).sum()
}
