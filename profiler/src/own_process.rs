//! The process that is profiled. Another one that runs this code is a vfork child, in our memory,
//! or a child that was made without fork handlers.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Its id; 0 as long as forks are not followed.
static OWN: AtomicU32 = AtomicU32::new(0);

/// From now on, the calling process is the one. Called at the start, and in forked children.
pub(crate) fn follow() {
    OWN.store(std::process::id(), Relaxed);
}

/// Whether forks are followed.
pub(crate) fn is_followed() -> bool {
    OWN.load(Relaxed) != 0
}

/// Whether this is it, and not another one, as far as that is known.
pub(crate) fn may_be_this() -> bool {
    !is_followed() || is_this()
}

/// Whether this is certainly it. System call: `getpid`.
pub(crate) fn is_this() -> bool {
    OWN.load(Relaxed) == std::process::id()
}
