//! Inspection of compiled modules.

use std::cell::RefCell;
use std::io::{self, Write};

use super::Module;
use crate::code::gdb::{self, GdbRegistration};
use crate::code::perf;
use crate::objdump;

impl Module {
    /// Size of the machine code of its functions, in bytes: of those that [have been
    /// compiled](crate::FunctionBody::is_compiled).
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
        objdump::write(self.code(), objdump::Code::Original, wanted, out)
    }

    /// As [`Module::write_objdump`], with a figure in front of each instruction and of its machine
    /// code, such as how often it was executed. `figure` gets a function's index, and an offset
    /// from the start of its body. Machine code that does the work of several instructions is that
    /// of the last one.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_objdump_with_figures(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        figure: impl Fn(u32, u32) -> Option<u64>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        // The body that was asked for last: its function, and the offsets of its instructions.
        let last: RefCell<(Option<u32>, Vec<u64>)> = RefCell::default();
        let of_offset = |offset: u64| {
            let index = self.code().function_with_body_at(u32::try_from(offset).ok()?)?;
            let (of, offsets) = &mut *last.borrow_mut();
            let body = self.function(index)?.body()?;
            if of.replace(index) != Some(index) {
                *offsets = body.instructions().map(|instruction| instruction.offset() as u64).collect();
            }
            // Declarations of locals have offsets, too.
            offsets.binary_search(&offset).ok()?;
            figure(index, (offset - body.range().start as u64) as u32)
        };
        objdump::write_with_figures(self.code(), wanted, &of_offset, out)
    }

    /// As [`Module::write_objdump`], but functions that [have probes](Module::probes), or had some,
    /// are listed as the version of their code that was made last: offsets are from its start, and
    /// each site is marked and followed by its stub. A site is a NOP, or a jump to its stub if a
    /// probe there is on. If probes that call functions are, the stub that calls them is listed
    /// too.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_objdump_with_sites(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        objdump::write(self.code(), objdump::Code::LastVersion, wanted, out)
    }

    /// Writes the addresses of the functions' code, in the format of `/tmp/perf-PID.map`, from
    /// which perf takes their names. The versions of probed functions that were made so far are
    /// `NAME [probed]`, and the code at their sites `NAME [stub]`; write the map again when more
    /// probes have been made, or such that call functions were activated, since perf reads it only
    /// for its reports.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_perf_map(&self, out: &mut dyn Write) -> io::Result<()> {
        perf::write_map(self.code(), out)
    }

    /// Registers the functions with gdb's JIT interface, at a cost of some 90 bytes for each of
    /// them. The versions of probed functions are registered when they are made, as `NAME [probed]`
    /// and `NAME [stub]`, at a cost of some 900 bytes each; so is each stub that is generated for
    /// probes that call functions. All of it ends with the result.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
