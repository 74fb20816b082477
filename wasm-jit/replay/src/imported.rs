//! What a program imports besides functions: memories, tables and globals.
//!
//! A new instance is not the state that a replay can begin with: the host has filled its memory
//! before, perhaps with another program. So the trace says how large imported memories and tables
//! are, which values imported globals have, and what is in the memories and tables, after the
//! program's own segments have been copied there and before any of its functions runs. In a replay
//! they are the program's own.
//!
//! From then on, changes of them are recorded as those of exported ones. Another program that has
//! the same memory cannot change it meanwhile: calls of other instances are refused.

use wasm_jit::{ExternType, Instance, Module, Store};

use super::error::Error;
use super::event::Event;
use super::trace::Writer;
use super::value::recorded;
use super::writes;

/// Writes the events of the imports of a new instance, whose start function has not run.
pub(crate) fn write<T: 'static>(
    module: &Module,
    store: &mut Store<T>,
    instance: &Instance,
    out: &mut Writer,
) -> Result<(), Error> {
    let (mut memories, mut tables, mut globals) = (Vec::new(), Vec::new(), 0);
    for import in module.imports() {
        match import.ty() {
            ExternType::Memory(_) => {
                let index = memories.len() as u32;
                let memory = instance.memory(&*store, index).expect("an instance has its imports");
                let (pages, maximum) = (memory.size(&*store), memory.ty(&*store).maximum());
                out.write(&Event::ImportMemory { memory: index, pages, maximum })?;
                memories.push(memory);
            }
            ExternType::Global(_) => {
                let global = instance.global(&*store, globals).expect("an instance has its imports");
                let value = recorded(&global.get(&mut *store), instance, &*store)?;
                out.write(&Event::ImportGlobal { global: globals, value })?;
                globals += 1;
            }
            ExternType::Table(_) => {
                let index = tables.len() as u32;
                let table = instance.table(&*store, index).expect("an instance has its imports");
                let (elements, maximum) = (table.size(&*store), table.ty(&*store).maximum());
                out.write(&Event::ImportTable { table: index, elements, maximum })?;
                tables.push(table);
            }
            ExternType::Func(_) | ExternType::Tag(_) => {}
        }
    }
    for (index, memory) in (0..).zip(memories) {
        let bytes = memory.data(&*store);
        let is_set = |at: &usize| bytes[*at] != 0;
        for (from, to) in writes::runs((0..bytes.len()).filter(is_set)) {
            let (address, bytes) = (from as u64, bytes[from..to].to_vec());
            out.write(&Event::Write { memory: index, address, bytes })?;
        }
    }
    for (index, table) in (0..).zip(tables) {
        for element in 0..table.size(&*store) {
            let value = table.get(&mut *store, element).expect("it is in the table");
            let value = recorded(&value, instance, &*store)?;
            if !value.is_null() {
                out.write(&Event::SetElement { table: index, element, value })?;
            }
        }
    }
    Ok(())
}
