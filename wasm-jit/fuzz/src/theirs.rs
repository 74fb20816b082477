//! Runs a case under wasmi.

use std::sync::{Arc, Mutex};

use wasm_jit_fuzz::case::ROUNDS;
use wasm_jit_fuzz::record::Event;
use wasm_jit_fuzz::{Case, Engine, Outcome, Record, Trap, Type, Value};
use wasmi::{
    Config, Engine as WasmiEngine, Error, Extern, ExternRef, ExternType, F32, F64, Func, Global, Instance,
    Memory, Module, Ref, Store, Table, TrapCode, Val, ValType,
};

/// The reference engine.
pub(crate) struct Wasmi(WasmiEngine);

impl Wasmi {
    pub(crate) fn new() -> Self {
        let mut config = Config::default();
        config.wasm_multi_memory(true).wasm_tail_call(true).wasm_extended_const(true).wasm_memory64(false);
        config.set_max_recursion_depth(5000).set_max_stack_height(1 << 20);
        Self(WasmiEngine::new(&config))
    }
}

impl Engine for Wasmi {
    fn name(&self) -> &'static str {
        "wasmi"
    }

    fn run(&self, case: &Case) -> Result<Record, String> {
        let module = Module::new(&self.0, &case.wasm).map_err(|error| error.to_string())?;
        let events = Arc::new(Mutex::new(Vec::new()));
        for round in 0..ROUNDS {
            run_round(&self.0, &module, case, round, &events)?;
        }
        let events = std::mem::take(&mut *events.lock().expect("no host function panicked"));
        Ok(Record { events })
    }
}

type Events = Arc<Mutex<Vec<Event>>>;

fn run_round(
    engine: &WasmiEngine,
    module: &Module,
    case: &Case,
    round: u64,
    events: &Events,
) -> Result<(), String> {
    let add = |event| events.lock().expect("no host function panicked").push(event);
    let mut store = Store::new(engine, ());
    let imports: Result<Vec<Extern>, Error> = module
        .imports()
        .map(|import| {
            define(&mut store, case, &format!("{}.{}", import.module(), import.name()), import.ty(), events)
        })
        .collect();
    let imports = imports.map_err(|error| error.to_string())?;
    let instance = match Instance::new(&mut store, module, &imports) {
        Ok(instance) => {
            add(Event::Instantiated(Outcome::Returned(Vec::new())));
            instance
        }
        Err(error) => {
            add(Event::Instantiated(outcome(&error)));
            return Ok(());
        }
    };
    let mut exports: Vec<(String, Extern)> =
        instance.exports(&store).map(|export| (export.name().to_owned(), export.into_extern())).collect();
    exports.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (name, export) in &exports {
        let Extern::Func(func) = export else { continue };
        let ty = func.ty(&store);
        let types: Vec<Type> = ty.params().iter().map(|ty| type_of(*ty)).collect();
        let arguments = case.arguments(round, name, &types);
        let given: Vec<Val> = arguments.iter().map(|value| to_val(&mut store, value)).collect();
        let mut results: Vec<Val> = ty.results().iter().map(|ty| Val::default(*ty)).collect();
        let outcome = match func.call(&mut store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(|value| from_val(&store, value)).collect()),
            Err(error) => outcome(&error),
        };
        add(Event::Called { name: name.clone(), arguments, outcome });
    }
    let mut end = Record::default();
    for (name, export) in exports {
        match export {
            Extern::Memory(memory) => end.memory(&name, memory.data(&store)),
            Extern::Global(global) => {
                let value = global.get(&store);
                end.events.push(Event::Global(name, from_val(&store, &value)));
            }
            Extern::Table(table) => {
                let elements = (0..table.size(&store)).filter_map(|at| table.get(&store, at));
                let elements = elements.map(|element| from_val(&store, &element)).collect();
                end.events.push(Event::Table(name, elements));
            }
            Extern::Func(_) => {}
        }
    }
    events.lock().expect("no host function panicked").extend(end.events);
    Ok(())
}

/// Defines an import.
fn define(
    store: &mut Store<()>,
    case: &Case,
    name: &str,
    ty: &ExternType,
    events: &Events,
) -> Result<Extern, Error> {
    Ok(match ty {
        ExternType::Func(ty) => {
            let (name, events) = (name.to_owned(), Arc::clone(events));
            let seeded = case.host();
            let results: Vec<Type> = ty.results().iter().map(|ty| type_of(*ty)).collect();
            let host = move |mut caller: wasmi::Caller<'_, ()>, given: &[Val], answer: &mut [Val]| {
                let arguments: Vec<Value> = given.iter().map(|value| from_val(&caller, value)).collect();
                let mut events = events.lock().expect("no host function panicked");
                let values = seeded.host_results(events.len(), &arguments, &results);
                for (answer, value) in answer.iter_mut().zip(values) {
                    *answer = to_val(&mut caller, &value);
                }
                events.push(Event::Host { name: name.clone(), arguments });
                Ok(())
            };
            Func::new(&mut *store, ty.clone(), host).into()
        }
        ExternType::Global(ty) => {
            let value = case.imported_global(name, type_of(ty.content()));
            let value = to_val(&mut *store, &value);
            Global::new(&mut *store, value, ty.mutability()).into()
        }
        ExternType::Memory(ty) => Memory::new(&mut *store, *ty)?.into(),
        ExternType::Table(ty) => {
            let null = Val::default(ty.element());
            Table::new(&mut *store, *ty, null)?.into()
        }
    })
}

fn type_of(ty: ValType) -> Type {
    match ty {
        ValType::I32 => Type::I32,
        ValType::I64 => Type::I64,
        ValType::F32 => Type::F32,
        ValType::F64 => Type::F64,
        ValType::FuncRef => Type::Func,
        ValType::ExternRef => Type::Extern,
        ValType::V128 => unreachable!("no module has vectors"),
    }
}

fn to_val(store: impl wasmi::AsContextMut, value: &Value) -> Val {
    match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(F32::from_bits(bits)),
        Value::F64(bits) => Val::F64(F64::from_bits(bits)),
        Value::Extern(value) => Val::ExternRef(Ref::Val(ExternRef::new(store, value))),
        Value::Null(Type::Extern) => Val::ExternRef(Ref::Null),
        Value::Null(_) | Value::Func | Value::Exn => Val::FuncRef(Ref::Null),
    }
}

fn from_val<T: 'static>(store: &impl wasmi::AsContext<Data = T>, value: &Val) -> Value {
    match value {
        Val::I32(value) => Value::I32(*value),
        Val::I64(value) => Value::I64(*value),
        Val::F32(value) => Value::F32(value.to_bits()),
        Val::F64(value) => Value::F64(value.to_bits()),
        Val::FuncRef(Ref::Null) => Value::Null(Type::Func),
        Val::FuncRef(Ref::Val(_)) => Value::Func,
        Val::ExternRef(Ref::Null) => Value::Null(Type::Extern),
        Val::ExternRef(Ref::Val(value)) => {
            Value::Extern(value.data(store.as_context()).downcast_ref().copied().unwrap_or(u32::MAX))
        }
        Val::V128(_) => unreachable!("no module has vectors"),
    }
}

fn outcome(error: &Error) -> Outcome {
    Outcome::Trapped(match error.as_trap_code() {
        Some(TrapCode::UnreachableCodeReached) => Trap::Unreachable,
        Some(TrapCode::MemoryOutOfBounds) => Trap::MemoryOutOfBounds,
        Some(TrapCode::TableOutOfBounds) => Trap::TableOutOfBounds,
        Some(TrapCode::IndirectCallToNull) => Trap::IndirectCallToNull,
        Some(TrapCode::IntegerDivisionByZero) => Trap::IntegerDivisionByZero,
        Some(TrapCode::IntegerOverflow) => Trap::IntegerOverflow,
        Some(TrapCode::BadConversionToInteger) => Trap::BadConversionToInteger,
        Some(TrapCode::BadSignature) => Trap::BadSignature,
        Some(TrapCode::StackOverflow | TrapCode::GrowthOperationLimited) => {
            return Outcome::Exhausted;
        }
        _ => {
            // For segments that do not fit, wasmi only has a message.
            let message = error.to_string();
            if message.starts_with("out of bounds table access") {
                Trap::TableOutOfBounds
            } else if message.starts_with("out of bounds memory access") {
                Trap::MemoryOutOfBounds
            } else {
                return Outcome::Error(message);
            }
        }
    })
}
