//! [`Engine`]: what modules and stores have in common.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit_codegen::CodeSettings;
use wasmparser::FuncType;

use crate::code::CodeImage;
use crate::error::Error;
use crate::runtime::linear_memory;
use crate::trap::DEFAULT_SIGNAL;

/// How an access beyond the end of a memory is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundsChecks {
    /// As [`BoundsChecks::Reservation`] where the system lets a process reserve the addresses of
    /// eight memories when the engine is made, else as [`BoundsChecks::Instructions`]: under
    /// `ulimit -v`, for example.
    #[default]
    Automatic,
    /// By the processor: 8 GiB of addresses are reserved for each memory, all that an access can
    /// name, so that accesses need no check. A memory whose reservation is refused cannot be
    /// created.
    Reservation,
    /// By instructions before each access. A memory takes no more addresses than it has bytes, and
    /// code is slower.
    Instructions,
}

/// Settings of an [`Engine`].
#[derive(Clone, Debug)]
pub struct Config {
    compile_threads: Option<NonZero<usize>>,
    max_wasm_stack: usize,
    interrupt_signal: i32,
    bounds_checks: BoundsChecks,
    harden_speculation: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compile_threads: None,
            max_wasm_stack: 1 << 20,
            interrupt_signal: DEFAULT_SIGNAL,
            bounds_checks: BoundsChecks::default(),
            harden_speculation: false,
        }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many threads compile a module. By default, one for each processor that the process may
    /// use. More threads are of use for large modules only.
    pub fn compile_threads(&mut self, threads: NonZero<usize>) -> &mut Self {
        self.compile_threads = Some(threads);
        self
    }

    /// How many bytes of the thread's stack WebAssembly may use before it traps; 1 MiB by default.
    /// It gets less where the thread has less. A stack that is not the thread's own, of a coroutine
    /// for example, must be this large and have 256 KiB more: how much of it there is cannot be
    /// found out.
    pub fn max_wasm_stack(&mut self, bytes: usize) -> &mut Self {
        self.max_wasm_stack = bytes;
        self
    }

    /// The signal by which a running program is interrupted: `SIGURG` by default, or one that the
    /// process uses for nothing else. [`Engine::new`] refuses one that cannot be handled, or means
    /// a trap.
    pub fn interrupt_signal(&mut self, signal: i32) -> &mut Self {
        self.interrupt_signal = signal;
        self
    }

    /// How accesses beyond the end of a memory are found.
    pub fn bounds_checks(&mut self, checks: BoundsChecks) -> &mut Self {
        self.bounds_checks = checks;
        self
    }

    /// Whether code is hardened against bounds checks that the processor bypasses by speculation
    /// (Spectre, variant 1). By default it is not.
    ///
    /// If so, an index beyond the end of a table, of the targets of a `br_table`, or of a memory
    /// whose accesses are checked by instructions, becomes 0 by a data dependency. A memory with a
    /// reservation needs nothing: whatever an access names is inside. Nothing is done about the
    /// types of callees, nor about branches of the program: programs that must not learn anything
    /// of each other need processes of their own.
    pub fn harden_speculation(&mut self, harden: bool) -> &mut Self {
        self.harden_speculation = harden;
        self
    }
}

/// Compiles modules and runs them in stores. A clone is the same engine; threads may share it.
#[derive(Clone, Debug)]
pub struct Engine(Arc<EngineInner>);

#[derive(Debug)]
struct EngineInner {
    config: Config,
    code_settings: CodeSettings,
    types: Mutex<TypeRegistry>,
}

/// Function types in use. Their ids are what compiled code compares.
#[derive(Debug, Default)]
struct TypeRegistry {
    ids: HashMap<FuncType, u32>,
    types: HashMap<u32, TypeEntry>,
    /// Ids that have been used before, and are free again.
    free: Vec<u32>,
}

#[derive(Debug)]
struct TypeEntry {
    ty: FuncType,
    /// How many [`TypeId`]s there are.
    users: usize,
    /// Trampolines for functions that the host makes.
    trampolines: Option<Arc<CodeImage>>,
}

/// The engine-wide id of a function type. It stays that of this type as long as there is one of
/// these, in a module or in what the host has made for a store.
#[derive(Debug)]
pub(crate) struct TypeId {
    engine: Engine,
    id: u32,
}

impl TypeId {
    /// What compiled code sees.
    pub(crate) fn get(&self) -> u32 {
        self.id
    }
}

impl Clone for TypeId {
    fn clone(&self) -> Self {
        self.engine.types().entry(self.id).users += 1;
        Self { engine: self.engine.clone(), id: self.id }
    }
}

impl Drop for TypeId {
    fn drop(&mut self) {
        let mut registry = self.engine.types();
        let entry = registry.entry(self.id);
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let unused = registry.types.remove(&self.id);
        registry.ids.remove(&unused.as_ref().expect("just found").ty);
        registry.free.push(self.id);
        // Code is freed without the lock.
        drop(registry);
        drop(unused);
    }
}

impl TypeRegistry {
    /// # Panics
    /// If nobody has a [`TypeId`] for this id.
    fn entry(&mut self, id: u32) -> &mut TypeEntry {
        self.types.get_mut(&id).expect("whoever knows an id keeps it in use")
    }
}

impl Engine {
    /// An engine with these settings.
    ///
    /// # Errors
    /// [`Error::Processor`] on a processor that lacks a part of x86-64-v3;
    /// [`Error::InterruptSignal`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        check_processor()?;
        check_signal(config.interrupt_signal)?;
        let checks_bounds = match config.bounds_checks {
            BoundsChecks::Automatic => !linear_memory::can_reserve(),
            BoundsChecks::Reservation => false,
            BoundsChecks::Instructions => true,
        };
        let code_settings = CodeSettings { checks_bounds, masks_indices: config.harden_speculation };
        Ok(Self(Arc::new(EngineInner { config: config.clone(), code_settings, types: Mutex::default() })))
    }

    /// Whether two engines are the same.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether accesses beyond the end of a memory are found by instructions ([`BoundsChecks`]).
    pub fn checks_bounds(&self) -> bool {
        self.0.code_settings.checks_bounds
    }

    pub(crate) fn code_settings(&self) -> CodeSettings {
        self.0.code_settings
    }

    pub(crate) fn compile_threads(&self) -> NonZero<usize> {
        let available = || std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        self.0.config.compile_threads.unwrap_or_else(available)
    }

    pub(crate) fn max_wasm_stack(&self) -> usize {
        self.0.config.max_wasm_stack
    }

    pub(crate) fn interrupt_signal(&self) -> i32 {
        self.0.config.interrupt_signal
    }

    fn types(&self) -> MutexGuard<'_, TypeRegistry> {
        self.0.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine-wide id of a function type.
    pub(crate) fn register_type(&self, ty: &FuncType) -> TypeId {
        let mut registry = self.types();
        let id = match registry.ids.get(ty) {
            Some(id) => *id,
            None => {
                let used = registry.types.len();
                let next = || u32::try_from(used).expect("fewer function types than 32 bits can count");
                let id = registry.free.pop().unwrap_or_else(next);
                registry.types.insert(id, TypeEntry { ty: ty.clone(), users: 0, trampolines: None });
                registry.ids.insert(ty.clone(), id);
                id
            }
        };
        registry.entry(id).users += 1;
        TypeId { engine: self.clone(), id }
    }

    /// The type that has this id, which is in use.
    pub(crate) fn registered_type(&self, id: u32) -> FuncType {
        self.types().entry(id).ty.clone()
    }

    /// Code that has the trampolines of this type, as its type 0.
    pub(crate) fn trampolines(&self, id: &TypeId) -> Result<Arc<CodeImage>, Error> {
        let mut registry = self.types();
        let TypeEntry { ty, trampolines, .. } = registry.entry(id.get());
        if let Some(image) = trampolines {
            return Ok(image.clone());
        }
        let image = CodeImage::of_trampolines(std::slice::from_ref(ty))?;
        Ok(trampolines.insert(image).clone())
    }
}

impl Default for Engine {
    /// # Panics
    /// On a processor that lacks a part of x86-64-v3; [`Engine::new`] tells instead.
    fn default() -> Self {
        match Self::new(&Config::new()) {
            Ok(engine) => engine,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Compiled code uses these extensions without asking.
fn check_processor() -> Result<(), Error> {
    let extensions = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
        ("LZCNT", is_x86_feature_detected!("lzcnt")),
        ("POPCNT", is_x86_feature_detected!("popcnt")),
        ("FMA", is_x86_feature_detected!("fma")),
    ];
    let missing: Vec<&str> = extensions.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Processor { missing: missing.join(", ") }) }
}

/// Traps and patches have their signals, two cannot be handled, and the C library keeps two for
/// itself.
fn check_signal(signal: i32) -> Result<(), Error> {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGTRAP};
    let taken = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGKILL, SIGSTOP, 32, 33];
    match (1..=64).contains(&signal) && !taken.contains(&signal) {
        true => Ok(()),
        false => Err(Error::InterruptSignal { signal }),
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::ValType;

    use super::*;
    use crate::types::{self, ExternType, TagType};
    use crate::{Func, Instance, Module, Store, Tag};

    #[test]
    fn equal_types_have_equal_ids() {
        let engine = Engine::default();
        let unary = FuncType::new([ValType::I32], [ValType::I64]);
        let id = engine.register_type(&unary);
        let other = engine.register_type(&FuncType::new([ValType::I64], [ValType::I32]));
        assert_ne!(id.get(), other.get());
        assert_eq!(engine.register_type(&FuncType::new([ValType::I32], [ValType::I64])).get(), id.get());
        assert_eq!(engine.registered_type(id.get()), unary);
    }

    #[test]
    fn types_are_forgotten_with_the_last_module_and_store_that_use_them() -> Result<(), Error> {
        let engine = Engine::default();
        let count = || {
            let registry = engine.types();
            (registry.types.len(), registry.ids.len())
        };
        for number in 0..10 {
            let params = "i32 ".repeat(number);
            let text = format!(
                r#"(module (type (func (param {params} f64))) (tag (export "tag") (param {params} f32))
                    (import "host" "f" (func $f (param {params} i64))) (export "f" (func $f)))"#
            );
            let module = Module::new(&engine, text)?;
            assert_eq!(count(), (3, 3), "those of the module before are gone");
            let mut store = Store::new(&engine, ());
            let ty = module.imports().next().expect("one import").ty().clone();
            let ExternType::Func(ty) = ty else { panic!("{ty}") };
            let host = Func::new(&mut store, ty.clone(), |_, _, _| Ok(()))?;
            let instance = Instance::new(&mut store, &module, &[host.into()])?;
            drop(module);
            assert_eq!(count(), (3, 3), "the instance has its module");
            assert_eq!(instance.get_func(&store, "f").expect("exported").ty(&store), ty);
            let other = Tag::new(&mut store, &TagType::new(types::FuncType::new([], [])))?;
            assert_eq!(count(), (4, 4));
            assert_eq!(other.ty(&store).ty().params().len(), 0);
        }
        assert_eq!(count(), (0, 0));
        assert!(engine.types().free.len() <= 4, "ids are used again");
        Ok(())
    }
}
