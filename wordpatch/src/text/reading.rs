//! Reads text that may be unmapped at any time, by `process_vm_readv`.
//!
//! Filters of system calls, in old versions of container runtimes for example, refuse that one.
//! Then the text is read directly, after `rt_sigprocmask` has read it: that call copies the mask
//! before it refuses an invalid argument, and is never filtered, because every `pthread_create`
//! makes it. Text that is unmapped in between makes the thread fault.

use std::io;

/// The size of a mask of signals, in bytes.
const MASK: usize = 8;

/// Reads the bytes at `address`; returns whether they are mapped. They must be in one page.
/// Async-signal-safe.
pub(super) fn read_if_mapped(address: usize, bytes: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let text = std::ptr::with_exposed_provenance_mut(address);
    let remote = libc::iovec { iov_base: text, iov_len: bytes.len() };
    // SAFETY: writes at most `bytes.len()` bytes there; an address that is not mapped is refused.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if read == bytes.len() as isize {
        return true;
    }
    if read >= 0 || !is_refused() || !is_mapped(address) {
        return false;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: in a page that is mapped readable.
        *byte = unsafe { text.cast::<u8>().add(i).read_volatile() };
    }
    true
}

/// Whether the last `process_vm_readv` has failed for another reason than its addresses.
pub(super) fn is_refused() -> bool {
    io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Whether the page of `address` is mapped readable, without `process_vm_readv`.
fn is_mapped(address: usize) -> bool {
    const NO_OPERATION: libc::c_int = -1;
    let mask = std::ptr::with_exposed_provenance::<libc::c_void>(address & !(MASK - 1));
    let nowhere = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads the mask, if it is mapped, and changes nothing, because there is no
    // such operation.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, mask, nowhere, MASK) };
    io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::near::NearBlock;

    #[test]
    fn mapped_and_unmapped_pages_are_distinguished() {
        let block = NearBlock::allocate(&(7 << 40..7 << 40), 1, 0).unwrap();
        let (start, end) = (block.code_address(), block.code_address() + 4096);
        let mut bytes = [0; 3];
        assert!(read_if_mapped(end - 3, &mut bytes) && bytes == [crate::protocol::INT3; 3]);
        assert!(is_mapped(start) && is_mapped(end - 1) && !is_mapped(end));
        drop(block);
        assert!(!is_mapped(start) && !read_if_mapped(start, &mut bytes));
    }
}
