//! The functions that every emitted module starts with: `runtime.wat`, assembled once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use wasm_encoder::ValType;
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

use super::super::ir::{FAILURES, Import};

/// The address of the key of a map access.
pub(super) const KEY: u32 = 64;

/// The factor by which `runtime.wat` multiplies a key of one word: the highest bits of the product
/// are the slot of the index in which the search begins.
pub(super) const HASH: i64 = 0x9e37_79b9_7f4a_7c15_u64.cast_signed();

/// The address after the runtime's data.
pub(super) const END: u32 = 9216;

/// The functions that may fail. Those for frames also fail if there is no memory, but a stack does
/// not get large enough for that.
pub(super) const FAILING: [&str; 10] = [
    "alloc",
    "begin_read",
    "check_s64",
    "check_u64",
    "enter_call",
    "intern",
    "keep_string",
    "outside",
    "site",
    "step",
];

/// The parts of the runtime that an emitted module contains.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    pub(super) types: Vec<(Vec<ValType>, Vec<ValType>)>,
    /// The module, name and type of each import.
    pub(super) imports: Vec<(String, String, u32)>,
    /// The types of the functions.
    pub(super) functions: Vec<u32>,
    /// The bodies of the functions.
    pub(super) code: Vec<Vec<u8>>,
    /// The number of globals: all are i32, mutable and initially zero, except the heap.
    pub(super) globals: u32,
    pub(super) heap: u32,
    /// The globals of the calling thread, with their names.
    pub(super) of_thread: Vec<(String, u32)>,
    names: HashMap<String, u32>,
}

impl Runtime {
    /// The number of a function.
    pub(super) fn function(&self, name: &str) -> u32 {
        self.names[name]
    }

    /// Number of functions, with imported ones.
    pub(super) fn count(&self) -> u32 {
        (self.imports.len() + self.functions.len()) as u32
    }
}

/// The runtime of modules that print and have no libraries. It is known to be valid: a test
/// assembles it.
static PRINTING: LazyLock<Runtime> = LazyLock::new(|| Runtime::assemble(&[], true));

/// The runtime of modules that do not print and have no libraries.
static SILENT: LazyLock<Runtime> = LazyLock::new(|| Runtime::assemble(&[], false));

/// The runtime of scripts in this engine, which have no other imports.
static HERE: LazyLock<Runtime> = LazyLock::new(|| Runtime::assemble(&[Import::failed()], false));

/// The line after which functions of libraries are imported: imported functions come first.
const IMPORTS: &str = "  ;; Libraries.\n";

/// The line that imports what a module prints with.
const WRITE: &str = "  (import \"wasi_snapshot_preview1\" \"fd_write\" (func $fd_write (param i32 i32 i32 i32) (result i32)))\n";

/// `fd_write` in a module that does not print: an error that is never requested.
const NO_WRITE: &str = "  (func $fd_write (param i32 i32 i32 i32) (result i32) i32.const 8)\n";

/// The line with the function that ends a rule by a trap.
const FAIL: &str = "  (func $fail (export \"fail\") (param i32) unreachable)\n";

/// The same, for a rule that ends by an exception with the reason.
const FAIL_BY_EXCEPTION: &str = "  (tag $failure (param i32))\n  (func $fail (export \"fail\") (param i32) (throw $failure (local.get 0)))\n";

/// The code that makes room for an entry of a map, and the line after it. If it fails, by an
/// exception, the failure is reported to the host without the name of a rule.
const MAKE_ROOM: &str = "(call $grow (local.get $map) (local.get $words) (local.get $entry_size))";
const ROOM_MADE: &str = "\n    (i32.const 1)";

impl Runtime {
    /// The runtime of a module that imports these functions of libraries, as its first functions.
    pub(super) fn of(imports: &[Import], prints: bool) -> Cow<'static, Self> {
        match (imports, prints) {
            ([], true) => Cow::Borrowed(&PRINTING),
            ([], false) => Cow::Borrowed(&SILENT),
            ([import], false) if *import == Import::failed() => Cow::Borrowed(&HERE),
            // Bodies contain the numbers of the functions that they call.
            _ => Cow::Owned(Self::assemble(imports, prints)),
        }
    }

    fn assemble(imports: &[Import], prints: bool) -> Self {
        let (before, after) = include_str!("runtime.wat").split_once(IMPORTS).expect("it has this line");
        let after = after.strip_prefix(WRITE).expect("it has this line");
        let mut text = before.to_owned();
        for Import { library, name, parameters, results } in imports {
            let types = |keyword: &str, types: &[ValType]| {
                types.iter().map(|ty| format!(" ({keyword} {})", keyword_of(*ty))).collect::<String>()
            };
            let (parameters, results) = (types("param", parameters), types("result", results));
            let (library, name) = (quoted(library), quoted(name));
            let _ = writeln!(text, "(import {library} {name} (func{parameters}{results}))");
        }
        text.push_str(if prints { WRITE } else { NO_WRITE });
        let is_fail = |import: &Import| (import.library.as_str(), import.name.as_str()) == FAILURES;
        let failed = imports.iter().position(|import| *import == Import::failed());
        let fail = match imports.iter().position(is_fail) {
            // The host ends it.
            Some(number) => FAIL.replace("unreachable", &format!("local.get 0 call {number} unreachable")),
            None if failed.is_some() => FAIL_BY_EXCEPTION.to_owned(),
            None => FAIL.to_owned(),
        };
        let (before, after) = after.split_once(FAIL).expect("it has this line");
        text.push_str(before);
        text.push_str(&fail);
        match failed {
            Some(number) => {
                let (before, after) = after.split_once(MAKE_ROOM).expect("it has these lines");
                let catching = format!(
                    "(call {number}
                        (block $caught (result i32)
                            (try_table (catch $failure $caught) {MAKE_ROOM})
                            (return (i32.const 1)))
                        (i32.const 0) (i32.const 0))
                    (i32.const 0)"
                );
                text.push_str(before);
                text.push_str(&catching);
                text.push_str(after.strip_prefix(ROOM_MADE).expect("it has this line"));
            }
            None => text.push_str(after),
        }
        let binary = wat::parse_str(&text).expect("the runtime is valid text");
        read(&binary).expect("the runtime is a valid module")
    }
}

/// A string of the text format.
fn quoted(text: &str) -> String {
    let bytes: String = text.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    format!("\"{bytes}\"")
}

/// The name of a type of numbers.
pub(super) fn keyword_of(ty: ValType) -> &'static str {
    match ty {
        ValType::I64 => "i64",
        ValType::F32 => "f32",
        ValType::F64 => "f64",
        // Functions with other types are refused.
        _ => "i32",
    }
}

fn value_type(ty: wasmparser::ValType) -> ValType {
    match ty {
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        // The runtime has no references or vectors.
        _ => ValType::I32,
    }
}

fn read(binary: &[u8]) -> wasmparser::Result<Runtime> {
    let mut runtime = Runtime {
        types: Vec::new(),
        imports: Vec::new(),
        functions: Vec::new(),
        code: Vec::new(),
        globals: 0,
        heap: 0,
        of_thread: Vec::new(),
        names: HashMap::new(),
    };
    let types = |all: &[wasmparser::ValType]| all.iter().copied().map(value_type).collect::<Vec<_>>();
    for payload in Parser::new(0).parse_all(binary) {
        match payload? {
            Payload::TypeSection(section) => {
                for ty in section.into_iter_err_on_gc_types() {
                    let ty = ty?;
                    runtime.types.push((types(ty.params()), types(ty.results())));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import?;
                    if let TypeRef::Func(ty) = import.ty {
                        runtime.imports.push((import.module.to_owned(), import.name.to_owned(), ty));
                    }
                }
            }
            Payload::FunctionSection(section) => {
                runtime.functions = section.into_iter().collect::<wasmparser::Result<_>>()?;
            }
            Payload::GlobalSection(section) => runtime.globals = section.count(),
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    match export.kind {
                        ExternalKind::Global if export.name == "heap" => runtime.heap = export.index,
                        ExternalKind::Global => {
                            runtime.of_thread.push((export.name.to_owned(), export.index));
                        }
                        _ => drop(runtime.names.insert(export.name.to_owned(), export.index)),
                    }
                }
            }
            Payload::CodeSectionEntry(body) => runtime.code.push(body.as_bytes().to_vec()),
            _ => {}
        }
    }
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise, each search would go beyond the first entry.
    #[test]
    fn rules_and_the_runtime_begin_to_search_at_the_same_entry() {
        let factor = format!("{HASH:#x}");
        assert_eq!(include_str!("runtime.wat").matches(&factor).count(), 3);
    }
}
