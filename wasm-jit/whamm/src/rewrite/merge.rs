//! Merges two modules into one: sections, and the numbers of their items.

use std::collections::HashMap;

use wasm_encoder::reencode::{Error, Reencode, RoundtripReencoder};
use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, EntityType, ExportKind,
    ExportSection, FunctionSection, GlobalSection, GlobalType, ImportSection, MemorySection, MemoryType,
    NameSection, StartSection, TableSection, TagSection, TypeSection, ValType,
};
use wasm_jit::{Store, Val};
use wasmparser::{
    ExternalKind, KnownCustom, Parser, Payload, TypeRef, ValidPayload, Validator, WasmFeatures,
};

use super::RewriteError;
use super::added::{self, Added, Entry, REPORT};
use super::alternatives::Alternatives;
use super::body::{Bodies, rewritten};
use super::callees::Callees;
use super::copied::pieces;
use crate::lang::Alternative;
use crate::monitor_module::{Matched, Replacement};

/// The module of the monitor's import.
pub(super) const WASI: &str = "wasi_snapshot_preview1";
pub(super) const WRITE: &str = "fd_write";

/// Module names of WASI, including older ones.
const WASIS: [&str; 2] = [WASI, "wasi_unstable"];

/// Bytes of the monitor's memory that are written or left out together.
const CHUNK: usize = 256;

/// The numbers of the program's items in the new module.
struct OfProgram {
    imported: u32,
    /// The number of additional imported functions.
    more: u32,
}

impl Reencode for OfProgram {
    type Error = std::convert::Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, Error> {
        Ok(function + if function < self.imported { 0 } else { self.more })
    }
}

/// The numbers of the monitor's items in the new module.
struct OfMonitor {
    numbers: Numbers,
}

impl Reencode for OfMonitor {
    type Error = std::convert::Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, Error> {
        Ok(self.numbers.of_monitor(function))
    }

    fn global_index(&mut self, global: u32) -> Result<u32, Error> {
        Ok(global + self.numbers.globals)
    }

    fn memory_index(&mut self, _: u32) -> Result<u32, Error> {
        Ok(self.numbers.memory)
    }

    fn type_index(&mut self, ty: u32) -> Result<u32, Error> {
        Ok(ty + self.numbers.types)
    }
}

/// The numbers of the program's items, and the indices that follow from them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    types: u32,
    /// The numbers of functions that the program imports and defines.
    imported: u32,
    own: u32,
    pub(super) globals: u32,
    /// The index of the monitor's memory.
    pub(super) memory: u32,
    /// The index of `fd_write` in the program, if it imports that.
    write: Option<u32>,
    /// The numbers of the monitor's functions, without the imported one, and of its globals.
    of_monitor: u32,
    monitor_globals: u32,
    monitor_types: u32,
}

impl Numbers {
    /// The index of a function of the program.
    pub(super) fn of_program(&self, function: u32) -> u32 {
        function + if function < self.imported || self.write.is_some() { 0 } else { 1 }
    }

    /// The index of a function of the monitor. The first one is `fd_write`, which is replaced by
    /// our function.
    pub(super) fn of_monitor(&self, function: u32) -> u32 {
        self.of_program(self.imported + self.own) + function.checked_sub(1).unwrap_or(self.of_monitor)
    }

    /// The index of an added function; the first one is called by the monitor to print.
    pub(super) fn added(&self, number: u32) -> u32 {
        self.of_monitor(0) + number
    }

    /// The memory in which callees are looked up.
    pub(super) fn lookups(&self) -> u32 {
        self.memory + 1
    }

    /// `fd_write` of WASI.
    pub(super) fn write(&self) -> u32 {
        self.write.unwrap_or(self.imported)
    }

    /// The index of an added type. Each group of the monitor's types has one.
    pub(super) fn added_type(&self, number: u32) -> u32 {
        self.types + self.monitor_types + number
    }

    /// The index of an added global.
    pub(super) fn added_global(&self, number: u32) -> u32 {
        self.globals + self.monitor_globals + number
    }
}

#[derive(Default)]
struct Sections {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    tags: TagSection,
    globals: GlobalSection,
    exports: ExportSection,
    start: Option<u32>,
    elements: ElementSection,
    data_count: Option<u32>,
    code: CodeSection,
    data: DataSection,
    names: Option<NameSection>,
}

/// Facts about the program that are collected before its code is read.
#[derive(Default)]
struct Survey {
    numbers: Numbers,
    /// The memory that is exported as `memory`.
    memory: Option<u32>,
    /// The entry point, if it is a function.
    start: Option<u32>,
    /// Functions, by the names of exports.
    exported: HashMap<String, u32>,
    callees: Callees,
    proc_exit: Vec<u32>,
    types: Vec<Option<wasmparser::FuncType>>,
    type_of: Vec<u32>,
}

fn unsupported<T>(reason: &str) -> Result<T, RewriteError> {
    Err(RewriteError::Unsupported { reason: reason.to_owned() })
}

impl Survey {
    fn of(program: &[u8], entry: &str) -> Result<Self, RewriteError> {
        let mut survey = Self::default();
        let mut memories = Vec::new();
        for payload in Parser::new(0).parse_all(program) {
            match payload? {
                Payload::TypeSection(section) => {
                    for group in section {
                        for ty in group?.into_types() {
                            survey.types.push(match ty.composite_type.inner {
                                wasmparser::CompositeInnerType::Func(ty) => Some(ty),
                                _ => None,
                            });
                        }
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        let is_wasi = WASIS.contains(&import.module);
                        match import.ty {
                            TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                                let number = survey.numbers.imported;
                                match import.name {
                                    WRITE if import.module == WASI => survey.numbers.write = Some(number),
                                    "proc_exit" if is_wasi => survey.proc_exit.push(number),
                                    _ => {}
                                }
                                survey.type_of.push(ty);
                                survey.numbers.imported += 1;
                            }
                            TypeRef::Global(_) => survey.numbers.globals += 1,
                            TypeRef::Memory(ty) => memories.push(ty),
                            TypeRef::Table(ty) => survey.callees.add_import(&ty),
                            _ => {}
                        }
                    }
                }
                Payload::FunctionSection(section) => {
                    survey.numbers.own = section.count();
                    for ty in section {
                        survey.type_of.push(ty?);
                    }
                }
                Payload::MemorySection(section) => {
                    for memory in section {
                        memories.push(memory?);
                    }
                }
                Payload::TableSection(section) => survey.callees.add_tables(section)?,
                Payload::ElementSection(section) => survey.callees.add_elements(section)?,
                Payload::CodeSectionEntry(body) => {
                    let mut reader = body.get_operators_reader()?;
                    while !reader.eof() {
                        survey.callees.see(&reader.read()?);
                    }
                }
                Payload::GlobalSection(section) => survey.numbers.globals += section.count(),
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        match export.kind {
                            ExternalKind::Func => {
                                survey.exported.insert(export.name.to_owned(), export.index);
                                if export.name == entry {
                                    survey.start = Some(export.index);
                                }
                            }
                            ExternalKind::Table => survey.callees.forget(export.index, "is exported"),
                            _ => {}
                        }
                        match (export.name, export.kind) {
                            ("memory", ExternalKind::Memory) => survey.memory = Some(export.index),
                            ("memory", _) => return unsupported("its export `memory` is no memory"),
                            (REPORT, _) => return unsupported("it is instrumented already"),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if memories.iter().any(|memory| memory.shared) {
            return unsupported("it shares a memory with other threads");
        }
        if let Some(memory) = survey.memory.and_then(|number| memories.get(number as usize)) {
            if memory.memory64 {
                return unsupported(
                    "it exports a memory with addresses of 64 bits, which WASI does not read",
                );
            }
            if memory.page_size_log2.is_some_and(|log2| log2 != 16) {
                return unsupported(
                    "it exports a memory whose pages are not of 64 KiB, where a report has no place",
                );
            }
        }
        survey.numbers.types = survey.types.len() as u32;
        survey.numbers.memory = memories.len() as u32;
        Ok(survey)
    }

    /// The entry point, with its type.
    fn entry(&self) -> Option<Entry> {
        let function = self.start?;
        let ty = *self.type_of.get(function as usize)?;
        let parameters = self.types.get(ty as usize)?.as_ref()?.params().len() as u32;
        Some(Entry { function: self.numbers.of_program(function), ty, parameters })
    }
}

/// A compiled script that was matched with a program.
pub(super) struct Script<'a> {
    pub(super) monitor: &'a [u8],
    /// The names of the exports that are its rules.
    pub(super) rules: &'a [(String, Option<Replacement>)],
    pub(super) matched: &'a Matched,
    pub(super) alternatives: Vec<Alternative>,
}

/// Merges the program and the script, which was matched with it in this store. `entry` is the name
/// of the exported function at whose end the report is made.
pub(super) fn merge(
    program: &wasm_jit::Module,
    script: Script<'_>,
    entry: &str,
    store: &mut Store<()>,
) -> Result<Vec<u8>, RewriteError> {
    let Script { monitor, rules, matched, alternatives } = script;
    let bytes = program.bytes();
    let mut survey = Survey::of(bytes, entry)?;
    let (mut exported, mut type_of_write, mut functions) = (HashMap::new(), 0, Vec::new());
    for payload in Parser::new(0).parse_all(monitor) {
        match payload? {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(ty) = import?.ty {
                        type_of_write = ty;
                    }
                }
            }
            Payload::TypeSection(section) => survey.numbers.monitor_types = section.count(),
            Payload::FunctionSection(section) => survey.numbers.of_monitor = section.count(),
            Payload::GlobalSection(section) => survey.numbers.monitor_globals = section.count(),
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    if export.kind == ExternalKind::Func {
                        exported.insert(export.name.to_owned(), export.index);
                    }
                }
            }
            Payload::CodeSectionEntry(body) => functions.push(body),
            _ => {}
        }
    }
    let numbers = survey.numbers;
    let function = |name: &str| numbers.of_monitor(exported[name]);
    let mut sections = Sections::default();
    let mut of_monitor = OfMonitor { numbers };
    let mut with_code = Vec::new();
    for (rule, replacement) in rules {
        // The first function is imported.
        let body = exported[rule].checked_sub(1).and_then(|own| functions.get(own as usize));
        let code = body.map(|body| pieces(&mut of_monitor, body)).transpose()?.flatten();
        with_code.push((function(rule), replacement.clone(), code));
    }
    let alternatives = Alternatives::of(alternatives, program, &survey.exported);
    let callees = std::mem::take(&mut survey.callees);
    let mut bodies = Bodies::new(numbers, matched, with_code, &survey.proc_exit, alternatives, callees);
    copy_program(bytes, &survey, entry, &mut sections, &mut bodies)?;
    if numbers.write.is_none() {
        let ty = numbers.types + type_of_write;
        sections.imports.import(WASI, WRITE, EntityType::Function(ty));
    }
    copy_monitor(monitor, numbers, &mut sections)?;
    for ty in bodies.types() {
        sections.types.ty().function([], ty.iter().copied());
    }
    snapshot(numbers, matched, store, &mut sections)?;
    lookups(numbers, bodies.callees().contents(), &mut sections);
    let start = survey.entry();
    let last = matched.last.iter().map(|(export, arguments)| (function(export), arguments.as_slice()));
    let added = Added { numbers, memory: survey.memory, start };
    let first_type = numbers.added_type(bodies.types().len() as u32);
    for (number, (parameters, results, body)) in (0..).zip(added.functions(&last.collect::<Vec<_>>())) {
        sections.types.ty().function(parameters, results);
        sections.functions.function(first_type + number);
        sections.code.function(&body);
    }
    if let Some(Entry { ty, .. }) = start {
        // The host sees the type that it knows.
        sections.functions.function(ty);
        sections.code.function(&added.start_function());
    }
    for value in added.globals() {
        let ty = match value {
            Val::I64(_) => ValType::I64,
            _ => ValType::I32,
        };
        let value = match value {
            Val::I64(value) => ConstExpr::i64_const(value),
            _ => ConstExpr::i32_const(0),
        };
        sections.globals.global(GlobalType { val_type: ty, mutable: true, shared: false }, &value);
    }
    sections.exports.export(REPORT, ExportKind::Func, added::report(numbers));
    if survey.memory.is_none() {
        sections.exports.export("memory", ExportKind::Memory, numbers.memory);
    }
    Ok(sections.finish())
}

/// Copies the sections of the program, with the code of rules.
fn copy_program(
    bytes: &[u8],
    survey: &Survey,
    entry: &str,
    sections: &mut Sections,
    bodies: &mut Bodies<'_>,
) -> Result<(), RewriteError> {
    let numbers = survey.numbers;
    let more = if numbers.write.is_some() { 0 } else { 1 };
    let mut of_program = OfProgram { imported: numbers.imported, more };
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload?;
        if let ValidPayload::Func(function, body) = validator.payload(&payload)? {
            let mut validator = function.into_validator(Default::default());
            let raw = rewritten(bodies, &mut of_program, &mut validator, &body)?;
            sections.code.raw(&raw);
            continue;
        }
        match payload {
            Payload::TypeSection(section) => of_program.parse_type_section(&mut sections.types, section)?,
            Payload::ImportSection(section) => {
                of_program.parse_import_section(&mut sections.imports, section)?
            }
            Payload::FunctionSection(section) => {
                of_program.parse_function_section(&mut sections.functions, section)?
            }
            Payload::TableSection(section) => {
                of_program.parse_table_section(&mut sections.tables, section)?
            }
            Payload::MemorySection(section) => {
                of_program.parse_memory_section(&mut sections.memories, section)?
            }
            Payload::TagSection(section) => of_program.parse_tag_section(&mut sections.tags, section)?,
            Payload::GlobalSection(section) => {
                of_program.parse_global_section(&mut sections.globals, section)?
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    if export.name == entry && survey.entry().is_some() {
                        sections.exports.export(entry, ExportKind::Func, added::start(numbers));
                    } else {
                        of_program.parse_export(&mut sections.exports, export)?;
                    }
                }
            }
            Payload::StartSection { func, .. } => sections.start = Some(of_program.start_section(func)?),
            Payload::ElementSection(section) => {
                of_program.parse_element_section(&mut sections.elements, section)?
            }
            Payload::DataCountSection { count, .. } => sections.data_count = Some(count),
            Payload::DataSection(section) => of_program.parse_data_section(&mut sections.data, section)?,
            Payload::CustomSection(section) => {
                // Names that cannot be read are dropped, as engines do.
                if let KnownCustom::Name(names) = section.as_known() {
                    sections.names = of_program.custom_name_section(names).ok();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Copies types, functions and code of the monitor.
fn copy_monitor(monitor: &[u8], numbers: Numbers, sections: &mut Sections) -> Result<(), RewriteError> {
    let mut of_monitor = OfMonitor { numbers };
    for payload in Parser::new(0).parse_all(monitor) {
        match payload? {
            Payload::TypeSection(section) => of_monitor.parse_type_section(&mut sections.types, section)?,
            Payload::FunctionSection(section) => {
                of_monitor.parse_function_section(&mut sections.functions, section)?
            }
            Payload::CodeSectionEntry(body) => of_monitor.parse_function_body(&mut sections.code, body)?,
            _ => {}
        }
    }
    Ok(())
}

/// The memory and the globals of the monitor, as matching has left them.
fn snapshot(
    numbers: Numbers,
    matched: &Matched,
    store: &mut Store<()>,
    sections: &mut Sections,
) -> Result<(), RewriteError> {
    let no = |what: &str| RewriteError::Read { reason: format!("the monitor has no {what}") };
    for number in 0..numbers.monitor_globals {
        let global = matched.instance.global(&*store, number).ok_or_else(|| no("such global"))?;
        let Val::I32(value) = global.get(&mut *store) else { return Err(no("globals of this type")) };
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        sections.globals.global(ty, &ConstExpr::i32_const(value));
    }
    let memory = matched.instance.get_memory(&*store, "memory").ok_or_else(|| no("memory"))?;
    let contents = memory.data(&*store);
    sections.memories.memory(memory_for(contents));
    let mut at = 0;
    let chunks: Vec<&[u8]> = contents.chunks(CHUNK).collect();
    for run in chunks.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let length = run.iter().map(|chunk| chunk.len()).sum::<usize>();
        if !is_zero(run[0]) {
            let offset = ConstExpr::i32_const((at as u32).cast_signed());
            sections.data.active(numbers.memory, &offset, contents[at..at + length].iter().copied());
        }
        at += length;
    }
    Ok(())
}

/// Adds the memory in which callees are looked up, if there are any.
fn lookups(numbers: Numbers, contents: Option<Vec<u8>>, sections: &mut Sections) {
    let Some(contents) = contents else { return };
    sections.memories.memory(memory_for(&contents));
    sections.data.active(numbers.lookups(), &ConstExpr::i32_const(0), contents);
}

/// The type of a memory that is large enough for these contents.
fn memory_for(contents: &[u8]) -> MemoryType {
    MemoryType {
        minimum: (contents.len() as u64).div_ceil(1 << 16),
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl Sections {
    fn finish(self) -> Vec<u8> {
        let mut module = wasm_encoder::Module::new();
        module.section(&self.types).section(&self.imports).section(&self.functions);
        if !self.tables.is_empty() {
            module.section(&self.tables);
        }
        module.section(&self.memories);
        if !self.tags.is_empty() {
            module.section(&self.tags);
        }
        module.section(&self.globals).section(&self.exports);
        if let Some(function_index) = self.start {
            module.section(&StartSection { function_index });
        }
        if !self.elements.is_empty() {
            module.section(&self.elements);
        }
        if self.data_count.is_some() {
            module.section(&DataCountSection { count: self.data.len() });
        }
        module.section(&self.code).section(&self.data);
        if let Some(names) = &self.names {
            module.section(names);
        }
        module.finish()
    }
}

/// Converts the type of a value, which may refer to types of the program.
pub(super) fn value_type(ty: wasmparser::ValType) -> Result<ValType, RewriteError> {
    Ok(RoundtripReencoder.val_type(ty)?)
}
