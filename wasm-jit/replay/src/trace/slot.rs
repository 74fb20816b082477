//! [`Slot`]: pages of a file that are mapped into memory, with the last events of a trace.
//!
//! A slot is [`SLOT`] bytes at a multiple of [`SLOT`]: [`MARK`], the number of its chunk (`u64`),
//! the length and the CRC-32 of the part of the chunk that it has (`u32` each), 8 zero bytes, and
//! the chunk. Length and checksum are stored together, after the bytes: whenever the process is
//! killed, they describe bytes that are present.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Size of a slot in bytes.
pub(super) const SLOT: usize = 256 << 10;

/// The first bytes of a slot.
pub(super) const MARK: [u8; 8] = *b"\0wjslot\0";

/// The offset of the chunk in its slot.
pub(super) const CHUNK: usize = 32;

/// Maximum length of a chunk.
pub(super) const CAPACITY: usize = SLOT - CHUNK;

/// The offsets in a slot of the chunk's number, and of its length and checksum.
pub(super) const NUMBER: usize = 8;
pub(super) const COMMITTED: usize = 16;

static ZEROS: [u8; SLOT] = [0; SLOT];

pub(super) struct Slot {
    map: MmapRaw,
    /// The offset of the slot in the file.
    pub(super) offset: u64,
}

impl Slot {
    /// Makes a slot at this offset. Space in the file is allocated for it, so that no store to it
    /// fails.
    pub(super) fn new(file: &File, offset: u64) -> io::Result<Self> {
        file.write_all_at(&ZEROS, offset)?;
        let map = MmapOptions::new().offset(offset).len(SLOT).map_raw(file)?;
        Ok(Self { map, offset })
    }

    /// Begins a chunk, of which the slot has nothing yet.
    pub(super) fn begin(&mut self, chunk: u64) {
        self.store(COMMITTED, 0);
        self.store(NUMBER, chunk);
        self.store(0, u64::from_le_bytes(MARK));
    }

    /// Writes bytes of the chunk at an offset.
    ///
    /// # Panics
    /// If they are not inside the chunk.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= CAPACITY && bytes.len() <= CAPACITY - at, "a chunk fits into its slot");
        // SAFETY: the mapping has SLOT bytes, these are inside of it, and it is not borrowed: this
        // is the only access to it in this process.
        unsafe {
            let to = self.map.as_mut_ptr().add(CHUNK + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Records that this many bytes of the chunk are valid, with this checksum.
    pub(super) fn commit(&mut self, length: usize, checksum: u32) {
        self.store(COMMITTED, length as u64 | u64::from(checksum) << 32);
    }

    fn store(&mut self, at: usize, value: u64) {
        // SAFETY: the mapping begins at a page and has SLOT bytes; `at` is one of three multiples
        // of 8 below CHUNK; the exclusive borrow excludes other accesses in this process.
        let word = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) };
        // After the stores before it: another process that reads the file sees them in this order.
        word.store(value.to_le(), Ordering::Release);
    }
}
