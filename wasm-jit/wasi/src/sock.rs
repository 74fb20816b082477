//! `sock_*`: no descriptor is a socket.

use super::context::WasiCtx;
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;

impl WasiCtx {
    fn no_socket(&self, fd: u32) -> Outcome {
        self.descriptor(fd)?;
        Err(Errno::Notsock.into())
    }

    pub(crate) fn sock_accept(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        _flags: u32,
        _result: u32,
    ) -> Outcome {
        self.no_socket(fd)
    }

    #[expect(clippy::too_many_arguments, reason = "the interface's")]
    pub(crate) fn sock_recv(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        _iovecs: u32,
        _count: u32,
        _flags: u32,
        _length: u32,
        _result_flags: u32,
    ) -> Outcome {
        self.no_socket(fd)
    }

    pub(crate) fn sock_send(
        &self,
        _memory: &GuestMemory<'_>,
        fd: u32,
        _iovecs: u32,
        _count: u32,
        _flags: u32,
        _length: u32,
    ) -> Outcome {
        self.no_socket(fd)
    }

    pub(crate) fn sock_shutdown(&self, _memory: &GuestMemory<'_>, fd: u32, _how: u32) -> Outcome {
        self.no_socket(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WasiCtxBuilder;
    use super::super::errno::{Errno, Failure};
    use super::super::testing::Program;

    #[test]
    fn nothing_is_a_socket() {
        let wasi = WasiCtxBuilder::new().build();
        let program = Program::new();
        let memory = program.memory();
        assert_eq!(wasi.sock_shutdown(&memory, 0, 3), Err(Failure::Errno(Errno::Notsock)));
        assert_eq!(wasi.sock_accept(&memory, 9, 0, 0), Err(Failure::Errno(Errno::Badf)));
        assert_eq!(wasi.sock_recv(&memory, 1, 0, 0, 0, 0, 0), Err(Failure::Errno(Errno::Notsock)));
        assert_eq!(wasi.sock_send(&memory, 1, 0, 0, 0, 0), Err(Failure::Errno(Errno::Notsock)));
    }
}
