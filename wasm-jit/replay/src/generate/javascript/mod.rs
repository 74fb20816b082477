//! [`javascript`]: a host in JavaScript that replays a trace.
//!
//! The host is `replay.mjs`, which is the same for all programs except for the list of their
//! imports. It reads the events while the program runs.

use std::io::Read;

use serde_json::{Value as Json, json};
use wasm_encoder::{EntityType, ExportKind, ExportSection, ImportSection, Module, TypeSection};
use wasm_jit::wasmparser as wp;

use super::exports::{self, Used};
use super::program::Program;
use super::script::Script;
use super::values::encoded;
use crate::error::{Error, not_generated};
use crate::event::Event;
use crate::value::Value;

const REPLAY: &str = include_str!("replay.mjs");

/// A recorded run with a JavaScript host: three files of one directory. `node replay.mjs` repeats
/// the run; its exit code is 1 if the run differs or a file cannot be read, and 2 if the trace ends
/// before the recorded run did, as [`INCOMPLETE`](super::INCOMPLETE) says in a module.
#[derive(Clone, Debug)]
pub struct JavaScript {
    /// `replay.mjs`: the host.
    pub host: String,
    /// `program.wasm`: the program, with added exports.
    pub program: Vec<u8>,
    /// `events.bin`: the events of the trace, uncompressed.
    pub events: Vec<u8>,
}

impl JavaScript {
    /// The names and contents of the files.
    pub fn files(&self) -> [(&'static str, &[u8]); 3] {
        [("replay.mjs", self.host.as_bytes()), ("program.wasm", &self.program), ("events.bin", &self.events)]
    }
}

/// Makes a JavaScript host that replays a trace of the binary module `program`. It runs in Node.js
/// from version 20 on, and in other engines that support ES modules. For programs that import
/// globals or tables of type `anyref`, or pass such values, the engine must support garbage
/// collection, which Node.js does from version 22 on.
///
/// JavaScript does not preserve the bits of NaNs: if the program's behaviour depends on them, the
/// replay may differ.
///
/// # Errors
/// As [`generate`](super::generate); [`Error::NotGenerated`] also if vectors are arguments, results
/// or values of globals, which JavaScript does not support, for tables of 64 bits, which only newer
/// JavaScript engines have, for values of type `exnref`, and for imported tables, globals and tags
/// with references of other types than `funcref`, `externref` and `anyref`. Programs that use
/// `any.convert_extern` are accepted.
pub fn javascript(program: &[u8], trace: impl Read) -> Result<JavaScript, Error> {
    let original = Program::parse(program)?;
    if original.tables.iter().any(|ty| ty.table64) {
        return Err(not_generated("a table of 64 bits, which JavaScript engines do not have,"));
    }
    let (mut used, mut events) = (Used::default(), Vec::new());
    let script = Script::read(program, &original, trace, |event| {
        used.add(event, &original);
        match event {
            // The host does not report the reason.
            Event::Fail { .. } => Event::Fail { reason: None }.encode(&mut events),
            event => event.encode(&mut events),
        }
        check(event)
    })?;
    let host = host(&original, &script)?;
    Ok(JavaScript { host, program: exports::program(&original, &script, &used)?, events })
}

fn check(event: &Event) -> Result<(), Error> {
    for value in event.values() {
        match value {
            Value::V128(_) => return Err(not_generated("a vector, which JavaScript does not have,")),
            Value::Exn => {
                return Err(not_generated("a value of type exnref, which JavaScript does not have,"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The host of a program.
fn host(program: &Program, script: &Script) -> Result<String, Error> {
    let memories: Vec<Json> = program.memories.iter().map(|ty| address(ty.memory64)).collect();
    let other_tags = script.other_tags.iter().map(|(tag, values)| {
        let types: Vec<Json> = values.iter().map(|value| type_of(*value).into()).collect();
        json!([tag, types])
    });
    let lists = [
        ("IMPORTS", Json::from(imports(program)?)),
        ("MEMORIES", Json::from(memories)),
        ("OTHER_TAGS", other_tags.collect()),
        ("OTHER_FUNCTIONS", other_functions(program, script).into()),
    ];
    Ok(lists.into_iter().fold(REPLAY.to_owned(), |host, (name, list)| {
        let empty = format!("const {name} = [];");
        assert!(host.contains(&empty), "the host has a list of this name");
        host.replace(&empty, &format!("const {name} = {list};"))
    }))
}

/// A module that imports the functions that the program does not have, and exports them. This gives
/// types to JavaScript functions, which makes them usable as table elements. Empty if there are no
/// such functions.
fn other_functions(program: &Program, script: &Script) -> Vec<u8> {
    if script.others.is_empty() {
        return Vec::new();
    }
    let (mut types, mut imports, mut exports) =
        (TypeSection::new(), ImportSection::new(), ExportSection::new());
    for (index, ty) in (0..).zip(&script.others) {
        let number = (program.functions.len() as u32 + index).to_string();
        types.ty().function(encoded(ty.params()), encoded(ty.results()));
        imports.import(exports::IMPORTS, &number, EntityType::Function(index));
        exports.export(&number, ExportKind::Func, index);
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&exports);
    module.finish()
}

/// The part of a memory's type that describes addresses.
fn address(is_64: bool) -> Json {
    if is_64 { json!({ "address": "i64" }) } else { json!({}) }
}

/// The program's imports, as JavaScript describes them.
fn imports(program: &Program) -> Result<Vec<Json>, Error> {
    let (mut memories, mut tables) = (program.memories.iter(), program.tables.iter());
    let (mut globals, mut tags) = (program.globals.iter(), 0..);
    let imported = program.imported.iter().map(|kind| {
        let missing = || not_generated("an import that is not declared");
        Ok(match kind {
            wp::ExternalKind::Func | wp::ExternalKind::FuncExact => json!({ "kind": "function" }),
            wp::ExternalKind::Memory => {
                let ty = memories.next().ok_or_else(missing)?;
                json!({ "kind": "memory", "type": address(ty.memory64) })
            }
            wp::ExternalKind::Table => {
                let element = reference(tables.next().ok_or_else(missing)?.element_type)?;
                json!({ "kind": "table", "type": { "element": element } })
            }
            wp::ExternalKind::Global => {
                let ty = globals.next().ok_or_else(missing)?;
                let value = value_type(ty.content_type)?;
                json!({ "kind": "global", "type": { "value": value, "mutable": ty.mutable } })
            }
            wp::ExternalKind::Tag => {
                let ty = tags.next().and_then(|tag| program.tag_type(tag)).ok_or_else(missing)?;
                let parameters = ty.params().iter().map(|ty| value_type(*ty));
                let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
                json!({ "kind": "tag", "type": { "parameters": parameters } })
            }
        })
    });
    imported.collect()
}

fn value_type(ty: wp::ValType) -> Result<&'static str, Error> {
    Ok(match ty {
        wp::ValType::I32 => "i32",
        wp::ValType::I64 => "i64",
        wp::ValType::F32 => "f32",
        wp::ValType::F64 => "f64",
        wp::ValType::V128 => "v128",
        wp::ValType::Ref(ty) => reference(ty)?,
    })
}

fn type_of(value: Value) -> &'static str {
    match value {
        Value::I32(_) => "i32",
        Value::I64(_) => "i64",
        Value::F32(_) => "f32",
        Value::F64(_) => "f64",
        Value::V128(_) => "v128",
        Value::Func(_) => "anyfunc",
        Value::Extern(_) => "externref",
        Value::Any(_) => "anyref",
        Value::Exn => "exnref",
    }
}

fn reference(ty: wp::RefType) -> Result<&'static str, Error> {
    match ty {
        wp::RefType::FUNCREF => Ok("anyfunc"),
        wp::RefType::EXTERNREF => Ok("externref"),
        wp::RefType::ANYREF => Ok("anyref"),
        other => Err(not_generated(format!("an import with the type {other}"))),
    }
}
