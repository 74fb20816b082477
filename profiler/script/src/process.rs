//! Events of the process: fork, exec, exit.
//!
//! The reports of scripts that a client has attached are sent to the client whenever a report is
//! written.
//!
//! | event | action |
//! | --- | --- |
//! | exit, return from main | report, from the library's destructor |
//! | `_exit`, `_Exit`, `quick_exit` | report, before the program's call continues |
//! | `daemon` | report, because it ends the process; its child starts again |
//! | exec of a file that exists | report, because nothing survives it; the new image runs the script from its start |
//! | fork | the parent's locks are held across it; the child starts again, with its own threads |
//! | vfork, posix_spawn | nothing: the child runs in the parent's memory until it calls exec, and its calls are those of the thread that made it |
//! | a fatal signal | nothing: there is no report |

use std::cell::UnsafeCell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fastinst::service::{self, Descriptors, ForkGuard, before_fork, is_forking};

use crate::observer::{self, Observer};
use crate::{control, ring, worker};

/// The process that the observer belongs to.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the process is about to end.
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether this process is the observed one, not a child that shares its memory. Async-signal-safe.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == std::process::id()
}

/// Installs fork handlers. Called once, after [`observer::start`].
pub(crate) fn follow() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // First, so that its handlers hold no locks while ours wait for other threads.
    wordpatch::internal::follow_forks();
    // SAFETY: the three functions are never unloaded, and do only what is permitted around a fork.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

/// Writes the report when the process ends. Called by the destructor and before `_exit`. Waits as
/// long as the worker makes progress.
pub(crate) fn at_exit() {
    if is_own_process() && !OVER.swap(true, Ordering::Relaxed) {
        control::end();
        ring::end();
        worker::finish();
    }
}

/// Whether the process is about to end.
pub(crate) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// Called if the worker writes the report without a request, and ends with the process.
pub(crate) fn without_thread() {
    OVER.store(true, Ordering::Relaxed);
    control::end();
    ring::end();
}

/// Writes the report before the process calls exec, unless that is certain to fail. Waits as
/// [`at_exit`] does.
pub(crate) fn before_exec(may_succeed: impl FnOnce() -> bool) {
    if is_own_process() && fastinst::probe_count() > 0 && may_succeed() {
        worker::finish();
    }
}

/// Locks that the forking thread holds between `prepare` and the handlers after the fork.
type Locks = (ForkGuard, MutexGuard<'static, Option<Observer>>);

struct Held(UnsafeCell<Option<Locks>>);

// SAFETY: only a thread that has a fork guard accesses it, and there is one guard at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn prepare() {
    // In the order in which discoveries acquire them.
    if let Some(guard) = before_fork() {
        let locks = (guard, observer::lock());
        // SAFETY: see `Held`.
        unsafe { *HELD.0.get() = Some(locks) };
    }
}

fn take_locks() -> Option<Locks> {
    // SAFETY: see `Held`.
    is_forking().then(|| unsafe { (*HELD.0.get()).take() }).flatten()
}

extern "C" fn in_parent() {
    drop(take_locks());
}

extern "C" fn in_child() {
    // Without locks, the child is not observed.
    let Some((guard, mut observer)) = take_locks() else { return };
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    worker::forget_requests();
    profiler::output::forget_in_child();
    observer::restart_in_child(&mut observer);
    drop((guard, observer));
    control::restart_in_child();
    // Without these threads, the child works but is not observed.
    if service::start(None, Descriptors::Own).is_err() || worker::start().is_err() {
        ring::end();
    }
}
