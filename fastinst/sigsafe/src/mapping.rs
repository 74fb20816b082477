//! Memory that is mapped without an allocator.

use std::ptr;

/// Maps private memory of zeros, for reading and writing: one system call, no lock.
pub(crate) fn map_zeroed(length: usize) -> Option<*mut libc::c_void> {
    // SAFETY: a new private mapping at an address chosen by the kernel.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory)
}
