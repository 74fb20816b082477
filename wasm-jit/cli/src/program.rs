//! A program and its threads (the proposal wasi-threads).
//!
//! A module that imports a shared memory, by whatever names, gets one of the type that it asks for.
//! `wasi.thread-spawn` starts a thread of the host that has a store and an instance of the same
//! module of its own, and calls its export `wasi_thread_start`. The threads share the memory, the
//! compiled code, and what they see of the host. The first that traps or exits ends them all, and
//! so does the return of the first.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, JoinHandle};

use wasm_jit::{Engine, Error, ExternType, Instance, Linker, Module, SharedMemory, Store};
use wasm_jit_wasi::WasiCtx;

use super::Failure;

/// Stack that the host functions get, besides the program's own.
const HOST_STACK: usize = 1 << 20;

/// Most threads that are started, all in all: their numbers have 29 bits.
const MAX_THREADS: i32 = (1 << 29) - 1;

/// What all threads of a program have in common.
pub(super) struct Program {
    engine: Engine,
    module: Module,
    wasi: WasiCtx,
    /// The shared memories that the module imports, with the names that it does so by.
    memories: Vec<(String, String, SharedMemory)>,
    /// For the program, without the host functions.
    stack: usize,
    last_thread: AtomicI32,
    /// Says why a thread has failed, and gives the exit code.
    report: fn(&Error) -> u8,
}

impl Program {
    pub(super) fn new(
        module: Module,
        wasi: WasiCtx,
        stack: usize,
        report: fn(&Error) -> u8,
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
        Ok(Arc::new(Self { engine, module, wasi, memories, stack, last_thread: AtomicI32::new(0), report }))
    }

    pub(super) fn store(&self) -> Store<WasiCtx> {
        Store::new(&self.engine, self.wasi.clone())
    }

    /// An instance whose imports are WASI, and the threads' memory.
    pub(super) fn instantiate(self: &Arc<Self>, store: &mut Store<WasiCtx>) -> Result<Instance, Error> {
        let mut linker = Linker::new(&self.engine);
        wasm_jit_wasi::add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi)?;
        for (module, name, memory) in &self.memories {
            linker.define(&mut *store, module, name, memory.clone())?;
        }
        if !self.memories.is_empty() {
            let program = Arc::clone(self);
            linker
                .func_wrap("wasi", "thread-spawn", move |argument: i32| -> i32 { program.spawn(argument) })?;
        }
        linker.instantiate(&mut *store, &self.module)
    }

    /// The number of the new thread, or a negative one if there is none.
    fn spawn(self: &Arc<Self>, argument: i32) -> i32 {
        let started = self.last_thread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            (last < MAX_THREADS).then_some(last + 1)
        });
        let Ok(last) = started else { return -1 };
        let number = last + 1;
        let program = Arc::clone(self);
        let run = move || {
            if let Err(error) = program.run_thread(number, argument) {
                process::exit((program.report)(&error).into());
            }
        };
        match with_stack(self.stack, run) {
            Ok(_) => number,
            Err(_) => -1,
        }
    }

    fn run_thread(self: &Arc<Self>, number: i32, argument: i32) -> Result<(), Error> {
        let mut store = self.store();
        let instance = self.instantiate(&mut store)?;
        let start = instance.get_typed_func::<(i32, i32), ()>(&mut store, "wasi_thread_start")?;
        start.call(&mut store, (number, argument))
    }
}

/// Starts a thread on which a program has so much stack.
pub(super) fn with_stack<R: Send + 'static>(
    bytes: usize,
    run: impl FnOnce() -> R + Send + 'static,
) -> Result<JoinHandle<R>, Failure> {
    let stack = bytes.saturating_add(HOST_STACK);
    let thread = thread::Builder::new().name("program".to_owned()).stack_size(stack).spawn(run);
    thread.map_err(|error| Failure::new(format_args!("no thread with a stack of {stack} bytes: {error}")))
}
