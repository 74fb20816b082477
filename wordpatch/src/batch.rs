//! The synchronous driver of the protocol (paper, Figure 4): a batch of patches that share their
//! waits. A single patch is a batch of one.
//!
//! 1. All patches are checked, and the sites of those that can be made are acquired: straddlers are
//!    locked in the site table.
//! 2. They are made step by step, with one wait for all after each step (`stepwise`): after the
//!    first step, the single stores are done, and the straddlers have INT3.
//!
//! A patch that is refused or fails is removed, as if it were not in the batch.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::in_flight::InFlightPatch;
use crate::stepwise::{self, Stepwise as _};
use crate::{Error, Patch, serialize, trap};

/// Replaces `expected` by `replacement` at the start of the instruction at `address`: every thread
/// executes either the old or the new instruction, never a mixture.
///
/// Both are 1 to 8 bytes long; a longer instruction keeps its other bytes. The position of the
/// instruction, up to its eighth byte, determines the protocol, not the position of the bytes that
/// are given or change. If the instruction is inside one fetch window, the patch is one atomic
/// store, after a few hundred ticks for looking up the address and decoding. If it crosses a
/// window, the caller blocks: for one wait if bytes change on one side only, otherwise for two. A
/// wait takes T_max if it is known, otherwise a `membarrier` (the README has measured times).
/// Threads that execute the instruction during the waits take a trap of a few thousand ticks and
/// continue; they never wait for the caller. After the function has returned, other cores may still
/// execute the old instruction for T_max. [`serialize_all_cores`] ends that, except for a thread
/// that is in the out-of-line copy of the old instruction.
///
/// The bytes may be several instructions, if the instruction boundaries stay the same. If more than
/// one instruction changes, the bytes from the start of the first to the end of the last one that
/// changes must be at most 8 bytes in one fetch window.
///
/// Concurrent patches of one instruction are safe, including those of different parts of it: one of
/// them succeeds, the others return an error and have changed nothing. Must not be called from a
/// signal handler or a probe function.
///
/// # Errors
/// [`Error::Mismatch`] if the text differs from `expected`; [`Error::Contended`] if another thread
/// is patching the instruction; [`Error::ForeignBreakpoint`] if there is an INT3 that is not ours;
/// [`Error::LayoutChanged`] if an instruction would become longer or shorter;
/// [`Error::SeveralInstructions`]; [`Error::Immovable`] if the site must be locked and the
/// instruction cannot be executed out of line; and the errors of the environment. After an error,
/// the site is not partially patched.
///
/// # Safety
/// 1. `address` must be the start of an instruction of text that stays mapped during the call, and
///    only this crate may write it. The same applies to the rest of the mapping in
///    `/proc/self/maps` that contains it ([`TextRef::resolve`](crate::TextRef::resolve)).
/// 2. The new instruction must be correct for every thread that executes it.
/// 3. If the instruction crosses a fetch window, no thread that may execute it has SIGTRAP blocked
///    ([`check_sigtrap_unblocked`] checks this), and no branch goes into the middle of the
///    instruction.
/// 4. In that case, the instruction must be in no critical section of `rseq(2)`, where the trap is
///    not recognized, and if it faults or calls, no signal handler and no unwinder may need its
///    address: a thread may be executing the copy.
///
/// [`serialize_all_cores`]: crate::serialize_all_cores
/// [`check_sigtrap_unblocked`]: crate::check_sigtrap_unblocked
pub unsafe fn patch(address: usize, expected: &[u8], replacement: &[u8]) -> Result<(), Error> {
    let patch = Patch { address, expected, replacement };
    // SAFETY: the caller's obligations.
    let mut results = [unsafe { InFlightPatch::check(&patch) }];
    // SAFETY: as above.
    unsafe { finish_all(std::slice::from_ref(&patch), &mut results) };
    let [result] = results;
    result.map(drop)
}

/// Makes any number of patches, which share their waits. Returns the result of each, in order, as
/// [`patch`] would. A patch that is refused does not affect the others, and its site is unchanged.
/// The second of two patches that have bytes in common is refused with [`Error::Overlap`].
///
/// Blocks for at most two waits, however many patches cross a fetch window. The straddlers are
/// locked during this time, so threads that execute them take traps. The patches become visible in
/// no particular order.
///
/// # Safety
/// The obligations of [`patch`], for each.
#[must_use = "each patch may have failed"]
pub unsafe fn patch_all(patches: &[Patch<'_>]) -> Vec<Result<(), Error>> {
    // SAFETY: the caller's obligations.
    let mut results = unsafe { check_all(patches) };
    // SAFETY: as above.
    unsafe { finish_all(patches, &mut results) };
    results.into_iter().map(|result| result.map(drop)).collect()
}

/// Step 1, first half: checks each patch, and refuses the later of those that overlap.
///
/// # Safety
/// The obligations of [`patch`], for each, until the patch's end.
pub(crate) unsafe fn check_all(patches: &[Patch<'_>]) -> Vec<Result<InFlightPatch, Error>> {
    let mut ends_by_start: BTreeMap<usize, usize> = BTreeMap::new();
    let mut overlaps = |bytes: Range<usize>| {
        let before = ends_by_start.range(..bytes.end).next_back();
        let overlaps = before.is_some_and(|(_, end)| *end > bytes.start);
        if !overlaps {
            ends_by_start.insert(bytes.start, bytes.end);
        }
        overlaps
    };
    let check = |patch: &Patch<'_>| {
        if patches.len() > 1
            && overlaps(patch.address..patch.address.saturating_add(patch.expected.len().max(1)))
        {
            return Err(Error::Overlap { address: patch.address });
        }
        // SAFETY: the caller's obligations.
        unsafe { InFlightPatch::check(patch) }
    };
    patches.iter().map(check).collect()
}

/// Steps 1, second half, and 2; repeated for text that has been mapped again.
///
/// # Safety
/// The obligations of [`patch`], for each.
unsafe fn finish_all(patches: &[Patch<'_>], results: &mut [Result<InFlightPatch, Error>]) {
    // SAFETY: the caller's obligations, which hold until both are finished.
    let stay = |results: &mut [Result<InFlightPatch, Error>]| unsafe {
        results.iter_mut().flatten().for_each(|in_flight| in_flight.stay_mapped());
    };
    stay(results);
    acquire_all(results);
    stepwise::finish_all(results);
    // SAFETY: the caller's obligations.
    if unsafe { renew_stale(patches, results) } {
        stay(results);
        acquire_all(results);
        stepwise::finish_all(results);
    }
}

/// Acquires the sites of all patches that need it.
pub(crate) fn acquire_all(results: &mut [Result<InFlightPatch, Error>]) {
    let any = |has: fn(&InFlightPatch) -> bool| {
        results.iter().flatten().any(|in_flight| has(in_flight) && !in_flight.is_finished())
    };
    let no_trap = if any(InFlightPatch::uses_int3) { trap::own_sigtrap().err() } else { None };
    let no_wait = if any(InFlightPatch::waits) { serialize::may_wait().err() } else { None };
    for result in results {
        let acquired = match result {
            Ok(in_flight) if in_flight.is_finished() => continue,
            Ok(in_flight) => match (&no_trap, &no_wait) {
                (Some(refusal), _) if in_flight.uses_int3() => Err(Error::of_refusal(refusal)),
                (_, Some(refusal)) if in_flight.waits() => Err(Error::of_refusal(refusal)),
                _ => in_flight.acquire(),
            },
            Err(_) => continue,
        };
        if let Err(error) = acquired {
            *result = Err(error);
        }
    }
}

/// Finds the patches whose text has been mapped again, with the same bytes: their stores went to
/// the old mapping. Checks these patches again, in the new text; returns whether there are any.
///
/// # Safety
/// The obligations of [`patch`], for each patch that is finished.
pub(crate) unsafe fn renew_stale(
    patches: &[Patch<'_>],
    results: &mut [Result<InFlightPatch, Error>],
) -> bool {
    let mut any = false;
    for (patch, result) in patches.iter().zip(results) {
        if let Ok(in_flight) = result
            && in_flight.is_finished()
            // SAFETY: the caller's obligations.
            && unsafe { in_flight.is_stale() }
        {
            in_flight.forget_text();
            // SAFETY: as above.
            *result = unsafe { InFlightPatch::check(patch) };
            any = true;
        }
    }
    any
}
