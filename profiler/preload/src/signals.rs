//! `sigaction` and `signal` for the program: if our handler replaces a default, they report the
//! default, and if the program sets a default, our handler is installed instead.

use libc::{c_int, sighandler_t};
use profiler::process::{__sigaction, FATAL, default_with_report, is_followed, is_ours};
use std::mem::MaybeUninit;

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

/// As in BSD and glibc, the handler stays installed, and interrupted system calls are restarted.
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: all zero is a valid action.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    let mut old = new;
    // SAFETY: valid actions; the caller is responsible for the handler.
    unsafe {
        libc::sigaddset(&mut new.sa_mask, signal);
        if sigaction(signal, &new, &mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}
