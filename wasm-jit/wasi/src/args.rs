//! `args_*` and `environ_*`: lists of NUL-terminated strings.

use super::context::WasiCtx;
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;

/// Writes the number of strings, and their total size in bytes.
fn sizes(memory: &GuestMemory<'_>, strings: &[Vec<u8>], count: u32, bytes: u32) -> Outcome {
    let length: usize = strings.iter().map(|string| string.len() + 1).sum();
    memory.write_u32(count, strings.len().try_into().map_err(|_| Errno::Overflow)?)?;
    memory.write_u32(bytes, length.try_into().map_err(|_| Errno::Overflow)?)
}

/// Writes the strings to `buffer`, one after the other, and their addresses to `pointers`.
fn list(memory: &GuestMemory<'_>, strings: &[Vec<u8>], mut pointers: u32, mut buffer: u32) -> Outcome {
    for string in strings {
        memory.write_u32(pointers, buffer)?;
        memory.write_bytes(buffer, string)?;
        let end = buffer.checked_add(string.len() as u32).ok_or(Errno::Overflow)?;
        memory.write_bytes(end, &[0])?;
        pointers = pointers.checked_add(4).ok_or(Errno::Overflow)?;
        buffer = end.checked_add(1).ok_or(Errno::Overflow)?;
    }
    Ok(())
}

impl WasiCtx {
    pub(crate) fn args_sizes_get(&self, memory: &GuestMemory<'_>, count: u32, bytes: u32) -> Outcome {
        sizes(memory, self.args(), count, bytes)
    }

    pub(crate) fn args_get(&self, memory: &GuestMemory<'_>, pointers: u32, buffer: u32) -> Outcome {
        list(memory, self.args(), pointers, buffer)
    }

    pub(crate) fn environ_sizes_get(&self, memory: &GuestMemory<'_>, count: u32, bytes: u32) -> Outcome {
        sizes(memory, self.env(), count, bytes)
    }

    pub(crate) fn environ_get(&self, memory: &GuestMemory<'_>, pointers: u32, buffer: u32) -> Outcome {
        list(memory, self.env(), pointers, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WasiCtxBuilder;
    use super::super::errno::Failure;
    use super::super::testing::Program;

    #[test]
    fn arguments_and_environment_are_listed() {
        let wasi = WasiCtxBuilder::new().arg("a.wasm").args(["-x", ""]).env("K", "v=1").build();
        let program = Program::new();
        let memory = program.memory();
        wasi.args_sizes_get(&memory, 0, 4).unwrap();
        assert_eq!((program.u32(0), program.u32(4)), (3, 11));
        wasi.args_get(&memory, 8, 100).unwrap();
        assert_eq!([program.u32(8), program.u32(12), program.u32(16)], [100, 107, 110]);
        assert_eq!(program.bytes(100, 12), b"a.wasm\0-x\0\0\0");
        wasi.environ_sizes_get(&memory, 0, 4).unwrap();
        assert_eq!((program.u32(0), program.u32(4)), (1, 6));
        wasi.environ_get(&memory, 8, 200).unwrap();
        assert_eq!(program.bytes(program.u32(8), 6), b"K=v=1\0");
    }

    #[test]
    fn a_list_beyond_the_memory_traps() {
        let wasi = WasiCtxBuilder::new().arg("long enough").build();
        let program = Program::new();
        let outcome = wasi.args_get(&program.memory(), 0, Program::SIZE - 5);
        assert!(matches!(outcome, Err(Failure::OutOfBounds { .. })), "{outcome:?}");
        let outcome = wasi.args_get(&program.memory(), u32::MAX - 3, 0);
        assert!(matches!(outcome, Err(Failure::OutOfBounds { .. })), "{outcome:?}");
    }
}
