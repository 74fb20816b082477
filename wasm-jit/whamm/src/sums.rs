//! Rules of compiled scripts that only add to numbers which nothing else uses while the program
//! runs.
//!
//! The engine [counts](crate::monitor_module) for rules that add constants, and adds the counts to
//! the monitor's memory later. It does so only if no function that is called meanwhile can access
//! the memory. All rules of a script have one memory, but the compiler knows which variables each
//! of them uses. A custom section lists the exports of the rules for which the engine may count
//! whatever else is called:
//!
//! ```text
//! section = count { NAME:name }
//! ```
//!
//! A wrong list makes the monitor's own numbers wrong, and nothing else.

use std::collections::HashSet;

use wasm_encoder::{CustomSection, Encode};
use wasm_jit::wasmparser::{BinaryReader, BinaryReaderError};

/// The name of the section.
pub(crate) const SECTION: &str = "wasm-jit.sums";

/// The section that lists exports.
pub(crate) fn section<'a>(exports: impl ExactSizeIterator<Item = &'a str>) -> CustomSection<'static> {
    let mut data = Vec::new();
    exports.len().encode(&mut data);
    exports.for_each(|name| name.encode(&mut data));
    CustomSection { name: SECTION.into(), data: data.into() }
}

/// The exports that a section lists.
pub(crate) fn read(mut reader: BinaryReader<'_>) -> Result<HashSet<String>, BinaryReaderError> {
    let count = reader.read_var_u32()?;
    (0..count).map(|_| reader.read_string().map(str::to_owned)).collect()
}
