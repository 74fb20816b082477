//! Support for the unit tests: a memory without a program.

use std::cell::UnsafeCell;
use std::path::PathBuf;

use tempfile::TempDir;

use super::errno::{Errno, Failure, Outcome};
use super::memory::GuestMemory;
use super::{WasiCtx, WasiCtxBuilder};

/// A program's memory of one page, initially zero.
pub(crate) struct Program {
    bytes: Box<[UnsafeCell<u8>]>,
}

impl Program {
    pub(crate) const SIZE: u32 = 65_536;

    pub(crate) fn new() -> Self {
        Self { bytes: (0..Self::SIZE).map(|_| UnsafeCell::new(0)).collect() }
    }

    pub(crate) fn memory(&self) -> GuestMemory<'_> {
        // SAFETY: the bytes live as long as the memory, and are accessed only through their cells.
        unsafe {
            GuestMemory::new(
                self.bytes.as_ptr().cast::<u8>().cast_mut(),
                self.bytes.len(),
                wasm_jit::WriteAnnouncer::ignored(),
            )
        }
    }

    pub(crate) fn bytes(&self, address: u32, length: u32) -> Vec<u8> {
        let byte = |at| self.memory().read_array::<1>(at).unwrap()[0];
        (address..address + length).map(byte).collect()
    }

    pub(crate) fn u32(&self, address: u32) -> u32 {
        u32::from_le_bytes(self.memory().read_array(address).unwrap())
    }

    pub(crate) fn u64(&self, address: u32) -> u64 {
        u64::from_le_bytes(self.memory().read_array(address).unwrap())
    }

    /// Writes a string to the address, and returns address and length in the form of arguments.
    pub(crate) fn put(&self, address: u32, text: impl AsRef<[u8]>) -> (u32, u32) {
        self.memory().write_bytes(address, text.as_ref()).unwrap();
        (address, text.as_ref().len() as u32)
    }

    /// Writes a list of one buffer to address 0 and returns address and count in the form of
    /// arguments.
    pub(crate) fn iovec(&self, (address, length): (u32, u32)) -> (u32, u32) {
        self.memory().write_u32(0, address).unwrap();
        self.memory().write_u32(4, length).unwrap();
        (0, 1)
    }
}

/// Asserts that the call failed with this code.
#[track_caller]
pub(crate) fn check_errno<T: std::fmt::Debug>(outcome: Outcome<T>, expected: Errno) {
    assert_eq!(outcome.unwrap_err(), Failure::Errno(expected));
}

/// A program with one directory, [`Sandbox::ROOT`], inside a temporary one that it must not access.
pub(crate) struct Sandbox {
    pub(crate) wasi: WasiCtx,
    pub(crate) program: Program,
    outside: TempDir,
}

impl Sandbox {
    pub(crate) const ROOT: u32 = 3;

    pub(crate) fn new() -> Self {
        let outside = TempDir::new().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        std::fs::create_dir(outside.path().join("inside")).unwrap();
        let mut builder = WasiCtxBuilder::new();
        let wasi = builder.preopened_dir(outside.path().join("inside"), "/data").unwrap().build();
        Self { wasi, program: Program::new(), outside }
    }

    /// The path on the host.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.outside.path().join("inside").join(path)
    }

    /// `path_open` without following a link at the end.
    pub(crate) fn open(&self, path: &str, oflags: u32, rights: u64, fdflags: u32) -> Outcome<u32> {
        self.open_at(Self::ROOT, 0, path, oflags, rights, fdflags)
    }

    pub(crate) fn open_at(
        &self,
        fd: u32,
        lookup: u32,
        path: &str,
        oflags: u32,
        rights: u64,
        fdflags: u32,
    ) -> Outcome<u32> {
        let path = self.program.put(1000, path);
        let memory = self.program.memory();
        self.wasi.path_open(&memory, fd, lookup, path.0, path.1, oflags, rights, 0, fdflags, 2000)?;
        Ok(self.program.u32(2000))
    }
}
