//! The paper's interface (Figure 3): calls identified only by their addresses.
//!
//! A site is decoded and verified when its address is first used, and kept in a table. Callers with
//! a [`CallSite`] toggle it without this table and its lock.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::encoding::Shape;
use crate::error::Error;
use crate::forks::without_forks;
use crate::retarget::retarget;
use crate::site::CallSite;
use crate::strategy::Clobbers;
use crate::switch::Toggle;

static SITES: Mutex<Option<HashMap<usize, CallSite>>> = Mutex::new(None);

/// Calls `act` with the site at `address`, which is decoded on first use.
///
/// # Safety
/// The site's text must be mapped.
unsafe fn with_site<R>(
    address: usize,
    decode: impl Fn() -> Result<CallSite, Error>,
    act: impl FnMut(&mut CallSite) -> Result<R, Error>,
) -> Result<R, Error> {
    // SAFETY: the caller's obligation.
    without_forks(|| unsafe { with_site_locked(address, decode, act) })
}

/// As [`with_site`], while no thread forks.
///
/// # Safety
/// As [`with_site`].
unsafe fn with_site_locked<R>(
    address: usize,
    decode: impl Fn() -> Result<CallSite, Error>,
    mut act: impl FnMut(&mut CallSite) -> Result<R, Error>,
) -> Result<R, Error> {
    let mut sites = SITES.lock().unwrap_or_else(|e| e.into_inner());
    let sites = sites.get_or_insert_default();
    // SAFETY: the caller's obligation.
    let mut act_in_text = |site: &mut CallSite| unsafe { act_in_text(site, &mut act) };
    if let Some(site) = sites.get_mut(&address) {
        if let Some(result) = act_in_text(site) {
            return result;
        }
        sites.remove(&address);
    }
    // The first site of a text that was mapped again may be found in the text before it.
    let mut site = decode()?;
    let mut result = act_in_text(&mut site);
    if result.is_none() {
        site = decode()?;
        result = act_in_text(&mut site);
    }
    sites.insert(address, site);
    result.unwrap_or(Err(Error::Text(wordpatch::Error::TextGone { address })))
}

/// Calls `act`. Returns `None` if other text was mapped at the site since it was resolved, so that
/// `act` had no effect; the earlier text is then forgotten.
///
/// # Safety
/// As [`with_site`].
unsafe fn act_in_text<R>(
    site: &mut CallSite,
    mut act: impl FnMut(&mut CallSite) -> Result<R, Error>,
) -> Option<Result<R, Error>> {
    // SAFETY: the caller's obligation.
    let is_stale = |site: &CallSite| unsafe { site.is_stale() };
    if !is_stale(site) {
        let result = act(site);
        // A new mapping may hold the same bytes: then only the failed store reveals it.
        if !is_stale(site) {
            // SAFETY: the caller's obligation.
            return Some(unsafe { site.settle() }.and(result));
        }
    }
    // The references to the new text that were resolved for other sites are kept.
    site.text.forget_text();
    None
}

/// Activates the call at `address`, with this operand: the displacement from the end of the
/// instruction to the callee or, for an indirect call, to the pointer. The site is an active or
/// inactive call, or a five-byte NOP inside one fetch window.
///
/// Makes one store if the operand is unchanged; otherwise deactivates the call first, and blocks as
/// [`retarget`] does. Takes a lock, during which no thread forks: not for signal handlers.
///
/// # Errors
/// [`Error::NotACall`], [`Error::StraddlingNop`], [`Error::OutOfReach`], [`Error::Foreign`], or
/// [`Error::Text`] if the text cannot be written or a wait is refused. A call whose operand was to
/// change may be inactive then, with its old operand.
///
/// # Safety
/// 1. `address` must be the start of an instruction in text that stays mapped, which only this
///    workspace's crates write.
/// 2. The program must be correct with the call to that target, and without it.
/// 3. No other code branches into the middle of the instruction.
pub unsafe fn activate_call(address: usize, offset: i32) -> Result<Toggle, Error> {
    let target = |shape: Shape| (address + shape.len()).wrapping_add_signed(offset as isize);
    let decode = || {
        // SAFETY: the caller's obligations are those of `decode` and `at_nop`.
        unsafe { CallSite::decode(address, Clobbers::Nothing) }.or_else(|error| match error {
            // SAFETY: as above.
            Error::NotACall { .. } => unsafe { CallSite::at_nop(address, target(Shape::Call)) },
            other => Err(other),
        })
    };
    let act = |site: &mut CallSite| {
        if site.displacement() != offset {
            // SAFETY: obligation 2; the table's lock excludes every other call of this module.
            let mut retargeted = unsafe { retarget(&[(*site, target(site.shape()))]) };
            *site = retargeted.pop().expect("one site in, one result out")?;
        }
        site.activate()
    };
    // SAFETY: obligation 1.
    unsafe { with_site(address, decode, act) }
}

/// Deactivates the call at `address`. Makes one store, under a lock: not for signal handlers.
///
/// # Errors
/// [`Error::NotACall`], [`Error::Foreign`], or [`Error::Text`] if the text cannot be written.
///
/// # Safety
/// As [`activate_call`].
pub unsafe fn deactivate_call(address: usize) -> Result<Toggle, Error> {
    // SAFETY: the caller's obligations are those of `decode`.
    let decode = || unsafe { CallSite::decode(address, Clobbers::Nothing) };
    // SAFETY: obligation 1 of `activate_call`.
    unsafe { with_site(address, decode, |site| site.deactivate()) }
}
