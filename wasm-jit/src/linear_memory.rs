//! The pages of a linear memory.
//!
//! Compiled code does not compare addresses with the memory's length. The full range that an access
//! can address is reserved, inaccessible: 4 GiB for the address, 4 GiB for the offset in the
//! instruction, and a guard for the width of the access. Growing makes further pages accessible, so
//! the base never moves.
//!
//! Compiled code does compare 64-bit addresses, and addresses in a memory whose size is not
//! necessarily a multiple of 64 KiB. Then fewer addresses are reserved: the memory's maximum, but
//! at most 64 GiB, and less if the system refuses that. The memory does not grow beyond them.
//!
//! If the system refuses to reserve so much (`ulimit -v`), compiled code compares addresses in all
//! memories ([`CodeSettings`](wasm_jit_codegen::CodeSettings)), and a memory takes no more
//! addresses than it has bytes. Its base does not move either: it lies in an address range in which
//! the kernel places nothing on its own, 8 GiB from the next memory, and grows into the gap.
//!
//! Several threads may use a shared memory: its length is atomic and never shrinks, and a lock
//! serializes growth.

use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::error::Error;
use crate::types::MemoryType;

/// Bytes in a page of the system.
const SYSTEM_PAGE: u64 = 4096;
const GUARD: usize = 1 << 16;
const RESERVED: usize = (8 << 30) + GUARD;
/// The largest reservation of a memory whose addresses are compared, unless its initial size is
/// larger.
const MAX_PARTIAL: u64 = 64 << 30;

/// Number of memories for which the system must be able to reserve addresses.
const MEMORIES: usize = 8;

/// Start of the range of memories without a reservation: far from executables, which are above, and
/// from the kernel's mappings, which are above those.
const FIRST_SLOT: usize = 0x1000_0000_0000;
const SLOT: usize = 8 << 30;
const SLOTS: usize = 8192;
/// Maximum number of slots that are tried for a memory.
const MAX_TRIES: usize = 1024;

/// The addresses of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All addresses that an access can reach.
    Reserved,
    /// Those that the memory may grow to: for code that checks bounds.
    Partial,
    /// Only those of the memory's pages, and a guard before them: for code that checks bounds.
    Exact,
}

impl Extent {
    /// The extent of memories of this type where addresses can be reserved.
    pub(crate) fn reserved_for(ty: MemoryType) -> Self {
        if ty.is_always_checked() { Self::Partial } else { Self::Reserved }
    }
}

/// Whether the system lets this process reserve the addresses of some memories.
pub(crate) fn can_reserve() -> bool {
    let length = MEMORIES * RESERVED;
    // SAFETY: a new mapping at an address chosen by the kernel, which is unmapped again.
    unsafe {
        let mapped = mmap_anonymous(null_mut(), length, ProtFlags::empty(), MAP_FLAGS);
        mapped.is_ok_and(|base| munmap(base, length).is_ok())
    }
}

/// The error if a memory without a reservation is used by code that does not check bounds.
pub(crate) fn not_reserved(source: io::Error) -> Error {
    Error::memory("the 8 GiB of addresses of a linear memory (see BoundsChecks)", source)
}

const MAP_FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// The pages of one memory.
#[derive(Debug)]
pub(crate) struct LinearMemory {
    base: NonNull<u8>,
    /// The current length, in bytes.
    length: AtomicU64,
    /// The maximum, in pages.
    maximum: u64,
    ty: MemoryType,
    extent: Extent,
    /// The reservation, in bytes from the base; 0 if addresses are mapped when they are needed.
    reserved: usize,
    growing: Mutex<()>,
    /// Whether its address was given to the embedder.
    exposed: AtomicBool,
}

// SAFETY: the mapping belongs to this value until it is dropped. Its contents are accessed through
// raw pointers only; its owners guarantee exclusive access: one store for a memory of its own, and
// atomic accesses for a shared one.
unsafe impl Send for LinearMemory {}
// SAFETY: as above.
unsafe impl Sync for LinearMemory {}

impl LinearMemory {
    pub(crate) fn new(ty: MemoryType, extent: Extent) -> Result<Self, Error> {
        let addressable = ty.addressable_pages();
        let maximum = ty.maximum().unwrap_or(addressable);
        if ty.minimum() > maximum || maximum > addressable {
            return Err(Error::InvalidType { of: "memory" });
        }
        let (base, reserved) = match extent {
            Extent::Reserved => (reserve(RESERVED).map_err(|errno| not_reserved(errno.into()))?, RESERVED),
            Extent::Partial => {
                let maximum = maximum.saturating_mul(ty.page_size());
                reserve_partially(ty.minimum_bytes(), maximum).map_err(no_memory)?
            }
            Extent::Exact => (map_slot().map_err(no_memory)?, 0),
        };
        let base = NonNull::new(base.cast()).expect("the kernel maps nothing at address 0 by itself");
        let (length, growing, exposed) = (AtomicU64::new(0), Mutex::new(()), AtomicBool::new(false));
        let memory = Self { base, length, maximum, ty, extent, reserved, growing, exposed };
        memory.make_accessible(0, ty.minimum_bytes()).map_err(no_memory)?;
        memory.length.store(ty.minimum_bytes(), Ordering::Release);
        Ok(memory)
    }

    /// Makes the bytes at `from..to` readable and writable. They are zero, because nothing has
    /// written to them. (Those up to the end of a system page were accessible already, but not part
    /// of the memory.)
    ///
    /// Mapping new pages over the reserved ones would have the same effect, but if the kernel
    /// refuses that, it may already have unmapped the old ones: compiled code could then access an
    /// unrelated mapping. Without a reservation, the new pages replace nothing.
    fn make_accessible(&self, from: u64, to: u64) -> rustix::io::Result<()> {
        let (Some(from), Some(to)) = (whole_pages(from), whole_pages(to)) else {
            return Err(rustix::io::Errno::NOMEM);
        };
        if from == to {
            return Ok(());
        }
        let length = (to - from) as usize;
        // SAFETY: an address for the kernel, beyond the memory's length.
        let start = unsafe { self.base.as_ptr().add(from as usize).cast() };
        match self.extent {
            Extent::Reserved | Extent::Partial => {
                let access = MprotectFlags::READ | MprotectFlags::WRITE;
                // SAFETY: the range is in this value's reservation, beyond the memory's length,
                // where nothing reads or writes.
                unsafe { mprotect(start, length, access) }
            }
            Extent::Exact => map_at(start, length, ProtFlags::READ | ProtFlags::WRITE),
        }
    }

    /// Whether code that does not check bounds may use this memory.
    pub(crate) fn is_reserved(&self) -> bool {
        self.extent == Extent::Reserved
    }

    pub(crate) fn ty(&self) -> MemoryType {
        self.ty
    }

    /// The type for importers: the minimum is the current size.
    pub(crate) fn current_type(&self) -> MemoryType {
        self.ty.with_minimum(self.pages())
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The embedder gets the address, and may write through it at any time.
    pub(crate) fn expose(&self) {
        // Only threads that get the address from this one know it.
        self.exposed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_exposed(&self) -> bool {
        self.exposed.load(Ordering::Relaxed)
    }

    /// The address of the length, for compiled code.
    pub(crate) fn length_cell(&self) -> *const AtomicU64 {
        &raw const self.length
    }

    /// The length in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.length() / self.ty.page_size()
    }

    /// Adds pages; returns their previous number. `None` if the maximum or the reservation is
    /// exceeded, or `allow(new size in bytes)` refuses.
    pub(crate) fn grow(&self, pages: u64, allow: impl FnOnce(u64) -> bool) -> Option<u64> {
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.length();
        let page = self.ty.page_size();
        let new_pages = (old / page).checked_add(pages).filter(|new| *new <= self.maximum)?;
        let new = new_pages.checked_mul(page)?;
        if self.extent == Extent::Partial && new > self.reserved as u64 {
            return None;
        }
        if pages > 0 && !allow(new) {
            return None;
        }
        self.make_accessible(old, new).ok()?;
        self.length.store(new, Ordering::Release);
        Some(old / page)
    }

    /// The address of `length` bytes at `offset`, or `None` if they are not all in the memory.
    pub(crate) fn range(&self, offset: u64, length: u64) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: within the reservation.
        (end <= self.length()).then(|| unsafe { self.base().add(offset as usize) })
    }
}

impl Drop for LinearMemory {
    fn drop(&mut self) {
        let (start, length) = match self.extent {
            Extent::Reserved | Extent::Partial => (self.base(), self.reserved),
            // The system unmaps whole pages.
            Extent::Exact => (self.base().wrapping_sub(GUARD), GUARD + self.length() as usize),
        };
        // SAFETY: the mapping is this value's own, and nothing else has its address. Unmapping a
        // mapped range succeeds.
        let unmapped = unsafe { munmap(start.cast(), length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The size of the system pages that these bytes touch; `None` if it is larger than 2^64.
fn whole_pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(SYSTEM_PAGE)
}

/// Reserves addresses, inaccessible.
fn reserve(length: usize) -> rustix::io::Result<*mut c_void> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    unsafe { mmap_anonymous(null_mut(), length, ProtFlags::empty(), MAP_FLAGS) }
}

/// Reserves as many addresses as the system permits, from `minimum` to `maximum` bytes, but no more
/// than [`MAX_PARTIAL`] unless the minimum is larger. Returns how many.
fn reserve_partially(minimum: u64, maximum: u64) -> rustix::io::Result<(*mut c_void, usize)> {
    let least = whole_pages(minimum.max(1)).ok_or(rustix::io::Errno::NOMEM)?;
    let mut length = whole_pages(maximum.min(MAX_PARTIAL)).ok_or(rustix::io::Errno::NOMEM)?.max(least);
    loop {
        match reserve(length as usize) {
            Ok(base) => return Ok((base, length as usize)),
            Err(errno) if length == least => return Err(errno),
            Err(_) => length = whole_pages(length / 2).ok_or(rustix::io::Errno::NOMEM)?.max(least),
        }
    }
}

/// Maps new pages at this address, if nothing else is mapped there.
fn map_at(start: *mut c_void, length: usize, access: ProtFlags) -> rustix::io::Result<()> {
    // SAFETY: the new mapping replaces none.
    let mapped = unsafe { mmap_anonymous(start, length, access, MAP_FLAGS | MapFlags::FIXED_NOREPLACE) }?;
    if mapped != start {
        // Linux before 4.17 treats the address as a hint.
        // SAFETY: just mapped.
        unsafe { munmap(mapped, length) }?;
        return Err(rustix::io::Errno::EXIST);
    }
    Ok(())
}

/// Claims a slot by mapping the guard at its start. Returns the address after the guard.
fn map_slot() -> rustix::io::Result<*mut c_void> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // The first slot is chosen at random.
    static OFFSET: LazyLock<usize> = LazyLock::new(|| RandomState::new().hash_one(0) as usize % SLOTS);
    for _ in 0..MAX_TRIES {
        let slot = (NEXT.fetch_add(1, Ordering::Relaxed) + *OFFSET) % SLOTS;
        let guard: *mut c_void = std::ptr::without_provenance_mut(FIRST_SLOT + slot * SLOT);
        match map_at(guard, GUARD, ProtFlags::empty()) {
            Ok(()) => return Ok(std::ptr::with_exposed_provenance_mut(guard.addr() + GUARD)),
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(rustix::io::Errno::NOMEM)
}

fn no_memory(errno: rustix::io::Errno) -> Error {
    Error::memory("a linear memory", errno)
}

/// Copies bytes between ranges that other threads may be reading or writing.
///
/// The ranges may overlap. Each byte is copied atomically, eight at a time where both ends are
/// aligned alike.
///
/// # Safety
/// Both ranges are mapped and accessible, and are otherwise accessed only atomically or by compiled
/// code.
pub(crate) unsafe fn copy_atomically(from: *const u8, to: *mut u8, length: usize) {
    // Words can be copied from the first offset that is aligned at both ends.
    let alike = from.addr() % 8 == to.addr() % 8;
    let head = if alike { from.align_offset(8).min(length) } else { length };
    let words = (length - head) / 8;
    let tail = head + words * 8;
    let byte = |at: usize| {
        // SAFETY: `at` is within the ranges.
        unsafe {
            let value = AtomicU8::from_ptr(from.cast_mut().add(at)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(value, Ordering::Relaxed);
        }
    };
    let word = |index: usize| {
        let at = head + index * 8;
        // SAFETY: within the ranges, and aligned at both ends.
        unsafe {
            let value = AtomicU64::from_ptr(from.cast_mut().add(at).cast()).load(Ordering::Relaxed);
            AtomicU64::from_ptr(to.add(at).cast()).store(value, Ordering::Relaxed);
        }
    };
    if to.addr() <= from.addr() {
        (0..head).for_each(byte);
        (0..words).for_each(word);
        (tail..length).for_each(byte);
    } else {
        (tail..length).rev().for_each(byte);
        (0..words).rev().for_each(word);
        (0..head).rev().for_each(byte);
    }
}

/// Sets bytes that other threads may be accessing.
///
/// # Safety
/// As for [`copy_atomically`].
pub(crate) unsafe fn fill_atomically(to: *mut u8, byte: u8, length: usize) {
    let head = to.align_offset(8).min(length);
    let words = (length - head) / 8;
    let tail = head + words * 8;
    for at in (0..head).chain(tail..length) {
        // SAFETY: within the range.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(byte, Ordering::Relaxed);
    }
    for index in 0..words {
        // SAFETY: within the range, and aligned.
        let word = unsafe { AtomicU64::from_ptr(to.add(head + index * 8).cast()) };
        word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed);
    }
}

/// Converts the kernel's error into an error of this library.
pub(crate) fn system_refuses(purpose: &'static str) -> Error {
    Error::memory(purpose, io::ErrorKind::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 16;

    #[test]
    fn growing_keeps_base_and_contents_and_zeroes_new_pages() {
        for extent in [Extent::Reserved, Extent::Exact] {
            growing(LinearMemory::new(MemoryType::new(1, Some(3)), extent).unwrap());
        }
    }

    fn growing(memory: LinearMemory) {
        let base = memory.base();
        // SAFETY: the first page has access.
        unsafe { base.add(65_535).write(7) };
        assert_eq!(memory.grow(2, |bytes| bytes == 3 * PAGE), Some(1));
        assert_eq!((memory.base(), memory.pages()), (base, 3));
        // SAFETY: three pages have access.
        unsafe { assert_eq!((base.add(65_535).read(), base.add(3 * 65_536 - 1).read()), (7, 0)) };
        assert_eq!(memory.grow(1, |_| true), None, "beyond the maximum");
        assert_eq!(memory.grow(0, |_| false), Some(3), "growing by nothing returns the size");
    }

    #[test]
    fn ranges_end_at_the_length() {
        let memory = LinearMemory::new(MemoryType::new(1, None), Extent::Exact).unwrap();
        assert!(memory.range(PAGE, 0).is_some());
        assert!(memory.range(PAGE - 4, 4).is_some());
        assert!(memory.range(PAGE - 4, 5).is_none());
        assert!(memory.range(u64::MAX, 2).is_none());
    }

    #[test]
    fn a_minimum_beyond_the_maximum_is_refused() {
        assert!(matches!(
            LinearMemory::new(MemoryType::new(2, Some(1)), Extent::Reserved),
            Err(Error::InvalidType { .. })
        ));
        assert!(matches!(
            LinearMemory::new(MemoryType::new(0, Some(65_537)), Extent::Exact),
            Err(Error::InvalidType { .. })
        ));
    }

    #[test]
    fn a_memory_without_reservation_grows_until_something_else_is_behind_it() {
        let memory = LinearMemory::new(MemoryType::new(0, None), Extent::Exact).unwrap();
        let other = LinearMemory::new(MemoryType::new(1, None), Extent::Exact).unwrap();
        assert_ne!(memory.base(), other.base());
        assert_eq!(memory.grow(3, |_| true), Some(0));
        let after = memory.base().wrapping_add(5 * PAGE as usize);
        map_at(after.cast(), PAGE as usize, ProtFlags::empty()).unwrap();
        assert_eq!(memory.grow(3, |_| true), None);
        assert_eq!(memory.grow(2, |_| true), Some(3));
        // SAFETY: five pages have access.
        unsafe { assert_eq!(memory.base().add(5 * PAGE as usize - 1).read(), 0) };
        // SAFETY: mapped above.
        unsafe { munmap(after.cast(), PAGE as usize) }.unwrap();
        assert_eq!(memory.grow(1, |_| true), Some(5));
    }

    #[test]
    fn atomic_copies_and_fills_agree_with_plain_ones() {
        let original: Vec<u8> = (0..=255).collect();
        for (from, to, length) in
            [(0, 8, 100), (8, 0, 100), (3, 5, 61), (5, 3, 61), (3, 11, 64), (11, 3, 7), (9, 9, 30)]
        {
            let (mut expected, mut found) = (original.clone(), original.clone());
            expected.copy_within(from..from + length, to);
            let base = found.as_mut_ptr();
            // SAFETY: both ranges lie in the vector.
            unsafe { copy_atomically(base.add(from), base.add(to), length) };
            assert_eq!(found, expected, "copy {from} to {to}, {length} bytes");
            expected[to..to + length].fill(9);
            // SAFETY: the range is inside the vector.
            unsafe { fill_atomically(found.as_mut_ptr().add(to), 9, length) };
            assert_eq!(found, expected, "fill {to}, {length} bytes");
        }
    }
}
