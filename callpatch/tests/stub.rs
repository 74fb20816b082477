//! Stubs, executed.

use std::arch::asm;

use callpatch::Error;
use callpatch::stub::{CELL_SIZE, NUMBER, STUB_SIZE, stub};
use wordpatch::near::NearBlock;

/// `mov rax, rdi; mov rcx, rsi; ret`; RDX stays as it is.
const CALLEE: [u8; 7] = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf1, 0xc3];

#[test]
fn a_stub_passes_its_number_and_shifts_the_first_argument() {
    let anchor = stub as *const () as usize;
    let mut block = NearBlock::allocate(&(anchor..anchor), 128, 4 * CELL_SIZE).unwrap();
    let (start, cells) = (block.code_address(), block.data_address());
    let cell = |place: usize| cells + place / 32 * CELL_SIZE;
    block.code_mut()[..CALLEE.len()].copy_from_slice(&CALLEE);
    for place in [32, 64, 96] {
        let code = stub(start + place, cell(place)).unwrap();
        block.code_mut()[place..place + STUB_SIZE].copy_from_slice(&code);
    }
    block.seal().unwrap();
    for (place, number) in [(32, 0_u64), (64, 0x8000_0001), (96, 0xffff_ffff)] {
        let (rdi, rsi, rdx): (u64, u64, u64);
        // SAFETY: the data page is writable.
        unsafe {
            (cell(place) as *mut usize).write(start);
            ((cell(place) + NUMBER) as *mut u32).write(number as u32);
        }
        // SAFETY: the stub changes RDI and RDX and continues at the callee, which changes RAX and
        // RCX and returns.
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
    // The load of the number ends 9 bytes after the stub's start, the jump 15 bytes after it.
    let (load, jump) = (at + 9, at + 15);
    let (last, first) = (load + i32::MAX as usize - NUMBER, jump - (1 << 31));
    assert!(stub(at, last).is_ok() && stub(at, first).is_ok());
    for cell in [last + 1, first - 1] {
        let refused = stub(at, cell);
        assert!(
            matches!(refused, Err(Error::OutOfReach { address, target }) if address == at && target == cell)
        );
    }
}
