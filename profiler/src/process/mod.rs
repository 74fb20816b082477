//! Events of the process around a session: fork, exec, exit, fatal signals.
//!
//! | event | action |
//! | --- | --- |
//! | exit, return from main | report, from the library's destructor |
//! | `_exit`, `_Exit`, `quick_exit` | report, before the program's call continues |
//! | `daemon` | report, because it ends the process; its child starts again |
//! | exec of a file that exists | report, because nothing survives it; the new image starts its own session |
//! | fork | signals are blocked, and our locks are held across it; the child starts again |
//! | fork in a callback of `dl_iterate_phdr` | no lock is held, as others may wait for the callback; the child is not observed |
//! | vfork, posix_spawn | nothing: the child runs in the parent's memory until it calls exec |
//! | a fatal signal with its default action | report, then the default |
//! | the signal of [`Snapshot::Signal`](crate::options::Snapshot) | report; the program goes on |
//! | SIGKILL | nothing can be done |

pub(crate) mod children;
pub mod environment;
pub(crate) mod own_process;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use fastinst::service::{ForkGuard, before_fork, is_forking};
use fastinst_sigsafe::signal::{is_fault, send_again};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::session::snapshot;
use crate::session::{self, Leaving};

/// Whether [`follow`] was called: fatal signals cause a report.
pub fn is_followed() -> bool {
    own_process::is_followed()
}

/// Installs fork handlers and handlers of fatal signals in this process. Called once, after
/// [`session::start`].
pub fn follow() {
    own_process::follow();
    children::begin();
    // First, so that its handlers hold no locks while ours wait for the service thread.
    wordpatch::internal::follow_forks();
    // SAFETY: the three functions are never unloaded, and do only what is permitted around a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    FATAL.iter().for_each(|signal| watch_signal(*signal));
    snapshot::are_handled(is_watched);
}

/// Writes the report when the process ends. Called by the destructor and before `_exit`. Waits as
/// [`session::finish`] does.
pub fn at_exit() {
    if !is_followed() {
        return;
    }
    if own_process::is_this() {
        session::finish(Leaving::Exit);
    } else if wordpatch::text::is_shared_with_parent() {
        session::say(
            "this process was forked without fork() or in a callback of dl_iterate_phdr(), and has no report",
        );
    }
}

/// Writes the report before the process calls exec, unless that is certain to fail. Waits as
/// [`session::finish`] does.
pub fn before_exec(may_succeed: impl FnOnce() -> bool) {
    if own_process::is_this() && session::has_probes() && may_succeed() {
        session::finish(Leaving::Exec);
    }
}

/// What the forking thread has between `prepare` and the handlers after the fork.
struct Forking {
    guard: ForkGuard,
    /// Its signal mask before.
    mask: SigSet,
}

/// See [`Forking`].
struct Held(UnsafeCell<Option<Forking>>);

// SAFETY: only a thread that has a fork guard accesses it, and there is one guard at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Blocks all signals but those of faults in the calling thread, and returns its mask before.
///
/// Our handlers wait for the service thread, which waits for the locks of a fork: the handler of a
/// fatal signal in the forking thread would wait for itself. Other handlers around the fork may
/// fault, or change the mask and restore it.
fn block_signals() -> SigSet {
    let mut mask = SigSet::all();
    FAULTS.iter().for_each(|fault| mask.remove(*fault));
    let mut before = SigSet::empty();
    // Cannot fail: the arguments are valid.
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), Some(&mut before));
    before
}

/// What an instruction or a system call can raise: if it were blocked then, it would be fatal.
const FAULTS: [Signal; 6] =
    [Signal::SIGTRAP, Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGSYS];

extern "C" fn prepare() {
    let mask = block_signals();
    match before_fork() {
        // SAFETY: see `Held`.
        Some(guard) => unsafe { *HELD.0.get() = Some(Forking { guard, mask }) },
        None => restore(mask),
    }
}

fn restore(mask: SigSet) {
    // Cannot fail: the mask was in force before.
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None);
}

/// Releases the locks, does what follows, and lets signals in again. Does nothing if the thread
/// forks without locks.
fn release(then: impl FnOnce()) {
    if !is_forking() {
        return;
    }
    // SAFETY: see `Held`. Removed before it is dropped: dropping permits the next fork.
    let forking = unsafe { (*HELD.0.get()).take() };
    if let Some(Forking { guard, mask }) = forking {
        drop(guard);
        then();
        restore(mask);
    }
}

extern "C" fn in_parent() {
    children::has_forked();
    release(|| {});
}

extern "C" fn in_child() {
    // A signal that comes before the child has its own service thread would not be answered.
    release(|| {
        own_process::follow();
        session::restart_in_child();
    });
}

unsafe extern "C" {
    /// glibc's internal name of `sigaction`: the library that contains this crate exports a
    /// `sigaction` of its own, which hides our handler from programs.
    pub fn __sigaction(
        signal: libc::c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> libc::c_int;
}

/// Signals whose default action ends the process, except for SIGKILL, which cannot be caught, and
/// for real-time signals, which programs send to themselves. (If a program patches straddlers
/// through the C interface, wordpatch handles SIGTRAP and passes on foreign traps.)
pub const FATAL: [libc::c_int; 22] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGUSR1,
    libc::SIGSEGV,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSYS,
];

fn action(function: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all zero is a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = function;
    // SIGINFO: the signal is sent again with its information. ONSTACK: it may be a stack overflow.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

/// The action that replaces the default action of a signal: it writes the report, and then has the
/// default effect unless the signal is the one that only requests a report.
pub fn default_with_report(signal: libc::c_int) -> libc::sigaction {
    if snapshot::is_requested_by(signal) {
        let mut action = action(report as *const () as libc::sighandler_t);
        action.sa_flags |= libc::SA_RESTART;
        return action;
    }
    let mut action = action(report_and_die as *const () as libc::sighandler_t);
    // The process dies of the first of several signals, and handlers of the program, for which
    // there may be no room on the stack, do not run. wordpatch may raise SIGTRAP anywhere.
    let mask = &mut action.sa_mask;
    // SAFETY: the mask is valid memory.
    unsafe {
        libc::sigfillset(mask);
        libc::sigdelset(mask, libc::SIGTRAP);
    }
    action
}

/// Whether `current` is one of our handlers, which are reported to programs as the default.
pub fn is_ours(current: &libc::sigaction) -> bool {
    [report as *const (), report_and_die as *const ()]
        .map(|handler| handler as libc::sighandler_t)
        .contains(&current.sa_sigaction)
}

fn action_of(signal: libc::c_int) -> libc::sigaction {
    let mut current = MaybeUninit::zeroed();
    // SAFETY: reads the action into memory of the right type; all zero is SIG_DFL.
    unsafe {
        __sigaction(signal, std::ptr::null(), current.as_mut_ptr());
        current.assume_init()
    }
}

/// Whether the action of this signal is ours.
fn is_watched(signal: libc::c_int) -> bool {
    is_ours(&action_of(signal))
}

/// Installs our handler for a signal whose action is the default.
fn watch_signal(signal: libc::c_int) {
    let current = action_of(signal);
    // For the signal that requests reports, what the user has asked for counts more than what a
    // parent like nohup has; a handler of the program counts most.
    let is_replaced = current.sa_sigaction == libc::SIG_DFL
        || current.sa_sigaction == libc::SIG_IGN && snapshot::is_requested_by(signal);
    if is_replaced {
        let ours = default_with_report(signal);
        // SAFETY: the handler has the signature of SA_SIGINFO and is async-signal-safe.
        unsafe { __sigaction(signal, &ours, std::ptr::null_mut()) };
    }
}

/// Signal handler: requests a report from the service thread.
extern "C" fn report(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if own_process::is_this() {
        snapshot::request();
    } else {
        // A child that is not profiled has the signal's default action.
        report_and_die(signal, info, context);
    }
}

/// Signal handler: requests the report from the service thread, waits, and then lets the default
/// action happen. Several threads may be in it at the same time: each waits for the report.
extern "C" fn report_and_die(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    if own_process::is_this() {
        session::finish(Leaving::Signal);
    }
    // SAFETY: the kernel's pointer, and async-signal-safe calls on valid memory. A fault is raised
    // again when the instruction is executed again; any other signal is sent to this thread again
    // with its information, and has its default effect once this handler returns.
    unsafe {
        let mut default = action(libc::SIG_DFL);
        default.sa_flags = 0;
        __sigaction(signal, &default, std::ptr::null_mut());
        // If a program that has changed the action by a system call has removed SA_SIGINFO, the
        // memory is not filled in.
        match info.as_ref().filter(|info| info.si_signo == signal) {
            Some(info) if is_fault(info) => {}
            Some(info) => send_again(info),
            None => _ = libc::raise(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FATAL;

    #[test]
    fn all_standard_signals_that_end_a_process_are_fatal() {
        let others = [
            libc::SIGKILL,
            libc::SIGCHLD,
            libc::SIGCONT,
            libc::SIGSTOP,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGURG,
            libc::SIGWINCH,
        ];
        for signal in 1..32 {
            assert_ne!(FATAL.contains(&signal), others.contains(&signal), "{signal}");
        }
    }
}
