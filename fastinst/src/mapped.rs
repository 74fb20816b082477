//! The files that this process has mapped, by `/proc/thread-self/maps`: a file that has been
//! replaced since then is not mistaken for the one that is mapped.
//!
//! `/proc/self` is the main thread, whose table is empty once that thread has ended.

use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the kernel appends to the path of a file that was removed or replaced.
pub(crate) const DELETED: &[u8] = b" (deleted)";

/// The path of the first file that is mapped in this range of addresses, as the kernel knows it:
/// absolute, without symbolic links. That of a file that was removed or replaced ends with
/// ` (deleted)`, so it cannot be opened. `None` if no file is mapped there, or the table cannot be
/// read.
#[must_use]
pub fn file_in(range: &Range<usize>) -> Option<PathBuf> {
    let table = table()?;
    let overlaps = |mapped: &Range<usize>| mapped.start < range.end && range.start < mapped.end;
    let found = files(&table).find(|(mapped, path)| overlaps(mapped) && !path.starts_with(b"/memfd:"));
    found.map(|(_, path)| PathBuf::from(OsStr::from_bytes(path)))
}

/// Whether the file at this path is mapped: false if the file that is mapped was removed or
/// replaced. `None` if neither is the case, or the table cannot be read.
#[must_use]
pub fn is_mapped(path: &Path) -> Option<bool> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (table, path) = (table()?, path.as_os_str().as_bytes());
    let mut is_mapped = None;
    for (_, file) in files(&table) {
        if file.strip_suffix(DELETED) == Some(path) {
            return Some(false);
        }
        if file == path {
            is_mapped = Some(true);
        }
    }
    is_mapped
}

fn table() -> Option<Vec<u8>> {
    // Kernels before 3.17 have only `/proc/self`.
    fs::read("/proc/thread-self/maps").or_else(|_| fs::read("/proc/self/maps")).ok()
}

/// The addresses and paths of mapped files. A line is `START-END ACCESS OFFSET DEVICE INODE PATH`.
fn files(table: &[u8]) -> impl Iterator<Item = (Range<usize>, &[u8])> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let path = &line[line.iter().position(|byte| *byte == b'/')?..];
        let addresses = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
        let (start, end) = addresses.split_once('-')?;
        let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).ok());
        Some((start?..end?, path))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn replaced_files_are_not_those_that_are_mapped() {
        let folder = tempfile::tempdir().expect("a directory");
        let folder = folder.path().canonicalize().expect("it exists");
        let [path, link, next] = ["a file", "link", "next"].map(|name| folder.join(name));
        fs::write(&path, [1; 4096]).expect("it can be written");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!((is_mapped(&path), is_mapped(&folder.join("none"))), (None, None));
        let file = File::open(&path).expect("it was written");
        // SAFETY: a new mapping at an address that the kernel chooses, which nothing uses.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        }
        .addr();
        let range = start + 8..start + 16;
        assert_eq!((is_mapped(&path), is_mapped(&link)), (Some(true), Some(true)));
        assert_eq!(file_in(&range), Some(path.clone()));
        fs::write(&next, [2; 4096]).expect("it can be written");
        fs::rename(&next, &path).expect("it replaces the file");
        assert_eq!((is_mapped(&path), is_mapped(&link)), (Some(false), Some(false)));
        assert_eq!(file_in(&range).map(|path| path.exists()), Some(false));
        assert_eq!(file_in(&(0..1)), None);
    }
}
