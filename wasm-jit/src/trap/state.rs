//! The state of a running store that this module uses, following the part that compiled code
//! accesses.

use std::sync::Arc;

use super::{Interruption, Raised};
use crate::vmctx::{VmContext, VmStoreContext};

/// The execution state of a store. A [`VmContext`] of the store points to it, and compiled code
/// accesses its head.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ExecutionState {
    pub vm: VmStoreContext,
    /// The enclosing activations.
    pub outer: *const Activation,
    /// The store's interrupt state; `None` if it cannot be interrupted.
    pub interruption: Option<Arc<Interruption>>,
    /// The reason why the innermost activation was left; taken by [`enter`](super::enter).
    pub raised: Option<Box<Raised>>,
}

impl ExecutionState {
    /// The state of a store in which nothing runs.
    pub(crate) fn new() -> Self {
        Self { vm: VmStoreContext::default(), outer: std::ptr::null(), interruption: None, raised: None }
    }

    /// The state of the store that a context belongs to.
    ///
    /// # Safety
    /// The context must be one that the runtime has created for a store that is alive.
    pub(crate) unsafe fn of(context: *const VmContext) -> *mut Self {
        // SAFETY: the caller's obligation. The part of the store that compiled code accesses is the
        // head of its state.
        unsafe { (*context).store.cast() }
    }
}

/// An activation with a nested one.
#[derive(Debug)]
pub(crate) struct Activation {
    /// Frame pointer of its entry trampoline.
    pub activation_fp: usize,
    /// Frame pointer of the host trampoline through which it was left.
    pub exit_fp: usize,
    /// Stack pointer of that trampoline.
    pub exit_sp: usize,
    pub outer: *const Activation,
}

impl Activation {
    /// The enclosing activation, or null.
    pub(crate) fn outer(&self) -> *const Self {
        self.outer
    }

    /// The range of its frames: from the stack pointer with which it was left to its entry
    /// trampoline's frame pointer. The latter is 0 if there was none.
    pub(crate) fn frames(&self) -> (usize, usize) {
        (self.exit_sp, self.activation_fp)
    }
}
