//! [`Engine`]: settings, types and code that modules and stores share.

mod type_registry;

use std::num::NonZero;
use std::sync::{Arc, Mutex, Weak};

use type_registry::TypeRegistry;
pub(crate) use type_registry::{
    GroupComposite, GroupField, GroupStorage, GroupSupertype, GroupType, GroupValType, KnownType,
};
use wasm_jit_codegen::{CodeSettings, CompiledSites};

use crate::cache::Cache;
use crate::code::CodeImage;
use crate::code::forks::{self, Locked};
use crate::error::Error;
use crate::linear_memory;
use crate::object_type::ObjectType;
use crate::trap::{self, DEFAULT_SIGNAL};
use crate::types::{
    ArrayType, FieldType, FuncType, FuncTypeId, ObjectTypeId, StorageType, StructType, ValType,
};

/// How an access beyond the end of a memory is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundsChecks {
    /// [`BoundsChecks::Reservation`] if the system lets a process reserve the addresses of eight
    /// memories when the engine is created, else [`BoundsChecks::Instructions`]: under `ulimit -v`,
    /// for example.
    #[default]
    Automatic,
    /// By the processor: 8 GiB of addresses are reserved for each memory, all that an access can
    /// reach, so accesses need no check. A memory whose reservation is refused cannot be created.
    /// Accesses to 64-bit memories and to memories with one-byte pages are checked by instructions.
    Reservation,
    /// By instructions before each access. A memory takes no more addresses than it has bytes, and
    /// code is slower.
    Instructions,
}

/// The locations at which the code of functions has sites for [probes](crate::probes). At a site
/// that exists from the start, a probe takes effect at once for running calls, and needs no further
/// version of its function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeSites {
    /// No sites from the start: code that is not probed costs nothing.
    #[default]
    None,
    /// Entries of functions: one NOP each.
    Functions,
    /// Entries, blocks, loops, branches and calls: NOPs, which several instructions may share, and
    /// the branches themselves. On average, code takes 2 % more time.
    Branches,
    /// Entries from the start. The first probe at any other instruction compiles a version of the
    /// function with sites at all instructions; later probes in the function compile none. Code
    /// that is not probed costs as much as with [`Functions`](Self::Functions); with a site at
    /// every instruction from the start it would take twice as long.
    All,
}

/// The default of [`Config::counter_stubs`] for functions that have sites from the start: a few
/// counters then need no version of the function. Otherwise, a version that counts inline costs no
/// more than stubs.
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
    avx512: Option<bool>,
    uses_fuel: bool,
    probe_sites: ProbeSites,
    counter_stubs: Option<u32>,
    cache: Option<Cache>,
    maps_stored_code: bool,
    compiles_lazily: bool,
    collects_always: bool,
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
            avx512: None,
            uses_fuel: false,
            probe_sites: ProbeSites::default(),
            counter_stubs: None,
            cache: None,
            maps_stored_code: true,
            compiles_lazily: false,
            collects_always: false,
        }
    }
}

impl Config {
    /// The default settings. Each method changes one of them.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of threads that compile a module: by default, one for each processor available to
    /// the process. More than one thread helps with large modules only.
    pub fn compile_threads(&mut self, threads: NonZero<usize>) -> &mut Self {
        self.compile_threads = Some(threads);
        self
    }

    /// The number of bytes of the thread's stack that WebAssembly may use before it traps: 1 MiB by
    /// default. The limit is lower if the thread's stack is smaller. A stack that is not the
    /// thread's own, for example of a coroutine, must be 256 KiB larger than this, because its size
    /// cannot be determined at run time.
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
    /// 1): by default it is not.
    ///
    /// In hardened code, an index beyond the end of a table, of the targets of a `br_table`, or of
    /// a memory whose accesses are checked by instructions becomes 0 by a data dependency. A memory
    /// with a reservation needs no masking: every access is inside it. Type checks of callees and
    /// branches of the program are not hardened: programs that must not learn anything about each
    /// other need separate processes.
    pub fn harden_speculation(&mut self, harden: bool) -> &mut Self {
        self.harden_speculation = harden;
        self
    }

    /// Whether relaxed vector operators have the same results on all processors: by default they
    /// do.
    ///
    /// If they need not, the results are those of single instructions of this processor, where the
    /// proposal permits them: they differ for out-of-range lanes, NaNs, and zeros of different
    /// sign.
    pub fn relaxed_simd_deterministic(&mut self, deterministic: bool) -> &mut Self {
        self.relaxed_simd_deterministic = deterministic;
        self
    }

    /// Whether vector code uses AVX-512, with the extensions VL, DQ, BW and BITALG: by default, if
    /// the processor has it (Intel since Ice Lake, AMD since Zen 4). Without it, some operators
    /// take several instructions instead of one; results are the same. Modules that were [compiled
    /// ahead of time](crate::Module::serialize) without it can be loaded on every processor of the
    /// level x86-64-v3, by engines that do not use it either.
    pub fn avx512(&mut self, enabled: bool) -> &mut Self {
        self.avx512 = Some(enabled);
        self
    }

    /// Whether instructions consume fuel, of which every store has an amount
    /// ([`Store::set_fuel`](crate::Store::set_fuel)): by default they do not.
    ///
    /// Each executed instruction costs 1, and each entry of a function 1 more. `nop`, `drop`,
    /// `block`, `loop`, `else`, `end`, `return`, `unreachable`, and the parts of a `try` cost
    /// nothing. The costs are those of wasmtime. An instruction that writes a megabyte of memory
    /// costs as much as an addition, and a host function costs nothing. The cost of the
    /// instructions between two branches is subtracted at once, before the first of them. A program
    /// traps ([`Trap::OutOfFuel`](crate::Trap::OutOfFuel)) at an instruction that depends only on
    /// the program, its input and the amount.
    ///
    /// A time limit ([`InterruptHandle`](crate::InterruptHandle)) needs no fuel and costs nothing,
    /// but stops a program at an instruction that differs from run to run.
    pub fn consume_fuel(&mut self, consume: bool) -> &mut Self {
        self.uses_fuel = consume;
        self
    }

    /// Whether every allocation of an object or an exception collects garbage first. In a heap of
    /// more than 128 KiB, an allocation collects only if at least a sixteenth of the heap was
    /// allocated since the last collection. By default, collections run when enough has been
    /// allocated. This setting is for tests of the engine and of its embedders: an object that is
    /// in use, but not found by the collector, is soon overwritten. Programs are many times slower.
    pub fn collects_always(&mut self, always: bool) -> &mut Self {
        self.collects_always = always;
        self
    }

    /// The locations at which functions have sites for probes from the start: by default there are
    /// none. Probes can be at any other instruction too. Counters at these sites, and all probes at
    /// entries, need no further version of the function; a probe that calls a function at an
    /// instruction does.
    pub fn probe_sites(&mut self, sites: ProbeSites) -> &mut Self {
        self.probe_sites = sites;
        self
    }

    /// The number of [counting](crate::probes::Kind::Count) probes in a function that use stubs: by
    /// default 4 if functions have [sites](Config::probe_sites) from the start, otherwise 0. A
    /// function with more of them, or with several counters that are on half of its instructions,
    /// gets a version of its code that counts inline. This version costs the same whichever of its
    /// counters are on. With [`u32::MAX`], no function gets one because of its number of counters.
    pub fn counter_stubs(&mut self, limit: u32) -> &mut Self {
        self.counter_stubs = Some(limit);
        self
    }

    /// Where compiled modules are stored, so that a module that was compiled before, by this
    /// process or another one, is loaded instead of being compiled: by default they are not stored.
    ///
    /// ```
    /// use wasm_jit::{Cache, Config, Engine, Module};
    ///
    /// # let folder = tempfile::tempdir().expect("a temporary folder can be made");
    /// # let folder = folder.path().join("cache");
    /// let cache = Cache::new(folder, 1 << 30)?;
    /// let engine = Engine::new(Config::new().cache(cache.clone()))?;
    /// Module::new(&engine, "(module (func))")?;
    /// Module::new(&engine, "(module (func))")?;
    /// assert_eq!((cache.statistics().misses, cache.statistics().hits), (1, 1));
    /// # Ok::<(), wasm_jit::Error>(())
    /// ```
    pub fn cache(&mut self, cache: Cache) -> &mut Self {
        self.cache = Some(cache);
        self
    }

    /// Whether the code of modules from files
    /// ([`Module::deserialize_file`](crate::Module::deserialize_file), or a [cache](Config::cache))
    /// is executed where the file is mapped: by default it is. Loading then takes a fraction of the
    /// time, and processes share the memory of the code, which is copied when the module gets its
    /// first probe. With `false`, it is copied when the module is loaded. `perf` needs this to find
    /// the names of functions
    /// ([`Module::write_perf_map`](crate::Module::write_perf_map)).
    pub fn map_stored_code(&mut self, map: bool) -> &mut Self {
        self.maps_stored_code = map;
        self
    }

    /// Whether each function is compiled when it is first called: for large modules that run once
    /// and use few of their functions. By default all functions are compiled with the module, on
    /// several threads.
    ///
    /// A module is validated completely in either case. The thread that first calls a function
    /// compiles it; others that call it during that time wait. The code is shared by all instances
    /// of the module. It is the same as otherwise, except for prefixes before some calls; indirect
    /// calls take one more jump in instances that are older than the code, except in the one that
    /// called the function first. Making a probe in a function compiles it, too.
    ///
    /// A function that cannot be compiled fails when it is called, with the error that
    /// [`Module::new`](crate::Module::new) returns otherwise: [`Error::Limit`], [`Error::Memory`]
    /// or [`Error::Code`]. A forked child cannot compile: calls to functions that were not compiled
    /// before the fork fail with [`Error::Forked`]. After a fork, the parent copies the module's
    /// code when it calls a function for the first time.
    ///
    /// Modules of an engine with a [cache](Config::cache) are loaded from the cache, or compiled
    /// completely and stored, whatever this setting is.
    ///
    /// ```
    /// use wasm_jit::{Config, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::new(Config::new().lazy_compilation(true))?;
    /// let module = Module::new(&engine, r#"(module
    ///     (func (export "answer") (result i32) (i32.const 42))
    ///     (func (export "other") (result i32) (i32.const 1)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let answer = instance.get_typed_func::<(), i32>(&store, "answer")?;
    /// assert_eq!(answer.call(&mut store, ())?, 42);
    /// let is_compiled = module.functions().map(|function| function.body().unwrap().is_compiled());
    /// assert_eq!(is_compiled.collect::<Vec<_>>(), [true, false]);
    /// # Ok::<(), wasm_jit::Error>(())
    /// ```
    pub fn lazy_compilation(&mut self, lazy: bool) -> &mut Self {
        self.compiles_lazily = lazy;
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

/// The engine-wide id of a type. It identifies this type as long as there is a `TypeId` of
/// it, in a module or in a host object of a store.
#[derive(Debug)]
pub(crate) struct TypeId {
    engine: Engine,
    object_type: Arc<ObjectType>,
}

impl TypeId {
    /// The id as a number.
    pub(crate) fn get(&self) -> u32 {
        self.object_type.vm.id
    }

    /// The type at run time.
    pub(crate) fn object_type(&self) -> &Arc<ObjectType> {
        &self.object_type
    }
}

impl Clone for TypeId {
    fn clone(&self) -> Self {
        self.engine.types().add_user(self.get());
        Self { engine: self.engine.clone(), object_type: self.object_type.clone() }
    }
}

impl Drop for TypeId {
    fn drop(&mut self) {
        let unused = self.engine.types().remove_user(self.get());
        // Code is freed without holding the lock.
        drop(unused);
    }
}

impl Engine {
    /// An engine with these settings.
    ///
    /// # Errors
    /// [`Error::Processor`] on a processor that lacks a part of x86-64-v3, or AVX-512 if that was
    /// requested; [`Error::InterruptSignal`] if the signal cannot be used.
    pub fn new(config: &Config) -> Result<Self, Error> {
        check_processor(&V3)?;
        // Handlers of `fork` that the program registers later are called before these.
        wordpatch::internal::follow_forks();
        trap::follow_forks();
        let uses_avx512 = match config.avx512 {
            Some(true) => check_processor(&AVX512).map(|()| true)?,
            Some(false) => false,
            None => check_processor(&AVX512).is_ok(),
        };
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
            uses_avx512,
            uses_fuel: config.uses_fuel,
            sites,
            counter_stubs: config.counter_stubs.unwrap_or(match config.probe_sites {
                ProbeSites::None => 0,
                ProbeSites::Functions | ProbeSites::Branches | ProbeSites::All => COUNTER_STUBS,
            }),
            patches_calls: false,
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

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.0.config.cache.as_ref()
    }

    pub(crate) fn maps_stored_code(&self) -> bool {
        self.0.config.maps_stored_code
    }

    pub(crate) fn compiles_lazily(&self) -> bool {
        self.0.config.compiles_lazily
    }

    pub(crate) fn collects_always(&self) -> bool {
        self.0.config.collects_always
    }

    pub(crate) fn max_wasm_stack(&self) -> usize {
        self.0.config.max_wasm_stack
    }

    pub(crate) fn interrupt_signal(&self) -> i32 {
        self.0.config.interrupt_signal
    }

    fn types(&self) -> Locked<'_, TypeRegistry> {
        forks::lock(&self.0.types)
    }

    /// The id of a function type, for references to host functions of this type. From now on the
    /// engine knows the type as long as the engine exists.
    ///
    /// ```
    /// use wasm_jit::{Engine, FuncType, HeapType, RefType, ValType};
    ///
    /// let engine = Engine::default();
    /// let unary = engine.func_type_id(&FuncType::new([ValType::I32], [ValType::I32]))?;
    /// let reference = RefType::new(false, HeapType::ConcreteFunc(unary));
    /// let apply = FuncType::new([ValType::Ref(reference), ValType::I32], [ValType::I32]);
    /// assert!(reference.matches(&RefType::FUNCREF));
    /// assert_eq!(engine.func_type(unary).expect("it is known").to_string(), "[i32] -> [i32]");
    /// # Ok::<(), wasm_jit::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidType`]: it refers to a type that the engine does not know, or that is of another kind.
    pub fn func_type_id(&self, ty: &FuncType) -> Result<FuncTypeId, Error> {
        let id = self.register_type(ty, "function")?;
        self.types().keep(id.get());
        Ok(FuncTypeId(id.get()))
    }

    /// The type with this id, if the engine knows it.
    pub fn func_type(&self, id: FuncTypeId) -> Option<FuncType> {
        self.types().get(id.0)?.ty.func().cloned()
    }

    /// The type of structures with these fields, without supertypes and subtypes. From now on the
    /// engine knows the type as long as the engine exists.
    ///
    /// # Errors
    /// [`Error::InvalidType`]: a field refers to a type that the engine does not know, or that is of another kind.
    pub fn new_struct_type(&self, fields: impl IntoIterator<Item = FieldType>) -> Result<StructType, Error> {
        let fields: Arc<[FieldType]> = fields.into_iter().collect();
        let group = fields.iter().map(|field| (*field).into()).collect();
        let id = self.keep_object_type(GroupComposite::Struct(group), &fields)?;
        Ok(StructType::known(id, fields))
    }

    /// The type of arrays with such elements, without supertypes and subtypes. From now on the
    /// engine knows the type as long as the engine exists.
    ///
    /// # Errors
    /// [`Error::InvalidType`]: the elements refer to a type that the engine does not know, or that is of another kind.
    pub fn new_array_type(&self, element: FieldType) -> Result<ArrayType, Error> {
        let id = self.keep_object_type(GroupComposite::Array(element.into()), &[element])?;
        Ok(ArrayType::known(id, element))
    }

    fn keep_object_type(&self, composite: GroupComposite, fields: &[FieldType]) -> Result<u32, Error> {
        let mentioned = fields.iter().filter_map(|field| match field.storage() {
            StorageType::Val(ty) => Some(ty),
            StorageType::I8 | StorageType::I16 => None,
        });
        let mut types = self.types();
        let id = types.add_alone(GroupType::of(composite), mentioned);
        let id = id.ok_or(Error::InvalidType { of: "object" })?;
        types.keep(id);
        // The engine is a user by itself.
        let unused = types.remove_user(id);
        debug_assert!(unused.is_empty());
        Ok(id)
    }

    /// The type of structures with this id, if the engine knows it.
    pub fn struct_type(&self, id: ObjectTypeId) -> Option<StructType> {
        match &self.types().get(id.0)?.ty {
            KnownType::Struct(ty) => Some(ty.clone()),
            KnownType::Func(_) | KnownType::Array(_) => None,
        }
    }

    /// The type of arrays with this id, if the engine knows it.
    pub fn array_type(&self, id: ObjectTypeId) -> Option<ArrayType> {
        match self.types().get(id.0)?.ty {
            KnownType::Array(ty) => Some(ty),
            KnownType::Func(_) | KnownType::Struct(_) => None,
        }
    }

    /// The engine-wide id of an object type, with one user more, if the engine knows a type with
    /// this id that `is` accepts: after 2^32 types, a type of another engine may have the id of a
    /// different type.
    ///
    /// # Errors
    /// [`Error::InvalidType`]: it does not.
    pub(crate) fn use_object_type(
        &self,
        id: ObjectTypeId,
        is: impl FnOnce(&KnownType) -> bool,
    ) -> Result<TypeId, Error> {
        let mut types = self.types();
        let known = types.get(id.0).filter(|entry| is(&entry.ty));
        let object_type = known.ok_or(Error::InvalidType { of: "object" })?.object_type.clone();
        types.add_user(id.0);
        Ok(TypeId { engine: self.clone(), object_type })
    }

    /// Refuses the type of a global or table that the embedder makes, if it refers to a concrete
    /// type that the engine does not know, or that is of another kind.
    pub(crate) fn check_known(&self, ty: ValType, of: &'static str) -> Result<(), Error> {
        if self.types().knows(ty) { Ok(()) } else { Err(Error::InvalidType { of }) }
    }

    /// Whether every value of type `sub` is also a value of type `of`: as [`ValType::matches`], but
    /// including the supertypes with which types were declared.
    pub fn is_subtype(&self, sub: &ValType, of: &ValType) -> bool {
        if sub.matches(of) {
            return true;
        }
        let (ValType::Ref(sub), ValType::Ref(of)) = (sub, of) else { return false };
        let nulls_fit = of.is_nullable() || !sub.is_nullable();
        match (sub.heap_type().concrete(), of.heap_type().concrete()) {
            (Some((sub_kind, sub)), Some((of_kind, of))) => {
                nulls_fit && sub_kind == of_kind && self.is_declared_subtype(sub, of)
            }
            _ => false,
        }
    }

    /// Whether a type is another one of the same kind, or was declared as a subtype of it.
    pub(crate) fn is_declared_subtype(&self, id: u32, of: u32) -> bool {
        id == of || self.types().is_subtype(id, of)
    }

    /// Whether functions of type `found` accept the arguments of type `wanted`, and return its
    /// results.
    pub(crate) fn can_call(&self, wanted: &FuncType, found: &FuncType) -> bool {
        let counts = |ty: &FuncType| (ty.params().len(), ty.results().len());
        counts(wanted) == counts(found)
            && wanted.params().zip(found.params()).all(|(given, wanted)| self.is_subtype(&given, &wanted))
            && found.results().zip(wanted.results()).all(|(given, wanted)| self.is_subtype(&given, &wanted))
    }

    /// The engine-wide id of the type of a host item.
    ///
    /// # Errors
    /// [`Error::InvalidType`]: it refers to a type that the engine does not know, or that is of another kind.
    pub(crate) fn register_type(&self, ty: &FuncType, of: &'static str) -> Result<TypeId, Error> {
        let mut types = self.types();
        let id = types.add(ty).ok_or(Error::InvalidType { of })?;
        Ok(TypeId { engine: self.clone(), object_type: types.entry(id).object_type.clone() })
    }

    /// The engine-wide ids of the types of a recursion group. The types to which it refers must be
    /// in use.
    pub(crate) fn register_group(&self, types: Vec<GroupType>) -> impl Iterator<Item = TypeId> {
        let object_types: Vec<Arc<ObjectType>> = match types.is_empty() {
            true => Vec::new(),
            false => {
                let mut registry = self.types();
                let ids = registry.add_group(types);
                ids.iter().map(|id| registry.entry(*id).object_type.clone()).collect()
            }
        };
        object_types.into_iter().map(|object_type| TypeId { engine: self.clone(), object_type })
    }

    /// The function type that has this id, which is in use.
    pub(crate) fn registered_type(&self, id: u32) -> FuncType {
        self.types().entry(id).ty.func().expect("a type of functions").clone()
    }

    /// The type of objects that has this id, which is in use.
    pub(crate) fn known_type(&self, id: u32) -> KnownType {
        self.types().entry(id).ty.clone()
    }

    /// Code with the trampolines of this type, as its type 0.
    pub(crate) fn trampolines(&self, id: &TypeId) -> Result<Arc<CodeImage>, Error> {
        let mut registry = self.types();
        let entry = registry.entry(id.get());
        if let Some(image) = &entry.trampolines {
            return Ok(image.clone());
        }
        let ty = entry.ty.func().expect("a type of functions").to_wasm();
        let image = CodeImage::of_trampolines(&[ty])?;
        Ok(entry.trampolines.insert(image).clone())
    }
}

impl Engine {
    fn images(&self) -> Locked<'_, Images> {
        forks::lock(&self.0.images)
    }

    /// Adds the code of a new module.
    pub(crate) fn add_image(&self, image: &Arc<CodeImage>) {
        let watchers = {
            let mut images = self.images();
            // Amortized: dropped images are removed when their number may have doubled.
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

/// An extension of the processor, and whether it has it.
type Extension = (&'static str, fn() -> bool);

/// Compiled code uses these unconditionally.
const V3: [Extension; 6] = [
    ("AVX2", || is_x86_feature_detected!("avx2")),
    ("BMI1", || is_x86_feature_detected!("bmi1")),
    ("BMI2", || is_x86_feature_detected!("bmi2")),
    ("LZCNT", || is_x86_feature_detected!("lzcnt")),
    ("POPCNT", || is_x86_feature_detected!("popcnt")),
    ("FMA", || is_x86_feature_detected!("fma")),
];

/// The extensions that [`Config::avx512`] concerns.
const AVX512: [Extension; 5] = [
    ("AVX512F", || is_x86_feature_detected!("avx512f")),
    ("AVX512VL", || is_x86_feature_detected!("avx512vl")),
    ("AVX512DQ", || is_x86_feature_detected!("avx512dq")),
    ("AVX512BW", || is_x86_feature_detected!("avx512bw")),
    ("AVX512_BITALG", || is_x86_feature_detected!("avx512bitalg")),
];

fn check_processor(extensions: &[Extension]) -> Result<(), Error> {
    let missing: Vec<&str> = extensions.iter().filter(|(_, has)| !has()).map(|(name, _)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Processor { missing: missing.join(", ") }) }
}

/// Refuses the signals that report traps and patches, the two that cannot be handled, and the two
/// that the C library reserves.
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
    use super::*;
    use crate::types::{ExternType, HeapType, RefType, TagType, ValType};
    use crate::{Func, Instance, Module, Store, Tag};

    #[test]
    fn equal_types_have_equal_ids() -> Result<(), Error> {
        let engine = Engine::default();
        let unary = FuncType::new([ValType::I32], [ValType::I64]);
        let id = engine.register_type(&unary, "function")?;
        let other = engine.register_type(&FuncType::new([ValType::I64], [ValType::I32]), "function")?;
        assert_ne!(id.get(), other.get());
        let same = FuncType::new([ValType::I32], [ValType::I64]);
        assert_eq!(engine.register_type(&same, "function")?.get(), id.get());
        assert_eq!(engine.registered_type(id.get()), unary);
        Ok(())
    }

    #[test]
    fn groups_are_compared_by_their_structure() -> Result<(), Error> {
        let engine = Engine::default();
        let module = |types: &str| Module::new(&engine, format!("(module {types})"));
        let ids = |module: &Module| -> Vec<u32> { module.info().type_ids.clone() };
        let pair = "(rec (type $a (func (param (ref $b)))) (type $b (func (result (ref null $a)))))";
        let first = module(&format!("(type (func)) {pair}"))?;
        let second = module(&format!("{pair} (type (func))"))?;
        assert_eq!(ids(&first)[1..], ids(&second)[..2], "the same group, at other indices");
        assert_eq!(ids(&first)[0], ids(&second)[2]);
        let single = module("(type $a (func (param (ref $a))))")?;
        let explicit = module("(rec (type $x (func (param (ref $x)))))")?;
        assert_eq!(ids(&single), ids(&explicit), "a type without a group is one of its own");
        for other in [
            "(rec (type $b (func (result (ref null $a)))) (type $a (func (param (ref $b)))))",
            "(rec (type $a (func (param (ref $b)))) (type $b (func (result (ref $a)))))",
            "(rec (type $a (func (param (ref $b)))) (type $b (func (result (ref null $b)))))",
            "(rec (type $a (func (param (ref $b)))) (type $b (func (result (ref null $a)))) (type (func)))",
        ] {
            let other = module(other)?;
            assert!(ids(&other).iter().all(|id| !ids(&first)[1..].contains(id)), "{:?}", ids(&other));
        }
        let grouped = module("(rec (type (func)) (type (func)))")?;
        assert_ne!(ids(&grouped)[0], ids(&grouped)[1], "places in a group");
        assert_ne!(ids(&grouped)[0], ids(&first)[0], "a type in a group is not that type alone");
        Ok(())
    }

    #[test]
    fn mentioned_types_are_forgotten_after_those_that_mention_them() -> Result<(), Error> {
        let engine = Engine::default();
        let count = || engine.types().counts();
        // Each type mentions the previous one.
        let length = 20_000;
        let chain: String = (1..length).map(|at| format!("(type (func (param (ref {}))))", at - 1)).collect();
        let module = Module::new(&engine, format!("(module (type (func)) {chain})"))?;
        let last = FuncTypeId(*module.info().type_ids.last().expect("there are types"));
        let last = ValType::Ref(RefType::new(true, HeapType::ConcreteFunc(last)));
        let user = engine.register_type(&FuncType::new([last], []), "function")?;
        drop(module);
        assert_eq!(count(), (length + 1, length + 1));
        drop(user);
        assert_eq!(count(), (0, 0));
        let error = engine.register_type(&FuncType::new([last], []), "function").expect_err("it is gone");
        assert!(matches!(error, Error::InvalidType { of: "function" }), "{error}");
        Ok(())
    }

    #[test]
    fn types_that_the_host_registers_stay_known() -> Result<(), Error> {
        let engine = Engine::default();
        let unary = FuncType::new([ValType::I32], []);
        let id = engine.func_type_id(&unary)?;
        assert_eq!(engine.func_type_id(&unary)?, id);
        assert_eq!(engine.func_type(id), Some(unary));
        assert_eq!(engine.types().counts(), (1, 1));
        Ok(())
    }

    #[test]
    fn types_are_forgotten_with_the_last_module_and_store_that_use_them() -> Result<(), Error> {
        let engine = Engine::default();
        let count = || engine.types().counts();
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
            let other = Tag::new(&mut store, &TagType::new(FuncType::new([], [])))?;
            assert_eq!(count(), (4, 4));
            assert_eq!(other.ty(&store).ty().params().len(), 0);
        }
        assert_eq!(count(), (0, 0));
        Ok(())
    }
}
