//! Runs a case under Wasmtime.

use std::sync::{Arc, Mutex};

use wasm_jit_fuzz::case::ROUNDS;
use wasm_jit_fuzz::record::Event;
use wasm_jit_fuzz::{Case, Engine, Outcome, Record, Trap, Type, Value};
use wasmtime::{
    Config, Engine as WasmtimeEngine, Error, Extern, ExternRef, ExternType, Func, Global, HeapType, Instance,
    Memory, Module, OptLevel, Ref, Result, SharedMemory, Store, Table, Tag, ThrownException, Val, ValType,
};

/// The reference engine.
pub(crate) struct Wasmtime(WasmtimeEngine);

impl Wasmtime {
    pub(crate) fn new() -> Self {
        let mut config = Config::new();
        config.wasm_exceptions(true).wasm_threads(true).shared_memory(true).wasm_multi_memory(true);
        config.wasm_simd(false).wasm_relaxed_simd(false).cranelift_opt_level(OptLevel::None);
        // Memories with Wasmtime's defaults: without reservations of 4 GiB, version 48 takes
        // aligned addresses in an empty memory for misaligned ones, cannot grow shared memories,
        // and checks bounds before alignment.
        Self(WasmtimeEngine::new(&config).expect("the configuration is possible"))
    }
}

impl Engine for Wasmtime {
    fn name(&self) -> &'static str {
        "Wasmtime"
    }

    fn run(&self, case: &Case) -> std::result::Result<Record, String> {
        let module = Module::new(&self.0, &case.wasm).map_err(|error| format!("{error:#}"))?;
        let events = Arc::new(Mutex::new(Vec::new()));
        for round in 0..ROUNDS {
            run_round(&self.0, &module, case, round, &events).map_err(|error| format!("{error:#}"))?;
        }
        let events = std::mem::take(&mut *events.lock().expect("no host function panicked"));
        Ok(Record { events })
    }
}

type Events = Arc<Mutex<Vec<Event>>>;

fn run_round(
    engine: &WasmtimeEngine,
    module: &Module,
    case: &Case,
    round: u64,
    events: &Events,
) -> Result<()> {
    let add = |event| events.lock().expect("no host function panicked").push(event);
    let mut store = Store::new(engine, ());
    let imports: Result<Vec<Extern>> = module
        .imports()
        .map(|import| {
            define(&mut store, case, &format!("{}.{}", import.module(), import.name()), &import.ty(), events)
        })
        .collect();
    let imports = imports?;
    let instance = match Instance::new(&mut store, module, &imports) {
        Ok(instance) => {
            add(Event::Instantiated(Outcome::Returned(Vec::new())));
            instance
        }
        Err(error) => {
            add(Event::Instantiated(outcome(&mut store, &error)));
            return Ok(());
        }
    };
    let mut exports: Vec<(String, Extern)> =
        instance.exports(&mut store).map(|export| (export.name().to_owned(), export.into_extern())).collect();
    exports.sort_by(|(left, _), (right, _)| left.cmp(right));
    for (name, export) in &exports {
        let Extern::Func(func) = export else { continue };
        let ty = func.ty(&store);
        let types: Vec<Type> = ty.params().map(|ty| type_of(&ty)).collect();
        let arguments = case.arguments(round, name, &types);
        let given = arguments.iter().map(|value| to_val(&mut store, value)).collect::<Result<Vec<Val>>>()?;
        let mut results = vec![Val::I32(0); ty.results().len()];
        let outcome = match func.call(&mut store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(|value| from_val(&mut store, value)).collect()),
            Err(error) => outcome(&mut store, &error),
        };
        add(Event::Called { name: name.clone(), arguments, outcome });
    }
    let mut end = Record::default();
    for (name, export) in exports {
        match export {
            Extern::Memory(memory) => end.memory(&name, memory.data(&store)),
            Extern::SharedMemory(memory) => {
                // SAFETY: the cell is a byte of the memory, and no thread that could write it is
                // running.
                let bytes: Vec<u8> = memory.data().iter().map(|byte| unsafe { *byte.get() }).collect();
                end.memory(&name, &bytes);
            }
            Extern::Global(global) => {
                let value = global.get(&mut store);
                end.events.push(Event::Global(name, from_val(&mut store, &value)));
            }
            Extern::Table(table) => {
                let mut elements = Vec::new();
                for at in 0..table.size(&store) {
                    let element = table.get(&mut store, at).map(Val::from);
                    elements.extend(element.map(|element| from_val(&mut store, &element)));
                }
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
) -> Result<Extern> {
    Ok(match ty {
        ExternType::Func(ty) => {
            let (name, events, seeded) = (name.to_owned(), Arc::clone(events), case.host());
            let results: Vec<Type> = ty.results().map(|ty| type_of(&ty)).collect();
            let host = move |mut caller: wasmtime::Caller<'_, ()>, given: &[Val], answer: &mut [Val]| {
                let arguments: Vec<Value> = given.iter().map(|value| from_val(&mut caller, value)).collect();
                let mut events = events.lock().expect("no host function panicked");
                let values = seeded.host_results(events.len(), &arguments, &results);
                for (answer, value) in answer.iter_mut().zip(values) {
                    *answer = to_val(&mut caller, &value)?;
                }
                events.push(Event::Host { name: name.clone(), arguments });
                Ok(())
            };
            Func::new(&mut *store, ty.clone(), host).into()
        }
        ExternType::Global(ty) => {
            let value = case.imported_global(name, type_of(ty.content()));
            let value = to_val(&mut *store, &value)?;
            Global::new(&mut *store, ty.clone(), value)?.into()
        }
        ExternType::Memory(ty) if ty.is_shared() => SharedMemory::new(store.engine(), ty.clone())?.into(),
        ExternType::Memory(ty) => Memory::new(&mut *store, ty.clone())?.into(),
        ExternType::Table(ty) => {
            let null = Ref::null(ty.element().heap_type());
            Table::new(&mut *store, ty.clone(), null)?.into()
        }
        ExternType::Tag(ty) => Tag::new(&mut *store, ty)?.into(),
    })
}

fn type_of(ty: &ValType) -> Type {
    match ty {
        ValType::I32 => Type::I32,
        ValType::I64 => Type::I64,
        ValType::F32 => Type::F32,
        ValType::F64 => Type::F64,
        ValType::V128 => unreachable!("no module has vectors"),
        ValType::Ref(ty) => match ty.heap_type().top() {
            HeapType::Extern => Type::Extern,
            HeapType::Exn => Type::Exn,
            _ => Type::Func,
        },
    }
}

fn to_val(store: impl wasmtime::AsContextMut, value: &Value) -> Result<Val> {
    Ok(match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(bits),
        Value::F64(bits) => Val::F64(bits),
        Value::Extern(value) => Val::ExternRef(Some(ExternRef::new(store, value)?)),
        Value::Null(Type::Extern) => Val::ExternRef(None),
        Value::Null(Type::Exn) => Val::ExnRef(None),
        Value::Null(_) | Value::Func | Value::Exn => Val::FuncRef(None),
    })
}

fn from_val(store: impl wasmtime::AsContextMut, value: &Val) -> Value {
    match value {
        Val::I32(value) => Value::I32(*value),
        Val::I64(value) => Value::I64(*value),
        Val::F32(bits) => Value::F32(*bits),
        Val::F64(bits) => Value::F64(*bits),
        Val::FuncRef(None) => Value::Null(Type::Func),
        Val::FuncRef(Some(_)) => Value::Func,
        Val::ExternRef(None) => Value::Null(Type::Extern),
        Val::ExternRef(Some(value)) => {
            let store = store.as_context();
            let data = value.data(&store).ok().flatten().and_then(|data| data.downcast_ref().copied());
            Value::Extern(data.unwrap_or(u32::MAX))
        }
        Val::ExnRef(None) => Value::Null(Type::Exn),
        Val::ExnRef(Some(_)) => Value::Exn,
        other => unreachable!("no module has values like {other:?}"),
    }
}

fn outcome(store: &mut Store<()>, error: &Error) -> Outcome {
    use wasmtime::Trap as T;
    if error.is::<ThrownException>() {
        store.take_pending_exception();
        return Outcome::Threw;
    }
    Outcome::Trapped(match error.downcast_ref::<T>() {
        Some(T::StackOverflow) => return Outcome::Exhausted,
        Some(T::MemoryOutOfBounds) => Trap::MemoryOutOfBounds,
        Some(T::HeapMisaligned) => Trap::UnalignedAtomic,
        Some(T::TableOutOfBounds) => Trap::TableOutOfBounds,
        Some(T::IndirectCallToNull) => Trap::IndirectCallToNull,
        Some(T::BadSignature) => Trap::BadSignature,
        Some(T::IntegerOverflow) => Trap::IntegerOverflow,
        Some(T::IntegerDivisionByZero) => Trap::IntegerDivisionByZero,
        Some(T::BadConversionToInteger) => Trap::BadConversionToInteger,
        Some(T::UnreachableCodeReached) => Trap::Unreachable,
        Some(T::NullReference) => Trap::NullReference,
        Some(T::AtomicWaitNonSharedMemory) => Trap::AtomicWaitNonSharedMemory,
        _ => return Outcome::Error(format!("{error:#}")),
    })
}
