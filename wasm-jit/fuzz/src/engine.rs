//! What the fuzzer needs of a WebAssembly engine, and a run of a case in any of them.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::case::{Case, ROUNDS};
use crate::record::{Event, Outcome, Record, Type, Value};

/// A WebAssembly engine.
pub trait Engine {
    /// A loaded module.
    type Module;
    /// An instance's state.
    type Store;
    /// An exported item.
    type Export;

    /// Its name.
    fn name(&self) -> &'static str;

    /// From now on, stores consume fuel; only for engines whose [features](crate::Features) include
    /// it.
    fn consume_fuel(&mut self) {}

    /// The fuel that a store has left, if stores consume any.
    fn fuel(&self, store: &Self::Store) -> Option<u64> {
        let _ = store;
        None
    }

    /// Loads the module of a case.
    ///
    /// # Errors
    /// The module is refused.
    fn load(&self, case: &Case) -> Result<Self::Module, String>;

    /// An empty store.
    fn store(&self) -> Self::Store;

    /// Instantiates a module in a store. Its imports are functions and globals of `host`, and new
    /// memories, tables and tags.
    ///
    /// # Errors
    /// An import cannot be defined.
    fn instantiate(
        &self,
        store: &mut Self::Store,
        module: &Self::Module,
        host: &Host,
    ) -> Result<Instantiated<Self::Export>, String>;

    /// The types of a function's parameters; `None` for any other export.
    fn parameters(&self, store: &Self::Store, export: &Self::Export) -> Option<Vec<Type>>;

    /// Calls a function. Called only for exports that have [parameters](Self::parameters).
    ///
    /// # Errors
    /// An argument cannot be represented.
    fn call(
        &self,
        store: &mut Self::Store,
        function: &Self::Export,
        arguments: &[Value],
    ) -> Result<Outcome, String>;

    /// What an export contains.
    ///
    /// # Errors
    /// A memory cannot be read.
    fn contents(&self, store: &mut Self::Store, export: &Self::Export) -> Result<Contents, String>;
}

/// The result of an instantiation.
#[derive(Debug)]
pub enum Instantiated<E> {
    /// It has succeeded: the names and values of all exports.
    Exports(Vec<(String, E)>),
    /// A segment did not fit, or the start function failed.
    Failed(Outcome),
}

/// What an export contains.
#[derive(Debug)]
pub enum Contents {
    /// The bytes of a memory.
    Memory(Vec<u8>),
    /// The value of a global.
    Global(Value),
    /// The elements of a table.
    Table(Vec<Value>),
    /// A function or a tag, whose contents are not compared.
    Nothing,
}

/// The host of a case: its functions and globals, and the events that were observed.
#[derive(Clone, Debug)]
pub struct Host {
    case: Arc<Case>,
    observed: Arc<Mutex<Observed>>,
}

#[derive(Debug, Default)]
struct Observed {
    events: Vec<Event>,
    /// How many of the events are calls to host functions.
    calls: usize,
}

impl Host {
    fn of(case: &Case) -> Self {
        Self { case: Arc::new(case.host()), observed: Arc::default() }
    }

    /// Records a call to an imported function, and returns its results.
    ///
    /// # Panics
    /// If another call has panicked.
    #[must_use]
    pub fn call(&self, name: &str, arguments: Vec<Value>, results: &[Type]) -> Vec<Value> {
        let mut observed = self.observed();
        let values = self.case.host_results(observed.calls, &arguments, results);
        observed.calls += 1;
        observed.events.push(Event::Host { name: name.to_owned(), arguments });
        values
    }

    /// The value of an imported global.
    #[must_use]
    pub fn global(&self, name: &str, ty: Type) -> Value {
        self.case.imported_global(name, ty)
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().expect("no host function panicked")
    }

    fn add(&self, event: Event) {
        self.observed().events.push(event);
    }
}

/// Loads the module of a case, and runs it.
///
/// # Errors
/// The module is refused, or a value cannot be represented.
pub fn load_and_run(engine: &impl Engine, case: &Case) -> Result<Record, String> {
    run_loaded(engine, &engine.load(case)?, case)
}

/// Runs a case: each round calls all exported functions of a new instance, in the order of their
/// names, and then inspects the contents of the other exports.
///
/// # Errors
/// A value cannot be represented.
pub fn run_loaded<E: Engine>(engine: &E, module: &E::Module, case: &Case) -> Result<Record, String> {
    let host = Host::of(case);
    for round in 0..ROUNDS {
        run_round(engine, module, case, round, &host)?;
    }
    let events = std::mem::take(&mut host.observed().events);
    Ok(Record { events })
}

fn run_round<E: Engine>(
    engine: &E,
    module: &E::Module,
    case: &Case,
    round: u64,
    host: &Host,
) -> Result<(), String> {
    let mut store = engine.store();
    let mut exports = match engine.instantiate(&mut store, module, host)? {
        Instantiated::Exports(exports) => exports,
        Instantiated::Failed(outcome) => {
            host.add(Event::Instantiated(outcome));
            return Ok(());
        }
    };
    host.add(Event::Instantiated(Outcome::Returned(Vec::new())));
    exports.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (name, export) in &exports {
        let Some(types) = engine.parameters(&store, export) else { continue };
        let arguments = case.arguments(round, name, &types);
        let before = engine.fuel(&store);
        let outcome = engine.call(&mut store, export, &arguments)?;
        // What is consumed by instructions that are not executed after a trap is not specified.
        let has_returned = matches!(outcome, Outcome::Returned(_));
        host.add(Event::Called { name: name.clone(), arguments, outcome });
        if let (Some(before), Some(after), true) = (before, engine.fuel(&store), has_returned) {
            host.add(Event::Consumed(before - after));
        }
    }
    for (name, export) in exports {
        host.add(match engine.contents(&mut store, &export)? {
            Contents::Memory(bytes) => Event::memory(name, &bytes),
            Contents::Global(value) => Event::Global(name, value),
            Contents::Table(elements) => Event::Table(name, elements),
            Contents::Nothing => continue,
        });
    }
    Ok(())
}
