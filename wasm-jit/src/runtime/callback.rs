//! Calls to closures by probes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::host::note_panic;
use super::instance::InstanceData;
use super::redirect;
use super::store::StoreArea;
use crate::code::probed::{CallBack, CalledBy};
use crate::vmctx::{VmContext, VmFuncRef, VmTable};

/// The value of [`Bound::Callee`](crate::probes::Bound::Callee) for a call that will trap, because
/// the table has no function for it or its reference is null.
pub const NO_FUNCTION: u64 = u64::MAX;
/// The value of [`Bound::Callee`](crate::probes::Bound::Callee) for a call whose callee has no
/// index in the running instance.
pub const OTHER_FUNCTION: u64 = u64::MAX - 1;

/// Calls the closure of a probe with the values that its stub has stored. Returns 1 if the closure
/// panicked; then the activation must be left.
///
/// # Safety
/// Called by stubs only, which pass an object that their image keeps, as many values as it names,
/// and the running context.
pub(crate) unsafe extern "sysv64" fn call_back(
    call: *const CallBack,
    values: *mut u64,
    context: *mut VmContext,
) -> u64 {
    // SAFETY: the caller's obligation: the object does not change.
    let call = unsafe { &*call };
    // SAFETY: the caller's obligation: the values belong to this call.
    let values = unsafe { std::slice::from_raw_parts_mut(values, call.values.len()) };
    for (number, by) in &call.callees {
        // SAFETY: the running context; a table of its module, or a value that the stub has found in
        // place of a reference.
        values[*number] = unsafe { callee(context, *by, values[*number]) };
    }
    // Nothing observes state that the closure may have left inconsistent: as for host functions.
    match catch_unwind(AssertUnwindSafe(|| call.callback.call(values))) {
        Ok(()) => 0,
        Err(panic) => {
            // SAFETY: the program runs, so its store is lent, and nothing else uses it.
            note_panic(unsafe { &mut *(*(*context).store.cast::<StoreArea>()).store }, panic);
            1
        }
    }
}

/// The function at an index in a table, or the function that a reference refers to, as an index in
/// the module of the running instance.
///
/// # Safety
/// The context is that of the running instance. Its module has the table; a reference is one in
/// compiled code.
pub(crate) unsafe fn callee(context: *mut VmContext, by: CalledBy, value: u64) -> u64 {
    // SAFETY: the caller's obligation: instances live as long as their store.
    let instance = unsafe { &*((*context).owner as *const InstanceData) };
    let reference = match by {
        CalledBy::Reference => value,
        CalledBy::Table(table) => {
            let offset = instance.module.code().layout.table(table);
            // SAFETY: the caller's obligation; only this thread changes the store's tables.
            unsafe {
                let VmTable { elements, length } = **instance.block.at::<*const VmTable>(offset).as_ptr();
                if value >= length {
                    return NO_FUNCTION;
                }
                *elements.add(value as usize)
            }
        }
    };
    let function: *const VmFuncRef = std::ptr::with_exposed_provenance(reference as usize);
    if function.is_null() {
        return NO_FUNCTION;
    }
    // SAFETY: a reference that is not null is the address of a function, which lives as long as the
    // store.
    let function = unsafe { redirect::direct(function) };
    if function.context == context {
        return function.index;
    }
    let imported = 0..instance.module.code().module.imported_functions;
    let is_it = |import: &u32| {
        // SAFETY: the functions of an instance live as long as it.
        let import = unsafe { redirect::direct(instance.func_ref(*import).as_ptr()) };
        (import.context, import.index) == (function.context, function.index)
    };
    imported.into_iter().find(is_it).map_or(OTHER_FUNCTION, u64::from)
}
