//! DWARF in a module: lines of instructions, and variables.
//!
//! In WebAssembly, DWARF's code addresses are offsets from the start of the code section's
//! contents. Here, all offsets are in the module. Data that cannot be read is treated as absent.

pub(crate) mod entries;
pub(crate) mod index;
pub(crate) mod inlined;
mod lines;
pub(crate) mod objects;
pub(crate) mod types;
pub(crate) mod variables;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use gimli::{EndianArcSlice, LittleEndian};
use wasm_jit::Module;
use wasm_jit::wasmparser::{Parser, Payload};

use entries::Parsed;
use index::Index;
use lines::Lines;

pub(crate) type Reader = EndianArcSlice<LittleEndian>;
pub(crate) type Units = gimli::Dwarf<Reader>;

/// The DWARF of a module.
#[derive(Debug)]
pub(crate) struct Dwarf {
    pub(crate) units: Units,
    /// The offset in the module of the code section's contents, and their size.
    pub(crate) code_start: u64,
    code_size: u64,
    lines: Lines,
    pub(crate) parsed: Parsed,
    index: OnceLock<Index>,
}

impl Dwarf {
    /// Reads the DWARF of a module; `None` if it has none.
    pub(crate) fn of(module: &[u8]) -> Option<Self> {
        let mut code = None;
        let mut sections: HashMap<String, Arc<[u8]>> = HashMap::new();
        for payload in Parser::new(0).parse_all(module).flatten() {
            match payload {
                Payload::CodeSectionStart { unchecked_range: range, .. } => code = Some(range),
                Payload::CustomSection(section) if section.name().starts_with(".debug_") => {
                    sections.insert(section.name().to_owned(), section.data().into());
                }
                _ => {}
            }
        }
        if !sections.contains_key(".debug_info") {
            return None;
        }
        let load = |id: gimli::SectionId| {
            let data = sections.get(id.name()).cloned().unwrap_or_default();
            Ok::<_, gimli::Error>(EndianArcSlice::new(data, LittleEndian))
        };
        let units = Units::load(load).ok()?;
        let code = code?;
        let lines = Lines::of(&units, code.start, code.end - code.start);
        let parsed = Parsed::of(&units);
        let (code_start, code_size) = (code.start, code.end - code.start);
        Some(Self { units, code_start, code_size, lines, parsed, index: OnceLock::new() })
    }

    /// The functions, static variables and types by their names: read when first requested.
    pub(crate) fn index(&self) -> &Index {
        self.index.get_or_init(|| self.make_index())
    }

    /// The file and line of an instruction.
    pub(crate) fn line(&self, offset: u64) -> Option<(String, u32)> {
        let row = self.lines.row(offset)?;
        (row.line != 0).then(|| (self.lines.files[row.file].clone(), row.line))
    }

    /// The offsets at which statements of a line begin. A file is found by the last components of
    /// its path. For a line without code, the offsets of the next line with code.
    pub(crate) fn offsets(&self, file: &str, line: u32) -> Vec<u64> {
        self.lines.offsets(file, line)
    }

    /// Whether there are lines of a file with this name.
    pub(crate) fn has_file(&self, file: &str) -> bool {
        self.lines.has_file(file)
    }

    /// The names of the files, without directories.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.lines.files.iter().filter_map(|path| path.rsplit('/').next())
    }

    /// Whether a statement of a line begins at an instruction.
    pub(crate) fn is_statement(&self, offset: u64) -> bool {
        self.lines.row(offset).is_some_and(|row| row.start == offset && row.is_statement && row.line != 0)
    }

    /// The offset of the end of a function's prologue.
    pub(crate) fn after_prologue(&self, module: &Module, function: u32) -> Option<u64> {
        let body = module.function(function)?.body()?.range();
        let first = body.start as u64..body.end as u64;
        self.lines.after_prologue(first)
    }
}
