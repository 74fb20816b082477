//! Probes whose stubs handle the common cases themselves, instead of calling a native function.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use wasm_jit_codegen::{self as codegen, Callee};
pub use wasm_jit_codegen::{Operand, Quadword, Relation, Step, Temp};

use super::NativeFn;

/// A few steps that a probe's stub executes instead of calling the probe's native function
/// ([`Kind::Shortcut`](super::Kind::Shortcut)), unless one of the steps requests the call.
///
/// A call takes about ten instructions besides those of the function, which needs more to find the
/// state of its thread; a step is one or two instructions. Steps can use four registers, the values
/// that the function gets as arguments, and memory; the state of the running thread is found by a
/// [`ThreadWord`](super::ThreadWord). An [interrupt](crate::Store::interrupt_handle) may end the
/// program between any two steps that are not [together](Step::Together).
///
/// Where the code has too few free registers, the stub always calls the function. The function must
/// therefore do everything that the steps do.
///
/// Clones are the same shortcut.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use wasm_jit::probes::{
///     Kind, Location, NativeFn, Operand, Place, ProbeSpec, Quadword, Relation, Shortcut, Step, Temp,
/// };
/// use wasm_jit::{Engine, Instance, Module, Store};
///
/// // Counts down to 0, and then calls the function.
/// static CALLS: AtomicU64 = AtomicU64::new(0);
/// extern "C" fn at_zero() {
///     CALLS.fetch_add(1, Relaxed);
/// }
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func (export \"f\")))")?;
/// let left = Arc::new(AtomicU64::new(3));
/// let memory = Quadword { base: Temp::A, offset: 0 };
/// let steps = [
///     Step::SetConst(Temp::A, left.as_ptr().expose_provenance() as u64),
///     Step::CallIf(Operand::Memory(memory), Relation::Equal, Operand::Const(0)),
///     Step::SubtractFrom(memory, Operand::Const(1)),
/// ];
/// // SAFETY: the shortcut keeps the number, which only one thread uses; the function does not
/// // unwind, and is part of the program.
/// let (shortcut, function) = unsafe {
///     (Shortcut::new(steps, left.clone()).unwrap(), NativeFn::new(at_zero as extern "C" fn()))
/// };
/// let location = Location { function: 0, place: Place::Entry };
/// let probe =
///     module.probe(ProbeSpec { location, kind: Kind::Shortcut { shortcut, function, values: [].into() } })?;
/// probe.activate()?;
/// let mut store = Store::new(&engine, ());
/// let f = Instance::new(&mut store, &module, &[])?.get_typed_func::<(), ()>(&mut store, "f")?;
/// for _ in 0..5 {
///     f.call(&mut store, ())?;
/// }
/// assert_eq!((left.load(Relaxed), CALLS.load(Relaxed)), (0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shortcut(Arc<codegen::Shortcut>);

impl Shortcut {
    /// Makes a shortcut of these steps. It keeps the value `keeps`, to which addresses in the steps
    /// may refer, as long as the steps can be executed, as a [`Callback`](super::Callback) is kept.
    ///
    /// `None` if there is no instruction for a step. Only [`Step::Set`], [`Step::Add`],
    /// [`Step::Subtract`] and comparisons can read memory, and comparisons only for one operand. A
    /// constant can only be the second operand of a comparison, and cannot be compared with an
    /// argument.
    ///
    /// # Safety
    /// The caller must make sure that, for every probe with this shortcut:
    /// - any number of threads can execute the steps at any time until what the shortcut keeps is
    ///   dropped: the quadwords that they read and change are memory that exists then, and may be
    ///   accessed so by the thread that executes them;
    /// - none of it is memory of the store whose program runs, or of its instances.
    pub unsafe fn new(steps: impl Into<Box<[Step]>>, keeps: impl Any + Send + Sync) -> Option<Self> {
        Some(Self(Arc::new(codegen::Shortcut::new(steps.into(), Box::new(keeps))?)))
    }

    /// The function that the stub calls, with the steps that it may execute instead.
    pub(super) fn callee(&self, function: NativeFn) -> Callee {
        Callee::Shortcut { function: function.address(), shortcut: self.0.clone() }
    }
}

impl fmt::Debug for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
