//! Giving call sites another target, a batch at a time, with no trap.
//!
//! ```text
//! call that straddles 3|2, from d to n; Load strategy (the others differ in the first byte or two)
//!
//! old        e8 d0 d1 | d2 d3
//! 1 store    b8 d0 d1 | d2 d3    inactive: from here on the operand is dead
//! 2 wait                         without it, a core that still runs the old call combines d and n
//! 3 store    b8 n0 n1 | n2 n3    the operand, one window at a time
//! 4 wait                         without it, a core that runs the new call may combine n and d
//! 5 result   b8 n0 n1 | n2 n3    an inactive site with a new target
//! ```
//!
//! A site inside one window, and a 1|4 site of a RET island, needs one store and no wait. All sites
//! come out inactive.

use std::io;

use wordpatch::{Bytes, wait_for_assumed_bound, wait_for_visibility};

use crate::encoding::{self, Shape};
use crate::error::Error;
use crate::site::CallSite;
use crate::strategy::{Edit, Strategy};

/// Makes each site inactive and leads its operand to a new target: the callee of a direct call, the
/// pointer of an indirect one. Returns for each, in order, the site with its new target, or why it
/// has kept the old one. Blocks for two waits if any site needs them, however many do.
///
/// Must not be called for one site from two threads at once, nor while another thread toggles it.
///
/// A site whose wait is refused (the errors of [`wait_for_visibility`]) keeps its old target and is
/// inactive. If the second wait is refused after the first was granted, the old operand is put
/// back, and the call blocks for [`wait_for_assumed_bound`].
///
/// # Safety
/// 1. The program must be right when each site calls its new target: a function with the same
///    calling convention, or a pointer to one, for as long as the site can be executed.
/// 2. Other copies of a site that has got a new target must not be toggled any more: they hold the
///    old operand.
pub unsafe fn retarget(sites: &[(CallSite, usize)]) -> Vec<Result<CallSite, Error>> {
    // SAFETY: the sites' text is mapped, by the contract of `CallSite::decode`.
    let prepare = |(site, target): &(CallSite, usize)| unsafe { prepare(site, *target) };
    let mut results: Vec<_> = sites.iter().map(prepare).collect();
    let dead_operand =
        |result: &Result<CallSite, Error>| result.as_ref().is_ok_and(|new| has_dead_operand(new.strategy));
    let waits = results.iter().any(dead_operand);
    if waits {
        // Step 2.
        if let Err(first) = wait_for_visibility() {
            return fail_those(results, dead_operand, first);
        }
    }
    // Step 3, or the one store of the sites that need no wait.
    for ((old, _), result) in sites.iter().zip(&mut results) {
        let stored = result.as_ref().map(|new| store_operand(old, new));
        if let Ok(Err(error)) = stored {
            take_operand_back(old, result.as_ref().expect("it was stored"));
            *result = Err(error);
        }
    }
    if waits {
        // Step 4.
        if let Err(first) = wait_for_visibility() {
            for ((old, _), result) in sites.iter().zip(&results) {
                result.iter().for_each(|new| take_operand_back(old, new));
            }
            // A core may have fetched bytes of the new operand. The caller may activate the old one
            // at once.
            wait_for_assumed_bound();
            return fail_those(results, dead_operand, first);
        }
    }
    results
}

/// Step 1: the site with its new target; the old one made inactive.
///
/// # Safety
/// The site's text must be mapped.
unsafe fn prepare(site: &CallSite, target: usize) -> Result<CallSite, Error> {
    let address = site.address();
    let displacement =
        encoding::displacement(site.shape, address, target).ok_or(Error::OutOfReach { address, target })?;
    let call = encoding::active(site.shape, displacement);
    // SAFETY: the caller's obligation.
    let new = unsafe { CallSite::new(site.text, site.shape, call, site.clobbers)? };
    // SAFETY: the text is mapped meanwhile.
    unsafe { site.staying_mapped() }.deactivate()?;
    Ok(new)
}

/// Step 3: writes the operand of `new`.
fn store_operand(old: &CallSite, new: &CallSite) -> Result<(), Error> {
    let stores = operand_stores(new.strategy, new.shape, &old.instruction, &new.instruction, &new.edit);
    // SAFETY: the text stays mapped until `retarget` returns, by the contract of
    // `CallSite::decode`.
    let text = unsafe { new.text.staying_mapped() };
    for (offset, from, to) in stores {
        // SAFETY: no thread executes these bytes as an operand that matters: the site is inactive,
        // and every core has seen it since. A single byte crosses no window.
        unsafe { text.compare_exchange(new.window, offset, &from, &to)? };
    }
    Ok(())
}

/// Undoes step 3, as far as it came. The operand is dead, before and after.
fn take_operand_back(old: &CallSite, new: &CallSite) {
    // SAFETY: as in `store_operand`.
    let text = unsafe { new.text.staying_mapped() };
    for (offset, from, to) in
        operand_stores(new.strategy, new.shape, &old.instruction, &new.instruction, &new.edit)
    {
        // SAFETY: as in `store_operand`. A byte that was not stored holds something else than `to`,
        // and is left alone.
        let _ = unsafe { text.compare_exchange(new.window, offset, &to, &from) };
    }
}

/// Whether an inactive site still holds its operand, which then does not matter. In the other two
/// strategies' inactive forms it is not there at all.
fn has_dead_operand(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::Skip | Strategy::Load | Strategy::Ret)
}

/// The stores of step 3: offset, byte before, byte after. What the inactive form itself occupies is
/// written by `activate`.
fn operand_stores(
    strategy: Strategy,
    shape: Shape,
    old: &Bytes,
    new: &Bytes,
    edit: &Edit,
) -> impl Iterator<Item = (usize, Bytes, Bytes)> {
    let byte = |of: &Bytes, offset: usize| encoding::bytes(&of[offset..=offset]);
    let first = shape.operand_offset().max(edit.inactive.len());
    let end = if has_dead_operand(strategy) { shape.len() } else { first };
    (first..end).map(move |offset| (offset, byte(old, offset), byte(new, offset)))
}

/// Every site that needed the wait that was refused fails; it is inactive and keeps its target.
fn fail_those(
    mut results: Vec<Result<CallSite, Error>>,
    needed: impl Fn(&Result<CallSite, Error>) -> bool,
    refusal: wordpatch::Error,
) -> Vec<Result<CallSite, Error>> {
    let errno = match &refusal {
        wordpatch::Error::MembarrierRefused { source } => source.raw_os_error(),
        _ => None,
    };
    for result in results.iter_mut().filter(|result| needed(result)) {
        let source = io::Error::from_raw_os_error(errno.unwrap_or_default());
        *result = Err(wordpatch::Error::MembarrierRefused { source }.into());
    }
    results
}
