//! Files that get their final name when they are complete.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{NAMES, directory_of};

/// A file that this process has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFile {
    pub(super) path: PathBuf,
    /// When it was written, and its size.
    pub(super) version: (SystemTime, u64),
}

impl OwnFile {
    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no other process has written the file since.
    pub(super) fn is_unchanged(&self) -> bool {
        version(&self.path).is_ok_and(|version| version == self.version)
    }
}

/// Distinguishes the files that processes write with one name. Not the inode: the next file may get
/// that of the last one.
pub(super) fn version(path: &Path) -> io::Result<(SystemTime, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.modified()?, found.len()))
}

/// A file that is removed unless it gets its final name.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
    pub(super) version: (SystemTime, u64),
    renamed: bool,
}

impl Temporary {
    /// Creates a file with these contents in the directory of `wanted`.
    pub(super) fn write(wanted: &Path, pid: u32, contents: &[u8]) -> io::Result<Temporary> {
        let directory = directory_of(wanted);
        for number in 0..NAMES {
            let path = directory.join(format!(".fastinst-{pid}-{number}.tmp"));
            let mut file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let unwritten = (SystemTime::UNIX_EPOCH, 0);
            let mut temporary = Temporary { path, version: unwritten, renamed: false };
            file.write_all(contents)?;
            // By default the kernel would set the time of the last tick: too early for a run that
            // began since.
            let _ = file.set_modified(SystemTime::now());
            drop(file);
            temporary.version = version(&temporary.path)?;
            return Ok(temporary);
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Gives the file a free name.
    pub(super) fn link(&mut self, name: &Path) -> io::Result<()> {
        let refused = match fs::hard_link(&self.path, name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => error,
            done => return done,
        };
        // Some file systems have no hard links.
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => self.renamed = true,
            Err(Errno::EEXIST) => return Err(ErrorKind::AlreadyExists.into()),
            Err(_) => return Err(refused),
        }
        Ok(())
    }

    /// As [`Temporary::replace`], but does not wait for the disk: ext4 writes a file that replaces
    /// another one by renaming before the system call returns. Processes that do this one after the
    /// other under a lock would wait for each other's writes, seconds each if the disk is busy.
    pub(super) fn exchange(self, name: &Path) -> io::Result<OwnFile> {
        match renameat2(AT_FDCWD, &self.path, AT_FDCWD, name, RenameFlags::RENAME_EXCHANGE) {
            // The other file has the temporary name now, and is removed.
            Ok(()) => Ok(OwnFile { path: name.to_owned(), version: self.version }),
            // There is none, or the file system does not support it.
            Err(_) => self.replace(name),
        }
    }

    /// Gives the file a name, replacing any other file.
    pub(super) fn replace(mut self, name: &Path) -> io::Result<OwnFile> {
        fs::rename(&self.path, name)?;
        self.renamed = true;
        Ok(OwnFile { path: name.to_owned(), version: self.version })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}
