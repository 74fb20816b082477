//! A monitor that is attached to a program.
//!
//! Rules are matched with the whole program before it runs, because matching calls functions of the
//! monitor. Probes are made in a function when it is first called, since most functions of a large
//! program are not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{
    FirstCallWatch, Probe, ProbeError, ProbeSpec, Scope, ValueError, WasmFn, activate_all,
};
use wasm_jit::{AsContextMut, Error, Instance, Linker, Module, Store, Val};

use super::contents::Contents;
use super::counted::{Counting, Found, choose};
use super::error::MonitorError;
use super::load::MonitorModule;
use super::matching::Matching;
use super::names::Event;
use super::strings::Buffer;

/// A monitor that observes a module. Its probes end when it is dropped.
#[derive(Debug)]
pub struct Attached {
    instance: Instance,
    _watch: Option<FirstCallWatch>,
    made: Arc<Mutex<Made>>,
    /// Rules of the end, with the constants for their functions.
    last: Vec<(String, Vec<Val>)>,
}

impl Attached {
    /// The instance of the monitor, with what was counted until now.
    ///
    /// If the program runs on, what it counts where functions of rules only add constants to
    /// numbers appears there when this is called again, or by [`Attached::finish`]. It is lost when
    /// the monitor is dropped before.
    ///
    /// # Panics
    /// If the store is not the one in which the monitor was attached.
    pub fn instance(&self, store: impl AsContextMut) -> &Instance {
        Counting::settle(&mut lock(&self.made).counting, &self.instance, store);
        &self.instance
    }

    /// The number of places at which functions of the monitor are called, or the engine counts for
    /// them, in functions that were called so far.
    pub fn probes(&self) -> usize {
        let made = lock(&self.made);
        made.probes.len() + made.counting.len()
    }

    /// The number of those at which the engine counts.
    pub fn counters(&self) -> usize {
        lock(&self.made).counting.len()
    }

    /// Calls the functions of the rules `wasm:end`, then `wasm:exit`. They are called once, however
    /// often this is called.
    ///
    /// # Errors
    /// [`MonitorError::Run`]: the rest of them is not called. [`MonitorError::Incomplete`]: all of
    /// them were called, but a rule was not observed in a function that was called.
    pub fn finish<T: 'static>(&mut self, store: &mut Store<T>) -> Result<(), MonitorError> {
        self.instance(&mut *store);
        for (export, arguments) in std::mem::take(&mut self.last) {
            run(store, &self.instance, &export, &arguments)?;
        }
        lock(&self.made).refused.take().map_or(Ok(()), Err)
    }
}

/// Probes, and what is to become probes.
#[derive(Debug, Default)]
struct Made {
    /// By function.
    waiting: HashMap<u32, Vec<Found>>,
    /// Those that call functions.
    probes: Vec<Probe>,
    counting: Vec<Counting>,
    /// The first of the probes that could not be made.
    refused: Option<MonitorError>,
}

fn lock(made: &Mutex<Made>) -> MutexGuard<'_, Made> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Made {
    /// Makes the probes of a function that is called for the first time.
    fn called(made: &Mutex<Self>, maker: &Maker, function: u32) {
        let Some(found) = lock(made).waiting.remove(&function) else { return };
        // Not under the lock, which a thread may wait for that asks for the number of probes.
        let new = maker.make(&found);
        let mut made = lock(made);
        match new {
            Ok(new) => made.add(new, &found),
            Err((export, source)) => {
                made.refused.get_or_insert(MonitorError::Incomplete { export, function, source });
            }
        }
    }

    /// Adds the probes of places that were found.
    fn add(&mut self, new: Vec<(usize, Probe)>, found: &[Found]) {
        for (number, probe) in new {
            match &found[number].adds {
                Some(adds) => self.counting.push(Counting::new(probe, adds.clone())),
                None => self.probes.push(probe),
            }
        }
    }
}

/// What it takes to make probes.
struct Maker {
    program: Module,
    scope: Scope,
    /// By rule: the name of the export, and the function, with its index.
    exports: Vec<String>,
    functions: Vec<(WasmFn, Option<u32>)>,
}

impl Maker {
    /// Makes probes and switches them on. Each comes with the number of its place; an error with
    /// the name of its rule.
    fn make(&self, found: &[Found]) -> Result<Vec<(usize, Probe)>, (String, ProbeError)> {
        let spec = |found: &Found| ProbeSpec { location: found.location, kind: found.kind(&self.functions) };
        let specs: Vec<ProbeSpec> = found.iter().map(spec).collect();
        let mut probes = Vec::with_capacity(specs.len());
        let error = |number: usize, source| (self.exports[found[number].rule].clone(), source);
        for (number, made) in self.program.scoped_probes(self.scope, &specs).into_iter().enumerate() {
            match made {
                Ok(probe) => probes.push((number, probe)),
                Err(refused) if is_no_match(&refused) => {}
                Err(refused) => return Err(error(number, refused)),
            }
        }
        let switched = activate_all(probes.iter().map(|(_, probe)| probe));
        for ((number, _), switched) in probes.iter().zip(switched) {
            switched.map_err(|refused| error(*number, refused))?;
        }
        Ok(probes)
    }
}

/// Whether the place has no such value, or control never comes there.
fn is_no_match(refused: &ProbeError) -> bool {
    use ValueError::{NoLocal, NoOperand, Type};
    match refused {
        ProbeError::Unreachable { .. } => true,
        ProbeError::Value { reason, .. } => matches!(reason, NoOperand | NoLocal | Type { .. }),
        _ => false,
    }
}

fn run<T: 'static>(
    store: &mut Store<T>,
    instance: &Instance,
    export: &str,
    arguments: &[Val],
) -> Result<(), MonitorError> {
    let function = instance.get_func(&*store, export).expect("it was there when the module was loaded");
    let done = function.call(&mut *store, arguments, &mut []);
    done.map_err(|source| MonitorError::Run { export: export.to_owned(), source: Box::new(source) })
}

impl MonitorModule {
    /// Instantiates the monitor and its libraries in a store, and makes probes in a module, which
    /// fire in its instances in this store. If the module has no instances yet, the probes of a
    /// function are made when it is first called.
    ///
    /// The linker has what the libraries and the monitor import, such as WASI. The libraries'
    /// exports are added to it.
    ///
    /// A function of the monitor that traps ends the program's call with this trap.
    ///
    /// # Errors
    /// Those of instantiating, of functions that are called at match time, and of making probes.
    /// There are no probes then.
    ///
    /// # Panics
    /// If the store, the linker, the modules and the program's module belong to different engines.
    pub fn attach<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &mut Linker<T>,
        program: &Module,
    ) -> Result<Attached, MonitorError> {
        for (name, library) in &self.libraries {
            let failed = |source| instantiate_error(name, source);
            let instance = start(store, linker, library).map_err(failed)?;
            linker.instance(&mut *store, name, instance).map_err(failed)?;
        }
        let instance =
            start(store, linker, &self.module).map_err(|source| instantiate_error("monitor", source))?;
        let buffer = self.has_strings.then(|| Buffer::of(store, &instance)).transpose()?;
        let functions = self.rules.iter().map(|(export, _)| {
            let function = instance.get_func(&*store, export).expect("checked when it was loaded");
            WasmFn::new(&*store, function)
                .map_err(|source| MonitorError::Probe { export: export.clone(), source })
        });
        let functions = functions.collect::<Result<_, _>>()?;
        let mut matching = Matching {
            monitor: self,
            store,
            instance: &instance,
            buffer,
            functions,
            opcodes: HashMap::new(),
            found: Vec::new(),
        };
        matching.once(&Event::Begin, |matching, export, arguments| {
            run(matching.store, matching.instance, export, &arguments)
        })?;
        for function in program.functions() {
            matching.function(program, function)?;
        }
        let mut last = Vec::new();
        for event in [Event::End, Event::LastEnd] {
            matching.once(&event, |_, export, arguments| {
                last.push((export.to_owned(), arguments));
                Ok(())
            })?;
        }
        let Matching { mut found, functions, .. } = matching;
        let mut contents = Contents::of(&self.module, &instance, &mut *store);
        let exports: Vec<String> = self.rules.iter().map(|(export, _)| export.clone()).collect();
        let indices = exports.iter().map(|export| contents.exported(export));
        let functions: Vec<_> = functions.into_iter().zip(indices).collect();
        if !self.always_calls {
            choose(&mut found, &functions, &mut contents);
        }
        let maker = Maker { program: program.clone(), scope: Scope::Store(store.id()), exports, functions };
        let mut made = Made::default();
        if program.has_instances() {
            let error = |(export, source)| MonitorError::Probe { export, source };
            made.add(maker.make(&found).map_err(error)?, &found);
            return Ok(Attached { instance, _watch: None, made: Arc::new(Mutex::new(made)), last });
        }
        for found in found {
            made.waiting.entry(found.location.function).or_default().push(found);
        }
        let made = Arc::new(Mutex::new(made));
        let of_watch = made.clone();
        let watch = program
            .watch_first_calls(move |function| Made::called(&of_watch, &maker, function))
            .map_err(MonitorError::Watch)?;
        Ok(Attached { instance, _watch: Some(watch), made, last })
    }
}

fn instantiate_error(module: &str, source: Error) -> MonitorError {
    MonitorError::Instantiate { module: module.to_owned(), source: Box::new(source) }
}

/// An instance that is initialized.
fn start<T: 'static>(store: &mut Store<T>, linker: &Linker<T>, module: &Module) -> Result<Instance, Error> {
    let instance = linker.instantiate(&mut *store, module)?;
    if let Some(initialize) = instance.get_func(&*store, "_initialize") {
        initialize.typed::<(), ()>(&*store)?.call(&mut *store, ())?;
    }
    Ok(instance)
}
