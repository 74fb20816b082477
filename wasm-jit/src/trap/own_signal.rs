//! The signal that the engine sends to a thread. Its handler tells it from the same signal of
//! another sender, for example of a runtime that uses it for itself, by the value that it carries.

use std::io;
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
/// a thread. Without its value if the system does not permit that (a filter of system calls): then
/// it counts as another sender's, too.
pub(super) fn send(thread: libc::pid_t, signal: i32) {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: take nothing and touch no memory.
    let (process, user) = unsafe { (libc::getpid(), libc::getuid()) };
    let (code, value) = (libc::SI_QUEUE, mark());
    let head = Queued { signal, error: 0, code, padding: 0, process, user, value };
    // SAFETY: the information is larger than its head, and aligned as it is.
    unsafe { info.as_mut_ptr().cast::<Queued>().write(head) };
    // SAFETY: the kernel reads the information.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info.as_ptr()) };
    if result != 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        // SAFETY: touches no memory.
        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    }
}

/// Whether the engine has sent this signal, or may have: the kernel leaves out the value, and names
/// no sender, if too many signals are queued (RLIMIT_SIGPENDING). Async-signal-safe.
pub(super) fn is_own(info: &libc::siginfo_t) -> bool {
    match info.si_code {
        // SAFETY: a signal with this code has a value.
        libc::SI_QUEUE => unsafe { info.si_value() }.sival_ptr.addr() == mark(),
        // SAFETY: a signal with this code has a sender.
        libc::SI_USER => (unsafe { info.si_pid() }) == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel reports a signal whose information it could not queue.
    #[test]
    fn a_signal_without_information_may_be_the_engines() {
        let information = |code, process| {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            let head = Queued { signal: 23, error: 0, code, padding: 0, process, user: 0, value: 0 };
            // SAFETY: as in `send`; all bytes are initialized.
            unsafe {
                info.as_mut_ptr().cast::<Queued>().write(head);
                info.assume_init()
            }
        };
        assert!(is_own(&information(libc::SI_USER, 0)));
        assert!(!is_own(&information(libc::SI_USER, 4711)), "kill");
        assert!(!is_own(&information(libc::SI_QUEUE, 4711)), "another value");
    }
}
