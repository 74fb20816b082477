//! What a compiled module consists of.

use std::io::{self, Write};

use super::Module;
use crate::code::gdb::{self, GdbRegistration};
use crate::code::perf;
use crate::objdump;

impl Module {
    /// How many bytes of machine code its functions have.
    pub fn code_size(&self) -> usize {
        self.code().code_length()
    }

    /// Writes functions as text: each instruction of WebAssembly, and beneath it the machine code
    /// that it became. `wanted` gets a function's index and its name in the name section.
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

    /// Writes where the functions' code is, in the format of `/tmp/perf-PID.map`, by which perf
    /// names them.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_perf_map(&self, out: &mut dyn Write) -> io::Result<()> {
        perf::write_map(self.code(), out)
    }

    /// Tells gdb the names of the functions, by its JIT interface. Costs some 60 bytes for each of
    /// them.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
