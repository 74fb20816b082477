//! [`Recording`]: writes what happens between the host and an instance.

use std::collections::BTreeSet;

use wasm_jit::{ChangedElements, Func, Global, Instance, Memory, Module, Table, Val, WriteLog};

use super::any_store::AnyStore;
use super::check::{check_imports, shared_globals};
use super::error::{Error, unsupported};
use super::event::{Event, Reason};
use super::exception::Tags;
use super::functions::{Functions, Output, all_recorded, recorded};
use super::linked::{Common, Copies};
use super::trace::Writer;
use super::value::{Value, mutable_globals};
use super::writes;

/// The instance that is recorded, and its state when the program last stopped running.
struct Recorded {
    instance: Instance,
    /// All memories, with their sizes in pages at that time.
    memories: Vec<(Memory, u64)>,
    /// All tables, with their sizes at that time.
    tables: Vec<(Table, u64)>,
    /// Mutable globals that are imported or exported, by index in the module, with their values at
    /// that time.
    globals: Vec<(u32, Global, Option<Value>)>,
    log: WriteLog,
    common: Common,
    functions: Functions,
    /// The number of calls by the host to other instances that have not ended.
    others: u32,
    /// What such calls may change, as it was at that time or when one was called.
    copies: Copies,
    /// The amount of fuel at the beginning, if it is limited.
    fuel: Option<u64>,
}

impl Recorded {
    /// The host runs from now on.
    fn begin_host(&mut self, store: &mut dyn AnyStore) -> Result<(), Error> {
        self.copies = Copies::default();
        if self.others > 0 {
            self.copy(store);
        }
        store.restart_log(&mut self.log);
        for (memory, pages) in &mut self.memories {
            *pages = store.pages(*memory);
        }
        for (table, size) in &mut self.tables {
            *size = store.elements(*table);
        }
        for (_, global, value) in &mut self.globals {
            let now = store.value(*global);
            *value = Some(recorded(&now, self.instance, &self.functions, store)?);
        }
        Ok(())
    }

    /// Copies what other instances have in common with this one, unless that was done.
    fn copy(&mut self, store: &mut dyn AnyStore) {
        self.common.update(store, self.instance, &self.memories, &self.tables);
        self.copies.add(store, self.instance, &self.functions, &self.common);
    }

    /// The host calls a function of another instance.
    fn enter_other(&mut self, store: &mut dyn AnyStore) {
        self.others += 1;
        self.copy(store);
    }

    /// The program runs from now on. Writes what has changed since the host ran.
    fn end_host(&mut self, store: &mut dyn AnyStore, out: &mut Output) -> Result<(), Error> {
        let copies = std::mem::take(&mut self.copies);
        for (index, (memory, before)) in self.memories.iter().enumerate() {
            let pages = store.pages(*memory) - before;
            if pages > 0 {
                out.write(&Event::Grow { memory: index as u32, pages })?;
            }
        }
        for before in self.log.take() {
            let Some(index) = self.memories.iter().position(|(memory, _)| *memory == before.memory) else {
                continue;
            };
            let now = store.bytes(before.memory);
            let now = &now[before.offset..before.offset + before.bytes.len()];
            for (start, end) in writes::changed(&before.bytes, now) {
                let (address, bytes) = ((before.offset + start) as u64, now[start..end].to_vec());
                out.write(&Event::Write { memory: index as u32, address, bytes })?;
            }
        }
        for (index, (memory, _)) in (0..).zip(&self.memories) {
            for (start, end) in copies.changed_bytes(index, *memory, store) {
                let bytes = store.bytes(*memory)[start..end].to_vec();
                out.write(&Event::Write { memory: index, address: start as u64, bytes })?;
            }
        }
        for (index, global, before) in &self.globals {
            let now = store.value(*global);
            let value = recorded(&now, self.instance, &self.functions, store)?;
            if Some(value) != *before {
                out.write(&Event::SetGlobal { global: *index, value })?;
            }
        }
        self.end_tables(&copies, store, out)
    }

    fn end_tables(
        &mut self,
        copies: &Copies,
        store: &mut dyn AnyStore,
        out: &mut Output,
    ) -> Result<(), Error> {
        for (index, (table, before)) in (0..).zip(&self.tables) {
            let elements = store.elements(*table) - before;
            if elements > 0 {
                out.write(&Event::GrowTable { table: index, elements })?;
            }
        }
        let mut changed = BTreeSet::new();
        for ChangedElements { table, first, length } in self.log.take_elements() {
            if let Some(index) = self.tables.iter().position(|(known, _)| *known == table) {
                changed.extend((first..first + length).map(|element| (index, element)));
            }
        }
        for (index, (table, _)) in self.tables.iter().enumerate() {
            let (index_in_module, functions) = (index as u32, &self.functions);
            let elements = copies.changed_elements(index_in_module, self.instance, functions, *table, store);
            changed.extend(elements.into_iter().map(|element| (index, element)));
        }
        for (index, element) in changed {
            let (table, before) = self.tables[index];
            let now = store.element(table, element).expect("tables do not shrink");
            let value = recorded(&now, self.instance, &self.functions, store)?;
            // New elements are null.
            if element < before || !value.is_null() {
                out.write(&Event::SetElement { table: index as u32, element, value })?;
            }
        }
        Ok(())
    }

    fn values(&self, values: &[Val], store: &dyn AnyStore) -> Result<Vec<Value>, Error> {
        all_recorded(values, self.instance, &self.functions, store)
    }

    /// The event for a call that ends without returning.
    fn failure(
        &self,
        store: &mut dyn AnyStore,
        error: &wasm_jit::Error,
        tags: &mut Tags,
    ) -> Result<Event, Error> {
        Ok(match error {
            wasm_jit::Error::Exception { exception, .. } => {
                Event::Throw(tags.recorded(store, self.instance, &self.functions, exception)?)
            }
            error => Event::Fail { reason: Some(Reason::of(error, self.fuel)) },
        })
    }
}

/// A trace, and the instance that is recorded; calls while there is no instance are ignored.
pub(crate) struct Recording {
    pub(crate) out: Output,
    recorded: Option<Recorded>,
    tags: Tags,
}

impl Recording {
    /// A new trace of a module.
    pub(crate) fn new(module: &Module, writer: Writer) -> Self {
        Self { out: Output::new(module, writer), recorded: None, tags: Tags::default() }
    }

    /// Records an instance from now on; its state was written. The program runs.
    pub(crate) fn begin(&mut self, store: &mut dyn AnyStore, instance: Instance) -> Result<(), Error> {
        check_imports(store, instance)?;
        let shared = shared_globals(store.module(instance))?;
        let memories = (0..).map_while(|index| Some((store.memory(instance, index)?, 0)));
        let memories = memories.collect();
        let tables = (0..).map_while(|index| Some((store.table(instance, index)?, 0)));
        let tables = tables.collect();
        let globals = mutable_globals(store, instance).into_iter();
        let globals = globals.filter(|(index, _)| shared.contains(index));
        let globals = globals.map(|(index, global)| (index, global, None)).collect();
        let log = store.start_log();
        let fuel = store.fuel().ok();
        self.recorded = Some(Recorded {
            instance,
            memories,
            tables,
            globals,
            log,
            common: Common::default(),
            functions: self.out.functions.clone(),
            others: 0,
            copies: Copies::default(),
            fuel,
        });
        Ok(())
    }

    /// The amount of fuel when the recording of the instance began, if it is limited.
    pub(crate) fn fuel(&self) -> Option<u64> {
        self.recorded.as_ref()?.fuel
    }

    /// Ends the recording of the instance.
    pub(crate) fn end(&mut self) {
        self.recorded = None;
    }

    /// The host runs from now on.
    pub(crate) fn begin_host(&mut self, store: &mut dyn AnyStore) -> Result<(), Error> {
        self.recorded.as_mut().map_or(Ok(()), |recorded| recorded.begin_host(store))
    }

    /// The host calls a function of the program or of another instance.
    pub(crate) fn enter(
        &mut self,
        store: &mut dyn AnyStore,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), .. } = self else { return Ok(()) };
        let Some(function) = store.func_index(recorded.instance, func) else {
            recorded.enter_other(store);
            return Ok(());
        };
        let arguments = recorded.values(arguments, store)?;
        recorded.end_host(store, out)?;
        out.write(&Event::Enter { function, arguments })?;
        out.flush()
    }

    /// The function returns to the host.
    pub(crate) fn leave(
        &mut self,
        store: &mut dyn AnyStore,
        func: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags, .. } = self else { return Ok(()) };
        if store.func_index(recorded.instance, func).is_none() {
            recorded.others = recorded.others.saturating_sub(1);
            return Ok(());
        }
        let event = match results {
            Ok(results) => Event::Leave { results: recorded.values(results, store)? },
            Err(error) => recorded.failure(store, error, tags)?,
        };
        out.write(&event)?;
        recorded.begin_host(store)?;
        out.flush()
    }

    /// An instance calls a host function. Calls by other instances, such as monitors, are ignored.
    pub(crate) fn enter_host(
        &mut self,
        store: &mut dyn AnyStore,
        caller: Option<Instance>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), .. } = self else { return Ok(()) };
        if caller != Some(recorded.instance) {
            return Ok(());
        }
        let import = recorded.functions.number(func, recorded.instance, store);
        let import = import.ok_or_else(|| unsupported("a call of a function of a type of its own"))?;
        let arguments = recorded.values(arguments, store)?;
        out.write(&Event::Call { import, arguments })?;
        recorded.begin_host(store)?;
        // The host may not return.
        out.flush()
    }

    /// The host function returns.
    pub(crate) fn leave_host(
        &mut self,
        store: &mut dyn AnyStore,
        caller: Option<Instance>,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags, .. } = self else { return Ok(()) };
        if caller != Some(recorded.instance) {
            // The host function may have made further instances.
            if recorded.others > 0 {
                recorded.copy(store);
            }
            return Ok(());
        }
        recorded.end_host(store, out)?;
        let event = match results {
            Ok(results) => Event::Return { results: recorded.values(results, store)? },
            Err(error) => recorded.failure(store, error, tags)?,
        };
        out.write(&event)?;
        out.flush()
    }
}
