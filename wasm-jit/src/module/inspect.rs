//! Inspection of compiled modules.

use std::io::{self, Write};

use super::Module;
use crate::code::gdb::{self, GdbRegistration};
use crate::code::perf;
use crate::objdump;

impl Module {
    /// Size of the machine code of its functions, in bytes.
    pub fn code_size(&self) -> usize {
        self.code().code_length()
    }

    /// Writes functions as text: each instruction of WebAssembly, followed by its machine code.
    /// `wanted` gets a function's index and its name in the name section.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_objdump(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        objdump::write(self.code(), wanted, out)
    }

    /// Writes the addresses of the functions' code, in the format of `/tmp/perf-PID.map`, from
    /// which perf takes their names.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_perf_map(&self, out: &mut dyn Write) -> io::Result<()> {
        perf::write_map(self.code(), out)
    }

    /// Registers the functions with gdb's JIT interface. Costs some 60 bytes for each of them.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
