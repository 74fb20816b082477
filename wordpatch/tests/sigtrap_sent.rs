//! SIGTRAP that threads send, while others run through locked sites.

mod common;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use common::alone::alone;
use common::{A, B, STRADDLING, call, functions, mov_eax, with_window};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use wordpatch::{FetchWindow, start_patch};

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

/// A signal that is pending already when a thread executes INT3 swallows the trap: the kernel keeps one SIGTRAP for a thread.
#[test]
fn a_sent_signal_that_swallows_the_trap_of_a_locked_site_does_not_hide_it() {
    alone("a_sent_signal_that_swallows_the_trap_of_a_locked_site_does_not_hide_it", || {
        let _model = with_window(FetchWindow::Bytes8);
        let action = SigAction::new(SigHandler::Handler(count), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler adds to an atomic only.
        unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
        let site = functions(1, STRADDLING)[0];
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
        let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        let (thread, stop) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                thread.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(call(site), A);
                }
            });
            while thread.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..200_000 {
                // SAFETY: the thread runs until it is told to stop, below.
                unsafe {
                    let (process, thread) = (libc::getpid(), thread.load(Ordering::Relaxed));
                    libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGTRAP);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(SEEN.load(Ordering::Relaxed) > 0);
        outstanding.finish().unwrap();
        assert_eq!(call(site), B);
    });
}
