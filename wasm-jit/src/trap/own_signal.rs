//! The signal that the engine sends to a thread. Its handler tells it from the same signal of
//! another sender, for example of a runtime that uses it for itself, by the value that it carries.

use std::mem::MaybeUninit;

/// Its address is the value.
static MARK: u8 = 0;

fn mark() -> usize {
    (&raw const MARK).addr()
}

/// The head of the information about a signal that was sent with a value, as the kernel lays it
/// out.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    process: libc::pid_t,
    user: libc::uid_t,
    value: usize,
}

/// Sends a signal, for which a handler is installed, to a thread of this process, if there is such
/// a thread.
pub(super) fn send(thread: libc::pid_t, signal: i32) {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: take nothing and touch no memory.
    let (process, user) = unsafe { (libc::getpid(), libc::getuid()) };
    let (code, value) = (libc::SI_QUEUE, mark());
    let head = Queued { signal, error: 0, code, padding: 0, process, user, value };
    // SAFETY: the information is larger than its head, and aligned as it is.
    unsafe { info.as_mut_ptr().cast::<Queued>().write(head) };
    // SAFETY: the kernel reads the information.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info.as_ptr()) };
}

/// Whether the engine has sent this signal. Async-signal-safe.
pub(super) fn is_own(info: &libc::siginfo_t) -> bool {
    // SAFETY: a signal with this code has a value.
    info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr.addr() == mark()
}
