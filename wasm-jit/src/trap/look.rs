//! [`Look`]: finds out what a thread is executing, without stopping it.
//!
//! The thread gets the engine's signal. In compiled code, the handler records the program counter
//! (`signals`). Otherwise the thread may be in a host function, for a long time: then
//! [`waiting`] records the return address of the trampoline through which it left compiled code.
//!
//! Whether it has left compiled code is not known: in the runtime, before and after compiled code
//! runs, the address of a trampoline may be one that has been left. What is found there is then not
//! an address in code, or one of a function that has been executed.

use super::published::{Publication, Published};
use super::{ExecutionState, InterruptHandle, Interruption};

/// The state of the store whose thread is looked at.
static LOOKED_AT: Published<Interruption> = Published::new();

/// Looks at the thread of a store, as long as it exists.
pub(crate) struct Look<'h> {
    interruption: &'h Interruption,
    _publication: Publication<'h, Interruption>,
}

impl<'h> Look<'h> {
    /// Waits while another thread is looked at.
    pub(crate) fn begin(handle: &'h InterruptHandle) -> Self {
        let interruption = handle.interruption();
        let publication = LOOKED_AT.publish(interruption);
        interruption.found_at();
        Self { interruption, _publication: publication }
    }

    /// Sends the thread a signal. The program continues.
    pub(crate) fn ask(&self) {
        self.interruption.poke();
    }

    /// An address of an instruction that a signal has found the thread at, or that it will return
    /// to from a host function, since this was last called; 0 if there is none.
    pub(crate) fn found_at(&self) -> usize {
        self.interruption.found_at()
    }
}

/// In a forked child, before it does anything else.
pub(super) fn in_child() {
    LOOKED_AT.in_child();
}

/// Records where the thread that is looked at has left compiled code, if it is this one, and a
/// signal has found it elsewhere. Async-signal-safe.
pub(super) fn waiting(registers: &[libc::greg_t]) {
    let sp = registers[libc::REG_RSP as usize] as usize;
    LOOKED_AT.visit(|interruption| {
        if let Some(store) = interruption.store_of_this_thread()
            // SAFETY: this thread runs the store, so nothing else changes its state.
            && let Some(return_address) = unsafe { left_to(store, sp) }
        {
            interruption.find(return_address - 1);
        }
    });
}

/// The return address of the trampoline through which the innermost activation of a store was left,
/// if it is on the stack with this stack pointer.
///
/// # Safety
/// The calling thread runs the store.
unsafe fn left_to(store: *const ExecutionState, sp: usize) -> Option<usize> {
    // SAFETY: the caller's obligation.
    let (activation_fp, exit_fp, is_here) =
        unsafe { ((*store).vm.activation_fp, (*store).vm.exit_fp, (*store).stack.contains(sp)) };
    if !is_here || !(sp..activation_fp).contains(&exit_fp) || !exit_fp.is_multiple_of(8) {
        return None;
    }
    let return_address = std::ptr::with_exposed_provenance::<usize>(exit_fp + 8);
    // SAFETY: mapped: between the stack pointer and an outer frame of the same stack.
    let found = unsafe { return_address.read_volatile() };
    (found != 0).then_some(found)
}
