//! The functions of the C library that set actions of signals, for the program: if our handler
//! replaces a default, they report the default, and if the program sets a default, our handler is
//! installed instead.
//!
//! In addition to `sigaction`, these are `signal` with its variants, and those whose result depends
//! on them: glibc's own versions of these would not call our `sigaction`. (`sigignore` returns no
//! action.) Programs may call them in signal handlers.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, sighandler_t};
use profiler::process::{__sigaction, FATAL, default_with_report, is_followed, is_ours};

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null or the caller's action, by the contract of sigaction(2).
    let wanted = unsafe { new.as_ref() };
    let replacement;
    let new = match wanted {
        Some(wanted) if wanted.sa_sigaction == libc::SIG_DFL && FATAL.contains(&signal) && is_followed() => {
            replacement = default_with_report(signal);
            &raw const replacement
        }
        _ => new,
    };
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the caller's action or ours, and memory of the right type.
    let result = unsafe { __sigaction(signal, new, before.as_mut_ptr()) };
    if result != 0 {
        return result;
    }
    // SAFETY: written by the call, and all zero is valid too.
    let mut before = unsafe { before.assume_init() };
    if is_ours(&before) {
        // SAFETY: all zero is a valid action: the default.
        before = unsafe { MaybeUninit::zeroed().assume_init() };
    }
    // SAFETY: null or the caller's memory for an action.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// The signals that interrupt system calls although [`signal`] sets their handlers, by
/// [`siginterrupt`]: bit `n` - 1 is signal `n`.
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

/// The bit of a signal; 0 if there is no such signal.
fn bit(signal: c_int) -> u64 {
    let number = signal.checked_sub(1).and_then(|number| u32::try_from(number).ok());
    number.and_then(|number| 1_u64.checked_shl(number)).unwrap_or(0)
}

/// Sets a handler with these flags, and returns the previous one.
///
/// # Safety
/// The handler is one for this signal.
unsafe fn set(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if handler == libc::SIG_ERR {
        // SAFETY: the thread's own variable.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return libc::SIG_ERR;
    }
    // SAFETY: all zero is a valid action.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    let mut old = new;
    // SAFETY: valid actions; the caller is responsible for the handler.
    unsafe {
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        if sigaction(signal, &new, &mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}

macro_rules! set_by_name {
    ($($name:ident => $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller's obligation.
            unsafe { set(signal, handler, ($flags)(signal)) }
        }
    )*};
}

set_by_name! {
    signal => bsd;
    bsd_signal => bsd;
    ssignal => bsd;
    sysv_signal => system_v;
    // The name that `signal` has in programs for POSIX only (-D_XOPEN_SOURCE, -ansi).
    __sysv_signal => system_v;
}

/// The handler stays installed, and interrupted system calls are restarted.
fn bsd(signal: c_int) -> c_int {
    if INTERRUPT.load(Ordering::Relaxed) & bit(signal) == 0 { libc::SA_RESTART } else { 0 }
}

/// The handler is valid for one signal, and that signal is not blocked while it runs.
fn system_v(_: c_int) -> c_int {
    libc::SA_RESETHAND | libc::SA_NODEFER
}

#[unsafe(no_mangle)]
unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: memory of the right type.
    if unsafe { sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return -1;
    }
    // SAFETY: written by the call.
    let mut action = unsafe { action.assume_init() };
    if interrupts == 0 {
        INTERRUPT.fetch_and(!bit(signal), Ordering::Relaxed);
        action.sa_flags |= libc::SA_RESTART;
    } else {
        INTERRUPT.fetch_or(bit(signal), Ordering::Relaxed);
        action.sa_flags &= !libc::SA_RESTART;
    }
    // SAFETY: the action that was in force, with another flag.
    unsafe { sigaction(signal, &action, std::ptr::null_mut()) }
}

/// The action of `sigset` that blocks the signal, and the result if it was blocked.
const SIG_HOLD: sighandler_t = 2;

/// The signal is blocked or unblocked as well.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let holds = handler == SIG_HOLD;
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: valid memory; the caller is responsible for the handler.
    unsafe {
        let previous = if !holds {
            set(signal, handler, 0)
        } else if sigaction(signal, std::ptr::null(), old.as_mut_ptr()) == 0 {
            old.assume_init().sa_sigaction
        } else {
            libc::SIG_ERR
        };
        if previous == libc::SIG_ERR {
            return previous;
        }
        let mut mask = MaybeUninit::zeroed();
        libc::sigemptyset(mask.as_mut_ptr());
        libc::sigaddset(mask.as_mut_ptr(), signal);
        let mut before = mask;
        let how = if holds { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        if libc::pthread_sigmask(how, mask.as_ptr(), before.as_mut_ptr()) != 0 {
            return libc::SIG_ERR;
        }
        if libc::sigismember(before.as_ptr(), signal) == 1 { SIG_HOLD } else { previous }
    }
}
