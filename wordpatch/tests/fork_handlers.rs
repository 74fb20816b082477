//! Fork handlers of the program that run before ours in the child, and forks in the middle of a
//! patch's stores.
//!
//! With `--cfg fault_injection` (see `scripts/test.sh`).

#![cfg(fault_injection)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use common::generated::{PAGE, map_pages, pages};
use common::{A, B, INSIDE, STRADDLING, call, functions, mov_eax, with_window};
use wordpatch::internal::fault::{Point, set_hook};
use wordpatch::internal::follow_forks;
use wordpatch::text::{Form, TogglePair, unshare};
use wordpatch::{Bytes, Error, FetchWindow, TextRef, patch};

/// Serializes the tests: hook and handlers are global.
static ALONE: Mutex<()> = Mutex::new(());

/// The function that the program's handler calls in the next child.
static IN_CHILD: AtomicUsize = AtomicUsize::new(0);
/// 1 if that function has succeeded.
static RESULT: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    let act = IN_CHILD.load(Ordering::SeqCst);
    if act != 0 {
        // SAFETY: the tests store functions of this type only.
        let act = unsafe { std::mem::transmute::<usize, fn() -> bool>(act) };
        RESULT.store(u32::from(act()), Ordering::SeqCst);
    }
}

/// Registers the program's handler, and ours after it: in the child, the program's then runs first.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function is never unloaded, and the child has one thread.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(in_child)) }, 0);
        follow_forks();
    });
}

/// Forks, and returns the child's exit code: 0 if `child` returns true.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(!child());
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = -1;
            // SAFETY: waits for the child, and writes its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        }
    }
}

#[test]
fn a_handler_that_runs_before_ours_can_unshare_and_patch() {
    static SITE: AtomicUsize = AtomicUsize::new(0);
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _model = with_window(FetchWindow::Bytes8);
    register();
    let site = functions(1, STRADDLING)[0];
    SITE.store(site, Ordering::SeqCst);
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here; also below.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    let act: fn() -> bool = || {
        let site = SITE.load(Ordering::SeqCst);
        // SAFETY: as above; the child has one thread.
        unsafe { unshare().is_ok() && patch(site, &mov_eax(B), &mov_eax(7)).is_ok() }
    };
    IN_CHILD.store(act as usize, Ordering::SeqCst);
    let status = fork(|| RESULT.load(Ordering::SeqCst) == 1 && call(site) == 7);
    IN_CHILD.store(0, Ordering::SeqCst);
    assert_eq!(status, 0);
    assert_eq!(call(site), B);
}

/// The states of a thread that forks while another one is at a certain point of a patch.
static FORKER: AtomicI32 = AtomicI32::new(0);
static HAS_FORKED: AtomicBool = AtomicBool::new(false);
static FORKED_IN_BETWEEN: AtomicBool = AtomicBool::new(false);

/// Called between stores without a wait between them: makes another thread fork, and returns when
/// it has forked or waits for a lock.
fn fork_meanwhile(_: usize, point: Point) {
    if point != Point::Made(1) {
        return;
    }
    set_hook(None);
    std::thread::spawn(|| {
        // SAFETY: returns a number.
        FORKER.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        assert_eq!(fork(|| true), 0);
        HAS_FORKED.store(true, Ordering::SeqCst);
    });
    let waits = || {
        let thread = FORKER.load(Ordering::SeqCst);
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    };
    while !waits() {
        if HAS_FORKED.load(Ordering::SeqCst) {
            return FORKED_IN_BETWEEN.store(true, Ordering::SeqCst);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_fork_waits_for_the_stores_between_two_waits() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _model = with_window(FetchWindow::Bytes8);
    register();
    let site = functions(1, STRADDLING)[0];
    set_hook(Some(fork_meanwhile));
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    while !HAS_FORKED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(!FORKED_IN_BETWEEN.load(Ordering::SeqCst), "forked between two stores of one step");
    assert_eq!(call(site), B);
}

#[test]
fn toggles_are_refused_in_a_child_until_it_has_its_own_text() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, INSIDE)[0];
    let [a, b] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: the text stays mapped, and both forms are one instruction; also below.
    let place = unsafe { TextRef::resolve(site, 5) }.unwrap();
    let forms = TogglePair::new(&place, FetchWindow::Bytes8, 0, [&a, &b]);
    let status = fork(|| {
        // SAFETY: as above; the child has one thread.
        unsafe {
            matches!(forms.exchange(Form::Second), Err(Error::SharedWithParent { address }) if address == site)
                && call(site) == A
                && unshare().is_ok()
                && matches!(forms.exchange(Form::Second), Ok(true))
                && matches!(forms.exchange(Form::Second), Ok(false))
                && call(site) == B
        }
    });
    assert_eq!(status, 0);
    assert_eq!(call(site), A, "the child has patched its parent's text");
}

/// Something else was mapped over the first of two pages: the child gets the second, with the right
/// offset in the file.
#[test]
fn a_child_gets_the_part_of_its_text_that_is_still_mapped() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _model = with_window(FetchWindow::Bytes8);
    let start = pages(2);
    let site = start + PAGE;
    // SAFETY: each site is one instruction; also below.
    unsafe { patch(start, &mov_eax(A), &mov_eax(7)).unwrap() };
    // SAFETY: as above.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)).unwrap() };
    map_pages(start, 1);
    let status = fork(|| {
        // SAFETY: as above; the child has one thread.
        unsafe {
            unshare().is_ok()
                && call(site) == B
                && patch(site, &mov_eax(B), &mov_eax(A)).is_ok()
                && call(site) == A
        }
    });
    assert_eq!(status, 0);
    assert_eq!(call(site), B);
}
