//! `path_*`: operations on names, below an open directory.
//!
//! cap-std resolves every path; one that leads out of the directory fails with `EPERM`, as in
//! wasmtime.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, SystemTimeSpec};
use cap_std::fs::{Dir, File, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use rustix::fs::{AtFlags, FileType, OFlags, Timestamps};

use super::context::{Descriptor, Directory, WasiCtx};
use super::errno::{Errno, Outcome};
use super::fd::host_flags;
use super::memory::GuestMemory;
use super::stat::NewTime;
use super::types::{Abi, Filestat, fdflags, lookupflags, oflags, rights, timestamp};

fn follows(lookup: u32) -> Result<bool, Errno> {
    if lookup & !lookupflags::ALL != 0 {
        return Err(Errno::Inval);
    }
    Ok(lookup & lookupflags::SYMLINK_FOLLOW != 0)
}

fn read_path(memory: &GuestMemory<'_>, (address, length): (u32, u32)) -> Outcome<PathBuf> {
    let bytes = memory.read_path(address, length)?;
    Ok(PathBuf::from(OsStr::from_bytes(&bytes)))
}

fn filestat(metadata: &Metadata) -> Filestat {
    Filestat {
        dev: metadata.dev(),
        ino: metadata.ino(),
        filetype: FileType::from_raw_mode(metadata.mode()).into(),
        nlink: metadata.nlink(),
        size: metadata.size(),
        atim: timestamp(metadata.atime(), metadata.atime_nsec()),
        mtim: timestamp(metadata.mtime(), metadata.mtime_nsec()),
        ctim: timestamp(metadata.ctime(), metadata.ctime_nsec()),
    }
}

impl NewTime {
    fn spec(self) -> Result<Option<SystemTimeSpec>, Errno> {
        match self {
            Self::Unchanged => Ok(None),
            Self::Now => Ok(Some(SystemTimeSpec::SymbolicNow)),
            Self::At(time) => {
                let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(time));
                let time = cap_std::time::SystemTime::from_std(time.ok_or(Errno::Overflow)?);
                Ok(Some(SystemTimeSpec::Absolute(time)))
            }
        }
    }
}

/// `None` if there is no such file.
fn found(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a file or directory. The arguments are those of `path_open`.
fn open(dir: &Dir, path: &Path, follow: bool, oflags: u32, rights: u64, fdflags: u32) -> Outcome<Descriptor> {
    let has = |bit| oflags & bit != 0;
    let creates = has(oflags::CREAT);
    let is_directory = has(oflags::DIRECTORY);
    if is_directory && (creates || has(oflags::EXCL) || has(oflags::TRUNC)) {
        return Err(Errno::Inval.into());
    }
    let mut options = OpenOptions::new();
    let writes = rights & rights::FD_WRITE != 0;
    // The host requires an access mode, and a file cannot be created or truncated without the right
    // to write.
    options.read(rights & rights::FD_READ != 0 || !writes);
    options.write(writes || has(oflags::TRUNC));
    options.truncate(has(oflags::TRUNC));
    options.follow(if follow { FollowSymlinks::Yes } else { FollowSymlinks::No });
    let mut flags = host_flags(fdflags);
    flags.set(OFlags::DIRECTORY, is_directory);
    options.custom_flags(flags.bits().cast_signed());
    let mut creating = options.clone();
    creating.write(true).create(true).create_new(has(oflags::EXCL));
    let file = match creates {
        false => dir.open_with(path, &options)?,
        true if writes || has(oflags::TRUNC) => dir.open_with(path, &creating)?,
        // A descriptor for reading only. The file may exist, and may not be writable.
        true => {
            let existing = if has(oflags::EXCL) { None } else { found(dir.open_with(path, &options))? };
            match existing {
                Some(file) => file,
                None => {
                    drop(dir.open_with(path, &creating)?);
                    dir.open_with(path, &options)?
                }
            }
        }
    };
    Ok(if file.metadata()?.is_dir() {
        Descriptor::Dir(Arc::new(Directory::new(Dir::from_std_file(file.into_std()), None)))
    } else {
        Descriptor::File(file.into_std())
    })
}

/// Sets the times of a file, which is not opened for reading or writing: a pipe would wait for its
/// other end, and a program that runs could not be opened.
fn set_times(dir: &Dir, path: &Path, times: &Timestamps) -> Outcome {
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::Yes).custom_flags(OFlags::PATH.bits().cast_signed());
    let file = dir.open_with(path, &options)?;
    match rustix::fs::utimensat(&file, c"", times, AtFlags::EMPTY_PATH) {
        // Before Linux 5.8.
        Err(rustix::io::Errno::INVAL) => {
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok(rustix::fs::utimensat(rustix::fs::CWD, link, times, AtFlags::empty())?)
        }
        done => Ok(done?),
    }
}

impl WasiCtx {
    fn directory(&self, fd: u32) -> Result<Arc<Directory>, Errno> {
        match &*self.descriptor(fd)? {
            Descriptor::Dir(directory) => Ok(Arc::clone(directory)),
            Descriptor::File(_) => Err(Errno::Notdir),
            Descriptor::Input(_) | Descriptor::Output(_) => Err(Errno::Badf),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the interface's")]
    pub(crate) fn path_open(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        lookup: u32,
        path: u32,
        path_length: u32,
        oflags: u32,
        rights: u64,
        _inheriting: u64,
        fdflags: u32,
        result: u32,
    ) -> Outcome {
        if oflags & !oflags::ALL != 0 || fdflags & !fdflags::ALL != 0 {
            return Err(Errno::Inval.into());
        }
        let dir = &self.directory(fd)?.dir;
        let path = read_path(memory, (path, path_length))?;
        // Checked before anything is created.
        memory.buffer(result, 4)?;
        self.check_room()?;
        let opened = open(dir, &path, follows(lookup)?, oflags, rights, fdflags)?;
        memory.write_u32(result, self.insert(opened)?)
    }

    pub(crate) fn path_create_directory(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_length: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        Ok(self.directory(fd)?.dir.create_dir(path)?)
    }

    pub(crate) fn path_remove_directory(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_length: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        Ok(self.directory(fd)?.dir.remove_dir(path)?)
    }

    pub(crate) fn path_unlink_file(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_length: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        Ok(self.directory(fd)?.dir.remove_file(path)?)
    }

    #[expect(clippy::too_many_arguments, reason = "the interface's")]
    pub(crate) fn path_filestat_get(
        &self,
        memory: &GuestMemory<'_>,
        abi: Abi,
        fd: u32,
        lookup: u32,
        path: u32,
        path_length: u32,
        result: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        let dir = &self.directory(fd)?.dir;
        let metadata = if follows(lookup)? { dir.metadata(path)? } else { dir.symlink_metadata(path)? };
        memory.write_bytes(result, &filestat(&metadata).encode(abi))
    }

    #[expect(clippy::too_many_arguments, reason = "the interface's")]
    pub(crate) fn path_filestat_set_times(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        lookup: u32,
        path: u32,
        path_length: u32,
        atim: u64,
        mtim: u64,
        flags: u32,
    ) -> Outcome {
        let (accessed, changed) = NewTime::pair(atim, mtim, flags)?;
        let path = read_path(memory, (path, path_length))?;
        let dir = &self.directory(fd)?.dir;
        if follows(lookup)? {
            let times = Timestamps { last_access: accessed.host(), last_modification: changed.host() };
            set_times(dir, &path, &times)
        } else {
            Ok(dir.set_symlink_times(path, accessed.spec()?, changed.spec()?)?)
        }
    }

    /// Creates a hard link. For a symbolic link, the link itself is linked, never its target.
    #[expect(clippy::too_many_arguments, reason = "required by the interface")]
    pub(crate) fn path_link(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        lookup: u32,
        path: u32,
        path_length: u32,
        new_fd: u32,
        new_path: u32,
        new_path_length: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        let new_path = read_path(memory, (new_path, new_path_length))?;
        if follows(lookup)? {
            return Err(Errno::Inval.into());
        }
        Ok(self.directory(fd)?.dir.hard_link(path, &self.directory(new_fd)?.dir, new_path)?)
    }

    #[expect(clippy::too_many_arguments, reason = "the interface's")]
    pub(crate) fn path_rename(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_length: u32,
        new_fd: u32,
        new_path: u32,
        new_path_length: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        let new_path = read_path(memory, (new_path, new_path_length))?;
        Ok(self.directory(fd)?.dir.rename(path, &self.directory(new_fd)?.dir, new_path)?)
    }

    /// Creates a symbolic link with these contents, which must be a relative path.
    pub(crate) fn path_symlink(
        &self,
        memory: &GuestMemory<'_>,
        contents: u32,
        contents_length: u32,
        fd: u32,
        path: u32,
        path_length: u32,
    ) -> Outcome {
        let contents = read_path(memory, (contents, contents_length))?;
        let path = read_path(memory, (path, path_length))?;
        Ok(self.directory(fd)?.dir.symlink(contents, path)?)
    }

    /// Writes as much of a symbolic link's contents as fits into the buffer.
    #[expect(clippy::too_many_arguments, reason = "required by the interface")]
    pub(crate) fn path_readlink(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        path_length: u32,
        buffer: u32,
        length: u32,
        result: u32,
    ) -> Outcome {
        let path = read_path(memory, (path, path_length))?;
        let mut contents = self.directory(fd)?.dir.read_link(path)?.into_os_string().into_vec();
        contents.truncate(length as usize);
        memory.write_bytes(buffer, &contents)?;
        memory.write_u32(result, contents.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Sandbox, check_errno};
    use super::super::types::{Filetype, fstflags};
    use super::*;

    const FOLLOW: u32 = lookupflags::SYMLINK_FOLLOW;

    /// Writes two paths to memory, and returns their addresses and lengths.
    fn two(sandbox: &Sandbox, one: &str, other: &str) -> [u32; 4] {
        let (one, other) = (sandbox.program.put(1000, one), sandbox.program.put(1500, other));
        [one.0, one.1, other.0, other.1]
    }

    fn rename(sandbox: &Sandbox, from: &str, to: &str) -> Outcome {
        let [a, b, c, d] = two(sandbox, from, to);
        sandbox.wasi.path_rename(&sandbox.program.memory(), Sandbox::ROOT, a, b, Sandbox::ROOT, c, d)
    }

    fn link(sandbox: &Sandbox, lookup: u32, from: &str, to: &str) -> Outcome {
        let [a, b, c, d] = two(sandbox, from, to);
        sandbox.wasi.path_link(&sandbox.program.memory(), Sandbox::ROOT, lookup, a, b, Sandbox::ROOT, c, d)
    }

    fn symlink(sandbox: &Sandbox, contents: &str, path: &str) -> Outcome {
        let [a, b, c, d] = two(sandbox, contents, path);
        sandbox.wasi.path_symlink(&sandbox.program.memory(), a, b, Sandbox::ROOT, c, d)
    }

    fn readlink(sandbox: &Sandbox, path: &str, length: u32) -> Outcome<Vec<u8>> {
        let [a, b, ..] = two(sandbox, path, "");
        let memory = sandbox.program.memory();
        sandbox.wasi.path_readlink(&memory, Sandbox::ROOT, a, b, 3000, length, 64)?;
        Ok(sandbox.program.bytes(3000, sandbox.program.u32(64)))
    }

    /// A call that takes only a path.
    type OnPath = fn(&WasiCtx, &GuestMemory<'_>, u32, u32, u32) -> Outcome;

    fn on_path(sandbox: &Sandbox, call: OnPath, path: &str) -> Outcome {
        let [a, b, ..] = two(sandbox, path, "");
        call(&sandbox.wasi, &sandbox.program.memory(), Sandbox::ROOT, a, b)
    }

    /// Type and size.
    fn stat(sandbox: &Sandbox, lookup: u32, path: &str) -> Outcome<(u8, u64)> {
        let [a, b, ..] = two(sandbox, path, "");
        let memory = sandbox.program.memory();
        sandbox.wasi.path_filestat_get(&memory, Abi::Preview1, Sandbox::ROOT, lookup, a, b, 64)?;
        Ok((sandbox.program.u64(80) as u8, sandbox.program.u64(96)))
    }

    #[test]
    fn files_are_opened_created_and_truncated() {
        let sandbox = Sandbox::new();
        let open = |path, oflags, rights| sandbox.open(path, oflags, rights, 0);
        check_errno(open("a", 0, rights::FD_READ), Errno::Noent);
        assert_eq!(open("a", oflags::CREAT, rights::FD_WRITE), Ok(4));
        std::fs::write(sandbox.host("a"), "contents").unwrap();
        assert_eq!(open("a", oflags::CREAT, rights::FD_READ), Ok(5));
        assert_eq!(std::fs::read(sandbox.host("a")).unwrap(), b"contents");
        check_errno(open("a", oflags::CREAT | oflags::EXCL, rights::FD_WRITE), Errno::Exist);
        assert_eq!(open("a", oflags::TRUNC, rights::FD_WRITE), Ok(6));
        assert_eq!(std::fs::read(sandbox.host("a")).unwrap(), b"");
        check_errno(open("a", oflags::DIRECTORY, 0), Errno::Notdir);
        check_errno(open("a", oflags::DIRECTORY | oflags::CREAT, 0), Errno::Inval);
        check_errno(open("a", 1 << 4, 0), Errno::Inval);
        check_errno(open("a/b", 0, 0), Errno::Notdir);
        check_errno(open("a\0b", 0, 0), Errno::Inval);
        check_errno(open("", 0, 0), Errno::Noent);
        check_errno(open(&"x".repeat(300), 0, 0), Errno::Nametoolong);
        let long = sandbox.program.put(8192, "x".repeat(5000));
        let outcome = on_path_at(&sandbox, long);
        check_errno(outcome, Errno::Nametoolong);
        check_errno(sandbox.open_at(4, 0, "a", 0, 0, 0), Errno::Notdir);
        check_errno(sandbox.open_at(0, 0, "a", 0, 0, 0), Errno::Badf);
        check_errno(sandbox.open_at(99, 0, "a", 0, 0, 0), Errno::Badf);
        check_errno(sandbox.open_at(Sandbox::ROOT, 2, "a", 0, 0, 0), Errno::Inval);
    }

    fn on_path_at(sandbox: &Sandbox, (path, length): (u32, u32)) -> Outcome {
        sandbox.wasi.path_unlink_file(&sandbox.program.memory(), Sandbox::ROOT, path, length)
    }

    #[test]
    fn nothing_is_created_if_its_number_cannot_be_returned() {
        let sandbox = Sandbox::new();
        let (path, length) = sandbox.program.put(1000, "a");
        let memory = sandbox.program.memory();
        let outcome = sandbox.wasi.path_open(
            &memory,
            Sandbox::ROOT,
            0,
            path,
            length,
            oflags::CREAT,
            rights::FD_WRITE,
            0,
            0,
            u32::MAX,
        );
        assert!(matches!(outcome, Err(super::super::errno::Failure::OutOfBounds { .. })), "{outcome:?}");
        assert!(!sandbox.host("a").exists());
    }

    #[test]
    fn directories_are_made_entered_and_removed() {
        let sandbox = Sandbox::new();
        on_path(&sandbox, WasiCtx::path_create_directory, "sub").unwrap();
        check_errno(on_path(&sandbox, WasiCtx::path_create_directory, "sub"), Errno::Exist);
        let sub = sandbox.open("sub", oflags::DIRECTORY, rights::FD_READDIR, 0).unwrap();
        let file = sandbox.open_at(sub, 0, "a", oflags::CREAT, rights::FD_WRITE, 0).unwrap();
        assert!(sandbox.host("sub/a").exists());
        check_errno(on_path(&sandbox, WasiCtx::path_remove_directory, "sub"), Errno::Notempty);
        check_errno(on_path(&sandbox, WasiCtx::path_remove_directory, "sub/a"), Errno::Notdir);
        check_errno(on_path(&sandbox, WasiCtx::path_unlink_file, "sub"), Errno::Isdir);
        on_path(&sandbox, WasiCtx::path_unlink_file, "sub/a").unwrap();
        on_path(&sandbox, WasiCtx::path_remove_directory, "sub").unwrap();
        assert!(!sandbox.host("sub").exists());
        sandbox.wasi.fd_filestat_get(&sandbox.program.memory(), Abi::Preview1, file, 64).unwrap();
        assert_eq!(sandbox.program.u64(88), 0, "the open file has no name left");
    }

    #[test]
    fn names_are_changed_and_linked() {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.host("a"), "abc").unwrap();
        rename(&sandbox, "a", "b").unwrap();
        check_errno(rename(&sandbox, "a", "c"), Errno::Noent);
        link(&sandbox, 0, "b", "c").unwrap();
        check_errno(link(&sandbox, 0, "b", "c"), Errno::Exist);
        check_errno(link(&sandbox, FOLLOW, "b", "d"), Errno::Inval);
        symlink(&sandbox, "c", "s").unwrap();
        assert_eq!(readlink(&sandbox, "s", 100).unwrap(), b"c");
        assert_eq!(readlink(&sandbox, "s", 0).unwrap(), b"");
        check_errno(readlink(&sandbox, "b", 100), Errno::Inval);
        assert_eq!(stat(&sandbox, 0, "s"), Ok((Filetype::SymbolicLink as u8, 1)));
        assert_eq!(stat(&sandbox, FOLLOW, "s"), Ok((Filetype::RegularFile as u8, 3)));
        assert_eq!(stat(&sandbox, 0, "c"), Ok((Filetype::RegularFile as u8, 3)));
        check_errno(sandbox.open("s", 0, rights::FD_READ, 0), Errno::Loop);
        sandbox.open_at(Sandbox::ROOT, FOLLOW, "s", 0, rights::FD_READ, 0).unwrap();
        symlink(&sandbox, "loop", "loop").unwrap();
        check_errno(stat(&sandbox, FOLLOW, "loop"), Errno::Loop);
    }

    #[test]
    fn times_are_set_with_and_without_following() {
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.host("a"), "").unwrap();
        symlink(&sandbox, "a", "s").unwrap();
        let (path, length) = sandbox.program.put(1000, "s");
        let memory = sandbox.program.memory();
        for (lookup, time) in [(FOLLOW, 1_000_000_001), (0, 3_000_000_003)] {
            sandbox
                .wasi
                .path_filestat_set_times(
                    &memory,
                    Sandbox::ROOT,
                    lookup,
                    path,
                    length,
                    0,
                    time,
                    fstflags::MTIM | fstflags::ATIM_NOW,
                )
                .unwrap();
        }
        let changed = |lookup| {
            stat(&sandbox, lookup, "s").unwrap();
            sandbox.program.u64(64 + 48)
        };
        assert_eq!([changed(FOLLOW), changed(0)], [1_000_000_001, 3_000_000_003]);
    }

    /// Opening a pipe for reading or writing waits for its other end.
    #[test]
    fn times_of_a_pipe_are_set_at_once() {
        let sandbox = Sandbox::new();
        let flags = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, sandbox.host("pipe"), flags, 0o600.into(), 0).unwrap();
        let (path, length) = sandbox.program.put(1000, "pipe");
        let memory = sandbox.program.memory();
        let flags = fstflags::MTIM;
        let root = Sandbox::ROOT;
        sandbox.wasi.path_filestat_set_times(&memory, root, FOLLOW, path, length, 0, 77, flags).unwrap();
        stat(&sandbox, 0, "pipe").unwrap();
        assert_eq!(sandbox.program.u64(64 + 48), 77);
    }

    #[test]
    fn what_is_created_for_reading_cannot_be_written() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let (list, count) = sandbox.program.iovec((100, 1));
        std::os::unix::fs::symlink("target", sandbox.host("link")).unwrap();
        for (path, lookup, flags) in [
            ("new", 0, oflags::CREAT),
            ("new", 0, 0),
            ("other", 0, oflags::CREAT | oflags::EXCL),
            ("link", FOLLOW, oflags::CREAT),
        ] {
            let fd = sandbox.open_at(Sandbox::ROOT, lookup, path, flags, rights::FD_READ, 0).unwrap();
            assert!(sandbox.host(path).exists(), "{path}");
            check_errno(sandbox.wasi.fd_write(&memory, fd, list, count, 50), Errno::Badf);
        }
        let again = oflags::CREAT | oflags::EXCL;
        check_errno(sandbox.open("other", again, rights::FD_READ, 0), Errno::Exist);
    }

    #[test]
    fn no_more_is_opened_than_the_embedder_permits() {
        let directory = tempfile::tempdir().unwrap();
        let mut builder = super::super::WasiCtxBuilder::new();
        builder.preopened_dir(directory.path(), "/").unwrap().max_descriptors(5);
        let mut sandbox = Sandbox::new();
        sandbox.wasi = builder.build();
        let open = |name| sandbox.open(name, oflags::CREAT, rights::FD_WRITE, 0);
        assert_eq!(open("a"), Ok(4));
        check_errno(open("b"), Errno::Mfile);
        assert!(!directory.path().join("b").exists());
        sandbox.wasi.remove(4).unwrap();
        assert_eq!(open("b"), Ok(4));
    }

    #[test]
    fn paths_that_lead_out_of_the_directory_are_refused() {
        let sandbox = Sandbox::new();
        std::os::unix::fs::symlink("../secret", sandbox.host("out")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", sandbox.host("absolute")).unwrap();
        std::os::unix::fs::symlink("..", sandbox.host("up")).unwrap();
        std::fs::create_dir(sandbox.host("sub")).unwrap();
        std::fs::write(sandbox.host("a"), "").unwrap();
        for path in ["../secret", "/etc/passwd", "out", "absolute", "up/secret", "sub/../../secret", ".."] {
            check_errno(sandbox.open_at(Sandbox::ROOT, FOLLOW, path, 0, rights::FD_READ, 0), Errno::Perm);
            check_errno(stat(&sandbox, FOLLOW, path), Errno::Perm);
        }
        for path in ["../new", "/tmp/new", "up/new", "sub/../../new"] {
            let rights = rights::FD_WRITE;
            check_errno(sandbox.open_at(Sandbox::ROOT, FOLLOW, path, oflags::CREAT, rights, 0), Errno::Perm);
            check_errno(on_path(&sandbox, WasiCtx::path_create_directory, path), Errno::Perm);
            check_errno(on_path(&sandbox, WasiCtx::path_unlink_file, path), Errno::Perm);
            check_errno(on_path(&sandbox, WasiCtx::path_remove_directory, path), Errno::Perm);
            check_errno(rename(&sandbox, "a", path), Errno::Perm);
            check_errno(link(&sandbox, 0, "a", path), Errno::Perm);
            check_errno(symlink(&sandbox, "a", path), Errno::Perm);
        }
        check_errno(rename(&sandbox, "../secret", "b"), Errno::Perm);
        check_errno(link(&sandbox, 0, "../secret", "b"), Errno::Perm);
        check_errno(symlink(&sandbox, "/etc/passwd", "b"), Errno::Perm);
        check_errno(readlink(&sandbox, "../secret", 10), Errno::Perm);
        check_errno(readlink(&sandbox, "absolute", 10), Errno::Perm);
        let names = std::fs::read_dir(sandbox.host("..")).unwrap().count();
        assert_eq!(names, 2, "the outside is as it was");
        assert_eq!(stat(&sandbox, 0, "sub/../a"), Ok((Filetype::RegularFile as u8, 0)));
    }
}
