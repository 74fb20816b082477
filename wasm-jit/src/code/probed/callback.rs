//! Closures that probes call.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wasm_jit_codegen::{Only, Value};

use crate::types::ValType;

/// A closure that probes call.
///
/// The thread that executes a probe's place calls it in the middle of the program, with no lock of
/// the engine held. It may make, activate, deactivate and drop probes, including the one that
/// fires: the probes of this event stay as they were when it began. It may run other stores. An
/// [interrupt](crate::Store::interrupt_handle) of the store takes effect after it has returned. It
/// may use 128 KiB of the stack.
///
/// If it panics, the program ends as by a panic of a host function: the panic continues in the call
/// that runs the program.
///
/// The closure may be kept after the probe is dropped, since another thread may be about to call
/// it: until memory for other probes of the module is needed and no thread can call it any more, or
/// until the code of the module is freed. It must therefore not own anything that keeps that code
/// alive: the module, a probe of it, or a store. It is dropped by a thread that makes or switches
/// probes of the module, and its destructor must not do so itself.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use wasm_jit::probes::{Bound, Callback, Kind, Location, Place, ProbeSpec};
/// use wasm_jit::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func (export \"square\") (param i32) (result i32)
///     (i32.mul (local.get 0) (local.get 0))))")?;
/// let sum = Arc::new(AtomicU64::new(0));
/// let of_probe = sum.clone();
/// let function = Callback::new(move |values| {
///     of_probe.fetch_add(values[0], Ordering::Relaxed);
/// });
/// let probe = module.probe(ProbeSpec {
///     location: Location { function: 0, place: Place::Exit },
///     kind: Kind::Callback { function, values: [Bound::Result(0)].into() },
/// })?;
/// probe.activate()?;
/// let mut store = Store::new(&engine, ());
/// let square = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, i32>(&mut store, "square")?;
/// square.call(&mut store, 3)?;
/// square.call(&mut store, 4)?;
/// assert_eq!(sum.load(Ordering::Relaxed), 9 + 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Callback {
    function: Arc<Function>,
    types: Option<Arc<[ValType]>>,
}

type Function = dyn Fn(&[u64]) + Send + Sync;

impl Callback {
    /// Makes a closure that gets the values of the probe in order.
    pub fn new(function: impl Fn(&[u64]) + Send + Sync + 'static) -> Self {
        Self { function: Arc::new(function), types: None }
    }

    /// Makes a closure that gets values of these types only: a probe must have the same number of
    /// values, and a local or operand of another type is refused as for a [WebAssembly
    /// function](crate::probes::WasmFn).
    pub fn with_types(
        types: impl Into<Arc<[ValType]>>,
        function: impl Fn(&[u64]) + Send + Sync + 'static,
    ) -> Self {
        Self { function: Arc::new(function), types: Some(types.into()) }
    }

    pub(crate) fn types(&self) -> Option<&[ValType]> {
        self.types.as_deref()
    }

    pub(crate) fn call(&self, values: &[u64]) {
        (self.function)(values);
    }

    /// Identifies the closure.
    fn address(&self) -> *const () {
        Arc::as_ptr(&self.function).cast()
    }
}

/// Compares identities: clones of one closure are equal.
impl PartialEq for Callback {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Callback {}

impl Hash for Callback {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Callback").field(&self.address()).finish()
    }
}

/// How an instruction names the function that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalledBy {
    /// By an index in the table of this number.
    Table(u32),
    /// By a reference.
    Reference,
}

/// A closure that a probe calls, with its values. Stubs refer to it, so the lists of a site keep it
/// alive.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallBack {
    /// The address of the routine that stubs call.
    pub routine: usize,
    pub callback: Callback,
    pub values: Box<[Value]>,
    /// The numbers of values that are table indices, with their tables: the closure gets the
    /// function there.
    pub callees: Box<[(usize, CalledBy)]>,
    /// The instances in which it is called, if not in all.
    pub only: Option<Only>,
}
