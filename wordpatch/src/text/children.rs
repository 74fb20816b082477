//! The texts of forked children: what a child shares with its parent, and how it gets pages of its
//! own.

use std::ops::Range;
use std::sync::TryLockError;

use super::mapping::{MAPPINGS, TextMapping};
use super::{alias, atfork, debugger, fork, protect};
use crate::{Bytes, Error, site_table};

/// Gives a forked child its own text pages, so that patches of parent and child no longer affect
/// each other. Called in the child; does nothing if nothing is shared. Blocks while the patched
/// mappings are copied.
///
/// Sites that the parent was patching contain their old instruction in the child. The child cannot
/// finish a patch that the parent has begun: its [`Outstanding`](crate::Outstanding) returns
/// [`Error::Forked`].
///
/// A child that was forked before its parent's first patch across a fetch window inherits no
/// SIGTRAP handler: it must call this function before the parent makes that patch, or is killed
/// when it executes the parent's INT3.
///
/// # Errors
/// [`Error::AliasRefused`]. [`Error::Contended`] if the child was created without `fork`'s handlers
/// while another thread of the parent was looking up text: the child then cannot patch.
/// [`Error::MemoryMap`] if `/proc` cannot be read, so that it is not known what is mapped where the
/// text was. [`Error::SharedWithParent`] if the parent has patched executable memory that the
/// caller had mapped `MAP_SHARED`, and that is still mapped: its pages cannot be separated, and the
/// child needs its parent's table of sites as long as it may execute them. It can patch after it
/// has unmapped that memory.
///
/// # Safety
/// No thread of the child uses a [`TextRef`](super::TextRef) or unmaps text during the call.
pub unsafe fn unshare() -> Result<(), Error> {
    atfork::in_child_at_last();
    // Held forever if a raw `clone` was made while another thread of the parent held it.
    let mut mappings = match MAPPINGS.try_lock() {
        Ok(mappings) => mappings,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(Error::Contended { address: 0 }),
    };
    if !fork::is_unprepared_child() {
        return Ok(());
    }
    let (generated, others): (Vec<_>, Vec<_>) = mappings.iter().partition(|m| m.written.is_some());
    if !others.is_empty() {
        let files = alias::Files::now().map_err(|source| Error::MemoryMap { address: 0, source })?;
        if let Some(shared) = others.iter().find(|m| m.stays_shared && files.has_shared(&m.range)) {
            return Err(Error::SharedWithParent { address: shared.range.start });
        }
        for mapping in others.into_iter().filter(|m| m.copied) {
            // SAFETY: the caller's obligation.
            unsafe { unshare_mapping(mapping, &files)? };
        }
    }
    for mapping in generated {
        // SAFETY: the caller's obligation.
        unsafe { replace_generated(mapping)? };
    }
    mappings.iter_mut().for_each(|mapping| mapping.forks = fork::forks());
    // After the text: a thread that has executed an INT3 of the parent finds its record, or finds
    // the INT3 gone.
    site_table::renew_in_child()?;
    fork::child_is_prepared();
    Ok(())
}

/// Whether this process is a forked child whose text is still shared with its parent.
pub fn is_shared_with_parent() -> bool {
    fork::is_unprepared_child()
}

/// Gives this process new pages for parts of its [generated code](crate::code_memory), with the
/// same bytes. Children that it forked before keep the old pages, which no longer change, and
/// execute the code as it was then. Blocks while the code is copied.
///
/// # Errors
/// [`Error::AliasRefused`]; [`Error::SharedWithParent`] in a forked child before [`unshare`]. A
/// part of the code may have new pages.
///
/// # Safety
/// The caller has [`NoForks`](super::atfork::NoForks). During the call, no other thread writes the
/// code or drops its memory; no instruction there is being [patched](crate::patch).
pub unsafe fn leave_to_children(code: &[Range<usize>]) -> Result<(), Error> {
    if fork::is_unprepared_child() {
        return Err(Error::SharedWithParent { address: code.first().map_or(0, |code| code.start) });
    }
    let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let is_meant = |m: &&TextMapping| {
        m.written.is_some() && code.iter().any(|code| code.start < m.range.end && m.range.start < code.end)
    };
    for mapping in mappings.iter().filter(is_meant) {
        // SAFETY: the caller's obligation.
        unsafe { replace_generated(mapping)? };
    }
    Ok(())
}

/// Gives this process its own pages for one mapping, which is not of generated code.
///
/// # Safety
/// No thread of this process writes or unmaps the text during the call, and no instruction there is
/// being patched, except by the parent of a forked child.
unsafe fn unshare_mapping(mapping: &TextMapping, files: &alias::Files) -> Result<(), Error> {
    let writable = mapping.writable.expect("a copied mapping has a writable view");
    // If the text was unmapped, something else may be mapped there; stores through its alias have
    // no effect.
    let shown = files.shown(&mapping.range, writable);
    if shown.is_empty() {
        return Ok(());
    }
    // SAFETY: the writable alias and these parts are mapped (the child inherits them), and unused
    // during the call by the caller's obligation.
    unsafe { alias::replace_in_child(&mapping.range, writable, &shown, mapping.is_private) }
}

/// Gives this process its own pages for a mapping of generated code.
///
/// # Safety
/// As [`unshare_mapping`].
unsafe fn replace_generated(mapping: &TextMapping) -> Result<(), Error> {
    let writable = mapping.writable.expect("a copied mapping has a writable view");
    // SAFETY: both views are mapped (a child inherits them), and unused during the call by the
    // caller's obligation.
    unsafe { alias::replace_generated(&mapping.range, writable, mapping.written_bytes()) }
}

/// Gives a forked child its own pages of all texts in which a debugger has copied some. If a site
/// crosses into a copied page, the child would see only half of its parent's patches, and in a copy
/// it would keep their INT3s.
///
/// # Safety
/// As [`unshare`].
pub(super) unsafe fn unshare_where_copied(mappings: &[TextMapping]) {
    // Stores inside a window are seen completely or not at all.
    if !site_table::has_records() {
        return;
    }
    let is_copied = |m: &&TextMapping| m.is_private && !debugger::copied_pages(&m.range).is_empty();
    let mut copied = mappings.iter().filter(is_copied).peekable();
    if copied.peek().is_none() {
        return;
    }
    // Errors, which mean lack of memory or of /proc, leave the child as it was.
    let Ok(files) = alias::Files::now() else { return };
    for mapping in copied {
        // SAFETY: the caller's obligation.
        let _ = unsafe { unshare_mapping(mapping, &files) };
    }
}

/// Restores the old bytes of each of these sites, in text of which this process has its own pages;
/// the others are left to [`unshare`]. Called in a forked child, with the sites that were locked
/// when its parent forked.
///
/// # Safety
/// No other thread of this process writes text; the old bytes are those that the in-flight patches
/// found.
pub(super) unsafe fn roll_back_own_pages(mappings: &[TextMapping], sites: &[(usize, Bytes)]) {
    // Its holder, if any, was a thread of the parent.
    protect::release_in_child();
    for (site, old) in sites {
        let wanted = *site..site + old.len();
        let Some(mapping) = mappings.iter().find(|m| m.contains(&wanted) && m.is_copied_by_fork) else {
            continue;
        };
        let place = mapping.at(*site);
        // SAFETY: the caller's obligations; the site is not executed while its bytes are restored.
        unsafe { place.put_back(old) };
    }
}
