//! Reports traps, and exceptions without a handler, to the watchers of the module whose function
//! has trapped, while all frames are intact.
//!
//! The thread has left the compiled code: it was redirected by the signal handler, or has called a
//! routine of this module. To the watchers it looks like a thread in the stub of a probe
//! ([`SiteFrame`]): the registers of the innermost frame lie where such a stub saves them, and the
//! store's activation counts as left from there. So watchers can read all frames, and use the store
//! as the closure of a probe does.
//!
//! # The innermost frame
//! 1. *At a signal*, all registers are recorded, and the frame is at the instruction that trapped.
//! 2. *In a libcall* that fails or throws, the callee-saved registers are recorded.
//! 3. *In a host function*, the frame waits for its call. The trampoline has saved the callee-saved
//!    registers.
//!
//! A function that checks the stack, or is in its prologue, has no values yet: then the innermost
//! frame is its caller, which waits for the call.
//!
//! Nothing is reported if the frame's values are not found, as in the stub of a probe.

use std::sync::Arc;

use wasm_jit_codegen::{Reg, SiteFrame, callee_saved_slot};

use super::unwind::{Frame, Frames, seen_by};
use super::{ExecutionState, Trap};
use crate::code::probed::counting::{context_of, context_slot};
use crate::code::probed::trapped::{TrappedFrame, is_watched};
use crate::code::probed::unwound::Cause;
use crate::code::registry::image_at;
use crate::vmctx::VmStoreContext;

/// The number of `rbp` and of `r14` in machine code.
const FRAME: usize = 5;
const CONTEXT: usize = 14;

/// Reports the trap or exception of a frame. `vectors` are the SSE registers at a signal.
///
/// # Safety
/// As [`Frames::new`]. The registers that the store has recorded are those of this frame: all of
/// them if it does not wait for a call, otherwise the callee-saved ones.
pub(super) unsafe fn report(
    store: *mut ExecutionState,
    frame: Frame,
    vectors: Option<&[u128; 16]>,
    cause: Cause,
) {
    if !is_watched() {
        return;
    }
    // SAFETY: the caller's obligation.
    let vm = unsafe { &raw mut (*store).vm };
    // SAFETY: the caller's obligation.
    let mut registers = unsafe { (*vm).raised_registers };
    let is_function = |frame: &Frame| {
        let pc = frame.pc - usize::from(frame.is_call);
        // SAFETY: the thread is in the code at this address, or will return to it.
        unsafe { image_at(pc) }.is_some_and(|image| image.function_at(pc).is_some())
    };
    let mut is_recorded = true;
    let is_signal = vectors.is_some();
    let first_fp = frame.fp;
    // The check of the stack precedes the function's first instruction.
    let has_no_values = !frame.is_call && matches!(cause, Cause::Trap(Trap::StackOverflow));
    // SAFETY: the thread is in the code at this address.
    if has_no_values && unsafe { image_at(frame.pc) }.is_some_and(|image| image.stub_at(frame.pc).is_some()) {
        return;
    }
    // SAFETY: the caller's obligation.
    let frames = unsafe { Frames::new(store, frame) };
    let found = frames.skip(usize::from(has_no_values)).find(|found| {
        let found_it = is_function(found);
        if !found_it {
            // Only a host function's trampoline is known to have saved them.
            // SAFETY: the trampoline through which the activation was left has not been left.
            is_recorded &= unsafe { host_saved(vm, found.fp, &mut registers) };
        }
        found_it
    });
    let Some(frame) = found else { return };
    let pc = frame.pc - usize::from(frame.is_call);
    // SAFETY: as above.
    let Some(image) = (unsafe { image_at(pc) }) else { return };
    let Some(function) = image.function_at(pc).filter(|_| !image.trap_watchers.is_empty()) else { return };
    let is_kept = |reg: Reg| is_recorded && callee_saved_slot(reg).is_some();
    let is_function_call = frame.is_call && (is_signal || frame.fp != first_fp);
    let known = match is_function_call {
        true => image
            .call_values(function, frame.pc)
            .map(|(position, located)| (position, Arc::new(located.at_trap(is_kept, |_| None)))),
        false => image.trapped_values(function, pc, frame.is_call),
    };
    let Ok((position, located)) = known else { return };
    registers[FRAME] = frame.fp as u64;
    // SAFETY: a frame that waits for a call has its context there; the caller's obligation at a
    // signal.
    let context =
        unsafe { if frame.is_call { context_of(frame.fp).addr() } else { super::innermost::context(&*vm) } };
    registers[CONTEXT] = context as u64;
    if !frame.is_call {
        // From here on the frame looks like one that waits for a call, whose context is there. A
        // function without calls has reserved the place only.
        // SAFETY: the frame is complete, and compiled code does not run.
        unsafe { context_slot(frame.fp).write(std::ptr::with_exposed_provenance(context)) };
    }
    if let Cause::Exception(exception) = cause {
        // Where the collector finds it: a frame that waits for a call has no value in `rax`.
        registers[0] = exception as u64;
    }
    let mut site = SiteFrame::of_thread(&registers, vectors.unwrap_or(&[0; 16]), pc + 1);
    let site = &raw mut site;
    // SAFETY: the exception, if it is one, is alive, and the frame waits for the call that throws
    // it.
    let cause = unsafe { seen_by(image, frame, cause) };
    // SAFETY: the caller's obligation: compiled code does not run. The collector finds the
    // registers from the stack pointer that is recorded.
    unsafe {
        let before = ((*vm).exit_fp, (*vm).exit_sp);
        // Watchers may call functions, which may trap as well.
        let VmStoreContext { raised_pc, raised_fp, raised_sp, raised_address, raised_signal, .. } = *vm;
        let raised_registers = (*vm).raised_registers;
        ((*vm).exit_fp, (*vm).exit_sp) = ((&raw const (*site).fp).addr(), site.addr());
        let trapped = TrappedFrame { function, position, located, site, cause };
        image.trap_watchers.each(|watcher| watcher(&trapped));
        ((*vm).exit_fp, (*vm).exit_sp) = before;
        ((*vm).raised_pc, (*vm).raised_fp, (*vm).raised_sp) = (raised_pc, raised_fp, raised_sp);
        ((*vm).raised_address, (*vm).raised_signal) = (raised_address, raised_signal);
        (*vm).raised_registers = raised_registers;
    }
}

/// Takes the callee-saved registers from the trampoline through which the activation was left, if
/// this is its frame.
///
/// # Safety
/// The trampoline has not been left.
unsafe fn host_saved(vm: *const VmStoreContext, fp: usize, registers: &mut [u64; 16]) -> bool {
    // SAFETY: the caller's obligation.
    if unsafe { (*vm).exit_fp } != fp {
        return false;
    }
    for (number, offset) in [(3, 16), (12, 24), (13, 32)] {
        // SAFETY: host trampolines save them there.
        registers[number] = unsafe { std::ptr::with_exposed_provenance::<u64>(fp - offset).read() };
    }
    true
}
