//! Scripts applied to programs by rewriting: an instrumented module that runs in any engine.
//!
//! The script is compiled to a monitor module that prints its report, and matched with the program
//! here, as for [observing it in place](crate::monitor_module). Then program and monitor become one
//! module:
//!
//! 1. Types, functions, globals and the memory of the monitor come after those of the program. The
//!    memory and the globals have the contents that they have after matching. If the program does
//!    not import `fd_write` of WASI, the import becomes its last imported function, and the numbers
//!    of its own functions grow by one (`merge`).
//! 2. Where a rule matches, the program's function calls the rule's function. Operands that it
//!    wants are moved to locals, and back. Functions whose end is observed get a block around their
//!    body, which `return` leaves (`body`). Rules of the modes `alt` and `block_alt` are called in
//!    place of an instruction or block, which is executed if they say that they have not acted.
//! 3. `whamm:report`, an exported function, calls the rules of the end and prints the report, once.
//!    `_start` calls it when the program has returned, and so does the program before it calls
//!    `proc_exit` (`added`).
//!
//! Places, constants and the order of events are those of the same monitor in place, so that the
//! report is the same, byte for byte. Numbers of frames are taken from a counter.
//!
//! # Differences
//! * There is no report if the program ends by a trap or an exception, or calls `proc_exit` through
//!   a table, unless the host calls `whamm:report`. Rules and variables are as in place until then.
//! * A rule's function that traps ends the program.
//! * WASI reads what is printed from the memory that the module exports. If that is the program's,
//!   it grows by a page when the report is printed; a program that has no exported memory exports
//!   the monitor's.
//! * DWARF and other custom sections are left out, but for names.
//!
//! # Not supported
//! Scripts that use libraries, and programs that share memories with other threads.

mod added;
mod body;
mod merge;
mod replace;

use wasm_jit::{Linker, Module, Store};

use crate::lang::{self, ScriptError};
use crate::monitor_module::{MonitorError, MonitorModule};

/// The reason why a script cannot be applied to a program by rewriting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// The problems of the script, also what cannot be rewritten.
    #[error("{0}")]
    Script(ScriptError),
    /// The rules cannot be matched.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// The program has something that is not supported.
    #[error("the program cannot be rewritten: {reason}")]
    Unsupported {
        /// The unsupported part.
        reason: String,
    },
    /// The program or the monitor is not a module that can be read: a defect of the engine or the
    /// compiler.
    #[error("the program cannot be read: {reason}")]
    Read {
        /// Why.
        reason: String,
    },
}

impl From<wasmparser::Error> for RewriteError {
    fn from(error: wasmparser::Error) -> Self {
        Self::Read { reason: error.to_string() }
    }
}

impl From<wasm_encoder::reencode::Error> for RewriteError {
    fn from(error: wasm_encoder::reencode::Error) -> Self {
        Self::Read { reason: error.to_string() }
    }
}

/// The program with the script in it, as a module in the binary format. `name` is the script's, for
/// messages.
///
/// # Errors
/// See [`RewriteError`].
///
/// # Example
/// ```
/// use wasm_jit::{Engine, Module};
/// use wasm_jit_whamm::rewrite;
///
/// let engine = Engine::default();
/// let program = Module::new(&engine, "(module (func (export \"_start\")))")?;
/// let script = b"report var n: u64; wasm:func:entry { n++; }";
/// let instrumented = rewrite::instrument("calls.mm", script, &program)?;
/// let instrumented = Module::from_binary(&engine, &instrumented)?;
/// assert!(instrumented.get_export("whamm:report").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn instrument(name: &str, source: &[u8], program: &Module) -> Result<Vec<u8>, RewriteError> {
    refuse_libraries(name, source).map_err(RewriteError::Script)?;
    let monitor = lang::compile_into_program(name, source).map_err(RewriteError::Script)?;
    let engine = program.engine();
    let read = |error: wasm_jit::Error| RewriteError::Read { reason: error.to_string() };
    let module = Module::from_binary(engine, &monitor).map_err(read)?;
    let loaded = MonitorModule::into_program(module)?.always_call();
    let mut linker: Linker<()> = Linker::new(engine);
    // Nothing is printed before the end.
    linker.func_wrap(merge::WASI, merge::WRITE, |_: i32, _: i32, _: i32, _: i32| 8_i32).map_err(read)?;
    let mut store = Store::new(engine, ());
    let matched = loaded.matched(&mut store, &mut linker, program)?;
    let rules: Vec<_> = loaded.names().into_iter().zip(loaded.replacements()).collect();
    merge::merge(program, &monitor, &rules, &matched, &mut store)
}

fn refuse_libraries(name: &str, source: &[u8]) -> Result<(), ScriptError> {
    let message = "an instrumented program cannot have the functions of a library";
    lang::refuse_libraries(name, source, message, "run the script in place: `wasm-jit run --monitors`")
}
