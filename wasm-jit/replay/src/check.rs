//! What can be recorded, as far as that is known before the program runs.

use std::collections::BTreeSet;

use wasm_jit::wasmparser::{ExternalKind, Parser, Payload};
use wasm_jit::{AsContext, ExternType, Instance, Module, RefType};

use super::error::{Error, unsupported};

/// Refuses a module that cannot be recorded.
pub(crate) fn check(module: &Module) -> Result<(), Error> {
    if module.start_function().is_some_and(|start| start.body().is_none()) {
        return Err(unsupported("a start function that is imported"));
    }
    for import in module.imports() {
        let what = match import.ty() {
            ExternType::Func(_) | ExternType::Global(_) => continue,
            ExternType::Memory(ty) if !ty.is_shared() => continue,
            ExternType::Memory(_) => "a shared memory",
            ExternType::Table(ty) if !ty.is_64() && has_recorded_form(ty.element()) => continue,
            ExternType::Table(_) => "a table of this type",
            ExternType::Tag(_) => "a tag",
        };
        return Err(unsupported(format!("the import {}.{}, {what}", import.module(), import.name())));
    }
    for export in module.exports() {
        if matches!(export.ty(), ExternType::Memory(ty) if ty.is_shared()) {
            return Err(unsupported(format!("the export {}, a shared memory", export.name())));
        }
    }
    for payload in Parser::new(0).parse_all(module.bytes()) {
        if let Payload::MemorySection(memories) = payload?
            && memories.into_iter().any(|memory| memory.is_ok_and(|memory| memory.shared))
        {
            return Err(unsupported("a shared memory"));
        }
    }
    Ok(())
}

/// Refuses an instance whose calls of imported functions cannot be recorded: each must be a
/// function of the host, and another one than the others.
pub(crate) fn check_imports(store: impl AsContext, instance: Instance) -> Result<(), Error> {
    let module = instance.module(store.as_context()).clone();
    let functions = module.imports().filter(|import| matches!(import.ty(), ExternType::Func(_)));
    for (index, import) in (0..).zip(functions) {
        let func = instance.func(store.as_context(), index).expect("an instance has its imports");
        let what = match instance.import_index(store.as_context(), &func) {
            _ if !func.is_host(store.as_context()) => "a function of another instance",
            first if first != Some(index) => "the same function as an import before",
            _ => continue,
        };
        return Err(unsupported(format!("the import {}.{}, {what}", import.module(), import.name())));
    }
    Ok(())
}

/// Whether elements of such tables can be recorded.
pub(crate) fn has_recorded_form(ty: RefType) -> bool {
    ty == RefType::FUNCREF || ty == RefType::EXTERNREF
}

/// The indices of globals that are imported or exported: the host can change them.
pub(crate) fn shared_globals(module: &Module) -> Result<BTreeSet<u32>, Error> {
    let imported = module.imports().filter(|import| matches!(import.ty(), ExternType::Global(_)));
    let mut indices: BTreeSet<u32> = (0..imported.count() as u32).collect();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            if export.kind == ExternalKind::Global {
                indices.insert(export.index);
            }
        }
    }
    Ok(indices)
}
