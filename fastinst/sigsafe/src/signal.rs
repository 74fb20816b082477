//! Passing a signal on to the action that was in force before a handler of ours was installed.
//!
//! Everything here is async-signal-safe.
//!
//! SIGTRAP is wordpatch's, which does more: it keeps the masks and flags of any number of actions
//! and breaks cycles between handlers.

/// What a signal did before: a function, `SIG_DFL` or `SIG_IGN`, with its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// As `sigaction::sa_sigaction`.
    pub function: libc::sighandler_t,
    /// As `sigaction::sa_flags`.
    pub flags: libc::c_int,
}

/// The signals that an instruction can raise. After such a fault, the thread executes the
/// instruction again when the handler returns. (After SIGSYS, it goes on behind the system call.)
const FAULTS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The signals whose default is that nothing happens.
const IGNORED: [libc::c_int; 4] = [libc::SIGURG, libc::SIGCHLD, libc::SIGWINCH, libc::SIGCONT];

/// Whether a process or a timer sent the signal: no instruction is its cause.
pub fn was_sent(info: &libc::siginfo_t) -> bool {
    info.si_code <= 0
}

/// Whether the instruction that was interrupted has raised the signal, and will do so again if it
/// is executed again.
pub fn is_fault(info: &libc::siginfo_t) -> bool {
    FAULTS.contains(&info.si_signo) && !was_sent(info)
}

/// Sends a signal that this thread is handling to this thread again, with what came with it. It is
/// delivered when the handler returns, or at once if it is not blocked.
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
    /// Does with a signal what this action would have done, in a handler that has replaced it.
    ///
    /// A default that ends the process is put in force again, and takes effect when the handler
    /// returns.
    ///
    /// # Safety
    /// 1. The function is callable with the arguments that the flags ask for.
    /// 2. `info` and `context` are what the kernel has passed to the handler.
    pub unsafe fn take(&self, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's pointer.
        let received = unsafe { &*info };
        let signal = received.si_signo;
        match self.function {
            // The kernel lets nobody ignore a fault.
            libc::SIG_IGN if !is_fault(received) => {}
            libc::SIG_DFL if IGNORED.contains(&signal) => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: async-signal-safe; the default has no function.
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

    /// What the functions below have been called with.
    static CALLED: AtomicI32 = AtomicI32::new(0);
    static INFO: AtomicUsize = AtomicUsize::new(0);
    static CONTEXT: AtomicUsize = AtomicUsize::new(0);
    static VALUE: AtomicUsize = AtomicUsize::new(0);

    /// The actions of a process are global: one test at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static TEST: Mutex<()> = Mutex::new(());
        TEST.lock().unwrap_or_else(|e| e.into_inner())
    }

    extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        CALLED.store(signal, Ordering::Relaxed);
        INFO.store(info.addr(), Ordering::Relaxed);
        CONTEXT.store(context.addr(), Ordering::Relaxed);
        // SAFETY: the kernel's info, or that of the test.
        VALUE.store(unsafe { (*info).si_value() }.sival_ptr.addr(), Ordering::Relaxed);
    }

    extern "C" fn without_info(signal: libc::c_int) {
        CALLED.store(-signal, Ordering::Relaxed);
    }

    /// As a process has sent it, or as an instruction has raised it.
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
        // SAFETY: the functions of this module do not look at the context.
        unsafe { Action { function, flags }.take(info, context) };
    }

    #[test]
    fn a_function_is_called_with_what_its_flags_ask_for() {
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
    fn what_is_ignored_has_no_effect() {
        let _alone = alone();
        take(libc::SIG_IGN, 0, &mut info(libc::SIGTERM, SENT));
        take(libc::SIG_IGN, 0, &mut info(libc::SIGSEGV, SENT));
        for signal in IGNORED {
            take(libc::SIG_DFL, 0, &mut info(signal, SENT));
        }
    }

    #[test]
    fn an_instruction_has_raised_what_has_a_positive_code() {
        let check = |signal, code, expected| assert_eq!(is_fault(&info(signal, code)), expected, "{signal}");
        check(libc::SIGSEGV, RAISED, true);
        check(libc::SIGSEGV, SENT, false);
        check(libc::SIGSEGV, libc::SI_USER, false);
        check(libc::SIGCHLD, RAISED, false);
    }

    #[test]
    fn what_is_sent_again_brings_what_came_with_it() {
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
        // SAFETY: the layout that the kernel gives to the info of a queued signal.
        unsafe { (&raw mut (*(&raw mut sent).cast::<Queued>()).value).write_unaligned(77) };
        CALLED.store(0, Ordering::Relaxed);
        // Not blocked here, so it is delivered at once.
        send_again(&sent);
        assert_eq!(CALLED.load(Ordering::Relaxed), libc::SIGUSR2);
        assert_eq!(VALUE.load(Ordering::Relaxed), 77);
    }

    /// How a child ends that takes the default of a signal which was sent, and then, as it was
    /// raised, executes the instruction again.
    fn ends_by(signal: libc::c_int, code: libc::c_int) -> Option<libc::c_int> {
        // SAFETY: the child uses async-signal-safe calls only, and ends here.
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
    fn a_default_ends_the_process_by_the_signal() {
        let _alone = alone();
        assert_eq!(ends_by(libc::SIGTERM, SENT), Some(libc::SIGTERM));
        assert_eq!(ends_by(libc::SIGSEGV, SENT), Some(libc::SIGSEGV));
        assert_eq!(ends_by(libc::SIGSEGV, RAISED), None, "the instruction will raise it again");
        assert_eq!(ends_by(libc::SIGSYS, RAISED), Some(libc::SIGSYS), "the system call is not repeated");
        assert_eq!(ends_by(libc::SIGURG, SENT), None);
    }
}
