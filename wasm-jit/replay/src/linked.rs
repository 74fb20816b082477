//! Other instances in the store, with which the recorded one is linked: they are a part of its
//! host.
//!
//! 1. Calls of imports, by the recorded instance and by others, are calls of the host while the
//!    store is observed ([`CallObserver`](wasm_jit::CallObserver)): the recording is notified of
//!    them.
//! 2. Others may change the memories and tables that it imports or exports. Before the host calls
//!    one of them, these are copied, and compared when the recorded program continues ([`Copies`]).
//!    Globals are compared in any case.
//! 3. Nobody is notified of calls through references to functions of other instances. The recorded
//!    instance has no such references: they are refused when it gets one. Where another instance
//!    has one to a function of the recorded one, its call is noticed: while others run, probes at
//!    the entries of the functions that they can have are on ([`Entries`]).

use std::collections::BTreeSet;

use wasm_jit::probes::{
    GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all, deactivate_all,
};
use wasm_jit::wasmparser::{ConstExpr, ElementItems, ExternalKind, Operator, Parser, Payload, TableInit};
use wasm_jit::{AsContext, AsContextMut, Instance, Memory, Module, Table};

use super::accesses;
use super::error::Error;
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
            Some((*index, elements.map(|at| element(&mut store, instance, table, at)).collect()))
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
        table: Table,
        mut store: impl AsContextMut,
    ) -> Vec<u64> {
        let Some((_, before)) = self.tables.iter().find(|(of, _)| *of == index) else { return Vec::new() };
        let elements = 0..table.size(store.as_context());
        let is_changed = |at: &u64| {
            match (before.get(*at as usize), element(&mut store, instance, table, *at)) {
                // Without a recorded form: it is refused.
                (_, None) => true,
                (Some(before), now) => *before != now,
                (None, Some(now)) => !now.is_null(),
            }
        };
        elements.filter(is_changed).collect()
    }
}

/// Probes at the entries of functions that other instances can call without the host.
pub(crate) struct Entries {
    probes: Vec<Probe>,
    are_on: bool,
}

impl Entries {
    /// They are on at first. With an error of `check`, which gets the instance, the call fails.
    pub(crate) fn new(
        module: &Module,
        check: impl Fn(Instance) -> Result<(), wasm_jit::Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let closure = GenericFn::new(move |frame| check(frame.instance()));
        let spec = |function: u32| ProbeSpec {
            location: Location { function, place: Place::Entry },
            kind: Kind::Generic(closure.clone()),
        };
        let has_code =
            |index: &u32| module.function(*index).is_some_and(|function| function.body().is_some());
        let specs: Vec<_> = escaping(module)?.into_iter().filter(has_code).map(spec).collect();
        let probes = accesses::make(module, &specs).map_err(accesses::refused)?;
        Ok(Self { probes, are_on: true })
    }

    /// Switches them on while they are needed; makes them when they are first.
    pub(crate) fn keep(
        entries: &mut Option<Self>,
        are_needed: bool,
        make: impl FnOnce() -> Result<Self, Error>,
    ) -> Result<(), Error> {
        match entries {
            None if are_needed => *entries = Some(make()?),
            Some(entries) if entries.are_on != are_needed => {
                let switch = if are_needed { activate_all } else { deactivate_all };
                done(switch(&entries.probes))?;
                entries.are_on = are_needed;
            }
            _ => {}
        }
        Ok(())
    }
}

fn done(results: Vec<Result<(), ProbeError>>) -> Result<(), Error> {
    results.into_iter().collect::<Result<(), _>>().map_err(accesses::refused)
}

/// The functions of which others can have references: a function can only make one of those that
/// the module mentions outside of code.
fn escaping(module: &Module) -> Result<BTreeSet<u32>, Error> {
    let mut functions = BTreeSet::new();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        match payload? {
            Payload::ExportSection(exports) => {
                for export in exports {
                    let export = export?;
                    if export.kind == ExternalKind::Func {
                        functions.insert(export.index);
                    }
                }
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    if let TableInit::Expr(init) = table?.init {
                        mentioned(&init, &mut functions)?;
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    mentioned(&global?.init_expr, &mut functions)?;
                }
            }
            Payload::ElementSection(segments) => {
                for segment in segments {
                    match segment?.items {
                        ElementItems::Functions(items) => {
                            for function in items {
                                functions.insert(function?);
                            }
                        }
                        ElementItems::Expressions(_, items) => {
                            for item in items {
                                mentioned(&item?, &mut functions)?;
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(functions)
}

fn mentioned(expression: &ConstExpr<'_>, functions: &mut BTreeSet<u32>) -> Result<(), Error> {
    for operator in expression.get_operators_reader() {
        if let Operator::RefFunc { function_index } = operator? {
            functions.insert(function_index);
        }
    }
    Ok(())
}
