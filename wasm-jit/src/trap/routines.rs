//! Machine code that leaves activations, and passes exceptions to their handlers.
//!
//! Every routine is jumped to or called with `rbp` as in compiled code, and none returns. The stack
//! pointer may be anywhere below the frames; the routines use the stack below it. They do not
//! preserve callee-saved registers: when an activation is left, its caller's registers are restored
//! from the frame of its entry trampoline, and a function that has handlers saves all of them in
//! its frame.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::capture;
use super::unwind::find_handler;
use crate::vmctx::{Libcall, VmContext, VmStoreContext};

/// The address of one of the libcalls `Throw`, `Raise` and `RaiseFromHost`.
pub(crate) fn routine(libcall: Libcall) -> Option<usize> {
    match libcall {
        Libcall::Throw => Some(throw as *const () as usize),
        Libcall::Raise => Some(raise as *const () as usize),
        Libcall::RaiseFromHost => Some(raise_from_host as *const () as usize),
        _ => None,
    }
}

/// The target to which the signal handler redirects a thread: `rdi` is the store, in which the
/// event is recorded, and the stack is aligned to 16 bytes.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn raise_by_signal() {
    naked_asm!(
        "mov rbx, rdi",
        // The SSE registers are as they were at the signal.
        "sub rsp, 256",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "movups [rsp + 128], xmm8",
        "movups [rsp + 144], xmm9",
        "movups [rsp + 160], xmm10",
        "movups [rsp + 176], xmm11",
        "movups [rsp + 192], xmm12",
        "movups [rsp + 208], xmm13",
        "movups [rsp + 224], xmm14",
        "movups [rsp + 240], xmm15",
        "mov rsi, rsp",
        "call {capture}",
        "mov rdi, rbx",
        "jmp {leave}",
        capture = sym capture::capture_signal,
        leave = sym leave,
    )
}

/// Leaves the innermost activation of the store in `rdi`: returns 1 from its entry trampoline.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        "mov rbp, [rdi + {activation_fp}]",
        "mov eax, 1",
        "lea rsp, [rbp - 40]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        activation_fp = const offset_of!(VmStoreContext, activation_fp),
    )
}

/// [`Libcall::Raise`]: the return address is the program counter, `r14` the context of an instance
/// or host function.
#[unsafe(naked)]
unsafe extern "C" fn raise() {
    naked_asm!(
        "mov rsi, [rsp]",
        "mov rdx, rbp",
        "mov rdi, [r14 + {store}]",
        "mov [rdi + {registers} + 8 * 3], rbx",
        "mov [rdi + {registers} + 8 * 12], r12",
        "mov [rdi + {registers} + 8 * 13], r13",
        "mov rbx, rdi",
        "and rsp, -16",
        "call {capture}",
        "mov rdi, rbx",
        "jmp {leave}",
        store = const offset_of!(VmContext, store),
        registers = const offset_of!(VmStoreContext, raised_registers),
        capture = sym capture::capture_noted,
        leave = sym leave,
    )
}

/// [`Libcall::RaiseFromHost`]: throws the exception that the host function has recorded in the
/// store, if there is one.
#[unsafe(naked)]
unsafe extern "C" fn raise_from_host() {
    naked_asm!(
        "mov rcx, [r14 + {store}]",
        "xor edi, edi",
        "xchg rdi, [rcx + {thrown}]",
        "test rdi, rdi",
        "jnz {throw}",
        "jmp {raise}",
        store = const offset_of!(VmContext, store),
        thrown = const offset_of!(VmStoreContext, thrown),
        throw = sym throw,
        raise = sym raise,
    )
}

/// [`Libcall::Throw`]: continues at the handler of the exception in `rdi`, or leaves the
/// activation. The handler's address, frame and stack pointer are returned in the store's fields
/// that otherwise describe where the thread raised.
#[unsafe(naked)]
unsafe extern "C" fn throw() {
    naked_asm!(
        "mov rdx, [rsp]",
        "mov rcx, rbp",
        "mov rsi, rdi",
        "mov rdi, [r14 + {store}]",
        "mov [rdi + {registers} + 8 * 3], rbx",
        "mov [rdi + {registers} + 8 * 12], r12",
        "mov [rdi + {registers} + 8 * 13], r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        "and rsp, -16",
        "call {find_handler}",
        "mov rdi, rbx",
        "test eax, eax",
        "jz {leave}",
        "mov rbp, [rbx + {fp}]",
        "mov rsp, [rbx + {sp}]",
        "mov r14, [rbp - 8]",
        "mov r15, [r14 + {memory0}]",
        "mov rax, r12",
        "jmp [rbx + {pc}]",
        store = const offset_of!(VmContext, store),
        registers = const offset_of!(VmStoreContext, raised_registers),
        memory0 = const offset_of!(VmContext, memory0),
        pc = const offset_of!(VmStoreContext, raised_pc),
        fp = const offset_of!(VmStoreContext, raised_fp),
        sp = const offset_of!(VmStoreContext, raised_sp),
        find_handler = sym find_handler,
        leave = sym leave,
    )
}
