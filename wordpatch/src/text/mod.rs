//! Write access to text that is mapped read-execute.
//!
//! # The algorithm
//! The first patch inside a mapping creates a writable alias of the entire mapping (`alias`): its
//! bytes are copied into a memory file, and the file is mapped twice: writable at another address,
//! and read-execute over the text, privately, which replaces the old pages in one step. From then
//! on, a store through the alias changes the text without a system call. No page is ever writable
//! where it is executable, except a page that a debugger has copied (`shown`), during a store.
//! Memory that the caller has mapped writable and executable is written directly.
//!
//! If the system refuses memory files, the caller can choose [`TextAccess::Mprotect`], which makes
//! the pages writable *and* executable during each store. It is never chosen automatically.
//!
//! # Text that is unmapped
//! An alias outlives the text it belongs to. A store to the site of a library that was unloaded
//! goes to memory that is not executed, so it can harm neither the process nor a library mapped at
//! the same address later. [`forget`] and [`release`] end an alias (`gone`). This does not hold for
//! text without an alias: with [`TextAccess::Mprotect`], or mapped writable and executable.
//!
//! # Fork
//! The pages behind an alias are shared with forked children. A child must not write through it
//! before [`unshare`] has given it its own pages; until then stores fail with
//! [`Error::SharedWithParent`] (`fork` detects children). The child inherits no INT3 of its parent:
//! `unshare` restores the old bytes of the parent's in-flight patches. In text whose pages the
//! child does not share, `atfork` has done so before `fork` returned.
//!
//! Text that the caller has mapped shared, as generators of code do that map their pages twice,
//! cannot be separated without disconnecting the caller's other mapping of it: `unshare` refuses,
//! and the child's stores keep failing.
//!
//! A parent can leave its pages to the children that it has forked: those of generated code
//! ([`leave_to_children`]), or of other text while threads store into it
//! ([`leave_text_to_children`], `moves`). Its later patches do not reach those children.

pub(crate) mod alias;
pub(crate) mod atfork;
mod debugger;
pub(crate) mod fork;
mod gone;
mod moves;
mod protect;
mod reading;
mod shown;
mod toggle_pair;

use std::cell::Cell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use crate::protocol::INT3;
use crate::store::Quadword;
use crate::{Bytes, Error, FetchWindow, maps, site_table, store};
pub use atfork::{NoForks, follow as follow_forks, no_forks};
pub use gone::{forget, release, revive};
pub use moves::leave_text_to_children;
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
    /// By making the page writable and executable during the store, with the thread's signals
    /// blocked, at the cost of four system calls; five if the text may be unmapped
    /// ([`TextRef::staying_mapped`]). If it is unmapped
    /// between the first of them and the last, whatever is mapped there next may lose its
    /// protection.
    Mprotect,
    /// As [`TextAccess::Alias`], but the text is a private mapping, in which a debugger can set
    /// breakpoints: see `shown`. The default. Text in which a debugger has set one, and so copied a
    /// page, must stay mapped while patches of it are [outstanding](crate::start_patch).
    Private,
}

static ACCESS: AtomicU8 = AtomicU8::new(TextAccess::Private as u8);

/// Sets how text is made writable. Applies to text that was not patched before.
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

/// Number of comparisons of text and its writable alias that must all differ before a difference
/// counts. A store of another thread may fall between the two reads, and often does if a site is
/// toggled at the processor's full speed.
const LOOKS: usize = 64;

/// One executable mapping that can be written.
pub(crate) struct TextMapping {
    range: Range<usize>,
    /// Start of the writable alias of `range`; none if each store changes the protection.
    writable: Option<NonNull<u8>>,
    /// Whether the pages are a memory file of ours, so that a forked child shares them.
    copied: bool,
    /// Whether the caller has mapped the text shared, so that a forked child shares it for good.
    stays_shared: bool,
    /// Whether the text is a private mapping of that file.
    is_private: bool,
    /// Whether `fork` gives a child its own copy of the pages.
    is_copied_by_fork: bool,
    /// Whether addresses in it were resolved outside [`preparing`].
    is_given_out: bool,
    /// Of [generated code](crate::code_memory): the number of bytes, from its start, that were
    /// written.
    written: Option<Arc<AtomicUsize>>,
    /// [`forks`] when this process got the pages: children that were forked later share them.
    forks: u32,
}

thread_local! {
    static IS_PREPARING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, which keeps the references that it resolves to itself: a text in which no others
/// have been resolved can be [revived](revive).
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

/// All mappings that were made writable and not forgotten.
static MAPPINGS: Mutex<Vec<TextMapping>> = Mutex::new(Vec::new());

// SAFETY: the pointer is an address in a mapping that any thread may write, by the atomic store
// only.
unsafe impl Send for TextMapping {}

/// A location in text, with its writable alias looked up in advance. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRef {
    address: usize,
    writable: Option<NonNull<u8>>,
    /// Whether a forked child shares the text.
    is_shared: bool,
    is_private: bool,
    stays_mapped: bool,
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
    /// where it is executed, none with [`TextAccess::Mprotect`]. For tools that test the processor
    /// with stores of their own; patches go through [`TextRef::compare_exchange`].
    pub fn writable_view(&self) -> Option<*mut u8> {
        self.writable.map(NonNull::as_ptr)
    }

    /// Reads `length` bytes (1 to 8), `offset` bytes after the address.
    ///
    /// # Safety
    /// The bytes must belong to the mapping in which this location was resolved, and with
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
    fn is_copied_page(&self, length: usize) -> bool {
        let Some(view) = self.writable.filter(|_| self.is_private) else { return false };
        let addresses = [view.addr().get(), self.address, self.address + length - 1];
        maps::files_at(addresses)
            .is_some_and(|[view, first, last]| view.is_some() && view == first && view == last)
    }

    /// Replaces `old` by `new`, `offset` bytes after the address, by one atomic store inside
    /// `window`. Never allocates; probe functions and signal handlers may call it.
    ///
    /// It blocks, for ten seconds at most ([`Error::Contended`]), and enters the kernel
    /// 1. with [`TextAccess::Mprotect`], and in a page that a debugger has copied: four system
    ///    calls, after those of other threads that do the same;
    /// 2. while another thread moves text to other pages ([`leave_text_to_children`]), which it
    ///    does only after a fork: until the end of the move, a millisecond for 4 MB of text.
    ///
    /// With [`TextAccess::Private`], it also reads text that may be unmapped
    /// ([`TextRef::staying_mapped`]) by a system call. In all other cases it does neither.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the bytes are not `old`, [`Error::SharedWithParent`] in a forked
    /// child before [`unshare`], [`Error::Contended`]; with [`TextAccess::Mprotect`], or on a
    /// copied page, also [`Error::ProtectRefused`], and [`Error::NotMapped`] if the text was found
    /// unmapped.
    ///
    /// # Panics
    /// If the bytes cross a boundary of `window`, or `old` and `new` differ in length.
    ///
    /// # Safety
    /// 1. The bytes must belong to the mapping in which this location was resolved, and with
    ///    [`TextAccess::Mprotect`] still be mapped.
    /// 2. Every thread that executes `new`, or any mixture of old and new bytes outside `window`,
    ///    must run valid code.
    /// 3. With [`TextAccess::Private`], text in a page that a debugger has copied must not be
    ///    unmapped during the call. (Text that is already unmapped is left unchanged.)
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

    fn contains(&self, wanted: &Range<usize>) -> bool {
        self.range.start <= wanted.start && wanted.end <= self.range.end
    }

    /// Number of bytes, from its start, that may have been written: whole pages.
    fn written_bytes(&self) -> usize {
        let length = self.range.len();
        let written = self.written.as_ref().map_or(length, |written| written.load(Ordering::Acquire));
        written.next_multiple_of(4096).min(length)
    }

    fn at(&self, address: usize) -> TextRef {
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
/// No thread of the child uses a [`TextRef`] or unmaps text during the call.
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

/// Gives this process new pages for parts of its [generated code](crate::code_memory), with the
/// same bytes. Children that it forked before keep the old pages, which no longer change, and
/// execute the code as it was then. Blocks while the code is copied.
///
/// # Errors
/// [`Error::AliasRefused`]; [`Error::SharedWithParent`] in a forked child before [`unshare`]. A
/// part of the code may have new pages.
///
/// # Safety
/// The caller has [`NoForks`]. During the call, no other thread writes the code or drops its
/// memory; no instruction there is being [patched](crate::patch).
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
pub(crate) unsafe fn unshare_where_copied(mappings: &[TextMapping]) {
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
pub(crate) unsafe fn roll_back_own_pages(mappings: &[TextMapping], sites: &[(usize, Bytes)]) {
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

/// The addresses of pages in `range` that a debugger has copied: stores to text there become
/// visible only after [`TogglePair::settle`], unless it was marked as staying mapped. Reads the
/// page table, which takes a few microseconds per megabyte.
pub fn copied_pages(range: &Range<usize>) -> Vec<usize> {
    let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
    let overlap = |m: &TextMapping| m.range.start.max(range.start)..m.range.end.min(range.end);
    let private = mappings.iter().filter(|m| m.is_private).map(overlap).filter(|range| !range.is_empty());
    private.flat_map(|range| debugger::copied_pages(&range)).collect()
}

/// Number of bytes that [`unshare`] copies; 0 if it would not copy anything, or if another thread
/// is just resolving text. Does not block.
pub fn copied_bytes() -> usize {
    let Ok(mappings) = MAPPINGS.try_lock() else { return 0 };
    mappings.iter().filter(|mapping| mapping.copied).map(TextMapping::written_bytes).sum()
}

/// Number of times that this process and its ancestors have forked, as far as `fork`'s handlers
/// know ([`follow_forks`]).
pub fn forks() -> u32 {
    fork::forks()
}

/// Executes `step`, during which no thread forks: `fork` waits until it is done. It must not patch.
pub fn without_forks<T>(step: impl FnOnce() -> T) -> T {
    let _no_forks = no_forks();
    step()
}

/// Whether this process is a forked child whose text is still shared with its parent.
pub fn is_shared_with_parent() -> bool {
    fork::is_unprepared_child()
}
