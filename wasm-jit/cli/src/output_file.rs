//! [`OutputFile`]: a file that a command writes.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, PersistError};

use super::Failure;

/// A file that appears, or replaces another one, when it is complete, so that nobody sees a part of
/// it, and it may be an input. Symbolic links are followed. A device, a pipe and the file that is
/// standard output are written directly.
pub(super) struct OutputFile<'a> {
    /// The path as the user wrote it.
    path: &'a Path,
    destination: Destination,
}

enum Destination {
    Place { new: NamedTempFile, place: PathBuf },
    Special(File),
}

impl<'a> OutputFile<'a> {
    /// # Errors
    /// Nothing can be written there, or a recording writes to that file.
    pub(super) fn new(path: &'a Path) -> Result<Self, Failure> {
        let destination = Destination::new(path).map_err(|error| Failure::of_file(path, error))?;
        Ok(Self { path, destination })
    }

    /// A handle for writing.
    pub(super) fn file(&self) -> Result<File, Failure> {
        let file = match &self.destination {
            Destination::Place { new, .. } => new.as_file(),
            Destination::Special(file) => file,
        };
        file.try_clone().map_err(|error| Failure::of_file(self.path, error))
    }

    /// Completes the file: it takes its place.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Destination::Place { new, place } = self.destination else { return Ok(()) };
        let renamed = new.persist(place);
        renamed.map(drop).map_err(|PersistError { error, .. }| Failure::of_file(self.path, error))
    }

    /// Writes a complete file.
    pub(super) fn write(path: &'a Path, bytes: &[u8]) -> Result<(), Failure> {
        let this = Self::new(path)?;
        this.file()?.write_all(bytes).map_err(|error| Failure::of_file(path, error))?;
        this.finish()
    }
}

impl Destination {
    fn new(path: &Path) -> io::Result<Self> {
        // Before links are followed: a pipe that /dev/stdout leads to has no path.
        if is_special(path) {
            return File::create(path).map(Self::Special);
        }
        // A file to which standard output was redirected: others write to it as well.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        if path.metadata().and_then(|file| Ok(is_same(&file, &stdout.metadata()?))).unwrap_or(false) {
            return Ok(Self::Special(stdout));
        }
        let place = followed(path)?;
        if File::open(&place).is_ok_and(|file| is_locked(&file)) {
            return Err(io::Error::other("a recording writes to it"));
        }
        let folder = match place.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Errors of the next call name the temporary file.
        fs::metadata(folder)?;
        let mut options = tempfile::Builder::new();
        // As for any new file, minus the bits of the umask.
        options.prefix(".wasm-jit-").permissions(Permissions::from_mode(0o666));
        Ok(Self::Place { new: options.tempfile_in(folder)?, place })
    }
}

fn is_same(one: &Metadata, two: &Metadata) -> bool {
    (one.dev(), one.ino()) == (two.dev(), two.ino())
}

/// Whether there is something other than a file, such as a device or a pipe.
pub(super) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| !file.is_file())
}

/// Whether a recording holds the lock of this file. If not, this takes the lock, if the file system
/// supports locks.
pub(super) fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// The target of symbolic links, even if it does not exist.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    while let Ok(target) = path.read_link() {
        // Fails if links lead to each other.
        if let Err(error) = path.metadata()
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Ok(path)
}

/// Refuses an output that is one of these inputs, which it would overwrite.
pub(super) fn refuse_inputs<'a>(
    output: &Path,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    let file = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino(), file.is_file()));
    let Ok(written @ (_, _, true)) = file(output) else { return Ok(()) };
    match inputs.into_iter().find(|input| file(input).is_ok_and(|input| input == written)) {
        Some(input) => {
            let message = format!("{}: it would overwrite the input {}", output.display(), input.display());
            Err(Failure { code: 2, message })
        }
        None => Ok(()),
    }
}
