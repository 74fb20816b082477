//! The program as a separate module, which a host in another module or language replays.
//!
//! Everything that the host calls and changes must be exported, so exports are added to the
//! program, named by kind and index: `replay.func.3`, `replay.memory.0`, `replay.table.0`,
//! `replay.global.5`, `replay.tag.0`; and functions that empty segments, which no host can do:
//! `replay.data.1` and `replay.elements.0`. Its imports are renamed to their numbers, in a module
//! `imports`, so that one host can provide them all, including several of the same name. The code
//! is copied byte by byte. The exports `_start` and `_initialize` are removed: an engine that loads
//! the program as a part of the replay would call the latter, and would take a module with the
//! former for a command, whose memories cannot be imported.

use std::borrow::Cow;
use std::collections::BTreeSet;

use wasm_encoder::{
    CodeSection, CustomSection, DataCountSection, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, ImportSection,
};
use wasm_jit::wasmparser as wp;

use super::initializers;
use super::module::{self, CALLED, export_kind, put};
use super::program::{CODE, DATA, Items, Program};
use super::script::Script;
use crate::error::{Error, not_generated};
use crate::event::Event;
use crate::value::Value;

/// The name of the module from which the program imports everything.
pub(super) const IMPORTS: &str = "imports";

/// The prefix of the added exports.
const PREFIX: &str = "replay.";

/// The name of an added export, from its kind and index.
pub(super) fn name(what: &str, index: u32) -> String {
    format!("{PREFIX}{what}.{index}")
}

/// The parts of the program that a host needs.
#[derive(Debug, Default)]
pub(super) struct Used {
    pub(super) functions: BTreeSet<u32>,
    /// Data segments that become empty.
    pub(super) data: BTreeSet<u32>,
    pub(super) elements: BTreeSet<u32>,
}

impl Used {
    pub(super) fn add(&mut self, event: &Event, program: &Program) {
        match event {
            Event::Enter { function, .. } => _ = self.functions.insert(*function),
            Event::DropData { segment } => _ = self.data.insert(*segment),
            Event::DropElements { segment } => _ = self.elements.insert(*segment),
            _ => {}
        }
        for value in event.values() {
            if let Value::Func(Some(index)) = value
                && (*index as usize) < program.functions.len()
            {
                self.functions.insert(*index);
            }
        }
    }
}

/// The program with these exports. Its start function is removed: the host's call to it is an
/// event.
pub(super) fn program(program: &Program, script: &Script, used: &Used) -> Result<Vec<u8>, Error> {
    let mut sections = program.sections.clone();
    // Imported globals remain imports.
    initializers::resolve(&mut sections, &[], script.has_typed_nulls, script.snapshot.is_some())?;
    let imports = imports(&sections.remove(&2).unwrap_or_default())?;
    let mut take = |id: u8| sections.remove(&id).unwrap_or_default();

    let mut exports = ExportSection::new();
    for (name, kind, index) in &program.exports {
        if !name.starts_with(PREFIX) && !CALLED.contains(&name.as_str()) {
            exports.export(name, export_kind(*kind), *index);
        }
    }
    let mut add = |what: &str, kind, index: u32| {
        exports.export(&name(what, index), kind, index);
    };
    used.functions.iter().for_each(|index| add("func", ExportKind::Func, *index));
    (0..program.memories.len() as u32).for_each(|index| add("memory", ExportKind::Memory, index));
    (0..program.tables.len() as u32).for_each(|index| add("table", ExportKind::Table, index));
    (0..program.globals.len() as u32).for_each(|index| add("global", ExportKind::Global, index));
    (0..program.tags.len() as u32).for_each(|index| add("tag", ExportKind::Tag, index));
    let mut types = FunctionSection::new();
    let mut bodies = CodeSection::new();
    let mut add = |what: &str, segment: u32, body: Function| {
        let index = program.functions.len() as u32 + types.len();
        types.function(program.types.len() as u32);
        bodies.function(&body);
        exports.export(&name(what, segment), ExportKind::Func, index);
    };
    for segment in &used.data {
        let mut body = Function::new([]);
        body.instructions().data_drop(*segment).end();
        add("data", *segment, body);
    }
    for segment in &used.elements {
        let mut body = Function::new([]);
        body.instructions().elem_drop(*segment).end();
        add("elements", *segment, body);
    }
    let plain = module::types(&[(Vec::new(), Vec::new())]);

    let mut out = wasm_encoder::Module::new();
    put(&mut out, 1, &take(1).append(&Items::encoded(&plain)));
    put(&mut out, 2, &Items::encoded(&imports));
    put(&mut out, 3, &take(3).append(&Items::encoded(&types)));
    for id in [4, 5, 13, 6] {
        put(&mut out, id, &take(id));
    }
    put(&mut out, 7, &Items::encoded(&exports));
    put(&mut out, 9, &take(9));
    let data = take(DATA);
    if data.count > 0 {
        out.section(&DataCountSection { count: data.count });
    }
    put(&mut out, CODE, &take(CODE).append(&Items::encoded(&bodies)));
    put(&mut out, DATA, &data);
    if let Some(names) = &program.names {
        out.section(&CustomSection { name: "name".into(), data: Cow::Borrowed(names) });
    }
    Ok(out.finish())
}

/// The imports, renamed to their numbers.
fn imports(section: &Items) -> Result<ImportSection, Error> {
    let mut imports = ImportSection::new();
    if section.count == 0 {
        return Ok(imports);
    }
    let section = section.section();
    let reader = wp::ImportSectionReader::new(wp::BinaryReader::new(&section, 0))?;
    for (number, import) in reader.into_imports().enumerate() {
        let ty = EntityType::try_from(import?.ty);
        let ty = ty.map_err(|error| not_generated(format!("the type of an import: {error}")))?;
        imports.import(IMPORTS, &number.to_string(), ty);
    }
    Ok(imports)
}
