//! Fork handlers: no patch makes a step during a `fork`, and the child finds no lock held.
//!
//! 1. Before: the forking thread prevents the next step of every patch ([`STEPS`]) and takes the
//!    locks of this crate's tables. It records the sites that are locked.
//! 2. In the parent: it releases the locks.
//! 3. In the child: in text of which the child has its own pages, the old bytes of these sites are
//!    restored. (Text that it shares with its parent is unchanged: the child may execute the INT3s,
//!    and finds them in the shared table.) Then it releases the locks. If it shares only a part of
//!    a text, because a debugger has copied the rest, it gets its own text immediately.
//!
//! A fork never waits for an entire patch, only for its stores between two waits. A child that was
//! created by a raw `clone` runs none of this.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::children::{roll_back_own_pages, unshare_where_copied};
use super::fork;
use super::mapping::{MAPPINGS, TextMapping};
use crate::{Bytes, FetchModel, copies, outstanding, site_table, trap};

/// Read-locked by a patch during each store to a site that is locked or being locked; write-locked
/// by a thread that forks.
static STEPS: RwLock<()> = RwLock::new(());

/// A step, during which no thread forks.
pub(crate) struct Step {
    _steps: RwLockReadGuard<'static, ()>,
}

/// Begins a step. Must not be called by a thread that is in a step.
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

/// Prevents forks, and the steps of all patches, until the result is dropped. As
/// [`no_forks`], which the calling thread must not have.
pub(super) fn no_steps() -> impl Drop {
    STEPS.write().unwrap_or_else(|e| e.into_inner())
}

/// The locks that the forking thread holds, in the order of acquisition, which is also that of
/// release.
struct Held {
    /// The number of preparations for this fork: see [`follow`].
    prepared: u32,
    _steps: RwLockWriteGuard<'static, ()>,
    _outstanding: outstanding::Hold,
    _trap: trap::Hold,
    _copies: copies::Hold,
    mappings: MutexGuard<'static, Vec<TextMapping>>,
    _table: site_table::Hold,
    locked: Vec<(usize, Bytes)>,
}

struct HeldByFork(UnsafeCell<Option<Held>>);

// SAFETY: only the forking thread accesses it, and in the child its only thread; `STEPS` excludes a
// second fork.
unsafe impl Sync for HeldByFork {}

static HELD: HeldByFork = HeldByFork(UnsafeCell::new(None));

/// The kernel id of the thread that is forking; 0 for none. Only that thread finds its own id here,
/// which it has stored itself.
static FORKING: AtomicI32 = AtomicI32::new(0);

/// The process in which the locks of [`HELD`] were taken, and 0 when they have been given back.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// Whether the handlers are registered.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers, unless that was done. A program whose own handlers wait for a thread
/// that patches must register them after this call: handlers registered last are called first.
///
/// No thread waits for another one here: a child that is forked during the registration would wait
/// forever. Instead, two threads may both register the handlers, which count their calls for a
/// fork.
pub fn follow() {
    if IS_FOLLOWED.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the functions are never unloaded, and do only what is allowed around a fork.
    let refused = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    // If there is no memory for it, the next call tries again.
    if refused == 0 {
        IS_FOLLOWED.store(true, Ordering::Release);
    }
}

thread_local! {
    /// The number of [`NoForks`] of this thread.
    static HELD_BACK: Cell<u32> = const { Cell::new(0) };
}

/// While this exists, no thread forks: `fork` waits until it is dropped.
#[must_use]
pub struct NoForks {
    /// None inside another one, and in a handler of `fork`.
    _step: Option<Step>,
}

/// Prevents forks until the result is dropped. Blocks while another thread forks. A thread may have
/// several; with one, it must neither patch nor fork.
pub fn no_forks() -> NoForks {
    in_child_at_last();
    let others = HELD_BACK.replace(HELD_BACK.get() + 1);
    let forking = FORKING.load(Ordering::Relaxed);
    let is_held = others > 0 || forking != 0 && forking == this_thread();
    NoForks { _step: (!is_held).then(step) }
}

impl Drop for NoForks {
    fn drop(&mut self) {
        HELD_BACK.set(HELD_BACK.get() - 1);
    }
}

/// Number of times that this process and its ancestors have forked, as far as `fork`'s handlers
/// know ([`follow`]).
pub fn forks() -> u32 {
    fork::forks()
}

/// Executes `step`, during which no thread forks: `fork` waits until it is done. It must not patch.
pub fn without_forks<T>(step: impl FnOnce() -> T) -> T {
    let _no_forks = no_forks();
    step()
}

/// The kernel id of the calling thread.
fn this_thread() -> i32 {
    // SAFETY: only returns a number.
    unsafe { libc::gettid() }
}

extern "C" fn prepare() {
    IS_FOLLOWED.store(true, Ordering::Release);
    if FORKING.load(Ordering::Relaxed) == this_thread()
        // SAFETY: this is the forking thread: see `HeldByFork`.
        && let Some(held) = unsafe { &mut *HELD.0.get() }
    {
        held.prepared += 1;
        return;
    }
    // If another thread is reading the calibration, the child would wait for it forever.
    let _ = FetchModel::in_force();
    // Likewise for the decoder's tables, which are made at its first use.
    let _ = iced_x86::Decoder::new(64, &[0x90], iced_x86::DecoderOptions::NONE).decode();
    let steps = STEPS.write().unwrap_or_else(|e| e.into_inner());
    // Before the child exists, so that the next wait covers it.
    fork::about_to_fork();
    FORKING.store(this_thread(), Ordering::Relaxed);
    let held = Held {
        prepared: 1,
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
    HOLDER.store(std::process::id(), Ordering::Release);
}

fn take() -> Option<Held> {
    FORKING.store(0, Ordering::Relaxed);
    HOLDER.store(0, Ordering::Relaxed);
    // SAFETY: see `HeldByFork`. Taken out before it is dropped, because dropping admits the next
    // fork.
    unsafe { (*HELD.0.get()).take() }
}

extern "C" fn in_parent() {
    if FORKING.load(Ordering::Relaxed) != this_thread() {
        return;
    }
    // SAFETY: this is the forking thread: see `HeldByFork`.
    if let Some(held) = unsafe { &mut *HELD.0.get() } {
        held.prepared -= 1;
        if held.prepared == 0 {
            drop(take());
        }
    }
}

extern "C" fn in_child() {
    if let Some(held) = take() {
        // SAFETY: the child has only this thread; no patch was in the middle of a step when it was
        // created.
        unsafe { roll_back_own_pages(&held.mappings, &held.locked) };
        drop(held);
        let mappings = MAPPINGS.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: as above.
        unsafe { unshare_where_copied(&mappings) };
    }
}

/// For a fork handler of the program that runs in the child before ours.
pub(super) fn in_child_at_last() {
    let holder = HOLDER.load(Ordering::Acquire);
    if holder != 0 && holder != std::process::id() {
        in_child();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    use super::*;

    /// Whether the thread sleeps in `futex`, as threads do that wait for a lock.
    fn waits_for_a_lock(thread: i32) -> bool {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_futex.to_string())
    }

    /// Forks while another thread holds a lock. That thread releases it when the forking thread
    /// waits for a lock, or has forked without waiting.
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
            // SAFETY: only returns a number.
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
            "the child was created while the lock was held: in the child, it is never released"
        );
    }

    /// As if several threads had registered the handlers at the same time.
    #[test]
    fn handlers_that_are_registered_twice_act_once() {
        follow();
        IS_FOLLOWED.store(false, Ordering::SeqCst);
        follow();
        check_fork_waits_for(step);
        check_fork_waits_for(|| MAPPINGS.lock().unwrap());
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
