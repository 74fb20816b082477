//! The unwind table that the linker generates (`.eh_frame_hdr`): the sorted starts of the
//! functions, each with a reference to its description.
//!
//! It is read from the loaded object. Only the form that linkers usually generate is supported; for
//! others, [`super::elf`] reads the file's `.eh_frame`.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrame, EhFrameOffset, NativeEndian, UnwindSection};

use crate::loaded::LoadedObject;

/// Version 1; a pointer to `.eh_frame`, relative to itself; the number of entries; pairs relative
/// to the table.
const USUAL_FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// The size of the header: the form, the pointer and the number.
const HEADER: usize = 12;

/// The table of an object. Must not be used after the object may have been unloaded.
pub(super) struct Table<'a> {
    /// The address of the table in memory.
    address: usize,
    /// Function and description, relative to the table.
    entries: &'a [[i32; 2]],
    /// The descriptions, up to the end of their segment.
    frames: &'a [u8],
    frames_address: usize,
}

/// The bytes of `range`, if it is mapped by the object.
///
/// # Safety
/// The object must stay loaded while the bytes are used.
unsafe fn mapped<'a>(loaded: &LoadedObject, range: Range<usize>) -> Option<&'a [u8]> {
    let inside = |memory: &&Range<usize>| memory.start <= range.start && range.end <= memory.end;
    loaded.segments.iter().map(|segment| &segment.memory).find(inside)?;
    // SAFETY: inside a segment that the loader has mapped readable; by the caller's obligation, it
    // still is.
    Some(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(range.start), range.len()) })
}

impl<'a> Table<'a> {
    /// The object's table, if it has one in the usual form.
    ///
    /// # Safety
    /// The object must stay loaded while the table is used.
    pub(super) unsafe fn of(loaded: &'a LoadedObject) -> Option<Self> {
        let address = loaded.unwind?;
        if !address.is_multiple_of(4) {
            return None;
        }
        // SAFETY: the caller's obligation.
        let header: [u8; HEADER] = unsafe { mapped(loaded, address..address + HEADER) }?.try_into().ok()?;
        let [form @ .., a, b, c, d, e, f, g, h] = header;
        if form != USUAL_FORM {
            return None;
        }
        let frames_address = (address + 4).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize);
        let count = u32::from_le_bytes([e, f, g, h]) as usize;
        let start = address + HEADER;
        // SAFETY: the caller's obligation.
        let entries = unsafe { mapped(loaded, start..start.checked_add(count.checked_mul(8)?)?) }?;
        // SAFETY: `entries` is `count` times 8 mapped bytes, aligned to 4; any bytes are numbers.
        let entries = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast(), count) };
        let segment = loaded.segments.iter().find(|segment| segment.memory.contains(&frames_address))?;
        // SAFETY: the caller's obligation.
        let frames = unsafe { mapped(loaded, frames_address..segment.memory.end) }?;
        Some(Self { address, entries, frames, frames_address })
    }

    /// The starts of the functions, ascending.
    pub(super) fn starts(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().map(|[start, _]| self.address.wrapping_add_signed(*start as isize))
    }

    /// The end of the function that starts at `start`, if there is one.
    pub(super) fn end_of(&self, start: usize) -> Option<usize> {
        let offset = i32::try_from(start.wrapping_sub(self.address) as isize).ok()?;
        let entry = self.entries.binary_search_by_key(&offset, |[start, _]| *start).ok()?;
        let frame = self.address.wrapping_add_signed(self.entries[entry][1] as isize);
        let bases = BaseAddresses::default().set_eh_frame(self.frames_address as u64);
        let offset = EhFrameOffset(frame.checked_sub(self.frames_address)?);
        let table = EhFrame::new(self.frames, NativeEndian);
        let description = table.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).ok()?;
        let is_it = description.initial_address() as usize == start;
        is_it.then(|| start + description.len() as usize)
    }
}
