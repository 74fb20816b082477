//! The probe functions. They run wherever a probe fires: see [`crate::ring`].

use std::arch::naked_asm;

use fastinst::ProbeId;
use wordpatch::tsc;

use crate::fetch;
use crate::gate;
use crate::ring::{self, Event};

/// Continues to [`write`] with the stack pointer and the return address as further arguments. If
/// the site is a call, that address is the one after the site; if it is a jump, as at exits by tail
/// calls, it is the return address of the function itself.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn probe(_id: ProbeId, _call_site: usize, _function: usize) {
    naked_asm!("mov rcx, rsp", "mov r8, qword ptr [rsp]", "jmp {write}", write = sym write)
}

extern "C" fn write(
    id: ProbeId,
    call_site: usize,
    _function: usize,
    stack_pointer: usize,
    continues_at: usize,
) {
    let event = event(id, call_site, stack_pointer, continues_at);
    if !gate::is_closed(id, event.ticks) {
        ring::write(event);
    }
}

fn event(id: ProbeId, call_site: usize, stack_pointer: usize, continues_at: usize) -> Event {
    Event {
        probe: id.0,
        continues_at: continues_at as u32,
        ticks: tsc::now(),
        stack_pointer: stack_pointer as u64,
        call_site: call_site as u64,
    }
}

/// The registers at a probe, as [`probe_with_values`] pushes them.
#[repr(C)]
pub(crate) struct Registers {
    /// The lower halves of XMM0 to XMM7.
    pub(crate) vectors: [u64; 8],
    _alignment: u64,
    /// The registers in DWARF order: RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP (which is not one of
    /// the pushed registers), R8 to R15. RDX and RDI have the values that the probe's stub has set.
    pub(crate) general: [u64; 16],
    pub(crate) return_address: u64,
}

impl Registers {
    /// The value of RSP at the site, a call.
    pub(crate) fn stack_pointer(&self) -> usize {
        (&raw const self.return_address).addr() + size_of::<u64>()
    }
}

/// Saves the registers at the probe, and calls [`write_with_values`]. The live registers are those
/// of a call under the System V convention; the stack is aligned as at a function's entry. Only
/// caller-saved registers are changed.
///
/// ```text
/// rsp → xmm0 .. xmm7 (lower halves), 8 bytes, rax rdx rcx rbx rsi rdi rbp (rsp) r8 .. r15, return address
/// ```
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn probe_with_values(_id: ProbeId, _call_site: usize, _function: usize) {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 200",
        ".cfi_adjust_cfa_offset 200",
        "movsd qword ptr [rsp], xmm0",
        "movsd qword ptr [rsp + 8], xmm1",
        "movsd qword ptr [rsp + 16], xmm2",
        "movsd qword ptr [rsp + 24], xmm3",
        "movsd qword ptr [rsp + 32], xmm4",
        "movsd qword ptr [rsp + 40], xmm5",
        "movsd qword ptr [rsp + 48], xmm6",
        "movsd qword ptr [rsp + 56], xmm7",
        "mov qword ptr [rsp + 72], rax",
        "mov qword ptr [rsp + 80], rdx",
        "mov qword ptr [rsp + 88], rcx",
        "mov qword ptr [rsp + 96], rbx",
        "mov qword ptr [rsp + 104], rsi",
        "mov qword ptr [rsp + 112], rdi",
        "mov qword ptr [rsp + 120], rbp",
        "lea rax, [rsp + 208]",
        "mov qword ptr [rsp + 128], rax",
        "mov qword ptr [rsp + 136], r8",
        "mov qword ptr [rsp + 144], r9",
        "mov qword ptr [rsp + 152], r10",
        "mov qword ptr [rsp + 160], r11",
        "mov qword ptr [rsp + 168], r12",
        "mov qword ptr [rsp + 176], r13",
        "mov qword ptr [rsp + 184], r14",
        "mov qword ptr [rsp + 192], r15",
        "mov rdx, rsp",
        "call {write}",
        "add rsp, 200",
        ".cfi_adjust_cfa_offset -200",
        "ret",
        ".cfi_endproc",
        write = sym write_with_values,
    )
}

const _: () = assert!(std::mem::offset_of!(Registers, general) == 72);
const _: () = assert!(std::mem::offset_of!(Registers, return_address) == 200);

extern "C" fn write_with_values(id: ProbeId, call_site: usize, registers: &Registers) {
    let return_address = registers.return_address as usize;
    let stack_pointer = (&raw const registers.return_address).addr();
    // The time stamp is taken first, so that an event that a script may use has its arguments.
    let event = event(id, call_site, stack_pointer, return_address);
    if gate::is_closed(id, event.ticks) {
        return;
    }
    let (values, count) = fetch::values(id, registers);
    ring::write_with(event, &values, count);
}
