//! Other instances in the store, with which the recorded one is linked: they are a part of its
//! host.
//!
//! 1. Functions of other instances that it imports are called through functions of the host
//!    ([`through_host`]), of which the observer of the store is notified. So are its own, if others
//!    import them as [`Recorder::define_exports`](super::Recorder::define_exports) defines them.
//! 2. Others may change the memories and tables that it imports or exports. Before the host calls
//!    one of them, these are copied, and compared when the recorded program continues ([`Copies`]).
//!    Globals are compared in any case.
//! 3. A direct call of the recorded instance, of which nobody is notified, is refused: while others
//!    run, probes at the entries of the functions that they can have are on ([`Entries`]).

use std::collections::BTreeSet;

use wasm_jit::probes::{
    GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all, deactivate_all,
};
use wasm_jit::wasmparser::{ConstExpr, ElementItems, ExternalKind, Operator, Parser, Payload, TableInit};
use wasm_jit::{AsContext, AsContextMut, Caller, Func, Instance, Memory, Module, Table};

use super::accesses;
use super::error::{Error, unsupported};
use super::state::element;
use super::value::Value;
use super::writes;

/// A function of the host that calls a function.
///
/// # Errors
/// Those of [`Func::new`].
pub(crate) fn through_host<T: 'static>(
    store: impl AsContextMut<Data = T>,
    func: Func,
) -> Result<Func, wasm_jit::Error> {
    let ty = func.ty(store.as_context());
    Func::new(store, ty, move |mut caller: Caller<'_, T>, arguments, results| {
        func.call(caller.as_context_mut(), arguments, results)
    })
}

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
pub(crate) struct Entries(Vec<Probe>);

impl Entries {
    /// They are on at first. A call of an instance for which `is_direct` returns true fails.
    pub(crate) fn new(
        module: &Module,
        is_direct: impl Fn(Instance) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let closure = GenericFn::new(move |frame| match is_direct(frame.instance()) {
            true => {
                let what = "a call by another instance that does not pass through the host";
                Err(wasm_jit::Error::host(unsupported(what)))
            }
            false => Ok(()),
        });
        let spec = |function: u32| ProbeSpec {
            location: Location { function, place: Place::Entry },
            kind: Kind::Generic(closure.clone()),
        };
        let has_code =
            |index: &u32| module.function(*index).is_some_and(|function| function.body().is_some());
        let specs: Vec<_> = escaping(module)?.into_iter().filter(has_code).map(spec).collect();
        accesses::make(module, &specs).map(Self).map_err(accesses::refused)
    }

    pub(crate) fn activate(&self) -> Result<(), Error> {
        done(activate_all(&self.0))
    }

    pub(crate) fn deactivate(&self) -> Result<(), Error> {
        done(deactivate_all(&self.0))
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
