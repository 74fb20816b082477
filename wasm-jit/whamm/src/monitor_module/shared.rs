//! [`SharedMonitor`]: a monitor with a store of its own, which observes a module in all stores.
//!
//! A monitor that is [attached](MonitorModule::attach) to a store is called in this store, by the
//! store's thread. It cannot be attached while that thread runs the program, and sees one thread
//! only. A shared monitor can be attached at any time, from any thread:
//!
//! - Its only instance is in a separate store, under a lock. Its variables exist once for all
//!   threads that run the program.
//! - Where the engine [counts](super::counted) for a rule, it counts in all instances, at the same
//!   cost as in an attached monitor.
//! - Elsewhere, a probe calls a closure, which takes the lock and calls the rule's function. The
//!   function runs undivided: no other event is observed during the call, and other threads that
//!   reach a probe wait. It takes about forty times as long as a call in the program's store
//!   (`wasm-jit run` with and without `--control`, five million calls to a function).
//!
//! # Threads
//! The runtime of our [scripts](crate::lang) has two stacks, for frames and for instructions that
//! have begun. Each thread needs its own stacks. The module exports the globals that describe them
//! ([`THREAD_STATE`]), and the caller exchanges their values when another thread calls. Other
//! monitor modules that ask for frames may be called by one thread only: the monitor fails when a
//! second thread calls, because it would confuse the frames of the threads.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use wasm_jit::probes::{Callback, Scope};
use wasm_jit::{Func, Global, Instance, InterruptHandle, Linker, Module, Store, Val, ValType};

use super::attach::{Last, Matched, Unfit, run};
use super::blame::Libraries;
use super::error::MonitorError;
use super::load::MonitorModule;
use super::made::{Callee, Maker, Probes, Stop};
use super::names::{Parameter, Static};
use crate::failure::RuleFailure;

/// The globals that a module exports if it keeps stacks for threads: for each stack its address,
/// the number of its entries, and its capacity. All are 0 in a new thread.
pub(crate) const THREAD_STATE: [&str; 6] = [
    "thread:frames",
    "thread:frame_count",
    "thread:frame_room",
    "thread:begun",
    "thread:begun_count",
    "thread:begun_room",
];

/// The indices of the globals that are 0 when a stack is empty.
const ENTRIES: [usize; 2] = [1, 4];

/// A function of the monitor for which a caller waits is aborted after this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A monitor that observes all instances of a module, from a separate store. Its probes are removed
/// when it is dropped.
///
/// All of its functions may be called while threads run the program.
pub struct SharedMonitor<T: 'static> {
    caller: Arc<Caller<T>>,
    interrupt: InterruptHandle,
    probes: Probes,
    last: Mutex<Last>,
    unfit: Vec<Unfit>,
}

impl MonitorModule {
    /// Instantiates the monitor and its libraries in a store, which becomes the monitor's own, and
    /// creates probes in a module, off at first.
    ///
    /// The probes fire in all instances of the module, in all stores and threads. The rules of
    /// `wasm:begin` are called at once. The linker is that of [`MonitorModule::attach`].
    ///
    /// If a function of the monitor fails, the program's call continues: the monitor observes
    /// nothing more, and [`SharedMonitor::failure`] and [`SharedMonitor::finish`] report this. What
    /// a function of the monitor itself executes is not observed. A function that does not return
    /// blocks the program's thread; it is aborted ten seconds after a caller begins to wait for it
    /// in [`SharedMonitor::read`] or one of the other functions.
    ///
    /// # Errors
    /// As [`MonitorModule::attach`], except that probes are created by [`SharedMonitor::activate`].
    ///
    /// # Panics
    /// If the store, the linker, the modules and the program's module belong to different engines.
    ///
    /// # Example
    /// ```
    /// use wasm_jit::{Engine, Instance, Linker, Module, Store};
    /// use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
    /// use wasm_jit_whamm::monitor_module::MonitorModule;
    ///
    /// let engine = Engine::default();
    /// let program = Module::new(&engine, "(module (func $f) (func (export \"run\") (call $f)))")?;
    /// let mut store = Store::new(&engine, ());
    /// let run = Instance::new(&mut store, &program, &[])?.get_typed_func::<(), ()>(&mut store, "run")?;
    /// run.call(&mut store, ())?;
    ///
    /// let script = Script::new("calls.mm", b"report var n: u64; wasm:func:entry { n++; }", &[])?;
    /// let monitor = MonitorModule::new(Module::from_binary(&engine, script.module())?, Vec::new())?;
    /// let shared = monitor.share(Store::new(&engine, ()), &mut Linker::new(&engine), &program)?;
    /// shared.activate()?;
    /// run.call(&mut store, ())?;
    /// shared.deactivate()?;
    /// run.call(&mut store, ())?;
    /// let report = shared.read(|store, instance| script.report(&*store, instance))?;
    /// assert_eq!(report.variables[0].value, ReportedValue::Value(Value::Int(2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share<T: Send + 'static>(
        &self,
        mut store: Store<T>,
        linker: &mut Linker<T>,
        program: &Module,
    ) -> Result<SharedMonitor<T>, MonitorError> {
        let Matched { instance, found, functions, last, switches, unfit, libraries } =
            self.matched(&mut store, linker, program)?;
        let exports = self.names();
        let function = |export: &String| instance.get_func(&store, export).expect("its type was checked");
        let rules = exports.iter().zip(&functions).map(|(export, checked)| Rule {
            export: export.clone(),
            function: function(export),
            types: checked.parameters().into(),
        });
        let rules: Box<[Rule]> = rules.collect();
        let threads = Threads::of(&store, &instance, self.has_frames());
        let interrupt = store.interrupt_handle();
        let types: Vec<Arc<[ValType]>> = rules.iter().map(|rule| rule.types.clone()).collect();
        let inner =
            Inner { store, instance, rules, threads, arguments: Vec::new(), failure: None, libraries };
        let caller = Arc::new(Caller {
            inner: Mutex::new(inner),
            running: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            stop: OnceLock::new(),
        });
        let closure = |(rule, types)| {
            let caller = caller.clone();
            Callee::Closure(Callback::with_types(types, move |values| caller.call(rule, values)))
        };
        let callees = types.into_iter().enumerate().map(closure).collect();
        let maker = Maker { program: program.clone(), scope: Scope::Module, exports, callees };
        let probes = Probes::new(maker, found, &switches, false);
        let _ = caller.stop.set(probes.stop());
        Ok(SharedMonitor { probes, caller, interrupt, last: Mutex::new(last), unfit })
    }

    /// Whether a rule binds a frame, or the identity of an instruction that has begun in one.
    fn has_frames(&self) -> bool {
        let of_frame =
            |value: &Parameter| matches!(value, Parameter::Frame | Parameter::Static(Static::Guard(_)));
        self.rules.iter().any(|(_, rule)| rule.parameters.iter().any(of_frame))
    }
}

impl<T: 'static> SharedMonitor<T> {
    /// Switches the probes on; does nothing if they are, or if the monitor has
    /// [failed](Self::failure). Variables keep their values, except those
    /// of frames: existing frames get new ones.
    ///
    /// If there are instances of the module, probes are created in all functions at once, which
    /// compiles the functions; they take effect one after the other, within each function as
    /// [probes](wasm_jit::probes#consistency) do. Otherwise, the probes of a function are created
    /// when it is first called.
    ///
    /// # Errors
    /// [`MonitorError::Probe`], [`MonitorError::Switch`], [`MonitorError::Watch`]: the probes are
    /// off.
    pub fn activate(&self) -> Result<(), MonitorError> {
        if self.caller.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !self.probes.is_on() {
            self.lock().forget_frames();
        }
        self.probes.switch(true).inspect_err(|_| {
            // The error that is returned is that of switching them on.
            let _ = self.probes.switch(false);
        })
    }

    /// Switches the probes off; does nothing if they are. The program's functions return to their
    /// original code, as described at [`deactivate_all`](wasm_jit::probes::deactivate_all). Other
    /// threads may still call a function of the monitor once.
    ///
    /// # Errors
    /// [`MonitorError::Switch`]: some are still on.
    pub fn deactivate(&self) -> Result<(), MonitorError> {
        self.probes.switch(false)
    }

    /// Whether the probes are on.
    pub fn is_active(&self) -> bool {
        self.probes.is_on()
    }

    /// Reads what the monitor has observed so far; if it has [failed](Self::failure), until then.
    /// No function of the monitor runs during the call, and threads of the program that reach a
    /// probe wait.
    ///
    /// # Panics
    /// Deadlocks or panics if it is called by a function of the monitor.
    pub fn read<R>(&self, read: impl FnOnce(&mut Store<T>, &Instance) -> R) -> R {
        let mut inner = self.lock();
        let Inner { store, instance, .. } = &mut *inner;
        self.probes.settle(instance, &mut *store);
        read(store, instance)
    }

    /// The failure after which the monitor observes nothing more, if there was one:
    /// [`MonitorError::Failed`].
    pub fn failure(&self) -> Option<MonitorError> {
        self.lock().check().err()
    }

    /// Calls the functions of the rules `wasm:end`, then `wasm:exit`. They are called once, however
    /// often this is called.
    ///
    /// # Errors
    /// [`MonitorError::Failed`], [`MonitorError::Run`]: the remaining functions are not called.
    /// [`MonitorError::Incomplete`]: all functions were called, but a rule was not observed in a
    /// function that was called.
    pub fn finish(&self) -> Result<(), MonitorError> {
        let mut inner = self.lock();
        inner.check()?;
        let Inner { store, instance, .. } = &mut *inner;
        self.probes.settle(instance, &mut *store);
        let last = std::mem::take(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner));
        for (export, arguments) in last {
            run(store, instance, &export, &arguments)?;
        }
        self.probes.take_refused().map_or(Ok(()), Err)
    }

    /// The rules that observe nothing, because no place has values of their types.
    pub fn unfit(&self) -> &[Unfit] {
        &self.unfit
    }

    /// The number of places at which functions of the monitor are called, or the engine counts for
    /// them, in functions whose probes have been created so far.
    pub fn probes(&self) -> usize {
        self.probes.count().0
    }

    /// The number of places at which the engine counts, in functions whose probes have been created
    /// so far.
    pub fn counters(&self) -> usize {
        self.probes.count().1
    }

    /// Acquires the monitor's lock. A function of the monitor that holds it for too long is
    /// aborted.
    fn lock(&self) -> Lease<'_, T> {
        // Without the timer, waits for a function that does not return.
        let _ends_by_itself = self.interrupt.interrupt_after(PATIENCE);
        self.caller.lock()
    }
}

/// The state that the closures of probes share. It does not own the program's code.
struct Caller<T: 'static> {
    inner: Mutex<Inner<T>>,
    /// The thread that holds the lock, or 0.
    running: AtomicUsize,
    has_failed: AtomicBool,
    /// What ends the observation by the engine's counters when a rule fails.
    stop: OnceLock<Stop>,
}

struct Inner<T: 'static> {
    store: Store<T>,
    instance: Instance,
    rules: Box<[Rule]>,
    threads: Threads,
    /// The arguments of the current call.
    arguments: Vec<Val>,
    failure: Option<(String, String)>,
    libraries: Libraries,
}

/// A rule, and its function.
struct Rule {
    export: String,
    function: Func,
    types: Arc<[ValType]>,
}

/// The lock of the monitor.
struct Lease<'a, T: 'static> {
    inner: MutexGuard<'a, Inner<T>>,
    running: &'a AtomicUsize,
}

impl<T: 'static> Caller<T> {
    fn lock(&self) -> Lease<'_, T> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Only this thread compares it with its own number.
        self.running.store(this_thread(), Ordering::Relaxed);
        Lease { inner, running: &self.running }
    }

    /// Calls the function of a rule.
    fn call(&self, rule: usize, values: &[u64]) {
        let is_own = self.running.load(Ordering::Relaxed) == this_thread();
        if is_own || self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.lock();
        if let Err(failure) = inner.call(rule, values) {
            inner.failure.get_or_insert(failure);
            self.has_failed.store(true, Ordering::Relaxed);
            if let Some(stop) = self.stop.get() {
                stop.stop();
            }
        }
    }
}

impl<T: 'static> Inner<T> {
    /// Calls the function of a rule. An error is the name of the rule, and the reason.
    fn call(&mut self, rule: usize, values: &[u64]) -> Result<(), (String, String)> {
        let Rule { export, function, types } = &self.rules[rule];
        let switched = self.threads.switch_to(this_thread(), &mut self.store);
        switched.map_err(|reason| (export.clone(), reason))?;
        self.arguments.clear();
        self.arguments.extend(types.iter().zip(values).map(|(ty, bits)| value(*ty, *bits)));
        let called = function.call(&mut self.store, &self.arguments, &mut []);
        called.map_err(|error| match error.downcast_ref::<RuleFailure>() {
            Some(failure) => (failure.rule.clone(), failure.reason.to_owned()),
            None => {
                let name = self.libraries.executed(&error).unwrap_or_else(|| export.clone());
                let reason = error.reason();
                (name, self.libraries.called(&error).map_or(reason.clone(), |of| format!("`{of}`: {reason}")))
            }
        })
    }

    fn check(&self) -> Result<(), MonitorError> {
        let failure = self.failure.clone();
        failure.map_or(Ok(()), |(export, reason)| Err(MonitorError::Failed { export, reason }))
    }

    /// Empties the stacks of all threads: while nothing was observed, frames may have ended.
    fn forget_frames(&mut self) {
        self.threads.empty_stacks(&mut self.store);
    }
}

fn value(ty: ValType, bits: u64) -> Val {
    match ty {
        ValType::I32 => Val::I32(bits as i32),
        ValType::I64 => Val::I64(bits as i64),
        ValType::F32 => Val::F32(bits as u32),
        ValType::F64 => Val::F64(bits),
        ValType::V128 | ValType::Ref(_) => unreachable!("only numbers pass the checks of loading"),
    }
}

/// The stacks of threads.
struct Threads {
    /// The globals in the order of [`THREAD_STATE`]; none if the monitor does not export them.
    globals: Vec<Global>,
    has_frames: bool,
    /// The thread whose values the globals have, or 0.
    current: usize,
    others: HashMap<usize, Vec<Val>>,
}

impl Threads {
    fn of<T: 'static>(store: &Store<T>, instance: &Instance, has_frames: bool) -> Self {
        let global = |name: &&str| instance.get_global(store, name);
        let globals: Option<Vec<Global>> = THREAD_STATE.iter().map(global).collect();
        Self { globals: globals.unwrap_or_default(), has_frames, current: 0, others: HashMap::new() }
    }

    fn switch_to<T: 'static>(&mut self, thread: usize, store: &mut Store<T>) -> Result<(), String> {
        if thread == self.current {
            return Ok(());
        }
        if self.globals.is_empty() && self.has_frames && self.current != 0 {
            return Err(
                "the program has several threads, and the monitor cannot tell their frames apart".into()
            );
        }
        let next = self.others.remove(&thread).unwrap_or_else(|| vec![Val::I32(0); self.globals.len()]);
        let mut last = Vec::with_capacity(next.len());
        for (global, value) in self.globals.iter().zip(next) {
            last.push(global.get(&mut *store));
            global.set(&mut *store, value).map_err(|error| error.to_string())?;
        }
        if self.current != 0 && !last.is_empty() {
            self.others.insert(self.current, last);
        }
        self.current = thread;
        Ok(())
    }

    fn empty_stacks<T: 'static>(&mut self, store: &mut Store<T>) {
        if self.globals.is_empty() {
            return;
        }
        for entries in ENTRIES {
            // They were set before.
            let _ = self.globals[entries].set(&mut *store, Val::I32(0));
            self.others.values_mut().for_each(|values| values[entries] = Val::I32(0));
        }
    }
}

/// A number that identifies this thread among those that exist. A thread that begins after another
/// one has ended may get its number, and its stacks: their entries belong to calls that have ended,
/// which the monitor's functions detect.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| ptr::from_ref(here).addr())
}

impl<T: 'static> Deref for Lease<'_, T> {
    type Target = Inner<T>;

    fn deref(&self) -> &Inner<T> {
        &self.inner
    }
}

impl<T: 'static> DerefMut for Lease<'_, T> {
    fn deref_mut(&mut self) -> &mut Inner<T> {
        &mut self.inner
    }
}

impl<T: 'static> Drop for Lease<'_, T> {
    fn drop(&mut self) {
        self.running.store(0, Ordering::Relaxed);
    }
}

impl<T: 'static> fmt::Debug for SharedMonitor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMonitor").field("probes", &self.probes).finish_non_exhaustive()
    }
}
