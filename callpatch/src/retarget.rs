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
//! A site inside one window, and a 1|4 site of a RET island, needs one store and no wait. All sites come out inactive.

use std::io;

use wordpatch::wait_for_visibility;

use crate::encoding::{self, DISPLACEMENT};
use crate::error::Error;
use crate::site::CallSite;
use crate::strategy::Strategy;

/// Makes each site inactive and leads its operand to a new target: the callee of a direct call, the pointer of an indirect
/// one. Returns for each, in order, the site with its new target, or why it has kept the old one. Blocks for two waits
/// if any site needs them, however many do.
///
/// Not to be called for one site from two threads at once, nor while another thread toggles it.
///
/// # Safety
/// The program must be right when each site calls its new target: a function with the same calling convention, or a
/// pointer to one, for as long as the site can be executed.
pub unsafe fn retarget(sites: &[(CallSite, usize)]) -> Vec<Result<CallSite, Error>> {
    let mut results: Vec<_> = sites.iter().map(|(site, target)| prepare(site, *target)).collect();
    let dead_operand = |result: &Result<CallSite, Error>| {
        result
            .as_ref()
            .is_ok_and(|new| matches!(new.strategy, Strategy::Skip | Strategy::Load | Strategy::Ret))
    };
    if results.iter().any(dead_operand) {
        // Step 2.
        if let Err(first) = wait_for_visibility() {
            return fail_those(results, dead_operand, first);
        }
    }
    // Step 3, or the one store of the sites that need no wait.
    for ((old, _), result) in sites.iter().zip(&mut results) {
        let stored = result.as_ref().map(|new| store_operand(old, new));
        if let Ok(Err(error)) = stored {
            *result = Err(error);
        }
    }
    if results.iter().any(dead_operand) {
        // Step 4.
        if let Err(first) = wait_for_visibility() {
            return fail_those(results, dead_operand, first);
        }
    }
    results
}

/// Step 1: the site with its new target; the old one made inactive.
fn prepare(site: &CallSite, target: usize) -> Result<CallSite, Error> {
    let address = site.address();
    let displacement =
        encoding::displacement(site.shape, address, target).ok_or(Error::OutOfReach { address, target })?;
    let new =
        CallSite::new(site.text, site.shape, encoding::active(site.shape, displacement), site.clobbers)?;
    site.deactivate()?;
    Ok(new)
}

/// Step 3: writes the operand of `new` where it is dead; it is in the other two strategies' inactive forms that it is not
/// there at all.
fn store_operand(old: &CallSite, new: &CallSite) -> Result<(), Error> {
    match new.strategy {
        Strategy::Nop | Strategy::RetIsland => return Ok(()),
        Strategy::Skip | Strategy::Load | Strategy::Ret => {}
    }
    // What the inactive form itself occupies is written by `activate`.
    let first = new.shape.operand_offset().max(new.edit.inactive.len());
    let end = new.shape.operand_offset() + DISPLACEMENT;
    for offset in first..end {
        let (from, to) = (&old.instruction[offset..=offset], &new.instruction[offset..=offset]);
        let (from, to) = (encoding::bytes(from), encoding::bytes(to));
        // SAFETY: no thread executes these bytes as an operand that matters: the site is inactive, and every core has
        // seen it since. A single byte crosses no window.
        unsafe { new.text.compare_exchange(new.window, offset, &from, &to)? };
    }
    Ok(())
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
