//! The profiled process. Any other process that runs this code is a vfork child, in our memory, or
//! a child that was created without fork handlers.

use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use fastinst::internal::clock_of;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

/// The id of the profiled process; 0 as long as forks are not followed.
static OWN: AtomicI32 = AtomicI32::new(0);

/// Makes the calling process the profiled one. Called at the start, and in forked children.
pub(crate) fn follow() {
    // SAFETY: only returns a number.
    OWN.store(unsafe { libc::getpid() }, Relaxed);
}

/// Whether forks are followed.
pub(crate) fn is_followed() -> bool {
    OWN.load(Relaxed) != 0
}

/// Whether this is the profiled process, as far as that is known.
pub(crate) fn may_be_this() -> bool {
    !is_followed() || is_this()
}

/// Whether this is the profiled process, according to the clock of its main thread, which other
/// processes cannot read. If the kernel does not say, because the program has forbidden the call,
/// it is this process: children that are made without fork handlers are rare.
///
/// System call: `clock_gettime`, as in every thread's first probe, rather than `getpid`, which a
/// program that permits few calls may have forbidden.
pub(crate) fn is_this() -> bool {
    let own = OWN.load(Relaxed);
    if own == 0 {
        return false;
    }
    // Probes must not change the program's.
    let errno = Errno::last_raw();
    let time = clock_gettime(ClockId::from_raw(clock_of(own as u32)));
    Errno::set_raw(errno);
    time != Err(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn threads_are_of_this_process_and_children_are_not() {
        follow();
        assert!(is_this());
        assert!(std::thread::spawn(is_this).join().expect("it does not panic"));
        // SAFETY: the child calls only what is async-signal-safe.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                Errno::set_raw(7);
                let is_other = !is_this() && Errno::last_raw() == 7;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!is_other)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
    }
}
