//! [`Recorder`]: records an instance.
//!
//! A recording begins with a new instance ([`Recorder::instantiate`]), or with one that ran before
//! ([`Recorder::attach`]); in the latter case, the trace begins with its state (`state.rs`). From
//! there on until [`Recorder::stop`], a [`CallObserver`] of the store notifies the recording of
//! calls in both directions (`recording.rs`). Afterwards, no trace of it is left in the store or in
//! the code.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::{
    AsContextMut, CallObserver, Caller, Extern, Func, Instance, Linker, Module, ObserverId, Store,
    StoreContextMut, Val,
};

use super::any_store::AnyStore;
use super::check::check;
use super::error::{Error, unsupported};
use super::imported;
use super::recording::Recording;
use super::state;
use super::trace::Writer;

/// Records one instance of a module. A clone records to the same trace.
///
/// Calls by the host are recorded regardless of which part of the engine's API they use.
///
/// Other instances in the store are a part of the instance's host: calls in both directions, and
/// their changes to shared memories, tables and globals, are in the trace. Memories and tables that
/// an instance in the store has in common with the recorded one are copied at each call from one to
/// the other.
/// Recorders for several instances each write a trace in the same run; each trace replays alone.
///
/// One instance calls another by its imports, or through references, as in a table that they share.
#[derive(Clone)]
pub struct Recorder {
    module: Module,
    trace: Arc<Mutex<Trace>>,
}

struct Trace {
    recording: Recording,
    /// Whether the recording has had an instance.
    has_begun: bool,
    /// The observer of the store, while an instance is recorded.
    observer: Option<ObserverId>,
}

impl Recorder {
    /// A recorder that writes the trace to `out`. The trace is flushed whenever the program calls
    /// its host, or the host calls the program, and when such a call has returned. For a file,
    /// [`Recorder::to_file`] is much faster.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn new(module: &Module, out: impl Write + Send + 'static) -> Result<Self, Error> {
        Self::check(module)?;
        Ok(Self::with(module, Writer::new(out)?))
    }

    /// A recorder that writes the trace to a file: see [`Writer::to_file`]. Whenever and however
    /// the process ends, the file has everything up to the last call or return in either direction.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Io`].
    pub fn to_file(module: &Module, file: File) -> Result<Self, Error> {
        Self::check(module)?;
        Ok(Self::with(module, Writer::to_file(file)?))
    }

    fn with(module: &Module, writer: Writer) -> Self {
        let recording = Recording::new(module, writer);
        let trace = Trace { recording, has_begun: false, observer: None };
        Self { module: module.clone(), trace: Arc::new(Mutex::new(trace)) }
    }

    /// Checks whether a module can be recorded, as far as that is known before it runs.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(module: &Module) -> Result<(), Error> {
        check(module)
    }

    /// Instantiates the module with the definitions of a linker, and records the instance,
    /// including the call to its start function.
    ///
    /// # Errors
    /// As [`Linker::instantiate`]; [`Error::Unsupported`] for a second instance, and if the same
    /// host function, memory, table, tag or mutable global is imported more than once.
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
            imports.push(linker.get(&mut *store, module, name)?.ok_or_else(unknown)?);
        }
        let instance = self.instantiate_unstarted(store, &imports)?;
        instance.start(&mut *store)?;
        Ok(instance)
    }

    /// As [`Recorder::instantiate`] with these imports, but without the call to the start function,
    /// which is recorded when it is made.
    pub(crate) fn instantiate_unstarted<T: 'static>(
        &self,
        store: &mut Store<T>,
        imports: &[Extern],
    ) -> Result<Instance, Error> {
        let instance = match Instance::new_unstarted(&mut *store, &self.module, imports) {
            Ok(instance) => instance,
            Err(error) => {
                // A replay traps as well. What cannot be linked leaves no trace.
                if error.trap().is_some() {
                    self.lock().recording.out.flush()?;
                }
                return Err(error.into());
            }
        };
        self.begin(store, instance, |store, recording| {
            let imported = imported::write(store, instance, &mut recording.out)?;
            imported::write_contents(store, instance, imported, &mut recording.out)
        })?;
        Ok(instance)
    }

    /// Starts to record an instance that ran before. The trace begins with its memories, tables,
    /// mutable globals, and the segments that it has dropped: this takes time in proportion to the
    /// sizes of memories and tables. They are not copied.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as for [`Recorder::instantiate`], for an instance of another module,
    /// and if a table or global has a reference that cannot be recorded, such as one to an object.
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the instance belongs to another store.
    pub fn attach<T: 'static>(&self, store: &mut Store<T>, instance: Instance) -> Result<(), Error> {
        if instance.module(&*store).bytes() != self.module.bytes() {
            return Err(unsupported("an instance of another module"));
        }
        self.begin(store, instance, |store, recording| {
            state::write_snapshot(store, instance, &mut recording.out)
        })
    }

    fn begin<T: 'static>(
        &self,
        store: &mut Store<T>,
        instance: Instance,
        write: impl FnOnce(&mut dyn AnyStore, &mut Recording) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut trace = self.lock();
        if std::mem::replace(&mut trace.has_begun, true) {
            return Err(unsupported("a second instance in one trace"));
        }
        // From here on, imports that are functions of other instances are treated as host
        // functions.
        let observer = store.observe_calls(Arc::new(self.clone()))?;
        let recording = &mut trace.recording;
        let any = &mut store.as_context_mut();
        let begun = write(any, recording)
            .and_then(|()| recording.begin(any, instance))
            .and_then(|()| recording.begin_host(any))
            .and_then(|()| recording.out.flush());
        match begun {
            Ok(()) => trace.observer = Some(observer),
            Err(_) => {
                recording.end();
                store.remove_observer(observer);
            }
        }
        begun
    }

    /// Ends the recording and completes the trace; does nothing if there is no recording. If it is
    /// called within a host function, the trace ends before that function has returned.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the store is not the one of the instance.
    pub fn stop(&self, mut store: impl AsContextMut) -> Result<(), Error> {
        let mut trace = self.lock();
        trace.recording.end();
        if let Some(observer) = trace.observer.take() {
            store.as_context_mut().remove_observer(observer);
        }
        trace.recording.out.close()
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        // Not held while foreign code runs, which might panic.
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: 'static> CallObserver<T> for Recorder {
    fn enter(
        &self,
        mut store: StoreContextMut<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        self.lock().recording.enter(&mut store, func, arguments).map_err(into_engine)
    }

    fn leave(
        &self,
        mut store: StoreContextMut<'_, T>,
        func: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        self.lock().recording.leave(&mut store, func, results).map_err(into_engine)
    }

    fn enter_host(
        &self,
        mut caller: Caller<'_, T>,
        func: &Func,
        arguments: &[Val],
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        let store = &mut caller.as_context_mut();
        self.lock().recording.enter_host(store, instance, func, arguments).map_err(into_engine)
    }

    fn leave_host(
        &self,
        mut caller: Caller<'_, T>,
        _: &Func,
        results: Result<&[Val], &wasm_jit::Error>,
    ) -> Result<(), wasm_jit::Error> {
        let instance = caller.instance();
        let store = &mut caller.as_context_mut();
        self.lock().recording.leave_host(store, instance, results).map_err(into_engine)
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
