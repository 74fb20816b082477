//! Other instances in the store with which the recorded one is linked: they are a part of its host.
//!
//! 1. While the store is observed ([`CallObserver`](wasm_jit::CallObserver)), calls to and from
//!    functions of other instances go through the host, whether by imports or through references.
//!    The recording is notified of them.
//! 2. Others may change the memories and tables that the instance imports or exports. Before the
//!    host calls one of them, these are copied; the copies are compared when the recorded program
//!    continues ([`Copies`]). Globals are compared in any case.
//! 3. Functions of others to which the instance gets references have numbers in the trace
//!    ([`Functions`]).

use std::collections::BTreeSet;

use wasm_jit::{Instance, Memory, Table};

use super::any_store::AnyStore;
use super::functions::Functions;
use super::state::element;
use super::value::Value;
use super::writes;

/// Memories and tables of an instance, by index, as they were before other instances ran.
pub(crate) struct Copies {
    memories: Vec<(u32, Vec<u8>)>,
    tables: Vec<(u32, Vec<Option<Value>>)>,
}

impl Copies {
    pub(crate) fn of(
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: &Functions,
        memories: &BTreeSet<u32>,
        tables: &BTreeSet<u32>,
    ) -> Self {
        let memories = memories.iter().filter_map(|index| {
            let memory = store.memory(instance, *index)?;
            Some((*index, store.bytes(memory).to_vec()))
        });
        let memories = memories.collect();
        let tables = tables.iter().filter_map(|index| {
            let table = store.table(instance, *index)?;
            let elements = 0..store.elements(table);
            Some((*index, elements.map(|at| element(store, instance, functions, table, at)).collect()))
        });
        Self { memories, tables: tables.collect() }
    }

    /// The byte ranges of a memory that have changed.
    pub(crate) fn changed_bytes(
        &self,
        index: u32,
        memory: Memory,
        store: &dyn AnyStore,
    ) -> Vec<(usize, usize)> {
        let Some((_, before)) = self.memories.iter().find(|(of, _)| *of == index) else { return Vec::new() };
        let (now, added) = store.bytes(memory).split_at(before.len());
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
        store: &mut dyn AnyStore,
    ) -> Vec<u64> {
        let Some((_, before)) = self.tables.iter().find(|(of, _)| *of == index) else { return Vec::new() };
        let elements = 0..store.elements(table);
        let is_changed = |at: &u64| {
            match (before.get(*at as usize), element(store, instance, functions, table, *at)) {
                // It cannot be recorded, and is refused.
                (_, None) => true,
                (Some(before), now) => *before != now,
                (None, Some(now)) => !now.is_null(),
            }
        };
        elements.filter(is_changed).collect()
    }
}
