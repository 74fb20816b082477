//! The standard error stream of somebody else's process.

use nix::errno::Errno;

/// The standard error stream as it was at the start. A daemon that closes it and opens a data file
/// in its place must not find a report in the file.
pub(crate) struct Stderr {
    file: Option<(u64, u64)>,
}

impl Stderr {
    fn file() -> Option<(u64, u64)> {
        let stat = nix::sys::stat::fstat(std::io::stderr()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    pub(crate) fn now() -> Self {
        Self { file: Self::file() }
    }

    /// Writes all of it, or says that the stream is not there any more.
    pub(crate) fn write(&self, text: &str) -> bool {
        if self.file.is_none() || Self::file() != self.file {
            return false;
        }
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match nix::unistd::write(std::io::stderr(), rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::EINTR | Errno::EAGAIN) => std::thread::yield_now(),
                Err(_) => return false,
            }
        }
        true
    }
}
