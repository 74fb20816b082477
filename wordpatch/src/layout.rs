//! Reduces a patch to the instructions that it changes, and checks that a thread at any instruction
//! of the old code can continue in the new code.
//!
//! The new bytes must be *layout equivalent* to the old ones (paper, section 4): the same set of
//! addresses starts an instruction.
//!
//! # One instruction
//! A patch of part of an instruction is extended to the entire instruction: fetch combines all of
//! its bytes, so the split of the *instruction* determines whether one store is sufficient, and
//! patches of different parts of it must exclude each other. Bytes after the eighth are left out.
//! They never change, because every patch starts at the start of an instruction and has at most
//! eight bytes.
//!
//! # Several instructions
//! A patch of several instructions is equivalent to a sequence of patches of each (the paper's
//! footnote 1) if it is one store: a thread between two of them executes old ones and then new
//! ones, never the reverse (AMD APM volume 2, section 7.6.1). The store compares all bytes from the
//! start of the first instruction that changes to the end of the last one, so these must be at most
//! eight bytes in one fetch window.
//!
//! ```text
//! 90 90 90 90 90   →  0f 1f 44 00 00    refused: a thread after the first NOP would run from the middle of the new one
//! 0f 1f 44 00 00   →  90 90 90 90 90    refused too: safe as one store, but it could not be undone
//! b0 01 b3 02 c3   →  b0 03 b3 04 c3    two instructions: one store, or an error
//! b0 01 b3 02 c3   →  b0 01 b3 04 c3    one instruction: the patch is reduced to `b3 02`
//! b8 01 .. .. ..   →  b8 09 .. .. ..    part of an instruction: the patch is extended to its five bytes
//! ```

use iced_x86::{Decoder, DecoderOptions};

use crate::copies::{MAX_INSTRUCTION, Original};
use crate::{Bytes, Error, MAX_PATCH};

/// The maximum length of the instructions of one patch, in bytes.
pub(crate) const MAX_CODE: usize = MAX_PATCH - 1 + MAX_INSTRUCTION;

/// The instructions that a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The offset of the first instruction that changes, from the start of the patch.
    pub(crate) offset: usize,
    /// The old bytes from there to the end of the last instruction that changes, or to the eighth
    /// byte of a single longer one.
    pub(crate) old: Bytes,
    pub(crate) new: Bytes,
    /// The number of these bytes that the caller has given. The remaining ones were read from the
    /// text and do not change.
    pub(crate) named: usize,
    /// The first instruction that changes, before the patch.
    pub(crate) original: Original,
    /// Whether other instructions change, too.
    pub(crate) several: bool,
}

/// Checks a patch from `old` to `new` at `address`. `code` are the bytes at this address, which
/// start with `old`. Returns `None` if `old` and `new` are equal.
///
/// # Errors
/// [`Error::Undecodable`], [`Error::LayoutChanged`]; [`Error::SeveralInstructions`] if more than
/// one changes and together they have more than eight bytes.
pub(crate) fn change(address: usize, code: &[u8], old: &Bytes, new: &Bytes) -> Result<Option<Change>, Error> {
    let mut replaced = [0; MAX_CODE];
    replaced[..code.len()].copy_from_slice(code);
    replaced[..new.len()].copy_from_slice(new);
    let replaced = &replaced[..code.len()];
    let length_at = |code: &[u8], offset: usize, bytes: &Bytes| {
        let ip = (address + offset) as u64;
        let decoded = Decoder::with_ip(64, &code[offset..], ip, DecoderOptions::NONE).decode();
        if decoded.is_invalid() {
            Err(Error::Undecodable { address: address + offset, bytes: *bytes })
        } else {
            Ok(decoded.len())
        }
    };
    let mut changed: Option<(usize, usize, usize)> = None;
    let mut offset = 0;
    while offset < old.len() {
        let (old_length, new_length) = (length_at(code, offset, old)?, length_at(replaced, offset, new)?);
        if old_length != new_length {
            return Err(Error::LayoutChanged { address: address + offset, old_length, new_length });
        }
        let end = offset + old_length;
        if code[offset..end] != replaced[offset..end] {
            let (first, first_end, _) = changed.unwrap_or((offset, end, end));
            changed = Some((first, first_end, end));
        }
        offset = end;
    }
    let Some((first, first_end, end)) = changed else { return Ok(None) };
    let several = end != first_end;
    if several && end - first > MAX_PATCH {
        return Err(Error::SeveralInstructions { address: address + first });
    }
    let end = end.min(first + MAX_PATCH);
    let part = |code: &[u8]| Bytes::new(&code[first..end]).expect("1 to 8 bytes");
    let mut bytes = [0; MAX_INSTRUCTION];
    let length = first_end - first;
    bytes[..length].copy_from_slice(&code[first..first_end]);
    Ok(Some(Change {
        offset: first,
        old: part(code),
        new: part(replaced),
        named: old.len().min(end) - first,
        original: Original { address: address + first, length, bytes },
        several,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x1000;

    fn narrowed(code: &[u8], new: &[u8]) -> Result<Option<Change>, Error> {
        let old = Bytes::new(&code[..new.len()]).unwrap();
        change(AT, code, &old, &Bytes::new(new).unwrap())
    }

    /// Compares the offset, the old and new bytes of the change, and whether it is several
    /// instructions.
    #[track_caller]
    fn check(code: &[u8], new: &[u8], expected: Option<(usize, &[u8], &[u8], bool)>) {
        let found = narrowed(code, new).unwrap();
        let found = found.as_ref().map(|c| (c.offset, c.old.as_slice(), c.new.as_slice(), c.several));
        assert_eq!(found, expected, "{code:02x?} to {new:02x?}");
    }

    #[track_caller]
    fn refused(code: &[u8], new: &[u8], expected: &str) {
        let error = format!("{:?}", narrowed(code, new).unwrap_err());
        assert!(error.starts_with(expected), "{error}, not {expected}");
    }

    #[test]
    fn a_patch_is_reduced_to_the_instructions_that_change() {
        let mov_mov_ret = [0xb0, 1, 0xb3, 2, 0xc3];
        check(&mov_mov_ret, &mov_mov_ret, None);
        check(&mov_mov_ret, &[0xb0, 9], Some((0, &[0xb0, 1], &[0xb0, 9], false)));
        check(&mov_mov_ret, &[0xb0, 1, 0xb3, 9, 0xc3], Some((2, &[0xb3, 2], &[0xb3, 9], false)));
        check(
            &mov_mov_ret,
            &[0xb0, 8, 0xb3, 9, 0xc3],
            Some((0, &mov_mov_ret[..4], &[0xb0, 8, 0xb3, 9], true)),
        );
        let original = narrowed(&[0x90, 0xb8, 1, 2, 3, 4], &[0x90, 0xb9]).unwrap().unwrap().original;
        assert_eq!((original.address, original.length), (AT + 1, 5));
        assert_eq!(original.bytes[..6], [0xb8, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn a_patch_of_a_part_is_extended_to_the_entire_instruction() {
        let mov_eax = [0xb8, 1, 2, 3, 4];
        let named = |code: &[u8], new: &[u8]| narrowed(code, new).unwrap().unwrap().named;
        check(&mov_eax, &[0xb8, 9], Some((0, &mov_eax, &[0xb8, 9, 2, 3, 4], false)));
        assert_eq!(named(&mov_eax, &[0xb8, 9]), 2);
        // Also if the patch starts at the previous instruction.
        let nop_mov = [0x90, 0xb8, 1, 2, 3, 4];
        check(&nop_mov, &[0x90, 0xb8, 9], Some((1, &mov_eax, &[0xb8, 9, 2, 3, 4], false)));
        assert_eq!(named(&nop_mov, &[0x90, 0xb8, 9]), 2);
        // `mov rax, imm64`: no patch reaches beyond the eighth byte.
        let long = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8];
        check(&long, &[0x48, 0xb8, 9], Some((0, &long[..8], &[0x48, 0xb8, 9, 2, 3, 4, 5, 6], false)));
        assert_eq!(narrowed(&long, &[0x48, 0xb8, 9]).unwrap().unwrap().original.length, 10);
    }

    #[test]
    fn several_instructions_are_one_store_of_all_their_bytes() {
        // push rax; mov rax, imm32 (seven bytes): eight bytes, of which four are given.
        let eight = [0x50, 0x48, 0xc7, 0xc0, 1, 2, 3, 4];
        check(
            &eight,
            &[0x51, 0x48, 0xc7, 0xc1],
            Some((0, &eight, &[0x51, 0x48, 0xc7, 0xc1, 1, 2, 3, 4], true)),
        );
        // One byte more.
        let nine = [0xb0, 0, 0x48, 0xc7, 0xc0, 1, 2, 3, 4];
        refused(&nine, &[0xb1, 0, 0x48, 0xc7, 0xc1], "SeveralInstructions { address: 4096 }");
        // Only the second one.
        check(
            &nine,
            &[0xb0, 0, 0x48, 0xc7, 0xc1],
            Some((2, &nine[2..], &[0x48, 0xc7, 0xc1, 1, 2, 3, 4], false)),
        );
    }

    #[test]
    fn instructions_that_would_start_elsewhere_are_refused() {
        refused(
            &[0x90; 5],
            &[0x0f, 0x1f, 0x44, 0, 0],
            "LayoutChanged { address: 4096, old_length: 1, new_length: 5",
        );
        refused(
            &[0x0f, 0x1f, 0x44, 0, 0],
            &[0x90; 5],
            "LayoutChanged { address: 4096, old_length: 5, new_length: 1",
        );
        refused(
            &[0x90, 0xb0, 1],
            &[0x90, 0x90, 0x90],
            "LayoutChanged { address: 4097, old_length: 2, new_length: 1",
        );
        refused(&[0xb0, 1, 0x90], &[0x06, 1], "Undecodable { address: 4096");
        refused(&[0xb8, 1, 2], &[0xb8, 9], "Undecodable");
    }
}
