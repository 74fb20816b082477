//! All accesses of a program to its memories.
//!
//! The probes of a function are made when it is first called: those of all functions of a large
//! program would take more memory than an engine has for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{
    Bound, Callback, FirstCallWatch, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all,
};
use wasm_jit::{FunctionInfo, Module};
use wasm_jit_hooks::{AccessKind, accesses};

use super::error::Error;

/// An access that is about to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Whether it reads bytes; it may also write them.
    pub(crate) is_read: bool,
    /// The memory's index.
    pub(crate) memory: u32,
    /// The first byte.
    pub(crate) address: u64,
    /// Number of bytes.
    pub(crate) size: u64,
}

/// Observes accesses as long as it lives.
pub(crate) struct Accesses {
    _watch: FirstCallWatch,
    made: Arc<Mutex<Made>>,
}

#[derive(Default)]
struct Made {
    probes: Vec<Probe>,
    /// Why a function is not observed.
    failed: Option<ProbeError>,
}

impl Accesses {
    /// Calls a closure before each access of the module's instances, which do not exist yet.
    pub(crate) fn observe(
        module: &Module,
        closure: impl Fn(Access) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let made = Arc::new(Mutex::new(Made::default()));
        let callback = Callback::new(move |values| {
            if let [what, address, size] = *values {
                closure(Access { is_read: what & 1 != 0, memory: (what >> 1) as u32, address, size });
            }
        });
        let (observed, to) = (module.clone(), made.clone());
        let called = move |index| {
            let function = observed.function(index);
            let specs = function.map(|function| specs(&function, &callback)).unwrap_or_default();
            let result = make(&observed, &specs);
            let mut made = lock(&to);
            match result {
                Ok(probes) => made.probes.extend(probes),
                Err(error) => _ = made.failed.get_or_insert(error),
            }
        };
        let watch = module.watch_first_calls(called).map_err(refused)?;
        Ok(Self { _watch: watch, made })
    }

    /// Whether all accesses so far were observed.
    ///
    /// # Errors
    /// Why some were not.
    pub(crate) fn were_observed(&self) -> Result<(), Error> {
        lock(&self.made).failed.take().map_or(Ok(()), |error| Err(refused(error)))
    }
}

fn lock(made: &Mutex<Made>) -> MutexGuard<'_, Made> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: ProbeError) -> Error {
    Error::Engine(wasm_jit::Error::host(error.to_string()))
}

/// The probes of a function.
fn specs(function: &FunctionInfo<'_>, callback: &Callback) -> Vec<ProbeSpec> {
    let Some(body) = function.body() else { return Vec::new() };
    let start = body.range().start;
    let mut specs = Vec::new();
    for instruction in body.instructions() {
        let place = Place::Instruction { offset: (instruction.offset() - start) as u32 };
        let location = Location { function: function.index(), place };
        for access in accesses(instruction.operator()) {
            let is_read = access.kind != AccessKind::Store;
            let what = u64::from(access.memory) << 1 | u64::from(is_read);
            let values = [Bound::Const(what), access.address, access.size];
            let kind = Kind::Callback { function: callback.clone(), values: values.into() };
            specs.push(ProbeSpec { location, kind });
        }
    }
    specs
}

/// Makes those that can be reached, and activates them.
fn make(module: &Module, specs: &[ProbeSpec]) -> Result<Vec<Probe>, ProbeError> {
    let made = module.probes(specs).into_iter();
    let reached = made.filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. })));
    let probes: Vec<Probe> = reached.collect::<Result<_, _>>()?;
    activate_all(&probes).into_iter().collect::<Result<(), _>>()?;
    Ok(probes)
}
