//! The threads that a forked child has: of its parent's threads, the one that has forked. What a
//! child finds about the others, such as stores that they were running, is never changed again.
//!
//! Forks that run no handlers (a raw `clone`) are not noticed.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::state::current_thread;
use super::{code_in_use, look};

/// How many forks there were from the first process, by way of its descendants, to this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The thread that has forked this process, as [`current_thread`] names it; 0 in the first process.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// The kernel's id of that thread in this process.
static FORKER_HERE: AtomicI32 = AtomicI32::new(0);

/// Registers the handler of `fork`, unless that was done. Does not wait for another thread that
/// does the same: the handler may run twice.
pub(crate) fn follow() {
    static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);
    if IS_FOLLOWED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the function is never unloaded, and does only what is allowed in a forked child.
    if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0 {
        IS_FOLLOWED.store(true, Ordering::Release);
    }
}

extern "C" fn in_child() {
    FORKER.store(current_thread(), Ordering::Relaxed);
    // SAFETY: takes nothing and touches no memory.
    FORKER_HERE.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    code_in_use::in_child();
    look::in_child();
}

/// Identifies this process among its ancestors.
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether the thread with which something was recorded in this generation may exist here.
pub(super) fn may_exist(thread: i32, recorded_in: u32) -> bool {
    recorded_in == generation() || thread == FORKER.load(Ordering::Relaxed)
}

/// The kernel's id of a thread that [`current_thread`] names so.
pub(super) fn kernel_id(thread: i32) -> i32 {
    if thread == FORKER.load(Ordering::Relaxed) { FORKER_HERE.load(Ordering::Relaxed) } else { thread }
}

/// As [`current_thread`]. Async-signal-safe.
pub(super) fn current_thread_in_handler() -> i32 {
    // SAFETY: takes nothing and touches no memory.
    let thread = unsafe { libc::gettid() };
    if thread == FORKER_HERE.load(Ordering::Relaxed) { FORKER.load(Ordering::Relaxed) } else { thread }
}
