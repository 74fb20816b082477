//! The accessors of a store's frames ([`VmAccessor`]): a list of those frames that have one, from
//! the innermost outwards.
//!
//! A frame that returns ends its accessor: its function's version has code for that
//! (`wasm_jit_codegen::Sites::end_accessors`). The accessors of frames that are left in other ways,
//! or that continue in a version without this code, are ended here.

use std::sync::atomic::Ordering::Relaxed;

use super::ExecutionState;
use crate::vmctx::VmAccessor;

/// Ends the accessors of the frames of the store's innermost activation, from the innermost one to
/// the one with this frame pointer.
///
/// # Safety
/// The store must be the one that this thread runs.
pub(super) unsafe fn end_through(store: *mut ExecutionState, fp: usize) {
    // SAFETY: the caller's obligation. Frame pointers are aligned.
    unsafe { end(store, (*store).vm.activation_fp, fp + 1) };
}

/// Ends the accessors of the innermost frames while they are in an activation, and their frame
/// pointers are below `below`.
///
/// # Safety
/// The store must be the one that this thread runs.
pub(super) unsafe fn end(store: *mut ExecutionState, activation_fp: usize, below: usize) {
    // SAFETY: the caller's obligation; accessors live as long as their store.
    unsafe {
        loop {
            let first: *const VmAccessor = (*store).vm.accessors;
            let fp = (*first).fp.load(Relaxed);
            if fp == 0 || fp >= below || (*first).activation_fp.load(Relaxed) != activation_fp {
                return;
            }
            (*first).fp.store(0, Relaxed);
            (*store).vm.accessors = (*first).next.load(Relaxed);
        }
    }
}
