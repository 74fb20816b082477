//! [`Recorder`].

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::wasmparser::{ExternalKind, Parser, Payload};
use wasm_jit::{
    AsContext, AsContextMut, CallObserver, Caller, ChangedElements, Extern, ExternType, Func, Global,
    Instance, Linker, Memory, Module, Mutability, RefType, Store, StoreContextMut, Table, Val, WriteLog,
};

use super::error::{Error, unsupported};
use super::event::Event;
use super::imported;
use super::trace::Writer;
use super::value::{Value, recorded};
use super::writes;

/// What belongs to the instance, once there is one.
struct Recorded {
    instance: Instance,
    /// All memories, with their sizes in pages when the program left off.
    memories: Vec<(Memory, u64)>,
    /// All tables, with their sizes when the program left off.
    tables: Vec<(Table, u64)>,
    /// Mutable globals that are imported or exported, by their indices in the module, with their
    /// values.
    globals: Vec<(u32, Global, Value)>,
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
            *value = recorded(&now, &self.instance, store.as_context())?;
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
            if value != *before {
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
}

struct Recording {
    out: Writer,
    recorded: Option<Recorded>,
}

impl Recording {
    /// The instance. Only called when there is one: no code of it runs before.
    fn recorded(&mut self) -> (&mut Recorded, &mut Writer) {
        (self.recorded.as_mut().expect("only instances run"), &mut self.out)
    }

    fn values(&self, values: &[Val], store: impl AsContext) -> Result<Vec<Value>, Error> {
        let instance = &self.recorded.as_ref().expect("only instances run").instance;
        values.iter().map(|value| recorded(value, instance, &store)).collect()
    }
}

/// Records one instance of a module, which must be the only one that is called in its store. A
/// clone records to the same trace.
///
/// Calls by the host are recorded by whatever part of the engine's API they are made.
#[derive(Clone)]
pub struct Recorder {
    module: Module,
    recording: Arc<Mutex<Recording>>,
}

impl Recorder {
    /// A recorder that writes the trace to `out`. It is flushed when an imported function, or a
    /// function that the host called, has returned.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn new(module: &Module, out: impl Write + Send + 'static) -> Result<Self, Error> {
        Self::check(module)?;
        let mut out = Writer::new(out)?;
        let (bytes, length) = (module.bytes(), module.bytes().len() as u64);
        out.write(&Event::Start { module: crc32fast::hash(bytes), length })?;
        out.flush()?;
        let recording = Recording { out, recorded: None };
        Ok(Self { module: module.clone(), recording: Arc::new(Mutex::new(recording)) })
    }

    /// Whether a module can be recorded, as far as that is known before it runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(module: &Module) -> Result<(), Error> {
        check(module)
    }

    /// Instantiates the module with the definitions of a linker, wrapped, and observes the calls of
    /// the host in this store from now on, that of the start function included.
    ///
    /// # Errors
    /// Those of [`Linker::instantiate`]; [`Error::Unsupported`] for a second instance.
    pub fn instantiate<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &Linker<T>,
    ) -> Result<Instance, Error> {
        if self.lock().recorded.is_some() {
            return Err(unsupported("a second instance"));
        }
        let mut imports = Vec::new();
        let mut functions = 0;
        for import in self.module.imports() {
            let (module, name) = (import.module(), import.name());
            let found = linker.get(&mut *store, module, name)?;
            let unknown =
                || wasm_jit::Error::UnknownImport { module: module.to_owned(), name: name.to_owned() };
            imports.push(match found.ok_or_else(unknown)? {
                Extern::Func(func) => {
                    functions += 1;
                    self.wrap(store, functions - 1, func)?.into()
                }
                // Also of the wrong type, which instantiation reports.
                other => other,
            });
        }
        let instance = Instance::new_unstarted(&mut *store, &self.module, &imports)?;
        let memories = (0..).map_while(|index| Some((instance.memory(&*store, index)?, 0))).collect();
        let tables = (0..).map_while(|index| Some((instance.table(&*store, index)?, 0))).collect();
        imported::write(&self.module, store, &instance, &mut self.lock().out)?;
        let globals = globals(&self.module, store, &instance)?;
        let log = WriteLog::start(&mut *store);
        let mut recorded = Recorded { instance, memories, tables, globals, log };
        recorded.begin_host(&mut *store)?;
        self.lock().recorded = Some(recorded);
        store.observe_calls(Some(Arc::new(self.clone())));
        instance.start(&mut *store)?;
        Ok(instance)
    }

    fn wrap<T: 'static>(&self, store: &mut Store<T>, import: u32, func: Func) -> Result<Func, Error> {
        let recorder = self.clone();
        let ty = func.ty(&*store);
        let wrapper = move |mut caller: Caller<'_, T>, arguments: &[Val], results: &mut [Val]| {
            recorder.host_call(&mut caller, import, &func, arguments, results).map_err(into_engine)
        };
        Ok(Func::new(store, ty, wrapper)?)
    }

    fn host_call<T: 'static>(
        &self,
        caller: &mut Caller<'_, T>,
        import: u32,
        func: &Func,
        arguments: &[Val],
        results: &mut [Val],
    ) -> Result<(), Error> {
        {
            let mut recording = self.lock();
            let arguments = recording.values(arguments, caller.as_context())?;
            let (recorded, out) = recording.recorded();
            out.write(&Event::Call { import, arguments })?;
            recorded.begin_host(&mut *caller)?;
        }
        let done = caller.forward(func, arguments, results);
        let mut recording = self.lock();
        let (recorded, out) = recording.recorded();
        recorded.end_host(&mut *caller, out)?;
        let event = match &done {
            Ok(()) => Event::Return { results: recording.values(results, caller.as_context())? },
            Err(error) => failure(error)?,
        };
        recording.out.write(&event)?;
        recording.out.flush()?;
        Ok(done?)
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // Not held while foreign code runs, which might panic.
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: 'static> CallObserver<T> for Recorder {
    fn enter(
        &self,
        mut store: StoreContextMut<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        let mut recording = self.lock();
        let mut enter = || {
            let arguments = recording.values(arguments, store.as_context())?;
            let (recorded, out) = recording.recorded();
            let function = recorded.instance.func_index(store.as_context(), func);
            let function = function.ok_or_else(|| unsupported("a call of another instance in the store"))?;
            recorded.end_host(&mut store, out)?;
            out.write(&Event::Enter { function, arguments })
        };
        enter().map_err(into_engine)
    }

    fn leave(
        &self,
        mut store: StoreContextMut<'_, T>,
        _: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        let mut recording = self.lock();
        let mut leave = || {
            let event = match results {
                Ok(results) => Event::Leave { results: recording.values(results, store.as_context())? },
                Err(error) => failure(error)?,
            };
            let (recorded, out) = recording.recorded();
            out.write(&event)?;
            recorded.begin_host(&mut store)?;
            out.flush()
        };
        leave().map_err(into_engine)
    }
}

/// How a call ends that does not return.
fn failure(error: &wasm_jit::Error) -> Result<Event, Error> {
    match error {
        wasm_jit::Error::Exception(_) => Err(unsupported("an exception between the program and its host")),
        _ => Ok(Event::Fail),
    }
}

fn into_engine(error: Error) -> wasm_jit::Error {
    match error {
        Error::Engine(error) => error,
        error => wasm_jit::Error::host(error),
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("module", &self.module).finish_non_exhaustive()
    }
}

/// Refuses a module that cannot be recorded.
fn check(module: &Module) -> Result<(), Error> {
    if module.start_function().is_some_and(|start| start.body().is_none()) {
        return Err(unsupported("a start function that is imported"));
    }
    for import in module.imports() {
        let what = match import.ty() {
            ExternType::Func(_) | ExternType::Global(_) => continue,
            ExternType::Memory(ty) if !ty.is_shared() => continue,
            ExternType::Memory(_) => "a shared memory",
            ExternType::Table(ty) if !ty.is_64() && has_recorded_form(ty.element()) => continue,
            ExternType::Table(_) => "a table of this type",
            ExternType::Tag(_) => "a tag",
        };
        return Err(unsupported(format!("the import {}.{}, {what}", import.module(), import.name())));
    }
    for export in module.exports() {
        if matches!(export.ty(), ExternType::Memory(ty) if ty.is_shared()) {
            return Err(unsupported(format!("the export {}, a shared memory", export.name())));
        }
    }
    for payload in Parser::new(0).parse_all(module.bytes()) {
        if let Payload::MemorySection(memories) = payload?
            && memories.into_iter().any(|memory| memory.is_ok_and(|memory| memory.shared))
        {
            return Err(unsupported("a shared memory"));
        }
    }
    Ok(())
}

/// Whether elements of such tables can be recorded.
fn has_recorded_form(ty: RefType) -> bool {
    ty == RefType::FUNCREF || ty == RefType::EXTERNREF
}

/// The mutable globals that the host can change: those that are imported or exported, each once.
fn globals<T: 'static>(
    module: &Module,
    store: &mut Store<T>,
    instance: &Instance,
) -> Result<Vec<(u32, Global, Value)>, Error> {
    let imported = module.imports().filter(|import| matches!(import.ty(), ExternType::Global(_)));
    let mut indices: BTreeSet<u32> = (0..imported.count() as u32).collect();
    for payload in Parser::new(0).parse_all(module.bytes()) {
        let Payload::ExportSection(exports) = payload? else { continue };
        for export in exports {
            let export = export?;
            if export.kind == ExternalKind::Global {
                indices.insert(export.index);
            }
        }
    }
    let mut globals = Vec::new();
    for index in indices {
        let Some(global) = instance.global(&*store, index) else { continue };
        if global.ty(&*store).mutability() == Mutability::Var {
            let value = global.get(&mut *store);
            globals.push((index, global, recorded(&value, instance, &*store)?));
        }
    }
    Ok(globals)
}
