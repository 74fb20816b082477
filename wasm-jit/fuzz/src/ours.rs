//! Runs a case under wasm-jit.

use std::num::NonZero;
use std::sync::{Arc, Mutex};

use wasm_jit::{
    BoundsChecks, Config, Engine as JitEngine, Error, Extern, ExternRef, ExternType, Func, Global, Instance,
    Memory, Module, SharedMemory, Store, Table, Tag, Val, ValType,
};

use crate::case::{Case, ROUNDS};
use crate::record::{Engine, Event, Outcome, Record, Trap, Type, Value};

/// The engine under test.
#[derive(Debug)]
pub struct Ours(JitEngine);

impl Ours {
    /// An engine that compiles on one thread.
    ///
    /// # Panics
    /// If this processor is not supported.
    #[must_use]
    pub fn new() -> Self {
        Self::with_settings(false, false)
    }

    /// The same, optionally with bounds checks by instructions and hardening against speculation.
    ///
    /// # Panics
    /// If this processor is not supported.
    #[must_use]
    pub fn with_settings(bounds_checks: bool, harden_speculation: bool) -> Self {
        let mut config = Config::new();
        config.compile_threads(NonZero::<usize>::MIN).harden_speculation(harden_speculation);
        if bounds_checks {
            config.bounds_checks(BoundsChecks::Instructions);
        }
        Self(JitEngine::new(&config).expect("this processor is supported"))
    }

    /// Loads bytes that may not be a module; returns whether they are one.
    #[must_use]
    pub fn loads(&self, bytes: &[u8]) -> bool {
        Module::from_binary(&self.0, bytes).is_ok()
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine for Ours {
    fn name(&self) -> &'static str {
        "wasm-jit"
    }

    fn run(&self, case: &Case) -> Result<Record, String> {
        let module = Module::from_binary(&self.0, case.legacy.as_ref().unwrap_or(&case.wasm))
            .map_err(|error| error.to_string())?;
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
    engine: &JitEngine,
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
            add(Event::Instantiated(outcome(error)));
            return Ok(());
        }
    };
    let mut exports: Vec<(String, Extern)> =
        instance.exports(&store).map(|export| (export.name().to_owned(), export.into_extern())).collect();
    exports.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (name, export) in &exports {
        let Extern::Func(func) = export else { continue };
        let ty = func.ty(&store);
        let types: Vec<Type> = ty.params().map(type_of).collect();
        let arguments = case.arguments(round, name, &types);
        let given: Vec<Val> = arguments.iter().map(to_val).collect();
        let mut results = vec![Val::I32(0); ty.results().len()];
        let outcome = match func.call(&mut store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(from_val).collect()),
            Err(error) => outcome(error),
        };
        add(Event::Called { name: name.clone(), arguments, outcome });
    }
    let mut end = Record::default();
    for (name, export) in exports {
        match export {
            Extern::Memory(memory) => end.memory(&name, memory.data(&store)),
            Extern::SharedMemory(memory) => {
                let mut bytes = vec![0; memory.data_size()];
                memory.read(0, &mut bytes).map_err(|error| error.to_string())?;
                end.memory(&name, &bytes);
            }
            Extern::Global(global) => end.events.push(Event::Global(name, from_val(&global.get(&mut store)))),
            Extern::Table(table) => {
                let elements = (0..table.size(&store)).filter_map(|at| table.get(&mut store, at));
                let elements = elements.map(|element| from_val(&element)).collect();
                end.events.push(Event::Table(name, elements));
            }
            Extern::Func(_) | Extern::Tag(_) => {}
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
            let results: Vec<Type> = ty.results().map(type_of).collect();
            let host = move |_: wasm_jit::Caller<'_, ()>, given: &[Val], answer: &mut [Val]| {
                let arguments: Vec<Value> = given.iter().map(from_val).collect();
                let mut events = events.lock().expect("no host function panicked");
                let values = seeded.host_results(events.len(), &arguments, &results);
                for (answer, value) in answer.iter_mut().zip(values) {
                    *answer = to_val(&value);
                }
                events.push(Event::Host { name: name.clone(), arguments });
                Ok(())
            };
            Func::new(&mut *store, ty.clone(), host)?.into()
        }
        ExternType::Global(ty) => {
            let value = case.imported_global(name, type_of(ty.content()));
            Global::new(&mut *store, *ty, to_val(&value))?.into()
        }
        ExternType::Memory(ty) if ty.is_shared() => SharedMemory::new(*ty)?.into(),
        ExternType::Memory(ty) => Memory::new(&mut *store, *ty)?.into(),
        ExternType::Table(ty) => Table::new(&mut *store, *ty, Val::null_ref(ty.element()))?.into(),
        ExternType::Tag(ty) => Tag::new(&mut *store, ty)?.into(),
    })
}

fn type_of(ty: ValType) -> Type {
    match ty {
        ValType::I32 => Type::I32,
        ValType::I64 => Type::I64,
        ValType::F32 => Type::F32,
        ValType::F64 => Type::F64,
        ValType::FUNCREF => Type::Func,
        ValType::EXTERNREF => Type::Extern,
        ValType::EXNREF => Type::Exn,
    }
}

fn to_val(value: &Value) -> Val {
    match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(bits),
        Value::F64(bits) => Val::F64(bits),
        Value::Extern(value) => Val::ExternRef(Some(ExternRef::new(value))),
        Value::Null(Type::Extern) => Val::ExternRef(None),
        Value::Null(Type::Exn) => Val::ExnRef(None),
        Value::Null(_) | Value::Func | Value::Exn => Val::FuncRef(None),
    }
}

fn from_val(value: &Val) -> Value {
    match value {
        Val::I32(value) => Value::I32(*value),
        Val::I64(value) => Value::I64(*value),
        Val::F32(bits) => Value::F32(*bits),
        Val::F64(bits) => Value::F64(*bits),
        Val::FuncRef(None) => Value::Null(Type::Func),
        Val::FuncRef(Some(_)) => Value::Func,
        Val::ExternRef(None) => Value::Null(Type::Extern),
        Val::ExternRef(Some(value)) => {
            Value::Extern(value.data().downcast_ref().copied().unwrap_or(u32::MAX))
        }
        Val::ExnRef(None) => Value::Null(Type::Exn),
        Val::ExnRef(Some(_)) => Value::Exn,
    }
}

fn outcome(error: Error) -> Outcome {
    use wasm_jit::Trap as T;
    Outcome::Trapped(match error {
        Error::Exception(_) => return Outcome::Threw,
        Error::Trap { trap, .. } => match trap {
            T::StackOverflow => return Outcome::Exhausted,
            T::MemoryOutOfBounds => Trap::MemoryOutOfBounds,
            T::HeapMisaligned => Trap::UnalignedAtomic,
            T::TableOutOfBounds | T::UndefinedElement => Trap::TableOutOfBounds,
            T::IndirectCallToNull => Trap::IndirectCallToNull,
            T::BadSignature => Trap::BadSignature,
            T::IntegerOverflow => Trap::IntegerOverflow,
            T::IntegerDivisionByZero => Trap::IntegerDivisionByZero,
            T::BadConversionToInteger => Trap::BadConversionToInteger,
            T::UnreachableCodeReached => Trap::Unreachable,
            T::NullReference => Trap::NullReference,
            T::AtomicWaitNonSharedMemory => Trap::AtomicWaitNonSharedMemory,
            other => return Outcome::Error(other.to_string()),
        },
        other => return Outcome::Error(other.to_string()),
    })
}
