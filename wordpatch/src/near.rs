//! Memory within reach of a 32-bit displacement, for code to which patched text jumps.
//!
//! A block is written once and then sealed read-execute; its data pages, if requested, stay
//! read-write. No page is ever both writable and executable. Sealed blocks are never freed: a
//! thread may be inside one at any time.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use nix::sys::resource::{Resource, getrlimit};

use crate::Error;
use crate::maps;
use crate::protocol::INT3;

const PAGE: usize = 4096;

/// Kernels before 4.17 treat the address as a hint. The result is checked, so this is safe, too.
const FIXED: MapFlags = MapFlags::MAP_FIXED_NOREPLACE;

/// The reach of a rel32, less a margin for the longest instruction and for the block itself.
const REACH: usize = (1 << 31) - (1 << 20);

/// The lowest address that can be mapped (vm.mmap_min_addr).
const MIN_ADDRESS: usize = 1 << 16;

/// How often the gaps are listed again because other threads have mapped something in them: in each
/// round, one of these threads has made progress.
const MAX_ROUNDS: usize = 1000;

/// The end of the user address space.
const MAX_ADDRESS: usize = 1 << 47;

/// The kernel keeps this distance between the main thread's stack and other mappings (256 pages,
/// stack_guard_gap).
const STACK_GUARD: usize = 1 << 20;

/// A block near some text that is not sealed yet. If it is dropped, or cannot be sealed, it is
/// unmapped.
#[derive(Debug)]
pub struct NearBlock {
    start: NonNull<u8>,
    code: usize,
    /// Bytes of code and data.
    length: usize,
}

impl Drop for NearBlock {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and the block, which has the only way to write them, is gone.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}

/// A sealed block: `code` is read-execute, `data` is read-write and initially zero.
#[derive(Clone, Copy, Debug)]
pub struct SealedBlock {
    /// The address of the code.
    pub code: usize,
    /// The address of the data: the first page after the code.
    pub data: usize,
}

fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Free address ranges in the process, in ascending order.
fn gaps() -> Result<Vec<Range<usize>>, Error> {
    let mappings = maps::mappings().map_err(|source| Error::MemoryMap { address: 0, source })?;
    let limit = getrlimit(Resource::RLIMIT_STACK).map_or(u64::MAX, |(limit, _)| limit);
    let mut free = Vec::new();
    let mut end_of_last = MIN_ADDRESS;
    for mapping in mappings.into_iter().filter(|mapping| mapping.range.end <= MAX_ADDRESS) {
        let range = mapping.range;
        if range.start > end_of_last {
            let gap = end_of_last..range.start;
            free.push(if mapping.is_stack { left_by_stack(gap, &range, limit) } else { gap });
        }
        end_of_last = end_of_last.max(range.end);
    }
    Ok(free)
}

/// The part of the gap below the main thread's stack into which the stack does not grow: at most
/// half of the gap if its `limit` is larger than the gap.
fn left_by_stack(gap: Range<usize>, stack: &Range<usize>, limit: u64) -> Range<usize> {
    let grows = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(STACK_GUARD);
    let half = gap.start + gap.len() / 2;
    let end = stack.end.saturating_sub(grows).max(half).min(gap.end);
    gap.start..end
}

/// The highest address for `length` bytes in `gap` within `reach`, with a free page on either side.
/// Below the text, this is the nearest address; above it, the farthest, because the heap grows
/// upwards from the end of an executable.
fn place_in(gap: &Range<usize>, reach: &Range<usize>, length: usize) -> Option<usize> {
    let start = gap.start.max(reach.start).checked_add(PAGE)?;
    let end = gap.end.min(reach.end).checked_sub(length + PAGE)?;
    let place = end & !(PAGE - 1);
    (place >= start).then_some(place)
}

/// The addresses that every byte of the text can reach, and from which it can be reached.
fn reach_of(text: &Range<usize>) -> Range<usize> {
    text.end.saturating_sub(REACH)..text.start.saturating_add(REACH)
}

/// The result of a request to map pages at an address.
#[derive(Debug)]
enum Mapped {
    /// The pages are mapped.
    Here(NonNull<u8>),
    /// Something else is mapped there.
    Taken,
    /// The kernel reserves the range.
    Refused,
}

/// Maps `length` bytes at `place`, read-write, if nothing is mapped there.
fn map_if_free(place: usize, length: usize) -> Result<Mapped, Error> {
    let (Some(address), Some(size)) = (NonZeroUsize::new(place), NonZeroUsize::new(length)) else {
        return Ok(Mapped::Refused);
    };
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping; FIXED refuses an address where something is mapped.
    match unsafe { mmap_anonymous(Some(address), size, protection, MapFlags::MAP_PRIVATE | FIXED) } {
        Ok(start) if start.as_ptr() as usize == place => Ok(Mapped::Here(start.cast())),
        Ok(elsewhere) => {
            // SAFETY: the mapping is ours and not in use yet.
            let _ = unsafe { munmap(elsewhere, length) };
            Ok(Mapped::Taken)
        }
        Err(Errno::EEXIST) => Ok(Mapped::Taken),
        Err(Errno::EPERM | Errno::EINVAL) => Ok(Mapped::Refused),
        Err(errno) => Err(Error::MemoryMap { address: place, source: errno.into() }),
    }
}

/// Maps pages, read-write, within reach of every address in `text` and vice versa.
///
/// # Errors
/// [`Error::OutOfReach`], [`Error::MemoryMap`].
pub(crate) fn map_near(text: &Range<usize>, length: usize) -> Result<NonNull<u8>, Error> {
    let reach = reach_of(text);
    let mapped = map_in_gap(length, &reach, |gaps| {
        let (below, above): (Vec<_>, Vec<_>) = gaps.into_iter().partition(|gap| gap.start < text.start);
        below.into_iter().rev().chain(above.into_iter().rev()).collect()
    })?;
    mapped.ok_or(Error::OutOfReach { address: text.start, length })
}

/// Maps pages, read-write, in the first gap that has a place for them in `reach`; `order` gets the
/// gaps in ascending order. `None` if no gap has one.
fn map_in_gap(
    length: usize,
    reach: &Range<usize>,
    order: impl Fn(Vec<Range<usize>>) -> Vec<Range<usize>>,
) -> Result<Option<NonNull<u8>>, Error> {
    for _ in 0..MAX_ROUNDS {
        let mut was_taken = false;
        for gap in order(gaps()?) {
            let Some(place) = place_in(&gap, reach, length) else { continue };
            match map_if_free(place, length)? {
                Mapped::Here(start) => return Ok(Some(start)),
                Mapped::Taken => was_taken = true,
                Mapped::Refused => {}
            }
        }
        // If another thread has mapped something in a gap since the gaps were listed, the rest of
        // that gap may be sufficient.
        if !was_taken {
            break;
        }
    }
    Ok(None)
}

impl NearBlock {
    /// Maps a block with `code` bytes for code and `data` bytes for data, all within reach of every
    /// address in `text` and vice versa.
    ///
    /// # Errors
    /// [`Error::OutOfReach`], [`Error::MemoryMap`].
    pub fn allocate(text: &Range<usize>, code: usize, data: usize) -> Result<Self, Error> {
        let length = pages(code) + pages(data);
        Ok(Self::unsealed(map_near(text, length)?, code, length))
    }

    /// As [`NearBlock::allocate`], for a block inside this range; `None` if the range has no free
    /// space for it with a free page on either side.
    ///
    /// # Errors
    /// [`Error::MemoryMap`].
    pub fn allocate_within(range: &Range<usize>, code: usize, data: usize) -> Result<Option<Self>, Error> {
        let length = pages(code) + pages(data);
        let mapped = map_in_gap(length, range, |gaps| gaps.into_iter().rev().collect())?;
        Ok(mapped.map(|start| Self::unsealed(start, code, length)))
    }

    /// As [`NearBlock::allocate`], for a block at this address, the start of a page; `None` if
    /// something is mapped there.
    ///
    /// # Errors
    /// [`Error::MemoryMap`].
    pub fn allocate_at(start: usize, code: usize, data: usize) -> Result<Option<Self>, Error> {
        let length = pages(code) + pages(data);
        match map_if_free(start, length)? {
            Mapped::Here(start) => Ok(Some(Self::unsealed(start, code, length))),
            Mapped::Taken | Mapped::Refused => Ok(None),
        }
    }

    fn unsealed(start: NonNull<u8>, code: usize, length: usize) -> Self {
        let mut block = Self { start, code: pages(code), length };
        block.code_mut().fill(INT3);
        block
    }

    /// The address at which the code will be executed.
    pub fn code_address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The address of the data.
    pub fn data_address(&self) -> usize {
        self.code_address() + self.code
    }

    /// The code, which can be written until the block is sealed. Initially filled with INT3.
    pub fn code_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped read-write until `seal` consumes the block, which is its only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.code) }
    }

    /// Makes the code read-execute.
    ///
    /// # Errors
    /// [`Error::ProtectRefused`].
    pub fn seal(self) -> Result<SealedBlock, Error> {
        let sealed = SealedBlock { code: self.code_address(), data: self.data_address() };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: the pages are ours and are not executed yet.
        unsafe { mprotect(self.start.cast(), self.code, protection) }
            .map_err(|errno| Error::ProtectRefused { address: sealed.code, source: errno.into() })?;
        std::mem::forget(self);
        Ok(sealed)
    }
}

impl SealedBlock {
    /// Unmaps a block of `length` bytes.
    ///
    /// # Safety
    /// It is not in use, and will not be.
    pub(crate) unsafe fn unmap(self, length: usize) {
        let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(self.code)) else { return };
        // SAFETY: the caller's obligation.
        let _ = unsafe { munmap(start, length) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn a_place_is_inside_gap_and_reach_with_a_page_on_either_side() {
        let check = |gap, reach, length, expected| assert_eq!(place_in(&gap, &reach, length), expected);
        check(0x10000..0x20000, 0..0x100000, 0x1000, Some(0x1e000));
        check(0x10000..0x20000, 0x1f000..0x100000, 0x1000, None);
        check(0x10000..0x20000, 0..0x18000, 0x1000, Some(0x16000));
        check(0x10000..0x12000, 0..0x100000, 0x1000, None);
    }

    #[test]
    fn the_stack_keeps_the_room_that_it_may_grow_into() {
        const MIB: usize = 1 << 20;
        let stack = 1000 * MIB..1001 * MIB;
        let left = |limit: u64| left_by_stack(100 * MIB..stack.start, &stack, limit);
        assert_eq!(left(8 << 20), 100 * MIB..992 * MIB);
        assert_eq!(left(0), 100 * MIB..1000 * MIB);
        // Not limited, or by more than the gap.
        for limit in [u64::MAX, 1 << 40] {
            assert_eq!(left(limit), 100 * MIB..550 * MIB);
        }
        let own = crate::maps::mappings().unwrap().into_iter().find(|mapping| mapping.is_stack);
        let below = own.expect("the process has a stack").range.start;
        assert!(gaps().unwrap().iter().all(|gap| !(below - MIB..below).contains(&(gap.end - 1))));
    }

    #[test]
    fn a_block_that_is_not_sealed_is_unmapped() {
        let block = NearBlock::allocate(&(6 << 40..6 << 40), 1, 1).unwrap();
        let start = block.code_address();
        assert!(crate::maps::mapping_at(start).is_some());
        drop(block);
        assert!(crate::maps::mapping_at(start).is_none() && crate::maps::mapping_at(start + PAGE).is_none());
    }

    /// Another thread may map something in a gap after the gaps were listed.
    #[test]
    fn an_existing_mapping_is_not_replaced() {
        let mut taken = NearBlock::allocate(&(1 << 40..1 << 40), 1, 0).unwrap();
        taken.code_mut().fill(7);
        assert!(matches!(map_if_free(taken.code_address(), PAGE).unwrap(), Mapped::Taken));
        assert!(taken.code_mut().iter().all(|byte| *byte == 7), "the mapping was replaced");
    }

    /// All of them find the same gap first.
    #[test]
    fn threads_that_allocate_at_the_same_time_all_get_blocks() {
        const THREADS: usize = 4;
        const BLOCKS: usize = 100;
        let text = 5 << 40..5 << 40;
        let barrier = Barrier::new(THREADS);
        let allocate = || {
            let each = (0..BLOCKS).map(|_| {
                barrier.wait();
                NearBlock::allocate(&text, 1, 0).and_then(NearBlock::seal).map(|block| block.code)
            });
            each.collect::<Vec<_>>()
        };
        let allocated: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(allocate)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let addresses: Result<Vec<usize>, _> = allocated.into_iter().collect();
        let mut addresses = addresses.expect("a gap of a TiB has room for all");
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), THREADS * BLOCKS);
    }

    #[test]
    fn a_block_is_placed_in_a_range_or_at_an_address_that_is_free() {
        let start = 3 << 40;
        let range = start..start + 8 * PAGE;
        let block = NearBlock::allocate_within(&range, 2 * PAGE, 1).unwrap().expect("a free range");
        assert_eq!(block.code_address(), start + 4 * PAGE, "the highest place, with a page above it");
        let allocate_within = |code| NearBlock::allocate_within(&range, code, 0).unwrap();
        assert!(allocate_within(3 * PAGE).is_none(), "no room for it with a page on either side");
        assert_eq!(allocate_within(2 * PAGE).expect("room").code_address(), start + PAGE);
        assert!(NearBlock::allocate_at(start + 4 * PAGE, 1, 0).unwrap().is_none(), "it is taken");
        let other = NearBlock::allocate_at(start + 9 * PAGE, 1, 0).unwrap().expect("it is free");
        assert_eq!(other.code_address(), start + 9 * PAGE);
    }

    /// Checks the distance between either end of the text and either end of the block.
    #[test]
    fn every_byte_of_a_block_is_in_reach_of_every_byte_of_its_text() {
        let text = (1 << 46)..(1 << 46) + (1 << 30);
        let reach = reach_of(&text);
        for (end, text) in [(reach.start, text.end), (reach.end, text.start)] {
            assert!((1 << 30..1 << 31).contains(&end.abs_diff(text)), "{end:#x} and {text:#x}");
        }
        let block = NearBlock::allocate(&text, 1 << 20, 0).unwrap();
        let ends = [block.code_address(), block.code_address() + (1 << 20)];
        for (end, text) in ends.into_iter().flat_map(|end| [(end, text.start), (end, text.end)]) {
            assert!(end.abs_diff(text) < 1 << 31, "{end:#x} is out of reach of {text:#x}");
        }
    }

    #[test]
    fn a_block_is_near_writable_and_then_executable() {
        let text = a_block_is_near_writable_and_then_executable as fn() as usize;
        let mut block = NearBlock::allocate(&(text..text + 1), 100, 8).unwrap();
        assert!(block.code_address().abs_diff(text) < 1 << 31);
        assert!(block.code_mut().iter().all(|byte| *byte == INT3), "unwritten code must trap");
        block.code_mut()[..6].copy_from_slice(&[0xb8, 42, 0, 0, 0, 0xc3]);
        let data = block.data_address();
        let sealed = block.seal().unwrap();
        assert_eq!((sealed.data, data), (sealed.code + PAGE, sealed.code + PAGE));
        // SAFETY: the code is `mov eax, 42; ret`.
        let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(sealed.code) };
        assert_eq!(function(), 42);
        let protection = region::query(sealed.code as *const u8).unwrap().protection();
        assert_eq!(protection, region::Protection::READ_EXECUTE);
        let protection = region::query(sealed.data as *const u8).unwrap().protection();
        assert_eq!(protection, region::Protection::READ_WRITE);
    }
}
