//! A 1|4 site without memory within reach of its displacement: it is directed to a RET of the
//! program itself. There is only one test, because it occupies all address space around its code.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use callpatch::{CallSite, Clobbers, Error, Strategy};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use wordpatch::{FetchModel, FetchWindow, WaitPolicy};

const PAGE: usize = 4096;

/// Further than any displacement.
const AROUND: usize = (1 << 31) + (1 << 24);

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn callee() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// Maps all free address space around `center`, inaccessible.
fn crowd(center: usize) {
    let mut end_of_last = center - AROUND;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the map");
    let mut gaps = Vec::new();
    for line in maps.lines() {
        let (start, rest) = line.split_once('-').expect("a range");
        let end = rest.split(' ').next().expect("its end");
        let parse = |text| usize::from_str_radix(text, 16).expect("an address");
        let (start, end) = (parse(start), parse(end));
        if start > end_of_last {
            gaps.push(end_of_last..start.min(center + AROUND));
        }
        end_of_last = end_of_last.max(end);
    }
    gaps.push(end_of_last..center + AROUND);
    for gap in gaps.into_iter().filter(|gap| gap.start < gap.end) {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
        let (start, length) = (NonZeroUsize::new(gap.start), NonZeroUsize::new(gap.end - gap.start));
        // SAFETY: a new mapping where nothing is mapped. Gaps that the kernel keeps free, such as
        // below the stack, stay free.
        let _ = unsafe { mmap_anonymous(start, length.expect("not empty"), ProtFlags::PROT_NONE, flags) };
    }
}

#[test]
fn a_ret_of_the_program_serves_where_no_island_fits() {
    // SAFETY: the vendors' guarantees hold everywhere.
    unsafe { FetchModel::force(FetchWindow::Bytes8, None, WaitPolicy::Membarrier) };
    let size = NonZeroUsize::new(2 * PAGE).expect("not zero");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address chosen by the kernel.
    let pages = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) }.expect("two pages");
    let start = pages.as_ptr() as usize;
    // At 0: jmp *callee. At 32: sub rsp, 8; (at 39, crossing 40) call 0; add rsp, 8; ret. At 71:
    // call *[0x100]; ret
    let mut code = vec![0x90_u8; PAGE];
    code[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    code[6..14].copy_from_slice(&(callee as *const () as usize).to_le_bytes());
    code[32..36].copy_from_slice(&[0x48, 0x83, 0xec, 8]);
    code[39] = 0xe8;
    code[40..44].copy_from_slice(&(-44_i32).to_le_bytes());
    code[44..49].copy_from_slice(&[0x48, 0x83, 0xc4, 8, 0xc3]);
    code[71..73].copy_from_slice(&[0xff, 0x15]);
    code[73..77].copy_from_slice(&0xb3_i32.to_le_bytes());
    code[77] = 0xc3;
    // At 0x200: jmp *callee. At 96: sub rsp, 8; (at 103, crossing 104) call 0; jmp over; (at 110)
    // jmp 0x200, a tail call; add rsp, 8; ret.
    code[96..100].copy_from_slice(&[0x48, 0x83, 0xec, 8]);
    code[103] = 0xe8;
    code[104..108].copy_from_slice(&(-108_i32).to_le_bytes());
    code[108..110].copy_from_slice(&[0xeb, 5]);
    // Its displacement can be decoded as instructions if its first byte is RET: lea eax, [rcx]; add
    // [rax], al.
    code[110] = 0xe9;
    code[111..115].copy_from_slice(&(0x200_i32 - 115).to_le_bytes());
    code[0x200..0x206].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    code[0x206..0x20e].copy_from_slice(&(callee as *const () as usize).to_le_bytes());
    code[115..120].copy_from_slice(&[0x48, 0x83, 0xc4, 8, 0xc3]);
    // SAFETY: the pages are new, writable, and executed only afterwards.
    unsafe {
        std::ptr::copy_nonoverlapping(code.as_ptr(), pages.as_ptr().cast(), code.len());
        mprotect(pages, 2 * PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC).expect("sealed");
    }
    // SAFETY: the code at 32 is a function without arguments.
    let function: extern "C" fn() = unsafe { std::mem::transmute(start + 32) };
    crowd(start);

    // SAFETY: a call in our own text, correct with and without it.
    let site = unsafe { CallSite::decode(start + 39, Clobbers::Nothing) }.expect("a call");
    assert_eq!(site.strategy(), Strategy::RetIsland);
    function();
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    site.deactivate().expect("switched off");
    function();
    assert_eq!(CALLS.load(Ordering::Relaxed), 1, "the call was made");
    site.activate().expect("switched on");
    function();
    assert_eq!(CALLS.load(Ordering::Relaxed), 2);

    // The first RET after this site is an inactive tail call, which becomes a jump again: the next
    // one must be used. SAFETY: as above.
    let (tail_call, site) = unsafe {
        let tail_call = CallSite::decode(start + 110, Clobbers::Nothing).expect("a tail call");
        tail_call.deactivate().expect("switched off");
        (tail_call, CallSite::decode(start + 103, Clobbers::Nothing).expect("a call"))
    };
    assert_eq!(site.strategy(), Strategy::RetIsland);
    // SAFETY: the code at 96 is a function without arguments.
    let function: extern "C" fn() = unsafe { std::mem::transmute(start + 96) };
    site.deactivate().expect("switched off");
    tail_call.activate().expect("switched on");
    function();
    assert_eq!(CALLS.load(Ordering::Relaxed), 2, "the site was retargeted to a tail call");

    // A call through a pointer needs a pointer to a RET, which the program does not have. SAFETY:
    // as above.
    let refused = unsafe { CallSite::decode(start + 71, Clobbers::Nothing) };
    let out_of_reach = |error: &Error| matches!(error, Error::Text(wordpatch::Error::OutOfReach { .. }));
    assert!(refused.as_ref().is_err_and(out_of_reach), "{refused:?}");
}
