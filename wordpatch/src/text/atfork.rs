//! What is done around a `fork`: no patch takes a step in the very moment, and the child finds no
//! lock held.
//!
//! 1. Before: the forking thread keeps every patch from its next step ([`STEPS`]) and holds the
//!    locks of this crate's tables. It notes the sites that are locked.
//! 2. In the parent: it lets go.
//! 3. In the child: in text of which the child has pages of its own, the sites get their old bytes
//!    back. (Text that it shares with its parent stays as it is: the child meets the INT3s, and
//!    finds them in the shared table.) Then it lets go; and gets text of its own at once where it
//!    shares only a part of it, because a debugger has copied the rest.
//!
//! A patch is never waited for, only the stores that it makes between two waits. A child that a raw
//! `clone` has made runs none of this.

use std::cell::UnsafeCell;
use std::sync::{MutexGuard, Once, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{MAPPINGS, TextMapping, fork, roll_back_own_pages, unshare_where_copied};
use crate::{Bytes, copies, outstanding, site_table, trap};

/// Read by a patch for each store while the site is locked or being so; written by a thread that
/// forks.
static STEPS: RwLock<()> = RwLock::new(());

/// A step, during which no thread forks.
pub(crate) struct Step {
    _steps: RwLockReadGuard<'static, ()>,
}

/// Begins a step. Must not be called by a thread that is in one.
pub(crate) fn step() -> Step {
    let step = Step { _steps: STEPS.read().unwrap_or_else(|e| e.into_inner()) };
    #[cfg(model)]
    wordpatch_model::environment::step_begins();
    step
}

#[cfg(model)]
impl Drop for Step {
    fn drop(&mut self) {
        wordpatch_model::environment::step_ends();
    }
}

/// What the forking thread holds, in the order in which it was taken; dropped in this order too.
struct Held {
    _steps: RwLockWriteGuard<'static, ()>,
    _outstanding: outstanding::Hold,
    _trap: trap::Hold,
    _copies: copies::Hold,
    mappings: MutexGuard<'static, Vec<TextMapping>>,
    _table: site_table::Hold,
    locked: Vec<(usize, Bytes)>,
}

struct HeldByFork(UnsafeCell<Option<Held>>);

// SAFETY: only the thread that forks touches it, and in the child its one thread; `STEPS` keeps a
// second fork out.
unsafe impl Sync for HeldByFork {}

static HELD: HeldByFork = HeldByFork(UnsafeCell::new(None));

/// Registers the handlers, once. A program whose own handlers wait for a thread that patches must
/// register them after this call: those that come last are called first.
pub fn follow() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions are never unloaded, and keep to what may be done around a fork.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) });
}

extern "C" fn prepare() {
    let steps = STEPS.write().unwrap_or_else(|e| e.into_inner());
    // Before the child is there: the next wait is one that covers it.
    fork::about_to_fork();
    let held = Held {
        _steps: steps,
        _outstanding: outstanding::hold(),
        _trap: trap::hold(),
        _copies: copies::hold(),
        mappings: MAPPINGS.lock().unwrap_or_else(|e| e.into_inner()),
        _table: site_table::hold(),
        locked: site_table::locked(),
    };
    // SAFETY: see `HeldByFork`.
    unsafe { *HELD.0.get() = Some(held) };
}

fn take() -> Option<Held> {
    // SAFETY: see `HeldByFork`. Taken out before it is dropped: dropping lets the next fork in.
    unsafe { (*HELD.0.get()).take() }
}

extern "C" fn in_parent() {
    drop(take());
}

extern "C" fn in_child() {
    if let Some(held) = take() {
        // SAFETY: the child has this one thread; no patch was in the middle of a step when it was
        // made.
        unsafe { roll_back_own_pages(&held.mappings, &held.locked) };
        drop(held);
        let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: as above.
        unsafe { unshare_where_copied(&mappings) };
    }
}

/// For a handler of the program that runs in the child before ours.
pub(super) fn in_child_at_last() {
    if fork::is_unprepared_child() {
        in_child();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    use super::*;

    /// Whether the thread sleeps in `futex`, as one does that waits for a lock.
    fn waits_for_a_lock(thread: i32) -> bool {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    }

    /// Forks while another thread holds something. It lets go when the forking thread waits for a
    /// lock, or has forked without.
    #[track_caller]
    fn check_fork_waits_for<G>(hold: fn() -> G) {
        follow();
        let forker = AtomicI32::new(0);
        let (is_held, is_released, has_forked) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let fork_has_waited = std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = hold();
                is_held.store(true, Ordering::SeqCst);
                while !has_forked.load(Ordering::SeqCst) && !waits_for_a_lock(forker.load(Ordering::SeqCst)) {
                    std::thread::yield_now();
                }
                is_released.store(true, Ordering::SeqCst);
                drop(held);
            });
            // SAFETY: gives a number.
            forker.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            while !is_held.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            // SAFETY: the child only ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let fork_has_waited = is_released.load(Ordering::SeqCst);
            has_forked.store(true, Ordering::SeqCst);
            let mut status = -1;
            // SAFETY: waits for the child, and writes its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            fork_has_waited
        });
        assert!(
            fork_has_waited,
            "the child was made while the lock was held: in the child, nobody lets go of it"
        );
    }

    #[test]
    fn a_fork_waits_for_a_step() {
        check_fork_waits_for(step);
    }

    #[test]
    fn a_fork_waits_for_the_table_of_outstanding_patches() {
        check_fork_waits_for(outstanding::hold);
    }

    #[test]
    fn a_fork_waits_for_the_trap_handlers() {
        check_fork_waits_for(trap::hold);
    }

    #[test]
    fn a_fork_waits_for_the_pool_of_copies() {
        check_fork_waits_for(copies::hold);
    }

    #[test]
    fn a_fork_waits_for_the_list_of_mappings() {
        check_fork_waits_for(|| MAPPINGS.lock().unwrap());
    }

    #[test]
    fn a_fork_waits_for_the_table_of_sites() {
        check_fork_waits_for(site_table::hold);
    }
}
