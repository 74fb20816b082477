//! [`State`]: memories, tables, globals and segments of an instance, as known to a replay.
//!
//! Differences from it become events of the host. The state at the beginning of a recording in the
//! middle of a run is written as the difference from an instance that was
//! [cleared](Event::Snapshot). It is written while it is read: no copy is made.

use wasm_jit::{Instance, Table};

use super::any_store::AnyStore;
use super::check::has_recorded_form;
use super::error::{Error, unsupported};
use super::event::Event;
use super::functions::{Functions, Output, in_instance, of_global};
use super::imported;
use super::objects;
use super::value::{Value, mutable_globals};
use super::writes::changed_blocks;

/// The state of an instance.
pub(crate) struct State {
    memories: Vec<Bytes>,
    tables: Vec<Elements>,
    /// The mutable globals by index; `None` if the value is not known.
    globals: Vec<(u32, Option<Value>)>,
    /// Whether each data segment, and each element segment, is empty.
    dropped: [Vec<bool>; 2],
}

/// A memory.
struct Bytes {
    pages: u64,
    /// The rest of the memory is zero.
    bytes: Vec<u8>,
}

/// A table.
pub(crate) struct Elements {
    size: u64,
    /// `None` for an element that cannot be recorded. The rest of the table is null.
    elements: Vec<Option<Value>>,
}

/// Writes the complete state of an instance.
pub(crate) fn write_snapshot(
    store: &mut dyn AnyStore,
    instance: Instance,
    out: &mut Output,
) -> Result<(), Error> {
    objects::refuse(store, instance)?;
    let imported = imported::write(store, instance, out)?;
    out.write(&Event::Snapshot)?;
    let (memories, tables) = (imported.memories.len(), imported.tables.len());
    let cleared = State::cleared(store, instance, memories, tables);
    let functions = out.functions.clone();
    cleared.write_changes(store, instance, &functions, &mut |event| out.write(&event))
}

/// Receives the events that describe a state.
pub(crate) type Sink<'s> = dyn FnMut(Event) -> Result<(), Error> + 's;

impl State {
    /// The state of a new instance after [`Event::Snapshot`]. The first `memories` and `tables` are
    /// imported.
    fn cleared(store: &mut dyn AnyStore, instance: Instance, memories: usize, tables: usize) -> Self {
        let mut this = Self::empty(store, instance);
        // Imported ones already have their sizes; the others have the sizes that the module
        // declares.
        for (index, memory) in (0..).zip(&mut this.memories).skip(memories) {
            let found = store.memory(instance, index).expect("it has this memory");
            memory.pages = store.memory_type(found).minimum();
        }
        for (index, table) in (0..).zip(&mut this.tables).skip(tables) {
            let found = store.table(instance, index).expect("it has this table");
            table.size = store.table_type(found).minimum();
        }
        this
    }

    /// A state in which memories and tables have their current sizes, but are empty.
    pub(crate) fn empty(store: &dyn AnyStore, instance: Instance) -> Self {
        let memories = (0..).map_while(|index| store.memory(instance, index));
        let memories = memories.map(|memory| Bytes { pages: store.pages(memory), bytes: Vec::new() });
        let tables = (0..).map_while(|index| store.table(instance, index));
        let tables = tables.map(|table| Elements { size: store.elements(table), elements: Vec::new() });
        let globals = mutable_globals(store, instance).into_iter().map(|(index, _)| (index, None));
        let (memories, tables, globals) = (memories.collect(), tables.collect(), globals.collect());
        Self { memories, tables, globals, dropped: Default::default() }
    }

    /// The current state of an instance. Copies its memories.
    pub(crate) fn of(store: &mut dyn AnyStore, instance: Instance, functions: &Functions) -> Self {
        let mut this = Self::empty(store, instance);
        for (index, memory) in (0..).zip(&mut this.memories) {
            let found = store.memory(instance, index).expect("it has this memory");
            memory.bytes = store.bytes(found).to_vec();
        }
        this.tables = Elements::of_all(store, instance, functions);
        for ((_, value), (_, global)) in this.globals.iter_mut().zip(mutable_globals(store, instance)) {
            *value = of_global(store, instance, functions, global);
        }
        this.dropped = dropped(store, instance);
        this
    }

    /// Writes the differences between this state and the current state of an instance.
    pub(crate) fn write_changes(
        &self,
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: &Functions,
        out: &mut Sink<'_>,
    ) -> Result<(), Error> {
        for (index, known) in (0..).zip(&self.memories) {
            let memory = store.memory(instance, index).expect("memories remain");
            let pages = store.pages(memory) - known.pages;
            if pages > 0 {
                out(Event::Grow { memory: index, pages })?;
            }
            let now = store.bytes(memory);
            for (from, to) in changed_blocks(&known.bytes, now) {
                let (address, bytes) = (from as u64, now[from..to].to_vec());
                out(Event::Write { memory: index, address, bytes })?;
            }
        }
        for (index, known) in (0..).zip(&self.tables) {
            known.write_changes(index, store, instance, functions, out)?;
        }
        for ((index, known), (_, global)) in self.globals.iter().zip(mutable_globals(store, instance)) {
            let now = of_global(store, instance, functions, global);
            let value = now.ok_or_else(|| unsupported(format!("the reference in global {index}")))?;
            if now != *known {
                out(Event::SetGlobal { global: *index, value })?;
            }
        }
        let now = dropped(store, instance);
        let newly = |kind: usize| {
            let known = self.dropped[kind].iter().copied().chain(std::iter::repeat(false));
            let dropped = (0..).zip(now[kind].iter().zip(known));
            dropped.filter(|(_, (now, known))| **now && !known).map(|(segment, _)| segment)
        };
        newly(0).try_for_each(|segment| out(Event::DropData { segment }))?;
        newly(1).try_for_each(|segment| out(Event::DropElements { segment }))
    }
}

impl Elements {
    /// The elements of all tables of an instance now.
    pub(crate) fn of_all(store: &mut dyn AnyStore, instance: Instance, functions: &Functions) -> Vec<Self> {
        let tables: Vec<Table> = (0..).map_while(|index| store.table(instance, index)).collect();
        let of = |table: Table| {
            let size = store.elements(table);
            let elements = (0..size).map(|at| element(store, instance, functions, table, at));
            Self { size, elements: elements.collect() }
        };
        tables.into_iter().map(of).collect()
    }

    /// Sets all elements to null.
    pub(crate) fn clear(&mut self) {
        self.elements.clear();
    }

    /// Writes the differences between this and the current elements of the table with this index.
    pub(crate) fn write_changes(
        &self,
        index: u32,
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: &Functions,
        out: &mut Sink<'_>,
    ) -> Result<(), Error> {
        let table = store.table(instance, index).expect("tables remain");
        let ty = store.table_type(table).element();
        if !has_recorded_form(ty) {
            return Err(unsupported(format!("table {index}, a table of {ty}")));
        }
        let size = store.elements(table);
        if size > self.size {
            out(Event::GrowTable { table: index, elements: size - self.size })?;
        }
        for at in 0..size {
            let now = element(store, instance, functions, table, at);
            let value =
                now.ok_or_else(|| unsupported(format!("the reference in element {at} of table {index}")))?;
            let is_known = match self.elements.get(at as usize) {
                Some(known) => *known == now,
                None => value.is_null(),
            };
            if !is_known {
                out(Event::SetElement { table: index, element: at, value })?;
            }
        }
        Ok(())
    }
}

/// An element of a table, if it can be recorded.
pub(crate) fn element(
    store: &mut dyn AnyStore,
    instance: Instance,
    functions: &Functions,
    table: Table,
    at: u64,
) -> Option<Value> {
    let value = store.element(table, at).expect("it is in the table");
    in_instance(&value, instance, functions, store)
}

/// Whether each data segment, and each element segment, is empty.
fn dropped(store: &dyn AnyStore, instance: Instance) -> [Vec<bool>; 2] {
    [
        (0..).map_while(|segment| store.is_data_dropped(instance, segment)).collect(),
        (0..).map_while(|segment| store.are_elements_dropped(instance, segment)).collect(),
    ]
}
