//! [`Socket`]: a socket in a program that may close its descriptor.
//!
//! Programs close descriptors that they do not know: daemons close all of them at their start. The
//! next file that the program opens may get the number of one of ours. A socket is therefore
//! identified before it is used or closed, and has a high number, since the system assigns the
//! lowest free number unless another one is requested.

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

/// The lowest descriptor for a socket, if the process's limit allows it. The system's table has
/// room for 64 descriptors at first; enlarging it takes 10 to 20 ms in a process with threads.
const HIGH: RawFd = 48;

/// A socket that is closed when it is dropped.
pub(crate) struct Socket {
    descriptor: RawFd,
    /// The device and inode of the socket.
    file: (u64, u64),
}

impl Socket {
    /// Takes over a socket. `None` if the program has already closed it.
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

    /// Whether the descriptor still refers to this socket.
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

    /// In a forked child, where no thread uses the copy of the descriptor: closes it.
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
    // SAFETY: only queries the number; an error means that nothing is open under it.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}
