//! [`Engine`]: state that modules and stores share.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasm_jit_codegen::{CodeSettings, CompiledSites};
use wasmparser::FuncType;

use crate::code::CodeImage;
use crate::error::Error;
use crate::runtime::linear_memory;
use crate::trap::DEFAULT_SIGNAL;

/// How an access beyond the end of a memory is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundsChecks {
    /// [`BoundsChecks::Reservation`] if the system lets a process reserve the addresses of eight
    /// memories when the engine is created, else [`BoundsChecks::Instructions`]: under `ulimit -v`,
    /// for example.
    #[default]
    Automatic,
    /// By the processor: 8 GiB of addresses are reserved for each memory, which is all that an
    /// access can address, so that accesses need no check. A memory whose reservation is refused
    /// cannot be created. Accesses to memories of 64 bits, and to those with pages of one byte, are
    /// checked by instructions.
    Reservation,
    /// By instructions before each access. A memory takes no more addresses than it has bytes, and
    /// code is slower.
    Instructions,
}

/// Places that functions have for [probes](crate::probes): from the start, so that a probe there
/// takes effect at once for running calls, and needs no further version of its function; or from
/// their first probe on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeSites {
    /// None: code that is not probed costs nothing.
    #[default]
    None,
    /// Entries of functions: a NOP for each.
    Functions,
    /// Entries, blocks, loops, branches and calls: NOPs, of which several instructions may share
    /// one, and the branches themselves. On average, code takes 2 % more time.
    Branches,
    /// Entries from the start; all instructions as soon as a function has its first probe at any:
    /// that one compiles a version of the function, and none of the following ones does. Code that
    /// is not probed costs as much as with [`Functions`](Self::Functions); with a place at every
    /// instruction it would take twice as long.
    All,
}

/// The default of [`Config::counter_stubs`]. Measured in a loop
/// (`benches/wasm_probes/counters.rs`): where branches are eight instructions apart, as in most
/// programs, six counters in stubs cost as much as code that counts by itself; where there are no
/// branches, two. Counters at code that is rarely executed cost nothing in stubs.
const COUNTER_STUBS: u32 = 4;

/// Settings of an [`Engine`].
#[derive(Clone, Debug)]
pub struct Config {
    compile_threads: Option<NonZero<usize>>,
    max_wasm_stack: usize,
    interrupt_signal: i32,
    bounds_checks: BoundsChecks,
    harden_speculation: bool,
    relaxed_simd_deterministic: bool,
    uses_fuel: bool,
    probe_sites: ProbeSites,
    counter_stubs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            compile_threads: None,
            max_wasm_stack: 1 << 20,
            interrupt_signal: DEFAULT_SIGNAL,
            bounds_checks: BoundsChecks::default(),
            harden_speculation: false,
            relaxed_simd_deterministic: true,
            uses_fuel: false,
            probe_sites: ProbeSites::default(),
            counter_stubs: COUNTER_STUBS,
        }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of threads that compile a module. By default, one for each processor available to the
    /// process. More than one thread helps with large modules only.
    pub fn compile_threads(&mut self, threads: NonZero<usize>) -> &mut Self {
        self.compile_threads = Some(threads);
        self
    }

    /// Bytes of the thread's stack that WebAssembly may use before it traps; 1 MiB by default. The
    /// limit is lower if the thread's stack is smaller. A stack that is not the thread's own, of a
    /// coroutine for example, must be 256 KiB larger than this: its size cannot be determined at
    /// run time.
    pub fn max_wasm_stack(&mut self, bytes: usize) -> &mut Self {
        self.max_wasm_stack = bytes;
        self
    }

    /// The signal that interrupts a running program: `SIGURG` by default, or one that the process
    /// uses for nothing else. [`Engine::new`] refuses a signal that cannot be handled, or that
    /// reports traps.
    pub fn interrupt_signal(&mut self, signal: i32) -> &mut Self {
        self.interrupt_signal = signal;
        self
    }

    /// How accesses beyond the end of a memory are detected.
    pub fn bounds_checks(&mut self, checks: BoundsChecks) -> &mut Self {
        self.bounds_checks = checks;
        self
    }

    /// Whether code is hardened against speculative bypassing of bounds checks (Spectre, variant
    /// 1). It is not by default.
    ///
    /// If so, an index beyond the end of a table, of the targets of a `br_table`, or of a memory
    /// whose accesses are checked by instructions, becomes 0 by a data dependency. A memory with a
    /// reservation needs no masking: every access is inside it. Types of callees and branches of
    /// the program are not hardened: programs that must not learn anything about each other need
    /// separate processes.
    pub fn harden_speculation(&mut self, harden: bool) -> &mut Self {
        self.harden_speculation = harden;
        self
    }

    /// Whether relaxed vector operators have the same results on all processors. By default they
    /// do.
    ///
    /// Otherwise the results are those of single instructions of this processor, where the proposal
    /// permits them: they differ for lanes out of range, NaNs, and zeros of different sign.
    pub fn relaxed_simd_deterministic(&mut self, deterministic: bool) -> &mut Self {
        self.relaxed_simd_deterministic = deterministic;
        self
    }

    /// Whether instructions consume fuel, of which every store has an amount
    /// ([`Store::set_fuel`](crate::Store::set_fuel)). By default they do not.
    ///
    /// Each instruction that is executed costs 1, and each entry of a function 1 more. Free are
    /// `nop`, `drop`, `block`, `loop`, `else`, `end`, `return`, `unreachable`, and the parts of a
    /// `try`; these are the costs of wasmtime. An instruction that writes a megabyte of memory
    /// costs as much as an addition, and a host function nothing. The cost of instructions between
    /// two branches is subtracted at once, before the first of them. A program traps
    /// ([`Trap::OutOfFuel`](crate::Trap::OutOfFuel)) at an instruction that depends only on the
    /// program, its input and the amount.
    ///
    /// A limit of time needs no fuel ([`InterruptHandle`](crate::InterruptHandle)), costs nothing,
    /// and ends programs at different instructions.
    pub fn consume_fuel(&mut self, consume: bool) -> &mut Self {
        self.uses_fuel = consume;
        self
    }

    /// The places that functions have for probes from the start. By default there are none. Probes
    /// can be at any other instruction too. Counters at these places, and all probes at entries,
    /// need no version of the function; a probe that calls a function at an instruction does.
    pub fn probe_sites(&mut self, sites: ProbeSites) -> &mut Self {
        self.probe_sites = sites;
        self
    }

    /// How many probes of a function that [count](crate::probes::Kind::Count) do so by stubs: 4 by
    /// default. A function with more of them, or with several that are on half of its instructions,
    /// gets a version of its code that counts all of its instructions by itself. Its run time is
    /// longer by some percent, whichever of its counters are on. With [`u32::MAX`] none gets one
    /// for its number of counters.
    pub fn counter_stubs(&mut self, limit: u32) -> &mut Self {
        self.counter_stubs = limit;
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
    images: Mutex<Images>,
}

/// An observer of the modules that an engine compiles.
pub(crate) trait WatchesImages: Send + Sync {
    /// A module was compiled. Nothing of it has run.
    fn compiled(self: Arc<Self>, image: &Arc<CodeImage>);
}

/// The code of the engine's modules, and the observers of new ones.
#[derive(Default)]
struct Images {
    all: Vec<Weak<CodeImage>>,
    watchers: Vec<(u64, Weak<dyn WatchesImages>)>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("all", &self.all.len()).finish_non_exhaustive()
    }
}

/// Function types in use. Compiled code compares their ids.
#[derive(Debug, Default)]
struct TypeRegistry {
    ids: HashMap<FuncType, u32>,
    types: HashMap<u32, TypeEntry>,
    /// Ids that are no longer in use.
    free: Vec<u32>,
}

#[derive(Debug)]
struct TypeEntry {
    ty: FuncType,
    /// Number of [`TypeId`]s.
    users: usize,
    /// Trampolines for host functions.
    trampolines: Option<Arc<CodeImage>>,
}

/// The engine-wide id of a function type. It identifies this type as long as there is a `TypeId` of
/// it, in a module or in a host object of a store.
#[derive(Debug)]
pub(crate) struct TypeId {
    engine: Engine,
    id: u32,
}

impl TypeId {
    /// The number that compiled code uses.
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
        // Code is freed without holding the lock.
        drop(registry);
        drop(unused);
    }
}

impl TypeRegistry {
    /// # Panics
    /// If there is no [`TypeId`] for this id.
    fn entry(&mut self, id: u32) -> &mut TypeEntry {
        self.types.get_mut(&id).expect("an id that is known is in use")
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
        let sites = match config.probe_sites {
            ProbeSites::None => CompiledSites::None,
            ProbeSites::Functions => CompiledSites::Functions,
            ProbeSites::Branches => CompiledSites::Branches,
            ProbeSites::All => CompiledSites::All,
        };
        let code_settings = CodeSettings {
            checks_bounds,
            masks_indices: config.harden_speculation,
            relaxes_vectors: !config.relaxed_simd_deterministic,
            uses_fuel: config.uses_fuel,
            sites,
            counter_stubs: config.counter_stubs,
        };
        Ok(Self(Arc::new(EngineInner {
            config: config.clone(),
            code_settings,
            types: Mutex::default(),
            images: Mutex::default(),
        })))
    }

    /// Whether two engines are the same.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether accesses beyond the end of a memory are detected by instructions ([`BoundsChecks`]).
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
                let next = || u32::try_from(used).expect("fewer than 2^32 function types");
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

    /// Code with the trampolines of this type, as its type 0.
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

impl Engine {
    fn images(&self) -> MutexGuard<'_, Images> {
        self.0.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the code of a new module.
    pub(crate) fn add_image(&self, image: &Arc<CodeImage>) {
        let watchers = {
            let mut images = self.images();
            // Amortized: those that have ended are removed when their number may have doubled.
            if images.all.len() == images.all.capacity() {
                images.all.retain(|image| image.strong_count() > 0);
            }
            images.all.push(Arc::downgrade(image));
            images.watchers.clone()
        };
        let watchers = watchers.into_iter().filter_map(|(_, watcher)| watcher.upgrade());
        watchers.for_each(|watcher| watcher.compiled(image));
    }

    /// Adds an observer of modules that are compiled from now on. Returns the code of the existing
    /// ones.
    pub(crate) fn watch_images(&self, number: u64, watcher: Weak<dyn WatchesImages>) -> Vec<Arc<CodeImage>> {
        let mut images = self.images();
        images.watchers.push((number, watcher));
        images.all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn unwatch_images(&self, number: u64) {
        self.images().watchers.retain(|(of, _)| *of != number);
    }
}

impl Default for Engine {
    /// # Panics
    /// On a processor that lacks a part of x86-64-v3; [`Engine::new`] returns an error instead.
    fn default() -> Self {
        match Self::new(&Config::new()) {
            Ok(engine) => engine,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Compiled code uses these extensions unconditionally.
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

/// Refuses the signals of traps and patches, the two that cannot be handled, and the two that the C
/// library reserves.
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
            assert_eq!(count(), (3, 3), "those of the previous module are freed");
            let mut store = Store::new(&engine, ());
            let ty = module.imports().next().expect("one import").ty().clone();
            let ExternType::Func(ty) = ty else { panic!("{ty}") };
            let host = Func::new(&mut store, ty.clone(), |_, _, _| Ok(()))?;
            let instance = Instance::new(&mut store, &module, &[host.into()])?;
            drop(module);
            assert_eq!(count(), (3, 3), "the instance keeps its module alive");
            assert_eq!(instance.get_func(&store, "f").expect("exported").ty(&store), ty);
            let other = Tag::new(&mut store, &TagType::new(types::FuncType::new([], [])))?;
            assert_eq!(count(), (4, 4));
            assert_eq!(other.ty(&store).ty().params().len(), 0);
        }
        assert_eq!(count(), (0, 0));
        assert!(engine.types().free.len() <= 4, "ids are reused");
        Ok(())
    }
}
