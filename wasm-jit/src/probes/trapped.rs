//! Traps, observed before the program's frames are left.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::frame::Frame;
use super::unwound::{UnwoundException, exception_of};
use crate::code::CodeImage;
use crate::code::probed::Generic;
use crate::code::probed::trapped::TrappedFrame;
use crate::code::probed::unwound::Cause;
use crate::error::Error;
use crate::module::Module;
use crate::runtime::instance::InstanceData;
use crate::runtime::store::{Failure, StoreArea};
use crate::trap::Trap;
use crate::vmctx::VmContext;

/// Why a program ends, or its call by a host function.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ending<'e> {
    /// An instruction, or a host function, has trapped.
    Trap(Trap),
    /// An exception has no handler between its origin and the function that the host has called.
    Exception(UnwoundException),
    /// A host function, or a routine of the engine, has failed with an error that is no trap: a
    /// limit of the store is reached, there is no memory, or the host's own error. Programs exit by
    /// such an error, too. Or the program has called a function that is not defined
    /// ([`Error::UnknownFunction`]).
    Error(&'e Error),
}

/// The observation of traps, which ends when this is dropped: see [`Module::watch_traps`]. It keeps
/// the module's code alive.
#[must_use = "the watch ends when it is dropped"]
pub struct TrapWatch {
    image: Arc<CodeImage>,
    number: u64,
}

impl Module {
    /// Calls a closure where a function of the module traps, fails for lack of memory, or throws an
    /// exception that has no handler in the program, before any frame is left, until the result is
    /// dropped. It is also called if a host function that such a function has called traps, throws,
    /// or returns an error.
    ///
    /// The thread of the program calls it, with the frame that has trapped; a frame that has called
    /// a host function, or whose callee has no room on the stack, is at its call. The closure may
    /// do what the closure of a [generic probe](super::GenericFn) may, and take any time, except
    /// that it cannot [change values of frames](super::AccessError::Ending), and that the process
    /// aborts if it panics. When it returns, the program ends with the trap, exception or error.
    ///
    /// Operands of the instruction, and values that only it needs, may have been overwritten by the
    /// machine code of the instruction: reading them fails
    /// ([`AccessError::NotKept`](super::AccessError::NotKept)). Traps in functions that stubs of
    /// probes call are not observed there, and neither are interrupts.
    ///
    /// Without watchers, traps and exceptions have no additional cost.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicI32, Ordering};
    /// use wasm_jit::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (func (export \"fail\") (param i32)
    ///     unreachable))")?;
    /// let argument = Arc::new(AtomicI32::new(0));
    /// let seen = argument.clone();
    /// let watch = module.watch_traps(move |frame, _| {
    ///     if let Ok(value) = frame.local(0) {
    ///         seen.store(value.unwrap_i32(), Ordering::Relaxed);
    ///     }
    /// });
    /// let mut store = Store::new(&engine, ());
    /// let fail = Instance::new(&mut store, &module, &[])?.get_typed_func::<i32, ()>(&mut store, "fail")?;
    /// assert!(fail.call(&mut store, 7).is_err());
    /// assert_eq!(argument.load(Ordering::Relaxed), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_traps(
        &self,
        function: impl Fn(&mut Frame<'_>, Ending<'_>) + Send + Sync + 'static,
    ) -> TrapWatch {
        let image = self.code().clone();
        let watcher = {
            let image = Arc::downgrade(&image);
            move |trapped: &TrappedFrame<'_>| {
                if let Some(image) = image.upgrade() {
                    // SAFETY: the thread is about to leave the activation of this frame.
                    unsafe { call(&image, trapped, &function) };
                }
            }
        };
        image.accessor_users.begin(1);
        let number = image.trap_watchers.add(Arc::new(watcher));
        TrapWatch { image, number }
    }
}

/// Calls the closure for a frame, if it is about to be left by a trap or an exception.
///
/// # Safety
/// The thread runs the store, and its innermost activation counts as left from the frame's site.
unsafe fn call(
    image: &CodeImage,
    trapped: &TrappedFrame<'_>,
    function: &(impl Fn(&mut Frame<'_>, Ending<'_>) + Send + Sync),
) {
    let TrappedFrame { function: index, position, ref located, site, cause, .. } = *trapped;
    // SAFETY: the context is that of the frame's instance, and `invoke` has set the store.
    let (store, instance) = unsafe {
        let context = std::ptr::with_exposed_provenance_mut::<VmContext>((*site).context);
        let area: *mut StoreArea = (*context).store.cast();
        ((*area).store, NonNull::new_unchecked((*context).owner.cast::<InstanceData>()))
    };
    // The closure may call functions that fail.
    // SAFETY: nothing else uses the store.
    let failure = unsafe { (*store).failure.take() };
    let ending = match (cause, &failure) {
        (Cause::Trap(trap), _) => Some(Ending::Trap(trap)),
        (Cause::Exception(thrown), _) => Some(Ending::Exception(exception_of(image, thrown))),
        (Cause::Failure, Some(Failure::Error(Error::Trap { trap, .. }))) => Some(Ending::Trap(*trap)),
        (Cause::Failure, Some(Failure::Error(error))) => Some(Ending::Error(error)),
        // A panic.
        (Cause::Failure, _) => None,
    };
    let ending = ending.filter(|ending| !matches!(ending, Ending::Trap(Trap::Interrupt)));
    let generic = Generic {
        fire: 0,
        closure: Arc::new(()),
        function: index,
        position,
        only: None,
        fuel: None,
        located: located.clone(),
        results: 0,
    };
    if let Some(ending) = ending {
        // SAFETY: the caller's obligation.
        let mut frame = unsafe { Frame::ending(store, instance, &generic, site) };
        function(&mut frame, ending);
    }
    // SAFETY: the closure has returned its borrow of the store.
    unsafe { (*store).failure = failure };
}

impl Drop for TrapWatch {
    fn drop(&mut self) {
        self.image.trap_watchers.remove(self.number);
        self.image.end_accessor_user();
    }
}

impl fmt::Debug for TrapWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrapWatch").finish_non_exhaustive()
    }
}
