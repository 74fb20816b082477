//! Handlers of the program that call the previous handler: each receives each trap once, regardless
//! of the order of installation.

mod common;

use std::arch::naked_asm;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use common::alone::alone;
use common::sigtrap::{
    Context, Handler, Info, Saved, Toggled, action, breakpoint, current, install, install_handler,
    locked_site, none, patch_straddler, send, without_signal_stack,
};
use common::{A, B, call, with_window};
use wordpatch::FetchWindow;

/// The number of calls of each handler.
static FIRST: AtomicU32 = AtomicU32::new(0);
static SECOND: AtomicU32 = AtomicU32::new(0);
/// The arguments of the first handler: address and code.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
/// The action that the second handler has replaced.
static OLD: Saved = Saved::new();

extern "C" fn first(_: libc::c_int, info: Info, context: Context) {
    FIRST.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel's pointers, or ours.
    let (code, context) = unsafe { ((*info).si_code, &*context.cast::<libc::ucontext_t>()) };
    PLACE.store(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize, Ordering::Relaxed);
    CODE.store(code, Ordering::Relaxed);
}

extern "C" fn first_short(_: libc::c_int) {
    FIRST.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn chaining(signal: libc::c_int, info: Info, context: Context) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    OLD.call_with(signal, info, context);
}

extern "C" fn chaining_short(signal: libc::c_int) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    OLD.call(signal);
}

/// Installs itself again at each trap, unless it is installed, and calls the action that it has
/// replaced.
extern "C" fn topping(signal: libc::c_int, info: Info, context: Context) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    if current() != topping as *const () as usize {
        OLD.replace_by(Handler::Long(topping));
    }
    OLD.call_with(signal, info, context);
}

extern "C" fn topping_short(signal: libc::c_int) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    if current() != topping_short as *const () as usize {
        OLD.replace_by(Handler::Short(topping_short));
    }
    OLD.call(signal);
}

/// Runs the test in a separate process, in which straddlers need traps.
#[track_caller]
fn check(name: &str, scenario: fn()) {
    alone(name, || {
        let _model = with_window(FetchWindow::Bytes8);
        without_signal_stack();
        scenario();
    });
}

/// The number of calls of both handlers during `act`.
fn calls(act: impl FnOnce()) -> (u32, u32) {
    let now = || (FIRST.load(Ordering::Relaxed), SECOND.load(Ordering::Relaxed));
    let before = now();
    act();
    (now().0 - before.0, now().1 - before.1)
}

/// Checks that a breakpoint and a sent signal reach the first handler with the kernel's
/// information.
fn check_first_is_given_the_frame() {
    let at = breakpoint();
    assert_eq!((PLACE.load(Ordering::Relaxed), CODE.load(Ordering::Relaxed)), (at, 0x80));
    send();
    assert_eq!(CODE.load(Ordering::Relaxed), libc::SI_TKILL);
}

/// Checks that both handlers receive each foreign trap once, and none of ours.
fn check_both_get_each_trap() {
    assert_eq!(calls(|| _ = breakpoint()), (1, 1));
    assert_eq!(calls(send), (1, 1));
    let (site, outstanding) = locked_site();
    assert_eq!(calls(|| assert_eq!(call(site), A)), (0, 0));
    assert_eq!(calls(|| _ = breakpoint()), (1, 1));
    assert_eq!(calls(send), (1, 1));
    outstanding.finish().unwrap();
    assert_eq!(call(site), B);
}

#[test]
fn a_chaining_handler_between_two_patches() {
    check("a_chaining_handler_between_two_patches", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        OLD.replace_by(Handler::Long(chaining));
        assert_eq!(calls(|| _ = breakpoint()), (1, 1));
        patch_straddler();
        check_both_get_each_trap();
        check_first_is_given_the_frame();
    });
}

#[test]
fn a_chaining_handler_that_passes_no_pointers_on() {
    check("a_chaining_handler_that_passes_no_pointers_on", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        OLD.replace_by(Handler::Short(chaining_short));
        patch_straddler();
        check_both_get_each_trap();
        check_first_is_given_the_frame();
    });
}

/// The frame is unknown then, and not needed.
#[test]
fn handlers_without_pointers_on_both_sides_of_ours() {
    check("handlers_without_pointers_on_both_sides_of_ours", || {
        install_handler(Handler::Short(first_short));
        patch_straddler();
        OLD.replace_by(Handler::Short(chaining_short));
        assert_eq!(calls(|| _ = breakpoint()), (1, 1));
        assert_eq!(calls(send), (1, 1));
        check_both_get_each_trap();
    });
}

#[test]
fn a_handler_that_puts_itself_on_top_again() {
    check("a_handler_that_puts_itself_on_top_again", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        OLD.replace_by(Handler::Long(topping));
        for _ in 0..40 {
            patch_straddler();
            check_both_get_each_trap();
        }
        check_first_is_given_the_frame();
    });
}

#[test]
fn a_handler_without_pointers_that_puts_itself_on_top_again() {
    check("a_handler_without_pointers_that_puts_itself_on_top_again", || {
        install_handler(Handler::Short(first_short));
        patch_straddler();
        OLD.replace_by(Handler::Short(topping_short));
        for _ in 0..40 {
            patch_straddler();
            check_both_get_each_trap();
        }
    });
}

static THIRD: AtomicU32 = AtomicU32::new(0);
/// The action that the third handler has replaced.
static OLD_OF_THIRD: Saved = Saved::new();

extern "C" fn third(signal: libc::c_int, info: Info, context: Context) {
    OLD_OF_THIRD.call_with(signal, info, context);
    THIRD.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn second_deeply(signal: libc::c_int, info: Info, context: Context) {
    OLD.call_with(signal, info, context);
    SECOND.fetch_add(1, Ordering::Relaxed);
}

/// Both have saved the entry that is bound to themselves. The second cycle is broken by the record
/// of the first one.
#[test]
fn two_handlers_that_were_put_on_top_again() {
    check("two_handlers_that_were_put_on_top_again", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        for _ in 0..2 {
            OLD.replace_by(Handler::Long(second_deeply));
            patch_straddler();
        }
        for _ in 0..2 {
            OLD_OF_THIRD.replace_by(Handler::Long(third));
            patch_straddler();
        }
        for round in 1..=3 {
            assert_eq!(calls(|| _ = breakpoint()), (1, 1));
            assert_eq!(THIRD.load(Ordering::Relaxed), round);
        }
    });
}

/// If the kernel calls our entry first, later handlers get the frame.
#[test]
fn the_frame_gets_past_a_handler_without_pointers_that_puts_itself_on_top_again() {
    check("the_frame_gets_past_a_handler_without_pointers_that_puts_itself_on_top_again", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        OLD.replace_by(Handler::Short(topping_short));
        for _ in 0..10 {
            patch_straddler();
            let mut at = 0;
            assert_eq!(calls(|| at = breakpoint()), (1, 1));
            assert_eq!((PLACE.load(Ordering::Relaxed), CODE.load(Ordering::Relaxed)), (at, 0x80));
        }
    });
}

/// The kernel calls the handler, which passes the trap on to the entry that is bound to it, without
/// the frame.
#[test]
fn a_cycle_that_begins_without_pointers() {
    check("a_cycle_that_begins_without_pointers", || {
        install_handler(Handler::Short(first_short));
        patch_straddler();
        OLD.replace_by(Handler::Short(chaining_short));
        patch_straddler();
        // Over the entry that is bound to it.
        OLD.replace_by(Handler::Short(chaining_short));
        assert_eq!(calls(|| _ = breakpoint()), (1, 1));
    });
}

#[test]
fn an_action_that_is_restored() {
    check("an_action_that_is_restored", || {
        install_handler(Handler::Long(first));
        patch_straddler();
        for _ in 0..20 {
            OLD.replace_by(Handler::Long(chaining));
            patch_straddler();
            assert_eq!(calls(|| _ = breakpoint()), (1, 1));
            install(&OLD.get());
            assert_eq!(calls(|| _ = breakpoint()), (1, 0));
            patch_straddler();
            assert_eq!(calls(send), (1, 0));
        }
    });
}

/// signal(3) saves and restores the function only: then SIGTRAP is blocked in our handler, and the
/// kernel does not write `info`.
#[test]
fn an_action_that_is_restored_without_its_flags() {
    check("an_action_that_is_restored_without_its_flags", || {
        install_handler(Handler::Short(first_short));
        let (site, outstanding) = locked_site();
        let ours = install_handler(Handler::Long(chaining)).sa_sigaction;
        install(&none(ours));
        assert_eq!(calls(|| assert_eq!(call(site), A)), (0, 0));
        assert_eq!(calls(|| _ = breakpoint()), (1, 0));
        assert_eq!(calls(send), (1, 0));
        outstanding.finish().unwrap();
        patch_straddler();
        let restored = install_handler(Handler::Long(chaining));
        assert_eq!(restored.sa_sigaction, ours);
        assert_eq!(restored.sa_flags & libc::SA_SIGINFO, libc::SA_SIGINFO);
    });
}

/// Until the next patch, the program's handler receives the traps of sites that are already locked.
/// It may pass them on by a tail call, which looks like a call by the kernel, or by a call from
/// deeper in the stack.
#[test]
fn a_locked_site_whose_trap_is_passed_on_to_us() {
    check("a_locked_site_whose_trap_is_passed_on_to_us", || {
        install_handler(Handler::Long(first));
        let (site, outstanding) = locked_site();
        OLD.replace_by(Handler::Long(chaining));
        assert_eq!(calls(|| assert_eq!(call(site), A)), (0, 1));
        install_handler(Handler::Long(chaining_deeply));
        for _ in 0..3 {
            assert_eq!(calls(|| assert_eq!(call(site), A)), (0, 1));
        }
        outstanding.finish().unwrap();
    });
}

static NESTED: AtomicBool = AtomicBool::new(false);
static SITE: AtomicUsize = AtomicUsize::new(0);

/// Causes traps of all kinds before it passes on its own, whose slot must still be valid then.
extern "C" fn nesting(signal: libc::c_int) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    if !NESTED.swap(true, Ordering::Relaxed) {
        assert_eq!(call(SITE.load(Ordering::Relaxed)), A);
        breakpoint();
        send();
        assert_eq!(FIRST.load(Ordering::Relaxed), 2);
    }
    OLD.call(signal);
}

#[test]
fn traps_inside_of_a_handler() {
    check("traps_inside_of_a_handler", || {
        install_handler(Handler::Long(first));
        let (site, outstanding) = locked_site();
        SITE.store(site, Ordering::Relaxed);
        OLD.replace_by(Handler::Short(nesting));
        patch_straddler();
        let mut at = 0;
        assert_eq!(calls(|| at = breakpoint()), (3, 3));
        assert_eq!(PLACE.load(Ordering::Relaxed), at, "the outer trap was passed on last");
        outstanding.finish().unwrap();
    });
}

static ESCAPE: AtomicUsize = AtomicUsize::new(0);

/// Calls `act`; returns when `act` returns, or when a handler calls [`escape`].
#[unsafe(naked)]
unsafe extern "C" fn with_escape(act: extern "C" fn()) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rip + {escape}], rsp",
        "sub rsp, 8",
        "call rdi",
        "add rsp, 8",
        "jmp {leave}",
        escape = sym ESCAPE,
        leave = sym escape,
    )
}

/// As longjmp(3): the handlers on the stack do not return.
#[unsafe(naked)]
unsafe extern "C" fn escape() {
    naked_asm!(
        "mov rsp, [rip + {escape}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        escape = sym ESCAPE,
    )
}

extern "C" fn escaping(_: libc::c_int, _: Info, _: Context) {
    FIRST.fetch_add(1, Ordering::Relaxed);
    // SAFETY: called only inside `with_escape`, by frames that have nothing to drop.
    unsafe { escape() };
}

static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// Passes the trap on from `depth` bytes deeper in the stack.
#[inline(never)]
fn pass_on_from(depth: usize, signal: libc::c_int, info: Info, context: Context) {
    let room = std::hint::black_box([0u8; 256]);
    match depth {
        0 => OLD.call_with(signal, info, context),
        depth => pass_on_from(depth - 1, signal, info, context),
    }
    std::hint::black_box(room);
}

extern "C" fn chaining_deeply(signal: libc::c_int, info: Info, context: Context) {
    SECOND.fetch_add(1, Ordering::Relaxed);
    pass_on_from(DEPTH.fetch_add(1, Ordering::Relaxed), signal, info, context);
}

extern "C" fn short_chaining_deeply(signal: libc::c_int) {
    chaining_deeply(signal, std::ptr::null_mut(), std::ptr::null_mut());
}

/// A thread whose last trap ended by a non-local exit: the state of that trap must not be used for
/// the next one, at whatever stack depth it occurs.
#[test]
fn handlers_that_do_not_return() {
    check("handlers_that_do_not_return", || {
        extern "C" fn trap() {
            breakpoint();
        }
        let trap_and_escape = || {
            without_signal_stack();
            // SAFETY: nothing below has anything to drop.
            unsafe { with_escape(trap) };
            let mut mask = nix::sys::signal::SigSet::empty();
            mask.add(nix::sys::signal::Signal::SIGTRAP);
            mask.thread_unblock().unwrap();
        };
        install_handler(Handler::Long(escaping));
        patch_straddler();
        for _ in 0..3 {
            assert_eq!(calls(trap_and_escape), (1, 0));
        }
        // Installed after ours, and then before it.
        OLD.replace_by(Handler::Long(chaining_deeply));
        for _ in 0..10 {
            assert_eq!(calls(trap_and_escape), (1, 1));
        }
        patch_straddler();
        for _ in 0..10 {
            assert_eq!(calls(trap_and_escape), (1, 1));
        }
        install_handler(Handler::Short(short_chaining_deeply));
        patch_straddler();
        for _ in 0..10 {
            assert_eq!(calls(trap_and_escape), (1, 1));
        }
        // Far more threads than slots for deliveries that have not ended.
        for _ in 0..500 {
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(calls(trap_and_escape), (1, 1)));
            });
        }
        install_handler(Handler::Short(first_short));
        patch_straddler();
        OLD.replace_by(Handler::Short(topping_short));
        patch_straddler();
        check_both_get_each_trap();
    });
}

/// Handlers that are installed while other threads patch: each trap calls one of them, once, and
/// soon the last one.
#[test]
fn concurrent_patches_while_handlers_are_installed() {
    check("concurrent_patches_while_handlers_are_installed", || {
        static CALLS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
        extern "C" fn counting<const NUMBER: usize>(_: libc::c_int) {
            CALLS[NUMBER].fetch_add(1, Ordering::Relaxed);
        }
        /// Ends the other threads, even if this one panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let calls = || CALLS.each_ref().map(|calls| calls.load(Ordering::Relaxed));
        let total = || calls().iter().sum::<u32>();
        let handlers = [counting::<0>, counting::<1>, counting::<2>, counting::<3>].map(Handler::Short);
        let start = Barrier::new(4);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut site = Toggled::new();
                    start.wait();
                    while !stop.load(Ordering::Relaxed) {
                        site.toggle();
                    }
                });
            }
            let _stop = Stop(&stop);
            let mut site = Toggled::new();
            start.wait();
            for round in 0..2000 {
                let number = round % 4;
                install(&action(handlers[number], if round < 8 { libc::SA_RESTART } else { 0 }, &[]));
                if round % 7 == 0 {
                    site.toggle();
                }
                let before = calls()[number];
                // A thread that was about to cover the previous handler, and is covering this one
                // now, lets traps through to that one during this time.
                for sent in 1.. {
                    let before_sent = total();
                    send();
                    assert_eq!(total(), before_sent + 1, "{round}");
                    if calls()[number] != before {
                        break;
                    }
                    assert!(sent < 1_000_000, "{round}: not the last handler, but {:?}", calls());
                    std::thread::yield_now();
                }
            }
        });
        // No thread covers anything now.
        for number in [2, 0] {
            install_handler(handlers[number]);
            let mut expected = calls();
            for _ in 0..3 {
                Toggled::new().toggle();
                send();
                expected[number] += 1;
                assert_eq!(calls(), expected);
            }
        }
    });
}

/// The child's only thread must not wait for a thread that was installing a handler when its parent
/// forked.
#[test]
fn forks_while_handlers_are_installed() {
    check("forks_while_handlers_are_installed", || {
        use nix::sys::wait::{WaitStatus, waitpid};
        let stop = AtomicBool::new(false);
        patch_straddler();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut site = Toggled::new();
                while !stop.load(Ordering::Relaxed) {
                    install_handler(Handler::Short(first_short));
                    site.toggle();
                }
            });
            for _ in 0..100 {
                // SAFETY: the child patches, which the handlers for forks prepare, and ends by
                // `_exit`.
                match unsafe { nix::unistd::fork() }.unwrap() {
                    nix::unistd::ForkResult::Child => {
                        // SAFETY: one thread; the alarm ends a child that waits for ever.
                        unsafe {
                            libc::alarm(60);
                            let prepared = wordpatch::text::unshare().is_ok();
                            install_handler(Handler::Short(first_short));
                            patch_straddler();
                            send();
                            libc::_exit(if prepared { 0 } else { 1 })
                        }
                    }
                    nix::unistd::ForkResult::Parent { child } => {
                        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
