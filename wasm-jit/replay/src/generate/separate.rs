//! [`separate`]: a program and its host as separate modules.
//!
//! The host needs the memories of the program, and the program needs the functions of the host.
//! Therefore a third module comes before both: it defines the program's imports, where functions
//! call those of a table that the host fills when it is instantiated.

use std::borrow::Cow;
use std::io::Read;

use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, ElementSection, Elements, ExportKind, ExportSection, Function,
    GlobalType, ImportSection, MemoryType, Module, RefType, StartSection, TableType, TagKind, TagType,
    ValType,
};
use wasm_jit::wasmparser as wp;

use super::REPORT;
use super::exports::{self, Used};
use super::functions::{Functions, Indices};
use super::initializers;
use super::module;
use super::program::{CODE, Items, Joined, Program};
use super::script::{Call, Script};
use crate::error::Error;

/// The name of the first module's exported table, which holds the functions of the host.
const FUNCTIONS: &str = "functions";

/// A recorded run as three modules. They are instantiated in this order, the first two under the
/// names `imports` and `program`; then `_start` of the last one repeats the run.
#[derive(Clone, Debug)]
pub struct Separate {
    /// `imports.wasm`: the program's imports.
    pub imports: Vec<u8>,
    /// `program.wasm`: the program, with added exports.
    pub program: Vec<u8>,
    /// `host.wasm`: does what the host did.
    pub host: Vec<u8>,
}

impl Separate {
    /// The names and contents of the files.
    pub fn files(&self) -> [(&'static str, &[u8]); 3] {
        [("imports.wasm", &self.imports), ("program.wasm", &self.program), ("host.wasm", &self.host)]
    }
}

/// As [`generate`](super::generate), but the program and its host are separate modules. With
/// `check`, the host has the exports of a replay with checks.
///
/// # Errors
/// As [`generate`](super::generate).
pub fn separate(program: &[u8], trace: impl Read, check: bool) -> Result<Separate, Error> {
    let original = Program::parse(program)?;
    let mut used = Used::default();
    let mut script = Script::read(program, &original, trace, |event| {
        used.add(event, &original);
        Ok(())
    })?;
    script.check_host_values(program)?;
    let calls = std::mem::take(&mut script.calls);
    Ok(Separate {
        imports: imports(&original, &script)?,
        program: exports::program(&original, &script, &used)?,
        host: host(&original, &script, calls, &used, check)?,
    })
}

/// The types of the program, followed by these.
fn types(program: &Program, added: &[(Vec<ValType>, Vec<ValType>)]) -> Items {
    let own = program.sections.get(&1).cloned().unwrap_or_default();
    own.append(&Items::encoded(&module::types(added)))
}

/// The table with the functions of the host.
fn table_of_functions(program: &Program) -> TableType {
    TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum: program.imports.into(),
        maximum: Some(program.imports.into()),
        shared: false,
    }
}

/// The module that defines the program's imports.
fn imports(program: &Program, script: &Script) -> Result<Vec<u8>, Error> {
    let mut tables = module::imported_tables(program, script)?;
    let table = tables.len();
    tables.table(table_of_functions(program));
    let mut code = CodeSection::new();
    for (number, ty) in (0..).zip(&program.functions[..program.imports as usize]) {
        let mut body = Function::new([]);
        let mut instructions = body.instructions();
        let parameters = program.type_of(number).map_or(0, |ty| ty.params().len() as u32);
        (0..parameters).for_each(|parameter| _ = instructions.local_get(parameter));
        instructions.i32_const(number as i32).call_indirect(table, *ty).end();
        code.function(&body);
    }
    let mut exports = ExportSection::new();
    let mut next = [0; 5];
    for (number, kind) in program.imported.iter().enumerate() {
        let (kind, of_kind) = match kind {
            wp::ExternalKind::Func | wp::ExternalKind::FuncExact => (ExportKind::Func, 0),
            wp::ExternalKind::Table => (ExportKind::Table, 1),
            wp::ExternalKind::Memory => (ExportKind::Memory, 2),
            wp::ExternalKind::Global => (ExportKind::Global, 3),
            wp::ExternalKind::Tag => (ExportKind::Tag, 4),
        };
        exports.export(&number.to_string(), kind, next[of_kind]);
        next[of_kind] += 1;
    }
    exports.export(FUNCTIONS, ExportKind::Table, table);

    let mut out = Module::new();
    module::put(&mut out, 1, &types(program, &[]));
    module::put(&mut out, 3, &Items::encoded(&module::types_of_imports(program)));
    out.section(&tables);
    module::put(&mut out, 5, &Items::encoded(&module::imported_memories(program, script)));
    let tags = module::tags(&program.tags[..program.imported_tags as usize]);
    module::put(&mut out, 13, &Items::encoded(&tags));
    module::put(&mut out, 6, &Items::encoded(&module::imported_globals(program, script)?));
    out.section(&exports);
    module::put(&mut out, 10, &Items::encoded(&code));
    Ok(out.finish())
}

/// The module that does what the host did.
fn host(
    program: &Program,
    script: &Script,
    calls: Vec<Vec<Call>>,
    used: &Used,
    check: bool,
) -> Result<Vec<u8>, Error> {
    let functions: Vec<u32> = used.functions.iter().copied().collect();
    let segments = [&used.data, &used.elements].map(|segments| segments.iter().copied().collect());
    let indices = Indices::outside(program, script, functions, segments);
    let first = indices.replaced;
    let references: Vec<u32> = script.references.iter().map(|index| indices.function(*index)).collect();
    let mut made = Functions::of(program, script, calls, check, indices);

    let replaced = module::types_of_imports(program);
    let mut elements = ElementSection::new();
    let of_imports: Vec<u32> = (first..first + program.imports).collect();
    let table = program.tables.len() as u32;
    elements.active(Some(table), &ConstExpr::i32_const(0), Elements::Functions(Cow::Owned(of_imports)));
    if !references.is_empty() {
        elements.declared(Elements::Functions(Cow::Owned(references)));
    }
    let mut exports = ExportSection::new();
    exports.export("_start", ExportKind::Func, made.start);
    for (index, name) in (made.difference..).zip(REPORT) {
        exports.export(name, ExportKind::Global, index);
    }

    let types_of_host = Items::encoded(&replaced)
        .append(&Items::encoded(&made.types_of_others))
        .append(&Items::encoded(&made.types));

    let mut out = Module::new();
    module::put(&mut out, 1, &types(program, &made.added_types));
    out.section(&imports_of_host(program, used)?);
    module::put(&mut out, 3, &types_of_host);
    let tags: Vec<u32> = made.added_tags.iter().map(|(_, ty)| *ty).collect();
    module::put(&mut out, 13, &Items::encoded(&module::tags(&tags)));
    out.section(&module::globals(script, check));
    out.section(&exports);
    if let Some(function_index) = made.restore {
        out.section(&StartSection { function_index });
    }
    out.section(&elements);
    out.section(&DataCountSection { count: 1 });
    let [replaced, others, bodies] = made.take_code();
    out.section(&Joined::new(CODE, &[&replaced, &others, &bodies]));
    drop((replaced, others, bodies));
    module::put_data(&mut out, &Items::default(), &script.bytes);
    Ok(out.finish())
}

/// The imports of the host: functions of the program, its memories, tables, globals and tags, all
/// with the indices that they have in the program, and the table for its own functions.
fn imports_of_host(program: &Program, used: &Used) -> Result<ImportSection, Error> {
    const PROGRAM: &str = "program";
    let mut imports = ImportSection::new();
    for index in &used.functions {
        let ty = wasm_encoder::EntityType::Function(program.functions[*index as usize]);
        imports.import(PROGRAM, &exports::name("func", *index), ty);
    }
    // The index of the first added type.
    let plain = wasm_encoder::EntityType::Function(program.types.len() as u32);
    for (what, segments) in [("data", &used.data), ("elements", &used.elements)] {
        for segment in segments {
            imports.import(PROGRAM, &exports::name(what, *segment), plain);
        }
    }
    for (index, ty) in (0..).zip(&program.memories) {
        let ty = MemoryType { minimum: 0, maximum: None, ..MemoryType::from(*ty) };
        imports.import(PROGRAM, &exports::name("memory", index), ty);
    }
    for (index, ty) in (0..).zip(&program.tables) {
        let ty = TableType::try_from(*ty).map_err(initializers::unknown)?;
        let ty = TableType { minimum: 0, maximum: None, ..ty };
        imports.import(PROGRAM, &exports::name("table", index), ty);
    }
    for (index, ty) in (0..).zip(&program.globals) {
        let ty = GlobalType::try_from(*ty).map_err(initializers::unknown)?;
        imports.import(PROGRAM, &exports::name("global", index), ty);
    }
    for (index, func_type_idx) in (0..).zip(&program.tags) {
        let ty = TagType { kind: TagKind::Exception, func_type_idx: *func_type_idx };
        imports.import(PROGRAM, &exports::name("tag", index), ty);
    }
    imports.import(exports::IMPORTS, FUNCTIONS, table_of_functions(program));
    Ok(imports)
}
