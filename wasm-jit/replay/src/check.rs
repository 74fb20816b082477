//! Checks whether a module can be recorded, as far as that is known before the program runs.

use std::collections::BTreeSet;

use wasm_jit::wasmparser::{ExternalKind, Parser, Payload};
use wasm_jit::{ExternType, Instance, Module, Mutability, RefType};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};

/// Returns an error for a module that cannot be recorded.
pub(crate) fn check(module: &Module) -> Result<(), Error> {
    if module.start_function().is_some_and(|start| start.body().is_none()) {
        return Err(unsupported("a start function that is imported"));
    }
    for import in module.imports() {
        let what = match import.ty() {
            ExternType::Func(_) | ExternType::Global(_) | ExternType::Tag(_) => continue,
            ExternType::Memory(ty) if !ty.is_shared() => continue,
            ExternType::Memory(_) => "a shared memory".to_owned(),
            ExternType::Table(ty) if has_recorded_form(ty.element()) => continue,
            ExternType::Table(ty) => format!("a table of {}", ty.element()),
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

/// Returns an error for an instance with two equal imports: in a replay they would be different.
/// The store is observed, so each import of another instance's function is a separate function.
pub(crate) fn check_imports(store: &dyn AnyStore, instance: Instance) -> Result<(), Error> {
    let module = store.module(instance).clone();
    let (mut memories, mut tables, mut globals, mut tags) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut functions = 0..;
    for import in module.imports() {
        let what = match import.ty() {
            ExternType::Func(_) => {
                let index = functions.next().expect("an index");
                let func = store.func(instance, index).expect("an instance has its imports");
                match store.import_index(instance, &func) {
                    first if first != Some(index) => "the same function as an import before",
                    _ => continue,
                }
            }
            ExternType::Memory(_) if repeats(&mut memories, |index| store.memory(instance, index)) => {
                "the same memory as an import before"
            }
            ExternType::Table(_) if repeats(&mut tables, |index| store.table(instance, index)) => {
                "the same table as an import before"
            }
            ExternType::Global(ty)
                if repeats(&mut globals, |index| store.global(instance, index))
                    && ty.mutability() == Mutability::Var =>
            {
                "the same global as an import before"
            }
            ExternType::Tag(_) if repeats(&mut tags, |index| store.tag(instance, index)) => {
                "the same tag as an import before"
            }
            _ => continue,
        };
        return Err(unsupported(format!("the import {}.{}, {what}", import.module(), import.name())));
    }
    Ok(())
}

/// Whether the next import of a kind equals one of the `known` ones, to which it is added.
fn repeats<T: PartialEq>(known: &mut Vec<T>, import: impl FnOnce(u32) -> Option<T>) -> bool {
    let item = import(known.len() as u32).expect("an instance has its imports");
    let is_known = known.contains(&item);
    known.push(item);
    is_known
}

/// Whether tables of this type can be recorded, whose elements must be null at first.
pub(crate) fn has_recorded_form(ty: RefType) -> bool {
    ty.is_nullable()
}

/// The indices of the globals that others can change: those that are imported or exported.
pub(crate) fn shared_globals(module: &Module) -> Result<BTreeSet<u32>, Error> {
    let imported = module.imports().filter(|import| matches!(import.ty(), ExternType::Global(_)));
    let mut globals: BTreeSet<u32> = (0..imported.count() as u32).collect();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            if export.kind == ExternalKind::Global {
                globals.insert(export.index);
            }
        }
    }
    Ok(globals)
}
