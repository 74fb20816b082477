//! Stubs, executed.

use std::arch::asm;

use callpatch::Error;
use callpatch::stub::{STUB_SIZE, stub};
use wordpatch::near::NearBlock;

/// `mov rax, rdi; mov rcx, rsi; ret`; RDX stays as it is.
const CALLEE: [u8; 7] = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf1, 0xc3];

#[test]
fn a_stub_passes_its_number_and_shifts_the_first_argument() {
    let anchor = stub as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), 128, 8).unwrap();
    let (start, pointer) = (block.code_address(), block.data_address());
    block.code_mut()[..CALLEE.len()].copy_from_slice(&CALLEE);
    for (place, number) in [(32, 0), (64, 0x8000_0001), (96, u32::MAX)] {
        let code = stub(start + place, number, pointer).unwrap();
        block.code_mut()[place..place + STUB_SIZE].copy_from_slice(&code);
    }
    let sealed = block.seal().unwrap();
    // SAFETY: the data page is writable.
    unsafe { (sealed.data as *mut usize).write(start) };
    for (place, number) in [(32, 0_u64), (64, 0x8000_0001), (96, 0xffff_ffff)] {
        let (rdi, rsi, rdx): (u64, u64, u64);
        // SAFETY: the stub changes RDI and RDX and goes on to the callee, which changes RAX and RCX and returns.
        unsafe {
            asm!("call {}", in(reg) start + place, inout("rdi") 0x1111_2222_3333_u64 => _, in("rsi") 44_u64,
                inout("rdx") 55_u64 => rdx, out("rax") rdi, out("rcx") rsi)
        };
        assert_eq!((rdi, rsi, rdx), (number, 44, 0x1111_2222_3333));
    }
}

#[test]
fn a_pointer_that_is_out_of_reach_is_refused() {
    let at = 1 << 40;
    // The jump ends 14 bytes after the stub's start.
    let end = at + 14;
    assert!(stub(at, 0, end + i32::MAX as usize).is_ok());
    assert!(stub(at, 0, end - (1 << 31)).is_ok());
    for pointer in [end + (1 << 31), end - (1 << 31) - 1] {
        let refused = stub(at, 0, pointer);
        assert!(
            matches!(refused, Err(Error::OutOfReach { address, target }) if address == at && target == pointer)
        );
    }
}
