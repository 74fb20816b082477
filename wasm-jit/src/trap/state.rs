//! What a running store keeps for this module, behind the part that compiled code knows.

use std::sync::Arc;

use super::{Interruption, Raised};
use crate::vmctx::{VmContext, VmStoreContext};

/// The state of what runs in a store. A [`VmContext`] of the store points to it, and compiled code
/// knows its head.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ExecutionState {
    pub vm: VmStoreContext,
    /// The activations around the innermost one.
    pub outer: *const Activation,
    /// How the store is interrupted; none if nobody can.
    pub interruption: Option<Arc<Interruption>>,
    /// Why the innermost activation was left; taken by [`enter`](super::enter).
    pub raised: Option<Box<Raised>>,
}

impl ExecutionState {
    /// That of a store in which nothing runs.
    pub(crate) fn new() -> Self {
        Self { vm: VmStoreContext::default(), outer: std::ptr::null(), interruption: None, raised: None }
    }

    /// The state of the store that a context belongs to.
    ///
    /// # Safety
    /// The context must be one that the runtime has made for a store that is alive.
    pub(crate) unsafe fn of(context: *const VmContext) -> *mut Self {
        // SAFETY: the caller's obligation. The store's part that compiled code knows is the head of
        // its state.
        unsafe { (*context).store.cast() }
    }
}

/// An activation that another one runs inside of.
#[derive(Debug)]
pub(crate) struct Activation {
    /// Frame pointer of its entry trampoline.
    pub activation_fp: usize,
    /// Frame pointer of the host trampoline that it was left by.
    pub exit_fp: usize,
    /// Stack pointer of that trampoline.
    pub exit_sp: usize,
    pub outer: *const Activation,
}

impl Activation {
    /// The one that it runs inside of, or null.
    pub(crate) fn outer(&self) -> *const Self {
        self.outer
    }

    /// Where its frames are: from the stack pointer that it was left with up to its entry
    /// trampoline's frame pointer. The latter is 0 if there was none.
    pub(crate) fn frames(&self) -> (usize, usize) {
        (self.exit_sp, self.activation_fp)
    }
}
