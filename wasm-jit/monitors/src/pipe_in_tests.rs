//! A destination of tests that shows how it is written to.

use std::io::{self, Write};

/// Accepts this many bytes, in parts of a line at most, then fails.
pub(crate) struct Pipe(pub(crate) usize);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(bytes.len() < 100, "{}", String::from_utf8_lossy(bytes));
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
