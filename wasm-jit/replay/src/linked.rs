//! Other instances in the store, with which the recorded one is linked: they are a part of its
//! host.
//!
//! 1. Calls of functions of other instances are calls of the host while the store is observed
//!    ([`CallObserver`](wasm_jit::CallObserver)), in both directions: of imports, and through
//!    references. The recording is notified of them.
//! 2. Others may change the memories and tables that it imports or exports. Before the host calls
//!    one of them, these are copied, and compared when the recorded program continues ([`Copies`]).
//!    Globals are compared in any case.
//! 3. Functions of others to which it gets references have numbers in the trace
//!    ([`Functions`]).

use std::collections::BTreeSet;

use wasm_jit::{AsContext, AsContextMut, Instance, Memory, Table};

use super::functions::Functions;
use super::state::element;
use super::value::Value;
use super::writes;

/// Memories and tables of an instance, by their indices, as they were before others ran.
pub(crate) struct Copies {
    memories: Vec<(u32, Vec<u8>)>,
    tables: Vec<(u32, Vec<Option<Value>>)>,
}

impl Copies {
    pub(crate) fn of(
        mut store: impl AsContextMut,
        instance: Instance,
        functions: &Functions,
        memories: &BTreeSet<u32>,
        tables: &BTreeSet<u32>,
    ) -> Self {
        let memories = memories.iter().filter_map(|index| {
            let memory = instance.memory(store.as_context(), *index)?;
            Some((*index, memory.data(store.as_context()).to_vec()))
        });
        let memories = memories.collect();
        let tables = tables.iter().filter_map(|index| {
            let table = instance.table(store.as_context(), *index)?;
            let elements = 0..table.size(store.as_context());
            Some((*index, elements.map(|at| element(&mut store, instance, functions, table, at)).collect()))
        });
        Self { memories, tables: tables.collect() }
    }

    /// The ranges of bytes of a memory that have changed.
    pub(crate) fn changed_bytes(
        &self,
        index: u32,
        memory: Memory,
        store: impl AsContext,
    ) -> Vec<(usize, usize)> {
        let Some((_, before)) = self.memories.iter().find(|(of, _)| *of == index) else { return Vec::new() };
        let (now, added) = memory.data(store.as_context()).split_at(before.len());
        let mut changed = writes::changed(before, now);
        // New pages are zero.
        let added = writes::runs((0..added.len()).filter(|at| added[*at] != 0)).into_iter();
        changed.extend(added.map(|(start, end)| (before.len() + start, before.len() + end)));
        changed
    }

    /// The elements of a table that have changed.
    pub(crate) fn changed_elements(
        &self,
        index: u32,
        instance: Instance,
        functions: &Functions,
        table: Table,
        mut store: impl AsContextMut,
    ) -> Vec<u64> {
        let Some((_, before)) = self.tables.iter().find(|(of, _)| *of == index) else { return Vec::new() };
        let elements = 0..table.size(store.as_context());
        let is_changed = |at: &u64| {
            match (before.get(*at as usize), element(&mut store, instance, functions, table, *at)) {
                // Without a recorded form: it is refused.
                (_, None) => true,
                (Some(before), now) => *before != now,
                (None, Some(now)) => !now.is_null(),
            }
        };
        elements.filter(is_changed).collect()
    }
}
