//! The kernel's id of a thread.

/// The kernel's id of the calling thread. Async-signal-safe.
pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: accesses no memory, and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}
