//! `fd_read`, `fd_write`, `fd_pread`, `fd_pwrite`.
//!
//! Files are read and written at the host descriptor's own position, with one system call for all
//! buffers.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::context::{Descriptor, WasiCtx};
use super::errno::{Errno, Outcome};
use super::memory::{GuestMemory, Iovecs};

/// The result of a libc system call. `EINTR` is an error like any other: `linker` retries the call,
/// unless the program must be stopped.
fn done(answer: isize) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn readv(fd: RawFd, to: &Iovecs<'_>) -> io::Result<usize> {
    let (list, count) = to.as_raw();
    // SAFETY: the buffers are inside the program's memory, which is writable.
    done(unsafe { libc::readv(fd, list, count) })
}

pub(crate) fn writev(fd: RawFd, from: &Iovecs<'_>) -> io::Result<usize> {
    let (list, count) = from.as_raw();
    // SAFETY: the buffers are inside the program's memory.
    done(unsafe { libc::writev(fd, list, count) })
}

/// Writes as much as is possible without blocking. Needs Linux 4.14 (pwritev2(2), RWF_NOWAIT), for
/// pipes 6.4.
pub(crate) fn writev_now(fd: RawFd, from: &Iovecs<'_>) -> io::Result<usize> {
    let (list, count) = from.as_raw();
    // SAFETY: as in `writev`; -1 stands for the current position.
    done(unsafe { libc::pwritev2(fd, list, count, -1, libc::RWF_NOWAIT) })
}

fn preadv(file: &File, to: &Iovecs<'_>, offset: u64) -> io::Result<usize> {
    let (list, count) = to.as_raw();
    // SAFETY: as in `readv`. An offset that does not fit `i64` becomes negative, which the kernel
    // refuses.
    done(unsafe { libc::preadv(file.as_raw_fd(), list, count, offset.cast_signed()) })
}

fn pwritev(file: &File, from: &Iovecs<'_>, offset: u64) -> io::Result<usize> {
    let (list, count) = from.as_raw();
    // SAFETY: as in `writev`; the offset as in `preadv`.
    done(unsafe { libc::pwritev(file.as_raw_fd(), list, count, offset.cast_signed()) })
}

impl WasiCtx {
    pub(crate) fn fd_read(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        iovecs: u32,
        count: u32,
        length: u32,
    ) -> Outcome {
        let to = memory.iovecs(iovecs, count)?;
        let done = match &*self.descriptor(fd)? {
            Descriptor::File(file) => readv(file.as_raw_fd(), &to)?,
            Descriptor::Input(input) => input.read(&to)?,
            Descriptor::Output(_) | Descriptor::Dir(_) => return Err(Errno::Badf.into()),
        };
        memory.write_u32(length, done as u32)
    }

    pub(crate) fn fd_write(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        iovecs: u32,
        count: u32,
        length: u32,
    ) -> Outcome {
        let from = memory.iovecs(iovecs, count)?;
        let done = match &*self.descriptor(fd)? {
            Descriptor::File(file) => writev(file.as_raw_fd(), &from)?,
            Descriptor::Output(output) => output.write(&from)?,
            Descriptor::Input(_) | Descriptor::Dir(_) => return Err(Errno::Badf.into()),
        };
        memory.write_u32(length, done as u32)
    }

    pub(crate) fn fd_pread(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        iovecs: u32,
        count: u32,
        offset: u64,
        length: u32,
    ) -> Outcome {
        let to = memory.iovecs(iovecs, count)?;
        let done = match &*self.descriptor(fd)? {
            Descriptor::File(file) => preadv(file, &to, offset)?,
            Descriptor::Input(_) => return Err(Errno::Spipe.into()),
            Descriptor::Output(_) | Descriptor::Dir(_) => return Err(Errno::Badf.into()),
        };
        memory.write_u32(length, done as u32)
    }

    pub(crate) fn fd_pwrite(
        &self,
        memory: &GuestMemory<'_>,
        fd: u32,
        iovecs: u32,
        count: u32,
        offset: u64,
        length: u32,
    ) -> Outcome {
        let from = memory.iovecs(iovecs, count)?;
        let done = match &*self.descriptor(fd)? {
            Descriptor::File(file) => pwritev(file, &from, offset)?,
            Descriptor::Output(_) => return Err(Errno::Spipe.into()),
            Descriptor::Input(_) | Descriptor::Dir(_) => return Err(Errno::Badf.into()),
        };
        memory.write_u32(length, done as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Program, check_errno};
    use super::super::{OutputPipe, WasiCtxBuilder};
    use super::*;

    #[test]
    fn streams_in_memory_are_read_and_written() {
        let stdout = OutputPipe::new(1 << 20);
        let wasi = WasiCtxBuilder::new().stdin(&b"some input"[..]).stdout(stdout.clone()).build();
        let program = Program::new();
        let memory = program.memory();
        let (list, count) = program.iovec((100, 4));
        wasi.fd_read(&memory, 0, list, count, 50).unwrap();
        assert_eq!((program.u32(50), program.bytes(100, 5)), (4, b"some\0".to_vec()));
        wasi.fd_write(&memory, 1, list, count, 50).unwrap();
        let (list, count) = program.iovec((100, 1000));
        wasi.fd_read(&memory, 0, list, count, 50).unwrap();
        assert_eq!((program.u32(50), program.bytes(100, 7)), (6, b" input\0".to_vec()));
        wasi.fd_read(&memory, 0, list, count, 50).unwrap();
        assert_eq!(program.u32(50), 0, "the end of the input");
        assert_eq!(stdout.contents(), b"some");
    }

    #[test]
    fn only_files_have_positions() {
        let wasi = WasiCtxBuilder::new().build();
        let program = Program::new();
        let memory = program.memory();
        let (list, count) = program.iovec((100, 4));
        check_errno(wasi.fd_pread(&memory, 0, list, count, 0, 50), Errno::Spipe);
        check_errno(wasi.fd_pwrite(&memory, 1, list, count, 0, 50), Errno::Spipe);
        check_errno(wasi.fd_write(&memory, 0, list, count, 50), Errno::Badf);
        check_errno(wasi.fd_read(&memory, 2, list, count, 50), Errno::Badf);
        check_errno(wasi.fd_read(&memory, 3, list, count, 50), Errno::Badf);
        check_errno(wasi.fd_read(&memory, u32::MAX, list, count, 50), Errno::Badf);
    }

    #[test]
    fn a_large_write_to_a_stream_in_memory_is_partial() {
        let stdout = OutputPipe::new(1 << 20);
        let wasi = WasiCtxBuilder::new().stdout(stdout.clone()).build();
        let program = Program::new();
        for n in 0..8 {
            program.memory().write_u32(8 * n + 4, Program::SIZE).unwrap();
        }
        wasi.fd_write(&program.memory(), 1, 0, 8, 64).unwrap();
        assert_eq!(program.u32(64) as usize, stdout.contents().len());
        assert_eq!(program.u32(64), 65_536);
    }
}
