//! What can go wrong.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use wasm_jit_codegen::Limit;

use crate::code::CompileError;
use crate::code::sections::{printable, printable_lines};
use crate::runtime::ExnRef;
use crate::trap::{Trap, WasmBacktrace};
use crate::types::{ExternType, FuncType, ValType};

/// The type of something, expected and found.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch<T> {
    /// What was asked for.
    pub expected: T,
    /// What there is.
    pub found: T,
}

/// Any failure of this library, or of a program that it runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The processor lacks instructions that compiled code is made of.
    #[error("this processor lacks {missing}: compiled code needs x86-64-v3")]
    Processor {
        /// Names of the missing extensions.
        missing: String,
    },
    /// The signal that was chosen cannot interrupt programs.
    #[error("signal {signal} cannot be used for interrupts")]
    InterruptSignal {
        /// Its number.
        signal: i32,
    },
    /// The module uses a feature of WebAssembly that this engine does not have.
    #[error("unsupported: {} (at offset {offset:#x})", printable_lines(message))]
    Unsupported {
        /// Says which feature.
        message: String,
        /// Where in the module.
        offset: u64,
    },
    /// The module is malformed or invalid.
    #[error("invalid module: {} (at offset {offset:#x})", printable_lines(message))]
    Invalid {
        /// What is wrong.
        message: String,
        /// Where in the module.
        offset: u64,
    },
    /// The text of a module is wrong.
    #[error("{}", printable_lines(message))]
    Text {
        /// What is wrong, and where.
        message: String,
    },
    /// The module is valid, but beyond a limit of the compiler.
    #[error("function {function} cannot be compiled: {reason}")]
    Limit {
        /// Index of the function.
        function: u32,
        /// Which limit.
        reason: &'static str,
    },
    /// The module is valid, but has more machine code than calls can reach over.
    #[error("the module has more than 2 GiB of machine code")]
    TooMuchCode,
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refuses memory.
    #[error("no memory for {purpose}: {source}")]
    Memory {
        /// What it was wanted for.
        purpose: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The limits that were set for the store refuse it.
    #[error("the store's limit of {what} is reached")]
    StoreLimit {
        /// What there would be too much of.
        what: &'static str,
    },
    /// Nothing is defined by the name of an import.
    #[error("unknown import: `{}` `{}`", printable(module), printable(name))]
    UnknownImport {
        /// The first name.
        module: String,
        /// The second name.
        name: String,
    },
    /// An import is defined, and has another type.
    #[error(
        "incompatible import type for `{}` `{}`: expected {}, found {}",
        printable(module), printable(name), types.expected, types.found
    )]
    IncompatibleImport {
        /// The first name.
        module: String,
        /// The second name.
        name: String,
        /// The type of the import, and of what is defined.
        types: Box<Mismatch<ExternType>>,
    },
    /// The number of values given for imports is not the number of imports.
    #[error("expected {expected} imports, found {found}")]
    ImportCount {
        /// How many the module has.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A linker has this name already.
    #[error("`{}` `{}` is defined already", printable(module), printable(name))]
    DuplicateDefinition {
        /// The first name.
        module: String,
        /// The second name.
        name: String,
    },
    /// The instance exports nothing of this name and kind.
    #[error("no {kind} is exported by the name `{}`", printable(name))]
    UnknownExport {
        /// What was asked for: a function, a memory.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A function has another type than it is used by.
    #[error("function type mismatch: expected {}, found {}", .0.expected, .0.found)]
    FuncType(Box<Mismatch<FuncType>>),
    /// A function was given too many arguments, or too few; or room for too many results, or too
    /// few.
    #[error("expected {expected} {what}, found {found}")]
    ValueCount {
        /// Arguments, or results.
        what: &'static str,
        /// How many the function has.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A value has the wrong type.
    #[error("expected a value of type {}, found {}", .0.expected, .0.found)]
    ValueType(Mismatch<ValType>),
    /// A value or definition belongs to another store.
    #[error("a {what} belongs to another store")]
    WrongStore {
        /// What it is.
        what: &'static str,
    },
    /// A global that is constant was assigned.
    #[error("the global is constant")]
    ConstantGlobal,
    /// An access by the host beyond the end of a memory or a table.
    #[error("{length} at {offset} is out of the bounds of a {of} of size {size}")]
    OutOfBounds {
        /// A memory (in bytes), or a table (in elements).
        of: &'static str,
        /// Where the access begins.
        offset: u64,
        /// Its length.
        length: u64,
        /// The size of the memory or table.
        size: u64,
    },
    /// A memory or table cannot grow by so much.
    #[error("a {of} of size {size} cannot grow by {by}")]
    Grow {
        /// A memory (in pages), or a table (in elements).
        of: &'static str,
        /// Its size.
        size: u64,
        /// By how much it should have grown.
        by: u64,
    },
    /// A type contradicts itself, or is beyond the limits of WebAssembly.
    #[error("the type of the {of} is invalid")]
    InvalidType {
        /// A function, a memory, a table or a tag.
        of: &'static str,
    },
    /// Machine code cannot be put in its place.
    #[error(transparent)]
    Code(wordpatch::Error),
    /// The program trapped.
    #[error("{trap}{}", after_trap(backtrace))]
    Trap {
        /// Why.
        trap: Trap,
        /// Where: empty when it was not in WebAssembly.
        backtrace: WasmBacktrace,
    },
    /// The program threw an exception and did not catch it. A host function that returns this
    /// throws it.
    #[error("uncaught exception")]
    Exception(ExnRef),
    /// A host function failed.
    #[error(transparent)]
    Host(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// A host function's own error, which comes out of the call of WebAssembly that led to it as it
    /// is.
    pub fn host(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Host(error.into())
    }

    /// A host function's error of type `E`, if it is one.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match self {
            Self::Host(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// The trap, if it is one.
    pub fn trap(&self) -> Option<Trap> {
        match self {
            Self::Trap { trap, .. } => Some(*trap),
            _ => None,
        }
    }

    /// The frames of the program at a trap.
    pub fn backtrace(&self) -> Option<&WasmBacktrace> {
        match self {
            Self::Trap { backtrace, .. } => Some(backtrace),
            _ => None,
        }
    }
}

/// A host function may trap like WebAssembly.
impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        Self::Trap { trap, backtrace: WasmBacktrace::default() }
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
            CompileError::NoAddresses => {
                Self::Memory { purpose: "machine code", source: io::ErrorKind::OutOfMemory.into() }
            }
            CompileError::Memory(error) => Self::Code(error),
        }
    }
}

fn after_trap(backtrace: &WasmBacktrace) -> String {
    if backtrace.is_empty() { String::new() } else { format!("\n{backtrace}") }
}
