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
//! 2. Where a rule matches, the program's function calls the rule's function, or contains a copy of
//!    its code if that is short and simple (`copied`). Operands that it wants are moved to locals,
//!    and back. Functions whose end is observed get a block around their
//!    body, which `return` leaves (`body`). Rules of the modes `alt` and `block_alt` are called in
//!    place of an instruction or block. That is executed if they report that they have not acted;
//!    or a function of the program that they choose is called instead (`replace`, `alternatives`).
//!    The callees of indirect calls are looked up (`callees`).
//! 3. `whamm:report`, an exported function, calls the rules of the end and prints the report, once.
//!    It is called by `_start`, or another entry point, when the program has returned, and by the
//!    program before it calls `proc_exit` (`added`).
//!
//! Places, constants and the order of events are those of the same monitor in place, so that the
//! report is the same, byte for byte. Frame numbers are taken from a counter.
//!
//! # Differences
//! * There is no report if the program ends by a trap or an exception, or calls `proc_exit` through
//!   a table, unless the host calls `whamm:report`. Rules and variables are as in place until then.
//! * A rule's function that traps ends the program.
//! * WASI reads the printed bytes from the memory that the module exports. If that is the
//!   program's, it grows by a page when the report is printed; a program that exports no memory
//!   exports the monitor's.
//! * DWARF and other custom sections are dropped, except the name section.
//!
//! # Not supported
//! Scripts that use libraries, and programs that share memories with other threads.

mod added;
mod alternatives;
mod body;
mod callees;
mod copied;
mod merge;
mod replace;

use wasm_jit::{ExternType, Linker, Module, Store};
use wasmparser::{Validator, WasmFeatures};

use self::merge::Script;
use crate::lang::{self, ScriptError};
use crate::monitor_module::{MonitorError, MonitorModule};

/// The entry point of programs that run once (WASI commands).
const START: &str = "_start";

/// The reason why a script cannot be applied to a program by rewriting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// The script has problems, including constructs that cannot be rewritten.
    #[error("{0}")]
    Script(ScriptError),
    /// The rules cannot be matched with the program.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// The program uses a feature that is not supported.
    #[error("the program cannot be rewritten: {reason}")]
    Unsupported {
        /// The unsupported feature.
        reason: String,
    },
    /// A rule calls a function that the program does not have.
    #[error(
        "the program has no function for `{alternative}`: names are those of imports, of the name section, and of exports"
    )]
    Alternative {
        /// The alternative, as in the script.
        alternative: String,
    },
    /// A rule calls a function in place of something of another type.
    #[error(
        "`{alternative}` has the type {ty}, and what it replaces at `fid == {function} && pc == {offset}` has {expected}: \
         restrict the rule by a predicate or type bounds"
    )]
    Type {
        /// The alternative, as in the script.
        alternative: String,
        /// The type of the alternative.
        ty: String,
        /// The type of the replaced instruction or block.
        expected: String,
        /// The index of the function that contains the replaced instruction.
        function: u32,
        /// The offset of the replaced instruction in the function's body, in bytes.
        offset: u32,
    },
    /// The program does not export the function that should be its entry point.
    #[error("the program exports no function `{name}`: choose one that it exports")]
    Entry {
        /// The name of the entry point.
        name: String,
    },
    /// The program or the monitor is not a readable module: a defect of the engine or the compiler.
    #[error("the program cannot be read: {reason}")]
    Read {
        /// The reason why the module cannot be read.
        reason: String,
    },
    /// The rewritten program is not valid: a defect of the compiler.
    #[error(
        "the instrumented program would be invalid, which is a defect of wasm-jit; please report it: {reason}"
    )]
    Invalid {
        /// The reason why it is not valid.
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

/// Instruments a program: returns a module in the binary format that contains the program and the
/// script. `name` is the script's name, for messages.
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
    rewrite(name, source, program, None)
}

/// As [`instrument`], for a program with another entry point than `_start`: the report is made when
/// this exported function returns to the host for the first time.
///
/// # Errors
/// See [`RewriteError`]; [`RewriteError::Entry`] if the program does not export such a function.
pub fn instrument_entry(
    name: &str,
    source: &[u8],
    program: &Module,
    entry: &str,
) -> Result<Vec<u8>, RewriteError> {
    match program.get_export(entry) {
        Some(ExternType::Func(_)) => rewrite(name, source, program, Some(entry)),
        _ => Err(RewriteError::Entry { name: entry.to_owned() }),
    }
}

/// Whether the report of a program is made at its end: whether it exports `_start`.
pub fn has_start(program: &Module) -> bool {
    matches!(program.get_export(START), Some(ExternType::Func(_)))
}

fn rewrite(
    name: &str,
    source: &[u8],
    program: &Module,
    entry: Option<&str>,
) -> Result<Vec<u8>, RewriteError> {
    refuse_libraries(name, source).map_err(RewriteError::Script)?;
    let (monitor, alternatives) = lang::compile_into_program(name, source).map_err(RewriteError::Script)?;
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
    let script = Script { monitor: &monitor, rules: &rules, matched: &matched, alternatives };
    let rewritten = merge::merge(program, script, entry.unwrap_or(START), &mut store)?;
    let valid = Validator::new_with_features(WasmFeatures::all()).validate_all(&rewritten);
    valid.map_err(|error| RewriteError::Invalid { reason: error.to_string() })?;
    Ok(rewritten)
}

fn refuse_libraries(name: &str, source: &[u8]) -> Result<(), ScriptError> {
    let message = "an instrumented program cannot have the functions of a library";
    lang::refuse_libraries(name, source, message, "run the script in place: `wasm-jit run --monitors`")
}
