//! An action for SIGTRAP keeps its semantics after a patch has covered it: flags, mask, SIG_IGN and
//! SIG_DFL.

mod common;

use std::arch::naked_asm;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use common::alone::{alone, dies_of, reached};
use common::sigtrap::{
    Context, Handler, Info, action, breakpoint, install, install_handler, locked_site, none, patch_straddler,
    send,
};
use common::{A, call, with_window};
use wordpatch::FetchWindow;

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn calls() -> u32 {
    CALLS.load(Ordering::Relaxed)
}

/// Makes a patch that needs the trap handler, and thus covers the action.
fn cover(action: &libc::sigaction) {
    install(action);
    let _model = with_window(FetchWindow::Bytes8);
    patch_straddler();
}

#[test]
fn the_default_kills_for_a_breakpoint() {
    dies_of(libc::SIGTRAP, "the_default_kills_for_a_breakpoint", || {
        cover(&none(libc::SIG_DFL));
        reached();
        breakpoint();
    });
}

#[test]
fn the_default_kills_for_a_sent_signal() {
    dies_of(libc::SIGTRAP, "the_default_kills_for_a_sent_signal", || {
        cover(&none(libc::SIG_DFL));
        reached();
        send();
    });
}

/// The handler below does not pass on the address of the kernel's frame.
#[test]
fn the_default_kills_where_the_frame_is_not_known() {
    dies_of(libc::SIGTRAP, "the_default_kills_where_the_frame_is_not_known", || {
        static OLD: common::sigtrap::Saved = common::sigtrap::Saved::new();
        extern "C" fn chaining(signal: libc::c_int) {
            OLD.call(signal);
            unreachable!("the default action has not ended the process");
        }
        cover(&none(libc::SIG_DFL));
        OLD.replace_by(Handler::Short(chaining));
        reached();
        breakpoint();
    });
}

/// The handler was installed first and calls itself through our entry: no other handler is left for
/// the trap.
#[test]
fn the_default_kills_at_the_end_of_a_cycle() {
    dies_of(libc::SIGTRAP, "the_default_kills_at_the_end_of_a_cycle", || {
        static OLD: common::sigtrap::Saved = common::sigtrap::Saved::new();
        extern "C" fn chaining(signal: libc::c_int, info: Info, context: Context) {
            OLD.call_with(signal, info, context);
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        let chaining = action(Handler::Long(chaining), 0, &[]);
        cover(&chaining);
        OLD.set(install(&chaining));
        cover(&chaining);
        reached();
        breakpoint();
    });
}

/// A handler may change the mask that is restored when it returns.
#[test]
fn the_default_kills_where_a_handler_has_blocked_the_signal() {
    dies_of(libc::SIGTRAP, "the_default_kills_where_a_handler_has_blocked_the_signal", || {
        static OLD: common::sigtrap::Saved = common::sigtrap::Saved::new();
        extern "C" fn blocking(signal: libc::c_int, info: Info, context: Context) {
            // SAFETY: the kernel's context; its mask is one word, which has SIGTRAP.
            unsafe {
                libc::sigaddset(&mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, libc::SIGTRAP);
            }
            OLD.call_with(signal, info, context);
        }
        cover(&none(libc::SIG_DFL));
        OLD.replace_by(Handler::Long(blocking));
        reached();
        breakpoint();
    });
}

#[test]
fn an_ignored_signal_is_ignored_when_it_is_sent() {
    alone("an_ignored_signal_is_ignored_when_it_is_sent", || {
        cover(&none(libc::SIG_IGN));
        send();
    });
}

/// A signal that is forced by an instruction cannot be ignored.
#[test]
fn an_ignored_signal_kills_for_a_breakpoint() {
    dies_of(libc::SIGTRAP, "an_ignored_signal_kills_for_a_breakpoint", || {
        cover(&none(libc::SIG_IGN));
        send();
        reached();
        breakpoint();
    });
}

/// A core dump shows the cause: the process dies at the breakpoint, with the kernel's information
/// about the signal, and not in the handler.
#[test]
fn the_default_action_is_taken_at_the_breakpoint() {
    alone("the_default_action_is_taken_at_the_breakpoint", || {
        cover(&none(libc::SIG_IGN));
        let place = common::text(0, &[0xcc, common::RET]);
        // SAFETY: `int3; ret`.
        let breakpoint: extern "C" fn() = unsafe { std::mem::transmute(place) };
        // SAFETY: the child uses nothing that another thread may hold, and does not return.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                let mut mask = nix::sys::signal::SigSet::empty();
                mask.add(nix::sys::signal::Signal::SIGUSR1);
                mask.thread_block().unwrap();
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                breakpoint();
                libc::_exit(0)
            }
        }
        // The address and code that the tracer finds at each signal.
        let mut stops = Vec::new();
        loop {
            let mut status = 0;
            // SAFETY: our own child, stopped for each call of ptrace; both structures may be all
            // zero.
            unsafe {
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                if !libc::WIFSTOPPED(status) {
                    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP);
                    break;
                }
                let mut registers: libc::user_regs_struct = std::mem::zeroed();
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::ptrace(libc::PTRACE_GETREGS, child, 0, &mut registers);
                libc::ptrace(libc::PTRACE_GETSIGINFO, child, 0, &mut info);
                stops.push((registers.rip as usize, info.si_code));
                libc::ptrace(libc::PTRACE_CONT, child, 0, libc::WSTOPSIG(status));
            }
        }
        assert_eq!(stops, [(place + 1, 0x80); 2], "the trap, and the fatal signal");
    });
}

#[test]
fn a_one_shot_handler_is_called_once() {
    dies_of(libc::SIGTRAP, "a_one_shot_handler_is_called_once", || {
        let once = action(Handler::Short(count), libc::SA_RESETHAND, &[]);
        for round in 1..=3 {
            cover(&once);
            breakpoint();
            assert_eq!(calls(), round);
        }
        reached();
        send();
    });
}

#[test]
fn the_signals_of_its_mask_are_blocked_in_a_handler() {
    static BLOCKED: AtomicU32 = AtomicU32::new(0);
    /// The signals that this thread blocks: SIGUSR1, SIGUSR2, SIGTRAP.
    fn blocked() -> u32 {
        let mask = nix::sys::signal::SigSet::thread_get_mask().unwrap();
        let signals = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGTRAP];
        let bit = |signal| u32::from(mask.contains(nix::sys::signal::Signal::try_from(signal).unwrap()));
        signals.iter().enumerate().map(|(number, signal)| bit(*signal) << number).sum()
    }
    extern "C" fn look(_: libc::c_int) {
        BLOCKED.store(8 | blocked(), Ordering::Relaxed);
    }
    static OLD: common::sigtrap::Saved = common::sigtrap::Saved::new();
    static AFTER: AtomicU32 = AtomicU32::new(0);
    extern "C" fn chaining(signal: libc::c_int, info: Info, context: Context) {
        OLD.call_with(signal, info, context);
        AFTER.store(8 | blocked(), Ordering::Relaxed);
    }
    alone("the_signals_of_its_mask_are_blocked_in_a_handler", || {
        cover(&action(Handler::Short(look), 0, &[libc::SIGUSR1, libc::SIGTRAP]));
        breakpoint();
        assert_eq!(BLOCKED.load(Ordering::Relaxed), 8 | 1, "SIGTRAP must not be blocked");
        assert_eq!(blocked(), 0);
        cover(&action(Handler::Short(look), 0, &[]));
        breakpoint();
        assert_eq!(BLOCKED.load(Ordering::Relaxed), 8);
        // A handler that is called by another also has its own mask, only while it runs.
        cover(&action(Handler::Short(look), 0, &[libc::SIGUSR1]));
        OLD.set(install(&action(Handler::Long(chaining), 0, &[libc::SIGUSR2])));
        cover(&action(Handler::Long(chaining), 0, &[libc::SIGUSR2]));
        breakpoint();
        assert_eq!((BLOCKED.load(Ordering::Relaxed), AFTER.load(Ordering::Relaxed)), (8 | 3, 8 | 2));
        assert_eq!(blocked(), 0);
    });
}

/// Calls a function with `stack` as the stack pointer.
#[unsafe(naked)]
unsafe extern "C" fn call_on(stack: usize, function: usize) -> u32 {
    naked_asm!("push rbx", "mov rbx, rsp", "mov rsp, rdi", "call rsi", "mov rsp, rbx", "pop rbx", "ret")
}

/// A stack of one page, with an inaccessible page below it.
fn tiny_stack() -> usize {
    let size = 3 * 4096;
    let (none, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; its second page becomes writable.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), size, none, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(start.byte_add(4096), 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
        start as usize + 4096
    }
}

#[test]
fn a_locked_site_on_a_stack_without_room_for_a_signal() {
    alone("a_locked_site_on_a_stack_without_room_for_a_signal", || {
        let _model = with_window(FetchWindow::Bytes8);
        let (site, outstanding) = locked_site();
        let mut room = vec![0u8; 1 << 16];
        let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
        // SAFETY: the stack outlives its use; `mov eax, A; ret` needs one word of the other one.
        let value = unsafe {
            assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
            let value = call_on(tiny_stack() + 64, site);
            let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..stack };
            assert_eq!(libc::sigaltstack(&none, std::ptr::null_mut()), 0);
            value
        };
        assert_eq!(value, A);
        outstanding.finish().unwrap();
    });
}

/// A line of `/proc/self/task/<thread>/status`.
fn status(thread: libc::pid_t, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

/// Sends SIGTRAP to a thread that waits in `read`. Returns the result of `read`: 1 if it was
/// restarted until there was a byte to read, or -1 if it was interrupted.
fn interrupted_read() -> isize {
    let mut pipe = [0; 2];
    // SAFETY: two descriptors are written.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let thread = AtomicI32::new(0);
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            thread.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            let mut byte = 0u8;
            // SAFETY: one byte is written.
            let result = unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
            done.store(true, Ordering::Release);
            result
        });
        while thread.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let id = thread.load(Ordering::Relaxed);
        let sleeps = || done.load(Ordering::Acquire) || status(id, "State").starts_with('S');
        let wait_until = |condition: &dyn Fn() -> bool| {
            while !condition() {
                std::thread::yield_now();
            }
        };
        wait_until(&sleeps);
        // SAFETY: the thread has not ended: it waits for the byte that is written below.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGTRAP) };
        // The signal has been handled, and the call has returned or waits again.
        let is_taken =
            || u64::from_str_radix(&status(id, "SigPnd"), 16).unwrap() & 1 << (libc::SIGTRAP - 1) == 0;
        wait_until(&|| done.load(Ordering::Acquire) || is_taken() && sleeps());
        // SAFETY: one byte is read.
        assert_eq!(unsafe { libc::write(pipe[1], [0u8].as_ptr().cast(), 1) }, 1);
        reader.join().unwrap()
    });
    // SAFETY: descriptors of this function, which are not used any more.
    unsafe { (libc::close(pipe[0]), libc::close(pipe[1])) };
    result
}

#[test]
fn system_calls_are_interrupted_as_the_action_says() {
    alone("system_calls_are_interrupted_as_the_action_says", || {
        let restarting = action(Handler::Short(count), libc::SA_RESTART, &[]);
        let interrupting = action(Handler::Short(count), 0, &[]);
        for (action, expected) in [(&restarting, 1), (&interrupting, -1), (&none(libc::SIG_IGN), 1)] {
            install(action);
            assert_eq!(interrupted_read(), expected, "by the kernel");
            cover(action);
            assert_eq!(interrupted_read(), expected, "by us");
        }
        assert_eq!(calls(), 4);
    });
}

#[test]
fn the_seventeenth_handler_is_refused_and_kept() {
    alone("the_seventeenth_handler_is_refused_and_kept", || {
        let _model = with_window(FetchWindow::Bytes8);
        let distinct = |number: libc::c_int| action(Handler::Short(count), 0, &[libc::SIGRTMIN() + number]);
        for number in 0..16 {
            cover_again(&distinct(number));
        }
        let last = install_handler(Handler::Short(count));
        let site = common::functions(1, common::STRADDLING)[0];
        // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
        let refused = unsafe { wordpatch::patch(site, &common::mov_eax(A), &common::mov_eax(7)) };
        assert!(matches!(refused, Err(wordpatch::Error::TrapHandlersExhausted { limit: 16 })), "{refused:?}");
        assert_eq!(call(site), A);
        send();
        assert_eq!(calls(), 1);
        install(&last);
        patch_straddler();
    });
}

/// As [`cover`], if the fetch model is in force already.
fn cover_again(action: &libc::sigaction) {
    install(action);
    patch_straddler();
}
