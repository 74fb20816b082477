//! Names of generated code, as perf and gdb get them: `MODULE!FUNCTION` for a function's original
//! code and trampolines, `MODULE!FUNCTION [probed]` for a version with sites,
//! `MODULE!FUNCTION [stub]` for the stubs of its sites, and `MODULE!entries [stub]` for those to
//! which the entries of functions lead that are changed when they are first entered.

use std::collections::HashMap;
use std::ops::Range;

use super::sections::{Sections, demangle};
use super::{CodeImage, Function};

/// A name for a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub name: String,
    pub range: Range<usize>,
    /// The address from which the code has the frame of a function: `rbp` points to that of the
    /// caller.
    pub frame: Option<usize>,
}

/// The names of a module and its functions.
#[derive(Debug)]
pub(super) struct Names {
    module: String,
    functions: HashMap<u32, String>,
}

impl Names {
    pub(super) fn of(image: &CodeImage) -> Self {
        let sections = Sections::of(&image.bytes);
        Self {
            module: sections.module_name.unwrap_or("wasm").to_owned(),
            functions: sections.function_names.into_iter().map(|(at, name)| (at, name.to_owned())).collect(),
        }
    }

    pub(super) fn of_code(&self, what: impl std::fmt::Display) -> String {
        format!("{}!{what}", self.module)
    }

    fn function(&self, index: u32) -> String {
        match self.functions.get(&index) {
            Some(name) => self.of_code(demangle(name)),
            None => self.of_code(format_args!("function[{index}]")),
        }
    }

    /// The originals of the module's functions, in ascending order, if they were compiled together.
    pub(super) fn originals(&self, image: &CodeImage) -> impl Iterator<Item = Symbol> {
        let indices = if image.lazy().is_some() { 0..0 } else { image.indices() };
        indices.map(|index| {
            let function = image.function(index);
            let at = |offset| image.at(offset) as usize;
            Symbol {
                name: self.function(index),
                range: at(function.entry)..at(function.end),
                frame: Some(at(function.body)),
            }
        })
    }

    /// The symbol for the code of a version, if it has code of its own.
    pub(super) fn version(&self, version: &VersionCode) -> Option<Symbol> {
        let name = self.of_version(version);
        let name = if version.is_original { name } else { format!("{name} [probed]") };
        version.code.clone().map(|range| Symbol { name, range, frame: Some(version.body) })
    }

    /// The symbol for the stubs of a version, if it has some.
    pub(super) fn stubs(&self, version: &VersionCode) -> Option<Symbol> {
        let name = format!("{} [stub]", self.of_version(version));
        let symbol = Symbol { name, range: version.stubs.clone(), frame: Some(version.stubs_frame) };
        (!version.stubs.is_empty()).then_some(symbol)
    }

    fn of_version(&self, version: &VersionCode) -> String {
        version.function.map_or_else(|| self.of_code("entries"), |function| self.function(function))
    }
}

/// The location of a version of a function that was made after its image, or of the stubs of
/// entries.
#[derive(Clone, Debug)]
pub(super) struct VersionCode {
    /// The function; `None` for the stubs of entries.
    pub function: Option<u32>,
    /// Whether this is the code that was compiled when the function was first called.
    pub is_original: bool,
    /// The code; `None` for the stubs of an original, which has a name already, for the stub of a
    /// list, and for the stubs of entries.
    pub code: Option<Range<usize>>,
    pub body: usize,
    pub stubs: Range<usize>,
    /// The address from which the stubs have a frame.
    pub stubs_frame: usize,
}

impl VersionCode {
    /// A function that was compiled when it was first called.
    pub(super) fn of_lazy(image: &CodeImage, index: u32, function: &Function) -> Self {
        let [entry, body, end] =
            [function.entry, function.body, function.end].map(|offset| image.at(offset) as usize);
        let (function, stubs, stubs_frame) = (Some(index), end..end, end);
        Self { function, is_original: true, code: Some(entry..end), body, stubs, stubs_frame }
    }

    /// Stubs, which have a frame from this address on; those of entries, if there is no function.
    pub(super) fn of_stubs(function: Option<u32>, stubs: Range<usize>, stubs_frame: usize) -> Self {
        let (code, body) = (None, stubs.start);
        Self { function, is_original: false, code, body, stubs, stubs_frame }
    }
}
