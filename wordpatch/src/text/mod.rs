//! Write access to text that is mapped read-execute.
//!
//! # The algorithm
//! On the first patch inside a mapping, the whole mapping gets a writable alias (`alias`): its
//! bytes are copied into a memory file, the file is mapped writable somewhere, and mapped
//! read-execute over the text, privately, which replaces the old pages in one step. From then on a
//! store through the alias changes the text, with no system call, and no page is ever writable
//! where it is executable, but for a page that a debugger has copied (`shown`), for the moment of a
//! store. Memory that the caller mapped writable and executable by itself is written directly.
//!
//! Where the system refuses memory files, [`TextAccess::Mprotect`] makes the pages writable *and*
//! executable for the moment of each store. It is never chosen silently.
//!
//! # Text that goes away
//! An alias outlives the text it belongs to. A store to the site of a library that was unloaded
//! lands in memory nobody executes, so it can hurt neither the process nor a library mapped at the
//! same address later. [`forget`] ends an alias.
//!
//! # Fork
//! The pages behind an alias are shared with forked children. A child must not write through it
//! before [`unshare`] has given it pages of its own; until then stores fail with
//! [`Error::SharedWithParent`] (`fork` tells how a child is known). It takes no INT3 of its
//! parent's along: `unshare` puts the old bytes where a patch of the parent is under way. In text
//! whose pages the child does not share, `atfork` has done so before `fork` returned.

pub(crate) mod alias;
pub(crate) mod atfork;
mod debugger;
pub(crate) mod fork;
mod protect;
mod shown;
mod toggle_pair;

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, TryLockError};

use crate::protocol::INT3;
use crate::store::Quadword;
use crate::{Bytes, Error, FetchWindow, maps, site_table, store};
pub use atfork::follow as follow_forks;
use shown::Place;
pub use toggle_pair::{Form, TogglePair};
#[cfg(model)]
use wordpatch_model::environment;

/// How text is made writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TextAccess {
    /// Through a second, writable mapping of the same pages, which are mapped shared where they are
    /// executed: a debugger cannot set breakpoints there.
    Alias,
    /// By making the page writable and executable for the moment of the store, at the cost of two
    /// system calls.
    Mprotect,
    /// As [`TextAccess::Alias`], but the text is a private mapping, in which a debugger can set
    /// breakpoints: see `shown`. The default. Text in which one has, so that a page is the
    /// process's own, must stay mapped while patches of it are [outstanding](crate::start_patch).
    Private,
}

static ACCESS: AtomicU8 = AtomicU8::new(TextAccess::Private as u8);

/// Chooses how text is made writable, for text that was not patched before.
pub fn set_access(access: TextAccess) {
    ACCESS.store(access as u8, Ordering::Release);
}

/// How text is made writable now.
pub fn access() -> TextAccess {
    match ACCESS.load(Ordering::Acquire) {
        access if access == TextAccess::Mprotect as u8 => TextAccess::Mprotect,
        access if access == TextAccess::Private as u8 => TextAccess::Private,
        _ => TextAccess::Alias,
    }
}

/// How often text and its writable view are compared before a difference counts. A store of another
/// thread may fall between the two reads, and does so in every few of them where a site is toggled
/// as fast as a processor can.
const LOOKS: usize = 64;

/// One executable mapping that can be written.
pub(crate) struct TextMapping {
    range: Range<usize>,
    /// Start of the writable view of `range`; none when each store changes the protection.
    writable: Option<NonNull<u8>>,
    /// Whether the pages are a memory file of ours, so that a forked child shares them.
    copied: bool,
    /// Whether the text is a private mapping of that file.
    is_private: bool,
    /// Whether a forked child has its own copy of the pages from the first.
    private: bool,
    /// Whether places in it were resolved by others than who [prepares](preparing) it.
    is_given_out: bool,
}

thread_local! {
    static IS_PREPARING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, of which all places that it resolves are its own affair: a text in which nobody else
/// has resolved any can be [revived](revive).
pub fn preparing<R>(act: impl FnOnce() -> R) -> R {
    let before = IS_PREPARING.replace(true);
    let result = act();
    IS_PREPARING.set(before);
    result
}

/// Every mapping that was made writable and not forgotten.
static MAPPINGS: Mutex<Vec<TextMapping>> = Mutex::new(Vec::new());

// SAFETY: the pointer is an address in a mapping that any thread may write through the atomic store
// only.
unsafe impl Send for TextMapping {}

/// A place in text, with its writable view looked up once. Copies are cheap.
#[derive(Clone, Copy, Debug)]
pub struct TextRef {
    address: usize,
    writable: Option<NonNull<u8>>,
    copied: bool,
    is_private: bool,
    stays_mapped: bool,
}

// SAFETY: a `TextRef` gives access through atomic stores only.
unsafe impl Send for TextRef {}
// SAFETY: as above.
unsafe impl Sync for TextRef {}

impl TextRef {
    /// The `length` bytes of text at `address`, made writable if they are not yet. Takes a lock;
    /// the first call for a mapping copies it (about a millisecond for 4 MB), the executing threads
    /// go on meanwhile.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::NotExecutable`], [`Error::AliasRefused`].
    ///
    /// # Safety
    /// No other thread changes the mapping of these bytes (munmap, mremap, mprotect) during the
    /// call, and nothing but this crate writes text in it from now on. The mapping is what
    /// `/proc/self/maps` shows as one: anonymous pages that touch each other are, whoever has
    /// mapped them. Text of several owners needs a page of something else in between.
    pub unsafe fn resolve(address: usize, length: usize) -> Result<Self, Error> {
        #[cfg(model)]
        if environment::window().is_some() {
            return Ok(Self {
                address,
                writable: None,
                copied: false,
                is_private: false,
                stays_mapped: false,
            });
        }
        let wanted = address..address + length;
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

    /// The place `offset` bytes behind, in the same mapping.
    pub(crate) fn behind(&self, offset: usize) -> Self {
        let writable = self.writable.and_then(|view| NonNull::new(view.as_ptr().wrapping_add(offset)));
        Self { address: self.address + offset, writable, ..*self }
    }

    /// The same place, with the caller's promise that its text stays mapped. Where a debugger has
    /// copied a page, stores are then seen to at once, for the price of a load.
    ///
    /// # Safety
    /// The text must stay mapped, and nothing else be mapped there, for as long as the result, or
    /// what is made of it, is used.
    #[must_use]
    pub unsafe fn staying_mapped(self) -> Self {
        Self { stays_mapped: true, ..self }
    }

    /// The address at which the bytes are executed.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Where the byte at the address can be written: the same place for text that is writable where
    /// it is executed, none with [`TextAccess::Mprotect`]. For tools that try what the processor
    /// does with stores of their own; patches go through [`TextRef::compare_exchange`].
    pub fn writable_view(&self) -> Option<*mut u8> {
        self.writable.map(NonNull::as_ptr)
    }

    /// The `length` bytes (1 to 8) that stand `offset` bytes behind the address now.
    ///
    /// # Safety
    /// The bytes must belong to the mapping this place was resolved in, and with
    /// [`TextAccess::Mprotect`] still be mapped.
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

    /// Whether the `length` bytes of text differ from what the writable view shows, and something
    /// else was mapped there since.
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
            // SAFETY: the caller's obligation; the view outlives the text.
            (0..length).any(|i| unsafe { text.add(i).read_volatile() != view.add(i).read_volatile() })
        }) && !self.is_copied_page(length)
    }

    /// Whether the text is still that of the view: where they differ, somebody has copied a page.
    /// Allocates nothing.
    fn is_copied_page(&self, length: usize) -> bool {
        let Some(view) = self.writable.filter(|_| self.is_private) else { return false };
        let addresses = [view.addr().get(), self.address, self.address + length - 1];
        maps::files_at(addresses)
            .is_some_and(|[view, first, last]| view.is_some() && view == first && view == last)
    }

    /// Replaces `old` by `new`, `offset` bytes behind the address, by one atomic store inside
    /// `window`. It never allocates, and but for [`TextAccess::Mprotect`] it never blocks: a probe
    /// function or a signal handler may call it. With [`TextAccess::Private`], it enters the kernel
    /// to look at text that may be unmapped ([`TextRef::staying_mapped`]); where a debugger has
    /// copied the page, it blocks as with [`TextAccess::Mprotect`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] when `old` does not stand there, [`Error::SharedWithParent`] in a forked
    /// child before [`unshare`]; with [`TextAccess::Mprotect`], or on a copied page, also
    /// [`Error::Contended`] and [`Error::ProtectRefused`].
    ///
    /// # Panics
    /// When the bytes cross a boundary of `window`, or `old` and `new` differ in length.
    ///
    /// # Safety
    /// 1. The bytes must belong to the mapping this place was resolved in, and with
    ///    [`TextAccess::Mprotect`] still be mapped.
    /// 2. Every thread that executes `new`, or any mixture of old and new bytes outside `window`,
    ///    must run valid code.
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
        if self.copied && fork::is_unprepared_child() {
            return Err(Error::SharedWithParent { address });
        }
        match self.writable {
            // SAFETY: obligation 1; a writable view begins at a page boundary like the text it
            // shows.
            Some(writable) => unsafe {
                let view = writable.as_ptr().wrapping_add(offset);
                let stored = store::compare_exchange(window, view, old, new);
                if stored.is_ok() && self.is_private {
                    self.behind(offset).show(window, old, new)?;
                }
                stored
            },
            None => {
                let _writable = protect::PageGuard::new(address)?;
                let text = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: obligation 1; the guard makes the page writable, and a fetch window never
                // leaves its page.
                unsafe { store::compare_exchange(window, text, old, new) }
            }
        }
        .map_err(|found| Error::Mismatch { address, expected: *old, found })
    }
}

impl TextRef {
    /// These eight bytes in the view and in the text, where the text is a private mapping.
    fn private_place(&self, quadword: Quadword) -> Option<Place> {
        let view = self.writable.filter(|_| self.is_private)?;
        let start = view.as_ptr().wrapping_sub(quadword.back()).cast();
        Some(Place::new(quadword, start, self.address))
    }

    /// Sees to it that a store through the view, which was made, shows in the text.
    ///
    /// # Safety
    /// As [`TextRef::compare_exchange`].
    unsafe fn show(&self, window: FetchWindow, old: &Bytes, new: &Bytes) -> Result<(), Error> {
        let quadword = Quadword::of(window, self.address, old.len());
        let Some(place) = self.private_place(quadword) else { return Ok(()) };
        let (old, new) = (quadword.word(old), quadword.word(new));
        // SAFETY: what `staying_mapped` was promised.
        let shown = || unsafe { place.shown(self.stays_mapped) };
        // SAFETY: the view outlives the text.
        let is_in_view = |shown| unsafe { quadword.load(place.view) == shown };
        // Where another thread has stored since, the two differ for a moment only.
        if shown().is_none_or(|shown| shown == new) || (0..LOOKS).any(|_| shown().is_none_or(is_in_view)) {
            return Ok(());
        }
        // Other text may have been mapped there before the call: then the place is stale, and its
        // store shows nowhere.
        if !self.is_copied_page(1) {
            return Ok(());
        }
        // SAFETY: the text is mapped; the rest is the caller's obligation.
        unsafe { place.follow_store(old, new) }
    }

    /// Whether the text has an INT3 at the place that the view has not: a debugger's.
    pub(crate) fn has_breakpoint(&self) -> bool {
        let quadword = Quadword::of(FetchWindow::Bytes8, self.address, 1);
        let Some(place) = self.private_place(quadword) else { return false };
        let is_int3 = |_| {
            // SAFETY: what `staying_mapped` was promised.
            let shown = unsafe { place.shown(self.stays_mapped) };
            // SAFETY: the view outlives the text.
            let written = unsafe { quadword.load(place.view) };
            quadword.bytes(written)[0] != INT3 && shown.is_some_and(|word| quadword.bytes(word)[0] == INT3)
        };
        (0..LOOKS).all(is_int3)
    }

    /// Writes `bytes` at the place, with no atomicity at all.
    ///
    /// # Safety
    /// 1. As [`TextRef::compare_exchange`].
    /// 2. No thread executes these bytes meanwhile.
    unsafe fn put_back(&self, bytes: &Bytes) {
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

impl TextMapping {
    /// Makes the mapping around `wanted` writable.
    ///
    /// # Safety
    /// As [`TextRef::resolve`].
    unsafe fn new(wanted: &Range<usize>) -> Result<Self, Error> {
        let mapping = maps::mapping_at(wanted.start).ok_or(Error::NotMapped { address: wanted.start })?;
        let range = mapping.range.clone();
        if range.end < wanted.end {
            return Err(Error::NotMapped { address: range.end });
        }
        if !mapping.executable || !mapping.readable {
            return Err(Error::NotExecutable { address: wanted.start });
        }
        let private = !mapping.shared;
        let mut is_private = !mapping.writable && private && access() == TextAccess::Private;
        // Text that is one of our files already was forgotten while it was mapped: another file
        // would cut the earlier view off.
        let known = if mapping.is_ours && private && !mapping.writable {
            // SAFETY: views are emptied or moved with the caller's lock held, and only when the
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
            // A child inherits the guard of a page that is writable at the moment of the fork, but
            // not its holder.
            atfork::follow();
            (None, false)
        } else if mapping.shared {
            // SAFETY: the range is mapped, and stays so by the caller's obligation.
            (Some(unsafe { alias::duplicate_shared(&range)? }), mapping.is_ours)
        } else {
            fork::watch()?;
            // Before a child can share this text, and with it the sites that will be locked.
            site_table::reserve()?;
            // SAFETY: the range is mapped readable, and nobody else writes or remaps it by the
            // caller's obligation.
            (Some(unsafe { alias::replace_by_memory_file(&range, is_private)? }), true)
        };
        let is_given_out = !IS_PREPARING.get();
        Ok(Self { range, writable, copied, is_private, private: private && !copied, is_given_out })
    }

    fn contains(&self, wanted: &Range<usize>) -> bool {
        self.range.start <= wanted.start && wanted.end <= self.range.end
    }

    fn at(&self, address: usize) -> TextRef {
        let offset = address - self.range.start;
        TextRef {
            address,
            writable: self.writable.and_then(|w| NonNull::new(w.as_ptr().wrapping_add(offset))),
            copied: self.copied,
            is_private: self.is_private,
            stays_mapped: false,
        }
    }
}

/// Notes a text that has a writable view from the first: a memory file of ours.
pub(crate) fn register(range: Range<usize>, writable: NonNull<u8>) {
    let writable = Some(writable);
    let mapping =
        TextMapping { range, writable, copied: true, is_private: false, private: false, is_given_out: true };
    MAPPINGS.lock().unwrap_or_else(|e| e.into_inner()).push(mapping);
}

/// Drops what is known about mappings that overlap `range`, after the text there was unmapped or
/// replaced. Places that were resolved in them stay valid to use: their stores reach memory that
/// nobody executes.
pub fn forget(range: &Range<usize>) {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    mappings.retain(|m| m.range.end <= range.start || range.end <= m.range.start);
}

impl TextRef {
    /// Drops what is known about the mapping that this place was resolved in, where [something
    /// else](TextRef::is_stale) is mapped now. Unlike [`forget`], leaves alone what was resolved
    /// there since.
    pub fn forget_text(&self) {
        let wanted = self.address..self.address + 1;
        let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
        mappings.retain(|m| !m.contains(&wanted) || m.at(self.address).writable != self.writable);
    }
}

/// What is left of the writable views of texts that were released: where each text was, and its
/// view.
static RELEASED: Mutex<Vec<(Range<usize>, View)>> = Mutex::new(Vec::new());

/// Start of a writable view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View(NonNull<u8>);

// SAFETY: an address; see `TextMapping`.
unsafe impl Send for View {}

/// Does what [`forget`] does for text that is gone as a whole, and gives its pages and their file
/// back. What is left is address space, empty memory that places resolved in the text are still
/// harmless to use with; [`revive`] makes use of it.
///
/// # Safety
/// Nothing of the mappings that overlap `range` is mapped at its old address any more.
pub unsafe fn release(range: &Range<usize>) {
    let mut mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let gone = |m: &mut TextMapping| range.start < m.range.end && m.range.start < range.end;
    for mapping in mappings.extract_if(.., gone).filter(|mapping| mapping.copied) {
        let view = mapping.writable.expect("a copied mapping has a writable view");
        // SAFETY: the view is ours, and the caller says that nobody executes its pages.
        unsafe { alias::empty(view, mapping.range.len()) };
        RELEASED.lock().unwrap_or_else(|e| e.into_inner()).push((mapping.range, View(view)));
    }
}

/// For text that is mapped anew where the text of `old`, a place in it, was before it was released:
/// moves its writable view to where the old one was. Places of then are good again, and those of
/// now must not be used any more. Says whether there was such a text, of the same extent, and
/// nobody has resolved places in the new one but in [`preparing`]; nothing is changed otherwise.
///
/// # Safety
/// 1. The text is mapped, and no [`TextRef`] or [`TogglePair`] that was resolved in it in
///    [`preparing`] is in use or used afterwards.
/// 2. What uses of the old places change must be right in the new text.
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
    // SAFETY: both views are ours and so long; the caller's obligations.
    if unsafe { alias::move_view(now, place, mapping.range.len()) }.is_err() {
        return false;
    }
    released.swap_remove(index);
    mapping.writable = Some(place);
    true
}

/// Gives a forked child text pages of its own, so that patches of parent and child no longer reach
/// each other. To be called in the child; does nothing where nothing is shared. Blocks for the copy
/// of the patched mappings.
///
/// Sites that the parent was patching hold their old instruction in the child. A patch that the
/// parent had begun is not the child's to finish: its [`Outstanding`](crate::Outstanding) says
/// [`Error::Forked`].
///
/// A child that was forked before its parent's first patch across a fetch window inherits no
/// SIGTRAP handler: it must call this before the parent makes that patch, or is killed when it
/// executes the parent's INT3.
///
/// # Errors
/// [`Error::AliasRefused`], or [`Error::Contended`] when the child was made without `fork`'s
/// handlers while another thread of the parent was looking text up: the child then cannot patch.
///
/// # Safety
/// No thread of the child uses a [`TextRef`] or unmaps text during the call.
pub unsafe fn unshare() -> Result<(), Error> {
    atfork::in_child_at_last();
    // Held for ever, if a raw `clone` was made while another thread of the parent was at work.
    let mappings = match MAPPINGS.try_lock() {
        Ok(mappings) => mappings,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(Error::Contended { address: 0 }),
    };
    if !fork::is_unprepared_child() {
        return Ok(());
    }
    let files = alias::Files::now();
    for mapping in mappings.iter().filter(|m| m.copied) {
        // SAFETY: the caller's obligation.
        unsafe { unshare_mapping(mapping, files.as_ref())? };
    }
    // Behind the text: a thread that has met an INT3 of the parent finds its record, or that the
    // INT3 is gone.
    site_table::renew_in_child()?;
    fork::child_is_prepared();
    Ok(())
}

/// Gives this process, a forked child, pages of its own for one mapping.
///
/// # Safety
/// As [`unshare`].
unsafe fn unshare_mapping(mapping: &TextMapping, files: Option<&alias::Files>) -> Result<(), Error> {
    let writable = mapping.writable.expect("a copied mapping has a writable view");
    // Of text that was unmapped, something else may have the place: stores through its view reach
    // nobody.
    let shown = match files {
        Some(files) => files.shown(&mapping.range, writable),
        None => vec![mapping.range.clone()],
    };
    if shown.is_empty() {
        return Ok(());
    }
    // SAFETY: the writable view and these parts are mapped (the child inherits them), and unused
    // meanwhile by the caller's obligation.
    unsafe { alias::replace_in_child(&mapping.range, writable, &shown, mapping.is_private) }
}

/// In a forked child: gives it all pages of texts in which a debugger has copied some. Of a site
/// that crosses into a copied page, the child would see half of its parent's patches; and in a
/// copy, it would keep their INT3s.
///
/// # Safety
/// As [`unshare`].
pub(crate) unsafe fn unshare_where_copied(mappings: &[TextMapping]) {
    // Stores inside a window are seen as a whole or not at all.
    if !site_table::has_records() {
        return;
    }
    let is_copied = |m: &&TextMapping| m.is_private && !debugger::copied_pages(&m.range).is_empty();
    let mut copied = mappings.iter().filter(is_copied).peekable();
    let files = copied.peek().and_then(|_| alias::Files::now());
    for mapping in copied {
        // SAFETY: the caller's obligation. A refusal is one of memory: the child is as it was.
        let _ = unsafe { unshare_mapping(mapping, files.as_ref()) };
    }
}

/// Puts the old bytes of each of these sites back, in text of which this process has pages of its
/// own; the others are left to [`unshare`]. For a forked child, of the sites that were locked when
/// its parent forked.
///
/// # Safety
/// No other thread of this process writes text; the old bytes are those that the patches under way
/// found.
pub(crate) unsafe fn roll_back_own_pages(mappings: &[TextMapping], sites: &[(usize, Bytes)]) {
    // Its holder, if any, was a thread of the parent.
    protect::release_in_child();
    for (site, old) in sites {
        let wanted = *site..site + old.len();
        let Some(mapping) = mappings.iter().find(|m| m.contains(&wanted) && m.private) else { continue };
        let place = mapping.at(*site);
        // SAFETY: the caller's obligations; nobody executes the site while its bytes are put back.
        unsafe { place.put_back(old) };
    }
}

/// Whether the text of all these places, so many bytes each, is what was written there. Unlike
/// [`TextRef::is_stale`], asks the kernel for the bytes, a thousand places at a time, so the text
/// need not be mapped. Text that is written where it is executed cannot be told.
pub(crate) fn are_there(places: &[(TextRef, usize)]) -> bool {
    /// As many as the kernel takes in one call (UIO_MAXIOV).
    const AT_ONCE: usize = 1024;
    let can_be_told = |(place, _): &&(TextRef, usize)| {
        place.writable.is_some_and(|view| view.addr().get() != place.address)
    };
    let places: Vec<&(TextRef, usize)> = places.iter().filter(can_be_told).collect();
    let are_there = |places: &[&(TextRef, usize)]| {
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
        // reading.
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
        if read < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
            // The system call is refused: nothing can be told.
            return true;
        }
        let mut rest = &found[..];
        let is_same = |(place, length): &&(TextRef, usize)| {
            let (text, behind) = rest.split_at(*length);
            rest = behind;
            // SAFETY: the view outlives the text.
            text == &*unsafe { place.read(0, *length) } || place.is_copied_page(*length)
        };
        read == found.len() as isize && places.iter().all(is_same)
    };
    places.chunks(AT_ONCE).all(|places| (0..LOOKS).any(|_| are_there(places)))
}

/// The pages in `range` that a debugger has copied, by address: stores to text there show only
/// after [`TogglePair::settle`], unless it was promised to stay mapped. Reads the page table: some
/// microseconds for a megabyte.
pub fn copied_pages(range: &Range<usize>) -> Vec<usize> {
    let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let overlap = |m: &TextMapping| m.range.start.max(range.start)..m.range.end.min(range.end);
    let private = mappings.iter().filter(|m| m.is_private).map(overlap).filter(|range| !range.is_empty());
    private.flat_map(|range| debugger::copied_pages(&range)).collect()
}

/// How many bytes [`unshare`] copies; 0 when it would not copy at all.
pub fn copied_bytes() -> usize {
    let Ok(mappings) = MAPPINGS.try_lock() else { return 0 };
    mappings.iter().filter(|mapping| mapping.copied).map(|mapping| mapping.range.len()).sum()
}

/// Whether this process is a forked child whose text is still shared with its parent.
pub fn is_shared_with_parent() -> bool {
    fork::is_unprepared_child()
}
