//! The standard error stream of a profiled process.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use fastinst::internal::with_descriptors_of_process;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The standard error stream as it was at the start. If a daemon closes it and opens a data file in
/// its place, the report must not be written to that file.
pub(crate) struct Stderr {
    /// Device and inode.
    file: Option<(u64, u64)>,
    is_writing: AtomicBool,
}

/// The stream as it was at the first call.
pub(crate) fn stderr() -> &'static Stderr {
    static STDERR: OnceLock<Stderr> = OnceLock::new();
    STDERR.get_or_init(|| Stderr { file: Stderr::file(), is_writing: AtomicBool::new(false) })
}

impl Stderr {
    fn file() -> Option<(u64, u64)> {
        let stat = nix::sys::stat::fstat(std::io::stderr()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    fn is_open(&self) -> bool {
        self.file.is_some() && Self::file() == self.file
    }

    /// Whether the program has neither closed nor replaced the stream.
    pub(crate) fn is_there(&'static self) -> bool {
        with_descriptors_of_process(|| self.is_open()).unwrap_or(false)
    }

    /// Whether the stream is a terminal.
    pub(crate) fn is_terminal(&'static self) -> bool {
        with_descriptors_of_process(|| std::io::stderr().is_terminal()).unwrap_or(false)
    }

    /// Writes the entire text; returns false if the stream was closed or replaced. Blocks while the
    /// reader of a full pipe does not read.
    pub(crate) fn write(&'static self, text: &str) -> bool {
        let text = text.to_owned();
        with_descriptors_of_process(move || self.write_all(text.as_bytes())).unwrap_or(false)
    }

    fn write_all(&self, mut rest: &[u8]) -> bool {
        if !self.is_open() {
            return false;
        }
        self.is_writing.store(true, Ordering::Release);
        while !rest.is_empty() {
            match nix::unistd::write(std::io::stderr(), rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::EINTR) => {}
                // The program has made it non-blocking.
                Err(Errno::EAGAIN) => _ = is_writable_within(PollTimeout::NONE),
                Err(_) => break,
            }
        }
        self.is_writing.store(false, Ordering::Release);
        rest.is_empty()
    }

    /// Whether a thread is in [`write`](Self::write), where it may be waiting for a reader.
    pub(crate) fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::Acquire)
    }

    /// To be called in a forked child, where no thread is writing.
    pub(crate) fn forget_writing(&self) {
        self.is_writing.store(false, Ordering::Relaxed);
    }

    /// Writes a short line if that does not block; otherwise discards it. May be called from a
    /// signal handler after the first call of [`stderr`], but not by the service thread.
    pub(crate) fn write_now(&self, line: &[u8]) {
        if self.is_open() && is_writable_within(PollTimeout::ZERO) {
            let _ = nix::unistd::write(std::io::stderr(), line);
        }
    }
}

fn is_writable_within(time: PollTimeout) -> bool {
    let stream = std::io::stderr();
    matches!(poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], time), Ok(1))
}
