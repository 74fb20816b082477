//! Traces as a stream.
//!
//! The writer collects events in a frame until it is flushed or the frame is large. A flush ends
//! the frame and the current block of the stream (`Z_SYNC_FLUSH`): everything so far can be read,
//! even if the process ends at once.
//!
//! If a file cannot be written, it is cut to what it had after the last flush: a part of a frame
//! could not be read.

use std::fs::File;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::{FRAME, MAX_EVENT, STREAM, head, too_large};
use crate::error::Error;
use crate::event::Event;

pub(super) struct StreamWriter {
    out: DeflateEncoder<Box<dyn Write + Send>>,
    frame: Vec<u8>,
    /// The error, which each later call returns.
    failed: Option<(io::ErrorKind, String)>,
}

impl StreamWriter {
    pub(super) fn new(mut out: Box<dyn Write + Send>) -> Result<Self, Error> {
        out.write_all(&head(STREAM, 0))?;
        out.flush()?;
        let out = DeflateEncoder::new(out, Compression::fast());
        Ok(Self { out, frame: Vec::new(), failed: None })
    }

    /// A writer to an empty file.
    pub(super) fn to_file(file: File) -> Result<Self, Error> {
        Self::new(Box::new(WholeFile { file, written: 0, flushed: 0, is_cut: false }))
    }

    pub(super) fn write(&mut self, event: &Event) -> Result<(), Error> {
        if self.frame.len() >= FRAME {
            self.try_to(Self::end_frame)?;
        }
        let start = self.frame.len();
        event.encode(&mut self.frame);
        if self.frame.len() - start > MAX_EVENT {
            self.frame.truncate(start);
            return Err(too_large());
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.try_to(|this| {
            this.end_frame()?;
            this.out.flush()
        })
    }

    /// Ends the stream: a flush does not always write all of it. Does nothing if an error was
    /// returned before.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.failed.is_some() {
            return Ok(());
        }
        self.try_to(|this| {
            this.end_frame()?;
            this.out.try_finish()?;
            this.out.get_mut().flush()
        })
    }

    /// Writes, unless that has failed before.
    fn try_to(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<(), Error> {
        if let Some((kind, text)) = self.failed.clone() {
            return Err(io::Error::new(kind, text).into());
        }
        Ok(write(self).inspect_err(|error| self.failed = Some((error.kind(), error.to_string())))?)
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

/// A file that is cut to what was flushed, if it cannot be written.
struct WholeFile {
    file: File,
    written: u64,
    flushed: u64,
    is_cut: bool,
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_cut {
            // Also what the encoder still has when it is dropped.
            return Err(io::Error::other("it could not be written before"));
        }
        let written = self.file.write(bytes);
        match &written {
            Ok(written) => self.written += *written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                self.is_cut = true;
                // The first error is the cause of the second.
                let _ = self.file.set_len(self.flushed);
            }
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = self.written;
        self.file.flush()
    }
}
