//! Libraries of a script: WebAssembly modules whose functions it calls.

use std::collections::BTreeMap;

use wasm_encoder::ValType;
use wasmparser::{CompositeInnerType, ExternalKind, Parser, Payload, TypeRef};

/// The parameters and results; a type that is not a number becomes [`ValType::V128`], and is not
/// supported.
type Signature = (Vec<ValType>, Vec<ValType>);

/// The functions that libraries export, by the names of library and function.
#[derive(Debug, Default)]
pub(super) struct Libraries(BTreeMap<String, BTreeMap<String, Signature>>);

impl Libraries {
    /// Reads these modules, by their names in scripts. An error has the name of the module.
    pub(super) fn read(modules: &[(&str, &[u8])]) -> Result<Self, (String, wasmparser::BinaryReaderError)> {
        let mut all = BTreeMap::new();
        for (name, module) in modules {
            let functions = functions(module).map_err(|error| ((*name).to_owned(), error))?;
            all.insert((*name).to_owned(), functions);
        }
        Ok(Self(all))
    }

    pub(super) fn contains(&self, library: &str) -> bool {
        self.0.contains_key(library)
    }

    pub(super) fn function(&self, library: &str, name: &str) -> Option<&Signature> {
        self.0.get(library)?.get(name)
    }

    /// The names of a library's functions.
    pub(super) fn names(&self, library: &str) -> Vec<&str> {
        self.0.get(library).into_iter().flat_map(|functions| functions.keys().map(String::as_str)).collect()
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

fn functions(module: &[u8]) -> wasmparser::Result<BTreeMap<String, Signature>> {
    let (mut types, mut of_functions) = (Vec::new(), Vec::new());
    let mut found = BTreeMap::new();
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
                    if let TypeRef::Func(ty) | TypeRef::FuncExact(ty) = import?.ty {
                        of_functions.push(ty);
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    of_functions.push(ty?);
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    if !matches!(export.kind, ExternalKind::Func | ExternalKind::FuncExact) {
                        continue;
                    }
                    let ty = of_functions.get(export.index as usize).and_then(|ty| types.get(*ty as usize));
                    if let Some(Some(signature)) = ty {
                        found.insert(export.name.to_owned(), signature.clone());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}
