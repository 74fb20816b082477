//! The synchronous driver of the protocol (paper, Figure 4).

use std::collections::HashMap;
use std::sync::Mutex;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::protocol::{INT3, Protocol, Step};
use crate::text::TextRef;
use crate::trap::{self, Int3, OwnedSite};
use crate::{Bytes, Error, FetchModel, MAX_PATCH, displaced, serialize, text};

/// The longest x86 instruction, in bytes.
const MAX_INSTRUCTION: usize = 15;

/// An out-of-line copy is of these bytes at this site.
type Original = (usize, Bytes);

/// Addresses of the out-of-line copies that were made: a site that is toggled for ever needs two.
static COPIES: Mutex<Option<HashMap<Original, usize>>> = Mutex::new(None);

/// Replaces `expected` by `replacement` at the start of the instruction at `address`: every thread that executes it
/// runs the old or the new instruction, never a mixture.
///
/// Both are 1 to 8 bytes; an instruction that is longer keeps its other bytes. Where the changed bytes lie in one fetch
/// window, this is one atomic store (some ten ticks, and a lock for looking the address up). Otherwise the caller blocks for
/// two waits: T_max each where it is known, some 1,000 to 25,000 ticks of membarrier otherwise. Threads that execute the
/// instruction meanwhile take a trap of a few thousand ticks and go on; they never wait for the caller. When the
/// function returns, other cores may still execute the old instruction for T_max ([`serialize_all_cores`] ends that).
///
/// Concurrent patches of one site are safe: one of them succeeds, the others get an error and have changed nothing. Not to be
/// called from a signal handler or a probe function.
///
/// # Errors
/// [`Error::Mismatch`] when other bytes than `expected` stand there; [`Error::Contended`] and
/// [`Error::ForeignBreakpoint`] when an INT3 does; [`Error::LayoutChanged`] when the new instruction would be longer or
/// shorter; [`Error::Immovable`] when the site must be locked and the instruction cannot be run out of line; and the errors of
/// the environment. None leaves a site half patched.
///
/// # Safety
/// 1. `address` must be the start of an instruction of text that stays mapped during the call, and only this crate may
///    write it.
/// 2. The new instruction must be right for every thread that executes it.
/// 3. When the patch crosses a fetch window, no thread that may execute it has SIGTRAP blocked, and no branch goes
///    into the middle of the instruction.
///
/// [`serialize_all_cores`]: crate::serialize_all_cores
pub unsafe fn patch(address: usize, expected: &[u8], replacement: &[u8]) -> Result<(), Error> {
    let (Some(old), Some(new)) = (Bytes::new(expected), Bytes::new(replacement)) else {
        return Err(Error::Length { address, expected: expected.len(), replacement: replacement.len() });
    };
    if old.len() != new.len() {
        return Err(Error::Length { address, expected: old.len(), replacement: new.len() });
    }
    // SAFETY: the caller's obligations.
    unsafe {
        let mut place = TextRef::resolve(address, old.len())?;
        if place.is_stale(old.len()) {
            place = renew(&place, old.len())?;
        }
        apply(&place, &old, &new)?;
        // What was mapped here anew may hold the same bytes: then it shows only now that the store went elsewhere.
        if place.is_stale(old.len()) {
            apply(&renew(&place, old.len())?, &old, &new)?;
        }
    }
    Ok(())
}

/// The place again, after something else was mapped there.
///
/// # Safety
/// Obligation 1 of [`patch`].
unsafe fn renew(place: &TextRef, length: usize) -> Result<TextRef, Error> {
    text::forget(&(place.address()..place.address() + length));
    // SAFETY: the caller's obligation.
    unsafe { TextRef::resolve(place.address(), length) }
}

/// Carries the protocol out.
///
/// # Safety
/// As [`patch`].
unsafe fn apply(place: &TextRef, old: &Bytes, new: &Bytes) -> Result<(), Error> {
    let address = place.address();
    // SAFETY: obligation 1.
    unsafe { check_old(place, old)? };
    let instruction = same_layout(place, old, new)?;
    let window = FetchModel::in_force().window;
    let protocol = Protocol::new(window, address, old, new);
    let copy = if protocol.uses_int3() { Some(out_of_line_copy(&instruction, old)?) } else { None };
    let _site = if protocol.needs_site() { Some(OwnedSite::take(address, copy)?) } else { None };
    // Another patch may have been finished before the site was taken.
    // SAFETY: obligation 1.
    unsafe { check_old(place, old)? };
    for (number, step) in protocol.steps().iter().enumerate() {
        match step {
            // SAFETY: obligations 1 and 2; the protocol keeps each store inside a window and the mixtures behind INT3.
            Step::Store { offset, old, new } => unsafe { place.compare_exchange(window, *offset, old, new)? },
            Step::Wait => serialize::wait_for_visibility().or_else(|error| {
                assert_eq!(number, 1, "membarrier, once granted, is not refused");
                let Step::Store { old, new, .. } = protocol.steps()[0] else { return Err(error) };
                // SAFETY: as above; the lock is all that was stored so far, and is taken back.
                unsafe { place.compare_exchange(window, 0, &new, &old) }.and(Err(error))
            })?,
        }
    }
    Ok(())
}

/// Says why, if other bytes than `old` stand at `place`.
///
/// # Safety
/// As many bytes of text must be mapped there.
unsafe fn check_old(place: &TextRef, old: &Bytes) -> Result<(), Error> {
    let address = place.address();
    // SAFETY: the caller's obligation.
    let found = unsafe { place.read(0, old.len()) };
    if found == *old {
        return Ok(());
    }
    if found[0] != INT3 {
        return Err(Error::Mismatch { address, expected: *old, found });
    }
    // SAFETY: the caller's obligation.
    let is_int3 = || unsafe { place.read(0, 1) }[0] == INT3;
    Err(match trap::meaning_of_int3(address, is_int3) {
        Int3::Locked { .. } | Int3::Gone => Error::Contended { address },
        Int3::Foreign => Error::ForeignBreakpoint { address },
    })
}

fn out_of_line_copy(instruction: &Instruction, old: &Bytes) -> Result<usize, Error> {
    let mut copies = COPIES.lock().unwrap_or_else(|e| e.into_inner());
    let copies = copies.get_or_insert_default();
    let key = (instruction.ip() as usize, *old);
    if let Some(copy) = copies.get(&key) {
        return Ok(*copy);
    }
    let copy = displaced::copy_out_of_line(instruction)?;
    copies.insert(key, copy);
    Ok(copy)
}

/// Checks layout equivalence (paper section 4): old and new bytes begin one instruction of the same length, which
/// covers them. Returns the old instruction.
fn same_layout(place: &TextRef, old: &Bytes, new: &Bytes) -> Result<Instruction, Error> {
    let address = place.address();
    let text = std::ptr::with_exposed_provenance::<u8>(address);
    // The rest of a longer instruction; never past the page, which may be the mapping's last.
    let readable = MAX_INSTRUCTION.min(4096 - (address & 4095)).max(old.len());
    let mut code = [0; MAX_INSTRUCTION];
    for (i, byte) in code[..readable].iter_mut().enumerate() {
        // SAFETY: up to `old.len()` the bytes are text by the caller's obligation; the rest lies in the same page.
        *byte = unsafe { text.add(i).read_volatile() };
    }
    let mut decode = |bytes: &Bytes| {
        code[..bytes.len()].copy_from_slice(bytes);
        let decoded = Decoder::with_ip(64, &code[..readable], address as u64, DecoderOptions::NONE).decode();
        if decoded.is_invalid() { Err(Error::Undecodable { address, bytes: *bytes }) } else { Ok(decoded) }
    };
    let (old_instruction, new_instruction) = (decode(old)?, decode(new)?);
    if old_instruction.len() != new_instruction.len() || old.len() > old_instruction.len() {
        return Err(Error::LayoutChanged {
            address,
            old_length: old_instruction.len(),
            new_length: new_instruction.len(),
        });
    }
    const { assert!(MAX_PATCH <= MAX_INSTRUCTION) };
    Ok(old_instruction)
}
