//! The standard streams: the host's own, or streams in memory.

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;

use super::memory::Iovecs;

/// Maximum number of bytes that are copied at once between a stream in memory and the program.
const COPY_AT_ONCE: usize = 64 << 10;

/// Number of bytes that a pipe accepts without blocking, if `poll` reports it as writable.
const PIPE_SPACE: usize = libc::PIPE_BUF;

/// The source of descriptor 0.
pub(crate) enum Input {
    /// The host's standard input.
    Host,
    Reader(Mutex<Box<dyn Read + Send>>),
}

/// The destination of descriptors 1 and 2.
pub(crate) enum Output {
    /// The host's standard output or error.
    Host {
        fd: BorrowedFd<'static>,
        /// Whether a write may block: the output is not a file.
        waits: bool,
    },
    Writer(Mutex<Box<dyn Write + Send>>),
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of the embedder's reader or writer does not make the stream unusable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the host's stream can be read or written. A signal ends the wait with `EINTR`, so a
/// waiting program can be interrupted.
fn wait(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<()> {
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, what)], None)?;
    Ok(())
}

/// Writes as much as is possible without blocking; if that is nothing, waits and writes some.
fn write_some(fd: BorrowedFd<'_>, from: &Iovecs<'_>, done: usize) -> io::Result<usize> {
    match super::io::writev_now(fd.as_raw_fd(), &from.part(done, usize::MAX)) {
        // The pipe is full, or this is a terminal, or the kernel is older.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EOPNOTSUPP)) => {
            wait(fd, PollFlags::OUT)?;
            super::io::writev(fd.as_raw_fd(), &from.part(done, PIPE_SPACE))
        }
        outcome => outcome,
    }
}

/// Writes everything; if an error or a signal intervenes, this is a partial write.
fn write_waiting(fd: BorrowedFd<'_>, from: &Iovecs<'_>) -> io::Result<usize> {
    let mut done = 0;
    while done < from.total() {
        match write_some(fd, from, done) {
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
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
            // There is nothing to wait for.
            Self::Host if to.total() == 0 => Ok(0),
            Self::Host => {
                let stdin = rustix::stdio::stdin();
                wait(stdin, PollFlags::IN)?;
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
    pub(crate) fn of_host(fd: BorrowedFd<'static>) -> Self {
        let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        Self::Host { fd, waits: kind != Ok(FileType::RegularFile) }
    }

    pub(crate) fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::Writer(Mutex::new(Box::new(writer)))
    }

    /// The host's descriptor, if there is one.
    pub(crate) fn host(&self) -> Option<BorrowedFd<'static>> {
        match self {
            Self::Host { fd, .. } => Some(*fd),
            Self::Writer(_) => None,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.host().is_some_and(|fd| fd.is_terminal())
    }

    pub(crate) fn write(&self, from: &Iovecs<'_>) -> io::Result<usize> {
        match self {
            Self::Host { fd, waits: true } => write_waiting(*fd, from),
            Self::Host { fd, waits: false } => super::io::writev(fd.as_raw_fd(), from),
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
        match self {
            Self::Host { fd, .. } => f.debug_tuple("Host").field(fd).finish(),
            Self::Writer(_) => f.write_str("Writer"),
        }
    }
}

/// Collects a program's output, up to a limit. A clone refers to the same pipe: keep one to read
/// the contents.
#[derive(Clone, Debug)]
pub struct OutputPipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    most: usize,
}

impl OutputPipe {
    /// An empty pipe for at most this number of bytes. A write of more fails, as on a full disk
    /// (`ENOSPC`), after what there is room for was written.
    pub fn new(most: usize) -> Self {
        Self { bytes: Arc::default(), most }
    }

    /// Everything that has been written so far.
    pub fn contents(&self) -> Vec<u8> {
        lock(&self.bytes).clone()
    }
}

impl Write for OutputPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = lock(&self.bytes);
        let room = self.most.saturating_sub(written.len()).min(bytes.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        written.extend_from_slice(&bytes[..room]);
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_full_at_its_limit() {
        let mut pipe = OutputPipe::new(10);
        let contents = pipe.clone();
        assert_eq!(pipe.write(b"abcdef").unwrap(), 6);
        assert_eq!(pipe.write(b"ghijkl").unwrap(), 4);
        assert_eq!(pipe.write(b"").unwrap(), 0);
        assert_eq!(pipe.write(b"m").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(contents.contents(), b"abcdefghij");
    }
}
