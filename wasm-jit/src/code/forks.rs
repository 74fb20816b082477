//! Forked children execute the code that they inherited, whatever their parent changes.
//!
//! A forked child shares the pages of the code with its parent, but has its own copy of all data:
//! what it finds there must fit the code. Therefore
//! 1. no thread forks while another one changes an image ([`internal::no_forks`]): a child never
//!    inherits half a change, or a lock. Therefore locks of images, and those that engines share
//!    between modules, are taken by [`lock`], which prevents forks first. A thread that prevents
//!    forks must not wait for one that does not. Closures of the program, including discovery
//!    callbacks, are called without such a lock; only recorders have a lock meanwhile
//!    (`probed/buffers.rs`), which a child may inherit. What closures own may be dropped by a
//!    thread that has the lock of a global probe;
//! 2. the first change after a fork gives the image new pages, which takes as long as copying its
//!    code; the children keep the old ones, which no longer change.
//!
//! Code is written with one of two locks: that of changes (`probed`), or that of functions that are
//! being linked (`lazy`). A thread that copies the code has both.
//!
//! Forks that run no handlers (a raw `clone`) are not noticed.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use wordpatch::internal::{self, NoForks};

/// What a lock protects, while no thread forks: children do not inherit the lock.
pub(crate) struct Locked<'a, T> {
    /// Dropped first.
    guard: MutexGuard<'a, T>,
    _no_forks: NoForks,
}

/// Takes a lock, even if a thread has panicked with it, and prevents forks until it is released.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Locked<'_, T> {
    let no_forks = internal::no_forks();
    Locked { guard: mutex.lock().unwrap_or_else(|e| e.into_inner()), _no_forks: no_forks }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// The number of forks after which an image got its pages.
#[derive(Debug)]
pub(super) struct Forks(AtomicU32);

impl Default for Forks {
    /// For an image that is being made.
    fn default() -> Self {
        internal::follow_forks();
        Self(AtomicU32::new(internal::forks()))
    }
}

impl Forks {
    /// Whether children may be executing the image's code. Called by a thread that prevents forks.
    pub(super) fn have_children(&self) -> bool {
        self.0.load(Ordering::Acquire) != internal::forks()
    }

    /// Gives the image new pages if it shares its code with children.
    ///
    /// # Errors
    /// The system refuses it, or this is such a child. The code must not be changed.
    ///
    /// # Safety
    /// This is all code of the image that children may be executing. The thread has the locks for
    /// writing it, and prevents forks.
    pub(super) unsafe fn leave_code(&self, code: &[Range<usize>]) -> Result<(), wordpatch::Error> {
        if self.have_children() {
            // SAFETY: the caller's obligation; the image exists, and wordpatch patches no
            // instruction in it.
            unsafe { internal::leave_to_children(code)? };
            self.0.store(internal::forks(), Ordering::Release);
        }
        Ok(())
    }
}
