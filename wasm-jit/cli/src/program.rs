//! A program and its threads (the proposal wasi-threads).
//!
//! A module that imports shared memories, by any names, gets new ones of the required types.
//! `wasi.thread-spawn` starts a host thread with its own store and instance of the same module, and
//! calls its export `wasi_thread_start`. The threads share the memory, the compiled code, and the
//! WASI context. The first thread that traps or exits ends all of them, as does the return of the
//! main thread.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use wasm_jit::{
    Engine, Error, ExternType, Instance, InterruptHandle, Linker, Module, SharedMemory, Store, StoreLimits,
};
use wasm_jit_debug::Debugger;
use wasm_jit_replay::{Error as ReplayError, Recorder};
use wasm_jit_wasi::WasiCtx;

use super::Failure;
use super::host::Host;
use super::monitors::Monitors;
use super::recordings::Recorders;

/// Stack for host functions, in addition to the program's.
const HOST_STACK: usize = 1 << 20;

/// Maximum number of threads that are ever started: their ids have 29 bits.
const MAX_THREADS: i32 = (1 << 29) - 1;

/// What each thread of a program may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Stack size in bytes, without host functions.
    pub(super) stack: usize,
    /// The fuel, if instructions consume any.
    pub(super) fuel: Option<u64>,
    /// Maximum size of the garbage-collected heap in bytes, and of the exceptions.
    pub(super) heap: Option<u64>,
}

impl Limits {
    /// The limits of a store, if there are any.
    pub(super) fn of_store(&self) -> Option<StoreLimits> {
        self.heap.map(|heap| StoreLimits::new().heap_size(heap).exceptions_size(heap))
    }
}

/// What a program can import besides WASI and the functions of `wasm:js-string`.
pub(super) struct Imports {
    /// Modules whose exports the program can import, by the first name of the import. Each thread
    /// has its own instances of them.
    pub(super) preloads: Vec<(String, Module)>,
    /// The first name of imports that are string constants.
    pub(super) string_constants: String,
    /// Whether the program runs if a function is not defined.
    pub(super) allows_unknown: bool,
}

/// State that all threads of a program share.
pub(super) struct Program {
    engine: Engine,
    module: Module,
    wasi: WasiCtx,
    imports: Imports,
    monitors: Monitors,
    /// The debugger that can pause the threads.
    debugger: Option<Arc<Debugger>>,
    recorders: Option<Recorders>,
    /// The shared memories that the module imports, with the names of the imports.
    memories: Vec<(String, String, SharedMemory)>,
    limits: Limits,
    last_thread: AtomicI32,
    /// Stops the main thread.
    main: OnceLock<InterruptHandle>,
    end: Mutex<End>,
}

/// How a program ends.
enum End {
    NotYet,
    /// Another thread has trapped or exited.
    OfThread(Error),
    /// The main thread does what is left to do.
    Seen,
}

impl Program {
    pub(super) fn new(
        module: Module,
        (wasi, imports): (WasiCtx, Imports),
        (monitors, debugger, recorders): (Monitors, Option<Arc<Debugger>>, Option<Recorders>),
        limits: Limits,
    ) -> Result<Arc<Self>, Error> {
        let mut memories: Vec<(String, String, SharedMemory)> = Vec::new();
        for import in module.imports() {
            let names = (import.module(), import.name());
            if let ExternType::Memory(ty) = import.ty()
                && ty.is_shared()
                && memories.iter().all(|(module, name, _)| (module.as_str(), name.as_str()) != names)
            {
                memories.push((names.0.to_owned(), names.1.to_owned(), SharedMemory::new(*ty)?));
            }
        }
        let engine = module.engine().clone();
        Ok(Arc::new(Self {
            engine,
            module,
            wasi,
            imports,
            monitors,
            debugger,
            recorders,
            memories,
            limits,
            last_thread: AtomicI32::new(0),
            main: OnceLock::new(),
            end: Mutex::new(End::NotYet),
        }))
    }

    /// A store for the main thread, which is stopped when another thread traps or exits.
    pub(super) fn main_store(&self) -> Result<Store<Host>, Error> {
        let mut store = self.store()?;
        self.main.get_or_init(|| store.interrupt_handle());
        Ok(store)
    }

    /// Ends the program, unless it has ended: the main thread is stopped, and does what is left to
    /// do.
    fn end(&self, error: Error) {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if let (End::NotYet, Some(main)) = (&*end, self.main.get()) {
            *end = End::OfThread(error);
            main.interrupt();
        }
    }

    /// Called by the main thread when it has ended. Returns why another thread has ended the
    /// program, if one has.
    pub(super) fn ended(&self) -> Option<Error> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *end, End::Seen) {
            End::OfThread(error) => {
                // It may have ended before it was stopped.
                self.main.get().into_iter().for_each(InterruptHandle::withdraw);
                Some(error)
            }
            End::NotYet | End::Seen => None,
        }
    }

    /// A store for a thread of the program.
    pub(super) fn store(&self) -> Result<Store<Host>, Error> {
        let mut store = Store::new(&self.engine, Host { program: self.wasi.clone(), monitors: Vec::new() });
        if let Some(fuel) = self.limits.fuel {
            store.set_fuel(fuel)?;
        }
        if let Some(limits) = self.limits.of_store() {
            store.set_limits(limits);
        }
        Ok(store)
    }

    /// An instance whose imports are WASI, strings, the shared memories, and functions of monitors.
    pub(super) fn instantiate(self: &Arc<Self>, store: &mut Store<Host>) -> Result<Instance, Error> {
        let mut linker = Linker::new(&self.engine);
        wasm_jit_wasi::add_to_linker(&mut linker, |host: &mut Host| &mut host.program)?;
        // A module that is preloaded under this name replaces the functions.
        if self.imports.preloads.iter().all(|(name, _)| name != wasm_jit_js_string::MODULE) {
            wasm_jit_js_string::add_to_linker(&mut linker)?;
        }
        self.monitors.define(&mut linker)?;
        for (module, name, memory) in &self.memories {
            linker.define(&mut *store, module, name, memory.clone())?;
        }
        if !self.memories.is_empty() {
            let program = Arc::clone(self);
            linker
                .func_wrap("wasi", "thread-spawn", move |argument: i32| -> i32 { program.spawn(argument) })?;
        }
        for (number, (name, module)) in self.imports.preloads.iter().enumerate() {
            self.define_others(&mut linker, store, module)?;
            let recorder = self.recorders.as_ref().and_then(|recorders| recorders.preloads.get(number));
            let instance = instantiate(store, &linker, module, recorder)?;
            if let Some(initialize) = instance.get_func(&mut *store, "_initialize") {
                initialize.typed::<(), ()>(&*store)?.call(&mut *store, ())?;
            }
            linker.instance(&mut *store, name, instance)?;
        }
        self.define_others(&mut linker, store, &self.module)?;
        let recorder = self.recorders.as_ref().map(|recorders| &recorders.program);
        instantiate(store, &linker, &self.module, recorder)
    }

    /// Defines items that depend on the module that is instantiated next: its string constants, and
    /// functions that are not defined.
    fn define_others(
        &self,
        linker: &mut Linker<Host>,
        store: &mut Store<Host>,
        module: &Module,
    ) -> Result<(), Error> {
        wasm_jit_js_string::define_constants(linker, store, module, &self.imports.string_constants)?;
        if self.imports.allows_unknown {
            linker.define_unknown_imports_as_traps(module);
        }
        Ok(())
    }

    /// The id of the new thread, or a negative number if it cannot be started.
    fn spawn(self: &Arc<Self>, argument: i32) -> i32 {
        let started = self.last_thread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            (last < MAX_THREADS).then_some(last + 1)
        });
        let Ok(last) = started else { return -1 };
        let number = last + 1;
        let program = Arc::clone(self);
        let run = move || {
            if let Err(error) = program.run_thread(number, argument) {
                program.end(error);
            }
        };
        match with_stack(self.limits.stack, run) {
            Ok(_) => number,
            Err(_) => -1,
        }
    }

    fn run_thread(self: &Arc<Self>, number: i32, argument: i32) -> Result<(), Error> {
        let mut store = self.store()?;
        let handle = store.interrupt_handle();
        let known = self.debugger.as_ref().map(|debugger| (debugger, debugger.add_thread(handle)));
        let done = self.run_in(&mut store, number, argument);
        if let Some((debugger, thread)) = known {
            debugger.remove_thread(thread);
        }
        done
    }

    fn run_in(self: &Arc<Self>, store: &mut Store<Host>, number: i32, argument: i32) -> Result<(), Error> {
        let instance = self.instantiate(store)?;
        let start = instance.get_typed_func::<(i32, i32), ()>(&mut *store, "wasi_thread_start")?;
        start.call(store, (number, argument))
    }
}

/// An instance of a module, which may be recorded.
fn instantiate(
    store: &mut Store<Host>,
    linker: &Linker<Host>,
    module: &Module,
    recorder: Option<&Recorder>,
) -> Result<Instance, Error> {
    let Some(recorder) = recorder else { return linker.instantiate(store, module) };
    recorder.instantiate(store, linker).map_err(|error| match error {
        ReplayError::Engine(error) => error,
        error => Error::host(error),
    })
}

/// Runs this on a thread that has a stack of this size for a program.
pub(super) fn run_with_stack<R: Send + 'static>(
    bytes: usize,
    run: impl FnOnce() -> Result<R, Failure> + Send + 'static,
) -> Result<R, Failure> {
    with_stack(bytes, run)?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Starts a thread on which a program has a stack of this size.
pub(super) fn with_stack<R: Send + 'static>(
    bytes: usize,
    run: impl FnOnce() -> R + Send + 'static,
) -> Result<JoinHandle<R>, Failure> {
    let stack = bytes.saturating_add(HOST_STACK);
    let thread = thread::Builder::new().name("program".to_owned()).stack_size(stack).spawn(run);
    thread.map_err(|error| Failure::new(format_args!("no thread with a stack of {stack} bytes: {error}")))
}
