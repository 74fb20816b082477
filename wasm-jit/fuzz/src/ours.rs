//! wasm-jit as the engine under test.

use std::num::NonZero;
use std::sync::Arc;

use wasm_jit::{
    Config, Engine as JitEngine, Error, Extern, ExternRef, ExternType, Func, Global, HeapType, I31, Instance,
    Memory, Module, SharedMemory, Store, StoreLimits, Table, Tag, Val, ValType,
};

use crate::case::Case;
use crate::engine::{Contents, Engine, Host, Instantiated};
use crate::probes::{Set, change_sometimes};
use crate::record::{Outcome, Trap, Type, Value};

/// Fuel of a store: more than any case consumes.
pub const FUEL: u64 = 1 << 40;

/// Bytes of a store's garbage-collected heap.
const MAX_HEAP: u64 = 64 << 20;

/// The engine under test.
#[derive(Debug)]
pub struct Ours {
    engine: JitEngine,
    /// Whether modules are stored in files, and loaded from there.
    stores: bool,
}

impl Ours {
    /// An engine that compiles on one thread.
    ///
    /// # Panics
    /// If this processor is not supported.
    #[must_use]
    pub fn new() -> Self {
        Self::with_config(Config::new())
    }

    /// As [`Self::new`], with settings.
    ///
    /// # Panics
    /// If the settings are not supported here.
    #[must_use]
    pub fn with_config(mut config: Config) -> Self {
        config.compile_threads(NonZero::<usize>::MIN);
        let engine = JitEngine::new(&config).expect("the engine is supported here");
        Self { engine, stores: false }
    }

    /// The engine, in which modules are stored in files, and their code is executed there.
    #[must_use]
    pub fn storing(self) -> Self {
        Self { stores: true, ..self }
    }

    /// Loads bytes that may not be a module; returns whether they are one.
    #[must_use]
    pub fn loads(&self, bytes: &[u8]) -> bool {
        Module::from_binary(&self.engine, bytes).is_ok()
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

/// A loaded module.
#[derive(Debug)]
pub struct Loaded {
    module: Module,
    probes: Option<Arc<Set>>,
}

impl Loaded {
    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    /// Sets the probes that are notified of new stores.
    pub(crate) fn attach(&mut self, probes: Arc<Set>) {
        self.probes = Some(probes);
    }
}

impl Engine for Ours {
    type Module = Loaded;
    type Store = Store<()>;
    type Export = Extern;

    fn name(&self) -> &'static str {
        "wasm-jit"
    }

    fn fuel(&self, store: &Store<()>) -> Option<u64> {
        store.get_fuel().ok()
    }

    fn load(&self, case: &Case) -> Result<Loaded, String> {
        let wasm = case.legacy.as_ref().unwrap_or(&case.wasm);
        let module = Module::from_binary(&self.engine, wasm).and_then(|module| match self.stores {
            true => stored(&module),
            false => Ok(module),
        });
        Ok(Loaded { module: module.map_err(|error| error.to_string())?, probes: None })
    }

    fn store(&self) -> Store<()> {
        let mut store = Store::new(&self.engine, ());
        store.set_limits(StoreLimits::new().heap_size(MAX_HEAP));
        match store.set_fuel(FUEL) {
            Ok(()) | Err(Error::NoFuel) => store,
            Err(error) => panic!("{error}"),
        }
    }

    fn instantiate(
        &self,
        store: &mut Store<()>,
        Loaded { module, probes }: &Loaded,
        host: &Host,
    ) -> Result<Instantiated<Extern>, String> {
        if let Some(probes) = probes {
            probes.enter(store)?;
        }
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
            Err(error) => Instantiated::Failed(outcome(error)),
        })
    }

    fn parameters(&self, store: &Store<()>, export: &Extern) -> Option<Vec<Type>> {
        let Extern::Func(func) = export else { return None };
        let ty = func.ty(store);
        // The host has no functions or objects of given types.
        let can_be_null = |ty: ValType| !matches!(ty, ValType::Ref(ty) if !ty.is_nullable());
        ty.params().all(can_be_null).then(|| ty.params().map(type_of).collect())
    }

    fn call(&self, store: &mut Store<()>, function: &Extern, arguments: &[Value]) -> Result<Outcome, String> {
        let Extern::Func(func) = function else { return Err("not a function".to_owned()) };
        change_sometimes();
        let given: Vec<Val> = arguments.iter().map(to_val).collect();
        let mut results = vec![Val::I32(0); func.ty(&*store).results().len()];
        Ok(match func.call(store, &given, &mut results) {
            Ok(()) => Outcome::Returned(results.iter().map(from_val).collect()),
            Err(error) => outcome(error),
        })
    }

    fn contents(&self, store: &mut Store<()>, export: &Extern) -> Result<Contents, String> {
        Ok(match export {
            Extern::Memory(memory) => Contents::Memory(memory.data(&*store).to_vec()),
            Extern::SharedMemory(memory) => {
                let mut bytes = vec![0; memory.data_size()];
                memory.read(0, &mut bytes).map_err(|error| error.to_string())?;
                Contents::Memory(bytes)
            }
            Extern::Global(global) => Contents::Global(from_val(&global.get(&mut *store))),
            Extern::Table(table) => {
                let elements = (0..table.size(&*store)).filter_map(|at| table.get(&mut *store, at));
                Contents::Table(elements.map(|element| from_val(&element)).collect())
            }
            Extern::Func(_) | Extern::Tag(_) => Contents::Nothing,
        })
    }
}

/// The module, as it is loaded from a file.
fn stored(module: &Module) -> Result<Module, Error> {
    let bytes = module.serialize()?;
    let file = tempfile::NamedTempFile::new().expect("a file in the directory for temporary files");
    std::fs::write(file.path(), bytes).expect("there is room for it");
    // SAFETY: just written; only this process knows the file, which is removed.
    unsafe { Module::deserialize_file(module.engine(), file.path()) }
}

/// Defines an import.
fn define(store: &mut Store<()>, name: &str, ty: &ExternType, host: &Host) -> Result<Extern, Error> {
    Ok(match ty {
        ExternType::Func(ty) => {
            let (name, host) = (name.to_owned(), host.clone());
            let results: Vec<Type> = ty.results().map(type_of).collect();
            let call = move |_: wasm_jit::Caller<'_, ()>, given: &[Val], answer: &mut [Val]| {
                change_sometimes();
                let values = host.call(&name, given.iter().map(from_val).collect(), &results);
                for (answer, value) in answer.iter_mut().zip(values) {
                    *answer = to_val(&value);
                }
                Ok(())
            };
            Func::new(&mut *store, ty.clone(), call)?.into()
        }
        ExternType::Global(ty) => {
            let value = host.global(name, type_of(ty.content()));
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
        ValType::V128 => Type::V128,
        ValType::Ref(ty) => match ty.heap_type().top() {
            HeapType::Extern if ty.heap_type() == HeapType::Extern => Type::Extern,
            HeapType::Extern => Type::NullExtern,
            HeapType::Exn => Type::Exn,
            HeapType::Func => Type::Func,
            HeapType::Any if matches!(ty.heap_type(), HeapType::Any | HeapType::Eq | HeapType::I31) => {
                Type::Any
            }
            _ => Type::NullAny,
        },
    }
}

fn to_val(value: &Value) -> Val {
    match *value {
        Value::I32(value) => Val::I32(value),
        Value::I64(value) => Val::I64(value),
        Value::F32(bits) => Val::F32(bits),
        Value::F64(bits) => Val::F64(bits),
        Value::V128(bits) => Val::V128(bits),
        Value::Extern(value) => Val::ExternRef(Some(ExternRef::new(value))),
        Value::Null(Type::Extern) => Val::ExternRef(None),
        Value::Null(Type::Exn) => Val::ExnRef(None),
        Value::Null(Type::Any) => Val::AnyRef(None),
        Value::I31(value) => I31::wrapping(value).into(),
        Value::Null(_) | Value::Func | Value::Exn | Value::Object => Val::FuncRef(None),
    }
}

fn from_val(value: &Val) -> Value {
    match value {
        Val::I32(value) => Value::I32(*value),
        Val::I64(value) => Value::I64(*value),
        Val::F32(bits) => Value::F32(*bits),
        Val::F64(bits) => Value::F64(*bits),
        Val::V128(bits) => Value::V128(*bits),
        Val::FuncRef(None) => Value::Null(Type::Func),
        Val::FuncRef(Some(_)) => Value::Func,
        Val::ExternRef(None) => Value::Null(Type::Extern),
        Val::ExternRef(Some(value)) => {
            Value::Extern(value.data().downcast_ref().copied().unwrap_or(u32::MAX))
        }
        Val::ExnRef(None) => Value::Null(Type::Exn),
        Val::ExnRef(Some(_)) => Value::Exn,
        Val::AnyRef(None) => Value::Null(Type::Any),
        Val::AnyRef(Some(value)) => value.as_i31().map_or(Value::Object, |value| Value::I31(value.signed())),
    }
}

fn outcome(error: Error) -> Outcome {
    use wasm_jit::Trap as T;
    Outcome::Trapped(match error {
        Error::Exception { .. } => return Outcome::Threw,
        Error::StoreLimit { .. } => return Outcome::Exhausted,
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
            T::CastFailure => Trap::CastFailure,
            T::ArrayOutOfBounds => Trap::ArrayOutOfBounds,
            T::AtomicWaitNonSharedMemory => Trap::AtomicWaitNonSharedMemory,
            other => return Outcome::Error(other.to_string()),
        },
        other => return Outcome::Error(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Features;

    #[test]
    fn the_code_of_stored_modules_is_executed_in_their_files() {
        let case = (0..).find_map(|seed| Case::new(seed, Features::default())).expect("most are modules");
        let folder = std::env::temp_dir().canonicalize().expect("it exists");
        let folder = folder.to_str().expect("its name is text");
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("it is readable");
            maps.lines().filter(|line| line.contains(" r-xs ") && line.contains(folder)).count()
        };
        let _copied = Ours::new().load(&case).expect("it is valid");
        assert_eq!(mapped(), 0);
        let _mapped = Ours::new().storing().load(&case).expect("it is valid");
        assert_eq!(mapped(), 1);
    }
}
