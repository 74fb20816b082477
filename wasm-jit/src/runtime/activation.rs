//! Calls from the host into compiled code, and their outcomes.

use std::panic::resume_unwind;
use std::ptr::NonNull;

use super::float_settings::DefaultSettings;
use super::func::Func;
use super::host;
use super::instance::InstanceData;
use super::observe;
use super::redirect;
use super::stack;
use super::store::{Failure, StoreArea, StoreInner, StoreOpaque};
use crate::error::Error;
use crate::trap::{self, Raised, Trap, WasmBacktrace};
use crate::vmctx::{VmContext, VmFuncRef};

/// The type of an entry trampoline.
pub(crate) type Entry = unsafe extern "sysv64" fn(*mut VmContext, *const u8, *mut u64) -> u64;

/// Lends the store to the code that runs in it: as long as this lives, [`StoreArea::store`] is a
/// pointer derived from the caller's borrow.
pub(crate) struct Lent {
    area: *mut StoreArea,
    before: *mut StoreOpaque,
}

impl Lent {
    /// # Safety
    /// The store outlives this, and the caller does not use its own borrow during that time.
    pub(crate) unsafe fn new(store: *mut StoreOpaque) -> Self {
        // SAFETY: the caller's obligation; the area lives as long as the store.
        unsafe {
            let area = (*store).area.as_ptr();
            Self { area, before: std::mem::replace(&mut (*area).store, store) }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { (*self.area).store = self.before };
    }
}

/// Calls a function with these values: initially the arguments, then the results.
///
/// # Errors
/// The reason why the program stopped. A panic of a host function is resumed.
///
/// # Safety
/// The function belongs to this store; the number of values is the larger of the numbers of its
/// parameters and results, and they are arguments of its types, lowered by this store.
pub(crate) unsafe fn invoke<T: 'static>(
    store: &mut StoreInner<T>,
    func: Func,
    values: *mut u64,
) -> Result<(), Error> {
    // SAFETY: the caller's obligation.
    unsafe { invoke_from(store, func, None, values) }
}

/// As [`invoke`]; a host function gets the instance as its caller.
///
/// # Errors
/// As for [`invoke`].
///
/// # Safety
/// As for [`invoke`]; the caller is an instance of this store.
pub(crate) unsafe fn invoke_from<T: 'static>(
    store: &mut StoreInner<T>,
    func: Func,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    if let Some(observers) = &store.observers
        && !func.is_host_in(&store.opaque)
    {
        let observers = observers.clone();
        // SAFETY: the caller's obligation.
        return unsafe { observe::invoke(store, &observers, func, caller, values) };
    }
    // SAFETY: the caller's obligation.
    unsafe { invoke_unobserved(store, func, caller, values) }
}

/// As [`invoke_from`], but the call is not observed.
///
/// # Errors
/// As for [`invoke`].
///
/// # Safety
/// As for [`invoke_from`].
pub(super) unsafe fn invoke_unobserved<T: 'static>(
    store: &mut StoreInner<T>,
    func: Func,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    // A pointer to the complete store, so that host functions can access the embedder's data.
    let store: *mut StoreInner<T> = store;
    // SAFETY: the caller's obligation; the borrow is used only through the pointer.
    unsafe { invoke_in(store.cast(), func.vm(), caller, values) }
}

/// # Safety
/// As for [`invoke`]; `store` points to a complete [`StoreInner`], and the caller is an instance of
/// it.
unsafe fn invoke_in(
    store: *mut StoreOpaque,
    func: *const VmFuncRef,
    caller: Option<NonNull<InstanceData>>,
    values: *mut u64,
) -> Result<(), Error> {
    // SAFETY: functions live as long as their store, which is lent to this.
    let VmFuncRef { code, context, index, .. } = unsafe { redirect::direct(func) };
    // SAFETY: the caller's obligation.
    unsafe {
        if (*context).is_host != 0 {
            return host::call_directly(store, context, caller, values);
        }
        let entry = (*((*context).owner as *const InstanceData)).entry_trampoline(index as u32);
        let area = (*store).area.as_ptr();
        // The host may have switched stacks since the enclosing activation was entered.
        let limit_around = (*area).execution.vm.stack_limit;
        let on_another_stack = !stack::is_current((*area).execution.stack.top(), limit_around);
        if on_another_stack {
            (*area).execution.vm.stack_limit = stack::limit((*store).engine.max_wasm_stack());
        }
        // Functions without calls do not compare the stack pointer with the limit, and host
        // functions may have used the stack below it.
        if stack::pointer() < (*area).execution.vm.stack_limit {
            if on_another_stack {
                (*area).execution.vm.stack_limit = limit_around;
            }
            return Err(Error::Trap { trap: Trap::StackOverflow, backtrace: WasmBacktrace::default() });
        }
        let collections = (*store).collections;
        let call = || {
            // Only while the enclosing activation is known: its frames are on another stack. This
            // frame is above those of the activation.
            let around = on_another_stack.then(|| stack::enter(&(*area).execution, stack::pointer()));
            let left = entry(context, code, values);
            if let Some(around) = around {
                (*area).execution.stack.restore(around);
            }
            left
        };
        let left = {
            let _lent = Lent::new(store);
            let _settings = DefaultSettings::begin();
            trap::enter(area.cast(), call)
        };
        if (*store).collections != collections {
            // The frames of a later call use the same memory. References that this call left there
            // would keep objects alive during it, perhaps those of an entire heap.
            stack::clear_below((*area).execution.vm.stack_limit);
        }
        if on_another_stack {
            (*area).execution.vm.stack_limit = limit_around;
        }
        left.map_err(|raised| (*store).failure_of(raised))
    }
}

impl StoreOpaque {
    /// The reason why an activation was left, as an error; resumes the panic of a host function
    /// that caused it.
    #[cold]
    fn failure_of(&mut self, raised: Raised) -> Error {
        let (trap, backtrace) = match raised {
            Raised::Exception { exception, backtrace } => {
                return Error::Exception { exception: self.root_exception(exception), backtrace };
            }
            Raised::Trap { trap, backtrace } => (Some(trap), backtrace),
            Raised::Noted { backtrace } => (None, backtrace),
        };
        // A trap may also have a recorded reason: an exception that could not be allocated is
        // thrown as null.
        match self.failure.take() {
            Some(Failure::Panic(panic)) => resume_unwind(panic),
            Some(Failure::Error(error)) => with_backtrace(error, backtrace),
            None => Error::Trap { trap: trap.expect("a failure records its reason"), backtrace },
        }
    }
}

/// Adds the backtrace to a trap, or a lack of memory, that the runtime or a host function caused.
fn with_backtrace(mut error: Error, frames: WasmBacktrace) -> Error {
    if let Error::Trap { backtrace, .. }
    | Error::UnknownFunction { backtrace, .. }
    | Error::StoreLimit { backtrace, .. }
    | Error::Memory { backtrace, .. } = &mut error
        && backtrace.is_empty()
    {
        *backtrace = frames;
    }
    error
}
