//! Text access by mprotect: the page is writable and executable while the guard exists.
//!
//! There is one guard at a time in the process: dropping one of two guards of the same page would
//! make the page read-only for the other.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

static HELD: AtomicBool = AtomicBool::new(false);

/// Number of attempts to acquire a busy guard, with a yield between them. Bounded, because the
/// holder may be this thread itself, interrupted by a signal; large enough for a holder that is not
/// scheduled at the moment.
const TRIES: usize = 1 << 16;

const PAGE: usize = 4096;

/// Makes a page of text writable until dropped.
pub(super) struct PageGuard {
    page: usize,
}

fn protect(page: usize, protection: libc::c_int) -> Result<(), Error> {
    let start = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: the page is mapped text by the contract of `TextRef`; it stays executable, so running
    // threads are not affected.
    if unsafe { libc::mprotect(start, PAGE, protection) } == 0 {
        Ok(())
    } else {
        Err(Error::ProtectRefused { address: page, source: io::Error::last_os_error() })
    }
}

/// In a forked child: clears an inherited flag of a guard whose holder is a thread of the parent.
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
        // On failure, the page stays as permissive as the caller has accepted by choosing mprotect.
        let _ = protect(self.page, libc::PROT_READ | libc::PROT_EXEC);
        HELD.store(false, Ordering::Release);
    }
}
