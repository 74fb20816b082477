//! The sections of the new module.

use std::borrow::Cow;

use wasm_encoder::{
    ConstExpr, CustomSection, DataCountSection, ElementSection, Elements, Encode, ExportKind, ExportSection,
    FunctionSection, GlobalSection, GlobalType, InstructionSink, MemorySection, MemoryType, StartSection,
    TableSection, TableType, TagKind, TagSection, TagType, TypeSection, ValType,
};
use wasm_jit::wasmparser as wp;

use super::REPORT;
use super::functions::Functions;
use super::initializers;
use super::program::{CODE, DATA, Items, Joined, Program};
use super::script::{ImportedSize, Script};
use super::values::constant;
use crate::error::{Error, not_generated};

/// Functions that embedders call where they are exported: `_initialize` once, when they have loaded
/// the module; `_start` makes the module a command. In a replay, only the calls in the trace are
/// made.
pub(super) const CALLED: [&str; 2] = ["_start", "_initialize"];

/// The program with these functions and without imports.
pub(super) fn assemble(
    program: &Program,
    script: &Script,
    mut functions: Functions<'_>,
) -> Result<Vec<u8>, Error> {
    let mut sections = program.sections.clone();
    let is_cleared = script.snapshot.is_some();
    initializers::resolve(&mut sections, &script.globals, script.has_typed_nulls, is_cleared)?;
    let mut take = |id: u8| sections.remove(&id).unwrap_or_default();
    let (types, replaced) = (types(&functions.added_types), types_of_imports(program));
    let mut elements = ElementSection::new();
    if !script.references.is_empty() {
        let references = script.references.iter().map(|index| functions.indices.function(*index)).collect();
        elements.declared(Elements::Functions(Cow::Owned(references)));
    }
    let data = take(DATA);

    let mut out = wasm_encoder::Module::new();
    put(&mut out, 1, &take(1).append(&Items::encoded(&types)));
    let added = Items::encoded(&functions.types_of_others).append(&Items::encoded(&functions.types));
    put(&mut out, 3, &Items::encoded(&replaced).append(&take(3)).append(&added));
    put(&mut out, 4, &Items::encoded(&imported_tables(program, script)?).append(&take(4)));
    put(&mut out, 5, &Items::encoded(&imported_memories(program, script)).append(&take(5)));
    let imported_tags = Items::encoded(&tags(&program.tags[..program.imported_tags as usize]));
    let added_tags: Vec<u32> = functions.added_tags.iter().map(|(_, ty)| *ty).collect();
    put(&mut out, 13, &imported_tags.append(&take(13)).append(&Items::encoded(&tags(&added_tags))));
    let imported_globals = Items::encoded(&imported_globals(program, script)?);
    put(
        &mut out,
        6,
        &imported_globals.append(&take(6)).append(&Items::encoded(&globals(script, functions.check))),
    );
    put(&mut out, 7, &Items::encoded(&exports(program, &functions)));
    if let Some(function_index) = functions.restore {
        out.section(&StartSection { function_index });
    }
    put(&mut out, 9, &take(9).append(&Items::encoded(&elements)));
    let [replaced, others, bodies] = functions.take_code();
    out.section(&DataCountSection { count: data.count + 1 });
    out.section(&Joined::new(CODE, &[&replaced, &take(CODE), &others, &bodies]));
    drop((replaced, others, bodies));
    put_data(&mut out, &data, &script.bytes);
    if let Some(names) = &program.names {
        out.section(&CustomSection { name: "name".into(), data: Cow::Borrowed(names) });
    }
    Ok(out.finish())
}

/// The section of function types, from their parameters and results.
pub(super) fn types(types: &[(Vec<ValType>, Vec<ValType>)]) -> TypeSection {
    let mut section = TypeSection::new();
    for (parameters, results) in types {
        section.ty().function(parameters.iter().copied(), results.iter().copied());
    }
    section
}

/// The types of the imported functions, for the functions that replace them.
pub(super) fn types_of_imports(program: &Program) -> FunctionSection {
    let mut functions = FunctionSection::new();
    for ty in &program.functions[..program.imports as usize] {
        functions.function(*ty);
    }
    functions
}

/// Appends a section, unless it has no items.
pub(super) fn put(out: &mut wasm_encoder::Module, id: u8, items: &Items) {
    if items.count > 0 {
        out.section(&Joined::new(id, &[items]));
    }
}

/// Appends the data section, with these bytes in one more segment.
pub(super) fn put_data(out: &mut wasm_encoder::Module, data: &Items, bytes: &[u8]) {
    const PASSIVE: u8 = 1;
    let mut head = vec![PASSIVE];
    bytes.len().encode(&mut head);
    out.section(&Joined::new(DATA, &[data]).with_item([&head, bytes]));
}

/// The memories that the program imports, as memories of its own.
pub(super) fn imported_memories(program: &Program, script: &Script) -> MemorySection {
    let mut memories = MemorySection::new();
    for (ty, ImportedSize { size, maximum }) in program.imported_memories.iter().zip(&script.memories) {
        memories.memory(MemoryType { minimum: *size, maximum: *maximum, ..(*ty).into() });
    }
    memories
}

/// The tables that the program imports, as tables of its own.
pub(super) fn imported_tables(program: &Program, script: &Script) -> Result<TableSection, Error> {
    let mut tables = TableSection::new();
    for (ty, ImportedSize { size, maximum }) in program.imported_tables.iter().zip(&script.tables) {
        if !ty.element_type.is_nullable() {
            return Err(not_generated("an imported table of this type"));
        }
        let ty = TableType::try_from(*ty).map_err(initializers::unknown)?;
        tables.table(TableType { minimum: *size, maximum: *maximum, ..ty });
    }
    Ok(tables)
}

/// Tags of these types.
pub(super) fn tags(types: &[u32]) -> TagSection {
    let mut tags = TagSection::new();
    for func_type_idx in types {
        tags.tag(TagType { kind: TagKind::Exception, func_type_idx: *func_type_idx });
    }
    tags
}

/// The globals that the program imports, as globals of its own.
pub(super) fn imported_globals(program: &Program, script: &Script) -> Result<GlobalSection, Error> {
    let mut globals = GlobalSection::new();
    for (ty, value) in program.globals.iter().zip(&script.globals) {
        let mut initializer = Vec::new();
        constant(&mut InstructionSink::new(&mut initializer), *value, script.has_typed_nulls);
        let ty = GlobalType::try_from(*ty).map_err(initializers::unknown)?;
        globals.global(ty, &ConstExpr::raw(initializer));
    }
    Ok(globals)
}

/// Those of [`REPORT`], and a counter for each function whose calls are replayed.
pub(super) fn globals(script: &Script, check: bool) -> GlobalSection {
    let mut globals = GlobalSection::new();
    let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    globals.global(ty, &ConstExpr::i32_const(0));
    globals.global(ty, &ConstExpr::i32_const(0));
    let first = script.checkpoints.first().map_or(script.events as i32, |event| *event as i32);
    globals.global(ty, &ConstExpr::i32_const(if check { first } else { 0 }));
    let constant = GlobalType { mutable: false, ..ty };
    globals.global(constant, &ConstExpr::i32_const(script.last as i32));
    globals.global(constant, &ConstExpr::i32_const(script.is_incomplete.into()));
    for _ in 0..script.functions {
        globals.global(ty, &ConstExpr::i32_const(0));
    }
    globals
}

fn exports(program: &Program, functions: &Functions<'_>) -> ExportSection {
    let mut exports = ExportSection::new();
    for (name, kind, index) in &program.exports {
        if !CALLED.iter().chain(&REPORT).any(|other| other == name) {
            exports.export(name, export_kind(*kind), *index);
        }
    }
    exports.export("_start", ExportKind::Func, functions.start);
    for (index, name) in (functions.difference..).zip(REPORT) {
        exports.export(name, ExportKind::Global, index);
    }
    exports
}

pub(super) fn export_kind(kind: wp::ExternalKind) -> ExportKind {
    match kind {
        wp::ExternalKind::Func | wp::ExternalKind::FuncExact => ExportKind::Func,
        wp::ExternalKind::Table => ExportKind::Table,
        wp::ExternalKind::Memory => ExportKind::Memory,
        wp::ExternalKind::Global => ExportKind::Global,
        wp::ExternalKind::Tag => ExportKind::Tag,
    }
}
