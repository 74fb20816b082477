//! [`Recording`]: writes what happens between the host and an instance.

use std::collections::BTreeSet;
use std::io::Write;

use wasm_jit::{
    AsContext, AsContextMut, ChangedElements, Func, Global, Instance, Memory, Module, Table, Val, WriteLog,
};

use super::check::{check_imports, shared_globals};
use super::error::{Error, unsupported};
use super::event::Event;
use super::exception::Tags;
use super::trace::Writer;
use super::value::{Value, all_recorded, mutable_globals, recorded};
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
}

impl Recorded {
    /// The host runs from now on.
    fn begin_host(&mut self, mut store: impl AsContextMut) -> Result<(), Error> {
        self.log.restart(store.as_context());
        for (memory, pages) in &mut self.memories {
            *pages = memory.size(store.as_context());
        }
        for (table, size) in &mut self.tables {
            *size = table.size(store.as_context());
        }
        for (_, global, value) in &mut self.globals {
            let now = global.get(store.as_context_mut());
            *value = Some(recorded(&now, &self.instance, store.as_context())?);
        }
        Ok(())
    }

    /// The program runs from now on: writes what has changed since the host ran.
    fn end_host(&mut self, mut store: impl AsContextMut, out: &mut Writer) -> Result<(), Error> {
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
        for (index, global, before) in &self.globals {
            let now = global.get(store.as_context_mut());
            let value = recorded(&now, &self.instance, store.as_context())?;
            if Some(value) != *before {
                out.write(&Event::SetGlobal { global: *index, value })?;
            }
        }
        self.end_tables(store, out)
    }

    fn end_tables(&mut self, mut store: impl AsContextMut, out: &mut Writer) -> Result<(), Error> {
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
        for (index, element) in changed {
            let (table, before) = self.tables[index];
            let now = table.get(store.as_context_mut(), element).expect("tables do not shrink");
            let value = recorded(&now, &self.instance, store.as_context())?;
            // New elements are null.
            if element < before || !value.is_null() {
                out.write(&Event::SetElement { table: index as u32, element, value })?;
            }
        }
        Ok(())
    }

    fn values(&self, values: &[Val], store: impl AsContext) -> Result<Vec<Value>, Error> {
        all_recorded(values, &self.instance, store)
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
                Event::Throw(tags.recorded(store, self.instance, exception)?)
            }
            _ => Event::Fail,
        })
    }
}

/// A trace, and the instance that is recorded; what happens while there is none is ignored.
pub(crate) struct Recording {
    pub(crate) out: Writer,
    recorded: Option<Recorded>,
    tags: Tags,
}

impl Recording {
    /// A new trace of a module.
    pub(crate) fn new(module: &Module, out: impl Write + Send + 'static) -> Result<Self, Error> {
        let mut out = Writer::new(out)?;
        let (bytes, length) = (module.bytes(), module.bytes().len() as u64);
        out.write(&Event::Start { module: crc32fast::hash(bytes), length })?;
        out.flush()?;
        Ok(Self { out, recorded: None, tags: Tags::default() })
    }

    /// Records an instance from now on, whose state was written. The program runs.
    pub(crate) fn begin(&mut self, mut store: impl AsContextMut, instance: Instance) -> Result<(), Error> {
        check_imports(&store, instance)?;
        let shared = shared_globals(instance.module(store.as_context()))?;
        let memories = (0..).map_while(|index| Some((instance.memory(store.as_context(), index)?, 0)));
        let memories = memories.collect();
        let tables = (0..).map_while(|index| Some((instance.table(store.as_context(), index)?, 0)));
        let tables = tables.collect();
        let globals = mutable_globals(store.as_context(), instance).into_iter();
        let globals = globals.filter(|(index, _)| shared.contains(index));
        let globals = globals.map(|(index, global)| (index, global, None)).collect();
        let log = WriteLog::start(&mut store);
        self.recorded = Some(Recorded { instance, memories, tables, globals, log });
        Ok(())
    }

    /// Ends that.
    pub(crate) fn end(&mut self, store: impl AsContextMut) {
        if self.recorded.take().is_some() {
            WriteLog::end(store);
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recorded.is_some()
    }

    /// The host runs from now on.
    pub(crate) fn begin_host(&mut self, store: impl AsContextMut) -> Result<(), Error> {
        self.recorded.as_mut().map_or(Ok(()), |recorded| recorded.begin_host(store))
    }

    /// The host calls a function.
    pub(crate) fn enter(
        &mut self,
        mut store: impl AsContextMut,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), .. } = self else { return Ok(()) };
        let arguments = recorded.values(arguments, store.as_context())?;
        let function = recorded.instance.func_index(store.as_context(), func);
        let function = function.ok_or_else(|| unsupported("a call of another instance in the store"))?;
        recorded.end_host(&mut store, out)?;
        out.write(&Event::Enter { function, arguments })
    }

    /// The function returns to the host.
    pub(crate) fn leave(
        &mut self,
        mut store: impl AsContextMut,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags } = self else { return Ok(()) };
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
        let import = recorded.instance.import_index(store.as_context(), func);
        let import = import.ok_or_else(|| unsupported("a function of the host that is not imported"))?;
        let arguments = recorded.values(arguments, store.as_context())?;
        out.write(&Event::Call { import, arguments })?;
        recorded.begin_host(&mut store)
    }

    /// The host function returns.
    pub(crate) fn leave_host(
        &mut self,
        mut store: impl AsContextMut,
        caller: Option<Instance>,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), Error> {
        let Self { out, recorded: Some(recorded), tags } = self else { return Ok(()) };
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
