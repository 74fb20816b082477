//! Forwards signals to the action that was in force before one of our handlers was installed.
//!
//! Everything here is async-signal-safe.
//!
//! SIGTRAP is handled by wordpatch, which does more: it keeps the masks and flags of any number of
//! actions and breaks cycles between handlers.

/// The previous action of a signal: a function, `SIG_DFL` or `SIG_IGN`, with its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// The handler, `SIG_DFL` or `SIG_IGN`, as in `sigaction::sa_sigaction`.
    pub function: libc::sighandler_t,
    /// The flags, as in `sigaction::sa_flags`.
    pub flags: libc::c_int,
}

/// The signals that an instruction can raise. After such a fault, the thread executes the
/// instruction again when the handler returns. (After SIGSYS, it continues after the system call.)
const FAULTS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The signals whose default action has no effect on a running process.
const IGNORED: [libc::c_int; 4] = [libc::SIGURG, libc::SIGCHLD, libc::SIGWINCH, libc::SIGCONT];

/// Whether the signal was sent by a process or a timer rather than caused by an instruction.
pub fn was_sent(info: &libc::siginfo_t) -> bool {
    info.si_code <= 0
}

/// Whether the interrupted instruction has raised the signal, and will raise it again if it is
/// executed again.
pub fn is_fault(info: &libc::siginfo_t) -> bool {
    FAULTS.contains(&info.si_signo) && !was_sent(info)
}

/// Sends the signal that this thread is handling to this thread again, with the same info. It is
/// delivered when the handler returns, or immediately if it is not blocked.
pub fn send_again(info: &libc::siginfo_t) {
    // SAFETY: the calls read the info, and are async-signal-safe.
    unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let info: *const libc::siginfo_t = info;
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, (*info).si_signo, info) != 0 {
            libc::raise((*info).si_signo);
        }
    }
}

impl Action {
    /// Performs this action for a signal, inside the handler that has replaced it.
    ///
    /// If the default action ends the process, it is installed again, and takes effect when the
    /// handler returns.
    ///
    /// # Safety
    /// 1. The function is callable with the arguments that the flags require.
    /// 2. `info` and `context` are those that the kernel has passed to the handler.
    pub unsafe fn take(&self, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the pointer is the kernel's.
        let received = unsafe { &*info };
        let signal = received.si_signo;
        match self.function {
            // The kernel does not allow a fault to be ignored.
            libc::SIG_IGN if !is_fault(received) => {}
            libc::SIG_DFL if IGNORED.contains(&signal) => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: async-signal-safe; the default action has no function.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
                if !is_fault(received) {
                    send_again(received);
                }
            }
            function if self.flags & libc::SA_SIGINFO != 0 => {
                type Function = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: the caller's first obligation.
                let function = unsafe { std::mem::transmute::<usize, Function>(function) };
                function(signal, info, context);
            }
            function => {
                // SAFETY: the caller's first obligation.
                let function = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(function) };
                function(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    /// The arguments of the last call to the functions below.
    static CALLED: AtomicI32 = AtomicI32::new(0);
    static INFO: AtomicUsize = AtomicUsize::new(0);
    static CONTEXT: AtomicUsize = AtomicUsize::new(0);
    static VALUE: AtomicUsize = AtomicUsize::new(0);

    /// Excludes other tests: the actions of a process are global.
    fn alone() -> MutexGuard<'static, ()> {
        static TEST: Mutex<()> = Mutex::new(());
        TEST.lock().unwrap_or_else(|e| e.into_inner())
    }

    extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        CALLED.store(signal, Ordering::Relaxed);
        INFO.store(info.addr(), Ordering::Relaxed);
        CONTEXT.store(context.addr(), Ordering::Relaxed);
        // SAFETY: the info is the kernel's or the test's.
        VALUE.store(unsafe { (*info).si_value() }.sival_ptr.addr(), Ordering::Relaxed);
    }

    extern "C" fn without_info(signal: libc::c_int) {
        CALLED.store(-signal, Ordering::Relaxed);
    }

    /// The info of a signal that was sent by a process, or raised by an instruction.
    fn info(signal: libc::c_int, code: libc::c_int) -> libc::siginfo_t {
        // SAFETY: all zero is valid.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        (info.si_signo, info.si_code) = (signal, code);
        info
    }

    const RAISED: libc::c_int = 1;
    const SENT: libc::c_int = libc::SI_QUEUE;

    fn take(function: libc::sighandler_t, flags: libc::c_int, info: &mut libc::siginfo_t) {
        let context = std::ptr::without_provenance_mut(8);
        // SAFETY: the functions of this module do not read the context.
        unsafe { Action { function, flags }.take(info, context) };
    }

    #[test]
    fn a_function_is_called_with_the_arguments_that_its_flags_require() {
        let _alone = alone();
        let mut info = info(libc::SIGUSR1, SENT);
        take(with_info as *const () as usize, libc::SA_SIGINFO, &mut info);
        assert_eq!(CALLED.load(Ordering::Relaxed), libc::SIGUSR1);
        assert_eq!(INFO.load(Ordering::Relaxed), (&raw const info).addr());
        assert_eq!(CONTEXT.load(Ordering::Relaxed), 8);
        take(without_info as *const () as usize, 0, &mut info);
        assert_eq!(CALLED.load(Ordering::Relaxed), -libc::SIGUSR1);
    }

    #[test]
    fn ignored_signals_have_no_effect() {
        let _alone = alone();
        take(libc::SIG_IGN, 0, &mut info(libc::SIGTERM, SENT));
        take(libc::SIG_IGN, 0, &mut info(libc::SIGSEGV, SENT));
        for signal in IGNORED {
            take(libc::SIG_DFL, 0, &mut info(signal, SENT));
        }
    }

    #[test]
    fn signals_with_a_positive_code_are_faults() {
        let check = |signal, code, expected| assert_eq!(is_fault(&info(signal, code)), expected, "{signal}");
        check(libc::SIGSEGV, RAISED, true);
        check(libc::SIGSEGV, SENT, false);
        check(libc::SIGSEGV, libc::SI_USER, false);
        check(libc::SIGCHLD, RAISED, false);
    }

    #[test]
    fn a_signal_is_sent_again_with_its_info() {
        let _alone = alone();
        // SAFETY: all zero is a valid action, and `with_info` has the signature of SA_SIGINFO.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = with_info as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
        }
        #[repr(C)]
        struct Queued {
            signal: libc::c_int,
            error: libc::c_int,
            code: libc::c_int,
            _padding: libc::c_int,
            process: libc::pid_t,
            user: libc::uid_t,
            value: usize,
        }
        let mut sent = info(libc::SIGUSR2, SENT);
        // SAFETY: this is the kernel's layout of the info of a queued signal.
        unsafe { (&raw mut (*(&raw mut sent).cast::<Queued>()).value).write_unaligned(77) };
        CALLED.store(0, Ordering::Relaxed);
        // Not blocked here, so it is delivered immediately.
        send_again(&sent);
        assert_eq!(CALLED.load(Ordering::Relaxed), libc::SIGUSR2);
        assert_eq!(VALUE.load(Ordering::Relaxed), 77);
    }

    /// The signal that ends a child which performs the default action of `signal` and then exits,
    /// if any. (A fault's instruction is not executed again here.)
    fn ends_by(signal: libc::c_int, code: libc::c_int) -> Option<libc::c_int> {
        // SAFETY: the child makes only async-signal-safe calls, and ends here.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                take(libc::SIG_DFL, 0, &mut info(signal, code));
                libc::_exit(3);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
        }
    }

    #[test]
    fn default_actions_end_the_process_by_the_signal() {
        let _alone = alone();
        assert_eq!(ends_by(libc::SIGTERM, SENT), Some(libc::SIGTERM));
        assert_eq!(ends_by(libc::SIGSEGV, SENT), Some(libc::SIGSEGV));
        assert_eq!(ends_by(libc::SIGSEGV, RAISED), None, "the instruction will raise it again");
        assert_eq!(ends_by(libc::SIGSYS, RAISED), Some(libc::SIGSYS), "the system call is not repeated");
        assert_eq!(ends_by(libc::SIGURG, SENT), None);
    }
}
