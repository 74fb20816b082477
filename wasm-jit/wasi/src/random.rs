//! `random_get`.

use std::io;

use super::context::WasiCtx;
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;

/// Maximum number of bytes of one call, as in Wasmtime: this many take a fraction of a second,
/// during which the program cannot be interrupted.
const MAX_RANDOM_BYTES: usize = 64 << 20;

impl WasiCtx {
    pub(crate) fn random_get(&self, memory: &GuestMemory<'_>, address: u32, length: u32) -> Outcome {
        let (to, length) = memory.buffer(address, length)?;
        if length > MAX_RANDOM_BYTES {
            return Err(Errno::Nomem.into());
        }
        let mut done = 0;
        while done < length {
            // SAFETY: `buffer` checked that the `length` bytes from `to` are inside the memory, and
            // `done` is less.
            let count = unsafe { libc::getrandom(to.add(done).cast(), length - done, 0) };
            match usize::try_from(count) {
                Ok(count) => done += count,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error.into());
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::WasiCtxBuilder;
    use super::super::errno::Failure;
    use super::super::memory::GuestMemory;
    use super::super::testing::{Program, check_errno};
    use super::*;

    #[test]
    fn random_bytes_fill_exactly_the_requested_range() {
        let wasi = WasiCtxBuilder::new().build();
        let program = Program::new();
        wasi.random_get(&program.memory(), 100, 1000).unwrap();
        let bytes = program.bytes(0, 1200);
        assert!(bytes[..100].iter().chain(&bytes[1100..]).all(|byte| *byte == 0));
        let distinct: std::collections::BTreeSet<u8> = bytes[100..1100].iter().copied().collect();
        assert!(distinct.len() > 200, "{} different bytes of 1000", distinct.len());
        wasi.random_get(&program.memory(), Program::SIZE, 0).unwrap();
        let outcome = wasi.random_get(&program.memory(), 16, u32::MAX);
        assert_eq!(outcome, Err(Failure::OutOfBounds { address: 16, length: u32::MAX.into() }));
    }

    #[test]
    fn a_call_for_gigabytes_is_refused() {
        let wasi = WasiCtxBuilder::new().build();
        let mut bytes = vec![0; MAX_RANDOM_BYTES + 1];
        // SAFETY: the vector outlives the memory, and is not accessed otherwise.
        let memory =
            unsafe { GuestMemory::new(bytes.as_mut_ptr(), bytes.len(), wasm_jit::WriteAnnouncer::ignored()) };
        check_errno(wasi.random_get(&memory, 0, bytes.len() as u32), Errno::Nomem);
        wasi.random_get(&memory, 1, MAX_RANDOM_BYTES as u32).unwrap();
    }
}
