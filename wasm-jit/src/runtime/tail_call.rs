//! [`Libcall::TailCall`](crate::vmctx::Libcall::TailCall): the end of a tail call to a function of
//! another instance, or to a host function.
//!
//! Compiled code relies on `r14` and `r15` after a call inside its instance, so the callee of such
//! a tail call must not return to the caller's caller. It returns to a *return frame*, which
//! restores the registers and then returns itself:
//!
//! ```text
//! [rbp + 8]       return address of the function that has made the tail call
//! [rbp]           its caller's rbp
//! [rbp - 8]       its context, which is that of its caller if the caller relies on it
//! [rbp - 16]      unused
//! [rbp - 24 ...]  arguments of the callee on the stack, which it removes
//! ```
//!
//! # The steps
//! 1. If the function that makes the tail call would itself return to a return frame, that frame
//!    stays. Otherwise its own frame becomes one, at the end of its arguments, so that the return
//!    frame has no arguments to remove.
//! 2. The arguments are moved to below the return frame.
//! 3. The callee is called, or, if there was a return frame already, jumped to, with the return
//!    address of the first call. Calls and returns are thus paired, as the processor predicts them.
//!
//! A chain of tail calls between any number of instances therefore has one return frame, however
//! long it is. This requires one return address for all code of the process, which is therefore
//! here.
//!
//! # Walks of the stack
//! A return frame is linked by `rbp` like any other. Its return address is in no code image, so
//! walks of frames skip it, and nothing is reported for it. The engine treats a signal in this
//! routine as one in the host; nothing here can trap. The unwind information is for debuggers.

use std::arch::naked_asm;
use std::mem::offset_of;

use crate::vmctx::{VmContext, VmFuncRef};

/// See [`Libcall::TailCall`](crate::vmctx::Libcall::TailCall). The frame that is left is at least
/// 64 bytes larger than the arguments at its end, so the arguments move upwards.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn tail_call() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rbp, 16",
        ".cfi_offset rbp, -16",
        "lea r15, [rip + 4f]",
        "cmp r15, [rbp + 8]",
        "je 2f",
        // The frame becomes a return frame. At each instruction, there are a return address and an
        // rbp at the current rbp.
        "mov r15, [rbp + 8]",
        "mov [rbp + r11 + 8], r15",
        "mov r15, [rbp]",
        "mov [rbp + r11], r15",
        "add rbp, r11",
        "mov [rbp - 8], r14",
        "xor r15d, r15d",
        "jmp 3f",
        "2:",
        "mov rbp, [rbp]",
        "3:",
        // From the last argument to the first: source and destination may overlap.
        "lea r11, [rbp - 16]",
        "sub r11, rax",
        "5:",
        "sub rax, 16",
        "jb 6f",
        "movups xmm15, [rsp + rax]",
        "movups [r11 + rax], xmm15",
        "jmp 5b",
        "6:",
        "mov rsp, r11",
        "mov rax, r14",
        "mov r14, [r10 + {context}]",
        "test r15, r15",
        "jnz 7f",
        "mov r15, [r14 + {memory0}]",
        "call [r10 + {code}]",
        // The return address of all callees.
        "4:",
        "mov r14, [rbp - 8]",
        "mov r15, [r14 + {memory0}]",
        ".cfi_remember_state",
        "leave",
        ".cfi_def_cfa rsp, 8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_restore_state",
        "7:",
        "push r15",
        "mov r15, [r14 + {memory0}]",
        "jmp [r10 + {code}]",
        ".cfi_endproc",
        context = const offset_of!(VmFuncRef, context),
        memory0 = const offset_of!(VmContext, memory0),
        code = const offset_of!(VmFuncRef, code),
    )
}
