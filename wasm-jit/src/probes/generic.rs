//! Generic probes: probes that call closures with access to the complete frame.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use wasm_jit_codegen::SiteFrame;

use super::frame::Frame;
use crate::code::probed::{Generic, RequestedKind};
use crate::error::Error;
use crate::runtime::host::conclude;
use crate::runtime::instance::InstanceData;
use crate::runtime::store::{StoreArea, StoreOpaque};
use crate::vmctx::VmContext;

type Closure = dyn Fn(&mut Frame<'_>) -> Result<(), Error> + Send + Sync;

/// A closure that probes call with the frame that is about to execute their place.
///
/// The thread that executes the place calls it, as it would call a host function: the closure may
/// use the store, call functions of its instances (whose probes fire), fail, or panic. An error or
/// panic ends the program's call, as that of a host function does; no handler of the program
/// receives an exception that is returned as an error. The closure may make and change probes,
/// including its own.
///
/// The closure may be kept after the probe is dropped, since another thread may be about to call
/// it: until [memory](super#memory) for other probes of the module is needed and no thread can call
/// it any more, or until the code of the module is freed. A closure that owns a
/// [`Probe`](super::Probe) or a [`Module`](crate::Module) of the same code may therefore keep the
/// code and itself alive. It is dropped by a thread that makes or switches probes of the module,
/// and its destructor must not make or switch any.
///
/// # Example
/// ```
/// use std::sync::atomic::{AtomicI32, Ordering};
/// use std::sync::Arc;
/// use wasm_jit::probes::{GenericFn, Kind, Location, Place, ProbeSpec};
/// use wasm_jit::{Engine, Instance, Module, Store, Val};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, "(module (func $count (export \"count\") (param i32)
///     (if (local.get 0) (then (call $count (i32.sub (local.get 0) (i32.const 1)))))))")?;
/// let deepest = Arc::new(AtomicI32::new(0));
/// let seen = deepest.clone();
/// let probe = module.probe(ProbeSpec {
///     location: Location { function: 0, place: Place::Entry },
///     kind: Kind::Generic(GenericFn::new(move |frame| {
///         if frame.local(0)?.unwrap_i32() == 0 {
///             seen.store(frame.depth() as i32, Ordering::Relaxed);
///         }
///         Ok(())
///     })),
/// })?;
/// probe.activate()?;
/// let mut store = Store::new(&engine, ());
/// let count = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "count")?;
/// count.call(&mut store, 7)?;
/// assert_eq!(deepest.load(Ordering::Relaxed), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GenericFn {
    closure: Arc<Closure>,
    /// The fuel above which the closure is not called.
    threshold: Option<Arc<FuelThreshold>>,
}

/// An amount of fuel above which [closures](GenericFn::below_fuel) of probes are not called.
///
/// It may be changed at any time. A thread of the program sees the change as it sees any other
/// relaxed store.
#[derive(Debug)]
pub struct FuelThreshold(AtomicI64);

impl FuelThreshold {
    /// A threshold of this amount of fuel.
    pub fn new(fuel: u64) -> Self {
        Self(AtomicI64::new(counted(fuel)))
    }

    /// Changes the threshold to this amount of fuel.
    pub fn set(&self, fuel: u64) {
        self.0.store(counted(fuel), Ordering::Relaxed);
    }
}

/// A threshold with which closures are always called.
impl Default for FuelThreshold {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

/// The amount as compiled code counts it.
fn counted(fuel: u64) -> i64 {
    i64::try_from(fuel).unwrap_or(i64::MAX)
}

impl GenericFn {
    /// Makes a closure that is called at each event.
    pub fn new(closure: impl Fn(&mut Frame<'_>) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        Self { closure: Arc::new(closure), threshold: None }
    }

    /// Makes a closure that is called only while the store has at most this much
    /// [fuel](crate::Store::set_fuel), or always if [no fuel is
    /// consumed](crate::Config::consume_fuel). The comparison in the probe's stub takes a
    /// nanosecond or two, instead of tens for the closure. When a run is repeated, a place can thus
    /// be observed from a given moment on, however often control reaches it before.
    ///
    /// Amounts above [`i64::MAX`] are not distinguished: a store with more fuel counts as one with
    /// this much.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use wasm_jit::probes::{FuelThreshold, GenericFn, Kind, Location, Place, ProbeSpec};
    /// use wasm_jit::{Config, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::new(Config::new().consume_fuel(true))?;
    /// let module = Module::new(&engine, "(module (func $step)
    ///     (func (export \"run\") (call $step) (call $step) (call $step)))")?;
    /// let calls = Arc::new(AtomicU32::new(0));
    /// let count = calls.clone();
    /// // Each call costs two units: one in the caller, one at the entry.
    /// let closure = GenericFn::below_fuel(Arc::new(FuelThreshold::new(95)), move |_| {
    ///     count.fetch_add(1, Ordering::Relaxed);
    ///     Ok(())
    /// });
    /// let location = Location { function: 0, place: Place::Entry };
    /// let probe = module.probe(ProbeSpec { location, kind: Kind::Generic(closure) })?;
    /// probe.activate()?;
    /// let mut store = Store::new(&engine, ());
    /// store.set_fuel(100)?;
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(calls.load(Ordering::Relaxed), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn below_fuel(
        threshold: Arc<FuelThreshold>,
        closure: impl Fn(&mut Frame<'_>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        Self { closure: Arc::new(closure), threshold: Some(threshold) }
    }
}

/// Compares identities: clones of one closure are equal.
impl PartialEq for GenericFn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.closure, &other.closure)
    }
}

impl Eq for GenericFn {}

impl Hash for GenericFn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.closure).hash(state);
    }
}

impl fmt::Debug for GenericFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenericFn").finish_non_exhaustive()
    }
}

impl GenericFn {
    /// The request for a probe that calls it.
    pub(super) fn request(&self) -> RequestedKind {
        let fire: unsafe extern "sysv64" fn(*const Generic, *mut SiteFrame) -> u64 = fire;
        // What is kept with the closure keeps the threshold.
        let address = |threshold: &Arc<FuelThreshold>| threshold.0.as_ptr().expose_provenance();
        let fuel = self.threshold.as_ref().map(address);
        RequestedKind::Generic { fire: fire as *const () as usize, fuel, closure: Arc::new(self.clone()) }
    }
}

/// The function that stubs call. Returns 1 if the activation is to be left, 2 if the frame
/// continues in the plain version.
///
/// # Safety
/// The description outlives the call. The thread is in the stub of its place, which has saved the
/// state there, and left the activation.
unsafe extern "sysv64" fn fire(description: *const Generic, site: *mut SiteFrame) -> u64 {
    // SAFETY: the caller's obligation.
    let (generic, context) = unsafe {
        let context = std::ptr::with_exposed_provenance_mut::<VmContext>((*site).context);
        (&*description, context)
    };
    // SAFETY: the context of a running instance; `invoke` has set the store.
    let (store, instance) = unsafe {
        let area: *mut StoreArea = (*context).store.cast();
        ((*area).store, NonNull::new_unchecked((*context).owner.cast::<InstanceData>()))
    };
    let GenericFn { closure, .. } = generic.closure.downcast_ref().expect("`request` made it");
    // SAFETY: the caller's obligation.
    let mut frame = unsafe { Frame::new(store, instance, generic, site) };
    // As for host functions: a panic is resumed where the activation was entered.
    let outcome = catch_unwind(AssertUnwindSafe(|| closure(&mut frame)));
    let is_plain = frame.finish();
    // Exceptions are errors like others: the program's handlers do not see them.
    // SAFETY: the closure has returned its borrow of the store, which the thread runs.
    match unsafe { conclude(&mut *store, outcome, StoreOpaque::fail) } {
        0 if is_plain => 2,
        answer => answer,
    }
}
