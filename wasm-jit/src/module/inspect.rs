//! Inspection of compiled modules: sizes, listings, and symbols for perf and gdb.

use std::cell::RefCell;
use std::io::{self, Write};

use super::Module;
use crate::code::gdb::{self, GdbRegistration};
use crate::code::perf;
use crate::objdump;

impl Module {
    /// Size of the machine code of all functions that [have been
    /// compiled](crate::FunctionBody::is_compiled), in bytes.
    pub fn code_size(&self) -> usize {
        self.code().code_length()
    }

    /// Writes functions as text: each WebAssembly instruction, followed by its machine code.
    /// `wanted` selects functions: it gets a function's index and its name in the name section.
    ///
    /// # Errors
    /// Any error that `out` returns.
    pub fn write_objdump(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        objdump::write(self.code(), objdump::Code::Original, wanted, out)
    }

    /// As [`Module::write_objdump`], with a figure before each instruction and its machine code,
    /// such as how often it was executed. `figure` gets a function's index, and an offset from the
    /// start of its body. Machine code that does the work of several instructions is listed with
    /// the last one.
    ///
    /// # Errors
    /// Any error that `out` returns.
    pub fn write_objdump_with_figures(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        figure: impl Fn(u32, u32) -> Option<u64>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        // The most recently requested body: its function, and the offsets of its instructions.
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
    /// are listed as the latest version of their code: offsets are from its start, and each site is
    /// marked and followed by its stub. A site is a NOP, or a jump to its stub if a probe there is
    /// on. If probes there that call functions are on, the stub that calls them is listed too.
    ///
    /// # Errors
    /// Any error that `out` returns.
    pub fn write_objdump_with_sites(
        &self,
        wanted: impl Fn(u32, Option<&str>) -> bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        objdump::write(self.code(), objdump::Code::LastVersion, wanted, out)
    }

    /// Writes the addresses of the functions' code in the format of `/tmp/perf-PID.map`, from which
    /// perf takes their names. The versions of probed functions made so far are `NAME [probed]`,
    /// and the code at their sites is `NAME [stub]`. Write the map again when more probes have been
    /// made, or probes that call functions have been activated: perf reads it only when it reports.
    /// It ignores the map for code that is executed in a file: see
    /// [`Config::map_stored_code`](crate::Config::map_stored_code).
    ///
    /// # Errors
    /// Any error that `out` returns.
    pub fn write_perf_map(&self, out: &mut dyn Write) -> io::Result<()> {
        perf::write_map(self.code(), out)
    }

    /// Registers the functions with gdb's JIT interface, at a cost of about 90 bytes each. The
    /// versions of probed functions are registered when they are made, as `NAME [probed]` and
    /// `NAME [stub]`, at a cost of about 900 bytes each; the same holds for each stub that is
    /// generated for probes that call functions. All registrations end when the returned value is
    /// dropped.
    pub fn show_to_gdb(&self) -> GdbRegistration {
        gdb::register(self.code().clone())
    }
}
