//! The state of a running store that this module uses, following the part that compiled code
//! accesses.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use super::{Interruption, Raised, WasmBacktrace, forked};
use crate::vmctx::{VmContext, VmStoreContext};

/// The execution state of a store. A [`VmContext`] of the store points to it, and compiled code
/// accesses its head.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ExecutionState {
    pub vm: VmStoreContext,
    /// The enclosing activations.
    pub outer: *const Activation,
    /// The stack of the innermost activation.
    pub stack: RunningStack,
    /// The signal that interrupts the thread that runs the store.
    pub signal: i32,
    /// The store's interrupt state; `None` if it cannot be interrupted.
    pub interruption: Option<Arc<Interruption>>,
    /// The reason why the innermost activation was left; taken by [`enter`](super::enter).
    pub raised: Option<Box<Raised>>,
    /// The frames from which an exception comes that a host function rethrows; empty if the host
    /// function throws one of its own. Taken when the exception is thrown.
    pub thrown_from: WasmBacktrace,
}

impl ExecutionState {
    /// The state of a store in which nothing runs.
    pub(crate) fn new(signal: i32) -> Self {
        Self {
            vm: VmStoreContext::default(),
            outer: std::ptr::null(),
            stack: RunningStack::default(),
            signal,
            interruption: None,
            raised: None,
            thrown_from: WasmBacktrace::default(),
        }
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

/// The kernel's id of the calling thread. In a forked child it is that of the parent's thread, and
/// thus not the id of any thread there.
pub(crate) fn current_thread() -> i32 {
    thread_local! {
        static THREAD: Cell<i32> = const { Cell::new(0) };
    }
    if THREAD.get() == 0 {
        // SAFETY: takes nothing and touches no memory.
        THREAD.set(unsafe { libc::gettid() });
    }
    THREAD.get()
}

/// The thread that runs a store, and the stack on which its innermost activations are. Written by
/// this thread; others read it.
#[derive(Debug, Default)]
pub(crate) struct RunningStack {
    /// The thread that entered the store, as [`current_thread`] names it.
    thread: AtomicI32,
    /// The process in which that was: see [`forked`].
    generation: AtomicU32,
    bottom: AtomicUsize,
    /// An address above the frames of the activations on this stack; 0 if nothing runs.
    top: AtomicUsize,
}

/// The value of `top` while the other fields are being changed: not an address in a stack.
const CHANGING: usize = 1;

impl RunningStack {
    /// An address above the frames of the innermost activations, on the same stack; 0 if nothing
    /// runs.
    pub(crate) fn top(&self) -> usize {
        self.top.load(Ordering::Acquire)
    }

    pub(crate) fn thread(&self) -> i32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Whether a thread of this process may be running the store.
    pub(crate) fn may_run(&self) -> bool {
        self.top() != 0 && forked::may_exist(self.thread(), self.generation.load(Ordering::Relaxed))
    }

    /// The addresses of the stack, up to `top`.
    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.bottom.load(Ordering::Relaxed)..self.top()).contains(&address)
    }

    /// Records that the calling thread runs the store on this stack from now on. Returns what to
    /// [restore](RunningStack::restore).
    pub(crate) fn change(&self, bottom: usize, top: usize) -> [usize; 2] {
        let before = [self.bottom.load(Ordering::Relaxed), self.top()];
        if before[1] == 0 {
            // Another thread runs the store only after it was left, unless it continues a
            // coroutine.
            self.thread.store(current_thread(), Ordering::Relaxed);
            self.generation.store(forked::generation(), Ordering::Relaxed);
        }
        self.restore([bottom, top]);
        before
    }

    /// Sets the bottom and the top. A signal handler of this thread, and other threads, never find
    /// the bottom of one stack with the top of another.
    pub(crate) fn restore(&self, [bottom, top]: [usize; 2]) {
        self.top.store(CHANGING, Ordering::Release);
        self.bottom.store(bottom, Ordering::Release);
        self.top.store(top, Ordering::Release);
    }
}

/// An activation with a nested one.
#[derive(Debug)]
pub(crate) struct Activation {
    /// The frame pointer of the activation's entry trampoline.
    pub activation_fp: usize,
    /// The frame pointer of the host trampoline through which the activation was left.
    pub exit_fp: usize,
    /// The stack pointer of that trampoline.
    pub exit_sp: usize,
    pub outer: *const Activation,
}

impl Activation {
    /// The enclosing activation, or null.
    pub(crate) fn outer(&self) -> *const Self {
        self.outer
    }

    /// The range of the activation's frames: from the stack pointer with which it was left to its
    /// entry trampoline's frame pointer. The latter is 0 if there was no activation.
    pub(crate) fn frames(&self) -> (usize, usize) {
        (self.exit_sp, self.activation_fp)
    }
}
