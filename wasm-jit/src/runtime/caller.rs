//! [`Caller`], which gives a host function access to the store, and host functions whose types are
//! known at run time.

use std::ptr::NonNull;
use std::sync::Arc;

use super::collect;
use super::externs::Extern;
use super::func::Func;
use super::host::{HostCall, HostFunc};
use super::instance::{Instance, InstanceData};
use super::store::{AsContext, AsContextMut, StoreContext, StoreContextMut, StoreInner};
use super::value::{Val, read_words, write_words};
use crate::engine::Engine;
use crate::error::Error;
use crate::trap;
use crate::types::{FuncType, ValType};

/// The context of a call to a host function: the store, and the calling instance with its exports.
#[derive(Debug)]
pub struct Caller<'a, T: 'static> {
    store: StoreContextMut<'a, T>,
    instance: Option<NonNull<InstanceData>>,
}

impl<'a, T: 'static> Caller<'a, T> {
    /// # Safety
    /// The store of the call has data of type `T`, and is lent to the host function for `'a`.
    pub(crate) unsafe fn new(call: HostCall) -> Self {
        let store: *mut StoreInner<T> = call.store.cast();
        // SAFETY: the caller's obligation.
        Self { store: StoreContextMut::new(unsafe { &mut *store }), instance: call.caller }
    }

    /// The export of this name of the calling instance; `None` if there is none, or if the host is
    /// the caller.
    pub fn get_export(&mut self, name: &str) -> Option<Extern> {
        // SAFETY: instances live as long as their store, which is borrowed: nothing that could
        // change this one runs at the same time.
        let instance = unsafe { self.instance?.as_ref() };
        let item = instance.module.export(name)?;
        Some(instance.item(&self.store.as_context().0.opaque, item))
    }

    /// The calling instance; `None` if the host is the caller.
    pub fn instance(&self) -> Option<Instance> {
        let instance = self.instance?;
        Some(Instance::of(&self.store.as_context().0.opaque, instance))
    }

    /// Calls a function with the calling instance as its caller. A host function that wraps another
    /// one uses this, so that the inner one finds the same exports. For a WebAssembly function this
    /// is the same as [`Func::call`].
    ///
    /// # Errors
    /// As for [`Func::call`].
    ///
    /// # Panics
    /// If the function belongs to another store, and when a host function panics.
    pub fn forward(&mut self, func: &Func, params: &[Val], results: &mut [Val]) -> Result<(), Error> {
        func.call_from(self.store.inner_mut(), self.instance, params, results)
    }

    /// Whether the program is being stopped: the call that runs it returns
    /// [`Trap::Interrupt`](crate::Trap::Interrupt), whatever this host function returns. A host
    /// function that waits in a system call checks this when the call fails with `EINTR`.
    pub fn is_interrupted(&self) -> bool {
        let execution = self.store.as_context().0.opaque.execution();
        // SAFETY: the store's state, on the thread that runs it.
        unsafe { trap::is_requested(execution) }
    }

    /// The embedder's data in the store.
    pub fn data(&self) -> &T {
        self.store.data()
    }

    /// The embedder's data in the store, mutable.
    pub fn data_mut(&mut self) -> &mut T {
        self.store.data_mut()
    }

    /// The engine that the store was created with.
    pub fn engine(&self) -> &Engine {
        self.store.engine()
    }
}

impl<T: 'static> AsContext for Caller<'_, T> {
    type Data = T;

    fn as_context(&self) -> StoreContext<'_, T> {
        self.store.as_context()
    }
}

impl<T: 'static> AsContextMut for Caller<'_, T> {
    fn as_context_mut(&mut self) -> StoreContextMut<'_, T> {
        self.store.as_context_mut()
    }
}

impl HostFunc {
    /// A closure that takes and returns values of any types.
    pub(crate) fn untyped<T: 'static>(
        ty: FuncType,
        closure: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        let (params, results): (Vec<ValType>, Vec<ValType>) = (ty.params().collect(), ty.results().collect());
        let wrapped = move |call: HostCall, values: *mut u64| {
            // SAFETY: the store has data of this type, and is lent to this call.
            let mut caller = unsafe { Caller::<T>::new(call) };
            let store = &mut caller.as_context_mut().into_inner().opaque;
            let mut at = values;
            let mut argument = |ty: &ValType| {
                // SAFETY: there is a value of its type for each parameter.
                let raw = unsafe { read_words(*ty, at) };
                at = at.wrapping_add(ty.words());
                store.lift(*ty, raw)
            };
            let arguments: Vec<Val> = params.iter().map(&mut argument).collect();
            let mut out: Vec<Val> = results.iter().map(|ty| Val::default_for_ty(*ty)).collect();
            closure(caller, &arguments, &mut out)?;
            // SAFETY: as above; the closure has returned its borrow.
            let mut caller = unsafe { Caller::<T>::new(call) };
            let store = &mut caller.as_context_mut().into_inner().opaque;
            collect::if_due(store, collect::From::Host, &[]);
            let mut at = values;
            for (ty, value) in results.iter().zip(&out) {
                // SAFETY: there is room for a value for each result.
                unsafe { write_words(*ty, store.lower(*ty, value)?, at) };
                at = at.wrapping_add(ty.words());
            }
            Ok(())
        };
        Self { ty, closure: Arc::new(wrapped) }
    }
}
