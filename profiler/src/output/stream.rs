//! Devices, FIFOs and sockets: a report is written to them as it is, and their readers may block
//! the write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

use fastinst::internal::has_own_descriptors;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::Error;
use crate::stderr::stderr;

/// Whether a name belongs to something other than a file or a directory: a device, a FIFO, a
/// socket. A report is written to it.
pub(super) fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A device, a FIFO or a socket that was opened for a report, and the report.
#[derive(Debug)]
pub struct Stream {
    pub(super) path: PathBuf,
    file: File,
    text: String,
}

/// The descriptor of the stream that is being written, for [`forget_in_child`].
static OPEN: AtomicI32 = AtomicI32::new(NONE);

/// The value of [`OPEN`] if there is no such stream.
const NONE: i32 = -1;

/// The value of [`OPEN`] if a forked child has no copy of the descriptor.
const NOT_INHERITED: i32 = i32::MAX;

impl Stream {
    /// Fails if a FIFO has no reader.
    pub(super) fn open(path: &Path, text: String) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path)?;
        let inherited = if has_own_descriptors() { NOT_INHERITED } else { file.as_raw_fd() };
        OPEN.store(inherited, Ordering::Relaxed);
        Ok(Self { path: path.to_owned(), file, text })
    }

    fn write_all(mut self) -> io::Result<()> {
        // Waits until the reader has taken everything.
        let fd = self.file.as_fd();
        let flags = fcntl(fd, FcntlArg::F_GETFL)?;
        let flags = OFlag::from_bits_retain(flags) & !OFlag::O_NONBLOCK;
        fcntl(fd, FcntlArg::F_SETFL(flags))?;
        self.file.write_all(self.text.as_bytes())
    }

    /// Writes the report. Blocks while the reader does not read.
    ///
    /// # Errors
    /// [`Error::WriteReport`] if the reader is gone, or the device refuses.
    pub fn write(self) -> Result<(), Error> {
        let path = self.path.clone();
        self.write_all().map_err(|source| Error::WriteReport { path, source })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Before it is closed: then the number belongs to the next file.
        OPEN.store(NONE, Ordering::Relaxed);
    }
}

/// Whether a report is being written to a stream, whose reader may block it.
pub(crate) fn is_writing() -> bool {
    OPEN.load(Ordering::Relaxed) != NONE
}

/// Forgets what the parent is writing, and closes the copy of its stream, if there is one. To be
/// called in a forked child.
pub fn forget_in_child() {
    stderr().forget_writing();
    let open = OPEN.swap(NONE, Ordering::Relaxed);
    if open != NONE && open != NOT_INHERITED {
        // SAFETY: the descriptor belongs to a `Stream` of a thread that does not exist in this
        // process.
        unsafe { libc::close(open) };
    }
}
