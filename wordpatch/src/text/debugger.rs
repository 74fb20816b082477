//! Finds a debugger's breakpoints in text, and the pages that it has copied to set them.
//!
//! A debugger's write to read-only text gives the process its own copy of the page, in which stores
//! to the mapped file are no longer visible. `/proc/thread-self/pagemap` has, for each page,
//! whether it belongs to a file. If it cannot be read, no page counts as copied. A uprobe changes
//! text in the same way.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::maps;
use crate::protocol::INT3;

const PAGE: usize = 4096;

/// The length of an operand, in bytes.
const OPERAND: usize = 4;

/// Bits of an entry of `pagemap`: the page is in memory; it is swapped out; it belongs to a file or
/// is shared.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Whether a debugger, or another program that uses `ptrace`, is attached to the calling thread:
/// debuggers attach to all threads. If /proc cannot be read, it is assumed.
pub(super) fn is_traced() -> bool {
    let mut status = Vec::new();
    let read = maps::open("status").and_then(|mut file| file.read_to_end(&mut status));
    // The name of the thread, which it contains, may be anything.
    let status = String::from_utf8_lossy(&status);
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    read.is_err() || tracer.is_none_or(|tracer| tracer.trim() != "0")
}

/// The addresses of pages in `range` of which this process has its own copy. `range` consists of
/// whole pages of private mappings.
pub(super) fn copied_pages(range: &Range<usize>) -> Vec<usize> {
    let mut entries = vec![0; range.len() / PAGE * size_of::<u64>()];
    let position = (range.start / PAGE * size_of::<u64>()) as u64;
    let read = maps::open("pagemap").and_then(|map| map.read_exact_at(&mut entries, position));
    if read.is_err() {
        return Vec::new();
    }
    let is_copied = |entry: &[u8]| {
        let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
        entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
    };
    let pages = entries.chunks_exact(size_of::<u64>()).zip(range.clone().step_by(PAGE));
    pages.filter(|(entry, _)| is_copied(entry)).map(|(_, page)| page).collect()
}

/// The bytes of text at `range`.
///
/// # Safety
/// They must be mapped readable.
unsafe fn read(range: &Range<usize>) -> Vec<u8> {
    // SAFETY: the caller's obligation.
    let byte = |at| unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
    range.clone().map(byte).collect()
}

/// The longest ranges of consecutive copied pages in `range`. The pages around such a range still
/// have the bytes of the file.
fn copied_ranges(range: &Range<usize>) -> Vec<Range<usize>> {
    let pages = copied_pages(range);
    pages.chunk_by(|page, next| next - page == PAGE).map(|run| run[0]..run[run.len() - 1] + PAGE).collect()
}

/// The offsets at which `text` has an INT3 that the original does not have, and which is a
/// breakpoint.
///
/// A breakpoint is a single byte, before which and after which nothing is changed, except for other
/// breakpoints. In a changed instruction, an operand byte that happens to be 0xCC has changed
/// neighbours, or all four are; nobody sets breakpoints at four adjacent one-byte instructions.
fn breakpoints(text: &[u8], original: &[u8]) -> Vec<usize> {
    let is_int3 = |at: usize| text[at] == INT3 && original[at] != INT3;
    let changed: Vec<usize> = (0..text.len()).filter(|at| text[*at] != original[*at]).collect();
    let changes = changed.chunk_by(|at, next| next - at == 1);
    let are_breakpoints = |change: &&[usize]| change.len() < OPERAND && change.iter().all(|at| is_int3(*at));
    changes.filter(are_breakpoints).flatten().copied().collect()
}

/// The breakpoints in text at `part` that was mapped from a memory file of ours with this writable
/// alias `view`.
///
/// # Safety
/// Both must be mapped readable, and of the same length.
pub(super) unsafe fn breakpoints_in_copies(part: &Range<usize>, view: *const u8) -> Vec<usize> {
    let in_range = |range: Range<usize>| {
        let view = view.wrapping_add(range.start - part.start).addr();
        // SAFETY: copied pages of the part, and the same pages of the alias.
        let (text, original) = unsafe { (read(&range), read(&(view..view + range.len()))) };
        // The parent may have stored since: then several adjacent bytes differ.
        breakpoints(&text, &original).into_iter().map(move |at| range.start + at)
    };
    copied_ranges(part).into_iter().flat_map(in_range).collect()
}

/// The breakpoints in text that was mapped from a file, each with the original byte in the file.
/// None if the file can no longer be read. The entire text must be mapped readable.
pub(super) fn breakpoints_in_file_text(range: &Range<usize>) -> Vec<(usize, u8)> {
    let copied = copied_ranges(range);
    let Some(first) = copied.first() else { return Vec::new() };
    let Some((file, mapped, offset)) = file_of(first.start) else { return Vec::new() };
    let in_range = |range: Range<usize>| {
        let mut original = vec![0; range.len()];
        let position = range.start.checked_sub(mapped).map(|distance| offset + distance as u64);
        // The last page of a file may be short.
        if position.is_none_or(|position| file.read_at(&mut original, position).is_err()) {
            return Vec::new();
        }
        // SAFETY: pages of the range.
        let text = unsafe { read(&range) };
        let found = breakpoints(&text, &original);
        found.into_iter().map(|at| (range.start + at, original[at])).collect()
    };
    copied.into_iter().flat_map(in_range).collect()
}

/// The file that is mapped at `address`, with the start of the mapping and its offset in the file.
fn file_of(address: usize) -> Option<(File, usize, u64)> {
    let table = maps::table().ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        if !(start..usize::from_str_radix(end, 16).ok()?).contains(&address) {
            return None;
        }
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let inode: u64 = fields.nth(1)?.parse().ok()?;
        let path = line.get(line.find('/')?..)?;
        let file = File::open(path).ok()?;
        (file.metadata().ok()?.ino() == inode).then_some((file, start, offset))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_is_a_single_changed_byte_or_next_to_another_one() {
        let original = [0x55, 0x53, 0xb8, 1, 2, 3, 4, 0x5d];
        let check = |at: usize, changed: &[u8], expected: &[usize]| {
            let mut text = original;
            text[at..at + changed.len()].copy_from_slice(changed);
            assert_eq!(breakpoints(&text, &original), expected, "{text:x?}");
        };
        check(0, &[], &[]);
        check(0, &[INT3], &[0]);
        check(7, &[INT3], &[7]);
        check(0, &[INT3, INT3], &[0, 1]);
        // Other instructions, and relocated operands.
        check(2, &[0x81, INT3, 0x12, 0x34, 0x56], &[]);
        check(2, &[0x81, INT3, INT3, INT3, INT3], &[]);
        check(2, &[INT3, 0x12], &[]);
        // Bytes that are not changed, and breakpoints at the ends of the changes.
        check(0, &[INT3, 0x53, 0x81, INT3, 0x12], &[0]);
        assert_eq!(breakpoints(&[INT3], &[INT3]), []);
        // All bytes of an operand.
        assert_eq!(breakpoints(&[0xb8, INT3, INT3, INT3, INT3], &[0xb8, 1, 2, 3, 4]), []);
        assert_eq!(breakpoints(&[INT3, INT3, 0x12], &[0x90, 0x90, 0x12]), [0, 1]);
    }
}
