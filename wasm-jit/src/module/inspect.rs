//! What a compiled module consists of.

use std::io::{self, Write};

use super::Module;
use crate::code::gdb::{self, GdbRegistration};
use crate::code::perf;
use crate::objdump;

impl Module {
    /// How many functions it has, besides those that it imports.
    pub fn defined_functions(&self) -> usize {
        self.code().indices().len()
    }

    /// How many bytes of machine code its functions have.
    pub fn code_size(&self) -> usize {
        self.code().code_length()
    }

    /// Writes the functions for which `wanted` says so, by index and name, as WebAssembly with the machine code of each instruction.
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

    /// Writes where each function's code is, as `perf` reads it from `/tmp/perf-PID.map`. The maps of several modules go there
    /// one after the other.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_perf_map(&self, out: &mut dyn Write) -> io::Result<()> {
        perf::write_map(self.code(), out)
    }

    /// Tells gdb the names of the functions, by its JIT interface. Costs some 60 bytes for each of them.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
