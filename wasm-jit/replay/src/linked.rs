//! Other instances in the store with which the recorded one is linked: they are a part of its host.
//!
//! 1. While the store is observed ([`CallObserver`](wasm_jit::CallObserver)), calls to and from
//!    functions of other instances go through the host, whether by imports or through references.
//!    The recording is notified of them.
//! 2. Others may change the memories and tables that they have in common with the instance
//!    ([`Common`]). Before the host calls one of them, these are copied; the copies are compared
//!    when the recorded program continues ([`Copies`]). Host functions of others may make further
//!    instances, which have something in common with it: that is copied before they are called.
//!    What their active segments write is in the store's log of writes. Globals are compared in any
//!    case.
//! 3. Functions of others to which the instance gets references have numbers in the trace
//!    ([`Functions`]).

use std::collections::BTreeSet;

use wasm_jit::{Instance, Memory, Table};

use super::any_store::AnyStore;
use super::functions::Functions;
use super::state::element;
use super::value::Value;
use super::writes;

/// The indices of the memories and tables of an instance that other instances in the store have,
/// too: only these can change while others run.
#[derive(Default)]
pub(crate) struct Common {
    memories: BTreeSet<u32>,
    tables: BTreeSet<u32>,
    /// The number of instances of the store that were looked at.
    known: usize,
}

impl Common {
    /// Adds what new instances have in common with this one, which has these memories and tables.
    pub(crate) fn update(
        &mut self,
        store: &dyn AnyStore,
        instance: Instance,
        memories: &[(Memory, u64)],
        tables: &[(Table, u64)],
    ) {
        let instances = store.instances();
        let number = instances.len();
        for other in instances.skip(self.known).filter(|other| *other != instance) {
            let of_other = (0..).map_while(|index| store.memory(other, index));
            let indices = of_other.filter_map(|other| memories.iter().position(|(own, _)| *own == other));
            self.memories.extend(indices.map(|index| index as u32));
            let of_other = (0..).map_while(|index| store.table(other, index));
            let indices = of_other.filter_map(|other| tables.iter().position(|(own, _)| *own == other));
            self.tables.extend(indices.map(|index| index as u32));
        }
        self.known = number;
    }
}

/// Memories and tables of an instance, by index, as they were before other instances ran.
#[derive(Default)]
pub(crate) struct Copies {
    memories: Vec<(u32, Vec<u8>)>,
    tables: Vec<(u32, Vec<Option<Value>>)>,
}

impl Copies {
    /// Copies what is common and was not copied yet.
    pub(crate) fn add(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: &Functions,
        common: &Common,
    ) {
        for index in &common.memories {
            if self.memories.iter().all(|(copied, _)| copied != index)
                && let Some(memory) = store.memory(instance, *index)
            {
                self.memories.push((*index, store.bytes(memory).to_vec()));
            }
        }
        for index in &common.tables {
            if self.tables.iter().all(|(copied, _)| copied != index)
                && let Some(table) = store.table(instance, *index)
            {
                let elements = 0..store.elements(table);
                let elements = elements.map(|at| element(store, instance, functions, table, at)).collect();
                self.tables.push((*index, elements));
            }
        }
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
