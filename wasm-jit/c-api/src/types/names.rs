//! `wasm_importtype_t` and `wasm_exporttype_t`: the names and types of imports and exports.

use super::externtype::ExternType;
use crate::last_error::required;
use crate::vector::{Vector, export_vectors};

/// `wasm_name_t`: the bytes of a name, in UTF-8.
type Name = Vector<u8>;

/// The names of the arguments in failure messages.
const A_NAME: &str = "a name";
const A_TYPE: &str = "the type of a function, global, table, memory or tag";
const AN_IMPORT: &str = "the type of an import";
const AN_EXPORT: &str = "the type of an export";

fn name(text: &str) -> Name {
    text.bytes().collect()
}

/// `wasm_importtype_t`.
#[derive(Clone, Debug)]
pub(crate) struct ImportType {
    module: Name,
    name: Name,
    ty: Box<ExternType>,
}

impl ImportType {
    pub(crate) fn of(import: &wasm_jit::ImportType<'_>) -> Self {
        let ty = Box::new(ExternType::of(import.ty().clone()));
        Self { module: name(import.module()), name: name(import.name()), ty }
    }
}

/// `wasm_exporttype_t`.
#[derive(Clone, Debug)]
pub(crate) struct ExportType {
    name: Name,
    ty: Box<ExternType>,
}

impl ExportType {
    pub(crate) fn of(export: &wasm_jit::ExportType<'_>) -> Self {
        Self { name: name(export.name()), ty: Box::new(ExternType::of(export.ty().clone())) }
    }
}

export_vectors! {
    "importtype" Option<Box<crate::types::ImportType>>;
    "exporttype" Option<Box<crate::types::ExportType>>;
}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_new(
    module: Option<&mut Name>,
    name: Option<&mut Name>,
    ty: Option<Box<ExternType>>,
) -> Option<Box<ImportType>> {
    let (module, name) = (module.map(Vector::take), name.map(Vector::take));
    let (module, name) = (required(module, A_NAME)?, required(name, A_NAME)?);
    Some(Box::new(ImportType { module, name, ty: required(ty, A_TYPE)? }))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_delete(_: Option<Box<ImportType>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_copy(import: Option<&ImportType>) -> Option<Box<ImportType>> {
    import.cloned().map(Box::new)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_module(import: Option<&ImportType>) -> Option<&Name> {
    required(import, AN_IMPORT).map(|import| &import.module)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_name(import: Option<&ImportType>) -> Option<&Name> {
    required(import, AN_IMPORT).map(|import| &import.name)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_importtype_type(import: Option<&ImportType>) -> Option<&ExternType> {
    required(import, AN_IMPORT).map(|import| &*import.ty)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_exporttype_new(
    name: Option<&mut Name>,
    ty: Option<Box<ExternType>>,
) -> Option<Box<ExportType>> {
    let name = name.map(Vector::take);
    Some(Box::new(ExportType { name: required(name, A_NAME)?, ty: required(ty, A_TYPE)? }))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_exporttype_delete(_: Option<Box<ExportType>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_exporttype_copy(export: Option<&ExportType>) -> Option<Box<ExportType>> {
    export.cloned().map(Box::new)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_exporttype_name(export: Option<&ExportType>) -> Option<&Name> {
    required(export, AN_EXPORT).map(|export| &export.name)
}

#[unsafe(no_mangle)]
extern "C" fn wasm_exporttype_type(export: Option<&ExportType>) -> Option<&ExternType> {
    required(export, AN_EXPORT).map(|export| &*export.ty)
}
