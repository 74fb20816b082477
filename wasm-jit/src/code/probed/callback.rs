//! Closures that probes call.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use wasm_jit_codegen::{Only, Value};

use super::counters::InstanceId;
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
    /// Whether the closure gets the callee of an indirect call.
    takes_callee: bool,
}

type Function = dyn Fn(&[u64], Option<&Called<'_>>) + Send + Sync;

impl Callback {
    /// Makes a closure that gets the values of the probe in order.
    pub fn new(function: impl Fn(&[u64]) + Send + Sync + 'static) -> Self {
        let function = Arc::new(move |values: &[u64], _: Option<&Called<'_>>| function(values));
        Self { function, types: None, takes_callee: false }
    }

    /// Makes a closure for indirect calls (`call_indirect`, `call_ref`, and their tail calls),
    /// which also gets the function that is about to be called. A probe at another instruction is
    /// refused.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use wasm_jit::probes::{Callback, Kind, Location, Place, ProbeSpec};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// let module = Module::new(&Engine::default(), "(module
    ///     (table funcref (elem $f $g)) (func $f) (func $g (param i64))
    ///     (func (export \"run\") (param i32) (call_indirect (local.get 0))))")?;
    /// let seen: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
    /// let of_probe = seen.clone();
    /// let function = Callback::with_callee(move |_, called| {
    ///     of_probe.lock().unwrap().push((called.index(), called.is_called()));
    /// });
    /// let spec = |offset| ProbeSpec {
    ///     location: Location { function: 2, place: Place::Instruction { offset } },
    ///     kind: Kind::Callback { function: function.clone(), values: [].into() },
    /// };
    /// assert!(module.probe(spec(1)).is_err(), "local.get calls nothing");
    /// let probe = module.probe(spec(3))?;
    /// probe.activate()?;
    /// for index in 0..2 {
    ///     let mut store = Store::new(module.engine(), ());
    ///     let instance = Instance::new(&mut store, &module, &[])?;
    ///     let run = instance.get_typed_func::<i32, ()>(&mut store, "run")?;
    ///     assert_eq!(run.call(&mut store, index).is_err(), index == 1);
    /// }
    /// assert_eq!(*seen.lock().unwrap(), [(0, true), (1, false)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_callee(function: impl Fn(&[u64], &Called<'_>) + Send + Sync + 'static) -> Self {
        let function = Arc::new(move |values: &[u64], called: Option<&Called<'_>>| {
            function(values, called.expect("the routine that calls the closure knows the callee"));
        });
        Self { function, types: None, takes_callee: true }
    }

    /// Makes a closure that gets values of these types only: a probe must have the same number of
    /// values, and a local or operand of another type is refused as for a [WebAssembly
    /// function](crate::probes::WasmFn).
    pub fn with_types(
        types: impl Into<Arc<[ValType]>>,
        function: impl Fn(&[u64]) + Send + Sync + 'static,
    ) -> Self {
        let function = Arc::new(move |values: &[u64], _: Option<&Called<'_>>| function(values));
        Self { function, types: Some(types.into()), takes_callee: false }
    }

    pub(crate) fn takes_callee(&self) -> bool {
        self.takes_callee
    }

    pub(crate) fn types(&self) -> Option<&[ValType]> {
        self.types.as_deref()
    }

    pub(crate) fn call(&self, values: &[u64], called: Option<&Called<'_>>) {
        (self.function)(values, called);
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

/// The function that an indirect call is about to call, for a closure of
/// [`Callback::with_callee`].
pub struct Called<'a>(pub(crate) &'a dyn ResolveCallee);

/// What the runtime knows of the function that is about to be called.
pub(crate) trait ResolveCallee {
    fn index(&self) -> u64;
    fn is_called(&self) -> bool;
    fn definition(&self) -> Option<(InstanceId, u32)>;
    fn is_of_module(&self) -> bool;
    fn names(&self) -> Option<(Option<String>, String)>;
}

impl Called<'_> {
    /// The function's index in the module of the running instance, as for
    /// [`Bound::Callee`](crate::probes::Bound::Callee).
    pub fn index(&self) -> u64 {
        self.0.index()
    }

    /// Whether the function will be called: `false` if the call traps, because there is no function
    /// or it has another type.
    pub fn is_called(&self) -> bool {
        self.0.is_called()
    }

    /// The instance that defines the function, and the function's index in that instance's module;
    /// `None` for a function of the host, or if there is none.
    pub fn definition(&self) -> Option<(InstanceId, u32)> {
        self.0.definition()
    }

    /// Whether the function is defined by the module of the running instance, in this or another
    /// instance.
    pub fn is_of_module(&self) -> bool {
        self.0.is_of_module()
    }

    /// The name of the module that defines the function, if it has one, and the function's name
    /// there, as by [`FunctionInfo::unescaped_display_name`](crate::FunctionInfo). `None` if
    /// there is no [definition](Self::definition).
    pub fn names(&self) -> Option<(Option<String>, String)> {
        self.0.names()
    }
}

impl fmt::Debug for Called<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Called").field(&self.index()).finish()
    }
}

/// How an instruction names the function that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalleeSource {
    /// By an index in a table. The function must have the type of this index.
    Table { table: u32, ty: u32 },
    /// By a reference.
    Reference,
}

/// A closure that a probe calls, with its values. Stubs refer to it, so the lists of a site keep it
/// alive.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct BoundCallback {
    /// The address of the routine that stubs call.
    pub routine: usize,
    pub callback: Callback,
    pub values: Box<[Value]>,
    /// The numbers of values that are table indices, with their tables: the closure gets the
    /// function there.
    pub callees: Box<[(usize, CalleeSource)]>,
    /// For a closure that gets the callee: the last value, which it does not get, stands for it.
    pub called: Option<CalleeSource>,
    /// The instances in which it is called, if not in all.
    pub only: Option<Only>,
}
