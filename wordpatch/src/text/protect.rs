//! Text access by mprotect: the page is writable and executable while the guard exists.
//!
//! There is one guard at a time in the process: dropping one of two guards of the same page would
//! make the page read-only for the other.
//!
//! The thread's signals are blocked meanwhile: a handler that leaves by `siglongjmp`, or ends the
//! thread, would keep the guard forever.
//!
//! Text that may have been unmapped is read before its page is changed, by a system call
//! ([`PageGuard::if_unchanged`]): what is mapped there now may be data, which must stay writable.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::reading::read_if_mapped;
use crate::thread_id::thread_id;
use crate::{Bytes, Error, MAX_PATCH};

/// The thread that has the guard, by its kernel id, or [`NOBODY`].
static HOLDER: AtomicI32 = AtomicI32::new(NOBODY);

const NOBODY: i32 = 0;

/// The page that the holder makes writable, or has made so; 0 for none.
static PAGE_OF_HOLDER: AtomicUsize = AtomicUsize::new(0);

/// How long a thread waits for another one that has the guard. On a busy machine, that one may not
/// be scheduled for a while; but it may also be interrupted by a signal handler that waits for this
/// thread.
const PATIENCE: Duration = Duration::from_secs(10);

const PAGE: usize = 4096;

/// The right to change the protection of a page, or to replace pages.
pub(super) struct Turn {
    /// Dropped after the right is given back.
    _signals: BlockedSignals,
}

impl Drop for Turn {
    fn drop(&mut self) {
        HOLDER.store(NOBODY, Ordering::Release);
    }
}

/// While this exists, no signal handler runs on this thread, except for SIGTRAP: the kernel would
/// kill the thread at an INT3. Includes the signals of the C library, by which threads are
/// cancelled.
struct BlockedSignals {
    /// The mask that is restored.
    before: u64,
}

impl BlockedSignals {
    fn new() -> Self {
        let all = !(1 << (libc::SIGTRAP - 1));
        Self { before: set_mask(all) }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Sets the thread's mask of blocked signals, bit 0 for signal 1, and returns the previous one. The
/// C library's function leaves its own signals out.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: reads and writes eight bytes, the size of the kernel's masks. It cannot fail.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Makes a page of text writable until dropped.
pub(super) struct PageGuard {
    page: usize,
    /// Dropped after the page is protected again.
    _turn: Turn,
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
    let page = PAGE_OF_HOLDER.swap(0, Ordering::Relaxed);
    if page != 0 {
        let _ = protect(page, libc::PROT_READ | libc::PROT_EXEC);
    }
    HOLDER.store(NOBODY, Ordering::Release);
}

/// Waits until this thread has the right. Returns `None` immediately if it already has it,
/// interrupted by a signal, or after [`PATIENCE`].
pub(super) fn acquire() -> Option<Turn> {
    let this = thread_id();
    let begin = Instant::now();
    loop {
        match HOLDER.load(Ordering::Relaxed) {
            NOBODY => {
                let signals = BlockedSignals::new();
                if HOLDER.compare_exchange(NOBODY, this, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Some(Turn { _signals: signals });
                }
            }
            holder if holder == this || begin.elapsed() > PATIENCE => return None,
            _ => {}
        }
        // SAFETY: async-signal-safe, and touches no memory.
        unsafe { libc::sched_yield() };
    }
}

impl PageGuard {
    /// For the page of this address, which must be mapped text.
    pub(super) fn new(address: usize) -> Result<Self, Error> {
        let turn = acquire().ok_or(Error::Contended { address })?;
        Self::with_turn(turn, address)
    }

    /// As [`PageGuard::new`], if the text at the address is `old`. Another thread's store cannot
    /// fall into the check, which is made by the holder.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::NotMapped`]. The page is then unchanged.
    pub(super) fn if_unchanged(address: usize, old: &Bytes) -> Result<Self, Error> {
        let turn = acquire().ok_or(Error::Contended { address })?;
        check(address, old)?;
        Self::with_turn(turn, address)
    }

    fn with_turn(turn: Turn, address: usize) -> Result<Self, Error> {
        let page = address & !(PAGE - 1);
        // First: a child that is forked from now on protects the page again.
        PAGE_OF_HOLDER.store(page, Ordering::Release);
        if let Err(refused) = protect(page, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
            PAGE_OF_HOLDER.store(0, Ordering::Relaxed);
            return Err(refused);
        }
        Ok(Self { page, _turn: turn })
    }
}

/// Reads the bytes at an address that may not be mapped, and compares them.
fn check(address: usize, old: &Bytes) -> Result<(), Error> {
    let mut bytes = [0; MAX_PATCH];
    let bytes = &mut bytes[..old.len()];
    if !read_if_mapped(address, bytes) {
        return Err(Error::NotMapped { address });
    }
    let found = Bytes::new(bytes).expect("1 to 8 bytes");
    if found == *old { Ok(()) } else { Err(Error::Mismatch { address, expected: *old, found }) }
}

impl Drop for PageGuard {
    fn drop(&mut self) {
        // On failure, the page stays as permissive as the caller has accepted by choosing mprotect.
        let _ = protect(self.page, libc::PROT_READ | libc::PROT_EXEC);
        PAGE_OF_HOLDER.store(0, Ordering::Relaxed);
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

    fn no_signal_handler_runs_while_a_thread_has_the_guard() {
        static HANDLED: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn handle(_: libc::c_int) {
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
        let signals = [libc::SIGUSR1, libc::SIGRTMIN()];
        for signal in signals {
            // SAFETY: the handler only counts.
            unsafe { libc::signal(signal, handle as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        }
        let guard = PageGuard::new(address()).expect("nobody else has it");
        for signal in signals {
            // SAFETY: the signal is handled, by this thread.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread_id(), signal) };
        }
        assert_eq!(HANDLED.load(Ordering::Relaxed), 0);
        drop(guard);
        assert_eq!(HANDLED.load(Ordering::Relaxed), signals.len(), "they are delivered afterwards");
    }

    /// The order does not depend on how often the other threads yield.
    #[test]
    fn a_thread_waits_for_another_one_and_not_for_itself() {
        // One test, because there is one guard.
        no_signal_handler_runs_while_a_thread_has_the_guard();
        const YIELDS: usize = 1 << 6;
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
        // A child that was forked meanwhile.
        let is_writable = || crate::maps::mapping_at(address()).expect("the page is mapped").writable;
        let guard = PageGuard::new(address()).expect("nobody else has it");
        assert!(is_writable());
        release_in_child();
        assert!(!is_writable(), "the page stays writable and executable");
        drop(guard);
        // A child must not change the protection of a page that was not made writable.
        let unmapped = crate::near::NearBlock::allocate(&(9 << 40..9 << 40), 1, 0).unwrap().code_address();
        assert!(matches!(PageGuard::new(unmapped), Err(Error::ProtectRefused { .. })));
        assert_eq!(PAGE_OF_HOLDER.load(Ordering::Relaxed), 0);
    }
}
