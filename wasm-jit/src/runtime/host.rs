//! Host functions: Rust closures that WebAssembly calls.
//!
//! Compiled code calls a host function through its context and the host trampoline of its type,
//! which calls [`call_host`] with the arguments in memory. That function finds the store and the
//! closure, and catches panics, which must not unwind through compiled code: a failure or panic is
//! recorded in the store, and resumed where the activation was entered (`activation`).

use std::any::Any;
use std::fmt;
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use super::activation;
use super::func::Func;
use super::instance::InstanceData;
use super::store::{Failure, StoreArea, StoreOpaque};
use crate::code::CodeImage;
use crate::engine::TypeId;
use crate::error::Error;
use crate::trap::{self, Trap};
use crate::types::FuncType;
use crate::vmctx::{MAX_RESULTS, VmContext, VmFuncRef};

/// The store and the caller of a host function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    /// Derived from the borrow of the call to WebAssembly code; nothing else uses it until the host
    /// function returns.
    pub store: *mut StoreOpaque,
    /// The calling instance; `None` if the host is the caller.
    pub caller: Option<NonNull<InstanceData>>,
}

/// The wrapped closure: arguments are read from the values, eight or 16 bytes each, and results are
/// written there.
///
/// # Safety
/// The store has data of the type for which the closure was wrapped; there are as many
/// quadwords as `FuncType::value_words` says, and the values have the function's types.
pub(crate) type HostClosure = dyn Fn(HostCall, *mut u64) -> Result<(), Error> + Send + Sync;

/// A host function that does not belong to a store yet.
#[derive(Clone)]
pub struct HostFunc {
    pub(crate) ty: FuncType,
    pub(crate) closure: Arc<HostClosure>,
}

impl fmt::Debug for HostFunc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunc").field("ty", &self.ty).finish_non_exhaustive()
    }
}

/// A host function of a store.
#[repr(C)]
pub(crate) struct HostFuncData {
    context: VmContext,
    /// The function that the host trampoline calls.
    callee: unsafe extern "sysv64" fn(*mut VmContext, *mut VmContext, *mut u64) -> u64,
    pub func_ref: VmFuncRef,
    /// The function of an instance whose calls go through this one (`redirect.rs`). Its context is
    /// null for any other host function.
    pub direct: VmFuncRef,
    closure: Arc<HostClosure>,
    /// Keeps the type in `func_ref` in use.
    _type_id: TypeId,
    /// Contains the trampoline.
    _image: Arc<CodeImage>,
}

const _: () = assert!(offset_of!(HostFuncData, callee) == size_of::<VmContext>());

impl HostFunc {
    /// Creates the function in a store, whose data must have the type for which the closure was
    /// wrapped.
    pub(crate) fn insert(&self, store: &mut StoreOpaque) -> Result<Func, Error> {
        // The limits of modules, on which compiled code relies.
        if self.ty.params().len() > MAX_RESULTS || self.ty.results().len() > MAX_RESULTS {
            return Err(Error::InvalidType { of: "function" });
        }
        let type_id = store.engine.register_type(&self.ty, "function")?;
        let image = store.engine.trampolines(&type_id)?;
        Ok(self.insert_with(store, type_id, image, 0))
    }

    /// As [`HostFunc::insert`], with the trampoline of an image for its type of this index.
    ///
    /// # Panics
    /// If the image has no such trampoline.
    pub(crate) fn insert_with(
        &self,
        store: &mut StoreOpaque,
        type_id: TypeId,
        image: Arc<CodeImage>,
        type_index: u32,
    ) -> Func {
        let code = image.host_trampoline(type_index).expect("the image has trampolines of the type");
        let context = VmContext {
            store: store.vm(),
            memory0: std::ptr::null_mut(),
            libcalls: super::libcalls::table(),
            func_refs: std::ptr::null_mut(),
            owner: std::ptr::null_mut(),
            is_host: 1,
        };
        let ty = &raw const type_id.object_type().vm;
        let func_ref = VmFuncRef { code, context: std::ptr::null_mut(), ty, index: 0 };
        let closure = self.closure.clone();
        let data = HostFuncData {
            context,
            callee: call_host,
            func_ref,
            direct: VmFuncRef { code: std::ptr::null(), ..func_ref },
            closure,
            _type_id: type_id,
            _image: image,
        };
        let data = Box::into_raw(Box::new(data));
        // SAFETY: just leaked; the store frees it.
        unsafe {
            (*data).context.owner = data.cast();
            (*data).func_ref.context = data.cast();
            store.hosts.push(NonNull::new_unchecked(data));
            Func::at(store, NonNull::new_unchecked(&raw mut (*data).func_ref))
        }
    }
}

impl HostFuncData {
    /// Calls the closure.
    ///
    /// # Safety
    /// `this` is a host function of the store; the values are as required by [`HostClosure`].
    pub(crate) unsafe fn call(this: *const Self, call: HostCall, values: *mut u64) -> Result<(), Error> {
        // SAFETY: host functions live as long as their store, and do not change.
        let closure = unsafe { &(*this).closure };
        closure(call, values)
    }
}

impl fmt::Debug for HostFuncData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFuncData").field("func_ref", &self.func_ref).finish_non_exhaustive()
    }
}

/// The target of host trampolines. Returns 1 if the activation must be left, or an exception is
/// thrown.
///
/// # Safety
/// `context` is that of a host function, `caller` that of its caller, in the running store; the
/// values are as required by [`HostClosure`].
unsafe extern "sysv64" fn call_host(
    context: *mut VmContext,
    caller: *mut VmContext,
    values: *mut u64,
) -> u64 {
    // SAFETY: the caller's obligation. `invoke` has set the store.
    let (host, store, instance) = unsafe {
        let area: *mut StoreArea = (*context).store.cast();
        let instance = if (*caller).is_host == 0 { NonNull::new((*caller).owner.cast()) } else { None };
        ((*context).owner as *const HostFuncData, (*area).store, instance)
    };
    let call = HostCall { store, caller: instance };
    // SAFETY: as above. The clone outlives the call, which may remove the observer.
    let observer = unsafe { (*store).host_observer.clone() };
    // A panic is resumed where the activation was entered; until then nothing observes state that
    // the closure may have left inconsistent. SAFETY: as above.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
        match &observer {
            None => HostFuncData::call(host, call, values),
            Some(observer) => observer.call(host, call, values),
        }
    }));
    // SAFETY: the closure has returned its borrow of the store, which the thread runs.
    unsafe { conclude(&mut *store, outcome, note) }
}

/// The value that is returned to compiled code after a closure: 0, or 1 if the activation must be
/// left. In the latter case the reason is recorded, errors by `note`.
///
/// # Safety
/// The thread must run the store.
pub(crate) unsafe fn conclude(
    store: &mut StoreOpaque,
    outcome: std::thread::Result<Result<(), Error>>,
    note: impl FnOnce(&mut StoreOpaque, Error),
) -> u64 {
    // SAFETY: the caller's obligation.
    let interrupted = unsafe { trap::is_interrupted(store.execution()) };
    match outcome {
        Ok(Ok(())) if !interrupted => return 0,
        Ok(Err(error)) if !interrupted => note(store, error),
        Ok(_) => store.fail(Trap::Interrupt.into()),
        Err(panic) => note_panic(store, panic),
    }
    1
}

#[cold]
fn note(store: &mut StoreOpaque, error: Error) {
    match error {
        Error::Exception { exception, backtrace } => match exception.lower(store) {
            // SAFETY: the context lives as long as the store. No collection runs until the
            // exception is taken from there.
            Ok(address) => unsafe {
                (*store.vm()).thrown = address as usize;
                (*store.execution()).thrown_from = backtrace;
            },
            Err(error) => store.fail(error),
        },
        error => store.fail(error),
    }
}

#[cold]
pub(crate) fn note_panic(store: &mut StoreOpaque, panic: Box<dyn Any + Send>) {
    store.failure = Some(Failure::Panic(panic));
}

/// Calls a host function from the host, or as the start function of `caller`: there is no compiled
/// code in between, so a panic simply unwinds.
///
/// # Safety
/// `func` is the context of a host function of the store, which the caller has borrowed
/// exclusively; the values are as required by [`HostClosure`].
pub(crate) unsafe fn call_directly(
    store: *mut StoreOpaque,
    context: *mut VmContext,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    unsafe {
        let host = (*context).owner as *const HostFuncData;
        let _lent = activation::Lent::new(store);
        HostFuncData::call(host, HostCall { store, caller }, values)
    }
}
