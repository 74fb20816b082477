//! Records a program's imports other than functions: memories, tables and globals.
//!
//! A replay cannot begin with the state of a new instance: the host may have filled imported
//! memories before, perhaps with another program. Therefore the trace has the sizes of imported
//! memories and tables, the values of imported globals, and the contents of the memories and tables
//! after the program's own segments have been copied there and before any of its functions runs. In
//! a replay, they belong to the program.
//!
//! From then on, their changes are recorded like those of exported ones, including changes by other
//! instances that share them (`linked.rs`).

use wasm_jit::{ExternType, Instance, Memory, Mutability, Table};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::event::Event;
use super::functions::{Functions, Output, recorded};
use super::value::{Value, mutable_globals};
use super::writes;

/// The imported memories and tables of an instance, and the number of globals that it imports.
pub(crate) struct Imported {
    pub(crate) memories: Vec<Memory>,
    pub(crate) tables: Vec<Table>,
    globals: u32,
}

/// Writes the sizes of imported memories and tables, and the values of imported globals.
pub(crate) fn write(
    store: &mut dyn AnyStore,
    instance: Instance,
    out: &mut Output,
) -> Result<Imported, Error> {
    let (mut memories, mut tables, mut globals) = (Vec::new(), Vec::new(), 0);
    let module = store.module(instance).clone();
    for import in module.imports() {
        match import.ty() {
            ExternType::Memory(_) => {
                let index = memories.len() as u32;
                let memory = store.memory(instance, index).expect("an instance has its imports");
                let (pages, maximum) = (store.pages(memory), store.memory_type(memory).maximum());
                out.write(&Event::ImportMemory { memory: index, pages, maximum })?;
                memories.push(memory);
            }
            ExternType::Global(ty) => {
                let value = global(store, instance, &out.functions, globals, ty.mutability())?;
                out.write(&Event::ImportGlobal { global: globals, value })?;
                globals += 1;
            }
            ExternType::Table(_) => {
                let index = tables.len() as u32;
                let table = store.table(instance, index).expect("an instance has its imports");
                let (elements, maximum) = (store.elements(table), store.table_type(table).maximum());
                out.write(&Event::ImportTable { table: index, elements, maximum })?;
                tables.push(table);
            }
            ExternType::Func(_) | ExternType::Tag(_) => {}
        }
    }
    Ok(Imported { memories, tables, globals })
}

/// The value of an imported global. When a replay reads it, there are no functions yet: a mutable
/// global that holds a function is null at first.
fn global(
    store: &mut dyn AnyStore,
    instance: Instance,
    functions: &Functions,
    index: u32,
    mutability: Mutability,
) -> Result<Value, Error> {
    let global = store.global(instance, index).expect("an instance has its imports");
    let value = store.value(global);
    match recorded(&value, instance, functions, store)? {
        Value::Func(Some(_)) if mutability == Mutability::Var => Ok(Value::Func(None)),
        Value::Func(Some(_)) => Err(unsupported(format!("the imported global {index}, a constant function"))),
        value => Ok(value),
    }
}

/// Writes the contents of the imported memories and tables of a new instance, whose start function
/// has not run, and the functions in imported globals.
pub(crate) fn write_contents(
    store: &mut dyn AnyStore,
    instance: Instance,
    imported: Imported,
    out: &mut Output,
) -> Result<(), Error> {
    for (index, memory) in (0..).zip(imported.memories) {
        let bytes = store.bytes(memory);
        let is_set = |at: &usize| bytes[*at] != 0;
        for (from, to) in writes::runs((0..bytes.len()).filter(is_set)) {
            let (address, bytes) = (from as u64, bytes[from..to].to_vec());
            out.write(&Event::Write { memory: index, address, bytes })?;
        }
    }
    for (index, table) in (0..).zip(imported.tables) {
        for element in 0..store.elements(table) {
            let value = store.element(table, element).expect("it is in the table");
            let value = recorded(&value, instance, &out.functions, store)?;
            if !value.is_null() {
                out.write(&Event::SetElement { table: index, element, value })?;
            }
        }
    }
    let globals = mutable_globals(store, instance).into_iter();
    for (index, global) in globals.take_while(|(index, _)| *index < imported.globals) {
        let value = store.value(global);
        let value = recorded(&value, instance, &out.functions, store)?;
        if let Value::Func(Some(_)) = value {
            out.write(&Event::SetGlobal { global: index, value })?;
        }
    }
    Ok(())
}
