//! [`Functions`]: functions that the recorded module does not have, and host values, as represented
//! in a trace.
//!
//! References to functions reach an instance as arguments and results, in tables and in globals. A
//! reference to a function that its module neither defines nor imports, such as a function of
//! another instance, has a number beyond the indices of the module's functions. An
//! [`Event::Function`] declares its type before its first use. The program calls it as it calls an
//! import. In a replay, it is a host function.
//!
//! A host value (`externref`) has a number from its first use on; the program can only pass it
//! along. It is kept until the end of the recording, so that no other value gets its identity. In a
//! replay, another host value takes its place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::{AnyRef, ExternRef, Func, FuncId, FuncType, Global, Instance, Module, Val};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::event::Event;
use super::trace::Writer;
use super::value::{Type, Value};

/// The functions of a trace that the module does not have. A clone refers to the same list.
#[derive(Clone, Debug)]
pub(crate) struct Functions(Arc<Mutex<Others>>);

#[derive(Debug, Default)]
struct Others {
    /// The number of functions of the module, including imported ones.
    own: u32,
    numbers: HashMap<FuncId, u32>,
    /// Events for functions that have no event yet.
    undeclared: Vec<Event>,
    hosts: HashMap<ExternRef, u32>,
    /// The host values that a replay has made.
    made: HashMap<u32, ExternRef>,
}

impl Functions {
    pub(crate) fn new(module: &Module) -> Self {
        let own = module.functions().len() as u32;
        Self(Arc::new(Mutex::new(Others { own, ..Others::default() })))
    }

    /// The number of functions of the module.
    pub(crate) fn own(&self) -> u32 {
        self.lock().own
    }

    /// The number of a function in the trace; a new function gets the next number. `None` if its
    /// type cannot be in a trace.
    pub(crate) fn number(&self, func: &Func, instance: Instance, store: &dyn AnyStore) -> Option<u32> {
        let own = store.func_index(instance, func).or_else(|| store.import_index(instance, func));
        if own.is_some() {
            return own;
        }
        let (id, mut others) = (store.func_id(func), self.lock());
        if let Some(number) = others.numbers.get(&id) {
            return Some(*number);
        }
        let ty = store.func_type(func);
        let parameters: Vec<Type> = ty.params().map(Type::of).collect::<Option<_>>()?;
        let results: Vec<Type> = ty.results().map(Type::of).collect::<Option<_>>()?;
        if !store.is_func_of_type(func, &function_type(&parameters, &results)) {
            return None;
        }
        let function = others.own + others.numbers.len() as u32;
        others.numbers.insert(id, function);
        others.undeclared.push(Event::Function { function, parameters, results });
        Some(function)
    }

    /// Records that a replay has made the function with this number.
    pub(crate) fn made(&self, number: u32, func: &Func, store: &dyn AnyStore) {
        self.lock().numbers.insert(store.func_id(func), number);
    }

    /// The number of a host value; a new one gets the next number. `None` for an object of a
    /// program, which is no host value.
    fn number_of_host(&self, value: &ExternRef) -> Option<u32> {
        if value.data().is::<AnyRef>() {
            return None;
        }
        let hosts = &mut self.lock().hosts;
        let next = u32::try_from(hosts.len()).ok()?;
        Some(*hosts.entry(value.clone()).or_insert(next))
    }

    /// The host value with this number in a replay.
    pub(crate) fn host(&self, number: u32) -> ExternRef {
        let Others { hosts, made, .. } = &mut *self.lock();
        let value = made.entry(number).or_insert_with(|| ExternRef::new(()));
        hosts.insert(value.clone(), number);
        value.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Others> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The function type with these parameters and results.
pub(crate) fn function_type(parameters: &[Type], results: &[Type]) -> FuncType {
    FuncType::new(parameters.iter().map(|ty| ty.engine()), results.iter().map(|ty| ty.engine()))
}

/// The recorded value of an instance; see [`Value::of`].
pub(crate) fn in_instance(
    value: &Val,
    instance: Instance,
    functions: &Functions,
    store: &dyn AnyStore,
) -> Option<Value> {
    Value::of(value, |func| functions.number(func, instance, store), |value| functions.number_of_host(value))
}

/// The value of a global, if it can be recorded.
pub(crate) fn of_global(
    store: &mut dyn AnyStore,
    instance: Instance,
    functions: &Functions,
    global: Global,
) -> Option<Value> {
    let value = store.value(global);
    in_instance(&value, instance, functions, store)
}

/// Records arguments or results.
///
/// # Errors
/// As [`recorded`].
pub(crate) fn all_recorded(
    values: &[Val],
    instance: Instance,
    functions: &Functions,
    store: &dyn AnyStore,
) -> Result<Vec<Value>, Error> {
    let mut all = Vec::with_capacity(values.len());
    for value in values {
        // Nearly all are numbers.
        all.push(match Value::of_number(value) {
            Some(number) => number,
            None => recorded(value, instance, functions, store)?,
        });
    }
    Ok(all)
}

/// Records a value of a program.
///
/// # Errors
/// [`Error::Unsupported`] for a reference that cannot be recorded.
pub(crate) fn recorded(
    value: &Val,
    instance: Instance,
    functions: &Functions,
    store: &dyn AnyStore,
) -> Result<Value, Error> {
    in_instance(value, instance, functions, store).ok_or_else(|| match value {
        Val::FuncRef(_) => unsupported("a reference to a function of another module, of a type of its own"),
        Val::ExternRef(_) => unsupported("a reference (externref) to an object of the program"),
        Val::AnyRef(_) => unsupported("a reference (anyref) to an object"),
        _ => unsupported(format!("a reference of type {}", value.ty())),
    })
}

/// Writes a trace in which functions are declared before they are used.
#[derive(Debug)]
pub(crate) struct Output {
    writer: Writer,
    /// The first event of the trace, until others are written: a recording that does not begin
    /// leaves its file as it was.
    start: Option<Event>,
    pub(crate) functions: Functions,
}

impl Output {
    pub(crate) fn new(module: &Module, writer: Writer) -> Self {
        let (bytes, length) = (module.bytes(), module.bytes().len() as u64);
        let start = Some(Event::Start { module: crc32fast::hash(bytes), length });
        Self { writer, start, functions: Functions::new(module) }
    }

    /// Begins the trace, if it has not begun.
    fn begin(&mut self) -> Result<(), Error> {
        self.start.take().map_or(Ok(()), |start| self.writer.write(&start))
    }

    pub(crate) fn write(&mut self, event: &Event) -> Result<(), Error> {
        self.begin()?;
        let undeclared = std::mem::take(&mut self.functions.lock().undeclared);
        undeclared.iter().try_for_each(|function| self.writer.write(function))?;
        self.writer.write(event)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.begin()?;
        self.writer.flush()
    }

    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let begun = if self.writer.has_begun() { self.begin() } else { Ok(()) };
        begun.and(self.writer.close())
    }
}
