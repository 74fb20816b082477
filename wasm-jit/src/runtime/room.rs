//! [`Libcall::MakeRoom`](crate::vmctx::Libcall::MakeRoom): compiled code allocates an object, and
//! the span of the heap has no room for it.
//!
//! The routine preserves all registers, so that an allocation costs compiled code no spills. It
//! saves them on the stack, where the collector finds the references in them. The collector
//! therefore need not scan frames of the runtime, which contain references left by earlier calls.

use std::arch::naked_asm;

use super::collect::From;
use super::objects::Room;
use super::store::StoreArea;
use crate::trap::{self, Trap};
use crate::vmctx::VmContext;

/// Called with `rbp` and `r14` as in compiled code; the stack may have any alignment.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn make_room() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rax",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push rbx",
        "push r12",
        "push r13",
        "push r15",
        // If the stack needs no alignment, the vectors overlap this word. Therefore every word is
        // written.
        "push 0",
        "sub rsp, 232",
        "and rsp, -16",
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
        "mov rdi, r14",
        "mov rsi, rsp",
        "call {find_room}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "movups xmm8, [rsp + 128]",
        "movups xmm9, [rsp + 144]",
        "movups xmm10, [rsp + 160]",
        "movups xmm11, [rsp + 176]",
        "movups xmm12, [rsp + 192]",
        "movups xmm13, [rsp + 208]",
        "movups xmm14, [rsp + 224]",
        "lea rsp, [rbp - 64]",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "pop rbp",
        "ret",
        find_room = sym find_room,
    )
}

/// Makes room for an object whose size compiled code has recorded. The registers of compiled code,
/// and its frames above them, begin at the address `saved`. Returns 0, or 1 if there is no room.
///
/// # Safety
/// The context is that of an instance whose code is running and has called the routine
/// [`MakeRoom`](crate::vmctx::Libcall::MakeRoom).
unsafe extern "sysv64" fn find_room(context: *mut VmContext, saved: usize) -> u64 {
    // SAFETY: the caller's obligation; the store is lent to the code that runs in it.
    let store = unsafe {
        let area: *mut StoreArea = (*context).store.cast();
        &mut *(*area).store
    };
    // SAFETY: as above; this thread runs the store.
    let (size, is_interrupted) =
        unsafe { ((*store.vm()).heap_wanted, trap::is_interrupted(store.execution())) };
    let made = store.attempt(|store| match is_interrupted {
        true => Err(Trap::Interrupt.into()),
        false => store.make_room(size, Room::of(From::Above(saved))),
    });
    made.is_none().into()
}
