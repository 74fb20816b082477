//! Non-local exits from compiled code: traps, exceptions, failures of host functions, interrupts.
//!
//! # Interface to the rest of the runtime
//! - [`enter`] runs compiled code. It handles the signal handlers, `activation_fp` and nested
//!   activations, and returns the reason if an activation was left: [`Raised`]. The caller sets
//!   `stack_limit`.
//! - Three libcalls are [`routine`]s of this module.
//! - A libcall or host function that fails records its reason in the store. Compiled code then
//!   calls `Raise` (failure of a libcall) or `RaiseFromHost` (of a host function), and [`enter`]
//!   returns [`Raised::Noted`]. A host function that throws an exception instead sets `thrown` in
//!   the store's [`VmStoreContext`](crate::vmctx::VmStoreContext): the exception goes to its
//!   handler in the calling code, or is returned as [`Raised::Exception`].
//! - When a host function returns, the runtime calls [`is_interrupted`], and if it returns true,
//!   treats this as a failure whose reason is [`Trap::Interrupt`]. A libcall that waits does the
//!   same. Compiled code does not check: see `interrupt`.
//!
//! # Steps of a non-local exit
//! 1. *Recorded*: the signal handler (`signals`), or one of the routines that compiled code calls
//!    (`routines`), writes program counter, frame and registers into the store's
//!    [`ExecutionState`].
//! 2. *Captured*, on the same stack, below the frames that are being left and while they are still
//!    intact: the reason, and the return addresses (`capture`). This does not run in the signal
//!    handler, so it may allocate.
//! 3. *Left*: the registers of the entry trampoline's caller are restored from its frame, and the
//!    trampoline returns 1.
//! 4. [`enter`] returns the captured state to its caller. Names, offsets and lines are looked up on
//!    demand (`backtrace`).
//!
//! Files: `state` (the state in a store), `unwind` (frames, and exception handlers), `routines`,
//! `signals`, `own_signal`, `capture`, `innermost`, `interrupt`, `backtrace`, `lines`, `metered`,
//! `walk` (frames, for probes), `accessors`, `code_in_use`, `look` (where a thread is),
//! `published` (values for signal handlers), `trapped`
//! (reports traps while the frames are intact).

mod accessors;
mod backtrace;
mod capture;
mod code_in_use;
mod forked;
mod innermost;
mod interrupt;
mod lines;
mod look;
mod metered;
mod own_signal;
mod published;
mod routines;
mod signals;
mod state;
mod trapped;
mod unwind;
mod walk;

pub use backtrace::{FrameInfo, FrameSymbol, WasmBacktrace};
pub(crate) use capture::of_waiting;
pub(crate) use code_in_use::code_in_use;
pub(crate) use forked::follow as follow_forks;
pub(crate) use interrupt::{DEFAULT_SIGNAL, Interruption};
pub use interrupt::{InterruptHandle, Timeout};
pub(crate) use lines::Lines;
pub(crate) use look::Look;
pub(crate) use routines::routine;
pub(crate) use state::{Activation, ExecutionState};
pub(crate) use walk::{Waiting, Walk, walked};

use std::sync::atomic::{Ordering, compiler_fence};

pub use crate::trap_kind::Trap;
use crate::vmctx::NO_REQUESTS;

/// The reason why an activation was left.
#[derive(Debug)]
pub(crate) enum Raised {
    /// Compiled code trapped, or was interrupted.
    Trap { trap: Trap, backtrace: WasmBacktrace },
    /// The exception at this address (a [`VmException`](crate::vmctx::VmException)) has no handler
    /// in the activation. The frames are those where the exception was first thrown.
    Exception { exception: usize, backtrace: WasmBacktrace },
    /// A libcall or a host function failed, and recorded the reason in the store.
    Noted { backtrace: WasmBacktrace },
}

/// Runs compiled code: `call` must call an entry trampoline, once, and return its result. Calls may
/// be nested, from host functions. A pending request to interrupt the store takes effect before
/// anything runs.
///
/// # Safety
/// `store` must be the state of the store that the code runs in, and nothing else may use it during
/// the call. No panic may unwind out of the call, and the code images must outlive it.
pub(crate) unsafe fn enter(store: *mut ExecutionState, call: impl FnOnce() -> u64) -> Result<(), Raised> {
    signals::install();
    // SAFETY: the caller's obligation. No reference into the context is kept while compiled code
    // runs.
    let outer = unsafe {
        let vm = &(*store).vm;
        Activation {
            activation_fp: vm.activation_fp,
            exit_fp: vm.exit_fp,
            exit_sp: vm.exit_sp,
            outer: (*store).outer,
        }
    };
    // SAFETY: as above.
    let interruption = unsafe { (*store).interruption.clone() };
    let _running = match &interruption {
        Some(interruption) => {
            let running = interruption.run(store);
            if interruption.acknowledge() {
                return Err(Raised::Trap { trap: Trap::Interrupt, backtrace: WasmBacktrace::default() });
            }
            Some(running)
        }
        None => None,
    };
    let requests =
        interruption.as_ref().map_or(&raw const NO_REQUESTS, |interruption| interruption.requests());
    // SAFETY: as above. The requests live as long as the state.
    unsafe {
        (*store).vm.interrupt_requests = requests;
        // A signal handler follows the pointer (`code_in_use`).
        compiler_fence(Ordering::Release);
        (*store).outer = &outer;
        compiler_fence(Ordering::Release);
    }
    let left = call();
    compiler_fence(Ordering::Release);
    // SAFETY: as above; the trampoline has returned.
    let raised = unsafe {
        accessors::end(store, (*store).vm.activation_fp, usize::MAX);
        (*store).outer = outer.outer;
        (*store).vm.activation_fp = outer.activation_fp;
        (*store).vm.exit_fp = outer.exit_fp;
        (*store).vm.exit_sp = outer.exit_sp;
        // Before the lifetime of `outer` ends.
        compiler_fence(Ordering::Release);
        (*store).raised.take()
    };
    match raised {
        Some(raised) if left != 0 => Err(*raised),
        _ => Ok(()),
    }
}

/// Whether an interrupt of the store's program was requested. The request stays pending.
///
/// # Safety
/// As [`enter`].
pub(crate) unsafe fn is_requested(store: *mut ExecutionState) -> bool {
    // SAFETY: the caller's obligation; only the thread that runs the store changes the field.
    let interruption = unsafe { (*store).interruption.as_ref() };
    interruption.is_some_and(|interruption| interruption.is_requested())
}

/// Whether an interrupt of the store's program was requested: checked when a host function returns,
/// and where the runtime waits. If this returns true, the caller must leave the activation.
///
/// # Safety
/// As [`enter`].
pub(crate) unsafe fn is_interrupted(store: *mut ExecutionState) -> bool {
    // SAFETY: the caller's obligation; only the thread that runs the store changes the field.
    let interruption = unsafe { (*store).interruption.as_ref() };
    interruption.is_some_and(|interruption| interruption.acknowledge())
}

#[cfg(test)]
mod tests;
