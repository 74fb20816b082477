//! Calls between instances go through the host while calls of their store are observed.
//!
//! An instance has a [`VmFuncRef`] for each function that it imports. Compiled code calls the
//! import through it, and its address is the reference to the import that the instance makes. So
//! new contents redirect all of these calls, also those through tables: to a function of the host
//! that calls the imported one. Afterwards the contents are again what they were.
//!
//! Calls through references to functions that an instance defines itself stay direct.

use std::ptr::NonNull;
use std::sync::Arc;

use super::activation;
use super::func::Func;
use super::host::{HostCall, HostFunc};
use super::instance::InstanceData;
use super::store::{StoreInner, StoreOpaque};
use crate::error::Error;
use crate::vmctx::VmFuncRef;

/// The imports of a store's instances that are functions of other instances.
#[derive(Debug, Default)]
pub(crate) struct Redirected {
    /// How many of the instances were searched for them.
    searched: usize,
    imports: Vec<Redirect>,
}

#[derive(Debug)]
struct Redirect {
    import: NonNull<VmFuncRef>,
    /// The contents of the import: the imported function, and the one that calls it.
    direct: VmFuncRef,
    through_host: VmFuncRef,
}

impl Redirect {
    /// # Safety
    /// The store of the import is borrowed exclusively: compiled code that reads it does not run.
    unsafe fn set(&self, to: VmFuncRef) {
        let VmFuncRef { code, context, index, .. } = to;
        // SAFETY: instances live as long as their store; the caller's obligation. The type stays,
        // which the instance or the one of the imported function keeps in use.
        unsafe {
            let import = self.import.as_ptr();
            ((*import).code, (*import).context, (*import).index) = (code, context, index);
        }
    }
}

/// Redirects the calls of all imports that are functions of other instances.
///
/// # Errors
/// [`Error::Code`]; then some are direct.
pub(super) fn begin<T: 'static>(store: &mut StoreInner<T>) -> Result<(), Error> {
    for redirect in &store.opaque.redirected.imports {
        // SAFETY: the store is borrowed exclusively.
        unsafe { redirect.set(redirect.through_host) };
    }
    extend(store)
}

/// Calls are direct again.
pub(super) fn end(store: &mut StoreOpaque) {
    for redirect in &store.redirected.imports {
        // SAFETY: the store is borrowed exclusively.
        unsafe { redirect.set(redirect.direct) };
    }
}

/// The same for the imports of instances that are new.
///
/// # Errors
/// Those of [`begin`].
pub(super) fn extend<T: 'static>(store: &mut StoreInner<T>) -> Result<(), Error> {
    let store = &mut store.opaque;
    while let Some(instance) = store.instances.get(store.redirected.searched).copied() {
        // SAFETY: instances live as long as their store, and are mutated only while it is borrowed
        // exclusively, through other pointers.
        let count = unsafe { instance.as_ref() }.module.code().module.imported_functions;
        for index in 0..count {
            // SAFETY: as above.
            let import = unsafe { instance.as_ref() }.func_ref(index);
            // SAFETY: as above.
            let mut direct = unsafe { *import.as_ref() };
            // SAFETY: contexts live as long as their store.
            if unsafe { (*direct.context).is_host != 0 } {
                // It may be a redirected import of another instance.
                let mut known = store.redirected.imports.iter();
                match known.find(|known| known.through_host.context == direct.context) {
                    Some(known) => direct = known.direct,
                    None => continue,
                }
            }
            // SAFETY: it is the context of an instance, and as above. The instance defines this
            // function, so that it cannot be redirected itself.
            let defined = unsafe {
                let owner: *const InstanceData = (*direct.context).owner.cast();
                (*owner).func_ref(direct.index as u32)
            };
            let through_host = through_host::<T>(store, Func::at(store, defined))?;
            let redirect = Redirect { import, direct, through_host };
            // SAFETY: the store is borrowed exclusively.
            unsafe { redirect.set(through_host) };
            store.redirected.imports.push(redirect);
        }
        store.redirected.searched += 1;
    }
    Ok(())
}

/// A function of the host that calls a function of a store with data of type `T`.
fn through_host<T: 'static>(store: &mut StoreOpaque, func: Func) -> Result<VmFuncRef, Error> {
    let closure = move |call: HostCall, values: *mut u64| {
        let store: *mut StoreInner<T> = call.store.cast();
        // SAFETY: the store is lent to this call, and has such data. The function belongs to it and
        // has the type of this one.
        unsafe { activation::invoke(&mut *store, func, values) }
    };
    let host = HostFunc { ty: func.type_in(store), closure: Arc::new(closure) };
    let made = host.insert(store)?;
    // SAFETY: just made.
    Ok(unsafe { *made.vm() })
}
