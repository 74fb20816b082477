//! Text access by mprotect: the page is writable and executable while the guard lives.
//!
//! One guard at a time in the process: a second one on the same page would find it read-only when
//! the first is dropped.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

static HELD: AtomicBool = AtomicBool::new(false);

/// How often a busy guard is tried, with a yield between two tries, before giving up. Bounded,
/// because the holder may be this very thread, interrupted by a signal; long enough for a holder
/// that is not running at the moment.
const TRIES: usize = 1 << 16;

const PAGE: usize = 4096;

/// Makes a page of text writable until dropped.
pub(super) struct PageGuard {
    page: usize,
}

fn protect(page: usize, protection: libc::c_int) -> Result<(), Error> {
    let start = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: the page is mapped text by the contract of `TextRef`; it stays executable, so running
    // threads are not disturbed.
    if unsafe { libc::mprotect(start, PAGE, protection) } == 0 {
        Ok(())
    } else {
        Err(Error::ProtectRefused { address: page, source: io::Error::last_os_error() })
    }
}

/// In a forked child, which has inherited the mark of a guard but not the thread that holds it.
pub(super) fn release_in_child() {
    HELD.store(false, Ordering::Release);
}

impl PageGuard {
    pub(super) fn new(address: usize) -> Result<Self, Error> {
        let page = address & !(PAGE - 1);
        if !(0..TRIES).any(|_| {
            HELD.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() || {
                // SAFETY: async-signal-safe, and touches no memory.
                unsafe { libc::sched_yield() };
                false
            }
        }) {
            return Err(Error::Contended { address });
        }
        let guard = Self { page };
        protect(page, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
        Ok(guard)
    }
}

impl Drop for PageGuard {
    fn drop(&mut self) {
        // A refusal would leave the page as permissive as the caller's own choice of mprotect made
        // it.
        let _ = protect(self.page, libc::PROT_READ | libc::PROT_EXEC);
        HELD.store(false, Ordering::Release);
    }
}
