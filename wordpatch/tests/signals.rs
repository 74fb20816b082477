//! SIGTRAP in a program that uses it itself. Each test runs in a separate process, because handlers
//! belong to the process.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use common::alone::alone;
use common::{A, B, STRADDLING, call, functions, mov_eax, text, with_window};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use wordpatch::internal::with_signals_blocked;
use wordpatch::{Error, FetchWindow, Finisher, Outstanding, State, check_sigtrap_unblocked, start_patch};

static FIRST: AtomicU32 = AtomicU32::new(0);
static SECOND: AtomicU32 = AtomicU32::new(0);
/// Length of a breakpoint that the second handler skips: the thread continues after it.
static LAST_SITE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn first(_: libc::c_int) {
    FIRST.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn second(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes a valid context.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    LAST_SITE.store(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize - 1, Ordering::Relaxed);
}

fn install(handler: SigHandler) {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handlers add to atomics only.
    unsafe { sigaction(Signal::SIGTRAP, &action) }.unwrap();
}

fn start(site: usize) -> Outstanding {
    // SAFETY: each site is one instruction, and SIGTRAP is not blocked here.
    unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap()
}

/// Traps of a locked site are ours, even if another handler was installed before; a foreign INT3
/// and a raised signal go to that handler.
#[test]
fn handlers_installed_before_and_after_ours_get_foreign_traps() {
    alone("handlers_installed_before_and_after_ours_get_foreign_traps", || {
        let _model = with_window(FetchWindow::Bytes8);
        let sites = functions(2, STRADDLING);
        let breakpoint = text(0, &[0xcc, 0xc3]);
        // SAFETY: `int3; ret`.
        let run_breakpoint: extern "C" fn() = unsafe { std::mem::transmute(breakpoint) };
        install(SigHandler::Handler(first));
        let outstanding = start(sites[0]);
        assert_eq!(call(sites[0]), A);
        assert_eq!(FIRST.load(Ordering::Relaxed), 0, "a trap of a locked site went to the program's handler");
        run_breakpoint();
        raise(Signal::SIGTRAP).unwrap();
        assert_eq!(FIRST.load(Ordering::Relaxed), 2);
        outstanding.finish().unwrap();

        // Installed after ours, and covered by the next patch.
        install(SigHandler::SigAction(second));
        let outstanding = start(sites[1]);
        assert_eq!(call(sites[1]), A);
        assert_eq!(SECOND.load(Ordering::Relaxed), 0);
        run_breakpoint();
        assert_eq!((SECOND.load(Ordering::Relaxed), LAST_SITE.load(Ordering::Relaxed)), (1, breakpoint));
        raise(Signal::SIGTRAP).unwrap();
        assert_eq!((FIRST.load(Ordering::Relaxed), SECOND.load(Ordering::Relaxed)), (2, 2));
        outstanding.finish().unwrap();
        assert_eq!((call(sites[0]), call(sites[1])), (B, B));
    });
}

#[test]
fn a_thread_that_blocks_the_trap_is_named() {
    alone("a_thread_that_blocks_the_trap_is_named", || {
        check_sigtrap_unblocked().unwrap();
        let (ready, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let blocking = scope.spawn(|| {
                SigSet::all().thread_block().unwrap();
                ready.wait();
                done.wait();
                nix::unistd::gettid().as_raw()
            });
            ready.wait();
            let found = check_sigtrap_unblocked();
            done.wait();
            let id = blocking.join().unwrap();
            assert!(
                matches!(found, Err(Error::SigtrapBlocked { thread }) if thread == id),
                "{found:?} is not {id}"
            );
        });
    });
}

#[test]
fn the_finisher_and_threads_started_like_it_can_execute_a_locked_site() {
    alone("the_finisher_and_threads_started_like_it_can_execute_a_locked_site", || {
        let _model = with_window(FetchWindow::Bytes8);
        let finisher = Finisher::start().unwrap();
        check_sigtrap_unblocked().unwrap();
        let site = functions(1, STRADDLING)[0];
        let outstanding = start(site);
        let seen = with_signals_blocked(|| std::thread::spawn(move || call(site))).join().unwrap();
        assert_eq!(seen, A);
        finisher.take_over(&outstanding).unwrap();
        while outstanding.state() != State::Finished {
            std::thread::yield_now();
        }
    });
}
