//! The trace file: [`Writer`] and [`Reader`].
//!
//! It begins with [`MAGIC`] and the version (`u32`; all numbers are little-endian). Up to version
//! 4, a stream follows. Since version 5, the head continues with the kind of the body (`u32`) and a
//! number (`u64`) that bodies of blocks use.
//!
//! * [A stream](stream) is written to anything: one DEFLATE stream of frames. A frame is the length
//!   of its payload (`u32`), the CRC-32 of the payload, and the payload, which is a sequence of
//!   events.
//! * [Blocks](blocks) are written to a file. The last events are in pages that are mapped into the
//!   writer's memory: without a system call, the file has what was written there, even if the
//!   writer is killed.
//!
//! A [`Reader`] returns all events before the first part (frame, block or chunk of a slot) that is
//! damaged or missing, and then the error. What follows that part is not returned, even if it is
//! complete: its events belong to a state that the events before do not lead to.

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

/// The first bytes of a trace file.
const MAGIC: [u8; 8] = *b"\0wjtrace";

/// The version of the format. Version 1 lacks [`Event::Snapshot`], [`Event::DropData`] and
/// [`Event::DropElements`], version 2 lacks [`Event::Throw`], version 3 lacks [`Event::Function`],
/// version 4 lacks blocks and reasons in [`Event::Fail`], version 5 lacks host values and
/// [`Reason::Exit`](crate::Reason::Exit), version 6 lacks [`Value::Any`](crate::Value::Any) and
/// [`Value::Exn`](crate::Value::Exn).
const VERSION: u32 = 7;

/// The length of the head in bytes, since version 5.
const HEAD: u64 = 24;

/// The kinds of a body.
const STREAM: u32 = 0;
const BLOCKS: u32 = 1;

/// A frame larger than this is not extended.
const FRAME: usize = 64 << 10;

/// Maximum length of the encoding of an event.
const MAX_EVENT: usize = FRAME + MAX_WRITE;

/// Encodes the head of a file.
fn head(kind: u32, end: u64) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend(kind.to_le_bytes());
    head.extend(end.to_le_bytes());
    head
}

/// Writes a trace, and closes it when dropped.
pub struct Writer(Form);

enum Form {
    /// A file, before the first event.
    Waiting(File),
    Stream(Box<StreamWriter>),
    File(Box<FileWriter>),
    Closed,
}

impl Writer {
    /// A writer of a new trace. It makes one write for each flush, and a few for each 32 KiB, so
    /// `out` need not be buffered. Keeps at most one frame in memory. For files,
    /// [`Writer::to_file`] is faster.
    ///
    /// # Errors
    /// [`Error::Io`] with the errors of `out`.
    pub fn new(out: impl Write + Send + 'static) -> Result<Self, Error> {
        Ok(Self(Form::Stream(Box::new(StreamWriter::new(Box::new(out))?))))
    }

    /// A writer of a new trace to a file, which is truncated when the first event is written: if
    /// there is none, the file stays as it is. A flush makes no system call: what was written
    /// before is in the file even if the process is killed. Keeps at most four parts of 256 KiB in
    /// memory, which a thread compresses. If the file is not a regular one, or was not opened for
    /// reading and writing, or may not become larger than 4 MiB (`ulimit -f`), this is
    /// [`Writer::new`]; if a regular file cannot be written, it then ends with the last flush.
    ///
    /// While there is a writer, nothing else may truncate the file: the process would be killed by
    /// SIGBUS.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn to_file(file: File) -> Result<Self, Error> {
        if !file.metadata()?.is_file() {
            return Self::new(file);
        }
        Ok(Self(Form::Waiting(file)))
    }

    /// Truncates a file, and writes the head of a trace.
    fn begin(file: &File) -> Result<Form, Error> {
        file.set_len(0)?;
        if let Some(writer) = FileWriter::new(file.try_clone()?)? {
            return Ok(Form::File(Box::new(writer)));
        }
        file.set_len(0)?;
        Ok(Form::Stream(Box::new(StreamWriter::to_file(file.try_clone()?)?)))
    }

    /// Whether something was written, if only the head.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.0, Form::Waiting(_))
    }

    /// Appends an event. An [`Event::Write`] with more than 64 KiB is refused.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, event: &Event) -> Result<(), Error> {
        if let Form::Waiting(file) = &self.0 {
            self.0 = Self::begin(file)?;
        }
        match &mut self.0 {
            Form::Waiting(_) => unreachable!("it has begun"),
            Form::Stream(stream) => stream.write(event),
            Form::File(file) => file.write(event),
            Form::Closed => Err(closed()),
        }
    }

    /// Makes all events so far visible to readers of the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Form::Stream(stream) => stream.flush(),
            Form::File(file) => file.flush(),
            Form::Waiting(_) | Form::Closed => Ok(()),
        }
    }

    /// Ends the trace and gives its file the final size. Nothing more can be written.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn close(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.0, Form::Closed) {
            Form::Stream(mut stream) => stream.close(),
            Form::File(mut file) => file.close(),
            Form::Waiting(_) | Form::Closed => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A user who wants to see errors calls `close` before.
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
