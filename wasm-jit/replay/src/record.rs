//! [`Recorder`].
//!
//! A recording begins with a new instance ([`Recorder::instantiate`]), or with one that ran before
//! ([`Recorder::attach`]): then the trace begins with its state (`state.rs`). From there on until
//! [`Recorder::stop`], the store's [`CallObserver`] notifies the recording of calls in both
//! directions (`recording.rs`). Afterwards, nothing of it is left in the store or in the code.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::{
    AsContextMut, CallObserver, Caller, Extern, Func, Instance, Linker, Module, Store, StoreContextMut, Val,
};

use super::check::check;
use super::error::{Error, unsupported};
use super::imported;
use super::linked::{Entries, through_host};
use super::recording::Recording;
use super::state;

/// Records one instance of a module. A clone records to the same trace.
///
/// Calls by the host are recorded by whatever part of the engine's API they are made.
///
/// Other instances in the store are a part of its host: what they change in memories, tables and
/// globals that they share with it, and calls in both directions, are in the trace. To call it,
/// they must be linked by [`Recorder::define_exports`]. While one of them runs, shared memories and
/// tables are copied at each call between it and the recorded instance. For a trace of each
/// instance, record the run once for each.
#[derive(Clone)]
pub struct Recorder {
    module: Module,
    trace: Arc<Mutex<Trace>>,
}

struct Trace {
    recording: Recording,
    /// Whether there was an instance.
    has_begun: bool,
    /// Made when another instance is called.
    entries: Option<Entries>,
}

impl Recorder {
    /// A recorder that writes the trace to `out`. It is flushed when an imported function, or a
    /// function that the host called, has returned.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn new(module: &Module, out: impl Write + Send + 'static) -> Result<Self, Error> {
        Self::check(module)?;
        let mut recording = Recording::new(module, out)?;
        recording.allows_others = true;
        let trace = Trace { recording, has_begun: false, entries: None };
        Ok(Self { module: module.clone(), trace: Arc::new(Mutex::new(trace)) })
    }

    /// Whether a module can be recorded, as far as that is known before it runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(module: &Module) -> Result<(), Error> {
        check(module)
    }

    /// Instantiates the module with the definitions of a linker, and records the instance, the call
    /// of its start function included. It calls functions of other instances through functions of
    /// the host.
    ///
    /// # Errors
    /// Those of [`Linker::instantiate`]; [`Error::Unsupported`] for a second instance, a store that
    /// another recorder records, and imports of one function of the host, memory, table, tag or
    /// mutable global more than once.
    pub fn instantiate<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &Linker<T>,
    ) -> Result<Instance, Error> {
        let mut imports = Vec::new();
        for import in self.module.imports() {
            let (module, name) = (import.module(), import.name());
            let unknown =
                || wasm_jit::Error::UnknownImport { module: module.to_owned(), name: name.to_owned() };
            imports.push(match linker.get(&mut *store, module, name)?.ok_or_else(unknown)? {
                Extern::Func(func) if !func.is_host(&*store) => through_host(&mut *store, func)?.into(),
                item => item,
            });
        }
        let instance = Instance::new_unstarted(&mut *store, &self.module, &imports)?;
        self.begin(store, instance, |store, recording| {
            let imported = imported::write(&mut *store, instance, &mut recording.out)?;
            imported::write_contents(store, instance, imported, &mut recording.out)
        })?;
        instance.start(&mut *store)?;
        Ok(instance)
    }

    /// Records an instance that ran before, from now on. The trace begins with its memories,
    /// tables, mutable globals, and the segments that it has dropped: this takes time in proportion
    /// to the sizes of memories and tables. They are not copied.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as for [`Recorder::instantiate`], for an instance of another module,
    /// for one that imports functions of other instances, and if a table or global has a reference
    /// that cannot be recorded: one to a value of the host or to an object, or to a function that
    /// is not the module's. [`Error::Io`].
    ///
    /// # Panics
    /// If the instance is of another store.
    pub fn attach<T: 'static>(&self, store: &mut Store<T>, instance: Instance) -> Result<(), Error> {
        if instance.module(&*store).bytes() != self.module.bytes() {
            return Err(unsupported("an instance of another module"));
        }
        self.begin(store, instance, |store, recording| {
            state::write_snapshot(store, instance, &mut recording.out)
        })
    }

    /// Defines the exports of an instance, with `module` as first name, for other instances in its
    /// store that call it while it is recorded: its functions are called through functions of the
    /// host. Direct calls, as those of functions that [`Linker::instance`] has defined, or through
    /// references, fail with [`Error::Unsupported`] while it is recorded.
    ///
    /// # Errors
    /// Those of [`Linker::instance`].
    ///
    /// # Panics
    /// If the instance is of another store.
    pub fn define_exports<T: 'static>(
        store: &mut Store<T>,
        linker: &mut Linker<T>,
        module: &str,
        instance: Instance,
    ) -> Result<(), Error> {
        let exports = instance.exports(&*store);
        let exports: Vec<_> =
            exports.map(|export| (export.name().to_owned(), export.into_extern())).collect();
        for (name, item) in exports {
            let item = match item {
                Extern::Func(func) if !func.is_host(&*store) => through_host(&mut *store, func)?.into(),
                item => item,
            };
            linker.define(&*store, module, &name, item)?;
        }
        Ok(())
    }

    fn begin<T: 'static>(
        &self,
        store: &mut Store<T>,
        instance: Instance,
        write: impl FnOnce(&mut Store<T>, &mut Recording) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut trace = self.lock();
        if std::mem::replace(&mut trace.has_begun, true) {
            return Err(unsupported("a second instance in one trace"));
        }
        if store.as_context_mut().is_observed() {
            return Err(unsupported("a store that is recorded already"));
        }
        let recording = &mut trace.recording;
        write(store, recording)?;
        recording.begin(&mut *store, instance)?;
        recording.begin_host(&mut *store)?;
        recording.out.flush()?;
        store.observe_calls(Some(Arc::new(self.clone())));
        Ok(())
    }

    /// Ends the recording; does nothing if there is none. Within a host function, the trace ends
    /// before the function has returned. The trace is complete then.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the store is not that of the instance.
    pub fn stop(&self, mut store: impl AsContextMut) -> Result<(), Error> {
        let mut trace = self.lock();
        if trace.recording.is_recording() {
            trace.recording.end(&mut store);
            store.as_context_mut().observe_calls(None);
        }
        trace.entries = None;
        trace.recording.out.flush()
    }

    /// Notices direct calls of the instance by others from now on.
    fn watch_entries(&self, trace: &mut Trace) -> Result<(), Error> {
        if let Some(entries) = &trace.entries {
            return entries.activate();
        }
        let of_trace = Arc::downgrade(&self.trace);
        let is_direct = move |instance| {
            let trace = of_trace.upgrade();
            trace.is_some_and(|trace| lock(&trace).recording.is_called_directly(instance))
        };
        trace.entries = Some(Entries::new(&self.module, is_direct)?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        lock(&self.trace)
    }
}

fn lock(trace: &Mutex<Trace>) -> MutexGuard<'_, Trace> {
    // Not held while foreign code runs, which might panic.
    trace.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: 'static> CallObserver<T> for Recorder {
    fn enter(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        let mut trace = self.lock();
        let had_others = trace.recording.has_others();
        let entered = trace.recording.enter(store, func, arguments);
        let watched = entered.and_then(|()| match trace.recording.has_others() && !had_others {
            true => self.watch_entries(&mut trace),
            false => Ok(()),
        });
        watched.map_err(into_engine)
    }

    fn leave(
        &self,
        store: StoreContextMut<'_, T>,
        func: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        let mut trace = self.lock();
        let had_others = trace.recording.has_others();
        trace.recording.leave(store, func, results).map_err(into_engine)?;
        match &trace.entries {
            Some(entries) if had_others && !trace.recording.has_others() => {
                entries.deactivate().map_err(into_engine)
            }
            _ => Ok(()),
        }
    }

    fn enter_host(
        &self,
        caller: Caller<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        self.lock().recording.enter_host(caller, instance, func, arguments).map_err(into_engine)
    }

    fn leave_host(
        &self,
        caller: Caller<'_, T>,
        _: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        self.lock().recording.leave_host(caller, instance, results).map_err(into_engine)
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
