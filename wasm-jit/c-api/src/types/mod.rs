//! Types of values and of what modules import and export.
//!
//! A type that comes from a module keeps all that it was declared with, also what `wasm.h` has no
//! words for, such as memories of 64 bits: a function, memory or table that C code creates with
//! such a type can be imported where the module wants it.

mod externtype;
mod names;
mod valtype;

pub(crate) use externtype::{ExternType, kind as extern_kind};
pub(crate) use names::{ExportType, ImportType};
pub(crate) use valtype::{ValType, kind};
