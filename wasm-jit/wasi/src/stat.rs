//! `fd_filestat_*`: attributes of an open file.

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::context::{Descriptor, WasiCtx};
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;
use super::types::{Abi, Filestat, Filetype, fstflags};

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewTime {
    Unchanged,
    Now,
    /// Nanoseconds since 1970.
    At(u64),
}

impl NewTime {
    fn new(at: u64, is_set: bool, is_now: bool) -> Result<Self, Errno> {
        match (is_set, is_now) {
            (true, true) => Err(Errno::Inval),
            (true, false) => Ok(Self::At(at)),
            (false, true) => Ok(Self::Now),
            (false, false) => Ok(Self::Unchanged),
        }
    }

    /// The new times of last access and modification.
    pub(crate) fn pair(atim: u64, mtim: u64, flags: u32) -> Result<(Self, Self), Errno> {
        if flags & !fstflags::ALL != 0 {
            return Err(Errno::Inval);
        }
        let has = |bit| flags & bit != 0;
        let accessed = Self::new(atim, has(fstflags::ATIM), has(fstflags::ATIM_NOW))?;
        Ok((accessed, Self::new(mtim, has(fstflags::MTIM), has(fstflags::MTIM_NOW))?))
    }

    pub(crate) fn host(self) -> Timespec {
        match self {
            Self::Unchanged => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Self::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Self::At(time) => Timespec {
                tv_sec: (time / 1_000_000_000).cast_signed(),
                tv_nsec: (time % 1_000_000_000).cast_signed(),
            },
        }
    }
}

/// The `fd_filestat_get` result for a stream.
fn stream_stat(is_terminal: bool) -> Filestat {
    let filetype = if is_terminal { Filetype::CharacterDevice } else { Filetype::Unknown };
    Filestat { dev: 0, ino: 0, filetype, nlink: 0, size: 0, atim: 0, mtim: 0, ctim: 0 }
}

impl WasiCtx {
    pub(crate) fn fd_filestat_get(
        &self,
        memory: &GuestMemory<'_>,
        abi: Abi,
        fd: u32,
        result: u32,
    ) -> Outcome {
        let stat = match &*self.descriptor(fd)? {
            Descriptor::Input(input) => stream_stat(input.is_terminal()),
            Descriptor::Output(output) => stream_stat(output.is_terminal()),
            Descriptor::File(file) => rustix::fs::fstat(file)?.into(),
            Descriptor::Dir(directory) => rustix::fs::fstat(&directory.dir)?.into(),
        };
        memory.write_bytes(result, &stat.encode(abi))
    }

    pub(crate) fn fd_filestat_set_size(&self, _memory: &GuestMemory<'_>, fd: u32, size: u64) -> Outcome {
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => Ok(rustix::fs::ftruncate(file, size)?),
            _ => Err(Errno::Badf.into()),
        }
    }

    pub(crate) fn fd_filestat_set_times(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        atim: u64,
        mtim: u64,
        flags: u32,
    ) -> Outcome {
        let (accessed, changed) = NewTime::pair(atim, mtim, flags)?;
        let times = Timestamps { last_access: accessed.host(), last_modification: changed.host() };
        match &*self.descriptor(fd)? {
            Descriptor::File(file) => Ok(rustix::fs::futimens(file, &times)?),
            Descriptor::Dir(directory) => Ok(rustix::fs::futimens(&directory.dir, &times)?),
            Descriptor::Input(_) | Descriptor::Output(_) => Err(Errno::Badf.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Sandbox, check_errno};
    use super::super::types::{oflags, rights};
    use super::*;

    /// Type, size, last access, last modification: at address 64.
    fn stat(sandbox: &Sandbox, fd: u32) -> (u8, u64, u64, u64) {
        sandbox.wasi.fd_filestat_get(&sandbox.program.memory(), Abi::Preview1, fd, 64).unwrap();
        let word = |n: u32| sandbox.program.u64(64 + 8 * n);
        (word(2) as u8, word(4), word(5), word(6))
    }

    #[test]
    fn size_and_times_are_set_and_reported() {
        let sandbox = Sandbox::new();
        let memory = sandbox.program.memory();
        let fd = sandbox.open("a", oflags::CREAT, rights::FD_READ | rights::FD_WRITE, 0).unwrap();
        sandbox.wasi.fd_filestat_set_size(&memory, fd, 1000).unwrap();
        let (atim, mtim) = (1_000_000_007, 2_000_000_009);
        let both = fstflags::ATIM | fstflags::MTIM;
        sandbox.wasi.fd_filestat_set_times(&memory, fd, atim, mtim, both).unwrap();
        assert_eq!(stat(&sandbox, fd), (Filetype::RegularFile as u8, 1000, atim, mtim));
        sandbox.wasi.fd_filestat_set_times(&memory, fd, 5, 5, fstflags::MTIM_NOW).unwrap();
        let (_, _, accessed, changed) = stat(&sandbox, fd);
        assert_eq!(accessed, atim, "unchanged");
        assert!(changed > 1_577_836_800_000_000_000, "{changed} is not now");
        check_errno(sandbox.wasi.fd_filestat_set_times(&memory, fd, 0, 0, 3), Errno::Inval);
        check_errno(sandbox.wasi.fd_filestat_set_times(&memory, fd, 0, 0, 12), Errno::Inval);
        check_errno(sandbox.wasi.fd_filestat_set_times(&memory, fd, 0, 0, 16), Errno::Inval);
        check_errno(sandbox.wasi.fd_filestat_set_times(&memory, 0, 0, 0, 0), Errno::Badf);
        check_errno(sandbox.wasi.fd_filestat_set_size(&memory, fd, u64::MAX), Errno::Inval);
        check_errno(sandbox.wasi.fd_filestat_set_size(&memory, Sandbox::ROOT, 0), Errno::Badf);
    }

    #[test]
    fn directories_and_streams_have_different_types() {
        let sandbox = Sandbox::new();
        assert_eq!(stat(&sandbox, Sandbox::ROOT).0, Filetype::Directory as u8);
        assert_eq!(stat(&sandbox, 1), (Filetype::Unknown as u8, 0, 0, 0));
        sandbox.wasi.fd_filestat_set_times(&sandbox.program.memory(), Sandbox::ROOT, 3, 4, 5).unwrap();
        let (_, _, accessed, changed) = stat(&sandbox, Sandbox::ROOT);
        assert_eq!((accessed, changed), (3, 4));
    }
}
