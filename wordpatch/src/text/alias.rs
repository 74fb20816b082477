//! Two mappings of the same pages: read-execute where the code is executed, read-write for our
//! stores.
//!
//! # Write order of [`replace_by_own_pages`]
//! 1. A memory file of the mapping's size is created and mapped read-write: the alias.
//! 2. The text is copied into it.
//! 3. The file is mapped *privately*, with the text's protection, at another address, and its pages
//!    are faulted in.
//! 4. `mremap` moves that mapping onto the text. The kernel holds the address space's lock during
//!    the entire step, so a thread that faults during the step waits and then finds the new pages,
//!    which contain the same bytes.
//!
//! # Debuggers
//! A debugger writes breakpoints into read-only text by copying the page, which the kernel refuses
//! for a shared mapping of a file. In a private one, stores through the alias are visible in a page
//! until it is copied; `shown` handles that case. A breakpoint that was set before step 1 is in a
//! page that was copied already: it is not written to the file, which forked children and decoders
//! read, but to the new text before step 4.
//!
//! # Limits of file sizes
//! A memory file is subject to the process's limit of file sizes (`ulimit -f`). Text that is larger
//! gets shared anonymous memory, which is not limited. It has no file descriptor, and so cannot be
//! mapped privately: a debugger cannot set breakpoints in it.
//!
//! Rejected: `/proc/self/mem` (3,000 ticks for each store, and no atomicity), and mprotect to
//! writable without execute (executing threads would fault).

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, mremap, munmap};
use nix::sys::resource::{Resource, getrlimit};

use super::debugger;
use crate::maps::{self, FileId, Mapping};
use crate::protocol::INT3;
use crate::{Bytes, Error, MAX_PATCH, site_table};

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
const READ_EXECUTE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_EXEC);

fn refused(address: usize, errno: Errno) -> Error {
    let source = match errno {
        Errno::EFBIG => io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the text has breakpoints, and is larger than the limit of file sizes, ulimit -f",
        ),
        errno => errno.into(),
    };
    Error::AliasRefused { address, source }
}

/// New pages for a text, with their writable alias.
struct Pages {
    writable: NonNull<libc::c_void>,
    /// None for shared anonymous memory.
    file: Option<OwnedFd>,
}

impl Pages {
    /// Maps `length` bytes: a memory file, or shared anonymous memory if the process's limit of
    /// file sizes forbids such a file.
    fn new(length: usize) -> nix::Result<Self> {
        if exceeds_file_limit(length) {
            let writable = reserve_shared(length)?.cast();
            if let Some(file) = maps::mapping_at(writable.addr().get()).and_then(|pages| pages.file) {
                ANONYMOUS.lock().unwrap_or_else(|e| e.into_inner()).push(file);
            }
            return Ok(Self { writable, file: None });
        }
        let file = memory_file(length)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        Ok(Self { writable: map(&file, 0, length, READ_WRITE, flags)?, file: Some(file) })
    }

    /// Maps the pages from `offset` on, read-execute; a private mapping gets these breakpoints
    /// (offsets from its start) in copied pages. Anonymous memory is always mapped shared, and
    /// cannot hold breakpoints.
    fn map_text(
        &self,
        offset: usize,
        length: usize,
        is_private: bool,
        breakpoints: &[usize],
    ) -> nix::Result<NonNull<libc::c_void>> {
        let Some(file) = &self.file else {
            if !breakpoints.is_empty() {
                return Err(Errno::EFBIG);
            }
            // SAFETY: inside the pages, which are mapped shared.
            return unsafe { duplicate(self.writable.byte_add(offset), length, READ_EXECUTE) }
                .map(NonNull::cast);
        };
        let sharing = if is_private { MapFlags::MAP_PRIVATE } else { MapFlags::MAP_SHARED };
        if breakpoints.is_empty() {
            return map(file, offset, length, READ_EXECUTE, sharing | MapFlags::MAP_POPULATE);
        }
        let text = map(file, offset, length, READ_WRITE, sharing)?;
        for at in breakpoints {
            // SAFETY: inside the mapping, which is ours and not shared with anybody.
            unsafe { text.cast::<u8>().as_ptr().add(*at).write(INT3) };
        }
        // SAFETY: as above; whole pages.
        if let Err(errno) = unsafe { mprotect(text, length, READ_EXECUTE) } {
            // SAFETY: as above.
            let _ = unsafe { munmap(text, length) };
            return Err(errno);
        }
        Ok(text)
    }

    /// Moves a read-execute mapping of the pages, from `offset` on, over the text at `range`, with
    /// a debugger's `breakpoints` (addresses).
    ///
    /// # Safety
    /// The pages must hold the bytes that threads may execute at `range`.
    unsafe fn map_over_text(
        &self,
        offset: usize,
        range: &Range<usize>,
        is_private: bool,
        breakpoints: &[usize],
    ) -> nix::Result<()> {
        let inside = breakpoints.iter().filter(|at| range.contains(at)).map(|at| at - range.start);
        let executable = self.map_text(offset, range.len(), is_private, &inside.collect::<Vec<_>>())?;
        let text = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start));
        // SAFETY: `executable` is ours; `range` gets pages with the same bytes by the caller's
        // obligation.
        let moved = unsafe {
            mremap(
                executable,
                range.len(),
                range.len(),
                MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED,
                text,
            )
        };
        if moved.is_err() {
            // SAFETY: the mapping is ours and not in use.
            let _ = unsafe { munmap(executable, range.len()) };
        }
        moved.map(drop)
    }
}

/// The shared anonymous memory of texts, which its name does not identify. Used with the lock of
/// the mappings held.
static ANONYMOUS: Mutex<Vec<FileId>> = Mutex::new(Vec::new());

/// Whether the pages of this mapping were made by [`replace_by_own_pages`], so that a forked child
/// must replace them.
pub(super) fn is_of_own_pages(mapping: &Mapping) -> bool {
    let is_anonymous = |file| ANONYMOUS.lock().unwrap_or_else(|e| e.into_inner()).contains(&file);
    mapping.is_ours || mapping.file.is_some_and(is_anonymous)
}

/// Whether the process may not make a file of this size: the kernel would send SIGXFSZ, which by
/// default ends the process.
fn exceeds_file_limit(length: usize) -> bool {
    getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| length as u64 > limit)
}

/// A memory file of `length` bytes that may be mapped executable.
fn memory_file(length: usize) -> nix::Result<OwnedFd> {
    // Kernels from 6.3 on expect a flag for files that may be executed; older ones do not know it.
    let file =
        memfd_create(maps::MEMORY_FILE, MFdFlags::MFD_CLOEXEC | MFdFlags::from_bits_retain(libc::MFD_EXEC))
            .or_else(|_| memfd_create(maps::MEMORY_FILE, MFdFlags::MFD_CLOEXEC))?;
    nix::unistd::ftruncate(&file, length as libc::off_t)?;
    Ok(file)
}

/// Maps `length` bytes of the file, from `offset` on, at any address.
fn map(
    file: &OwnedFd,
    offset: usize,
    length: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> nix::Result<NonNull<libc::c_void>> {
    let length = length.try_into().map_err(|_| Errno::EINVAL)?;
    // SAFETY: a new mapping at an address that the kernel chooses.
    unsafe { mmap(None, length, protection, flags, file.as_fd(), offset as libc::off_t) }
}

/// Reserves read-write memory whose pages [`map_executable`] can map a second time. Pages are
/// allocated when they are written.
///
/// This is shared anonymous memory, not a memory file, because profilers look up names of generated
/// code only for mappings that look anonymous.
pub(crate) fn reserve_shared(length: usize) -> nix::Result<NonNull<u8>> {
    let length = length.try_into().map_err(|_| Errno::EINVAL)?;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    unsafe { mmap_anonymous(None, length, READ_WRITE, flags) }.map(NonNull::cast)
}

/// Maps the first `length` bytes of shared memory a second time, read-execute.
///
/// # Safety
/// `writable` must be the start of such a mapping, at least `length` bytes long.
pub(crate) unsafe fn map_executable(writable: NonNull<u8>, length: usize) -> nix::Result<NonNull<u8>> {
    // SAFETY: the caller's obligation.
    unsafe { duplicate(writable.cast(), length, READ_EXECUTE) }
}

/// As [`map_executable`], over a mapping of the caller.
///
/// # Safety
/// As [`map_executable`]; `place` must be the start of a mapping of `length` bytes that the caller
/// owns and that is not in use. The caller still owns it afterwards.
pub(crate) unsafe fn map_executable_at(
    writable: NonNull<u8>,
    length: usize,
    place: NonNull<u8>,
) -> nix::Result<()> {
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: with an old size of zero, nothing is unmapped except what is at `place`, which the
    // caller owns.
    let copy = unsafe { mremap(writable.cast(), 0, length, flags, Some(place.cast())) }?;
    // SAFETY: the copy is not in use yet.
    unsafe { mprotect(copy, length, READ_EXECUTE) }
}

/// As [`map_executable_at`], while threads may be executing the mapping at `place`: they see either
/// its pages or the new ones, and never none.
///
/// # Safety
/// As [`map_executable`]; `place` must be the start of a mapping of `length` bytes that the caller
/// owns, and the new pages must hold the bytes that threads may execute there.
pub(crate) unsafe fn map_executable_over(
    writable: NonNull<u8>,
    length: usize,
    place: NonNull<u8>,
) -> nix::Result<()> {
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the caller's obligations. The mapping is complete before it is moved.
    unsafe {
        let executable = duplicate(writable.cast(), length, READ_EXECUTE)?;
        let moved = mremap(executable.cast(), length, length, flags, Some(place.cast()));
        if moved.is_err() {
            let _ = munmap(executable.cast(), length);
        }
        moved.map(drop)
    }
}

/// Maps `length` bytes of a file, from `offset` on, read-execute, over a mapping of the caller.
/// Shared: the system then lets no debugger write to it, which would give the page other bytes than
/// the file has.
///
/// # Safety
/// `place` must be the start of a mapping of `length` bytes that the caller owns and that is not in
/// use. The caller still owns it afterwards.
pub(crate) unsafe fn map_file_at(
    file: impl AsFd,
    offset: u64,
    length: usize,
    place: NonNull<u8>,
) -> nix::Result<()> {
    let (address, size) = (place.addr(), length.try_into().map_err(|_| Errno::EINVAL)?);
    let offset = offset.try_into().map_err(|_| Errno::EINVAL)?;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: the caller's obligation.
    unsafe { mmap(Some(address), size, READ_EXECUTE, flags, file, offset) }.map(drop)
}

/// Number of consecutive reads that must agree before bytes count as not being written. With two, a
/// site that is toggled at a processor's full speed reads torn in the same way twice every few
/// thousand times.
const AGREEING_READS: usize = 16;

/// Reads until [`AGREEING_READS`] consecutive reads return the same.
fn settled<T: PartialEq>(mut read: impl FnMut() -> T) -> T {
    let mut seen = read();
    let mut agreeing = 1;
    while agreeing < AGREEING_READS {
        let again = read();
        agreeing = if again == seen { agreeing + 1 } else { 1 };
        seen = again;
    }
    seen
}

/// A cache line of text.
#[derive(Clone, Copy)]
struct Line([u64; 8]);

impl PartialEq for Line {
    /// Without branches or a call: lines are compared [`AGREEING_READS`] times.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (one, other)| differences | (one ^ other)) == 0
    }
}

/// Copies `length` bytes of text that another process may be patching through the same pages: each
/// cache line is read until it is settled, so that no partial store is copied.
///
/// # Safety
/// Both ranges must be mapped, page-aligned, disjoint, `from` readable and `to` writable.
unsafe fn copy_lines(from: *const u8, to: *mut u8, length: usize) {
    for offset in (0..length).step_by(size_of::<Line>()) {
        // SAFETY: inside the mapped ranges, and aligned because they are.
        unsafe {
            let line = from.add(offset).cast::<Line>();
            to.add(offset).cast::<Line>().write(settled(|| line.read_volatile()));
        }
    }
}

/// Reads up to eight bytes that another process may be writing, until they are settled.
///
/// # Safety
/// They must be mapped.
unsafe fn read_settled(start: *const u8, length: usize) -> Bytes {
    let bytes = settled(|| {
        let mut bytes = [0; MAX_PATCH];
        for (i, byte) in bytes[..length].iter_mut().enumerate() {
            // SAFETY: the caller's obligation.
            *byte = unsafe { start.add(i).read_volatile() };
        }
        bytes
    });
    Bytes::new(&bytes[..length]).expect("1 to 8 bytes")
}

/// Replaces the private mapping at `range` by one of new pages with the same bytes. Returns their
/// writable alias, and whether the new mapping is private.
///
/// # Safety
/// `range` must be a complete mapping, readable, that no other code writes or remaps during the
/// call.
pub(super) unsafe fn replace_by_own_pages(
    range: &Range<usize>,
    is_private: bool,
) -> Result<(NonNull<u8>, bool), Error> {
    let refused = |errno| refused(range.start, errno);
    let pages = Pages::new(range.len()).map_err(refused)?;
    let writable = pages.writable;
    // SAFETY: `range` is readable by the caller's obligation, `writable` is new and as long; both
    // begin at a page.
    unsafe {
        copy_lines(std::ptr::with_exposed_provenance(range.start), writable.as_ptr().cast(), range.len())
    };
    // Without a debugger, an INT3 is a uprobe's. The kernel handles those in mappings of the probed
    // file only: in ours, it would send the signal to the program.
    let is_traced = debugger::is_traced();
    let breakpoints =
        if is_private || !is_traced { debugger::breakpoints_in_file_text(range) } else { Vec::new() };
    for (at, byte) in &breakpoints {
        // SAFETY: inside the writable alias, which is not in use yet.
        unsafe { writable.cast::<u8>().as_ptr().add(at - range.start).write(*byte) };
    }
    let addresses: Vec<usize> = breakpoints.into_iter().map(|(at, _)| at).filter(|_| is_traced).collect();
    // SAFETY: the pages hold a copy of the text, which has not been changed since.
    if let Err(errno) = unsafe { pages.map_over_text(0, range, is_private, &addresses) } {
        // SAFETY: the mapping is ours and not in use.
        let _ = unsafe { munmap(writable, range.len()) };
        return Err(refused(errno));
    }
    Ok((writable.cast(), is_private && pages.file.is_some()))
}

/// Copies the first `length` bytes of the text at `range`, which has this alias. The parent of a
/// forked child may be patching it: its INT3s, and the back parts after them, are left out. Returns
/// the sites that have been patched.
///
/// # Safety
/// Alias and copy must be mapped, the alias as long as `range`; the copy is not in use.
unsafe fn copy_text(
    range: &Range<usize>,
    alias: NonNull<u8>,
    copy: NonNull<u8>,
    length: usize,
) -> Vec<Range<usize>> {
    // SAFETY: the caller's obligation.
    unsafe { copy_lines(alias.as_ptr(), copy.as_ptr(), length) };
    let shared = |site: usize, length: usize| {
        let start = alias.as_ptr().cast_const().wrapping_add(site - range.start);
        // SAFETY: a patched site lies entirely in its mapping.
        unsafe { read_settled(start, length) }
    };
    let mut sites = Vec::new();
    site_table::settled(range, shared, |site, bytes| {
        sites.push(site..site + bytes.len());
        let start = copy.as_ptr().wrapping_add(site - range.start);
        // SAFETY: as above; the copy is not in use yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    });
    sites
}

/// Maps new pages at the addresses of both generated code and its alias, as [`reserve_shared`]
/// does. The first `written` bytes are copied; the rest is zero.
///
/// # Safety
/// Both must be mapped, and not used by other threads of this process, except for execution.
pub(super) unsafe fn replace_generated(
    range: &Range<usize>,
    writable: NonNull<u8>,
    written: usize,
) -> Result<(), Error> {
    let refused = |errno| refused(range.start, errno);
    let length = range.len();
    assert!(written <= length);
    let copy = reserve_shared(length).map_err(refused)?;
    let text = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)).expect("mapped");
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: of the new pages and the old ones, nothing is in use but the text, whose bytes are
    // the same in both. The executable mapping is complete before it replaces the text.
    let replaced = unsafe {
        copy_text(range, writable, copy, written);
        let over_text = |alias| map_executable_over(alias, length, text);
        over_text(copy).and_then(|_| {
            let moved = mremap(copy.cast(), length, length, flags, Some(writable.cast()));
            // Text and alias are of the same pages again.
            if moved.is_err() {
                let _ = over_text(writable);
            }
            moved
        })
    };
    if replaced.is_err() {
        // SAFETY: the mapping is ours, and has not been moved.
        let _ = unsafe { munmap(copy.cast(), length) };
    }
    replaced.map(drop).map_err(refused)
}

/// Maps, in a forked child, new pages at the addresses of both the text and its alias. Only
/// the parts of the text in `shown` are still mapped, and are replaced.
///
/// # Safety
/// The writable alias and the parts must be mapped, and not used by other threads of this process,
/// except for execution.
pub(super) unsafe fn replace_in_child(
    range: &Range<usize>,
    writable: NonNull<u8>,
    shown: &[Range<usize>],
    is_private: bool,
) -> Result<(), Error> {
    let refused = |errno| refused(range.start, errno);
    let pages = Pages::new(range.len()).map_err(refused)?;
    let copy = pages.writable;
    // SAFETY: both are mapped and as long as `range`; the copy is not in use yet.
    let sites = unsafe { copy_text(range, writable, copy.cast(), range.len()) };
    let mut done = 0;
    let mut replaced = shown.iter().try_for_each(|part| {
        let view = writable.as_ptr().cast_const().wrapping_add(part.start - range.start);
        let mut breakpoints = Vec::new();
        if is_private {
            // SAFETY: this part of the text is mapped, and the alias covers it.
            breakpoints = unsafe { debugger::breakpoints_in_copies(part, view) };
        }
        breakpoints.retain(|at| !sites.iter().any(|site| site.contains(at)));
        // SAFETY: the pages hold the text as it was executed at one moment.
        unsafe { pages.map_over_text(part.start - range.start, part, is_private, &breakpoints)? };
        done += 1;
        Ok(())
    });
    if replaced.is_ok() {
        // SAFETY: replaces the inherited writable alias, which is not in use now, by the new one.
        replaced = unsafe { move_view(copy.cast(), writable, range.len()) };
    }
    if replaced.is_err() {
        // SAFETY: the mapping is ours, and has not been moved.
        let _ = unsafe { munmap(copy, range.len()) };
        // Text and alias are of the same pages again.
        for part in &shown[..done] {
            let Some(text) = NonNull::new(std::ptr::with_exposed_provenance_mut(part.start)) else {
                continue;
            };
            // SAFETY: the alias is mapped and shared, and holds the text of its part, which is
            // ours.
            let _ =
                unsafe { map_executable_over(writable.byte_add(part.start - range.start), part.len(), text) };
        }
    }
    replaced.map_err(refused)
}

/// Maps new pages with the same bytes at the addresses of both the text and its alias, while other
/// threads execute the one and store through the other. Their stores may be lost. Only the parts of
/// the text in `shown` are still mapped, and are replaced.
///
/// # Safety
/// The writable alias and the parts must be mapped. No instruction in the text is being patched.
pub(super) unsafe fn replace_beside_stores(
    range: &Range<usize>,
    writable: NonNull<u8>,
    shown: &[Range<usize>],
    is_private: bool,
) -> Result<(), Error> {
    let refused = |errno| refused(range.start, errno);
    let length = range.len();
    let pages = Pages::new(length).map_err(refused)?;
    let copy: NonNull<u8> = pages.writable.cast();
    // SAFETY: both are mapped and as long as `range`; the copy is not in use yet.
    unsafe { copy_lines(writable.as_ptr(), copy.as_ptr(), length) };
    let over_text = |part: &Range<usize>| {
        let offset = part.start - range.start;
        let view = writable.as_ptr().cast_const().wrapping_add(offset);
        let breakpoints = match is_private {
            // SAFETY: this part of the text is mapped, and the alias covers it.
            true => unsafe { debugger::breakpoints_in_copies(part, view) },
            false => Vec::new(),
        };
        // SAFETY: the pages hold the bytes of the text.
        unsafe { pages.map_over_text(offset, part, is_private, &breakpoints) }
    };
    let moved = shown.iter().try_for_each(over_text);
    // SAFETY: the alias is ours, and stores through it go to either pages.
    let moved = moved.and_then(|()| unsafe { move_view(copy, writable, length) });
    if moved.is_err() {
        for part in shown {
            let place = NonNull::new(std::ptr::with_exposed_provenance_mut(part.start)).expect("mapped");
            // SAFETY: text and alias are of the same pages again, which hold the same bytes.
            let _ = unsafe {
                map_executable_over(writable.byte_add(part.start - range.start), part.len(), place)
            };
        }
        // SAFETY: the mapping is ours, and has not been moved.
        let _ = unsafe { munmap(copy.cast(), length) };
    }
    moved.map_err(refused)
}

/// Replaces a writable alias by empty memory.
///
/// # Safety
/// The alias is ours, `length` bytes long, and may lose its contents.
pub(super) unsafe fn empty(view: NonNull<u8>, length: usize) {
    let (Some(address), Ok(size)) = (NonZeroUsize::new(view.addr().get()), length.try_into()) else { return };
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the caller's obligation.
    if unsafe { mmap_anonymous(Some(address), size, READ_WRITE, flags) }.is_err() {
        // SAFETY: as above. At least its memory is freed.
        unsafe { libc::madvise(view.as_ptr().cast(), length, libc::MADV_REMOVE) };
    }
}

/// Moves a writable alias over another one.
///
/// # Safety
/// Both are ours, `length` bytes long, and the first one is not in use.
pub(super) unsafe fn move_view(from: NonNull<u8>, to: NonNull<u8>, length: usize) -> nix::Result<()> {
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the caller's obligation.
    unsafe { mremap(from.cast(), length, length, flags, Some(to.cast())) }.map(drop)
}

/// The mappings of this process, with their files.
pub(super) struct Files(Vec<Mapping>);

impl Files {
    /// The current mappings.
    pub(super) fn now() -> io::Result<Self> {
        Ok(Self(maps::mappings()?))
    }

    /// The parts of `range` that still belong to the writable alias's file, rather than to
    /// something that was mapped there since.
    pub(super) fn shown(&self, range: &Range<usize>, writable: NonNull<u8>) -> Vec<Range<usize>> {
        let view = writable.addr().get();
        let mapped = |mapping: &&Mapping| mapping.range.contains(&view);
        // An emptied alias has no text.
        let Some(file) = self.0.iter().find(mapped).and_then(|mapping| mapping.file) else {
            return Vec::new();
        };
        let of_file = self.0.iter().filter(|mapping| mapping.file == Some(file));
        let parts =
            of_file.map(|mapping| mapping.range.start.max(range.start)..mapping.range.end.min(range.end));
        parts.filter(|part| part.start < part.end).collect()
    }

    /// Whether a part of `range` is mapped shared.
    pub(super) fn has_shared(&self, range: &Range<usize>) -> bool {
        let overlaps = |mapping: &Mapping| mapping.range.start < range.end && range.start < mapping.range.end;
        self.0.iter().any(|mapping| mapping.shared && overlaps(mapping))
    }

    /// The address of a writable alias of all of `text`, a private mapping of a memory file of
    /// ours.
    fn view_of(&self, text: &Mapping) -> Option<usize> {
        let end = text.offset + text.range.len();
        let shows = |view: &&Mapping| {
            view.file == text.file
                && view.shared
                && view.writable
                && view.offset <= text.offset
                && end <= view.offset + view.range.len()
        };
        self.0.iter().find(shows).map(|view| view.range.start + (text.offset - view.offset))
    }
}

/// Another writable alias of text that is a private mapping of a memory file of ours, and whose
/// alias is no longer registered. None if it has no alias that can be duplicated.
///
/// # Safety
/// No alias is unmapped during the call.
pub(super) unsafe fn duplicate_view_of(text: &Mapping) -> Result<Option<NonNull<u8>>, Error> {
    let view = Files::now().ok().and_then(|files| files.view_of(text));
    let Some(view) = view.and_then(|view| NonNull::new(std::ptr::with_exposed_provenance_mut(view))) else {
        return Ok(None);
    };
    // SAFETY: the alias is as long as the text, and stays mapped by the caller's obligation.
    let copy = unsafe { duplicate(view, text.range.len(), READ_WRITE) };
    copy.map(Some).map_err(|errno| refused(text.range.start, errno))
}

/// A writable alias of a shared mapping that the caller has made: copying the text would disconnect
/// its other mappings, so the mapping is duplicated.
///
/// # Safety
/// `range` must be mapped shared.
pub(super) unsafe fn duplicate_shared(range: &Range<usize>) -> Result<NonNull<u8>, Error> {
    let refused = |errno| refused(range.start, errno);
    let Some(text) = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)) else {
        return Err(refused(Errno::EINVAL));
    };
    // SAFETY: the caller's obligation.
    unsafe { duplicate(text, range.len(), READ_WRITE) }.map_err(refused)
}

/// Maps a shared mapping a second time (`mremap` with an old size of zero, see mremap(2)), with
/// this protection.
///
/// # Safety
/// `length` bytes from `start` on must be mapped shared.
unsafe fn duplicate(
    start: NonNull<libc::c_void>,
    length: usize,
    protection: ProtFlags,
) -> nix::Result<NonNull<u8>> {
    // SAFETY: with an old size of zero nothing is unmapped.
    let copy = unsafe { mremap(start, 0, length, MRemapFlags::MREMAP_MAYMOVE, None) }?;
    // SAFETY: the copy is ours and not in use yet.
    if let Err(errno) = unsafe { mprotect(copy, length, protection) } {
        // SAFETY: the mapping is ours and not in use.
        let _ = unsafe { munmap(copy, length) };
        return Err(errno);
    }
    Ok(copy.cast())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::{FetchWindow, processors_in_tests, store};

    #[repr(align(4096))]
    struct Page([u8; 4096]);

    /// Offset of the bytes that change: they cross a quadword, so that reading the line word by
    /// word can tear them.
    const SITE: usize = 28;
    const LENGTH: usize = 8;

    /// Calls `copy` while another processor toggles eight bytes between all 0 and all 255 at full
    /// speed; `copy` returns the bytes that it has read. Stops when consecutive copies have found
    /// different values `CHANGES` times.
    fn while_toggled(copy: impl Fn(*const u8) -> [u8; LENGTH] + Sync) {
        const CHANGES: u64 = 20_000;
        let Some([one, other]) = processors_in_tests::two() else { return };
        let mut page = Page([0; 4096]);
        let stop = AtomicBool::new(false);
        let changes = AtomicU64::new(0);
        let start = page.0.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                processors_in_tests::pin(one);
                let forms = [Bytes::new(&[0; LENGTH]).unwrap(), Bytes::new(&[255; LENGTH]).unwrap()];
                for round in 0.. {
                    let (old, new) = (&forms[round % 2], &forms[(round + 1) % 2]);
                    let site = (start + SITE) as *mut u8;
                    // SAFETY: the page outlives the scope and is its own executed address.
                    unsafe { store::compare_exchange(FetchWindow::Bytes64, site, old, new) }.unwrap();
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let reader = scope.spawn(|| {
                processors_in_tests::pin(other);
                let mut last = 0;
                while changes.load(Ordering::Relaxed) < CHANGES {
                    let copied = copy(start as *const u8);
                    if copied.iter().any(|byte| *byte != copied[0]) {
                        return Err(copied);
                    }
                    changes.fetch_add(u64::from(copied[0] != last), Ordering::Relaxed);
                    last = copied[0];
                }
                Ok(())
            });
            let result = reader.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(result, Ok(()), "a partial store was copied");
        });
    }

    #[test]
    fn a_line_is_copied_with_whole_stores_only() {
        while_toggled(|page| {
            let mut copy = Page([0; 4096]);
            // SAFETY: both are whole pages, which outlive the call.
            unsafe { copy_lines(page, copy.0.as_mut_ptr(), 64) };
            copy.0[SITE..SITE + LENGTH].try_into().unwrap()
        });
    }

    #[test]
    fn bytes_are_read_with_whole_stores_only() {
        while_toggled(|page| {
            // SAFETY: inside the page.
            let bytes = unsafe { read_settled(page.add(SITE), LENGTH) };
            bytes.as_slice().try_into().unwrap()
        });
    }

    #[test]
    fn every_line_is_copied() {
        let page = Page(std::array::from_fn(|i| (i / 64 + i) as u8));
        let mut copy = Page([0; 4096]);
        // SAFETY: both are whole pages.
        unsafe { copy_lines(page.0.as_ptr(), copy.0.as_mut_ptr(), 4096) };
        assert_eq!(page.0, copy.0);
    }
}
