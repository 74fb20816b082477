//! The probe function. Runs wherever a probe fires: see [`crate::ring`].

use std::arch::naked_asm;

use fastinst::ProbeId;
use wordpatch::tsc;

use crate::ring::{self, Event};

/// Continues to [`write`] with the stack pointer and the return address as further arguments. If
/// the site is a call, that address is after it; if it is a jump, as at exits that are tail calls,
/// the address is that of the function itself.
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
    ring::write(Event {
        probe: id.0,
        continues_at: continues_at as u32,
        ticks: tsc::now(),
        stack_pointer: stack_pointer as u64,
        call_site: call_site as u64,
    });
}
