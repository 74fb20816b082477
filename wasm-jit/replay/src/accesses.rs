//! Probes of a program's accesses to its memories, and of other instructions, for running the
//! program once more.
//!
//! The probes of a function are made when it is first called: the probes of all functions of a
//! large program would exceed the memory that an engine has for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasm_jit::probes::{
    Bound, Callback, FirstCallWatch, Kind, Location, Place, Probe, ProbeError, ProbeSpec, activate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{FunctionInfo, Module};
use wasm_jit_hooks::{AccessKind, CallForm, accesses};

use super::error::{Error, unsupported};

/// An access that is about to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Whether the access reads bytes; it may also write them.
    pub(crate) is_read: bool,
    /// The memory's index.
    pub(crate) memory: u32,
    /// The address of the first byte.
    pub(crate) address: u64,
    /// The number of bytes.
    pub(crate) size: u64,
}

/// A closure for the probes of [`specs`].
pub(crate) fn callback(closure: impl Fn(Access) + Send + Sync + 'static) -> Callback {
    Callback::new(move |values| {
        if let [what, address, size] = *values {
            closure(Access { is_read: what & 1 != 0, memory: (what >> 1) as u32, address, size });
        }
    })
}

/// Probes that call a [`callback`] before the chosen accesses of a function.
pub(crate) fn specs(
    function: &FunctionInfo<'_>,
    callback: &Callback,
    is_wanted: impl Fn(AccessKind) -> bool,
) -> Vec<ProbeSpec> {
    let mut specs = Vec::new();
    for (place, operator) in instructions(function) {
        for access in accesses(&operator).into_iter().filter(|access| is_wanted(access.kind)) {
            let is_read = access.kind != AccessKind::Store;
            let what = u64::from(access.memory) << 1 | u64::from(is_read);
            let values = [Bound::Const(what), access.address, access.size];
            let kind = Kind::Callback { function: callback.clone(), values: values.into() };
            specs.push(ProbeSpec { location: Location { function: function.index(), place }, kind });
        }
    }
    specs
}

/// The instructions of a function, with their locations.
pub(crate) fn instructions<'a>(
    function: &FunctionInfo<'a>,
) -> impl Iterator<Item = (Place, Operator<'a>)> + use<'a> {
    function.body().into_iter().flat_map(|body| {
        let start = body.range().start;
        body.instructions().map(move |instruction| {
            let place = Place::Instruction { offset: (instruction.offset() - start) as u32 };
            (place, instruction.operator().clone())
        })
    })
}

/// The name of a function in messages.
pub(crate) fn name(module: &Module, function: u32) -> String {
    module.symbols().function(function)
}

/// The function with this index, whose calls must have a beginning and an end that probes see.
///
/// # Errors
/// [`Error::Unsupported`] if it is imported, does not exist, or ends in tail calls.
pub(crate) fn delimited(module: &Module, function: u32) -> Result<FunctionInfo<'_>, Error> {
    let found = module.function(function).filter(|function| function.body().is_some());
    let found =
        found.ok_or_else(|| unsupported(format!("`{}`, which has no code", name(module, function))))?;
    if instructions(&found).any(|(_, operator)| CallForm::is_tail_call(&operator)) {
        return Err(unsupported(format!("`{}`, which ends in tail calls", name(module, function))));
    }
    Ok(found)
}

/// The probes of all functions that are called during its lifetime.
pub(crate) struct Probed {
    _watch: FirstCallWatch,
    probes: Arc<Mutex<Probes>>,
}

#[derive(Default)]
struct Probes {
    probes: Vec<Probe>,
    /// The error, if the probes of a function could not be made.
    failed: Option<ProbeError>,
}

impl Probed {
    /// Makes the probes of each function when it is first called by an instance of the module,
    /// which does not exist yet.
    pub(crate) fn new(
        module: &Module,
        specs: impl Fn(&FunctionInfo<'_>) -> Vec<ProbeSpec> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let made = Arc::new(Mutex::new(Probes::default()));
        let (observed, to) = (module.clone(), made.clone());
        let called = move |index| {
            let specs = observed.function(index).map(|function| specs(&function)).unwrap_or_default();
            let result = make(&observed, &specs);
            let mut made = lock(&to);
            match result {
                Ok(probes) => made.probes.extend(probes),
                Err(error) => _ = made.failed.get_or_insert(error),
            }
        };
        let watch = module.watch_first_calls(called).map_err(refused)?;
        Ok(Self { _watch: watch, probes: made })
    }

    /// Checks that all functions called so far have their probes.
    ///
    /// # Errors
    /// The reason why a function has none.
    pub(crate) fn is_complete(&self) -> Result<(), Error> {
        lock(&self.probes).failed.take().map_or(Ok(()), |error| Err(refused(error)))
    }
}

fn lock(probes: &Mutex<Probes>) -> MutexGuard<'_, Probes> {
    probes.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn refused(error: ProbeError) -> Error {
    Error::Engine(wasm_jit::Error::host(error.to_string()))
}

/// Makes the probes at locations that can be reached, and activates them.
pub(crate) fn make(module: &Module, specs: &[ProbeSpec]) -> Result<Vec<Probe>, ProbeError> {
    let made = module.probes(specs).into_iter();
    let reached = made.filter(|probe| !matches!(probe, Err(ProbeError::Unreachable { .. })));
    let probes: Vec<Probe> = reached.collect::<Result<_, _>>()?;
    activate_all(&probes).into_iter().collect::<Result<(), _>>()?;
    Ok(probes)
}
