//! Wakes the thread that does the profiler's work: the service thread of fastinst or, in an engine,
//! the thread of [`crate::embedded`]. Probes may do so: nothing here allocates or locks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use fastinst_sigsafe::futex;

/// Whether there is a thread of [`crate::embedded`].
static IS_EMBEDDED: AtomicBool = AtomicBool::new(false);

/// The number of notifications; the futex on which this thread sleeps.
static NOTIFICATIONS: AtomicU32 = AtomicU32::new(0);

/// Makes the thread of [`crate::embedded`] the one that is woken. Returns whether it was already.
pub(crate) fn begin() -> bool {
    IS_EMBEDDED.swap(true, Ordering::AcqRel)
}

/// Makes the service thread the one that is woken.
pub(crate) fn end() {
    IS_EMBEDDED.store(false, Ordering::Release);
}

/// Wakes the thread.
pub(crate) fn notify() {
    if !IS_EMBEDDED.load(Ordering::Relaxed) {
        return fastinst::service::notify();
    }
    NOTIFICATIONS.fetch_add(1, Ordering::Release);
    futex::wake(&NOTIFICATIONS);
}

/// The number of notifications of an embedded profiler's thread.
pub(crate) fn count() -> u32 {
    NOTIFICATIONS.load(Ordering::Acquire)
}

/// Waits until there are more notifications than `seen`, or until `deadline`; returns their number.
pub(crate) fn wait(seen: u32, deadline: Instant) -> u32 {
    futex::wait(&NOTIFICATIONS, seen, deadline);
    count()
}
