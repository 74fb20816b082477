//! Calls between instances go through the host while calls of their store are observed.
//!
//! An instance has a [`VmFuncRef`] for each of its functions, imports first. Compiled code calls an
//! import through it, and its address is the reference to the function for every caller. New
//! contents therefore redirect all of these calls:
//!
//! 1. For each import that is a function of another instance, and for each function that others can
//!    have references to (`escaping.rs`), there is a host function that calls it.
//! 2. The contents become [`enter`] with the context of this host function. `enter` compares the
//!    caller with the instance of the function: a call within one instance continues in the
//!    function itself, without a frame in between; any other call continues in the host function.
//! 3. When observation ends, the original contents are restored.
//!
//! The store is thus notified of exactly the calls that cross instances. A probe's stub that calls
//! a function of a monitor names the monitor's instance as the caller.
//!
//! If there is one instance, only its imports are redirected: nobody else can call its functions.

use std::arch::naked_asm;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

use super::activation;
use super::escaping::escaping;
use super::func::Func;
use super::host::{HostCall, HostFunc, HostFuncData};
use super::instance::InstanceData;
use super::store::{StoreInner, StoreOpaque};
use crate::error::Error;
use crate::vmctx::{VmContext, VmFuncRef};

/// The functions of a store's instances whose calls are redirected.
#[derive(Debug, Default)]
pub(crate) struct Redirected {
    /// The number of instances that were searched for imports.
    imports_of: usize,
    /// The number of instances that were searched for functions that others can call.
    escaping_of: usize,
    functions: Vec<Redirect>,
}

#[derive(Debug)]
struct Redirect {
    func_ref: NonNull<VmFuncRef>,
    /// The host function that calls the function. It has the other contents.
    host: NonNull<HostFuncData>,
}

impl Redirect {
    /// # Safety
    /// The store is borrowed exclusively: compiled code that reads the contents does not run.
    unsafe fn begin(&self) {
        let context = self.host.as_ptr().cast::<VmContext>();
        let to = VmFuncRef { code: enter as *const u8, context, ty: std::ptr::null(), index: 0 };
        // SAFETY: the caller's obligation.
        unsafe { self.set(to) };
    }

    /// # Safety
    /// As for [`Redirect::begin`].
    unsafe fn end(&self) {
        // SAFETY: host functions live as long as their store; the caller's obligation.
        unsafe { self.set((*self.host.as_ptr()).direct) };
    }

    /// # Safety
    /// As for [`Redirect::begin`].
    unsafe fn set(&self, to: VmFuncRef) {
        let VmFuncRef { code, context, index, .. } = to;
        // SAFETY: instances live as long as their store; the caller's obligation. The type stays,
        // which the instance or the one of the imported function keeps in use.
        unsafe {
            let func_ref = self.func_ref.as_ptr();
            ((*func_ref).code, (*func_ref).context, (*func_ref).index) = (code, context, index);
        }
    }
}

/// Where redirected calls arrive, with the arguments in their locations, the caller's context in
/// `rax`, and that of the host function in `r14`. Changes only `r11`, and the registers that the
/// callee's context determines. The engine treats a signal here as one in the host; nothing here
/// can trap.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rax, r14",
        "je 2f",
        "cmp rax, [r14 + {direct} + {context}]",
        "je 2f",
        "jmp [r14 + {func_ref} + {code}]",
        "2:",
        "mov r11, [r14 + {direct} + {code}]",
        "mov r14, [r14 + {direct} + {context}]",
        "mov r15, [r14 + {memory0}]",
        "jmp r11",
        ".cfi_endproc",
        direct = const offset_of!(HostFuncData, direct),
        func_ref = const offset_of!(HostFuncData, func_ref),
        context = const offset_of!(VmFuncRef, context),
        code = const offset_of!(VmFuncRef, code),
        memory0 = const offset_of!(VmContext, memory0),
    )
}

/// Redirects calls between instances.
///
/// # Errors
/// [`Error::Code`], in which case some calls remain direct.
pub(super) fn begin<T: 'static>(store: &mut StoreInner<T>) -> Result<(), Error> {
    for redirect in &store.opaque.redirected.functions {
        // SAFETY: the store is borrowed exclusively.
        unsafe { redirect.begin() };
    }
    extend(store)
}

/// Makes calls direct again.
pub(super) fn end(store: &mut StoreOpaque) {
    for redirect in &store.redirected.functions {
        // SAFETY: the store is borrowed exclusively.
        unsafe { redirect.end() };
    }
}

/// As [`begin`], for new instances.
///
/// # Errors
/// As for [`begin`].
pub(super) fn extend<T: 'static>(store: &mut StoreInner<T>) -> Result<(), Error> {
    let store = &mut store.opaque;
    while let Some(instance) = store.instances.get(store.redirected.imports_of).copied() {
        // SAFETY: instances live as long as their store, and are mutated only while it is borrowed
        // exclusively, through other pointers.
        let count = unsafe { instance.as_ref() }.module.code().module.imported_functions;
        for index in 0..count {
            // SAFETY: as above.
            let import = unsafe { instance.as_ref() }.func_ref(index);
            redirect::<T>(store, import)?;
        }
        store.redirected.imports_of += 1;
    }
    if store.instances.len() < 2 {
        return Ok(());
    }
    while let Some(instance) = store.instances.get(store.redirected.escaping_of).copied() {
        // SAFETY: as above.
        let (module, code) = unsafe { (&instance.as_ref().module, instance.as_ref().module.code()) };
        let imported = code.module.imported_functions;
        for index in escaping(module)?.into_iter().filter(|index| *index >= imported) {
            // SAFETY: as above.
            let defined = unsafe { instance.as_ref() }.func_ref(index);
            redirect::<T>(store, defined)?;
        }
        store.redirected.escaping_of += 1;
    }
    Ok(())
}

/// Redirects calls to a function of a store with data of type `T`, unless it is a host function.
fn redirect<T: 'static>(store: &mut StoreOpaque, func_ref: NonNull<VmFuncRef>) -> Result<(), Error> {
    let func = Func::at(store, func_ref);
    if func.is_host_in(store) {
        return Ok(());
    }
    // If it is an import, the function of the instance that defines it.
    let direct = func.direct(store);
    // SAFETY: it is the context of an instance, which lives as long as its store, and is mutated
    // only while that is borrowed exclusively.
    let defined = unsafe {
        let owner: *const InstanceData = (*direct.context).owner.cast();
        Func::at(store, (*owner).func_ref(direct.index as u32))
    };
    let closure = move |call: HostCall, values: *mut u64| {
        let store: *mut StoreInner<T> = call.store.cast();
        // SAFETY: the store is lent to this call, and has such data. The function belongs to it and
        // has the type of this one.
        unsafe { activation::invoke(&mut *store, defined, values) }
    };
    let host = HostFunc { ty: func.type_in(store), closure: Arc::new(closure) }.insert(store)?;
    // SAFETY: just made: a host function, whose context is the head of its data.
    let host = unsafe {
        let host: *mut HostFuncData = (*host.vm()).context.cast();
        (*host).direct = direct;
        NonNull::new_unchecked(host)
    };
    let redirect = Redirect { func_ref, host };
    // SAFETY: the store is borrowed exclusively.
    unsafe { redirect.begin() };
    store.redirected.functions.push(redirect);
    Ok(())
}

/// The contents of a function, whether its calls are redirected or not.
///
/// # Safety
/// It is a function of a store that is borrowed, or runs on this thread.
pub(crate) unsafe fn direct(func_ref: *const VmFuncRef) -> VmFuncRef {
    // SAFETY: the caller's obligation; contexts live as long as their store.
    unsafe {
        let contents = *func_ref;
        if (*contents.context).is_host == 0 {
            return contents;
        }
        let VmFuncRef { code, context, index, .. } = (*contents.context.cast::<HostFuncData>()).direct;
        if context.is_null() { contents } else { VmFuncRef { code, context, index, ..contents } }
    }
}

/// Sets the code of a function that an instance defines.
///
/// # Safety
/// It is a function of a store that runs on this thread, which reads and writes it alone.
pub(super) unsafe fn set_code(func_ref: *mut VmFuncRef, code: *const u8) {
    // SAFETY: the caller's obligation; the context of a host function is the head of its data.
    unsafe {
        let context = (*func_ref).context;
        match (*context).is_host {
            0 => (*func_ref).code = code,
            _ => (*context.cast::<HostFuncData>()).direct.code = code,
        }
    }
}
