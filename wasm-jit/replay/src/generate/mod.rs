//! [`generate`]: a program and a trace as one module (section 3.4 of the paper).
//!
//! 1. `program.rs`: the sections of the program.
//! 2. `script.rs`: the host's actions in the order of the trace, as lists: one for each call to an
//!    imported function, and one for the host itself.
//! 3. `functions.rs`: functions that execute them; `values.rs`: how they make and compare values;
//!    `exceptions.rs`: how they throw and catch.
//! 4. `module.rs`: the sections of the new module; `initializers.rs`: initializers that read
//!    imported globals.
//! 5. `exports.rs`: the program as a separate module; `separate.rs`: its host in other modules;
//!    `javascript/`: its host in JavaScript.
//!
//! Imported memories, globals and tags become the module's own, with the sizes and values in the
//! trace. The imported functions come first in the index space of functions. In the new module they
//! are replaced by as many functions of the same types, so that all indices of the program remain
//! valid and its code can be copied byte by byte. Additions come after the program's own types,
//! functions, tags, globals, elements and data.

mod exceptions;
mod exports;
mod functions;
mod initializers;
mod javascript;
mod module;
mod program;
mod script;
mod separate;
mod values;

use std::io::Read;

use super::error::Error;
use functions::{Functions, Indices};
pub use javascript::{JavaScript, javascript};
use program::Program;
use script::Script;
pub use separate::{Separate, separate};

/// The name of the exported global with the number of the first event that differs, after a replay
/// with checks has trapped; 0 (the start) if none differs. For a call that was not recorded, this
/// is the event that was recorded instead; without checks, it is the number of events. If the
/// program traps by itself where it did not when it was recorded, this remains 0, and [`NEXT`] is
/// the event that differs. If the trace ends while the program runs, because its process was
/// killed, what the program does afterwards is no difference: the replay traps at its next call to
/// the host, or when the program returns.
pub const DIFFERENCE: &str = "replay.difference";

/// The name of the exported global with the number of the last event that a replay with checks has
/// reached.
pub const POSITION: &str = "replay.position";

/// The name of the exported global with the number of the event that a replay with checks reaches
/// next, or the number of events if there is none; 0 in replays without checks.
pub const NEXT: &str = "replay.next";

/// The name of the exported constant with the value of [`POSITION`] after a complete replay: a
/// replay that equals the recording ends there, and [`DIFFERENCE`] is 0.
pub const LAST: &str = "replay.last";

/// The name of the exported constant that is 1 if the trace ends before the recorded run did,
/// because the recording, its process or the program was ended: then the replay traps at
/// [`LAST`]. Otherwise 0.
pub const INCOMPLETE: &str = "replay.incomplete";

/// The exported globals.
const REPORT: [&str; 5] = [DIFFERENCE, POSITION, NEXT, LAST, INCOMPLETE];

/// Generates a module that replays a trace of the binary module `program`. It has no imports, and
/// its `_start` repeats the calls by the host. The program's other exports remain, except
/// `_initialize`, which a command does not have. With `check`, all arguments and results of the
/// program are compared with the recorded ones, in their order; the first difference traps, and
/// [`DIFFERENCE`] names its event.
///
/// Where a host function failed (for example by ending the process), the replay traps. Where it
/// threw an exception, so does the replay, and `_start` catches what the host got. Takes memory for
/// the bytes that the host has written, for its calls (less than 500 bytes for one with a few
/// values) and for the module. Replays of exceptions between program and host need an engine with
/// `try_table`, and so do replays with checks of programs that use it themselves. References to
/// host values become references to small integers (`i31ref`), so these replays need an engine with
/// garbage collection; so do those in which the host passes nulls as types such as `(ref null $t)`.
///
/// # Errors
/// [`Error::Damaged`], [`Error::OtherModule`], [`Error::Mismatch`], [`Error::Module`],
/// [`Error::NotGenerated`] for a program that only this engine can replay, such as one that uses
/// `any.convert_extern` and gets references to host values.
pub fn generate(program: &[u8], trace: impl Read, check: bool) -> Result<Vec<u8>, Error> {
    let original = Program::parse(program)?;
    let mut script = Script::read(program, &original, trace, |_| Ok(()))?;
    script.check_host_values(program)?;
    let indices = Indices::inside(&original, &script);
    let calls = std::mem::take(&mut script.calls);
    module::assemble(&original, &script, Functions::of(&original, &script, calls, check, indices))
}
