//! Wasmtime as the reference engine.

use wasm_jit_fuzz::{Case, Contents, Engine, FUEL, Host, Instantiated, Outcome, Trap, Type, Value};
use wasmtime::{
    AnyRef, Config, Engine as WasmtimeEngine, Error, Extern, ExternRef, ExternType, Func, GcHeapOutOfMemory,
    Global, HeapType, I31, Instance, Memory, Module, OperatorCost, OptLevel, Ref, SharedMemory, Store,
    StoreLimits, StoreLimitsBuilder, Table, Tag, ThrownException, Val, ValType, VariableOperatorCost,
};

/// Bytes of a garbage-collected heap, and of a memory, which are all smaller.
const MAX_HEAP: usize = 256 << 20;

/// The reference engine.
pub(crate) struct Wasmtime(WasmtimeEngine);

impl Wasmtime {
    pub(crate) fn new(consumes_fuel: bool) -> Self {
        let mut config = Config::new();
        config.wasm_exceptions(true).wasm_threads(true).shared_memory(true).wasm_multi_memory(true);
        config.wasm_simd(true).wasm_relaxed_simd(true).relaxed_simd_deterministic(true);
        config.cranelift_opt_level(OptLevel::None);
        config.wasm_memory64(true).wasm_custom_page_sizes(true).wasm_wide_arithmetic(true);
        config.wasm_function_references(true).wasm_gc(true);
        config.consume_fuel(consumes_fuel).operator_cost(costs());
        // Memories with Wasmtime's defaults: without reservations of 4 GiB, version 48 takes
        // aligned addresses in an empty memory for misaligned ones, cannot grow shared memories,
        // and checks bounds before alignment.
        Self(WasmtimeEngine::new(&config).expect("the configuration is possible"))
    }
}

/// The costs of instructions in fuel: as in wasm-jit, they do not depend on the amount of work.
fn costs() -> OperatorCost {
    let variable = VariableOperatorCost {
        memory_copy_per_byte: 0,
        memory_fill_per_byte: 0,
        memory_init_per_byte: 0,
        memory_grow_per_page: 0,
        table_copy_per_element: 0,
        table_fill_per_element: 0,
        table_init_per_element: 0,
        table_grow_per_element: 0,
        array_copy_per_element: 0,
        array_fill_per_element: 0,
        array_new_data_per_element: 0,
        array_init_data_per_element: 0,
        array_new_elem_per_element: 0,
        array_init_elem_per_element: 0,
        array_new_default_per_element: 0,
        array_new_per_element: 0,
    };
    OperatorCost { variable, ..OperatorCost::new() }
}

impl Engine for Wasmtime {
    type Module = Module;
    type Store = Store<StoreLimits>;
    type Export = Extern;

    fn name(&self) -> &'static str {
        "Wasmtime"
    }

    fn consume_fuel(&mut self) {
        *self = Self::new(true);
    }

    fn fuel(&self, store: &Store<StoreLimits>) -> Option<u64> {
        store.get_fuel().ok()
    }

    fn load(&self, case: &Case) -> Result<Module, String> {
        Module::new(&self.0, &case.wasm).map_err(|error| format!("{error:#}"))
    }

    fn store(&self) -> Store<StoreLimits> {
        let limits = StoreLimitsBuilder::new().memory_size(MAX_HEAP).build();
        let mut store = Store::new(&self.0, limits);
        store.limiter(|limits| limits);
        // Refused if the engine does not consume any.
        let _ = store.set_fuel(FUEL);
        store
    }

    fn instantiate(
        &self,
        store: &mut Store<StoreLimits>,
        module: &Module,
        host: &Host,
    ) -> Result<Instantiated<Extern>, String> {
        let imports: wasmtime::Result<Vec<Extern>> = module
            .imports()
            .map(|import| {
                define(store, &format!("{}.{}", import.module(), import.name()), &import.ty(), host)
            })
            .collect();
        let imports = imports.map_err(|error| format!("{error:#}"))?;
        Ok(match Instance::new(&mut *store, module, &imports) {
            Ok(instance) => {
                let exports = instance.exports(&mut *store);
                let named = exports.map(|export| (export.name().to_owned(), export.into_extern()));
                Instantiated::Exports(named.collect())
            }
            Err(error) => Instantiated::Failed(outcome(store, &error)),
        })
    }

    fn parameters(&self, store: &Store<StoreLimits>, export: &Extern) -> Option<Vec<Type>> {
        let Extern::Func(func) = export else { return None };
        let ty = func.ty(store);
        let can_be_null = |ty: ValType| !matches!(ty, ValType::Ref(ty) if !ty.is_nullable());
        ty.params().all(can_be_null).then(|| ty.params().map(|ty| type_of(&ty)).collect())
    }

    fn call(
        &self,
        store: &mut Store<StoreLimits>,
        function: &Extern,
        arguments: &[Value],
    ) -> Result<Outcome, String> {
        let Extern::Func(func) = function else { return Err("not a function".to_owned()) };
        let given: wasmtime::Result<Vec<Val>> =
            arguments.iter().map(|value| to_val(&mut *store, value)).collect();
        let given = given.map_err(|error| format!("{error:#}"))?;
        let mut results = vec![Val::I32(0); func.ty(&*store).results().len()];
        Ok(match func.call(&mut *store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(|value| from_val(&mut *store, value)).collect()),
            Err(error) => outcome(store, &error),
        })
    }

    fn contents(&self, store: &mut Store<StoreLimits>, export: &Extern) -> Result<Contents, String> {
        Ok(match export {
            Extern::Memory(memory) => Contents::Memory(memory.data(&*store).to_vec()),
            Extern::SharedMemory(memory) => {
                // SAFETY: the cell is a byte of the memory, and no thread that could write it is
                // running.
                Contents::Memory(memory.data().iter().map(|byte| unsafe { *byte.get() }).collect())
            }
            Extern::Global(global) => {
                let value = global.get(&mut *store);
                Contents::Global(from_val(store, &value))
            }
            Extern::Table(table) => {
                let mut elements = Vec::new();
                for at in 0..table.size(&*store) {
                    let element = table.get(&mut *store, at).map(Val::from);
                    elements.extend(element.map(|element| from_val(&mut *store, &element)));
                }
                Contents::Table(elements)
            }
            Extern::Func(_) | Extern::Tag(_) => Contents::Nothing,
        })
    }
}

/// Defines an import.
fn define(
    store: &mut Store<StoreLimits>,
    name: &str,
    ty: &ExternType,
    host: &Host,
) -> wasmtime::Result<Extern> {
    Ok(match ty {
        ExternType::Func(ty) => {
            let (name, host) = (name.to_owned(), host.clone());
            let results: Vec<Type> = ty.results().map(|ty| type_of(&ty)).collect();
            let call =
                move |mut caller: wasmtime::Caller<'_, StoreLimits>, given: &[Val], answer: &mut [Val]| {
                    let arguments = given.iter().map(|value| from_val(&mut caller, value)).collect();
                    for (answer, value) in answer.iter_mut().zip(host.call(&name, arguments, &results)) {
                        *answer = to_val(&mut caller, &value)?;
                    }
                    Ok(())
                };
            Func::new(&mut *store, ty.clone(), call).into()
        }
        ExternType::Global(ty) => {
            let value = host.global(name, type_of(ty.content()));
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
        ValType::V128 => Type::V128,
        ValType::Ref(ty) => match ty.heap_type().top() {
            HeapType::Extern if matches!(ty.heap_type(), HeapType::Extern) => Type::Extern,
            HeapType::Extern => Type::NullExtern,
            HeapType::Exn => Type::Exn,
            HeapType::Func => Type::Func,
            _ if matches!(ty.heap_type(), HeapType::Any | HeapType::Eq | HeapType::I31) => Type::Any,
            _ => Type::NullAny,
        },
    }
}

fn to_val(store: impl wasmtime::AsContextMut, value: &Value) -> wasmtime::Result<Val> {
    Ok(match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(bits),
        Value::F64(bits) => Val::F64(bits),
        Value::V128(bits) => Val::V128(bits.into()),
        Value::Extern(value) => Val::ExternRef(Some(ExternRef::new(store, value)?)),
        Value::Null(Type::Extern) => Val::ExternRef(None),
        Value::Null(Type::Exn) => Val::ExnRef(None),
        Value::Null(Type::Any) => Val::AnyRef(None),
        Value::I31(value) => Val::AnyRef(Some(AnyRef::from_i31(store, I31::wrapping_i32(value)))),
        Value::Null(_) | Value::Func | Value::Exn | Value::Object => Val::FuncRef(None),
    })
}

fn from_val(store: impl wasmtime::AsContextMut, value: &Val) -> Value {
    match value {
        Val::I32(value) => Value::I32(*value),
        Val::I64(value) => Value::I64(*value),
        Val::F32(bits) => Value::F32(*bits),
        Val::F64(bits) => Value::F64(*bits),
        Val::V128(bits) => Value::V128(bits.as_u128()),
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
        Val::AnyRef(None) => Value::Null(Type::Any),
        Val::AnyRef(Some(value)) => {
            let i31 = value.as_i31(store).ok().flatten();
            i31.map_or(Value::Object, |value| Value::I31(value.get_i32()))
        }
        other => unreachable!("no module has values like {other:?}"),
    }
}

fn outcome(store: &mut Store<StoreLimits>, error: &Error) -> Outcome {
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
        Some(T::CastFailure) => Trap::CastFailure,
        Some(T::ArrayOutOfBounds) => Trap::ArrayOutOfBounds,
        Some(T::AllocationTooLarge) => return Outcome::Exhausted,
        Some(T::NullReference) => Trap::NullReference,
        Some(T::AtomicWaitNonSharedMemory) => Trap::AtomicWaitNonSharedMemory,
        _ if error.is::<GcHeapOutOfMemory<()>>() => return Outcome::Exhausted,
        _ => return Outcome::Error(format!("{error:#}")),
    })
}
