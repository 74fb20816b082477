//! Host values that are attached to objects: their finalizers, and when these run.
//!
//! A finalizer is a host function that may call this library. The engine frees values while it
//! works on a store, when nothing else may use the store. Finalizers that become due then wait
//! until the engine has returned.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::{fmt, ptr};

/// A finalizer, which is called with its host value.
pub(crate) type Finalizer = unsafe extern "C" fn(*mut c_void);

/// A host value, with its finalizer.
#[derive(Debug)]
struct HostValue {
    value: *mut c_void,
    finalizer: Option<Finalizer>,
}

impl HostValue {
    fn finalize(self) {
        if let Some(finalizer) = self.finalizer {
            // SAFETY: the host has passed the two for this call, which happens once.
            unsafe { finalizer(self.value) };
        }
    }
}

/// A host value whose finalizer runs when this is dropped.
#[derive(Debug)]
pub(crate) struct Finalized(HostValue);

impl Finalized {
    pub(crate) fn new(value: *mut c_void, finalizer: Option<Finalizer>) -> Self {
        Self(HostValue { value, finalizer })
    }

    pub(crate) fn value(&self) -> *mut c_void {
        self.0.value
    }
}

impl Drop for Finalized {
    fn drop(&mut self) {
        let value = HostValue { value: self.0.value, finalizer: self.0.finalizer.take() };
        PENDING.with(|pending| pending.add(value));
    }
}

/// The host value of an object, if it has one.
#[derive(Default)]
pub(crate) struct HostInfo(Cell<Option<Finalized>>);

impl HostInfo {
    pub(crate) fn of(value: Finalized) -> Self {
        Self(Cell::new(Some(value)))
    }

    pub(crate) fn get(&self) -> *mut c_void {
        let value = self.0.take();
        let address = value.as_ref().map_or(ptr::null_mut(), Finalized::value);
        self.0.set(value);
        address
    }

    /// Replaces the value; the finalizer of the previous one runs.
    pub(crate) fn set(&self, value: Finalized) {
        drop(self.0.replace(Some(value)));
    }
}

impl fmt::Debug for HostInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostInfo").field(&self.get()).finish()
    }
}

/// The finalizers of a thread that wait for the engine to return.
struct Pending {
    engine_works: Cell<bool>,
    /// Empty whenever a function of this library has returned, so it needs no destructor; with one,
    /// C code could not delete objects at the end of its threads.
    due: ManuallyDrop<RefCell<Vec<HostValue>>>,
}

thread_local! {
    static PENDING: Pending = const {
        Pending { engine_works: Cell::new(false), due: ManuallyDrop::new(RefCell::new(Vec::new())) }
    };
}

impl Pending {
    fn add(&self, value: HostValue) {
        match self.engine_works.get() {
            true => self.due.borrow_mut().push(value),
            false => value.finalize(),
        }
    }

    /// Runs all finalizers; one may make others due.
    fn run(&self) {
        loop {
            let due = self.due.take();
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(HostValue::finalize);
        }
    }
}

/// Lets the engine work: finalizers run afterwards.
pub(crate) fn in_engine<R>(work: impl FnOnce() -> R) -> R {
    PENDING.with(|pending| {
        let outer = pending.engine_works.replace(true);
        let result = work();
        pending.engine_works.set(outer);
        if !outer {
            pending.run();
        }
        result
    })
}

/// Calls a host function, for which the engine waits: finalizers that become due run at once.
pub(crate) fn in_host<R>(call: impl FnOnce() -> R) -> R {
    PENDING.with(|pending| {
        let engine_works = pending.engine_works.replace(false);
        let result = call();
        pending.engine_works.set(engine_works);
        result
    })
}
