//! The kernel's signal frame on the stack, at the entry of a handler.
//!
//! ```text
//! struct rt_sigframe {        // arch/x86/include/asm/sigframe.h
//!     char *pretcode;         // the handler's return address: rsp points here
//!     struct ucontext uc;     // third argument
//!     struct siginfo info;    // second argument
//! };
//! ```

use std::mem::offset_of;

/// The kernel's `struct ucontext`. The C library's is longer, and would overlap `info`.
#[repr(C)]
pub(super) struct Context {
    flags: u64,
    /// Set to 0 by the kernel for each signal, and never read by it.
    pub(super) link: u64,
    stack: libc::stack_t,
    pub(super) machine: libc::mcontext_t,
    /// The signal mask in force once the handler returns.
    pub(super) mask: u64,
}

const _: () = assert!(offset_of!(Context, machine) == offset_of!(libc::ucontext_t, uc_mcontext));
const _: () = assert!(offset_of!(Context, mask) == offset_of!(libc::ucontext_t, uc_sigmask));

/// Lower addresses are never mapped (`vm.mmap_min_addr`).
const MIN_ADDRESS: usize = 1 << 16;

/// Whether a handler that was entered with this stack pointer and this context was called by the
/// kernel. (A handler that the kernel has called and that makes a tail call to ours looks the same.
/// If that handler is in force, and our entry is bound to it, it receives the trap a second time.)
pub(super) fn is_call_by_kernel(context: *const Context, stack: usize) -> bool {
    context.addr() == stack + size_of::<usize>()
}

/// Whether the two pointers can be those of one frame: if a handler without SA_SIGINFO calls
/// another, the registers of these arguments contain arbitrary values.
pub(super) fn is_frame(info: *const libc::siginfo_t, context: *const Context) -> bool {
    // The kernel aligns the frame so that the stack is aligned as after a call.
    let is_aligned = context.addr().is_multiple_of(16);
    is_aligned
        && context.addr() >= MIN_ADDRESS
        && info.addr() == context.addr().wrapping_add(size_of::<Context>())
}

#[cfg(test)]
impl Context {
    /// A frame's context at this address, with these registers; everything else is 0.
    pub(super) fn at(instruction_pointer: usize, exception: i64) -> Self {
        // SAFETY: all zero is valid.
        let mut context: Self = unsafe { std::mem::zeroed() };
        context.machine.gregs[libc::REG_RIP as usize] = instruction_pointer as i64;
        context.machine.gregs[libc::REG_TRAPNO as usize] = exception;
        context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_one_frame_are_distinguished_from_others() {
        use std::ptr::without_provenance;
        let is_frame = |info, context| super::is_frame(without_provenance(info), without_provenance(context));
        assert!(is_frame(0x7000_0010 + 304, 0x7000_0010));
        assert!(!is_frame(0x7000_0010 + 312, 0x7000_0010));
        assert!(!is_frame(0x7000_0008 + 304, 0x7000_0008), "not aligned");
        assert!(!is_frame(304, 0), "never mapped");
        assert!(is_call_by_kernel(std::ptr::without_provenance(0x7000_0010), 0x7000_0008));
        assert!(!is_call_by_kernel(std::ptr::without_provenance(0x7000_0010), 0x7000_0010));
    }
}
