//! Detects that this process is a forked child, however it was forked.
//!
//! A page that the kernel wipes on fork (`MADV_WIPEONFORK`, madvise(2)) holds a mark. A child reads
//! zero there. No handler has to run, so a raw `clone` is detected as well. A `vfork` child shares
//! the parent's memory and reads the mark, which is correct: its text is the parent's.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use crate::Error;

/// The page's first byte: [`OWN`] in the process that wrote it, 0 in a child.
static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

const OWN: u8 = 1;

/// Sets the mark up. Called by one thread at a time, with the lock of the site table held.
pub(crate) fn watch() -> Result<(), Error> {
    if !MARK.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let length = const { std::num::NonZeroUsize::new(4096).unwrap() };
    let refused = |source| Error::MemoryMap { address: 0, source };
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new private mapping at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) }
        .map_err(|errno| refused(errno.into()))?;
    // SAFETY: the page is ours, private and anonymous.
    if unsafe { libc::madvise(page.as_ptr(), length.get(), libc::MADV_WIPEONFORK) } != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    let mark = page.cast::<AtomicU8>();
    // SAFETY: the page is mapped, zeroed and never unmapped.
    unsafe { mark.as_ref() }.store(OWN, Ordering::Relaxed);
    MARK.store(mark.as_ptr(), Ordering::Release);
    Ok(())
}

#[inline]
fn mark() -> Option<&'static AtomicU8> {
    // SAFETY: null, or the page of `watch`, which is never unmapped.
    unsafe { MARK.load(Ordering::Acquire).as_ref() }
}

/// Whether this is a forked child that still shares its text with the parent.
#[inline]
pub(crate) fn is_unprepared_child() -> bool {
    mark().is_some_and(|mark| mark.load(Ordering::Relaxed) != OWN)
}

/// Records that the child has its own text from now on.
pub(super) fn child_is_prepared() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    HAS_FORKED.store(false, Ordering::Release);
    if let Some(mark) = mark() {
        mark.store(OWN, Ordering::Release);
    }
}

/// Set when this process forks, and never cleared: there is no notification when a child has its
/// own text, executes another program, or ends.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Number of forks of this process and its ancestors.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Records that this process is about to fork.
pub(super) fn about_to_fork() {
    HAS_FORKED.store(true, Ordering::Release);
    FORKS.fetch_add(1, Ordering::Release);
}

/// Number of forks of this process and its ancestors.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Acquire)
}

/// Whether children of this process may be executing its text.
pub(crate) fn may_have_children() -> bool {
    HAS_FORKED.load(Ordering::Acquire)
}

/// Number of forks in this process's ancestry after which the child got its own text.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Identifies the process in which something was begun, so that forked children know that it is not
/// theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// This process.
    pub(crate) fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this is still the same process. A child that is not prepared yet is not.
    pub(crate) fn is_current(self) -> bool {
        !is_unprepared_child() && self == Self::now()
    }
}
