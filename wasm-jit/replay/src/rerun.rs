//! Runs the program in this engine with a host that does what a trace says.

use std::io::Read;
use std::sync::Arc;

use wasm_jit::{
    AsContext, AsContextMut, Caller, ExnRef, Extern, ExternType, Func, FuncType, Global, GlobalType,
    Instance, Memory, MemoryType, Module, Store, StoreContextMut, Table, TableType, Tag, Val, ValType,
};

use super::check::has_recorded_form;
use super::error::{Difference, Error};
use super::event::{Event, Exception, Reason};
use super::exception::Tags;
use super::functions::{Functions, function_type, in_instance};
use super::limits::Limits;
use super::snapshot::{Snapshot, Taking};
use super::stops::Events;
use super::value::{Value, i31};

/// Observes the events of the run.
pub(crate) trait Observer: 'static {
    /// The next event was read, and has not happened; `None` at the end of the trace.
    fn reads(&mut self, _event: Option<&Event>) -> Result<(), Error> {
        Ok(())
    }

    /// The host has written bytes to a memory.
    fn writes(&mut self, _memory: u32, _address: u64, _length: usize) {}
}

/// The state of the run.
pub(crate) struct Run<R, O> {
    events: Events<R>,
    /// The number of the event that is read next.
    number: u64,
    instance: Option<Instance>,
    /// Why the run has stopped: the end of the trace (`Ok`), or an error.
    stopped: Option<Result<(), Error>>,
    /// The first error of the program, as recorded.
    failure: Option<wasm_jit::Error>,
    tags: Tags,
    functions: Functions,
    /// The functions that the module does not have: their types, and the functions once they are
    /// needed.
    others: Vec<(FuncType, Option<Func>)>,
    observer: O,
    /// The remaining events of the snapshot with which the run begins.
    restored: Option<(Arc<Snapshot>, usize)>,
    /// Present if the run takes snapshots.
    taking: Option<Taking>,
}

/// The way in which a recorded run has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The program returned to its host.
    Returned,
    /// The program failed as in the recorded run: it trapped, did not catch an exception, or called
    /// a host function that failed ([`HostFailed`]), such as one that ends the program.
    Failed(wasm_jit::Error),
    /// The recorded run was stopped while the program ran: by an interrupt, or because all fuel was
    /// consumed and the replay does not have the same amount. The replay ends where the host was
    /// last active.
    Stopped(Reason),
    /// The trace ends before the program does: the recording, or its process, was ended.
    TraceEnded,
}

/// The error of a host function that failed in the recorded run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host function {module}.{name} failed when it was recorded{}", after_colon(reason))]
#[non_exhaustive]
pub struct HostFailed {
    /// The module name of the import; `another module` for a function that the program does not
    /// import.
    pub module: String,
    /// The name of the import, or the number of the function in the trace.
    pub name: String,
    /// The arguments of the call.
    pub arguments: Vec<Value>,
    /// The recorded error, if it is known.
    pub reason: Option<Reason>,
}

fn after_colon(reason: &Option<Reason>) -> String {
    reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// Replaces the module from which a function is imported.
const OTHER_MODULES: &str = "another module";

impl<R: Read, O: Observer> Run<R, O> {
    /// The next event; `None` at the end.
    fn next(&mut self) -> Result<Option<Event>, Error> {
        if let Some((snapshot, index)) = &mut self.restored {
            if let Some(event) = snapshot.events.get(*index) {
                *index += 1;
                return Ok(Some(event.clone()));
            }
            self.restored = None;
        }
        loop {
            match self.read()? {
                Some(Event::Function { .. }) => {}
                event => return Ok(event),
            }
        }
    }

    /// Reads the next event, including declarations of functions, which are recorded.
    fn read(&mut self) -> Result<Option<Event>, Error> {
        self.number += 1;
        let event = self.events.next().transpose()?;
        self.observer.reads(event.as_ref())?;
        if let Some(Event::Function { function, parameters, results }) = &event {
            if u64::from(*function) != u64::from(self.functions.own()) + self.others.len() as u64 {
                return Err(self.mismatch("another number of functions that the module does not have"));
            }
            self.others.push((function_type(parameters, results), None));
        }
        Ok(event)
    }

    /// Records the amount of fuel that the program has.
    pub(crate) fn set_fuel(&mut self, fuel: u64) {
        self.events.set_fuel(fuel);
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The error that the last event does not fit.
    fn mismatch(&self, what: &'static str) -> Error {
        Error::Mismatch { number: self.number - 1, what, values: None }
    }

    /// The same, with what the program does, if traces can represent it.
    fn differs(&self, what: &'static str, found: Option<Event>, recorded: Event) -> Error {
        let values = found.map(|found| Box::new(Difference { found, recorded }));
        Error::Mismatch { number: self.number - 1, what, values }
    }

    /// Begins with a snapshot: the events before it do not happen.
    pub(crate) fn begin_at(&mut self, snapshot: Arc<Snapshot>) -> Result<(), Error> {
        while self.number < snapshot.number {
            if self.read()?.is_none() {
                return Err(self.mismatch("the trace has become shorter"));
            }
        }
        self.restored = Some((snapshot, 0));
        Ok(())
    }

    /// Takes snapshots from now on.
    pub(crate) fn take_snapshots(&mut self, taking: Taking) {
        self.taking = Some(taking);
    }

    pub(crate) fn instance(&self) -> Instance {
        self.instance.expect("only instances run")
    }
}

/// The end of the host's part of a call.
enum HostEnded {
    /// It returned these results; for the host itself, after its last call, there are none.
    Returned(Vec<Value>),
    /// It threw an exception: this error.
    Threw(wasm_jit::Error),
    /// It failed, for this reason if it is known, or a function that it called failed.
    Failed(Option<Reason>),
    /// The trace ended before: the recording, or its process, was ended.
    Trace,
}

/// Runs a module with the host of a trace, to its end. `begin` is called with the new instance,
/// before it runs.
///
/// # Errors
/// As [`instantiate`], [`Limits`] and [`run`], and those of `begin`.
pub(crate) fn rerun<R: Read + 'static, O: Observer>(
    module: &Module,
    trace: R,
    observer: O,
    limits: &Limits,
    begin: impl FnOnce(&mut Store<Run<R, O>>, Instance) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut store = instantiate(module, trace, observer)?;
    let instance = store.data().instance();
    let _timeout = limits.apply(&mut store)?;
    if let Some(fuel) = limits.fuel {
        store.data_mut().set_fuel(fuel);
    }
    begin(&mut store, instance)?;
    run(&mut store).map(drop)
}

/// Instantiates a module with the imports in a trace, before it runs.
///
/// # Errors
/// As [`Reader`]; [`Error::OtherModule`], [`Error::Mismatch`].
pub(crate) fn instantiate<R: Read + 'static, O: Observer>(
    module: &Module,
    trace: R,
    observer: O,
) -> Result<Store<Run<R, O>>, Error> {
    let (events, tags, functions) = (Events::new(trace), Tags::default(), Functions::new(module));
    let run = Run {
        events,
        number: 0,
        instance: None,
        stopped: None,
        failure: None,
        tags,
        functions,
        others: Vec::new(),
        observer,
        restored: None,
        taking: None,
    };
    let mut store = Store::new(module.engine(), run);
    if let Some(Event::Start { module: checksum, length }) = store.data_mut().next()?
        && (checksum, length) != (crc32fast::hash(module.bytes()), module.bytes().len() as u64)
    {
        return Err(Error::OtherModule);
    }
    let mut imports: Vec<Extern> = Vec::new();
    let mut functions = 0;
    for import in module.imports() {
        imports.push(match import.ty() {
            ExternType::Func(ty) => {
                functions += 1;
                let names = (import.module().to_owned(), import.name().to_owned());
                host_function(&mut store, functions - 1, names, ty.clone())?.into()
            }
            ExternType::Memory(ty) => memory(&mut store, ty)?.into(),
            ExternType::Global(ty) => global(&mut store, ty)?.into(),
            ExternType::Table(ty) => table(&mut store, ty)?.into(),
            ExternType::Tag(ty) => Tag::new(&mut store, ty)?.into(),
        });
    }
    // The trace has the call of the start function.
    let instance = Instance::new_unstarted(&mut store, module, &imports)?;
    store.data_mut().instance = Some(instance);
    Ok(store)
}

/// Does what the host does, to the end of the trace.
///
/// # Errors
/// As [`Reader`]; [`Error::Mismatch`], [`Error::Failed`].
pub(crate) fn run<R: Read + 'static, O: Observer>(store: &mut Store<Run<R, O>>) -> Result<Ended, Error> {
    let ended = act(&mut store.as_context_mut(), None);
    let cut = store.data().events.stopped().cloned().map_or(Ended::TraceEnded, Ended::Stopped);
    if let Some(stopped) = store.data_mut().stopped.take() {
        return stopped.map(|()| cut);
    }
    match ended? {
        HostEnded::Failed(_) => match store.data_mut().next()? {
            None => {
                let failure = store.data_mut().failure.take();
                Ok(Ended::Failed(failure.expect("a call has failed")))
            }
            Some(_) => Err(store.data().mismatch("the run continues after a failure")),
        },
        HostEnded::Threw(exception) => Ok(Ended::Failed(exception)),
        // Before a call that was stopped.
        HostEnded::Returned(_) if matches!(cut, Ended::Stopped(_)) => Ok(cut),
        HostEnded::Returned(_) => Ok(Ended::Returned),
        HostEnded::Trace => Ok(cut),
    }
}

/// A size and a maximum, if they fit into 32 bits.
fn small(size: u64, maximum: Option<u64>) -> Option<(u32, Option<u32>)> {
    let maximum = maximum.map(u32::try_from).transpose();
    u32::try_from(size).ok().zip(maximum.ok())
}

/// The type of a memory of this size for an import with this type, if there is one.
pub(crate) fn memory_type(ty: &MemoryType, pages: u64, maximum: Option<u64>) -> Option<MemoryType> {
    let made = match ty.is_64() {
        true => MemoryType::new64(pages, maximum),
        false => small(pages, maximum).map(|(pages, maximum)| MemoryType::new(pages, maximum))?,
    };
    Some(if ty.page_size() == 1 { made.with_pages_of_one_byte() } else { made })
}

/// The type of a table of this size for an import with this type, if there is one.
pub(crate) fn table_type(ty: &TableType, elements: u64, maximum: Option<u64>) -> Option<TableType> {
    match ty.is_64() {
        true => Some(TableType::new64(ty.element(), elements, maximum)),
        false => small(elements, maximum)
            .map(|(elements, maximum)| TableType::new(ty.element(), elements, maximum)),
    }
}

/// Makes a memory that a program imports with this type, as the next event says.
fn memory<R: Read, O: Observer>(store: &mut Store<Run<R, O>>, ty: &MemoryType) -> Result<Memory, Error> {
    let Some(Event::ImportMemory { pages, maximum, .. }) = store.data_mut().next()? else {
        return Err(store.data().mismatch("the program imports a memory"));
    };
    let made = memory_type(ty, pages, maximum);
    let made = made.ok_or_else(|| store.data().mismatch("a size that no such memory has"))?;
    Ok(Memory::new(&mut *store, made)?)
}

/// Makes a table that a program imports with this type, as the next event says.
fn table<R: Read, O: Observer>(store: &mut Store<Run<R, O>>, ty: &TableType) -> Result<Table, Error> {
    let Some(Event::ImportTable { elements, maximum, .. }) = store.data_mut().next()? else {
        return Err(store.data().mismatch("the program imports a table"));
    };
    let made = table_type(ty, elements, maximum);
    let made = made.ok_or_else(|| store.data().mismatch("a size that no such table has"))?;
    let null = Val::default_for_ty(ValType::Ref(ty.element()));
    Ok(Table::new(&mut *store, made, null)?)
}

/// Makes a global that a program imports with this type, as the next event says.
fn global<R: Read + 'static, O: Observer>(
    store: &mut Store<Run<R, O>>,
    ty: &GlobalType,
) -> Result<Global, Error> {
    let Some(Event::ImportGlobal { value, .. }) = store.data_mut().next()? else {
        return Err(store.data().mismatch("the program imports a global"));
    };
    let value = val(&mut store.as_context_mut(), value)?;
    Ok(Global::new(&mut *store, *ty, value)?)
}

fn host_function<R: Read + 'static, O: Observer>(
    mut store: impl AsContextMut<Data = Run<R, O>>,
    import: u32,
    (module, name): (String, String),
    ty: FuncType,
) -> Result<Func, Error> {
    let host = move |mut caller: Caller<'_, Run<R, O>>, arguments: &[Val], results: &mut [Val]| {
        let store = &mut caller.as_context_mut();
        let failed = |store: &StoreContextMut<'_, Run<R, O>>, reason| {
            let arguments = values(store, arguments).unwrap_or_default();
            let (module, name) = (module.clone(), name.clone());
            wasm_jit::Error::host(HostFailed { module, name, arguments, reason })
        };
        let ended = called(store, import, arguments).and_then(|()| act(store, Some(import)));
        let stopped = match ended {
            Ok(HostEnded::Returned(values)) => match returned(store, values, results) {
                Ok(()) => return Ok(()),
                Err(error) => Err(error),
            },
            Ok(HostEnded::Threw(exception)) => return Err(exception),
            Ok(HostEnded::Failed(reason)) => return Err(failed(store, reason)),
            Ok(HostEnded::Trace) => Ok(()),
            Err(error) => Err(error),
        };
        // A call that was nested in this one may have found the reason.
        store.data_mut().stopped.get_or_insert(stopped);
        Err(failed(store, None))
    };
    Ok(Func::new(store.as_context_mut(), ty, host)?)
}

/// The host returns these values.
fn returned<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    values: Vec<Value>,
    results: &mut [Val],
) -> Result<(), Error> {
    if values.len() != results.len() {
        return Err(store.data().mismatch("another number of results"));
    }
    for (result, value) in results.iter_mut().zip(values) {
        *result = val(store, value)?;
    }
    Ok(())
}

/// The program calls an import.
fn called<R: Read, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    import: u32,
    arguments: &[Val],
) -> Result<(), Error> {
    let now = values(store, arguments);
    match store.data_mut().next()? {
        Some(Event::Call { import: recorded, arguments })
            if recorded == import && Some(&arguments) == now.as_ref() =>
        {
            Ok(())
        }
        // A run that was killed.
        None => Ok(()),
        Some(recorded) => {
            let found = now.map(|arguments| Event::Call { import, arguments });
            let what = "the program calls something else, or with other arguments";
            Err(store.data().differs(what, found, recorded))
        }
    }
}

/// Does what the host does until it returns; the host itself, to the end of the trace. A trace
/// without a call to the program ends before the program does.
fn act<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    import: Option<u32>,
) -> Result<HostEnded, Error> {
    let instance = store.data().instance();
    let mut is_first = import.is_none();
    // The exception with which the last call of the program ended.
    let mut caught = None;
    let mut has_called = false;
    loop {
        let before = caught.take().filter(|_| import.is_none());
        let Some(event) = store.data_mut().next()? else {
            return Ok(match before {
                Some(exception) => HostEnded::Threw(exception),
                None if has_called && import.is_none() => HostEnded::Returned(Vec::new()),
                None => HostEnded::Trace,
            });
        };
        let was_first = std::mem::take(&mut is_first);
        match event {
            Event::Snapshot if was_first => clear(store, instance)?,
            Event::DropData { segment } => instance.drop_data(store.as_context_mut(), segment),
            Event::DropElements { segment } => instance.drop_elements(store.as_context_mut(), segment),
            Event::Grow { memory, pages } => {
                let memory = instance.memory(store.as_context(), memory);
                let memory = memory.ok_or_else(|| store.data().mismatch("there is no such memory"))?;
                memory.grow(store.as_context_mut(), pages)?;
            }
            Event::Write { memory: index, address, bytes } => {
                let memory = instance.memory(store.as_context(), index);
                let memory = memory.ok_or_else(|| store.data().mismatch("there is no such memory"))?;
                memory.write(store.as_context_mut(), address as usize, &bytes)?;
                store.data_mut().observer.writes(index, address, bytes.len());
            }
            Event::SetGlobal { global, value } => {
                let global = instance.global(store.as_context(), global);
                let global = global.ok_or_else(|| store.data().mismatch("there is no such global"))?;
                let value = val(store, value)?;
                global.set(store.as_context_mut(), value)?;
            }
            Event::GrowTable { table, elements } => {
                let table = instance.table(store.as_context(), table);
                let table = table.ok_or_else(|| store.data().mismatch("there is no such table"))?;
                let null = Val::default_for_ty(ValType::Ref(table.ty(store.as_context()).element()));
                table.grow(store.as_context_mut(), elements, null)?;
            }
            Event::SetElement { table, element, value } => {
                let table = instance.table(store.as_context(), table);
                let table = table.ok_or_else(|| store.data().mismatch("there is no such table"))?;
                let value = val(store, value)?;
                table.set(store.as_context_mut(), element, value)?;
            }
            Event::Enter { function, arguments } => {
                if import.is_none() {
                    take_snapshot(store, instance)?;
                }
                has_called = true;
                match enter(store, function, arguments)? {
                    Entered::Returned => {}
                    Entered::Threw(exception) => caught = Some(exception),
                    // The host passes on the failure.
                    Entered::Failed if import.is_some() => match store.data_mut().next()? {
                        Some(Event::Fail { .. }) => return Ok(HostEnded::Failed(None)),
                        None => return Ok(HostEnded::Trace),
                        Some(_) => return Err(store.data().mismatch("the run continues after a failure")),
                    },
                    Entered::Failed => return Ok(HostEnded::Failed(None)),
                    Entered::Trace => return Ok(HostEnded::Trace),
                }
            }
            Event::Return { results } if import.is_some() => return Ok(HostEnded::Returned(results)),
            Event::Throw(exception) if import.is_some() => {
                return Ok(HostEnded::Threw(thrown(store, &exception)?.into()));
            }
            Event::Fail { reason } if import.is_some() => return Ok(HostEnded::Failed(reason)),
            _ => return Err(store.data().mismatch("the program runs, and the host does something else")),
        }
    }
}

/// Takes a snapshot, if the run takes them. No call to the program is active, and the event that
/// was read last comes after the snapshot.
fn take_snapshot<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    instance: Instance,
) -> Result<(), Error> {
    let Some(taking) = store.data_mut().taking.take() else { return Ok(()) };
    let before = store.data().number - 1;
    match taking.take(store, instance, before) {
        Ok(()) => store.data_mut().taking = Some(taking),
        // It will not have one later, either: the run continues without.
        Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Clears the memories and tables of an instance.
fn clear<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    instance: Instance,
) -> Result<(), Error> {
    for memory in (0..).map_while(|index| instance.memory(store.as_context(), index)).collect::<Vec<_>>() {
        // Pages that nothing has written stay untouched.
        for page in memory.data_mut(store.as_context_mut()).chunks_mut(4096) {
            if page.iter().any(|byte| *byte != 0) {
                page.fill(0);
            }
        }
    }
    for table in (0..).map_while(|index| instance.table(store.as_context(), index)).collect::<Vec<_>>() {
        let element = table.ty(store.as_context()).element();
        if !has_recorded_form(element) {
            return Err(store.data().mismatch("a table of a type that snapshots do not have"));
        }
        let length = table.size(store.as_context());
        let null = Val::default_for_ty(ValType::Ref(element));
        table.fill(store.as_context_mut(), 0, null, length)?;
    }
    Ok(())
}

/// The end of a call to the program.
enum Entered {
    Returned,
    /// It ended with an exception, as recorded: this error.
    Threw(wasm_jit::Error),
    /// It ended with another error, as recorded.
    Failed,
    /// The trace ended during the call, or an error stopped the run.
    Trace,
}

/// The host calls a function.
fn enter<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    function: u32,
    arguments: Vec<Value>,
) -> Result<Entered, Error> {
    let func = store.data().instance().func(store.as_context(), function);
    let func = func.ok_or_else(|| store.data().mismatch("there is no such function"))?;
    let arguments: Vec<Val> =
        arguments.into_iter().map(|value| val(store, value)).collect::<Result<_, _>>()?;
    let ty = func.ty(store.as_context());
    let mut results: Vec<Val> = ty.results().map(Val::default_for_ty).collect();
    let done = func.call(store.as_context_mut(), &arguments, &mut results);
    if store.data().stopped.is_some() {
        return Ok(Entered::Trace);
    }
    let now = values(store, &results);
    match (store.data_mut().next()?, done) {
        (Some(Event::Leave { results }), Ok(())) if Some(&results) == now.as_ref() => Ok(Entered::Returned),
        (Some(Event::Throw(recorded)), Err(wasm_jit::Error::Exception { exception, backtrace })) => {
            compare(store, &exception, &recorded)?;
            Ok(Entered::Threw(wasm_jit::Error::Exception { exception, backtrace }))
        }
        (Some(Event::Fail { .. }), Err(error)) if !matches!(error, wasm_jit::Error::Exception { .. }) => {
            // The cause is the failure of a call inside this one.
            store.data_mut().failure.get_or_insert(error);
            Ok(Entered::Failed)
        }
        (None, _) => Ok(Entered::Trace),
        (Some(_), Err(source)) => Err(Error::Failed { number: store.data().number - 1, source }),
        (Some(recorded), _) => {
            let found = now.map(|results| Event::Leave { results });
            Err(store.data().differs("the program returns something else, or not at all", found, recorded))
        }
    }
}

/// Compares an exception of the program with the recorded one.
fn compare<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    exception: &ExnRef,
    recorded: &Exception,
) -> Result<(), Error> {
    let (instance, functions) = (store.data().instance(), store.data().functions.clone());
    let mut tags = std::mem::take(&mut store.data_mut().tags);
    let now = tags.recorded(&mut *store, instance, &functions, exception);
    store.data_mut().tags = tags;
    let what = match &now {
        Ok(now) if *now == *recorded => return Ok(()),
        Ok(now) if now.tag != recorded.tag => "the program throws an exception of another tag",
        _ => "the program throws an exception with other values",
    };
    let found = now.ok().map(Event::Throw);
    Err(store.data().differs(what, found, Event::Throw(recorded.clone())))
}

/// The exception that the host throws.
fn thrown<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    exception: &Exception,
) -> Result<ExnRef, Error> {
    let fields: Vec<Val> =
        exception.values.iter().map(|value| val(store, *value)).collect::<Result<_, _>>()?;
    let (instance, mut tags) = (store.data().instance(), std::mem::take(&mut store.data_mut().tags));
    let tag = tags.tag(&mut *store, instance, exception);
    store.data_mut().tags = tags;
    ExnRef::new(store.as_context_mut(), &tag?, &fields).map_err(|error| match error {
        wasm_jit::Error::ValueCount { .. } | wasm_jit::Error::ValueType(_) => {
            store.data().mismatch("exceptions of this tag have other values")
        }
        error => error.into(),
    })
}

fn values<R: Read + 'static, O: Observer>(
    store: &StoreContextMut<'_, Run<R, O>>,
    values: &[Val],
) -> Option<Vec<Value>> {
    let instance = store.data().instance();
    let functions = &store.data().functions;
    values.iter().map(|value| in_instance(value, instance, functions, store)).collect()
}

fn val<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    value: Value,
) -> Result<Val, Error> {
    Ok(match value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(bits),
        Value::F64(bits) => Val::F64(bits),
        Value::V128(bits) => Val::V128(bits),
        Value::Func(None) => Val::FuncRef(None),
        Value::Func(Some(index)) if index >= store.data().functions.own() => {
            Val::FuncRef(Some(other(store, index)?))
        }
        Value::Func(Some(index)) => {
            let instance = store.data().instance.as_ref();
            let func = instance.and_then(|instance| instance.func(store.as_context(), index));
            Val::FuncRef(Some(func.ok_or_else(|| store.data().mismatch("there is no such function"))?))
        }
        Value::Extern(number) => Val::ExternRef(number.map(|number| store.data().functions.host(number))),
        Value::Any(value) => value.map_or(Val::AnyRef(None), i31),
        Value::Exn => Val::ExnRef(None),
    })
}

/// The function with this number, which the module does not have.
fn other<R: Read + 'static, O: Observer>(
    store: &mut StoreContextMut<'_, Run<R, O>>,
    number: u32,
) -> Result<Func, Error> {
    let index = (number - store.data().functions.own()) as usize;
    let Some((ty, known)) = store.data().others.get(index).cloned() else {
        return Err(store.data().mismatch("there is no such function"));
    };
    if let Some(func) = known {
        return Ok(func);
    }
    let names = (OTHER_MODULES.to_owned(), number.to_string());
    let func = host_function(&mut *store, number, names, ty)?;
    store.data().functions.made(number, &func, store);
    store.data_mut().others[index].1 = Some(func);
    Ok(func)
}
