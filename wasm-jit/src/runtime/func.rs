//! [`Func`]: WebAssembly functions and host functions, called with values whose types are known at
//! run time.

use std::ptr::NonNull;

use super::activation;
use super::caller::Caller;
use super::collect;
use super::host::HostFunc;
use super::instance::InstanceData;
use super::redirect;
use super::store::{AsContext, AsContextMut, StoreInner, StoreOpaque};
use super::typed::{IntoFunc, TypedFunc, WasmParams, WasmResults};
use super::value::{Val, read_words};
use crate::error::{Error, Mismatch};
use crate::store_id::StoreId;
use crate::types::FuncType;
use crate::vmctx::VmFuncRef;

/// A handle of a WebAssembly function or a host function. It must be used with the store that it
/// belongs to; otherwise its methods panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Func {
    store: StoreId,
    vm: NonNull<VmFuncRef>,
}

// SAFETY: the address is used only while the store is borrowed, after its id was compared.
unsafe impl Send for Func {}
// SAFETY: as above.
unsafe impl Sync for Func {}

/// Identifies a function within its store: the ids of all references to it are equal, including
/// those of instances that import it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FuncId {
    context: usize,
    index: u64,
}

impl Func {
    /// A host function of any type. The closure gets the arguments, and a slice of zeros or nulls
    /// that it replaces by the results.
    ///
    /// # Errors
    /// [`Error::Code`] if there is no memory for its trampoline; [`Error::InvalidType`] for more
    /// than 1000 parameters or results, or one that refers to a type that the engine does not know,
    /// or that is of another kind.
    pub fn new<T: 'static>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        closure: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let store = &mut store.as_context_mut().into_inner().opaque;
        HostFunc::untyped(ty, closure).insert(store)
    }

    /// A host function whose type is that of the closure: with or without a [`Caller`], then up to
    /// 16 parameters; its result is one or several values, or a `Result` of that.
    ///
    /// # Errors
    /// As for [`Func::new`].
    pub fn wrap<T: 'static, P, R>(
        mut store: impl AsContextMut<Data = T>,
        closure: impl IntoFunc<T, P, R>,
    ) -> Result<Self, Error> {
        closure.into_host_func().insert(&mut store.as_context_mut().into_inner().opaque)
    }

    /// The function's type.
    pub fn ty(&self, store: impl AsContext) -> FuncType {
        self.type_in(&store.as_context().0.opaque)
    }

    /// Whether the function is a host function.
    pub fn is_host(&self, store: impl AsContext) -> bool {
        self.is_host_in(&store.as_context().0.opaque)
    }

    /// Whether the function's type is `ty`. A type that was declared as a subtype, or in a
    /// recursion group with others, differs from one that has the same parameters and results.
    pub fn is_of_type(&self, store: impl AsContext, ty: &FuncType) -> bool {
        let store = &store.as_context().0.opaque;
        let known = store.engine.register_type(ty, "function");
        known.is_ok_and(|known| known.get() == self.type_id(store))
    }

    /// The function's identity within its store.
    pub fn id(&self, store: impl AsContext) -> FuncId {
        let VmFuncRef { context, index, .. } = self.direct(&store.as_context().0.opaque);
        FuncId { context: context.addr(), index }
    }

    /// Calls the function. `results` are overwritten; their number must be that of the function's
    /// results.
    ///
    /// # Errors
    /// [`Error::ValueCount`], [`Error::ValueType`] and [`Error::WrongStore`] concern the arguments;
    /// any other error is the reason why the program stopped.
    ///
    /// # Panics
    /// If a host function panics.
    pub fn call(
        &self,
        mut store: impl AsContextMut,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<(), Error> {
        self.call_from(store.as_context_mut().into_inner(), None, params, results)
    }

    /// As [`Func::call`]; a host function gets this instance of the store as its caller.
    pub(crate) fn call_from<T: 'static>(
        &self,
        store: &mut StoreInner<T>,
        caller: Option<NonNull<InstanceData>>,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<(), Error> {
        let ty = self.type_in(&store.opaque);
        if results.len() != ty.results().len() {
            let (expected, found) = (ty.results().len(), results.len());
            return Err(Error::ValueCount { what: "results", expected, found });
        }
        collect::if_due(&mut store.opaque, collect::From::Host, &[]);
        let words = ty.value_words();
        let mut values = Vec::with_capacity(words);
        store.opaque.lower_all("arguments", params, ty.params(), &mut values)?;
        values.resize(words, 0);
        // SAFETY: the arguments are of the function's types, and there is room for the results.
        unsafe { activation::invoke_from(store, *self, caller, values.as_mut_ptr()) }?;
        let mut words = values.as_slice();
        for (result, ty) in results.iter_mut().zip(ty.results()) {
            // SAFETY: the function has written all of its results.
            *result = store.opaque.lift(ty, unsafe { read_words(ty, words.as_ptr()) });
            words = &words[ty.words()..];
        }
        Ok(())
    }

    /// The same function, with arguments and results of Rust types. The results of the function may
    /// be of subtypes: an `Option<Func>` is any reference to a function.
    ///
    /// # Errors
    /// [`Error::FuncType`] if the function has another type.
    pub fn typed<P: WasmParams, R: WasmResults>(
        &self,
        store: impl AsContext,
    ) -> Result<TypedFunc<P, R>, Error> {
        let store = &store.as_context().0.opaque;
        let found = self.type_in(store);
        let expected = FuncType::new(P::types(), R::types());
        match store.engine.can_call(&expected, &found) {
            true => Ok(TypedFunc::new(*self)),
            false => Err(Error::FuncType(Box::new(Mismatch { expected, found }))),
        }
    }

    /// Calls the function with lowered arguments, which are replaced by the results.
    ///
    /// # Safety
    /// There are as many values as `value_words` of the type says, and they are arguments of its
    /// types, lowered by this store.
    #[track_caller]
    pub(crate) unsafe fn call_raw<T: 'static>(
        &self,
        store: &mut StoreInner<T>,
        values: *mut u64,
    ) -> Result<(), Error> {
        store.opaque.check(self.store);
        // SAFETY: the caller's obligation, and the function belongs to this store.
        unsafe { activation::invoke(store, *self, values) }
    }

    /// The function of a store at this address.
    pub(crate) fn at(store: &StoreOpaque, vm: NonNull<VmFuncRef>) -> Self {
        Self { store: store.id, vm }
    }

    pub(crate) fn vm(&self) -> *const VmFuncRef {
        self.vm.as_ptr()
    }

    #[track_caller]
    pub(crate) fn is_host_in(&self, store: &StoreOpaque) -> bool {
        let context = self.direct(store).context;
        // SAFETY: contexts live as long as their store, and this does not change.
        unsafe { (*context).is_host != 0 }
    }

    /// The function that is called when calls between instances are not observed.
    #[track_caller]
    pub(crate) fn direct(&self, store: &StoreOpaque) -> VmFuncRef {
        store.check(self.store);
        // SAFETY: functions live as long as their store, which is borrowed.
        unsafe { redirect::direct(self.vm()) }
    }

    #[track_caller]
    pub(crate) fn type_id(&self, store: &StoreOpaque) -> u32 {
        store.check(self.store);
        // SAFETY: functions live as long as their store, and do not change.
        let ty = unsafe { self.vm.as_ref() }.ty;
        // SAFETY: its owner keeps the type in use.
        unsafe { (*ty).id }
    }

    #[track_caller]
    pub(crate) fn type_in(&self, store: &StoreOpaque) -> FuncType {
        store.engine.registered_type(self.type_id(store))
    }

    pub(crate) fn belongs_to(&self, store: &StoreOpaque) -> bool {
        self.store == store.id
    }

    /// The lowered value, if the function belongs to this store.
    pub(crate) fn lower(&self, store: &StoreOpaque) -> Result<u64, Error> {
        match self.belongs_to(store) {
            true => Ok(self.vm.as_ptr().expose_provenance() as u64),
            false => Err(Error::WrongStore { what: "function" }),
        }
    }
}
