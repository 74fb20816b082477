//! Traces as a stream.
//!
//! The writer collects events in a frame until it is flushed or the frame is large. A flush ends
//! the frame and the current block of the stream (`Z_SYNC_FLUSH`): everything so far can be read,
//! even if the process ends at once.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::{FRAME, MAX_EVENT, STREAM, head, too_large};
use crate::error::Error;
use crate::event::Event;

pub(super) struct StreamWriter {
    out: DeflateEncoder<Box<dyn Write + Send>>,
    frame: Vec<u8>,
}

impl StreamWriter {
    pub(super) fn new(mut out: Box<dyn Write + Send>) -> Result<Self, Error> {
        out.write_all(&head(STREAM, 0))?;
        Ok(Self { out: DeflateEncoder::new(out, Compression::fast()), frame: Vec::new() })
    }

    pub(super) fn write(&mut self, event: &Event) -> Result<(), Error> {
        if self.frame.len() >= FRAME {
            self.end_frame()?;
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
