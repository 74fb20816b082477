//! Access to the program's memory.
//!
//! An address and a length from the program are checked once, here. Values are copied in and out
//! byte by byte with relaxed atomic accesses, because another thread of the program may write to a
//! shared memory at the same time: the bytes read are then an arbitrary mixture, which is harmless,
//! because every value is copied before it is interpreted. Bulk data is never accessed by Rust
//! code: the kernel gets the addresses of the buffers ([`Iovecs`]).
//!
//! All ranges that may be written to, including those that the kernel gets, are announced to a
//! recorder of the store ([`WriteAnnouncer`]).

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering};

use wasm_jit::WriteAnnouncer;

use super::errno::{Errno, Failure, Outcome};

/// Maximum number of buffers of one call (Linux has the same limit); a longer list is truncated,
/// which a program sees as a partial read or write.
const MAX_IOVECS: u32 = 1024;

/// Maximum number of bytes that one call transfers, which a program sees as a partial read or
/// write: a transfer between memory and a file cannot be interrupted.
const MAX_BYTES: usize = 64 << 20;

/// Maximum length of a path (as in Linux).
const MAX_PATH_LENGTH: u32 = 4096;

/// A program's memory, during one call.
#[derive(Clone, Debug)]
pub(crate) struct GuestMemory<'a> {
    base: *const AtomicU8,
    length: usize,
    announced: WriteAnnouncer,
    lifetime: PhantomData<&'a [AtomicU8]>,
}

impl<'a> GuestMemory<'a> {
    /// # Safety
    /// During the lifetime, the `length` bytes from `base` are mapped readable and writable, and no
    /// Rust reference to any of them is used.
    pub(crate) unsafe fn new(base: *mut u8, length: usize, announced: WriteAnnouncer) -> Self {
        Self { base: base.cast(), length, announced, lifetime: PhantomData }
    }

    /// The bytes of a range given by the program.
    fn range(&self, address: u32, length: u64) -> Outcome<&'a [AtomicU8]> {
        let inside = u64::from(address) + length <= self.length as u64;
        if !inside {
            return Err(Failure::OutOfBounds { address, length });
        }
        // SAFETY: the range is inside the memory, by the obligation of `new`; an `AtomicU8` has
        // alignment 1.
        Ok(unsafe { std::slice::from_raw_parts(self.base.add(address as usize), length as usize) })
    }

    /// A range that may be written to, which is announced.
    fn range_to_write(&self, address: u32, length: u64) -> Outcome<&'a [AtomicU8]> {
        let range = self.range(address, length)?;
        self.announced.write(address as usize, range.len());
        Ok(range)
    }

    /// Copies `bytes` to an address of the program.
    pub(crate) fn write_bytes(&self, address: u32, bytes: &[u8]) -> Outcome {
        let to = self.range_to_write(address, bytes.len() as u64)?;
        for (to, from) in to.iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies `N` bytes from an address of the program.
    pub(crate) fn read_array<const N: usize>(&self, address: u32) -> Outcome<[u8; N]> {
        let from = self.range(address, N as u64)?;
        let mut bytes = [0; N];
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = from.load(Ordering::Relaxed);
        }
        Ok(bytes)
    }

    /// Writes a little-endian number.
    pub(crate) fn write_u32(&self, address: u32, value: u32) -> Outcome {
        self.write_bytes(address, &value.to_le_bytes())
    }

    /// Writes a little-endian number.
    pub(crate) fn write_u64(&self, address: u32, value: u64) -> Outcome {
        self.write_bytes(address, &value.to_le_bytes())
    }

    /// Copies a path. It consists of bytes without a NUL: the interface requires UTF-8, but a
    /// program can open any name that it got from `fd_readdir`, whatever its encoding.
    pub(crate) fn read_path(&self, address: u32, length: u32) -> Outcome<Vec<u8>> {
        let from = self.range(address, length.into())?;
        if length > MAX_PATH_LENGTH {
            return Err(Errno::Nametoolong.into());
        }
        let path: Vec<u8> = from.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        if path.contains(&0) { Err(Errno::Inval.into()) } else { Ok(path) }
    }

    /// A buffer of the program, to be written by the kernel.
    pub(crate) fn buffer(&self, address: u32, length: u32) -> Outcome<(*mut u8, usize)> {
        let range = self.range_to_write(address, length.into())?;
        Ok((range.as_ptr().cast::<u8>().cast_mut(), range.len()))
    }

    /// The buffers in a list of pairs of address and length.
    pub(crate) fn iovecs(&self, list: u32, count: u32) -> Outcome<Iovecs<'a>> {
        let pairs = self.range(list, 8 * u64::from(count))?;
        let mut iovecs = Iovecs { list: Vec::new(), total: 0, memory: self.clone() };
        for pair in pairs.chunks_exact(8).take(MAX_IOVECS as usize) {
            let word = |at: usize| {
                u32::from_le_bytes(std::array::from_fn(|byte| pair[at + byte].load(Ordering::Relaxed)))
            };
            let (base, length) = self.buffer(word(0), word(4))?;
            let length = length.min(MAX_BYTES - iovecs.total);
            iovecs.total += length;
            iovecs.list.push(libc::iovec { iov_base: base.cast(), iov_len: length });
        }
        Ok(iovecs)
    }
}

/// Buffers inside a program's memory, in the form that the kernel takes.
#[derive(Debug)]
pub(crate) struct Iovecs<'a> {
    list: Vec<libc::iovec>,
    total: usize,
    memory: GuestMemory<'a>,
}

impl Iovecs<'_> {
    /// The total size of the buffers in bytes, which fits into an `i32`.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The list of buffers and their number, for system calls.
    pub(crate) fn as_raw(&self) -> (*const libc::iovec, libc::c_int) {
        (self.list.as_ptr(), self.list.len() as libc::c_int)
    }

    /// The same buffers without the first `skipped` bytes, and with at most `limit` bytes.
    pub(crate) fn part(&self, mut skipped: usize, limit: usize) -> Self {
        let mut part = Self { list: Vec::new(), total: 0, memory: self.memory.clone() };
        for iovec in &self.list {
            let skip = skipped.min(iovec.iov_len);
            skipped -= skip;
            let length = (iovec.iov_len - skip).min(limit - part.total);
            if length > 0 {
                let base = iovec.iov_base.cast::<u8>().wrapping_add(skip);
                part.list.push(libc::iovec { iov_base: base.cast(), iov_len: length });
                part.total += length;
            }
        }
        part
    }

    fn parts(&self) -> impl Iterator<Item = &[AtomicU8]> {
        self.list.iter().map(|iovec| {
            let offset = iovec.iov_base as usize - self.memory.base as usize;
            // SAFETY: `iovecs` checked that the buffer is inside the memory, and `part` returns a
            // part of it.
            unsafe { std::slice::from_raw_parts(self.memory.base.add(offset), iovec.iov_len) }
        })
    }

    /// Copies at most `limit` bytes from the buffers.
    pub(crate) fn gather(&self, limit: usize) -> Vec<u8> {
        let bytes = self.parts().flatten().take(limit);
        bytes.map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// Copies `bytes`, which must not be longer, into the buffers.
    pub(crate) fn scatter(&self, bytes: &[u8]) {
        for (to, from) in self.parts().flatten().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_out_of_bounds<T: std::fmt::Debug>(outcome: Outcome<T>) {
        assert!(matches!(outcome, Err(Failure::OutOfBounds { .. })), "{outcome:?}");
    }

    #[test]
    fn addresses_are_checked_up_to_the_last_byte() {
        let mut bytes = [0; 16];
        // SAFETY: the array outlives the memory, and is not accessed otherwise.
        let memory = unsafe { GuestMemory::new(bytes.as_mut_ptr(), bytes.len(), WriteAnnouncer::ignored()) };
        memory.write_u32(12, 0x0403_0201).unwrap();
        assert_eq!(memory.read_array::<4>(12).unwrap(), [1, 2, 3, 4]);
        memory.write_bytes(16, &[]).unwrap();
        check_out_of_bounds(memory.write_u32(13, 1));
        check_out_of_bounds(memory.read_array::<4>(u32::MAX));
        check_out_of_bounds(memory.write_u64(9, 1));
        check_out_of_bounds(memory.read_path(8, u32::MAX));
        check_out_of_bounds(memory.buffer(u32::MAX, u32::MAX));
        check_out_of_bounds(memory.iovecs(8, 2));
        check_out_of_bounds(memory.iovecs(0, u32::MAX));
    }

    #[test]
    fn buffers_are_filled_and_read_in_order() {
        let mut bytes = [0; 64];
        // SAFETY: as above.
        let memory = unsafe { GuestMemory::new(bytes.as_mut_ptr(), bytes.len(), WriteAnnouncer::ignored()) };
        for (at, value) in [(0, 40), (4, 2), (8, 50), (12, 0), (16, 32), (20, 3)] {
            memory.write_u32(at, value).unwrap();
        }
        let iovecs = memory.iovecs(0, 3).unwrap();
        assert_eq!(iovecs.total(), 5);
        iovecs.scatter(b"abcde");
        assert_eq!(iovecs.gather(100), b"abcde");
        assert_eq!(iovecs.gather(4), b"abcd");
        let part = |skipped, limit| {
            let part = iovecs.part(skipped, limit);
            assert_eq!(part.total(), part.gather(100).len());
            part.gather(100)
        };
        assert_eq!((part(0, 100), part(1, 3), part(3, 1)), (b"abcde".into(), b"bcd".into(), b"d".into()));
        assert_eq!((part(2, 0), part(5, 1), part(100, 1)), (vec![], vec![], vec![]));
        assert_eq!(&memory.read_array::<10>(32).unwrap(), b"cde\0\0\0\0\0ab");
    }

    #[test]
    fn a_list_of_buffers_is_truncated_at_the_limit_of_linux() {
        let mut bytes = vec![0; 8 * 2000];
        // SAFETY: as above.
        let memory = unsafe { GuestMemory::new(bytes.as_mut_ptr(), bytes.len(), WriteAnnouncer::ignored()) };
        for n in 0..2000 {
            memory.write_u32(8 * n + 4, 1).unwrap();
        }
        let iovecs = memory.iovecs(0, 2000).unwrap();
        assert_eq!((iovecs.as_raw().1, iovecs.total()), (1024, 1024));
    }
}
