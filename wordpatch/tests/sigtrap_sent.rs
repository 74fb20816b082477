//! SIGTRAP that one thread sends to another, which executes locked sites.

mod common;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use common::alone::alone;
use common::sigtrap::without_signal_stack;
use common::{A, B, STRADDLING, call, functions, mov_eax, with_window};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use wordpatch::{FetchWindow, start_patch};

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SEEN.fetch_add(1, Ordering::Relaxed);
}

/// The number of checks whether the signal has arrived. It may never arrive, because the kernel
/// merges it with a pending one, and it may arrive late, because the thread may not be running.
const LOOKS: usize = 2_000;

/// Sends the signal, and waits until the handler has seen it: signals that are sent faster than the
/// handler returns nest, until the stack overflows.
fn send(thread: libc::pid_t) {
    let seen = SEEN.load(Ordering::Relaxed);
    // SAFETY: the thread runs until the test is over.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGTRAP) };
    for _ in 0..LOOKS {
        if SEEN.load(Ordering::Relaxed) != seen {
            break;
        }
        std::hint::spin_loop();
    }
}

/// Runs `act` in a separate process, with the id of a thread that calls the site, which returns A
/// or B. The program handles SIGTRAP.
#[track_caller]
fn while_called(name: &str, act: impl FnOnce(usize, libc::pid_t)) {
    alone(name, || {
        let _model = with_window(FetchWindow::Bytes8);
        let action = SigAction::new(SigHandler::Handler(count), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler adds to an atomic only.
        unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
        let site = functions(1, STRADDLING)[0];
        let (thread, stop) = (AtomicI32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                without_signal_stack();
                thread.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    assert!([A, B].contains(&call(site)));
                }
            });
            while thread.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            act(site, thread.load(Ordering::Relaxed));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(SEEN.load(Ordering::Relaxed) > 0);
        assert_eq!(call(site), B);
    });
}

/// The kernel keeps one pending SIGTRAP for a thread. If it has been sent one when it executes
/// INT3, the trap is dropped.
#[test]
fn a_sent_signal_that_absorbs_the_trap_of_a_locked_site() {
    while_called("a_sent_signal_that_absorbs_the_trap_of_a_locked_site", |site, thread| {
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
        let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
        (0..10_000).for_each(|_| send(thread));
        outstanding.finish().unwrap();
    });
}

/// As above; the patch may be complete before the thread enters the handler.
#[test]
fn a_sent_signal_that_absorbs_a_trap_while_the_patch_is_finished() {
    while_called("a_sent_signal_that_absorbs_a_trap_while_the_patch_is_finished", |site, thread| {
        let (mut old, mut new) = (A, B);
        for _ in 0..2_001 {
            // SAFETY: as above.
            let outstanding = unsafe { start_patch(site, &mov_eax(old), &mov_eax(new)) }.unwrap();
            (0..5).for_each(|_| send(thread));
            outstanding.finish().unwrap();
            (old, new) = (new, old);
        }
    });
}
