//! The file: [`Writer`] and [`Reader`].
//!
//! It begins with [`MAGIC`] and the version (`u32`, little-endian). What follows is one DEFLATE
//! stream of frames. A frame is the length of its payload (`u32`), the CRC-32 of the payload, and
//! the payload, which is a sequence of events.
//!
//! The writer collects events in a frame until it is flushed or the frame is large. A flush ends
//! the frame and the current block of the stream (`Z_SYNC_FLUSH`): everything so far can be read,
//! whether more is written or the process ends at once.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::error::Error;
use super::event::{Event, MAX_WRITE};

/// The first bytes.
const MAGIC: [u8; 8] = *b"\0wjtrace";

/// Version of the format. Version 1 has no [`Event::Snapshot`], [`Event::DropData`] and
/// [`Event::DropElements`], version 2 no [`Event::Throw`], version 3 no [`Event::Function`].
const VERSION: u32 = 4;

/// A frame that is larger is not extended.
const FRAME: usize = 64 << 10;

/// Maximum length of a payload, so that a damaged length allocates little memory.
const MAX_PAYLOAD: usize = FRAME + 2 * MAX_WRITE;

/// Writes a trace. Keeps at most one frame.
pub struct Writer {
    out: DeflateEncoder<Box<dyn Write + Send>>,
    frame: Vec<u8>,
}

impl Writer {
    /// A writer of a new trace. There is one write for each flush, and some for each 32 KiB:
    /// buffers are not needed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: impl Write + Send + 'static) -> Result<Self, Error> {
        let mut out: Box<dyn Write + Send> = Box::new(out);
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { out: DeflateEncoder::new(out, Compression::fast()), frame: Vec::new() })
    }

    /// Appends an event. Bytes of an [`Event::Write`] beyond 64 KiB are refused.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, event: &Event) -> Result<(), Error> {
        if self.frame.len() >= FRAME {
            self.end_frame()?;
        }
        let start = self.frame.len();
        event.encode(&mut self.frame);
        if self.frame.len() - start > FRAME + MAX_WRITE {
            self.frame.truncate(start);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an event is too large").into());
        }
        Ok(())
    }

    /// Makes all events so far readable by others.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.end_frame()?;
        Ok(self.out.flush()?)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        self.out.write_all(&(self.frame.len() as u32).to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(&self.frame).to_le_bytes())?;
        self.out.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Reads the events of a trace. Buffers one frame. After an error it ends.
#[derive(Debug)]
pub struct Reader<R> {
    from: DeflateDecoder<BufReader<R>>,
    /// Offset of the frame that is read next, in the decompressed stream.
    offset: u64,
    events: VecDeque<Event>,
    /// Whether the head of the file was read.
    begun: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// A reader from the beginning of a trace.
    pub fn new(from: R) -> Self {
        let from = DeflateDecoder::new(BufReader::new(from));
        Self { from, offset: 0, events: VecDeque::new(), begun: false, ended: false }
    }

    fn event(&mut self) -> Result<Option<Event>, Error> {
        if !self.begun {
            self.begun = true;
            self.head()?;
        }
        if self.events.is_empty() && !self.frame()? {
            return Ok(None);
        }
        Ok(self.events.pop_front())
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { offset: self.offset, what }
    }

    fn head(&mut self) -> Result<(), Error> {
        let mut head = Vec::new();
        self.from.get_mut().take(12).read_to_end(&mut head)?;
        match head.split_first_chunk::<8>() {
            Some((magic, version)) if *magic == MAGIC => match version.try_into().map(u32::from_le_bytes) {
                Ok(1..=VERSION) => Ok(()),
                Ok(0) => Err(self.damaged("there is no version 0 of the format")),
                Ok(version) => Err(Error::Version { version, known: VERSION }),
                Err(_) => Err(self.damaged("it ends before the version of its format")),
            },
            _ => Err(self.damaged("this is not a trace")),
        }
    }

    /// Reads the next frame; returns whether there is one.
    fn frame(&mut self) -> Result<bool, Error> {
        let head = self.bytes(8)?;
        if head.is_empty() {
            return if self.offset > 0 { Ok(false) } else { Err(self.damaged("it has no events")) };
        }
        let Ok(head) = <[u8; 8]>::try_from(head) else { return Err(self.damaged("it ends in a frame")) };
        let [length, checksum] =
            [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte])));
        let length = length as usize;
        if length == 0 || length > MAX_PAYLOAD {
            return Err(self.damaged("a frame of an impossible length"));
        }
        let payload = self.bytes(length)?;
        if payload.len() < length {
            return Err(self.damaged("it ends in a frame"));
        }
        if crc32fast::hash(&payload) != checksum {
            return Err(self.damaged("the checksum differs"));
        }
        let mut rest = payload.as_slice();
        while !rest.is_empty() {
            let event = Event::decode(&mut rest).map_err(|what| self.damaged(what))?;
            let is_first = self.offset == 0 && self.events.is_empty();
            if is_first != matches!(event, Event::Start { .. }) {
                return Err(self.damaged("not exactly one start, at the beginning"));
            }
            self.events.push_back(event);
        }
        self.offset += 8 + length as u64;
        Ok(true)
    }

    /// As many bytes of the stream, or fewer at its end.
    fn bytes(&mut self, number: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(number as u64).read_to_end(&mut bytes);
        match read {
            Ok(_) => Ok(bytes),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) =>
            {
                Err(self.damaged("it is not compressed as it must be"))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(bytes),
            Err(error) => Err(error.into()),
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.event();
        self.ended = !matches!(event, Ok(Some(_)));
        event.transpose()
    }
}
