//! Calls on descriptors other than reading, writing and `fd_filestat_*`.

use std::num::NonZeroU64;

use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};

use super::context::{Descriptor, WasiCtx};
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;
use super::types::{Abi, DIRECTORY_RIGHTS, Fdstat, Filetype, INHERITED_RIGHTS, fdflags, rights};

/// The interface's flags, and the corresponding host flags.
const FLAGS: [(u32, OFlags); 4] = [
    (fdflags::APPEND, OFlags::APPEND),
    (fdflags::DSYNC, OFlags::DSYNC),
    (fdflags::NONBLOCK, OFlags::NONBLOCK),
    (fdflags::SYNC, OFlags::SYNC),
];

/// Converts the interface's flags to host flags; `RSYNC` is `SYNC` on Linux.
pub(crate) fn host_flags(flags: u32) -> OFlags {
    let flags = if flags & fdflags::RSYNC != 0 { flags | fdflags::SYNC } else { flags };
    FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, host)| *host).collect()
}

fn guest_flags(host: OFlags) -> u32 {
    FLAGS.iter().filter(|(_, flag)| host.contains(*flag)).fold(0, |flags, (bit, _)| flags | bit)
}

/// Converts `fd_seek`'s origins.
fn seek_from(abi: Abi, offset: i64, whence: u32) -> Result<SeekFrom, Errno> {
    // In the order of `Preview1`.
    let whence = match abi {
        Abi::Preview1 => whence,
        Abi::Unstable => *[1, 2, 0].get(whence as usize).ok_or(Errno::Inval)?,
    };
    match whence {
        0 => Ok(SeekFrom::Start(u64::try_from(offset).map_err(|_| Errno::Inval)?)),
        1 => Ok(SeekFrom::Current(offset)),
        2 => Ok(SeekFrom::End(offset)),
        _ => Err(Errno::Inval),
    }
}

/// The `fd_fdstat_get` result for a stream. Programs treat it as a terminal if it is a character
/// device that cannot seek.
fn stream_stat(is_terminal: bool, right: u64) -> Fdstat {
    let filetype = if is_terminal { Filetype::CharacterDevice } else { Filetype::Unknown };
    Fdstat { filetype, flags: 0, rights: right, inheriting: right }
}

impl WasiCtx {
    pub(crate) fn fd_close(&self, _memory: &GuestMemory<'_>, fd: u32) -> Outcome {
        Ok(self.remove(fd)?)
    }

    /// Closes `to` and replaces it by `from`; `from` is closed.
    pub(crate) fn fd_renumber(&self, _memory: &GuestMemory<'_>, from: u32, to: u32) -> Outcome {
        Ok(self.renumber(from, to)?)
    }

    pub(crate) fn fd_seek(
        &self,
        memory: &GuestMemory<'_>,
        abi: Abi,
        fd: u32,
        offset: i64,
        whence: u32,
        result: u32,
    ) -> Outcome {
        let position = match &*self.descriptor(fd)? {
            Descriptor::File(file) => rustix::fs::seek(file, seek_from(abi, offset, whence)?)?,
            Descriptor::Input(_) | Descriptor::Output(_) => return Err(Errno::Spipe.into()),
            Descriptor::Dir(_) => return Err(Errno::Badf.into()),
        };
        memory.write_u64(result, position)
    }

    pub(crate) fn fd_tell(&self, memory: &GuestMemory<'_>, fd: u32, result: u32) -> Outcome {
        self.fd_seek(memory, Abi::Preview1, fd, 0, 1, result)
    }

    pub(crate) fn fd_sync(&self, _memory: &GuestMemory<'_>, fd: u32) -> Outcome {
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => Ok(rustix::fs::fsync(file)?),
            Descriptor::Dir(directory) => Ok(rustix::fs::fsync(&directory.dir)?),
            Descriptor::Input(_) | Descriptor::Output(_) => Err(Errno::Badf.into()),
        }
    }

    pub(crate) fn fd_datasync(&self, _memory: &GuestMemory<'_>, fd: u32) -> Outcome {
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => Ok(rustix::fs::fdatasync(file)?),
            Descriptor::Dir(directory) => Ok(rustix::fs::fdatasync(&directory.dir)?),
            Descriptor::Input(_) | Descriptor::Output(_) => Err(Errno::Badf.into()),
        }
    }

    pub(crate) fn fd_advise(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        offset: u64,
        length: u64,
        advice: u32,
    ) -> Outcome {
        const ADVICE: [Advice; 6] = [
            Advice::Normal,
            Advice::Sequential,
            Advice::Random,
            Advice::WillNeed,
            Advice::DontNeed,
            Advice::NoReuse,
        ];
        let advice = *ADVICE.get(advice as usize).ok_or(Errno::Inval)?;
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => Ok(rustix::fs::fadvise(file, offset, NonZeroU64::new(length), advice)?),
            _ => Err(Errno::Badf.into()),
        }
    }

    pub(crate) fn fd_allocate(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        offset: u64,
        length: u64,
    ) -> Outcome {
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => {
                Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length)?)
            }
            _ => Err(Errno::Badf.into()),
        }
    }

    pub(crate) fn fd_fdstat_get(&self, memory: &GuestMemory<'_>, fd: u32, result: u32) -> Outcome {
        let stat = match &*self.descriptor(fd)? {
            Descriptor::Input(input) => stream_stat(input.is_terminal(), rights::FD_READ),
            Descriptor::Output(output) => stream_stat(output.is_terminal(), rights::FD_WRITE),
            Descriptor::Dir(_) => Fdstat {
                filetype: Filetype::Directory,
                flags: 0,
                rights: DIRECTORY_RIGHTS,
                inheriting: INHERITED_RIGHTS,
            },
            Descriptor::File(file) => {
                let host = rustix::fs::fcntl_getfl(file)?;
                let missing = match host & OFlags::RWMODE {
                    OFlags::RDWR => 0,
                    OFlags::WRONLY => rights::FD_READ | rights::FD_READDIR,
                    _ => rights::FD_WRITE,
                };
                let filetype = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).into();
                let rights = rights::ALL & !missing;
                Fdstat { filetype, flags: guest_flags(host), rights, inheriting: rights }
            }
        };
        memory.write_bytes(result, &stat.encode())
    }

    /// Appending and non-blocking mode can be changed, synchronous writing cannot.
    pub(crate) fn fd_fdstat_set_flags(&self, _memory: &GuestMemory<'_>, fd: u32, flags: u32) -> Outcome {
        let Descriptor::File(file) = &*self.descriptor(fd)? else { return Err(Errno::Badf.into()) };
        if flags & !(fdflags::APPEND | fdflags::NONBLOCK) != 0 {
            return Err(Errno::Inval.into());
        }
        let kept = rustix::fs::fcntl_getfl(file)? - (OFlags::APPEND | OFlags::NONBLOCK);
        Ok(rustix::fs::fcntl_setfl(file, kept | host_flags(flags))?)
    }

    /// Rights are properties of the descriptor, and cannot be dropped.
    pub(crate) fn fd_fdstat_set_rights(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        _rights: u64,
        _inheriting: u64,
    ) -> Outcome {
        match &*self.descriptor(fd)? {
            Descriptor::File(_) | Descriptor::Dir(_) => Err(Errno::Notsup.into()),
            Descriptor::Input(_) | Descriptor::Output(_) => Err(Errno::Badf.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Program, Sandbox, check_errno};
    use super::super::types::oflags;
    use super::*;

    const READ_WRITE: u64 = rights::FD_READ | rights::FD_WRITE;

    #[test]
    fn a_file_is_written_sought_and_read() {
        let sandbox = Sandbox::new();
        let (wasi, program) = (&sandbox.wasi, &sandbox.program);
        let memory = program.memory();
        let fd = sandbox.open("a", oflags::CREAT, READ_WRITE, 0).unwrap();
        let buffer = program.put(100, "hello, world");
        let (list, count) = program.iovec(buffer);
        wasi.fd_write(&memory, fd, list, count, 50).unwrap();
        assert_eq!(program.u32(50), 12);
        #[track_caller]
        fn seek(sandbox: &Sandbox, abi: Abi, fd: u32, offset: i64, whence: u32) -> Outcome<u64> {
            let memory = sandbox.program.memory();
            sandbox.wasi.fd_seek(&memory, abi, fd, offset, whence, 56)?;
            let position = sandbox.program.u64(56);
            sandbox.wasi.fd_tell(&memory, fd, 56)?;
            assert_eq!(sandbox.program.u64(56), position);
            Ok(position)
        }
        assert_eq!(seek(&sandbox, Abi::Preview1, fd, -5, 2), Ok(7));
        assert_eq!(seek(&sandbox, Abi::Preview1, fd, -2, 1), Ok(5));
        assert_eq!(seek(&sandbox, Abi::Preview1, fd, 7, 0), Ok(7));
        assert_eq!(seek(&sandbox, Abi::Unstable, fd, -2, 0), Ok(5));
        assert_eq!(seek(&sandbox, Abi::Unstable, fd, -4, 1), Ok(8));
        assert_eq!(seek(&sandbox, Abi::Unstable, fd, 7, 2), Ok(7));
        check_errno(seek(&sandbox, Abi::Preview1, fd, -1, 0), Errno::Inval);
        check_errno(seek(&sandbox, Abi::Preview1, fd, -100, 1), Errno::Inval);
        check_errno(seek(&sandbox, Abi::Preview1, fd, i64::MAX, 2), Errno::Inval);
        check_errno(seek(&sandbox, Abi::Preview1, fd, 0, 3), Errno::Inval);
        check_errno(seek(&sandbox, Abi::Unstable, fd, 0, u32::MAX), Errno::Inval);
        check_errno(seek(&sandbox, Abi::Preview1, 0, 0, 1), Errno::Spipe);
        check_errno(seek(&sandbox, Abi::Preview1, Sandbox::ROOT, 0, 1), Errno::Badf);
        let (list, count) = program.iovec((200, 100));
        wasi.fd_read(&memory, fd, list, count, 50).unwrap();
        assert_eq!(program.bytes(200, program.u32(50)), b"world");
        wasi.fd_pread(&memory, fd, list, count, 4, 50).unwrap();
        assert_eq!(program.bytes(200, program.u32(50)), b"o, world");
        check_errno(wasi.fd_pread(&memory, fd, list, count, u64::MAX, 50), Errno::Inval);
        let (list, count) = program.iovec((100, 1));
        wasi.fd_pwrite(&memory, fd, list, count, 20, 50).unwrap();
        assert_eq!(std::fs::read(sandbox.host("a")).unwrap(), b"hello, world\0\0\0\0\0\0\0\0h");
        wasi.fd_sync(&memory, fd).unwrap();
        wasi.fd_datasync(&memory, fd).unwrap();
        wasi.fd_sync(&memory, Sandbox::ROOT).unwrap();
        wasi.fd_close(&memory, fd).unwrap();
        check_errno(wasi.fd_close(&memory, fd), Errno::Badf);
        check_errno(wasi.fd_read(&memory, fd, list, count, 50), Errno::Badf);
    }

    #[test]
    fn flags_are_reported_and_changed() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        std::fs::write(sandbox.host("a"), "ab").unwrap();
        let fd = sandbox.open("a", 0, rights::FD_WRITE, fdflags::APPEND | fdflags::SYNC).unwrap();
        #[track_caller]
        fn check(sandbox: &Sandbox, fd: u32, filetype: Filetype, flags: u32, rights: u64, inheriting: u64) {
            sandbox.wasi.fd_fdstat_get(&sandbox.program.memory(), fd, 64).unwrap();
            let expected = Fdstat { filetype, flags, rights, inheriting }.encode();
            assert_eq!(sandbox.program.bytes(64, 24), expected, "descriptor {fd}");
        }
        let written = rights::ALL & !(rights::FD_READ | rights::FD_READDIR);
        // On Linux SYNC implies DSYNC.
        let synchronous = fdflags::SYNC | fdflags::DSYNC;
        check(&sandbox, fd, Filetype::RegularFile, fdflags::APPEND | synchronous, written, written);
        let (list, count) = sandbox.program.iovec((100, 1));
        sandbox.wasi.fd_write(&memory, fd, list, count, 50).unwrap();
        sandbox.wasi.fd_fdstat_set_flags(&memory, fd, fdflags::NONBLOCK).unwrap();
        check(&sandbox, fd, Filetype::RegularFile, fdflags::NONBLOCK | synchronous, written, written);
        sandbox.wasi.fd_seek(&memory, Abi::Preview1, fd, 0, 0, 56).unwrap();
        sandbox.wasi.fd_write(&memory, fd, list, count, 50).unwrap();
        assert_eq!(std::fs::read(sandbox.host("a")).unwrap(), b"\0b\0");
        check_errno(sandbox.wasi.fd_fdstat_set_flags(&memory, fd, fdflags::SYNC), Errno::Inval);
        check_errno(sandbox.wasi.fd_fdstat_set_flags(&memory, fd, 1 << 9), Errno::Inval);
        check_errno(sandbox.wasi.fd_fdstat_set_flags(&memory, 1, 0), Errno::Badf);
        check_errno(sandbox.wasi.fd_fdstat_set_rights(&memory, fd, 0, 0), Errno::Notsup);
        check(&sandbox, 0, Filetype::Unknown, 0, rights::FD_READ, rights::FD_READ);
        check(&sandbox, 2, Filetype::Unknown, 0, rights::FD_WRITE, rights::FD_WRITE);
        check(&sandbox, Sandbox::ROOT, Filetype::Directory, 0, DIRECTORY_RIGHTS, INHERITED_RIGHTS);
    }

    #[test]
    fn space_is_allocated_and_use_announced() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let fd = sandbox.open("a", oflags::CREAT, READ_WRITE, 0).unwrap();
        sandbox.wasi.fd_allocate(&memory, fd, 10, 90).unwrap();
        assert_eq!(std::fs::metadata(sandbox.host("a")).unwrap().len(), 100);
        check_errno(sandbox.wasi.fd_allocate(&memory, fd, 0, 0), Errno::Inval);
        check_errno(sandbox.wasi.fd_allocate(&memory, fd, u64::MAX, 1), Errno::Inval);
        check_errno(sandbox.wasi.fd_allocate(&memory, Sandbox::ROOT, 0, 1), Errno::Badf);
        for advice in 0..6 {
            sandbox.wasi.fd_advise(&memory, fd, 0, 0, advice).unwrap();
        }
        check_errno(sandbox.wasi.fd_advise(&memory, fd, 0, 0, 6), Errno::Inval);
        check_errno(sandbox.wasi.fd_advise(&memory, 1, 0, 0, 0), Errno::Badf);
    }

    #[test]
    fn a_renumbered_descriptor_replaces_the_other() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let fd = sandbox.open("a", oflags::CREAT, READ_WRITE, 0).unwrap();
        sandbox.wasi.fd_renumber(&memory, fd, 1).unwrap();
        let buffer = sandbox.program.put(100, "to a file");
        let (list, count) = sandbox.program.iovec(buffer);
        sandbox.wasi.fd_write(&memory, 1, list, count, 50).unwrap();
        assert_eq!(std::fs::read(sandbox.host("a")).unwrap(), b"to a file");
        check_errno(sandbox.wasi.fd_renumber(&memory, fd, 1), Errno::Badf);
        check_errno(sandbox.wasi.fd_renumber(&memory, 1, fd), Errno::Badf);
    }

    #[test]
    fn a_result_outside_of_the_memory_traps() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let outcome = sandbox.wasi.fd_fdstat_get(&memory, 0, Program::SIZE - 23);
        assert!(matches!(outcome, Err(super::super::errno::Failure::OutOfBounds { .. })), "{outcome:?}");
    }
}
