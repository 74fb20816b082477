//! [`Engine`]: what modules and stores have in common.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmparser::FuncType;

use crate::code::CodeImage;
use crate::error::Error;
use crate::trap::DEFAULT_SIGNAL;

/// Settings of an [`Engine`].
#[derive(Clone, Debug)]
pub struct Config {
    compile_threads: Option<NonZero<usize>>,
    max_wasm_stack: usize,
    interrupt_signal: i32,
}

impl Default for Config {
    fn default() -> Self {
        Self { compile_threads: None, max_wasm_stack: 1 << 20, interrupt_signal: DEFAULT_SIGNAL }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many threads compile a module. By default, one for each processor that the process may use. More threads are of
    /// use for large modules only.
    pub fn compile_threads(&mut self, threads: NonZero<usize>) -> &mut Self {
        self.compile_threads = Some(threads);
        self
    }

    /// How many bytes of the thread's stack WebAssembly may use before it traps; 1 MiB by default. It gets less where the
    /// thread has less.
    pub fn max_wasm_stack(&mut self, bytes: usize) -> &mut Self {
        self.max_wasm_stack = bytes;
        self
    }

    /// The signal by which a running program is interrupted: `SIGURG` by default, or one that the process uses for nothing else.
    /// [`Engine::new`] refuses one that cannot be handled, or means a trap.
    pub fn interrupt_signal(&mut self, signal: i32) -> &mut Self {
        self.interrupt_signal = signal;
        self
    }
}

/// Compiles modules and runs them in stores. A clone is the same engine; threads may share it.
#[derive(Clone, Debug)]
pub struct Engine(Arc<EngineInner>);

#[derive(Debug)]
struct EngineInner {
    config: Config,
    types: Mutex<TypeRegistry>,
}

/// Function types that modules and host functions have used; an id is an index.
#[derive(Debug, Default)]
struct TypeRegistry {
    ids: HashMap<FuncType, u32>,
    types: Vec<FuncType>,
    /// Trampolines for functions that the host makes, by type id.
    trampolines: HashMap<u32, Arc<CodeImage>>,
}

impl Engine {
    /// An engine with these settings.
    ///
    /// # Errors
    /// [`Error::Processor`] on a processor that lacks a part of x86-64-v3; [`Error::InterruptSignal`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        check_processor()?;
        check_signal(config.interrupt_signal)?;
        Ok(Self(Arc::new(EngineInner { config: config.clone(), types: Mutex::default() })))
    }

    /// Whether two engines are the same.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
    pub(crate) fn register_type(&self, ty: &FuncType) -> u32 {
        let mut registry = self.types();
        if let Some(id) = registry.ids.get(ty) {
            return *id;
        }
        let id = u32::try_from(registry.types.len()).expect("fewer function types than 32 bits can count");
        registry.types.push(ty.clone());
        registry.ids.insert(ty.clone(), id);
        id
    }

    /// The type that has this id.
    pub(crate) fn registered_type(&self, id: u32) -> FuncType {
        self.types().types[id as usize].clone()
    }

    /// Code that has the trampolines of this type, as its type 0.
    pub(crate) fn trampolines(&self, id: u32) -> Result<Arc<CodeImage>, Error> {
        let mut registry = self.types();
        if let Some(image) = registry.trampolines.get(&id) {
            return Ok(image.clone());
        }
        let image = CodeImage::of_trampolines(&registry.types[id as usize..=id as usize])?;
        registry.trampolines.insert(id, image.clone());
        Ok(image)
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

/// Traps and patches have their signals, two cannot be handled, the C library keeps two for itself, and 64 is beyond the handler's mask.
fn check_signal(signal: i32) -> Result<(), Error> {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGTRAP};
    let taken = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGKILL, SIGSTOP, 32, 33];
    match (1..64).contains(&signal) && !taken.contains(&signal) {
        true => Ok(()),
        false => Err(Error::InterruptSignal { signal }),
    }
}

#[cfg(test)]
mod tests {
    use wasmparser::ValType;

    use super::*;

    #[test]
    fn equal_types_have_equal_ids() {
        let engine = Engine::default();
        let unary = FuncType::new([ValType::I32], [ValType::I64]);
        let id = engine.register_type(&unary);
        let other = engine.register_type(&FuncType::new([ValType::I64], [ValType::I32]));
        assert_ne!(id, other);
        assert_eq!(engine.register_type(&FuncType::new([ValType::I32], [ValType::I64])), id);
        assert_eq!(engine.registered_type(id), unary);
    }
}
