//! Generated code, and mappings.

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use wordpatch::code_memory::{CodeBuffer, CodeMemory};

use super::{A, RET, mov_eax};

pub const PAGE: usize = 4096;

/// Code memory with `mov eax, A; ret` at `offset`, and a RET after it.
pub fn generate(offset: usize) -> CodeMemory {
    let mut buffer = CodeBuffer::new(1 << 31).unwrap();
    let code = [vec![0x90; offset], mov_eax(A).to_vec(), vec![RET]].concat();
    assert_eq!(buffer.append(&code, 1), Some(0));
    assert_eq!(buffer.append(&[RET], 64), Some(code.len().next_multiple_of(64)));
    buffer.seal().unwrap()
}

/// Lines of `/proc/self/maps` that are in the range.
pub fn mappings(range: &std::ops::Range<usize>) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| usize::from_str_radix(line.split_once('-')?.0, 16).ok();
    maps.lines().filter(|line| start(line).is_some_and(|at| range.contains(&at))).map(str::to_owned).collect()
}

/// Maps pages of text with `mov eax, A; ret` at the start of each, and an inaccessible page on
/// either side.
pub fn pages(count: usize) -> usize {
    let around = NonZeroUsize::new((count + 2) * PAGE).unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let around =
        unsafe { mmap_anonymous(None, around, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) }.unwrap();
    let start = around.addr().get() + PAGE;
    let text: NonNull<u8> = NonNull::new(map_pages(start, count)).unwrap();
    // SAFETY: just mapped, and executed only afterwards.
    unsafe { mprotect(text.cast(), count * PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }.unwrap();
    start
}

/// Maps such pages at an address that the test owns, over existing mappings; writable, not
/// executable.
pub fn map_pages(start: usize, count: usize) -> *mut u8 {
    let (place, length) = (NonZeroUsize::new(start).unwrap(), NonZeroUsize::new(count * PAGE).unwrap());
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
    // SAFETY: callers pass addresses that they own.
    let text = unsafe { mmap_anonymous(Some(place), length, protection, flags) }.unwrap().cast::<u8>();
    let code = [mov_eax(A).as_slice(), &[RET]].concat();
    for page in 0..count {
        // SAFETY: inside the new mapping.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), text.as_ptr().add(page * PAGE), code.len()) };
    }
    text.as_ptr()
}

/// Maps another page over that of `site`, which contains only this code at `site`.
///
/// # Safety
/// No other thread may execute or map this page during the call.
pub unsafe fn map_over(site: usize, code: &[u8]) {
    let page = site & !(PAGE - 1);
    let fixed = MapFlags::MAP_FIXED | MapFlags::MAP_PRIVATE;
    let (at, size) = (page.try_into().unwrap(), PAGE.try_into().unwrap());
    // SAFETY: the caller's obligation; the code lies inside the page.
    unsafe {
        let start =
            mmap_anonymous(Some(at), size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, fixed).unwrap();
        assert!(site + code.len() <= page + PAGE);
        std::ptr::copy_nonoverlapping(code.as_ptr(), site as *mut u8, code.len());
        mprotect(start, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).unwrap();
    }
}
