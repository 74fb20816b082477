//! Forked children, whose checks do not use the test harness.

use nix::sys::wait::{WaitStatus, waitpid};

/// Ends a forked child with a line on stderr, without using the test harness.
pub fn fail(line: &str) -> ! {
    // SAFETY: both are async-signal-safe.
    unsafe {
        libc::write(2, line.as_ptr().cast(), line.len());
        libc::write(2, c"\n".as_ptr().cast(), 1);
        libc::_exit(1)
    }
}

pub fn check(holds: bool, line: &str) {
    if !holds {
        fail(line);
    }
}

/// Forks; the child runs `child`, the parent runs `parent` and then checks that the child has
/// succeeded.
#[track_caller]
pub fn fork(child: impl FnOnce(), parent: impl FnOnce()) {
    // SAFETY: the child uses nothing that another thread may hold, and ends by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            child();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child: process } => {
            // With the child's ends of pipes: the parent must not wait for a child that has failed.
            drop(child);
            parent();
            assert_eq!(waitpid(process, None).unwrap(), WaitStatus::Exited(process, 0));
        }
    }
}
