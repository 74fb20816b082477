//! Traces in blocks.
//!
//! The file is the head with the offset of the end of the blocks, the blocks, a gap, and slots
//! (`slot.rs`); after [`FileWriter::close`], it ends with the blocks.
//!
//! 1. Events are collected in a chunk of at most [`CAPACITY`] bytes. A flush copies the new part of
//!    it to a slot, by stores to mapped pages of the file.
//! 2. A full chunk is passed to a thread, and the next one gets another slot. The thread appends
//!    the chunk as a block, compressed if that makes it smaller: its length in the file, the length
//!    of the chunk, its CRC-32 (`u32` each), and the bytes.
//! 3. Then it writes the new end of the blocks into the head. From here on, the chunk's slot is
//!    ignored, since its number is less than the number of blocks; it is reused.
//!
//! If the process is killed at any time, the file has the blocks up to the end in the head, and
//! each later chunk in a slot. This holds because a slot that is taken into use is at least
//! [`RESERVE`] bytes beyond the end of the blocks: its chunk has become a block before that many
//! bytes are written. A slot that is nearer is abandoned for one further on.
//!
//! If chunks arrive faster than they can be compressed, some are stored uncompressed; if they
//! arrive faster than they can be written, the program waits.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use flate2::{Compress, Compression, FlushCompress, Status};
use nix::sys::resource::{Resource, getrlimit};

use super::slot::{CAPACITY, SLOT, Slot};
use super::{BLOCKS, HEAD, MAX_EVENT, closed, head, too_large};
use crate::error::Error;
use crate::event::Event;

/// Number of slots: limits the memory, and the number of chunks that wait to be written.
const SLOTS: usize = 4;

/// Minimum distance of a slot from the end of the blocks when it is taken into use.
const RESERVE: u64 = (SLOTS * SLOT) as u64;

/// Maximum number of bytes after the blocks: a slot is less than [`SLOTS`] places beyond
/// [`RESERVE`].
pub(super) const MAX_TAIL: u64 = RESERVE + ((SLOTS + 2) * SLOT) as u64;

/// If the limit for the size of files is smaller than this, a trace is a stream.
const MIN_FILE_SIZE: u64 = 4 << 20;

/// Number of bytes before the contents of a block.
pub(super) const BLOCK_HEAD: usize = 12;

/// The position in the head of the end of the blocks.
const END: u64 = HEAD - 8;

/// If this many chunks are waiting, the next one is not compressed.
const BEHIND: usize = 2;

/// Number of bytes of a chunk that are compressed to find out whether the chunk is compressible.
const SAMPLE: usize = 4096;

// A block is no longer than a slot, and an event fits into a chunk.
const _: () = assert!(CAPACITY + BLOCK_HEAD <= SLOT && MAX_EVENT <= CAPACITY);

/// A chunk and its slot.
struct Chunk {
    slot: Slot,
    bytes: Vec<u8>,
    checksum: u32,
}

pub(super) struct FileWriter {
    /// `None` after an error.
    slot: Option<Slot>,
    /// The error, which each later call returns.
    failed: Option<(io::ErrorKind, String)>,
    chunk: Vec<u8>,
    /// The number of bytes of the chunk that the slot has.
    flushed: usize,
    checksum: crc32fast::Hasher,
    /// The number of the chunk.
    number: u64,
    blocks: Writing,
}

/// Where blocks are appended.
enum Writing {
    /// By this writer: no chunk has been full.
    Here(Blocks),
    Thread {
        full: Sender<Chunk>,
        /// Slots, with buffers for their next chunks.
        free: Receiver<(Slot, Vec<u8>)>,
        thread: JoinHandle<io::Result<Blocks>>,
    },
    /// Nowhere: an error was reported, or the writer is closed.
    Ended,
}

impl FileWriter {
    /// A writer to an empty file; `None` if it cannot be mapped.
    pub(super) fn new(file: File) -> io::Result<Option<Self>> {
        file.write_all_at(&head(BLOCKS, HEAD), 0)?;
        let mut blocks = Blocks::new(file);
        // A process that writes beyond its file size limit would be killed.
        let has_room = getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(most, _)| most >= MIN_FILE_SIZE);
        let Some(mut slot) = has_room.then(|| blocks.new_slot().ok()).flatten() else { return Ok(None) };
        slot.begin(0);
        Ok(Some(Self {
            slot: Some(slot),
            failed: None,
            chunk: Vec::new(),
            flushed: 0,
            checksum: crc32fast::Hasher::new(),
            number: 0,
            blocks: Writing::Here(blocks),
        }))
    }

    pub(super) fn write(&mut self, event: &Event) -> Result<(), Error> {
        let start = self.chunk.len();
        event.encode(&mut self.chunk);
        if self.chunk.len() - start > MAX_EVENT {
            self.chunk.truncate(start);
            return Err(too_large());
        }
        if self.chunk.len() > CAPACITY {
            let event = self.chunk.split_off(start);
            self.next_chunk()?;
            self.chunk.extend(event);
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let Some(slot) = &mut self.slot else { return Err(self.failure()) };
        let new = &self.chunk[self.flushed..];
        if !new.is_empty() {
            slot.write(self.flushed, new);
            self.checksum.update(new);
            self.flushed = self.chunk.len();
            slot.commit(self.flushed, self.checksum.clone().finalize());
        }
        Ok(())
    }

    /// Passes the chunk to the thread, and begins the next one.
    fn next_chunk(&mut self) -> Result<(), Error> {
        let chunk = self.take_chunk()?;
        let (mut slot, bytes) = match self.blocks.exchange(chunk) {
            Ok(free) => free,
            Err(error) => {
                self.blocks = Writing::Ended;
                self.failed = Some((error.kind(), error.to_string()));
                return Err(error.into());
            }
        };
        self.number += 1;
        slot.begin(self.number);
        (self.slot, self.chunk) = (Some(slot), bytes);
        Ok(())
    }

    fn take_chunk(&mut self) -> Result<Chunk, Error> {
        // A later chunk would be useless without all of this one.
        self.flush()?;
        let Some(slot) = self.slot.take() else { return Err(self.failure()) };
        let checksum = std::mem::take(&mut self.checksum).finalize();
        self.flushed = 0;
        Ok(Chunk { slot, bytes: std::mem::take(&mut self.chunk), checksum })
    }

    fn failure(&self) -> Error {
        self.failed.clone().map_or_else(closed, |(kind, text)| io::Error::new(kind, text).into())
    }

    /// Does nothing if an error was returned before.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.slot.is_none() {
            return Ok(());
        }
        let last = self.take_chunk()?;
        let mut blocks = std::mem::replace(&mut self.blocks, Writing::Ended).end()?;
        if !last.bytes.is_empty() {
            blocks.append(&last.bytes, last.checksum, false)?;
        }
        Ok(blocks.file.set_len(blocks.end)?)
    }
}

impl Writing {
    /// Passes a chunk to the thread to be appended; returns a free slot.
    fn exchange(&mut self, chunk: Chunk) -> io::Result<(Slot, Vec<u8>)> {
        if let Self::Here(_) = self {
            let Self::Here(blocks) = std::mem::replace(self, Self::Ended) else { unreachable!() };
            *self = blocks.on_thread()?;
        }
        let Self::Thread { full, free, .. } = self else {
            return Err(io::Error::other("it could not be written before"));
        };
        if full.send(chunk).is_ok()
            && let Ok(free) = free.recv()
        {
            return Ok(free);
        }
        // The thread has ended with an error.
        let error = std::mem::replace(self, Self::Ended).end().err();
        Err(error.unwrap_or_else(|| io::Error::other("its thread has ended")))
    }

    /// Waits until all chunks are written.
    fn end(self) -> io::Result<Blocks> {
        match self {
            Self::Here(blocks) => Ok(blocks),
            Self::Thread { full, free, thread } => {
                drop((full, free));
                thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
            }
            Self::Ended => Err(io::Error::other("it could not be written before")),
        }
    }
}

/// The blocks of a file, and where its slots are.
struct Blocks {
    file: Arc<File>,
    /// The end of the blocks.
    end: u64,
    slots: Vec<u64>,
    deflate: Compress,
    /// Buffer for a block.
    block: Vec<u8>,
    out: Vec<u8>,
}

impl Blocks {
    fn new(file: File) -> Self {
        let deflate = Compress::new(Compression::fast(), false);
        Self {
            file: Arc::new(file),
            end: HEAD,
            slots: Vec::new(),
            deflate,
            block: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Makes a slot at the first place that is far enough from the end.
    fn new_slot(&mut self) -> io::Result<Slot> {
        let size = SLOT as u64;
        let mut offset = (self.end + RESERVE).next_multiple_of(size);
        while self.slots.contains(&offset) {
            offset += size;
        }
        let slot = Slot::new(&self.file, offset)?;
        self.slots.push(offset);
        Ok(slot)
    }

    /// A slot that can be taken into use, given one whose chunk was appended.
    fn reuse(&mut self, slot: Slot) -> io::Result<Slot> {
        if slot.offset >= self.end + RESERVE {
            return Ok(slot);
        }
        self.slots.retain(|offset| *offset != slot.offset);
        drop(slot);
        self.new_slot()
    }

    fn on_thread(mut self) -> io::Result<Writing> {
        let ((full, chunks), (freed, free)) = (channel::<Chunk>(), channel());
        let run = move || {
            while self.slots.len() < SLOTS {
                let _ = freed.send((self.new_slot()?, Vec::new()));
            }
            let mut waiting = VecDeque::new();
            while let Some(Chunk { slot, mut bytes, checksum }) =
                waiting.pop_front().or_else(|| chunks.recv().ok())
            {
                waiting.extend(chunks.try_iter());
                self.append(&bytes, checksum, waiting.len() >= BEHIND)?;
                bytes.clear();
                // If there is no receiver, this is the end of the recording.
                let _ = freed.send((self.reuse(slot)?, bytes));
            }
            Ok(self)
        };
        let thread = thread::Builder::new().name("trace".to_owned()).spawn(run)?;
        Ok(Writing::Thread { full, free, thread })
    }

    /// Appends a chunk, which is not compressed if it `is_stored`.
    fn append(&mut self, bytes: &[u8], checksum: u32, is_stored: bool) -> io::Result<()> {
        self.block.clear();
        self.block.resize(BLOCK_HEAD, 0);
        if is_stored || !self.is_compressible(bytes) || !self.compress(bytes) {
            self.block.truncate(BLOCK_HEAD);
            self.block.extend(bytes);
        }
        let length = (self.block.len() - BLOCK_HEAD) as u32;
        for (at, number) in [length, bytes.len() as u32, checksum].into_iter().enumerate() {
            self.block[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
        }
        self.file.write_all_at(&self.block, self.end)?;
        self.end += self.block.len() as u64;
        // The block counts from here on.
        self.file.write_all_at(&self.end.to_le_bytes(), END)
    }

    /// Whether compression makes a part in the middle of a chunk smaller.
    fn is_compressible(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() <= 4 * SAMPLE {
            return true;
        }
        let middle = bytes.len() / 2;
        let is_smaller = self.compress(&bytes[middle..middle + SAMPLE]);
        self.block.truncate(BLOCK_HEAD);
        is_smaller
    }

    /// Appends the compressed bytes to the block; returns whether they have become smaller.
    fn compress(&mut self, bytes: &[u8]) -> bool {
        self.deflate.reset();
        // Room for any contents: with less of it, zlib-rs 0.6 may panic.
        self.out.resize(bytes.len() + bytes.len() / 8 + 1024, 0);
        let ended = self.deflate.compress(bytes, &mut self.out, FlushCompress::Finish);
        let length = self.deflate.total_out() as usize;
        if !matches!(ended, Ok(Status::StreamEnd)) || length > bytes.len() - bytes.len() / 16 {
            return false;
        }
        self.block.extend(&self.out[..length]);
        length < bytes.len()
    }
}
