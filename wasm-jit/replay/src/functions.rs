//! [`Functions`]: functions that the recorded module does not have, as they are in a trace.
//!
//! References to functions reach an instance as arguments and results, in tables and in globals.
//! One to a function that its module neither defines nor imports, such as one of another instance,
//! has a number that is no index of the module's functions. Before it is used, an
//! [`Event::Function`] says its type. The program calls it as it calls an import. In a replay, it
//! is a function of the host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::{Func, FuncId, FuncType, Global, Instance, Module, Val};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::event::Event;
use super::trace::Writer;
use super::value::{Type, Value};

/// The functions that a trace has besides those of the module. A clone is the same list.
#[derive(Clone, Debug)]
pub(crate) struct Functions(Arc<Mutex<Others>>);

#[derive(Debug)]
struct Others {
    /// How many functions the module has, imported ones included.
    own: u32,
    numbers: HashMap<FuncId, u32>,
    /// Events for those that have no event yet.
    undeclared: Vec<Event>,
}

impl Functions {
    pub(crate) fn new(module: &Module) -> Self {
        let own = module.functions().len() as u32;
        Self(Arc::new(Mutex::new(Others { own, numbers: HashMap::new(), undeclared: Vec::new() })))
    }

    /// How many functions the module has.
    pub(crate) fn own(&self) -> u32 {
        self.lock().own
    }

    /// The number of a function in the trace; the next one, if it is new. `None` if it has a type
    /// that traces do not have.
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

    /// A replay has made the function with this number.
    pub(crate) fn made(&self, number: u32, func: &Func, store: &dyn AnyStore) {
        self.lock().numbers.insert(store.func_id(func), number);
    }

    fn lock(&self) -> MutexGuard<'_, Others> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The function type with these parameters and results.
pub(crate) fn function_type(parameters: &[Type], results: &[Type]) -> FuncType {
    FuncType::new(parameters.iter().map(|ty| ty.engine()), results.iter().map(|ty| ty.engine()))
}

/// The recorded value of an instance; as [`Value::of`].
pub(crate) fn in_instance(
    value: &Val,
    instance: Instance,
    functions: &Functions,
    store: &dyn AnyStore,
) -> Option<Value> {
    Value::of(value, |func| functions.number(func, instance, store))
}

/// The value of a global, if it has a recorded form.
pub(crate) fn of_global(
    store: &mut dyn AnyStore,
    instance: Instance,
    functions: &Functions,
    global: Global,
) -> Option<Value> {
    let value = store.value(global);
    in_instance(&value, instance, functions, store)
}

/// Arguments or results as they are recorded.
///
/// # Errors
/// Those of [`recorded`].
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

/// A value of a program as it is recorded.
///
/// # Errors
/// [`Error::Unsupported`] for a reference that has no recorded form.
pub(crate) fn recorded(
    value: &Val,
    instance: Instance,
    functions: &Functions,
    store: &dyn AnyStore,
) -> Result<Value, Error> {
    in_instance(value, instance, functions, store).ok_or_else(|| match value {
        Val::FuncRef(_) => unsupported("a reference to a function of another module, of a type of its own"),
        _ => unsupported(format!("a reference ({}) to what is not the module's", value.ty())),
    })
}

/// Writes a trace, in which functions are declared before they are used.
#[derive(Debug)]
pub(crate) struct Output {
    writer: Writer,
    pub(crate) functions: Functions,
}

impl Output {
    pub(crate) fn new(module: &Module, writer: Writer) -> Self {
        Self { writer, functions: Functions::new(module) }
    }

    pub(crate) fn write(&mut self, event: &Event) -> Result<(), Error> {
        let undeclared = std::mem::take(&mut self.functions.lock().undeclared);
        undeclared.iter().try_for_each(|function| self.writer.write(function))?;
        self.writer.write(event)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.writer.flush()
    }

    pub(crate) fn close(&mut self) -> Result<(), Error> {
        self.writer.close()
    }
}
