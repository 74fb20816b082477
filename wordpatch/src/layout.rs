//! Which instruction a patch changes, and whether threads can be anywhere in the old bytes and go on in the new ones.
//!
//! The new bytes must be *layout equivalent* to the old ones (paper, section 4): the same set of addresses starts an instruction.
//! Then a patch of several instructions is as good as a sequence of patches of each (the paper's footnote 1), if it
//! is one store: a thread between two of them runs old ones first and new ones then, never the reverse (AMD APM volume 2,
//! section 7.6.1).
//!
//! ```text
//! 90 90 90 90 90   →  0f 1f 44 00 00    refused: a thread behind the first NOP would run from the middle of the new one
//! 0f 1f 44 00 00   →  90 90 90 90 90    refused as well; safe as one store, but nobody could go back
//! b0 01 b3 02 c3   →  b0 03 b3 04 c3    two instructions: one store, or not at all
//! b0 01 b3 02 c3   →  b0 01 b3 04 c3    one instruction: the patch is narrowed down to `b3 02`
//! ```

use iced_x86::{Decoder, DecoderOptions};

use crate::copies::{MAX_INSTRUCTION, Original};
use crate::{Bytes, Error, MAX_PATCH};

/// As many bytes as the instructions can have that a patch begins in.
pub(crate) const MAX_CODE: usize = MAX_PATCH - 1 + MAX_INSTRUCTION;

/// What a patch comes down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Where the first instruction that changes starts, counted from the patch.
    pub(crate) offset: usize,
    /// From there to the end of the patch, or of the last instruction that changes.
    pub(crate) old: Bytes,
    pub(crate) new: Bytes,
    /// The old instruction there.
    pub(crate) original: Original,
    /// Whether other instructions behind it change too.
    pub(crate) several: bool,
}

/// Checks a patch of `old` to `new` at `address`, where `code` stands, which begins with `old`. No change when both are equal.
///
/// # Errors
/// [`Error::Undecodable`], [`Error::LayoutChanged`].
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
    let part = |bytes: &Bytes| Bytes::new(&bytes[first..end.min(bytes.len())]).expect("part of a patch");
    let mut bytes = [0; MAX_INSTRUCTION];
    let length = first_end - first;
    bytes[..length].copy_from_slice(&code[first..first_end]);
    let original = Original { address: address + first, length, bytes };
    Ok(Some(Change { offset: first, old: part(old), new: part(new), original, several: end != first_end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: usize = 0x1000;

    fn narrowed(code: &[u8], new: &[u8]) -> Result<Option<Change>, Error> {
        let old = Bytes::new(&code[..new.len()]).unwrap();
        change(AT, code, &old, &Bytes::new(new).unwrap())
    }

    /// The offset, the old and new bytes of what is left of the patch, and whether it is several instructions.
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
    fn a_patch_comes_down_to_the_instructions_that_change() {
        let mov_mov_ret = [0xb0, 1, 0xb3, 2, 0xc3];
        check(&mov_mov_ret, &mov_mov_ret, None);
        check(&mov_mov_ret, &[0xb0, 9], Some((0, &[0xb0, 1], &[0xb0, 9], false)));
        check(&mov_mov_ret, &[0xb0, 1, 0xb3, 9, 0xc3], Some((2, &[0xb3, 2], &[0xb3, 9], false)));
        check(
            &mov_mov_ret,
            &[0xb0, 8, 0xb3, 9, 0xc3],
            Some((0, &mov_mov_ret[..4], &[0xb0, 8, 0xb3, 9], true)),
        );
        // The rest of a longer instruction stays as it is.
        check(&[0xb8, 1, 2, 3, 4], &[0xb8, 9], Some((0, &[0xb8, 1], &[0xb8, 9], false)));
        let original = narrowed(&[0x90, 0xb8, 1, 2, 3, 4], &[0x90, 0xb9]).unwrap().unwrap().original;
        assert_eq!((original.address, original.length), (AT + 1, 5));
        assert_eq!(original.bytes[..6], [0xb8, 1, 2, 3, 4, 0]);
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
