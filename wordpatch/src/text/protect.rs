//! Text access by mprotect: the page is writable and executable while the guard exists.
//!
//! There is one guard at a time in the process: dropping one of two guards of the same page would
//! make the page read-only for the other.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::thread_id::thread_id;

/// The thread that has the guard, by its kernel id, or [`NOBODY`].
static HOLDER: AtomicI32 = AtomicI32::new(NOBODY);

const NOBODY: i32 = 0;

/// How long a thread waits for another one that has the guard. On a busy machine, that one may not
/// be scheduled for a while; but it may also be interrupted by a signal handler that waits for this
/// thread.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// In a forked child: gives back an inherited guard whose holder is a thread of the parent.
pub(super) fn release_in_child() {
    HOLDER.store(NOBODY, Ordering::Release);
}

/// Waits until this thread has the guard. Returns false immediately if it already has the guard,
/// interrupted by a signal, or after [`PATIENCE`].
fn acquire() -> bool {
    let this = thread_id();
    let begin = Instant::now();
    loop {
        match HOLDER.compare_exchange(NOBODY, this, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(holder) if holder == this || begin.elapsed() > PATIENCE => return false,
            // SAFETY: async-signal-safe, and touches no memory.
            Err(_) => _ = unsafe { libc::sched_yield() },
        }
    }
}

impl PageGuard {
    pub(super) fn new(address: usize) -> Result<Self, Error> {
        let page = address & !(PAGE - 1);
        if !acquire() {
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
        HOLDER.store(NOBODY, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A page of its own.
    #[repr(align(4096))]
    struct Page([u8; PAGE]);

    static PAGE_OF_TEST: Page = Page([0; PAGE]);

    fn address() -> usize {
        PAGE_OF_TEST.0.as_ptr().addr()
    }

    /// The order does not depend on how often the other threads yield.
    #[test]
    fn a_thread_waits_for_another_one_and_not_for_itself() {
        const YIELDS: usize = 1 << 19;
        let guard = PageGuard::new(address()).expect("nobody else has it");
        assert!(matches!(PageGuard::new(address()), Err(Error::Contended { .. })));
        let (begun, begins) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                begun.send(()).expect("the other thread waits for this");
                PageGuard::new(address()).map(drop)
            });
            begins.recv().expect("the thread begins");
            (0..YIELDS).for_each(|_| std::thread::yield_now());
            drop(guard);
            waiting.join().expect("no panic").expect("the guard was given back");
        });
    }
}
