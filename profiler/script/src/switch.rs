//! SIGUSR2 toggles the script of the options: `fastinst run --toggle`.
//!
//! The handler runs in the thread that gets the signal, wherever that thread is. It counts the
//! signal and wakes the [`worker`](crate::worker), which toggles the script; it does not allocate
//! or lock. It is installed only if the signal's action is the default. If the program installs its
//! own handler, that replaces it, and works as it would without this library; [`check`] detects
//! this.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use profiler::process::__sigaction;
use profiler::session;

use crate::{process, ring};

const SIGNAL: libc::c_int = libc::SIGUSR2;

/// The number of signals that the worker has not processed.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// Whether the handler is expected to be installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn handle(_signal: libc::c_int) {
    // A vfork child runs in the memory of its parent.
    if process::is_own_process() {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
        ring::wake_worker();
    }
}

/// The function that handles the signal now, or `SIG_DFL` or `SIG_IGN`.
fn current() -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads the action into memory of the right type; all zero is SIG_DFL.
    unsafe {
        __sigaction(SIGNAL, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}

/// Installs the handler, unless the signal is already ignored or handled, which is reported to the
/// user.
pub(crate) fn install() {
    if current() != libc::SIG_DFL {
        session::say("SIGUSR2 is ignored or handled in this process already: it does not switch the script");
        return;
    }
    // SAFETY: all zero is a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handle as *const () as libc::sighandler_t;
    // RESTART: most system calls of the program continue. ONSTACK: the program's stacks may be
    // small.
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature of an action without SA_SIGINFO, is async-signal-safe,
    // and is never unloaded.
    unsafe { __sigaction(SIGNAL, &action, std::ptr::null_mut()) };
    INSTALLED.store(true, Ordering::Relaxed);
}

/// Reports to the user, once, that the program has installed another action.
pub(crate) fn check() {
    let ours = handle as *const () as libc::sighandler_t;
    if INSTALLED.load(Ordering::Relaxed) && current() != ours {
        INSTALLED.store(false, Ordering::Relaxed);
        session::say("the program uses SIGUSR2 itself: it does not switch the script any more");
    }
}

/// Whether the signals since the last call toggle the script: an odd number does.
pub(crate) fn take_request() -> bool {
    SIGNALS.swap(0, Ordering::Relaxed) % 2 == 1
}
