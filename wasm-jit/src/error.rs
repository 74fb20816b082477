//! [`Error`]: every failure of the library or of a program that it runs.

mod precompiled;

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use wasm_jit_codegen::Limit;

use crate::code::CompileError;
use crate::code::sections::{printable, printable_lines};
use crate::exn_ref::ExnRef;
use crate::trap::{Trap, WasmBacktrace};
use crate::types::{ExternType, FuncType, ValType};
pub use precompiled::PrecompiledError;

/// A type mismatch.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch<T> {
    /// The expected type.
    pub expected: T,
    /// The actual type.
    pub found: T,
}

/// The error with which a host function ends the program, as `proc_exit` of WASI does; the number
/// is its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program ended with exit code {0}")]
pub struct Exit(pub i32);

/// Any failure of this library, or of a program that it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor lacks instructions that compiled code uses.
    #[error("this processor lacks {missing}, which compiled code with these settings needs")]
    Processor {
        /// Names of the missing extensions.
        missing: String,
    },
    /// The selected signal cannot interrupt programs.
    #[error("signal {signal} cannot be used for interrupts")]
    InterruptSignal {
        /// The signal's number.
        signal: i32,
    },
    /// The module uses an unsupported feature of WebAssembly.
    #[error("unsupported: {} (at offset {offset:#x})", printable_lines(message))]
    Unsupported {
        /// A description that names the feature.
        message: String,
        /// The offset of the feature in the binary module, in bytes.
        offset: u64,
    },
    /// The module is malformed or invalid.
    #[error("invalid module: {} (at offset {offset:#x})", printable_lines(message))]
    Invalid {
        /// The problem.
        message: String,
        /// The offset of the problem in the binary module, in bytes.
        offset: u64,
    },
    /// The text format of a module is invalid.
    #[error("{}", printable_lines(message))]
    Text {
        /// The problem, and its position in the text.
        message: String,
    },
    /// The module is valid, but exceeds a limit of the compiler.
    #[error("function {function} cannot be compiled: {reason}")]
    Limit {
        /// The function's index, including imports.
        function: u32,
        /// The limit that is exceeded.
        reason: &'static str,
    },
    /// The module is valid, but has more machine code than a call can span (2 GiB).
    #[error("the module has more than 2 GiB of machine code")]
    TooMuchCode,
    /// The function was not compiled before the process forked, and the child has called it: see
    /// [`Config::lazy_compilation`](crate::Config::lazy_compilation).
    #[error("function {function} cannot be compiled in a forked child of the process that made the module")]
    Forked {
        /// The function's index, including imports.
        function: u32,
    },
    /// A precompiled module cannot be loaded.
    #[error(transparent)]
    Precompiled(#[from] PrecompiledError),
    /// The folder cannot be used for a [`Cache`](crate::Cache).
    #[error("the cache {folder} cannot be used: {source}", folder = folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The system refused to allocate memory.
    #[error("no memory for {purpose}: {source}{}", with_frames(backtrace))]
    Memory {
        /// The purpose of the memory.
        purpose: &'static str,
        /// The cause.
        source: io::Error,
        /// The frames of the program that was running; empty if none was.
        backtrace: WasmBacktrace,
    },
    /// A store has no fuel, because programs of its engine do not consume any.
    #[error("programs of this engine do not consume fuel: see Config::consume_fuel")]
    NoFuel,
    /// A limit set for the store would be exceeded.
    #[error("the store's limit of {what} is reached{}", with_frames(backtrace))]
    StoreLimit {
        /// The limited resource.
        what: &'static str,
        /// The frames of the program that was running; empty if none was.
        backtrace: WasmBacktrace,
    },
    /// The program trapped ([`Trap::UnknownFunction`]) when it called a function that it imports
    /// and that is not defined
    /// ([`Linker::define_unknown_imports_as_traps`](crate::Linker::define_unknown_imports_as_traps)).
    #[error(
        "wasm trap: the program called `{}` `{}`, which it imports and which is not defined{}",
        printable(module),
        printable(name),
        with_frames(backtrace)
    )]
    UnknownFunction {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// The frames of the program at the call.
        backtrace: WasmBacktrace,
    },
    /// An import is not defined.
    #[error("unknown import: `{}` `{}`", printable(module), printable(name))]
    UnknownImport {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
    },
    /// An import is defined with another type.
    #[error(
        "incompatible import type for `{}` `{}`: expected {}, found {}",
        printable(module), printable(name), types.expected, types.found
    )]
    IncompatibleImport {
        /// First name of the import.
        module: String,
        /// Second name of the import.
        name: String,
        /// The type that the import requires, and that of the definition.
        types: Box<Mismatch<ExternType>>,
    },
    /// The number of values supplied for imports is not the number of imports.
    #[error("expected {expected} imports, found {found}")]
    ImportCount {
        /// Number of imports of the module.
        expected: usize,
        /// Number of values supplied.
        found: usize,
    },
    /// The linker already has a definition of this name.
    #[error("`{}` `{}` is defined already", printable(module), printable(name))]
    DuplicateDefinition {
        /// First name of the definition.
        module: String,
        /// Second name of the definition.
        name: String,
    },
    /// The instance has no export of this name and kind.
    #[error("no {kind} is exported by the name `{}`", printable(name))]
    UnknownExport {
        /// The requested kind of item, such as a function or a memory.
        kind: &'static str,
        /// The requested name.
        name: String,
    },
    /// A function has another type than the one requested.
    #[error("function type mismatch: expected {}, found {}", .0.expected, .0.found)]
    FuncType(Box<Mismatch<FuncType>>),
    /// A call has the wrong number of arguments, or of slots for results.
    #[error("expected {expected} {what}, found {found}")]
    ValueCount {
        /// What there is a wrong number of: arguments or results.
        what: &'static str,
        /// The number that the function has.
        expected: usize,
        /// The number supplied.
        found: usize,
    },
    /// A value has the wrong type.
    #[error("expected a value of type {}, found {}", .0.expected, .0.found)]
    ValueType(Mismatch<ValType>),
    /// A value or definition belongs to another store.
    #[error("a {what} belongs to another store")]
    WrongStore {
        /// The kind of value or definition.
        what: &'static str,
    },
    /// A constant global was assigned.
    #[error("the global is constant")]
    ConstantGlobal,
    /// A constant field of a structure, or element of an array, was assigned.
    #[error("the field is constant")]
    ConstantField,
    /// An access by the host is beyond the end of a memory, a table, a structure or an array.
    #[error("{length} at {offset} is out of the bounds of a {of} of size {size}")]
    OutOfBounds {
        /// What is accessed: a memory (sizes are in bytes), a table or array (in elements), or a
        /// structure (in fields).
        of: &'static str,
        /// Start of the access, in the unit of `of`.
        offset: u64,
        /// Length of the access, in the unit of `of`.
        length: u64,
        /// Size of what is accessed, in the unit of `of`.
        size: u64,
    },
    /// A memory or table cannot grow by this amount.
    #[error("a {of} of size {size} cannot grow by {by}")]
    Grow {
        /// What cannot grow: a memory (sizes are in pages), or a table (in elements).
        of: &'static str,
        /// Current size, in the unit of `of`.
        size: u64,
        /// The requested growth, in the unit of `of`.
        by: u64,
    },
    /// A type is contradictory, exceeds the limits of WebAssembly, is unknown to the engine, or
    /// refers to a type that is, or that is of another kind.
    #[error("the type of the {of} is invalid")]
    InvalidType {
        /// What has the type: a function, a global, an object, a memory, a table or a tag.
        of: &'static str,
    },
    /// A table has more elements than this engine supports.
    #[error("a table of {elements} elements is not supported: the limit is {limit}")]
    TableTooLarge {
        /// The minimum size of the table.
        elements: u64,
        /// The largest size.
        limit: u64,
    },
    /// Machine code cannot be allocated or made executable.
    #[error(transparent)]
    Code(wordpatch::Error),
    /// The program trapped.
    #[error("{trap}{}", with_frames(backtrace))]
    Trap {
        /// The reason.
        trap: Trap,
        /// The frames of the program at the trap; empty if it was not in WebAssembly.
        backtrace: WasmBacktrace,
    },
    /// The program threw an exception that it did not catch. A host function that returns this
    /// error throws the exception.
    #[error("uncaught exception{}", with_frames(backtrace))]
    Exception {
        /// The exception.
        exception: ExnRef,
        /// The frames when the exception was thrown, or thrown again by `throw_ref`; empty if a
        /// host function made the exception and has not thrown it yet.
        backtrace: WasmBacktrace,
    },
    /// A host function failed.
    #[error(transparent)]
    Host(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// A host function's own error, which the calls to WebAssembly that led to it return unchanged.
    pub fn host(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Host(error.into())
    }

    /// The host function's error, if this is one and has type `E`.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Self::Host(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// The trap, if this error is one.
    pub fn trap(&self) -> Option<Trap> {
        match self {
            Self::Trap { trap, .. } => Some(*trap),
            Self::UnknownFunction { .. } => Some(Trap::UnknownFunction),
            _ => None,
        }
    }

    /// The error as text, without the frames of its [`backtrace`](Self::backtrace).
    pub fn reason(&self) -> String {
        let mut text = self.to_string();
        let frames = self.backtrace().map_or(0, |backtrace| with_frames(backtrace).len());
        text.truncate(text.len() - frames);
        text
    }

    /// The frames of the program at a trap, where an exception was thrown that it did not catch, or
    /// where it needed memory that the system or a limit of the store did not permit.
    pub fn backtrace(&self) -> Option<&WasmBacktrace> {
        match self {
            Self::Trap { backtrace, .. }
            | Self::UnknownFunction { backtrace, .. }
            | Self::Exception { backtrace, .. }
            | Self::StoreLimit { backtrace, .. }
            | Self::Memory { backtrace, .. } => Some(backtrace),
            _ => None,
        }
    }

    /// [`Error::Memory`], without frames.
    pub(crate) fn memory(purpose: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Memory { purpose, source: source.into(), backtrace: WasmBacktrace::default() }
    }

    /// [`Error::StoreLimit`], without frames.
    pub(crate) fn limit(what: &'static str) -> Self {
        Self::StoreLimit { what, backtrace: WasmBacktrace::default() }
    }
}

/// A host function can trap like WebAssembly code.
impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        Self::Trap { trap, backtrace: WasmBacktrace::default() }
    }
}

/// A host function can throw an exception.
impl From<ExnRef> for Error {
    fn from(exception: ExnRef) -> Self {
        Self::Exception { exception, backtrace: WasmBacktrace::default() }
    }
}

impl From<wasmparser::BinaryReaderError> for Error {
    fn from(error: wasmparser::BinaryReaderError) -> Self {
        let (message, offset) = (error.message().to_owned(), error.offset());
        match error.missing_wasm_feature() {
            Some(_) => Self::Unsupported { message, offset },
            None => Self::Invalid { message, offset },
        }
    }
}

impl From<CompileError> for Error {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Invalid(error) => error.into(),
            CompileError::Limit(Limit { function, reason }) => Self::Limit { function, reason },
            CompileError::TooMuchCode => Self::TooMuchCode,
            CompileError::NoAddresses => Self::memory("machine code", io::ErrorKind::OutOfMemory),
            CompileError::Memory(error) => Self::Code(error),
            CompileError::Forked { function } => Self::Forked { function },
        }
    }
}

fn with_frames(backtrace: &WasmBacktrace) -> String {
    if backtrace.is_empty() { String::new() } else { format!("\n{backtrace}") }
}
