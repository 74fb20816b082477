//! The standard error stream of a profiled process.

use nix::errno::Errno;

/// The standard error stream as it was at the start. If a daemon closes it and opens a data file in
/// its place, the report must not be written to that file.
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

    /// Writes all of the text; returns false if the stream was closed or replaced.
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
