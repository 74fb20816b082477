//! [`Reader`]: reads the events of a trace.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read};

use flate2::read::DeflateDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use super::blocks::{BLOCK_HEAD, MAX_TAIL};
use super::slot::{CAPACITY, CHUNK, COMMITTED, MARK, NUMBER, SLOT};
use super::{BLOCKS, FRAME, HEAD, MAGIC, STREAM, VERSION};
use crate::error::Error;
use crate::event::{Event, MAX_WRITE};

/// Maximum length of a payload, so that a damaged length does not allocate much memory.
const MAX_PAYLOAD: usize = FRAME + 2 * MAX_WRITE;

/// Reads the events of a trace. Buffers one frame, or the last blocks. It ends after an error.
#[derive(Debug)]
pub struct Reader<R> {
    from: DeflateDecoder<BufReader<R>>,
    body: Body,
    /// The offset in the decompressed stream of the next frame, or that of the next block.
    offset: u64,
    events: VecDeque<Event>,
    /// The error that follows the events of the last frame, block or slot, which is incomplete.
    cut: Option<Error>,
    /// Whether there was an event.
    begun: bool,
    ended: bool,
}

/// What is read next.
#[derive(Debug)]
enum Body {
    Head,
    Stream,
    /// The block with this number; the blocks end at `end`.
    Blocks {
        end: u64,
        number: u64,
    },
    /// The chunks of slots, up to the first one that is not complete.
    Slots(VecDeque<Chunk>),
}

/// What a slot has of its chunk.
#[derive(Debug)]
enum Chunk {
    /// Everything that was written to it.
    Complete(Vec<u8>),
    /// The file ends in it.
    Cut(Vec<u8>),
    /// Nothing that can be trusted, for this reason.
    Damaged(&'static str),
}

impl<R: Read> Reader<R> {
    /// A reader that starts at the beginning of a trace.
    pub fn new(from: R) -> Self {
        let from = DeflateDecoder::new(BufReader::new(from));
        let (events, body) = (VecDeque::new(), Body::Head);
        Self { from, body, offset: 0, events, cut: None, begun: false, ended: false }
    }

    fn event(&mut self) -> Result<Option<Event>, Error> {
        if matches!(self.body, Body::Head) {
            self.body = self.head()?;
        }
        while self.events.is_empty() {
            if let Some(error) = self.cut.take() {
                return Err(error);
            }
            let Some(payload) = self.payload()? else {
                return if self.begun { Ok(None) } else { Err(self.damaged("it has no events")) };
            };
            self.decode(&payload)?;
        }
        Ok(self.events.pop_front())
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { offset: self.offset, what }
    }

    fn head(&mut self) -> Result<Body, Error> {
        let head = self.raw(12)?;
        let version = match head.split_first_chunk::<8>() {
            Some((magic, version)) if *magic == MAGIC => match version.try_into().map(u32::from_le_bytes) {
                Ok(version) => version,
                Err(_) => return Err(self.damaged("it ends before the version of its format")),
            },
            _ => return Err(self.damaged("this is not a trace")),
        };
        match version {
            0 => Err(self.damaged("there is no version 0 of the format")),
            1..=4 => Ok(Body::Stream),
            5..=VERSION => {
                let Ok(rest) = <[u8; HEAD as usize - 12]>::try_from(self.raw(HEAD - 12)?) else {
                    return Err(self.damaged("it ends in its head"));
                };
                let kind = u32::from_le_bytes(std::array::from_fn(|byte| rest[byte]));
                let end = u64::from_le_bytes(std::array::from_fn(|byte| rest[4 + byte]));
                match kind {
                    STREAM => Ok(Body::Stream),
                    BLOCKS if end >= HEAD => {
                        self.offset = HEAD;
                        Ok(Body::Blocks { end, number: 0 })
                    }
                    BLOCKS => Err(self.damaged("blocks that end before they begin")),
                    _ => Err(self.damaged("an unknown kind of trace")),
                }
            }
            version => Err(Error::Version { version, known: VERSION }),
        }
    }

    /// The encoded events of the next frame, block or slot.
    fn payload(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match &mut self.body {
            Body::Head => Ok(None),
            Body::Stream => self.frame(),
            Body::Blocks { end, .. } if self.offset < *end => self.block().map(Some),
            Body::Blocks { end, number } => {
                let (end, number) = (*end, *number);
                self.body = Body::Slots(self.slots(end, number)?);
                self.payload()
            }
            Body::Slots(chunks) => match chunks.pop_front() {
                None => Ok(None),
                Some(Chunk::Complete(chunk)) => Ok(Some(chunk)),
                Some(Chunk::Cut(chunk)) => {
                    self.cut = Some(self.damaged("it ends in a slot"));
                    Ok(Some(chunk))
                }
                Some(Chunk::Damaged(what)) => Err(self.damaged(what)),
            },
        }
    }

    /// Decodes a payload; if the trace ends in it, only the complete events, which cannot be
    /// checked against the checksum at its end.
    fn decode(&mut self, payload: &[u8]) -> Result<(), Error> {
        let mut rest = payload;
        while !rest.is_empty() {
            let event = match Event::decode(&mut rest) {
                Ok(event) => event,
                Err(_) if self.cut.is_some() => break,
                Err(what) => return Err(self.damaged(what)),
            };
            if self.begun == matches!(event, Event::Start { .. }) {
                return Err(self.damaged("not exactly one start, at the beginning"));
            }
            self.begun = true;
            self.events.push_back(event);
        }
        Ok(())
    }

    /// The next frame of a stream, if there is one.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let head = self.bytes(8)?;
        if head.is_empty() {
            return Ok(None);
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
            self.cut = Some(self.damaged("it ends in a frame"));
            return Ok(Some(payload));
        }
        self.check(&payload, checksum)?;
        self.offset += 8 + length as u64;
        Ok(Some(payload))
    }

    fn check(&self, payload: &[u8], checksum: u32) -> Result<(), Error> {
        checked(payload, checksum).map_err(|what| self.damaged(what))
    }

    /// The next block.
    fn block(&mut self) -> Result<Vec<u8>, Error> {
        let head = self.raw(BLOCK_HEAD as u64)?;
        let Ok(head) = <[u8; BLOCK_HEAD]>::try_from(head) else {
            return Err(self.damaged("it ends in a block"));
        };
        let [stored, length, checksum] =
            [0, 4, 8].map(|at| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte])));
        if length == 0 || length as usize > CAPACITY || stored > length {
            return Err(self.damaged("a block of an impossible length"));
        }
        let bytes = self.raw(stored.into())?;
        let is_cut = bytes.len() < stored as usize;
        let payload = match stored < length {
            true => inflated(&bytes, length as usize, !is_cut)
                .ok_or_else(|| self.damaged("it is not compressed as it must be"))?,
            false => bytes,
        };
        if is_cut {
            self.cut = Some(self.damaged("it ends in a block"));
            return Ok(payload);
        }
        self.check(&payload, checksum)?;
        self.offset += BLOCK_HEAD as u64 + u64::from(stored);
        if let Body::Blocks { end, number } = &mut self.body {
            *number += 1;
            if self.offset > *end {
                return Err(self.damaged("a block beyond the end of the blocks"));
            }
        }
        Ok(payload)
    }

    /// The chunks that exist only in slots: those that follow the `blocks` blocks, which end at
    /// `end`. The events before a damaged chunk are read; those after it would follow on others
    /// than in the run.
    fn slots(&mut self, end: u64, blocks: u64) -> Result<VecDeque<Chunk>, Error> {
        let rest = self.raw(MAX_TAIL)?;
        let mut chunks = Vec::new();
        let first = (end.next_multiple_of(SLOT as u64) - end) as usize;
        for slot in (first..rest.len()).step_by(SLOT).map(|at| &rest[at..]) {
            let Some((head, chunk)) = slot.split_first_chunk::<CHUNK>() else { continue };
            let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
            let (number, committed) = (field(NUMBER), field(COMMITTED));
            if head[..8] != MARK || number < blocks {
                continue;
            }
            let (length, checksum) = (committed as u32 as usize, (committed >> 32) as u32);
            if length > 0 {
                chunks.push((number, Chunk::new(chunk, length, checksum)));
            }
        }
        chunks.sort_by_key(|(number, _)| *number);
        // While the trace is being written, a chunk may have become a block since the head was
        // read, and another chunk may be in its slot: the complete part ends there.
        let complete = (blocks..).zip(chunks).take_while(|(expected, (number, _))| number == expected);
        Ok(complete.map(|(_, (_, chunk))| chunk).collect())
    }

    /// This number of bytes of the stream, or fewer at its end.
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

    /// This number of bytes of the file, or fewer at its end; only before a stream has begun.
    fn raw(&mut self, number: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.from.get_mut().take(number).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Chunk {
    /// The chunk in these bytes of a slot, with this length and checksum.
    fn new(bytes: &[u8], length: usize, checksum: u32) -> Self {
        if length > CAPACITY {
            return Self::Damaged("a slot of an impossible length");
        }
        match bytes.get(..length) {
            None => Self::Cut(bytes.to_vec()),
            Some(chunk) => match checked(chunk, checksum) {
                Ok(()) => Self::Complete(chunk.to_vec()),
                Err(what) => Self::Damaged(what),
            },
        }
    }
}

fn checked(payload: &[u8], checksum: u32) -> Result<(), &'static str> {
    if crc32fast::hash(payload) != checksum {
        return Err("the checksum differs");
    }
    Ok(())
}

/// Decompresses bytes; `None` if the result does not have this length. If the bytes are not
/// complete, decompresses what there is.
fn inflated(bytes: &[u8], length: usize, is_complete: bool) -> Option<Vec<u8>> {
    let mut out = vec![0; length];
    let mut inflate = Decompress::new(false);
    let flush = if is_complete { FlushDecompress::Finish } else { FlushDecompress::Sync };
    let ended = inflate.decompress(bytes, &mut out, flush).ok()?;
    if !is_complete {
        out.truncate(inflate.total_out() as usize);
        return Some(out);
    }
    (ended == Status::StreamEnd && inflate.total_out() == length as u64).then_some(out)
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

#[cfg(test)]
mod tests {
    use super::super::head;
    use super::*;

    fn event(number: u64) -> Event {
        match number {
            0 => Event::Start { module: 1, length: 2 },
            memory => Event::Grow { memory: memory as u32, pages: 3 },
        }
    }

    /// A trace whose process was killed, with these chunks in slots; each has two events.
    fn killed(chunks: &[u64]) -> Vec<u8> {
        let mut file = head(BLOCKS, HEAD);
        for (number, place) in chunks.iter().zip(4..) {
            let mut chunk = Vec::new();
            [2 * number, 2 * number + 1].iter().for_each(|number| event(*number).encode(&mut chunk));
            file.resize(place * SLOT, 0);
            file.extend(MARK);
            file.extend(number.to_le_bytes());
            file.extend((chunk.len() as u32).to_le_bytes());
            file.extend(crc32fast::hash(&chunk).to_le_bytes());
            file.extend([0; 8]);
            file.extend(chunk);
        }
        file
    }

    /// The number of events before the end or an error, which is returned.
    fn read(file: &[u8]) -> (u64, Option<String>) {
        for (number, found) in (0..).zip(Reader::new(file)) {
            match found {
                Ok(found) => assert_eq!(found, event(number)),
                Err(error) => return (number, Some(error.to_string())),
            }
        }
        (Reader::new(file).count() as u64, None)
    }

    #[test]
    fn chunks_before_a_damaged_one_are_read() {
        let order = [1, 3, 0, 2];
        let file = killed(&order);
        assert_eq!(read(&file), (8, None));
        for (place, chunk) in (4..).zip(order) {
            let slot = place * SLOT;
            for (at, what) in [
                (CHUNK, "the checksum differs"),
                (COMMITTED + 4, "the checksum differs"),
                (COMMITTED + 3, "a slot of an impossible length"),
            ] {
                let mut damaged = file.clone();
                damaged[slot + at] ^= 0x40;
                let (found, error) = read(&damaged);
                assert_eq!(found, 2 * chunk, "chunk {chunk}");
                assert!(error.is_some_and(|error| error.ends_with(what)), "chunk {chunk}");
            }
            // Without a number, or with another one, a chunk is not known: as if it were not
            // written yet, which happens to those who read a trace during the recording.
            let mut damaged = file.clone();
            damaged[slot + NUMBER] ^= 0x40;
            let (found, error) = read(&damaged);
            assert_eq!((found, error.is_some()), (2 * chunk, chunk == 0), "chunk {chunk}");
        }
    }
}
