//! [`Socket`]: a descriptor in a program that may close it.
//!
//! Programs close descriptors that they do not know: daemons all of them, at their start. Under the
//! number of one of ours, the next file of the program is opened. So a socket is identified before
//! it is used or closed, and it has a high number, since the system gives the lowest one that is
//! free to whoever asks for no other.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

/// The lowest descriptor for a socket, if the process's limit allows it. The system's table
/// has 64 places at first; in a process with threads, making it larger takes it 10 to 20 ms.
const HIGH: RawFd = 48;

/// A socket, which is closed when it is dropped.
pub(crate) struct Socket {
    descriptor: RawFd,
    /// Device and inode.
    file: (u64, u64),
}

impl Socket {
    /// Takes a socket over. `None` if the program has closed it meanwhile.
    pub(crate) fn new(socket: impl Into<OwnedFd>) -> Option<Self> {
        let socket = socket.into();
        let socket = match fcntl(&socket, FcntlArg::F_DUPFD_CLOEXEC(HIGH)) {
            // SAFETY: a new descriptor, which nobody else owns.
            Ok(high) => unsafe { OwnedFd::from_raw_fd(high) },
            Err(_) => socket,
        };
        let file = file_of(socket.as_raw_fd())?;
        Some(Self { descriptor: socket.into_raw_fd(), file })
    }

    /// Whether the program has left it alone.
    pub(crate) fn is_there(&self) -> bool {
        file_of(self.descriptor) == Some(self.file)
    }

    /// The stream, unless the program has closed it.
    pub(crate) fn stream(&self) -> Option<ManuallyDrop<UnixStream>> {
        // SAFETY: the descriptor is this socket's; it stays open, because only `drop` closes it.
        self.is_there().then(|| ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(self.descriptor) }))
    }

    /// The listener, unless the program has closed it.
    pub(crate) fn listener(&self) -> Option<ManuallyDrop<UnixListener>> {
        // SAFETY: as in `stream`.
        self.is_there().then(|| ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(self.descriptor) }))
    }

    /// In a forked child, which has no thread that uses its copy of the descriptor: closes that.
    pub(crate) fn close_copy(&self) {
        if self.is_there() {
            // SAFETY: the descriptor is this socket's copy; the owner does not exist in this
            // process.
            drop(unsafe { OwnedFd::from_raw_fd(self.descriptor) });
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: the descriptor is this socket's.
            drop(unsafe { OwnedFd::from_raw_fd(self.descriptor) });
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.descriptor).finish()
    }
}

fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    // SAFETY: only asks about the number; if nothing is open under it, that is the answer.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
