//! [`Cache`]: precompiled modules in a folder that processes share.
//!
//! # The protocol
//! * Each module has its own file, whose name is a key that depends on everything that affects the
//!   code (`module/precompiled/cached.rs`). The contents are checked by the process that loads
//!   them.
//! * A file is written under another name, and renamed when it is complete. Files are never written
//!   in place, so a mapped file, in which code may be executing, does not change: replacing or
//!   removing it leaves the mapping intact. Processes need no lock; if two store the same module,
//!   the last one wins.
//! * Nobody else can have written the contents: the folder and the file belong to the user of the
//!   process, and others cannot write to them. Any other file is ignored, and replaced.
//! * A file's modification time is the time of its last use. When a file has been stored, the least
//!   recently used files are removed until the others are within the bound.
//!
//! If the cache fails, the module is compiled; errors are counted.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use memmap2::MmapOptions;

use crate::error::Error;

/// Extension of stored modules.
const EXTENSION: &str = "cwasm";

/// The length of a key: a hash in hexadecimal digits.
const KEY_LENGTH: usize = 2 * blake3::OUT_LEN;

/// Prefix of files that are being written.
const UNFINISHED: &str = ".unfinished-";

/// Files that have been unfinished for this long were left by processes that have ended.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Age of files that may not be locked yet by the process that writes them.
const JUST_CREATED: Duration = Duration::from_secs(60);

/// A folder of compiled modules, for [`Config::cache`](crate::Config::cache). A clone is the same
/// cache; engines may share it, and processes may share its folder.
///
/// Anyone who can write to the folder decides what code the process executes. Therefore the folder
/// must belong to the user of the process, and others must not have write access to it; the same
/// holds for each file, and a file that violates this is not used. Each file is verified when it is
/// loaded; the module is then executed in the mapped file, which nobody may write or truncate. The
/// cache replaces and removes files only, which does no harm.
#[derive(Clone, Debug)]
pub struct Cache(Arc<CacheInner>);

#[derive(Debug)]
struct CacheInner {
    folder: PathBuf,
    max_bytes: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    rejected: AtomicU64,
    failures: AtomicU64,
}

/// What a [`Cache`] has done in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Modules that were loaded.
    pub hits: u64,
    /// Modules that were compiled.
    pub misses: u64,
    /// Modules among `misses` for which there was a file that could not be used: it was damaged,
    /// belonged to another module, or could have been written by another user.
    pub rejected: u64,
    /// Modules that could not be stored.
    pub failures: u64,
}

impl Cache {
    /// The cache in this folder, which is created if it does not exist. The total size of its files
    /// is kept within `max_bytes`; a module that is larger by itself is not stored.
    ///
    /// # Errors
    /// [`Error::Cache`]: the folder cannot be created, belongs to another user, or others can write
    /// to it.
    pub fn new(folder: impl Into<PathBuf>, max_bytes: u64) -> Result<Self, Error> {
        let folder = folder.into();
        match prepare(&folder) {
            Ok(()) => Ok(Self(Arc::new(CacheInner {
                folder,
                max_bytes,
                hits: AtomicU64::new(0),
                misses: AtomicU64::new(0),
                rejected: AtomicU64::new(0),
                failures: AtomicU64::new(0),
            }))),
            Err(source) => Err(Error::Cache { folder, source }),
        }
    }

    /// The folder that contains the cache's files.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// What the cache has done in this process so far, for all engines.
    pub fn statistics(&self) -> CacheStatistics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let CacheInner { hits, misses, rejected, failures, .. } = &*self.0;
        CacheStatistics { hits: of(hits), misses: of(misses), rejected: of(rejected), failures: of(failures) }
    }

    /// Loads what is stored for a key: `load` gets the contents and the file, which do not change,
    /// and which nobody else can have written; it returns `None` if they are not as expected.
    pub(crate) fn load<T>(&self, key: &str, load: impl FnOnce(Bytes, &File) -> Option<T>) -> Option<T> {
        let found = self.map(key);
        let is_there = !matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
        let loaded = found.ok().and_then(|(contents, file)| load(contents, &file));
        let CacheInner { hits, misses, rejected, .. } = &*self.0;
        match &loaded {
            Some(_) => count(hits),
            None => {
                count(misses);
                if is_there {
                    count(rejected);
                }
            }
        }
        loaded
    }

    /// Stores what is to be loaded for a key.
    pub(crate) fn store(&self, key: &str, contents: &[u8]) {
        if contents.len() as u64 > self.0.max_bytes {
            return;
        }
        if self.write(key, contents).and_then(|()| self.remove_oldest()).is_err() {
            count(&self.0.failures);
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.folder.join(key).with_extension(EXTENSION)
    }

    fn map(&self, key: &str) -> io::Result<(Bytes, File)> {
        let file = open(&self.path(key))?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        check_writers(&metadata)?;
        // A cache that cannot be written has no order of removal.
        let _ = file.set_modified(SystemTime::now());
        // SAFETY: only this user can write to the file, and files of caches are not written in
        // place.
        let map = unsafe { MmapOptions::new().populate().map(&file)? };
        Ok((Bytes::from_owner(map), file))
    }

    fn write(&self, key: &str, contents: &[u8]) -> io::Result<()> {
        if exceeds_file_limit(contents.len()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(&self.0.folder)?;
        // While it is locked, it is not abandoned. A file system may have no locks.
        let _ = file.as_file().lock();
        file.write_all(contents)?;
        file.persist(self.path(key))?;
        Ok(())
    }

    /// Removes abandoned files, and the least recently used files until the others are within the
    /// bound. Other processes may do the same.
    fn remove_oldest(&self) -> io::Result<()> {
        let mut stored = Vec::new();
        for entry in fs::read_dir(&self.0.folder)? {
            let entry = entry?;
            // Another process may have removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            let (path, used) = (entry.path(), metadata.modified()?);
            if is_stored(&path) {
                stored.push((used, metadata.len(), path));
            } else if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
                && used.elapsed().is_ok_and(|age| age > ABANDONED || age > JUST_CREATED && is_unlocked(&path))
            {
                let _ = fs::remove_file(path);
            }
        }
        let mut total: u64 = stored.iter().map(|(_, length, _)| length).sum();
        stored.sort();
        for (_, length, path) in stored {
            if total <= self.0.max_bytes {
                break;
            }
            let _ = fs::remove_file(path);
            total -= length;
        }
        Ok(())
    }
}

/// Whether the file has a name that [`Cache`] gives: not one that the user has put there.
fn is_stored(path: &Path) -> bool {
    let is_key =
        |stem: &OsStr| stem.len() == KEY_LENGTH && stem.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
    path.extension() == Some(OsStr::new(EXTENSION)) && path.file_stem().is_some_and(is_key)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Creates the folder, or checks it.
fn prepare(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_writers(&File::open(folder)?.metadata()?)
}

/// Checks that only the user of the process can write to a file or folder.
fn check_writers(metadata: &Metadata) -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    if metadata.uid() != unsafe { libc::geteuid() } {
        return Err(io::Error::other("it belongs to another user: choose a folder of your own"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("others can write to it: take that away (chmod go-w)"));
    }
    Ok(())
}

/// Opens a file for reading. Does not follow a link, and does not wait if this is a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether no process has locked the file, as one does that is writing it.
fn is_unlocked(path: &Path) -> bool {
    open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// Whether the process may not make a file of this size: the kernel would send SIGXFSZ, which by
/// default ends the process.
fn exceeds_file_limit(length: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: writes the limit.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    length as u64 > limit.rlim_cur
}
