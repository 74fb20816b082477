//! The service thread's own table of file descriptors.
//!
//! A file that a thread of the library opens gets the lowest free number in the table of the
//! process. A daemon closes its descriptors and expects the numbers 0, 1 and 2 for what it opens
//! next; others close every number that they do not know, and a report would be written to
//! whatever gets the number after that. Closing a file also releases the process's record locks on
//! it (fcntl(2)). Thus the thread leaves the table (close_range(2), `CLOSE_RANGE_UNSHARE`; Linux
//! 5.9) and has one that contains only
//! * a copy of standard error, under its number 2, while the process has it: the program's reader
//!   would otherwise wait for the end of a pipe that a daemon has closed. This is checked from time
//!   to time ([`OwnTable::follow`]), so that the reader sees the end a little later;
//! * the directory of the process's descriptors and the state of its main thread, both opened at
//!   the start, because the program may change its root directory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstat, fstatat, stat};
use nix::unistd::{close, dup2_stderr};

const DESCRIPTORS: &str = "/proc/self/fd";
const MAIN_THREAD: &str = "/proc/self/stat";

/// A table that belongs to the calling thread alone.
pub(super) struct OwnTable {
    /// `/proc/self/fd`: the descriptors in the table of the main thread.
    process: File,
    /// `/proc/self/stat`.
    main_thread: File,
}

/// The file to which a descriptor refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    fn of(found: FileStat) -> Self {
        Self { device: found.st_dev, inode: found.st_ino }
    }

    /// The standard error of the calling thread.
    pub(super) fn of_stderr() -> Option<Self> {
        fstat(io::stderr()).ok().map(Self::of)
    }
}

impl OwnTable {
    /// Leaves the table that the calling thread shares with the rest of the process, of which it
    /// may have used standard error only.
    ///
    /// # Errors
    /// `/proc` cannot be read, or the kernel cannot do it: the thread shares the table as before.
    pub(super) fn new() -> Result<Self, Errno> {
        stat(DESCRIPTORS)?;
        stat(MAIN_THREAD)?;
        let after_stderr = libc::STDERR_FILENO + 1;
        // SAFETY: the thread gets a copy of the table without the descriptors that are closed, none
        // of which it uses.
        let left = unsafe {
            libc::syscall(libc::SYS_close_range, after_stderr, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
        };
        Errno::result(left)?;
        // They may have been closed before.
        let _ = (close(libc::STDIN_FILENO), close(libc::STDOUT_FILENO));
        let open =
            |path| File::open(path).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)));
        let table = Self { process: open(DESCRIPTORS)?, main_thread: open(MAIN_THREAD)? };
        if FileId::of_stderr().is_none() {
            table.occupy_stderr();
        }
        Ok(table)
    }

    /// The standard error of the process.
    pub(super) fn stderr_of_process(&self) -> Option<FileId> {
        match fstatat(&self.process, "2", AtFlags::empty()) {
            Ok(found) => Some(FileId::of(found)),
            // The table is that of the other threads, and is out of reach.
            Err(_) if self.main_thread_has_ended() => FileId::of_stderr(),
            Err(_) => None,
        }
    }

    /// Closes the copy of standard error if the process has closed or replaced it.
    pub(super) fn follow(&self) {
        let own = FileId::of_stderr();
        if own != self.unused() && own != self.stderr_of_process() {
            self.occupy_stderr();
        }
    }

    /// Lets standard error refer to a file that cannot be written, so that no other file gets its
    /// number.
    fn occupy_stderr(&self) {
        // Fails only if the number of files is limited to 2.
        let _ = dup2_stderr(&self.process);
    }

    /// What [`occupy_stderr`](Self::occupy_stderr) has put in the place of standard error.
    fn unused(&self) -> Option<FileId> {
        fstat(&self.process).ok().map(FileId::of)
    }

    fn main_thread_has_ended(&self) -> bool {
        let mut text = [0; 512];
        let length = self.main_thread.read_at(&mut text, 0).unwrap_or(0);
        is_zombie(&text[..length])
    }
}

/// Whether the text of `/proc/PID/stat` is that of a thread that has ended.
pub(super) fn is_zombie(stat: &[u8]) -> bool {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')');
    end_of_name.is_some_and(|end| stat[end + 1..].trim_ascii_start().starts_with(b"Z"))
}
