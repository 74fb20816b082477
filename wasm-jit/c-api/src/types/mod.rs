//! Types of values and of what modules import and export.
//!
//! A type that comes from a module keeps everything it was declared with, including what `wasm.h`
//! cannot express, such as 64-bit memories: a function, memory or table that C code creates with
//! such a type can be imported where the module expects it.

mod externtype;
mod names;
mod valtype;

pub(crate) use externtype::{ExternType, kind as extern_kind};
pub(crate) use names::{ExportType, ImportType};
pub(crate) use valtype::{ValType, kind};
