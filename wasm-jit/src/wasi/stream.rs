//! The standard streams: the host's own, or something in memory.

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags};

use super::memory::Iovecs;

/// Most bytes that are copied at once between a stream in memory and the program.
const COPY_AT_ONCE: usize = 64 << 10;

/// What the program reads from as descriptor 0.
pub(crate) enum Input {
    /// The host's standard input.
    Host,
    Reader(Mutex<Box<dyn Read + Send>>),
}

/// What the program writes to as descriptors 1 and 2.
pub(crate) enum Output {
    HostStdout,
    HostStderr,
    Writer(Mutex<Box<dyn Write + Send>>),
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A reader or writer that panicked once is its own affair.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Input {
    pub(crate) fn reader(reader: impl Read + Send + 'static) -> Self {
        Self::Reader(Mutex::new(Box::new(reader)))
    }

    /// The host's descriptor, if there is one.
    pub(crate) fn host(&self) -> Option<BorrowedFd<'static>> {
        match self {
            Self::Host => Some(rustix::stdio::stdin()),
            Self::Reader(_) => None,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.host().is_some_and(|fd| fd.is_terminal())
    }

    pub(crate) fn read(&self, to: &Iovecs<'_>) -> io::Result<usize> {
        match self {
            Self::Host => {
                // The wait is here, where a signal ends it, and not in reading, which the system goes on with.
                let stdin = rustix::stdio::stdin();
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(stdin, PollFlags::IN)], None)?;
                super::io::readv(stdin.as_raw_fd(), to)
            }
            Self::Reader(reader) => {
                let mut bytes = vec![0; to.total().min(COPY_AT_ONCE)];
                let count = lock(reader).read(&mut bytes)?;
                to.scatter(&bytes[..count]);
                Ok(count)
            }
        }
    }
}

impl Output {
    pub(crate) fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::Writer(Mutex::new(Box::new(writer)))
    }

    /// The host's descriptor, if there is one.
    pub(crate) fn host(&self) -> Option<BorrowedFd<'static>> {
        match self {
            Self::HostStdout => Some(rustix::stdio::stdout()),
            Self::HostStderr => Some(rustix::stdio::stderr()),
            Self::Writer(_) => None,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.host().is_some_and(|fd| fd.is_terminal())
    }

    pub(crate) fn write(&self, from: &Iovecs<'_>) -> io::Result<usize> {
        match self {
            Self::HostStdout => super::io::writev(rustix::stdio::stdout().as_raw_fd(), from),
            Self::HostStderr => super::io::writev(rustix::stdio::stderr().as_raw_fd(), from),
            Self::Writer(writer) => {
                let bytes = from.gather(COPY_AT_ONCE);
                let mut writer = lock(writer);
                writer.write_all(&bytes)?;
                writer.flush()?;
                Ok(bytes.len())
            }
        }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Host) { "Host" } else { "Reader" })
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostStdout => "HostStdout",
            Self::HostStderr => "HostStderr",
            Self::Writer(_) => "Writer",
        })
    }
}

/// Collects what a program writes. A clone is the same pipe: keep one to look at the contents.
#[derive(Clone, Debug, Default)]
pub struct OutputPipe {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl OutputPipe {
    /// An empty pipe.
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything that was written until now.
    pub fn contents(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }
}

impl Write for OutputPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.bytes).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
