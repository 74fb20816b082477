//! Calls to closures by probes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::host::note_panic;
use super::instance::InstanceData;
use super::redirect;
use super::store::StoreArea;
use crate::code::probed::counters::InstanceId;
use crate::code::probed::{BoundCallback, Called, CalleeSource, ResolveCallee};
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
    call: *const BoundCallback,
    values: *mut u64,
    context: *mut VmContext,
) -> u64 {
    // SAFETY: the caller's obligation: the object does not change.
    let call = unsafe { &*call };
    // SAFETY: the caller's obligation: the values belong to this call.
    let values = unsafe { std::slice::from_raw_parts_mut(values, call.values.len()) };
    // SAFETY: as below.
    let found = call.called.map(|by| unsafe { Found::of(context, by, values[values.len() - 1]) });
    for (number, by) in &call.callees {
        // SAFETY: the running context; a table of its module, or a value that the stub has found in
        // place of a reference.
        values[*number] = unsafe { callee(context, *by, values[*number]) };
    }
    // Nothing observes state that the closure may have left inconsistent: as for host functions.
    let called = found.as_ref().map(|found| Called(found));
    let values = if found.is_some() { &values[..values.len() - 1] } else { values };
    match catch_unwind(AssertUnwindSafe(|| call.callback.call(values, called.as_ref()))) {
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
pub(crate) unsafe fn callee(context: *mut VmContext, by: CalleeSource, value: u64) -> u64 {
    // SAFETY: the caller's obligation.
    unsafe { Found::of(context, by, value) }.index()
}

/// The function that an instruction of an instance calls.
struct Found<'a> {
    /// The running instance.
    instance: &'a InstanceData,
    by: CalleeSource,
    function: Option<VmFuncRef>,
}

impl<'a> Found<'a> {
    /// # Safety
    /// As for [`callee`]; the instance exists for `'a`.
    unsafe fn of(context: *mut VmContext, by: CalleeSource, value: u64) -> Self {
        // SAFETY: the caller's obligation: instances live as long as their store.
        let instance = unsafe { &*((*context).owner as *const InstanceData) };
        let reference = match by {
            CalleeSource::Reference => value,
            CalleeSource::Table { table, .. } => {
                let offset = instance.module.code().layout.table(table);
                // SAFETY: the caller's obligation; only this thread changes the store's tables.
                unsafe {
                    let VmTable { elements, length } = **instance.block.at::<*const VmTable>(offset).as_ptr();
                    if value < length { *elements.add(value as usize) } else { 0 }
                }
            }
        };
        let function: *const VmFuncRef = std::ptr::with_exposed_provenance(reference as usize);
        // SAFETY: a reference that is not null is the address of a function, which lives as long as
        // the store.
        let function = (!function.is_null()).then(|| unsafe { redirect::direct(function) });
        Self { instance, by, function }
    }

    /// The instance that defines the function.
    fn defined_in(&self) -> Option<(&'a InstanceData, u32)> {
        let VmFuncRef { context, index, .. } = self.function?;
        // SAFETY: contexts and instances live as long as their store.
        unsafe {
            ((*context).is_host == 0).then(|| (&*((*context).owner as *const InstanceData), index as u32))
        }
    }
}

impl ResolveCallee for Found<'_> {
    fn index(&self) -> u64 {
        let Some(function) = self.function else { return NO_FUNCTION };
        if function.context == self.instance.block.context() {
            return function.index;
        }
        let imported = 0..self.instance.module.code().module.imported_functions;
        let is_it = |import: &u32| {
            // SAFETY: the functions of an instance live as long as it.
            let import = unsafe { redirect::direct(self.instance.func_ref(*import).as_ptr()) };
            (import.context, import.index) == (function.context, function.index)
        };
        imported.into_iter().find(is_it).map_or(OTHER_FUNCTION, u64::from)
    }

    fn is_called(&self) -> bool {
        let Some(function) = self.function else { return false };
        match self.by {
            CalleeSource::Reference => true,
            // SAFETY: the function keeps its type in use.
            CalleeSource::Table { ty, .. } => unsafe {
                (*function.ty).is(&self.instance.module.object_type(ty).vm)
            },
        }
    }

    fn definition(&self) -> Option<(InstanceId, u32)> {
        self.defined_in().map(|(instance, index)| (instance.counting.instance(), index))
    }

    fn is_of_module(&self) -> bool {
        self.defined_in().is_some_and(|(instance, _)| instance.module.is_same(&self.instance.module))
    }

    fn names(&self) -> Option<(Option<String>, String)> {
        let (instance, index) = self.defined_in()?;
        let function = instance.module.function(index)?;
        Some((instance.module.name().map(str::to_owned), function.unescaped_display_name()))
    }
}
