//! The file: [`Writer`] and [`Reader`].
//!
//! It begins with [`MAGIC`] and the version (`u32`; all numbers are little-endian). Up to version
//! 4, a stream follows. Since version 5, the head goes on with the kind of the body (`u32`) and a
//! number (`u64`) that bodies of blocks use.
//!
//! * [A stream](stream) is written to anything: one DEFLATE stream of frames. A frame is the length
//!   of its payload (`u32`), the CRC-32 of the payload, and the payload, which is a sequence of
//!   events.
//! * [Blocks](blocks) are written to a file, in which the last events are in pages that are mapped
//!   into the memory of the writer: what was written there is in the file when the writer is
//!   killed, without a call of the system.

mod blocks;
mod reader;
mod slot;
mod stream;

use std::fs::File;
use std::io::{self, Write};

use blocks::FileWriter;
pub use reader::Reader;
use stream::StreamWriter;

use super::error::Error;
use super::event::{Event, MAX_WRITE};

/// The first bytes.
const MAGIC: [u8; 8] = *b"\0wjtrace";

/// Version of the format. Version 1 has no [`Event::Snapshot`], [`Event::DropData`] and
/// [`Event::DropElements`], version 2 no [`Event::Throw`], version 3 no [`Event::Function`],
/// version 4 no blocks and
/// no reasons in [`Event::Fail`].
const VERSION: u32 = 5;

/// Bytes of the head, since version 5.
const HEAD: u64 = 24;

/// A kind of body.
const STREAM: u32 = 0;
const BLOCKS: u32 = 1;

/// A frame that is larger is not extended.
const FRAME: usize = 64 << 10;

/// Maximum length of the encoding of an event.
const MAX_EVENT: usize = FRAME + MAX_WRITE;

/// The head of a file.
fn head(kind: u32, end: u64) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend(kind.to_le_bytes());
    head.extend(end.to_le_bytes());
    head
}

/// Writes a trace. When it is dropped, it is closed.
pub struct Writer(Form);

enum Form {
    Stream(StreamWriter),
    File(Box<FileWriter>),
    Closed,
}

impl Writer {
    /// A writer of a new trace. There is one write for each flush, and some for each 32 KiB:
    /// buffers are not needed. Keeps at most one frame. For files, [`Writer::to_file`] is faster.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: impl Write + Send + 'static) -> Result<Self, Error> {
        Ok(Self(Form::Stream(StreamWriter::new(Box::new(out))?)))
    }

    /// A writer of a new trace to a file, which is truncated. A flush is no call of the system:
    /// what was written before is in the file even if the process is killed. Keeps at most four
    /// parts of 256 KiB, which a thread compresses. If the file is not a regular one, or was not
    /// opened for reading and writing, this is [`Writer::new`].
    ///
    /// While there is a writer, nobody else may truncate the file: that ends the process by SIGBUS.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn to_file(file: File) -> Result<Self, Error> {
        if !file.metadata()?.is_file() {
            return Self::new(file);
        }
        file.set_len(0)?;
        match FileWriter::new(file.try_clone()?)? {
            Some(writer) => Ok(Self(Form::File(Box::new(writer)))),
            None => {
                file.set_len(0)?;
                Self::new(file)
            }
        }
    }

    /// Appends an event. Bytes of an [`Event::Write`] beyond 64 KiB are refused.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, event: &Event) -> Result<(), Error> {
        match &mut self.0 {
            Form::Stream(stream) => stream.write(event),
            Form::File(file) => file.write(event),
            Form::Closed => Err(closed()),
        }
    }

    /// Makes all events so far readable by others.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Form::Stream(stream) => stream.flush(),
            Form::File(file) => file.flush(),
            Form::Closed => Ok(()),
        }
    }

    /// Ends the trace: its file has its final size. Nothing more can be written.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn close(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.0, Form::Closed) {
            Form::Stream(mut stream) => stream.flush(),
            Form::File(mut file) => file.close(),
            Form::Closed => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Who wants to know calls it before.
        let _ = self.close();
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

fn closed() -> Error {
    io::Error::other("it is closed").into()
}

fn too_large() -> Error {
    io::Error::new(io::ErrorKind::InvalidData, "an event is too large").into()
}
