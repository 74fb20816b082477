//! The profiled process. Any other process that runs this code is a vfork child, in our memory, or
//! a child that was created without fork handlers.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The id of the profiled process; 0 as long as forks are not followed.
static OWN: AtomicU32 = AtomicU32::new(0);

/// Makes the calling process the profiled one. Called at the start, and in forked children.
pub(crate) fn follow() {
    OWN.store(std::process::id(), Relaxed);
}

/// Whether forks are followed.
pub(crate) fn is_followed() -> bool {
    OWN.load(Relaxed) != 0
}

/// Whether this is the profiled process, as far as that is known.
pub(crate) fn may_be_this() -> bool {
    !is_followed() || is_this()
}

/// Whether this is certainly the profiled process. System call: `getpid`.
pub(crate) fn is_this() -> bool {
    OWN.load(Relaxed) == std::process::id()
}
