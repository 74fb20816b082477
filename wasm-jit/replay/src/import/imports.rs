//! [`make`]: what the program imports.
//!
//! The text has the values of imported globals. It does not have the contents of imported memories
//! and tables, only what the program reads there, and in most versions not their sizes: they begin
//! empty, with the size that the program declares, as in the replays of Wasm-R3.

use std::collections::{BTreeMap, HashMap};

use wasm_jit::{
    AsContextMut, Caller, Extern, ExternType, Func, FuncType, Global, GlobalType, Memory, MemoryType, Module,
    Store, Table, TableType, Tag, Val, ValType,
};

use super::text::{Size, Text};
use super::{Host, at, called, list};
use crate::error::Error;
use crate::rerun::{memory_type, table_type};

/// Makes the imports of a module, in their order.
pub(super) fn make(store: &mut Store<Host>, module: &Module, text: &Text) -> Result<Vec<Extern>, Error> {
    let mut functions: HashMap<(&str, &str), Vec<u32>> = HashMap::new();
    let of_functions = module.imports().filter(|import| matches!(import.ty(), ExternType::Func(_)));
    for (index, import) in (0..).zip(of_functions) {
        functions.entry((import.module(), import.name())).or_default().push(index);
    }
    let (mut imports, mut memories, mut tables, mut globals) = (Vec::new(), 0, 0, 0);
    for import in module.imports() {
        let names = (import.module(), import.name());
        let without =
            |what: &str| Error::NotImported { what: format!("it imports {}.{}, {what}", names.0, names.1) };
        imports.push(match import.ty() {
            ExternType::Func(ty) => function(store, functions[&names].clone(), ty.clone())?.into(),
            ExternType::Memory(ty) => {
                memories += 1;
                memory(store, memories - 1, *ty, &text.memories)?.into()
            }
            ExternType::Table(ty) if !ty.element().is_nullable() => {
                return Err(without("a table whose elements are never null"));
            }
            ExternType::Table(ty) => {
                tables += 1;
                table(store, tables - 1, *ty, &text.tables)?.into()
            }
            ExternType::Global(ty) => {
                globals += 1;
                let made = global(store, globals - 1, *ty, &text.globals)?;
                made.ok_or_else(|| without("a global whose value is not in the text (IG)"))?.into()
            }
            ExternType::Tag(ty) => Tag::new(&mut *store, ty)?.into(),
        });
    }
    let memory = text.memories.last_key_value().map(|(index, size)| (index, size.line));
    let table = text.tables.last_key_value().map(|(index, size)| (index, size.line));
    let global = text.globals.last_key_value().map(|(index, (line, _))| (index, *line));
    for (what, last, number) in
        [("memory", memory, memories), ("table", table, tables), ("global", global, globals)]
    {
        if let Some((index, line)) = last.filter(|(index, _)| **index >= number) {
            return Err(at(line, format!("the program does not import a {what} {index}")));
        }
    }
    Ok(imports)
}

/// A function that executes the steps of the host. It is called as any of these imports, which have
/// its name.
fn function(store: &mut Store<Host>, imports: Vec<u32>, ty: FuncType) -> Result<Func, Error> {
    let types: Vec<ValType> = ty.results().collect();
    let host = move |mut caller: Caller<'_, Host>, _: &[Val], results: &mut [Val]| {
        let store = &mut caller.as_context_mut();
        match called(store, &imports, &types) {
            Ok(Some(values)) => {
                results.clone_from_slice(&values);
                return Ok(());
            }
            // The end of the text, or a failure of a function that the host has called.
            Ok(None) => {}
            Err(error) => _ = store.data_mut().failed.get_or_insert(error),
        }
        Err(wasm_jit::Error::host("the text does not go on here"))
    };
    Ok(Func::new(store, ty, host)?)
}

fn memory(
    store: &mut Store<Host>,
    index: u32,
    ty: MemoryType,
    sizes: &BTreeMap<u32, Size>,
) -> Result<Memory, Error> {
    let Some(&Size { line, number, maximum }) = sizes.get(&index) else {
        return Ok(Memory::new(store, ty)?);
    };
    let made = memory_type(&ty, number.into(), maximum.map(u64::from).or(ty.maximum()));
    Memory::new(store, made.expect("these sizes have 32 bits")).map_err(|error| at(line, error))
}

fn table(
    store: &mut Store<Host>,
    index: u32,
    ty: TableType,
    sizes: &BTreeMap<u32, Size>,
) -> Result<Table, Error> {
    let null = Val::default_for_ty(ValType::Ref(ty.element()));
    let Some(&Size { line, number, maximum }) = sizes.get(&index) else {
        return Ok(Table::new(store, ty, null)?);
    };
    let made = table_type(&ty, number.into(), maximum.map(u64::from).or(ty.maximum()));
    Table::new(store, made.expect("these sizes have 32 bits"), null).map_err(|error| at(line, error))
}

/// `None` for a global that must have a value.
fn global(
    store: &mut Store<Host>,
    index: u32,
    ty: GlobalType,
    values: &BTreeMap<u32, (u64, String)>,
) -> Result<Option<Global>, Error> {
    let value = match values.get(&index) {
        Some((line, value)) => list(*line, value, &[ty.content()])?.remove(0),
        None if matches!(ty.content(), ValType::Ref(of) if !of.is_nullable()) => return Ok(None),
        None => Val::default_for_ty(ty.content()),
    };
    Ok(Some(Global::new(store, ty, value)?))
}
