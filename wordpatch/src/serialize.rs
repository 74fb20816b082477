//! Making every core see the text as it is now.
//!
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` makes each core that runs a thread of this process
//! execute a core-serializing instruction before it returns (membarrier(2)); a thread that is not
//! running gets one before it returns to user mode. Measured: 1,400 ticks with no other thread
//! running, about 23,000 with one. This is the vendors' protocol for cross-modification (Intel SDM
//! volume 3, "handling self- and cross-modifying code") in user-space form.
//!
//! It does not reach a forked child that executes the parent's text, until the child calls
//! [`unshare`](crate::text::unshare): it is another process, and has been seen to execute mixtures.
//! So once a process has forked, a wait also lasts for T_max, or for the bound that is assumed
//! where T_max is unknown.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::text::fork;
use crate::{Error, FetchModel, TMax, WaitPolicy, tsc};

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes three integers and touches no memory of the caller.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns when no core can still execute text as it was before the call. Blocks for the time of
/// one inter-processor interrupt; the other threads lose a few hundred ticks each.
///
/// # Errors
/// [`Error::MembarrierRefused`] where a seccomp filter or an old kernel (before 4.16) refuses.
pub fn serialize_all_cores() -> Result<(), Error> {
    let sync = || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
    match sync() {
        // The first call of a process: it has to say beforehand that it will use the command.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE).and_then(|()| sync())
        }
        result => result,
    }
    .map_err(|source| Error::MembarrierRefused { source })
}

/// The *wait* of the patch protocol: returns when no core executes bytes older than the last store.
/// By the [`WaitPolicy`] of the fetch model in force; T_max counts from the call.
///
/// # Errors
/// As [`serialize_all_cores`], if the policy asks for it; but not where T_max is known, which then
/// takes its place.
pub fn wait_for_visibility() -> Result<(), Error> {
    wait_since(tsc::now_after_all())
}

/// Returns when no core executes bytes older than the last store, as far as that can be had without
/// the kernel: after T_max, or after 50,000 ticks where T_max is unknown. No vendor promises such a
/// bound (measured T_max are 600 to 3,000 ticks), so this is only for the way back of somebody who
/// was refused [`wait_for_visibility`] in the middle of a change.
pub fn wait_for_assumed_bound() {
    let stored_at = tsc::now_after_all();
    #[cfg(model)]
    if wordpatch_model::environment::wait_for_bound(stored_at).is_some() {
        return;
    }
    let bound = FetchModel::in_force().t_max.unwrap_or(TMax::OF_CHILDREN);
    while tsc::now().saturating_sub(stored_at) < u64::from(bound.0) {
        std::hint::spin_loop();
    }
}

/// [`wait_for_visibility`] for stores that were made before `stored_at`, from when T_max counts.
pub(crate) fn wait_since(stored_at: u64) -> Result<(), Error> {
    while !is_visible_since(stored_at)? {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Whether the wait for stores that were made before `stored_at` is over. Does not wait for T_max;
/// where the policy asks for it, makes the `membarrier` that ends the wait.
pub(crate) fn is_visible_since(stored_at: u64) -> Result<bool, Error> {
    #[cfg(model)]
    if let Some(answer) = wordpatch_model::environment::is_visible(stored_at) {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        return answer.map_err(|_| Error::MembarrierRefused { source });
    }
    let FetchModel { t_max, wait, .. } = FetchModel::in_force();
    // On another core the counter may be a little behind: then nothing has passed.
    let is_past = |t_max: TMax| tsc::now().saturating_sub(stored_at) >= u64::from(t_max.0);
    if fork::may_have_children() && !is_past(t_max.unwrap_or(TMax::OF_CHILDREN)) {
        return Ok(false);
    }
    let has_passed = t_max.map(is_past);
    match (wait, has_passed) {
        (WaitPolicy::TMax, Some(has_passed)) => Ok(has_passed),
        (WaitPolicy::Both, Some(false)) => Ok(false),
        (_, Some(has_passed)) => Ok(serialize_all_cores().is_ok() || has_passed),
        (_, None) => serialize_all_cores().map(|()| true),
    }
}

/// Says beforehand what a wait would say, where it depends on the kernel's leave alone.
pub(crate) fn may_wait() -> Result<(), Error> {
    static GRANTED: AtomicBool = AtomicBool::new(false);
    if FetchModel::in_force().t_max.is_some() || GRANTED.load(Ordering::Relaxed) {
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

    /// As if another core had stored just now, whose counter is far ahead of this one's.
    fn in_the_future() -> u64 {
        tsc::now() + (1 << 40)
    }

    #[test]
    fn t_max_has_not_passed_for_a_store_that_was_just_made() {
        for wait in [WaitPolicy::TMax, WaitPolicy::Both] {
            let _model = forced(FetchWindow::Bytes8, Some(TMax(1)), wait);
            assert!(!is_visible_since(in_the_future()).unwrap(), "{wait:?}");
        }
    }

    #[test]
    fn t_max_has_passed_for_a_store_that_was_made_long_ago() {
        for wait in [WaitPolicy::TMax, WaitPolicy::Both, WaitPolicy::Membarrier] {
            let _model = forced(FetchWindow::Bytes8, Some(TMax(1_000)), wait);
            assert!(is_visible_since(0).unwrap(), "{wait:?}");
        }
    }
}
