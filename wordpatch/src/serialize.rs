//! Waits until every core executes the current text.
//!
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` makes each core that runs a thread of this process
//! execute a core-serializing instruction before the call returns (membarrier(2)); a thread that is
//! not running executes one before it returns to user mode. The README has measured times. This is
//! the vendors' protocol for cross-modification (Intel SDM volume 3, "handling self- and
//! cross-modifying code") in user space.
//!
//! It does not affect forked children, which execute the parent's text until they call
//! [`unshare`](crate::text::unshare): they are other processes, and have been observed to execute
//! mixtures of old and new bytes. Therefore, once a process has forked, a wait also lasts for
//! T_max, or for an assumed bound if T_max is unknown.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::since::Since;
use crate::text::fork;
use crate::{Error, FetchModel, TMax, WaitPolicy};

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes three integers and touches no memory of the caller.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns when no core can still execute text from before the call. Blocks for the duration of an
/// inter-processor interrupt; each running thread of the process is interrupted for a few hundred
/// ticks.
///
/// # Errors
/// [`Error::MembarrierRefused`] if a seccomp filter or the kernel (before 4.16) refuses.
pub fn serialize_all_cores() -> Result<(), Error> {
    let sync = || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
    match sync() {
        // The first call of a process: it must register before it uses the command.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE).and_then(|()| sync())
        }
        result => result,
    }
    .map_err(|source| Error::MembarrierRefused { source })
}

/// The *wait* of the patch protocol: returns when no core executes bytes older than the last store.
/// Follows the [`WaitPolicy`] of the fetch model in force; T_max starts with the call.
///
/// # Errors
/// As [`serialize_all_cores`]. Except with [`WaitPolicy::Both`], a refused `membarrier` is replaced
/// by waiting for T_max if it is known.
pub fn wait_for_visibility() -> Result<(), Error> {
    wait_since(Since::now())
}

/// Returns when no core is assumed to execute bytes older than the last store, without a system
/// call: after T_max, or after 50,000 ticks if T_max is unknown. No vendor guarantees such a bound
/// (the README has measured values of T_max), so this is only for rolling a change back after
/// [`wait_for_visibility`] has failed in the middle of it.
pub fn wait_for_assumed_bound() {
    let mut since = Since::now();
    #[cfg(model)]
    if wordpatch_model::environment::wait_for_bound(since.in_model()).is_some() {
        return;
    }
    let bound = FetchModel::in_force().t_max.unwrap_or(TMax::OF_CHILDREN);
    while since.elapsed() < u64::from(bound.0) {
        std::hint::spin_loop();
    }
}

/// As [`wait_for_visibility`], for stores that were made before the beginning of the wait, when
/// T_max starts.
pub(crate) fn wait_since(mut since: Since) -> Result<(), Error> {
    while !is_visible_since(&mut since)? {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Whether the wait for stores that were made before its beginning is over. Does not wait for
/// T_max; if the policy requires it, makes the `membarrier` call that ends the wait.
pub(crate) fn is_visible_since(since: &mut Since) -> Result<bool, Error> {
    #[cfg(model)]
    if let Some(answer) = wordpatch_model::environment::is_visible(since.in_model()) {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        return answer.map_err(|_| Error::MembarrierRefused { source });
    }
    let FetchModel { t_max, wait, .. } = FetchModel::in_force();
    let elapsed = since.elapsed();
    let is_past = |t_max: TMax| elapsed >= u64::from(t_max.0);
    if fork::may_have_children() && !is_past(t_max.unwrap_or(TMax::OF_CHILDREN)) {
        return Ok(false);
    }
    let has_passed = t_max.map(is_past);
    match (wait, has_passed) {
        (WaitPolicy::TMax, Some(has_passed)) => Ok(has_passed),
        (WaitPolicy::Both, Some(false)) => Ok(false),
        (WaitPolicy::Both, Some(true)) => serialize_all_cores().map(|()| true),
        (_, Some(has_passed)) => Ok(serialize_all_cores().is_ok() || has_passed),
        (_, None) => serialize_all_cores().map(|()| true),
    }
}

/// Checks in advance that waits are possible. Fails if `membarrier` is refused, and T_max is
/// unknown or does not replace it.
pub(crate) fn may_wait() -> Result<(), Error> {
    static GRANTED: AtomicBool = AtomicBool::new(false);
    let FetchModel { t_max, wait, .. } = FetchModel::in_force();
    if (t_max.is_some() && wait != WaitPolicy::Both) || GRANTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    serialize_all_cores()?;
    GRANTED.store(true, Ordering::Relaxed);
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::FetchWindow;
    use crate::fetch_model::in_tests::forced;
    use crate::since::MAX_SKEW;
    use crate::tsc::Moment;

    /// The beginning of a wait, by the counter of this processor.
    fn since(ticks: impl Fn(u64) -> u64) -> Since {
        let now = Moment::now();
        Since::at(Moment { ticks: ticks(now.ticks), ..now })
    }

    #[test]
    fn t_max_has_not_passed_for_a_recent_store() {
        for wait in [WaitPolicy::TMax, WaitPolicy::Both] {
            let _model = forced(FetchWindow::Bytes8, Some(TMax(1)), wait);
            // A counter that is behind that of the processor that stored.
            assert!(!is_visible_since(&mut since(|now| now + MAX_SKEW)).unwrap(), "{wait:?}");
        }
    }

    #[test]
    fn t_max_starts_again_if_the_counter_was_set_back() {
        let _model = forced(FetchWindow::Bytes8, Some(TMax(1_000)), WaitPolicy::TMax);
        let mut since = since(|now| now + (1 << 40));
        assert!(!is_visible_since(&mut since).unwrap());
        wait_since(since).unwrap();
    }

    #[test]
    fn t_max_has_passed_for_an_old_store() {
        for wait in [WaitPolicy::TMax, WaitPolicy::Both, WaitPolicy::Membarrier] {
            let _model = forced(FetchWindow::Bytes8, Some(TMax(1_000)), wait);
            // The thread may be moved to another processor meanwhile.
            while !is_visible_since(&mut since(|_| 0)).unwrap() {}
        }
    }
}
