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

/// The bytes of a page.
///
/// # Safety
/// It must be mapped readable.
unsafe fn read_page(page: *const u8) -> [u8; PAGE] {
    // SAFETY: the caller's obligation.
    std::array::from_fn(|at| unsafe { page.add(at).read_volatile() })
}

/// The addresses at which `text` has an INT3 and `original` does not.
fn differences<'a>(
    page: usize,
    text: &'a [u8; PAGE],
    original: &'a [u8; PAGE],
) -> impl Iterator<Item = (usize, u8)> + 'a {
    let bytes = text.iter().zip(original).enumerate();
    bytes
        .filter(|(_, (found, original))| **found == INT3 && **original != INT3)
        .map(move |(at, (_, original))| (page + at, *original))
}

/// The breakpoints in text at `part` that was mapped from a memory file of ours with this writable
/// alias `view`.
///
/// # Safety
/// Both must be mapped readable, and of the same length.
pub(super) unsafe fn breakpoints_in_copies(part: &Range<usize>, view: *const u8) -> Vec<usize> {
    let in_page = |page: usize| {
        // SAFETY: a page of the part, and the same page of the alias.
        let (text, original) = unsafe {
            (
                read_page(std::ptr::with_exposed_provenance(page)),
                read_page(view.wrapping_add(page - part.start)),
            )
        };
        differences(page, &text, &original).map(|(at, _)| at).collect::<Vec<_>>()
    };
    let mut breakpoints: Vec<usize> = copied_pages(part).into_iter().flat_map(in_page).collect();
    // The parent may have stored since: then several adjacent bytes differ. A breakpoint is a
    // single byte. SAFETY: both bytes are inside the part, and inside the alias.
    let differs = |at: usize| unsafe {
        part.contains(&at)
            && std::ptr::with_exposed_provenance::<u8>(at).read_volatile()
                != view.wrapping_add(at - part.start).read_volatile()
    };
    breakpoints.retain(|at| !differs(at - 1) && !differs(at + 1));
    breakpoints
}

/// The breakpoints in text that was mapped from a file, each with the original byte in the file.
/// None if the file can no longer be read. The entire text must be mapped readable.
pub(super) fn breakpoints_in_file_text(range: &Range<usize>) -> Vec<(usize, u8)> {
    let copied = copied_pages(range);
    let Some(first) = copied.first() else { return Vec::new() };
    let Some((file, mapped, offset)) = file_of(*first) else { return Vec::new() };
    let in_page = |page: usize| {
        let mut original = [0; PAGE];
        let position = page.checked_sub(mapped).map(|distance| offset + distance as u64);
        // The last page of a file may be short.
        if position.is_none_or(|position| file.read_at(&mut original, position).is_err()) {
            return Vec::new();
        }
        // SAFETY: a page of the range.
        let text = unsafe { read_page(std::ptr::with_exposed_provenance(page)) };
        differences(page, &text, &original).collect()
    };
    copied.into_iter().flat_map(in_page).collect()
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
