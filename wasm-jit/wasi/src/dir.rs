//! `fd_prestat_*`, `fd_readdir`.
//!
//! A cookie of `fd_readdir` is the host's position after an entry, as reported by `getdents64`: the
//! program can continue from any entry, at no cost, and no state is kept between two calls.

use std::mem::MaybeUninit;
use std::sync::PoisonError;

use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom};

use super::context::{Descriptor, WasiCtx};
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;
use super::types::encode_dirent;

/// Number of bytes of directory entries to read at once.
const READ_AT_ONCE: usize = 4096;

impl WasiCtx {
    pub(crate) fn fd_prestat_get(&self, memory: &GuestMemory<'_>, fd: u32, result: u32) -> Outcome {
        let descriptor = self.descriptor(fd)?;
        let Descriptor::Dir(directory) = &*descriptor else { return Err(Errno::Badf.into()) };
        let name = directory.preopen.as_ref().ok_or(Errno::Badf)?;
        // The type of a preopen: directory, 0.
        memory.write_u32(result, 0)?;
        memory.write_u32(result.saturating_add(4), name.len() as u32)
    }

    pub(crate) fn fd_prestat_dir_name(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        path: u32,
        length: u32,
    ) -> Outcome {
        let descriptor = self.descriptor(fd)?;
        let Descriptor::Dir(directory) = &*descriptor else { return Err(Errno::Notdir.into()) };
        let name = directory.preopen.as_ref().ok_or(Errno::Notdir)?;
        if name.len() > length as usize {
            return Err(Errno::Nametoolong.into());
        }
        memory.write_bytes(path, name.as_bytes())
    }

    /// Writes entries until the buffer is full: the last one may be truncated. A buffer that is not
    /// full marks the end.
    pub(crate) fn fd_readdir(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        buffer: u32,
        length: u32,
        cookie: u64,
        result: u32,
    ) -> Outcome {
        let descriptor = self.descriptor(fd)?;
        let Descriptor::Dir(directory) = &*descriptor else { return Err(Errno::Badf.into()) };
        memory.buffer(buffer, length)?;
        let dir = &directory.dir;
        let _position_is_ours = directory.reading.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::seek(dir, SeekFrom::Start(cookie))?;
        let mut space = [MaybeUninit::uninit(); READ_AT_ONCE];
        let mut entries = RawDir::new(dir, &mut space);
        let mut written = 0;
        while written < length {
            let Some(entry) = entries.next() else { break };
            let entry = match entry {
                // The directory itself was removed.
                Err(rustix::io::Errno::NOENT) => break,
                entry => entry?,
            };
            let name = entry.file_name().to_bytes();
            let mut filetype = entry.file_type();
            if filetype == FileType::Unknown {
                // A file that has been removed since has an unknown type.
                filetype = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(filetype, |stat| FileType::from_raw_mode(stat.st_mode));
            }
            let head =
                encode_dirent(entry.next_entry_cookie(), entry.ino(), name.len() as u32, filetype.into());
            for part in [&head[..], name] {
                let part = &part[..part.len().min((length - written) as usize)];
                memory.write_bytes(buffer + written, part)?;
                written += part.len() as u32;
            }
        }
        memory.write_u32(result, written)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::testing::{Sandbox, check_errno};
    use super::super::types::{Filetype, oflags, rights};
    use super::*;

    #[test]
    fn a_preopened_directory_has_its_name() {
        let sandbox = Sandbox::new();
        let (wasi, program) = (&sandbox.wasi, &sandbox.program);
        let memory = program.memory();
        wasi.fd_prestat_get(&memory, Sandbox::ROOT, 8).unwrap();
        assert_eq!((program.u32(8), program.u32(12)), (0, 5));
        wasi.fd_prestat_dir_name(&memory, Sandbox::ROOT, 100, 5).unwrap();
        assert_eq!(program.bytes(100, 6), b"/data\0");
        check_errno(wasi.fd_prestat_dir_name(&memory, Sandbox::ROOT, 100, 4), Errno::Nametoolong);
        check_errno(wasi.fd_prestat_get(&memory, 0, 8), Errno::Badf);
        check_errno(wasi.fd_prestat_get(&memory, 4, 8), Errno::Badf);
        check_errno(wasi.fd_prestat_dir_name(&memory, 0, 100, 5), Errno::Notdir);
        std::fs::create_dir(sandbox.host("sub")).unwrap();
        let sub = sandbox.open("sub", oflags::DIRECTORY, rights::FD_READDIR, 0).unwrap();
        check_errno(wasi.fd_prestat_get(&memory, sub, 8), Errno::Badf);
    }

    /// All names and types, read through a buffer of this size as in a C library: a truncated entry
    /// is read again.
    fn entries(sandbox: &Sandbox, fd: u32, length: u32) -> BTreeMap<Vec<u8>, u8> {
        let mut found = BTreeMap::new();
        let mut cookie = 0;
        loop {
            sandbox.wasi.fd_readdir(&sandbox.program.memory(), fd, 4096, length, cookie, 64).unwrap();
            let used = sandbox.program.u32(64);
            let mut at = 4096;
            while at + 24 <= 4096 + used {
                let name_length = sandbox.program.u32(at + 16);
                if at + 24 + name_length > 4096 + used {
                    break;
                }
                let name = sandbox.program.bytes(at + 24, name_length);
                let kind = sandbox.program.bytes(at + 20, 1)[0];
                assert_eq!(found.insert(name, kind), None, "an entry came twice");
                cookie = sandbox.program.u64(at);
                at += 24 + name_length;
            }
            if used < length {
                return found;
            }
            assert!(at > 4096, "the buffer holds no entry");
        }
    }

    #[test]
    fn entries_are_read_in_parts_and_again() {
        let sandbox = Sandbox::new();
        let mut expected = BTreeMap::from([
            (b".".to_vec(), Filetype::Directory as u8),
            (b"..".to_vec(), Filetype::Directory as u8),
        ]);
        for n in 0..500 {
            let name = format!("file-{n}-{}", "x".repeat(n % 40));
            std::fs::write(sandbox.host(&name), "").unwrap();
            expected.insert(name.into_bytes(), Filetype::RegularFile as u8);
        }
        std::os::unix::fs::symlink("nowhere", sandbox.host("link")).unwrap();
        expected.insert(b"link".to_vec(), Filetype::SymbolicLink as u8);
        for length in [100, 1000, 32_768] {
            assert_eq!(entries(&sandbox, Sandbox::ROOT, length), expected, "{length} bytes at once");
        }
    }

    #[test]
    fn a_directory_that_was_removed_has_no_entries() {
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.host("sub")).unwrap();
        let sub = sandbox.open("sub", oflags::DIRECTORY, rights::FD_READDIR, 0).unwrap();
        std::fs::remove_dir(sandbox.host("sub")).unwrap();
        assert_eq!(entries(&sandbox, sub, 1000), BTreeMap::new());
    }

    #[test]
    fn hostile_cookies_and_buffers_are_harmless() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        for cookie in [1, 12_345, i64::MAX as u64, u64::MAX] {
            // The file system decides whether a position exists.
            let _ = sandbox.wasi.fd_readdir(&memory, Sandbox::ROOT, 100, 1000, cookie, 64);
        }
        sandbox.wasi.fd_readdir(&memory, Sandbox::ROOT, 100, 0, 0, 64).unwrap();
        assert_eq!(sandbox.program.u32(64), 0);
        let outcome = sandbox.wasi.fd_readdir(&memory, Sandbox::ROOT, 100, u32::MAX, 0, 64);
        assert!(matches!(outcome, Err(super::super::errno::Failure::OutOfBounds { .. })), "{outcome:?}");
        check_errno(sandbox.wasi.fd_readdir(&memory, 0, 100, 100, 0, 64), Errno::Badf);
    }
}
