//! The functions that every emitted module starts with: `runtime.wat`, assembled once.

use std::collections::HashMap;
use std::sync::LazyLock;

use wasm_encoder::ValType;
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

/// Address of the key of a map access.
pub(super) const KEY: u32 = 64;

/// Address of the first byte that is not the runtime's.
pub(super) const END: u32 = 9216;

/// What an emitted module takes over.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) types: Vec<(Vec<ValType>, Vec<ValType>)>,
    /// Module, name and type.
    pub(super) imports: Vec<(String, String, u32)>,
    /// Types of the functions.
    pub(super) functions: Vec<u32>,
    /// Bodies of the functions.
    pub(super) code: Vec<Vec<u8>>,
    /// Globals: all are i32, mutable and start at zero, but the heap.
    pub(super) globals: u32,
    pub(super) heap: u32,
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

/// The runtime. It is part of this crate, so that it is valid: a test assembles it.
pub(super) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let binary = wat::parse_str(include_str!("runtime.wat")).expect("the runtime is valid text");
    read(&binary).expect("the runtime is a valid module")
});

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
                        ExternalKind::Global => runtime.heap = export.index,
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
