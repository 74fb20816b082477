//! Libraries of a script: WebAssembly modules whose functions it calls.

use std::collections::BTreeMap;

use wasm_encoder::ValType;
use wasmparser::{CompositeInnerType, ExternalKind, Parser, Payload, TypeRef};

/// The parameters and results; a type that is not a number becomes [`ValType::V128`], and is not
/// supported.
type Signature = (Vec<ValType>, Vec<ValType>);

/// The name by which libraries export their memory.
pub(super) const LIBRARY_MEMORY: &str = "memory";

/// What libraries export, by their names.
#[derive(Debug, Default)]
pub(super) struct Libraries(BTreeMap<String, Library>);

#[derive(Debug, Default)]
struct Library {
    functions: BTreeMap<String, Signature>,
    /// Whether a script can access its memory: it has 32-bit addresses and pages of 64 KiB, and
    /// belongs to one thread.
    has_memory: bool,
}

impl Libraries {
    /// Reads these modules, by their names in scripts. An error has the name of the module.
    pub(super) fn read(modules: &[(&str, &[u8])]) -> Result<Self, (String, wasmparser::BinaryReaderError)> {
        let mut all = BTreeMap::new();
        for (name, module) in modules {
            let library = exported(module).map_err(|error| ((*name).to_owned(), error))?;
            all.insert((*name).to_owned(), library);
        }
        Ok(Self(all))
    }

    pub(super) fn contains(&self, library: &str) -> bool {
        self.0.contains_key(library)
    }

    pub(super) fn function(&self, library: &str, name: &str) -> Option<&Signature> {
        self.0.get(library)?.functions.get(name)
    }

    /// Whether a library has a memory that a script can access.
    pub(super) fn has_memory(&self, library: &str) -> bool {
        self.0.get(library).is_some_and(|library| library.has_memory)
    }

    /// The names of a library's functions.
    pub(super) fn names(&self, library: &str) -> Vec<&str> {
        let library = self.0.get(library);
        library.into_iter().flat_map(|library| library.functions.keys().map(String::as_str)).collect()
    }
}

fn value_types(types: &[wasmparser::ValType]) -> Vec<ValType> {
    let of = |ty: &wasmparser::ValType| match ty {
        wasmparser::ValType::I32 => ValType::I32,
        wasmparser::ValType::I64 => ValType::I64,
        wasmparser::ValType::F32 => ValType::F32,
        wasmparser::ValType::F64 => ValType::F64,
        wasmparser::ValType::V128 | wasmparser::ValType::Ref(_) => ValType::V128,
    };
    types.iter().map(of).collect()
}

fn exported(module: &[u8]) -> wasmparser::Result<Library> {
    let (mut types, mut of_functions, mut memories) = (Vec::new(), Vec::new(), Vec::new());
    let mut found = Library::default();
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::TypeSection(section) => {
                for group in section {
                    types.extend(group?.into_types().map(|ty| match ty.composite_type.inner {
                        CompositeInnerType::Func(ty) => {
                            Some((value_types(ty.params()), value_types(ty.results())))
                        }
                        _ => None,
                    }));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    match import?.ty {
                        TypeRef::Func(ty) | TypeRef::FuncExact(ty) => of_functions.push(ty),
                        TypeRef::Memory(ty) => memories.push(ty),
                        _ => {}
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    of_functions.push(ty?);
                }
            }
            Payload::MemorySection(section) => {
                for ty in section {
                    memories.push(ty?);
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    if export.kind == ExternalKind::Memory && export.name == LIBRARY_MEMORY {
                        let ty = memories.get(export.index as usize);
                        found.has_memory =
                            ty.is_some_and(|ty| !ty.memory64 && !ty.shared && ty.page_size_log2.is_none());
                    }
                    if !matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact) {
                        continue;
                    }
                    let ty = of_functions.get(export.index as usize).and_then(|ty| types.get(*ty as usize));
                    if let Some(Some(signature)) = ty {
                        found.functions.insert(export.name.to_owned(), signature.clone());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}
