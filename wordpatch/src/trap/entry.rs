//! The handler functions, one for each action that can be covered, and how they handle a trap.

use std::arch::naked_asm;
use std::ops::ControlFlow;

use super::action;
use super::delivery::Delivery;
use super::site;

/// The number of actions that can be covered.
pub(super) const ENTRIES: usize = 16;

/// A handler with the signature of SA_SIGINFO.
type Handler = unsafe extern "C-unwind" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

static HANDLERS: [Handler; ENTRIES] = [
    entry::<0>,
    entry::<1>,
    entry::<2>,
    entry::<3>,
    entry::<4>,
    entry::<5>,
    entry::<6>,
    entry::<7>,
    entry::<8>,
    entry::<9>,
    entry::<10>,
    entry::<11>,
    entry::<12>,
    entry::<13>,
    entry::<14>,
    entry::<15>,
];

/// The address of the function of an entry.
pub(super) fn function(number: usize) -> usize {
    HANDLERS[number] as *const () as usize
}

/// The entry whose function this is.
pub(super) fn number(function: usize) -> Option<usize> {
    HANDLERS.iter().position(|handler| *handler as *const () as usize == function)
}

/// Calls [`arrive`] with the entry's number and the stack pointer on entry, which distinguishes a
/// call by the kernel from one by a handler. It is a call, not a jump, because a handler that
/// `arrive` calls must not be entered with the stack pointer that the kernel has set.
#[unsafe(naked)]
unsafe extern "C-unwind" fn entry<const NUMBER: usize>(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "mov rcx, rsp",
        "mov r8d, {number}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {arrive}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        number = const NUMBER,
        arrive = sym arrive,
    )
}

/// Handles a SIGTRAP that has reached the entry `number`, from the kernel or from a handler of the
/// program that passes it on.
unsafe extern "C-unwind" fn arrive(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    stack: usize,
    number: usize,
) {
    // SAFETY: the arguments of the call, and the stack pointer.
    let mut delivery = unsafe { Delivery::identify(info, context, stack) };
    let code = delivery.code();
    if let Some(context) = delivery.context()
        && let ControlFlow::Break(()) = site::resume(context, code)
    {
        return;
    }
    let (next, passed) = delivery.next(number);
    let Some(next) = next else { return die(delivery) };
    let action = next.action();
    match action.function {
        libc::SIG_DFL => die(delivery),
        // Signals forced by an instruction have positive codes, and cannot be ignored.
        libc::SIG_IGN if code.is_some_and(|code| code > 0) => die(delivery),
        libc::SIG_IGN => {}
        _ if !next.use_up() => die(delivery),
        _ => {
            let (info, context) = delivery.pointers();
            let entered = delivery.enter(passed);
            // SAFETY: the program installed the action. The pointers are those of the delivery, or
            // the arguments of this entry.
            unsafe { action.call(signal, info, context) };
            delivery.leave(entered);
        }
    }
}

/// Takes the default action.
fn die(mut delivery: Delivery) {
    let info = delivery.info();
    action::take_default(info.as_ref(), delivery.context());
}
