//! Files that are complete when they appear.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// The name under which a file is written that is to replace another one.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    temporary.into()
}

/// Writes a temporary file in the same directory, and renames it.
pub(crate) fn replace(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let temporary = temporary(path);
    let written = File::create(&temporary).and_then(|file| {
        let mut file = BufWriter::new(file);
        let written = contents(&mut file).and_then(|()| file.flush());
        let replaced = written.and_then(|()| fs::rename(&temporary, path));
        // If it cannot be removed either, nothing more can be done.
        replaced.inspect_err(|_| _ = fs::remove_file(&temporary))
    });
    written.map_err(|source| Error::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.txt");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        assert!(matches!(replace(&path, |out| out.write_all(b"text")), Err(Error::Write { .. })));
        let names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["report.txt"]);
    }
}
