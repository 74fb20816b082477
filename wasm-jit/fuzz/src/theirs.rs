//! wasmi as the reference engine.

use wasm_jit_fuzz::{Case, Contents, Engine, Host, Instantiated, Outcome, Trap, Type, Value};
use wasmi::{
    Config, Engine as WasmiEngine, Error, Extern, ExternRef, ExternType, F32, F64, Func, Global, Instance,
    Memory, Module, Ref, Store, Table, TrapCode, Val, ValType,
};

/// The reference engine.
pub(crate) struct Wasmi(WasmiEngine);

impl Wasmi {
    pub(crate) fn new() -> Self {
        let mut config = Config::default();
        config.wasm_multi_memory(true).wasm_tail_call(true).wasm_extended_const(true);
        // Its results are those of the deterministic profile.
        config.wasm_relaxed_simd(true);
        config.wasm_memory64(true).wasm_custom_page_sizes(true).wasm_wide_arithmetic(true);
        config.set_max_recursion_depth(5000).set_max_stack_height(1 << 20);
        Self(WasmiEngine::new(&config))
    }
}

impl Engine for Wasmi {
    type Module = Module;
    type Store = Store<()>;
    type Export = Extern;

    fn name(&self) -> &'static str {
        "wasmi"
    }

    fn load(&self, case: &Case) -> Result<Module, String> {
        Module::new(&self.0, &case.wasm).map_err(|error| error.to_string())
    }

    fn store(&self) -> Store<()> {
        Store::new(&self.0, ())
    }

    fn instantiate(
        &self,
        store: &mut Store<()>,
        module: &Module,
        host: &Host,
    ) -> Result<Instantiated<Extern>, String> {
        let imports: Result<Vec<Extern>, Error> = module
            .imports()
            .map(|import| define(store, &format!("{}.{}", import.module(), import.name()), import.ty(), host))
            .collect();
        let imports = imports.map_err(|error| error.to_string())?;
        Ok(match Instance::new(&mut *store, module, &imports) {
            Ok(instance) => {
                let exports = instance.exports(&*store);
                let named = exports.map(|export| (export.name().to_owned(), export.into_extern()));
                Instantiated::Exports(named.collect())
            }
            Err(error) => Instantiated::Failed(outcome(&error)),
        })
    }

    fn parameters(&self, store: &Store<()>, export: &Extern) -> Option<Vec<Type>> {
        let Extern::Func(func) = export else { return None };
        Some(func.ty(store).params().iter().map(|ty| type_of(*ty)).collect())
    }

    fn call(&self, store: &mut Store<()>, function: &Extern, arguments: &[Value]) -> Result<Outcome, String> {
        let Extern::Func(func) = function else { return Err("not a function".to_owned()) };
        let given: Vec<Val> = arguments.iter().map(|value| to_val(&mut *store, value)).collect();
        let ty = func.ty(&*store);
        let mut results: Vec<Val> = ty.results().iter().map(|ty| Val::default(*ty)).collect();
        Ok(match func.call(&mut *store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(|value| from_val(&*store, value)).collect()),
            Err(error) => outcome(&error),
        })
    }

    fn contents(&self, store: &mut Store<()>, export: &Extern) -> Result<Contents, String> {
        let store = &*store;
        Ok(match export {
            Extern::Memory(memory) => Contents::Memory(memory.data(store).to_vec()),
            Extern::Global(global) => Contents::Global(from_val(store, &global.get(store))),
            Extern::Table(table) => {
                let elements = (0..table.size(store)).filter_map(|at| table.get(store, at));
                Contents::Table(elements.map(|element| from_val(store, &element)).collect())
            }
            Extern::Func(_) => Contents::Nothing,
        })
    }
}

/// Defines an import.
fn define(store: &mut Store<()>, name: &str, ty: &ExternType, host: &Host) -> Result<Extern, Error> {
    Ok(match ty {
        ExternType::Func(ty) => {
            let (name, host) = (name.to_owned(), host.clone());
            let results: Vec<Type> = ty.results().iter().map(|ty| type_of(*ty)).collect();
            let call = move |mut caller: wasmi::Caller<'_, ()>, given: &[Val], answer: &mut [Val]| {
                let arguments = given.iter().map(|value| from_val(&caller, value)).collect();
                for (answer, value) in answer.iter_mut().zip(host.call(&name, arguments, &results)) {
                    *answer = to_val(&mut caller, &value);
                }
                Ok(())
            };
            Func::new(&mut *store, ty.clone(), call).into()
        }
        ExternType::Global(ty) => {
            let value = host.global(name, type_of(ty.content()));
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
        ValType::V128 => Type::V128,
    }
}

fn to_val(store: impl wasmi::AsContextMut, value: &Value) -> Val {
    match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(F32::from_bits(bits)),
        Value::F64(bits) => Val::F64(F64::from_bits(bits)),
        Value::V128(bits) => Val::V128(bits.into()),
        Value::Extern(value) => Val::ExternRef(Ref::Val(ExternRef::new(store, value))),
        Value::Null(Type::Extern) => Val::ExternRef(Ref::Null),
        Value::Null(_) | Value::Func | Value::Exn | Value::I31(_) | Value::Object => Val::FuncRef(Ref::Null),
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
        Val::V128(value) => Value::V128(value.as_u128()),
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
