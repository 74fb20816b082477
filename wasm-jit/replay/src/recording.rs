//! [`Recording`]: writes what happens between the host and an instance.

use std::collections::BTreeSet;

use wasm_jit::{
    AsContext, AsContextMut, ChangedElements, Func, Global, Instance, Memory, Module, Table, Val, WriteLog,
};

use super::check::{Shared, check_imports};
use super::error::{Error, unsupported};
use super::event::{Event, Reason};
use super::exception::Tags;
use super::functions::{Functions, Output, all_recorded, recorded};
use super::linked::Copies;
use super::trace::Writer;
use super::value::{Value, mutable_globals};
use super::writes;

/// The instance that is recorded.
struct Recorded {
    instance: Instance,
    /// All memories, with their sizes in pages when the program left off.
    memories: Vec<(Memory, u64)>,
    /// All tables, with their sizes when the program left off.
    tables: Vec<(Table, u64)>,
    /// Mutable globals that are imported or exported, by their indices in the module, with their
    /// values when the program left off.
    globals: Vec<(u32, Global, Option<Value>)>,
    log: WriteLog,
    shared: Shared,
    functions: Functions,
    /// Calls of other instances by the host that have not ended.
    others: u32,
    /// What they may change, since the program left off or since one was called.
    copies: Option<Copies>,
    /// How much there was at the beginning, if it is limited.
    fuel: Option<u64>,
}

impl Recorded {
    /// The host runs from now on.
    fn begin_host(&mut self, mut store: impl AsContextMut) -> Result<(), Error> {
        self.copies = None;
        if self.others > 0 {
            self.copy(&mut store);
        }
        self.log.restart(store.as_context());
        for (memory, pages) in &mut self.memories {
            *pages = memory.size(store.as_context());
        }
        for (table, size) in &mut self.tables {
            *size = table.size(store.as_context());
        }
        for (_, global, value) in &mut self.globals {
            let now = global.get(store.as_context_mut());
            *value = Some(recorded(&now, self.instance, &self.functions, store.as_context())?);
        }
        Ok(())
    }

    fn copy(&mut self, store: impl AsContextMut) {
        let Shared { memories, tables, .. } = &self.shared;
        self.copies = Some(Copies::of(store, self.instance, &self.functions, memories, tables));
    }

    /// The host calls a function of another instance.
    fn enter_other(&mut self, store: impl AsContextMut) {
        self.others += 1;
        if self.copies.is_none() {
            self.copy(store);
        }
    }

    /// The program runs from now on: writes what has changed since the host ran.
    fn end_host(&mut self, mut store: impl AsContextMut, out: &mut Output) -> Result<(), Error> {
        let copies = self.copies.take();
        for (index, (memory, before)) in self.memories.iter().enumerate() {
            let pages = memory.size(store.as_context()) - before;
            if pages > 0 {
                out.write(&Event::Grow { memory: index as u32, pages })?;
            }
        }
        for before in self.log.take() {
            let Some(index) = self.memories.iter().position(|(memory, _)| *memory == before.memory) else {
                continue;
            };
            let now = before.memory.data(store.as_context());
            let now = &now[before.offset..before.offset + before.bytes.len()];
            for (start, end) in writes::changed(&before.bytes, now) {
                let (address, bytes) = ((before.offset + start) as u64, now[start..end].to_vec());
                out.write(&Event::Write { memory: index as u32, address, bytes })?;
            }
        }
        for (index, (memory, _)) in (0..).zip(&self.memories) {
            let changed =
                copies.as_ref().map(|copies| copies.changed_bytes(index, *memory, store.as_context()));
            for (start, end) in changed.unwrap_or_default() {
                let bytes = memory.data(store.as_context())[start..end].to_vec();
                out.write(&Event::Write { memory: index, address: start as u64, bytes })?;
            }
        }
        for (index, global, before) in &self.globals {
            let now = global.get(store.as_context_mut());
            let value = recorded(&now, self.instance, &self.functions, store.as_context())?;
            if Some(value) != *before {
                out.write(&Event::SetGlobal { global: *index, value })?;
            }
        }
        self.end_tables(copies.as_ref(), store, out)
    }

    fn end_tables(
        &mut self,
        copies: Option<&Copies>,
        mut store: impl AsContextMut,
        out: &mut Output,
    ) -> Result<(), Error> {
        for (index, (table, before)) in (0..).zip(&self.tables) {
            let elements = table.size(store.as_context()) - before;
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
            let elements = copies.map(|copies| {
                copies.changed_elements(index_in_module, self.instance, functions, *table, &mut store)
            });
            changed.extend(elements.into_iter().flatten().map(|element| (index, element)));
        }
        for (index, element) in changed {
            let (table, before) = self.tables[index];
            let now = table.get(store.as_context_mut(), element).expect("tables do not shrink");
            let value = recorded(&now, self.instance, &self.functions, store.as_context())?;
            // New elements are null.
            if element < before || !value.is_null() {
                out.write(&Event::SetElement { table: index as u32, element, value })?;
            }
        }
        Ok(())
    }

    fn values(&self, values: &[Val], store: impl AsContext) -> Result<Vec<Value>, Error> {
        all_recorded(values, self.instance, &self.functions, store)
    }

    /// How a call ends that does not return.
    fn failure(
        &self,
        store: impl AsContextMut,
        error: &wasm_jit::Error,
        tags: &mut Tags,
    ) -> Result<Event, Error> {
        Ok(match error {
            wasm_jit::Error::Exception(exception) => {
                Event::Throw(tags.recorded(store, self.instance, &self.functions, exception)?)
            }
            error => Event::Fail { reason: Some(Reason::of(error, self.fuel)) },
        })
    }
}

/// A trace, and the instance that is recorded; what happens while there is none is ignored.
pub(crate) struct Recording {
    pub(crate) out: Output,
    recorded: Option<Recorded>,
    tags: Tags,
}

impl Recording {
    /// A new trace of a module.
    pub(crate) fn new(module: &Module, writer: Writer) -> Result<Self, Error> {
        let mut out = Output::new(module, writer);
        let (bytes, length) = (module.bytes(), module.bytes().len() as u64);
        out.write(&Event::Start { module: crc32fast::hash(bytes), length })?;
        out.flush()?;
        Ok(Self { out, recorded: None, tags: Tags::default() })
    }

    /// Records an instance from now on, whose state was written. The program runs.
    pub(crate) fn begin(&mut self, mut store: impl AsContextMut, instance: Instance) -> Result<(), Error> {
        check_imports(&store, instance)?;
        let shared = Shared::of(instance.module(store.as_context()))?;
        let memories = (0..).map_while(|index| Some((instance.memory(store.as_context(), index)?, 0)));
        let memories = memories.collect();
        let tables = (0..).map_while(|index| Some((instance.table(store.as_context(), index)?, 0)));
        let tables = tables.collect();
        let globals = mutable_globals(store.as_context(), instance).into_iter();
        let globals = globals.filter(|(index, _)| shared.globals.contains(index));
        let globals = globals.map(|(index, global)| (index, global, None)).collect();
        let log = WriteLog::start(&mut store);
        let fuel = store.as_context().fuel().ok();
        self.recorded = Some(Recorded {
            instance,
            memories,
            tables,
            globals,
            log,
            shared,
            functions: self.out.functions.clone(),
            others: 0,
            copies: None,
            fuel,
        });
        Ok(())
    }

    /// Ends that.
    pub(crate) fn end(&mut self) {
        self.recorded = None;
    }

    /// The host runs from now on.
    pub(crate) fn begin_host(&mut self, store: impl AsContextMut) -> Result<(), Error> {
        self.recorded.as_mut().map_or(Ok(()), |recorded| recorded.begin_host(store))
    }

    /// The host calls a function, of the program or of another one.
    pub(crate) fn enter(
        &mut self,
        mut store: impl AsContextMut,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), .. } = self else { return Ok(()) };
        let Some(function) = recorded.instance.func_index(store.as_context(), func) else {
            recorded.enter_other(store);
            return Ok(());
        };
        let arguments = recorded.values(arguments, store.as_context())?;
        recorded.end_host(&mut store, out)?;
        out.write(&Event::Enter { function, arguments })?;
        out.flush()
    }

    /// The function returns to the host.
    pub(crate) fn leave(
        &mut self,
        mut store: impl AsContextMut,
        func: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags, .. } = self else { return Ok(()) };
        if recorded.instance.func_index(store.as_context(), func).is_none() {
            recorded.others = recorded.others.saturating_sub(1);
            return Ok(());
        }
        let event = match results {
            Ok(results) => Event::Leave { results: recorded.values(results, store.as_context())? },
            Err(error) => recorded.failure(&mut store, error, tags)?,
        };
        out.write(&event)?;
        recorded.begin_host(&mut store)?;
        out.flush()
    }

    /// An instance calls a host function. Those of others, such as monitors, are ignored.
    pub(crate) fn enter_host(
        &mut self,
        mut store: impl AsContextMut,
        caller: Option<Instance>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), .. } = self else { return Ok(()) };
        if caller != Some(recorded.instance) {
            return Ok(());
        }
        let import = recorded.functions.number(func, recorded.instance, store.as_context());
        let import = import.ok_or_else(|| unsupported("a call of a function of a type of its own"))?;
        let arguments = recorded.values(arguments, store.as_context())?;
        out.write(&Event::Call { import, arguments })?;
        recorded.begin_host(&mut store)?;
        // The host may not return.
        out.flush()
    }

    /// The host function returns.
    pub(crate) fn leave_host(
        &mut self,
        mut store: impl AsContextMut,
        caller: Option<Instance>,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags, .. } = self else { return Ok(()) };
        if caller != Some(recorded.instance) {
            return Ok(());
        }
        recorded.end_host(&mut store, out)?;
        let event = match results {
            Ok(results) => Event::Return { results: recorded.values(results, store.as_context())? },
            Err(error) => recorded.failure(&mut store, error, tags)?,
        };
        out.write(&event)?;
        out.flush()
    }
}
