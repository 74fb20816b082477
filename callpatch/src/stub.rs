//! Stubs: the targets of retargeted sites. A stub passes the site's number to the callee, and
//! continues through a pointer.
//!
//! ```text
//! mov rdx, rdi            48 89 fa             the site's own first argument becomes the third
//! mov edi, cell+8(%rip)   8b 3d n0 n1 n2 n3    the number becomes the first; the second stays as it is
//! jmp *cell(%rip)         ff 25 p0 p1 p2 p3    nothing is pushed: the callee returns to the site
//! ```
//!
//! Everything that differs between sites is in the cell, so a page of stubs can be written and
//! sealed before the sites are known.
//!
//! Live at a stub are the registers that are live at a call under the System V convention: the
//! stack is aligned as at the site, and RDX and RDI, which are argument registers, may change.
//! Nothing is pushed, so unwinding needs no CFI here, and shadow stacks stay consistent.
//!
//! # Example
//! A site that calls nothing at first, and whose callee can be changed at any time by storing
//! another one into the cell:
//!
//! ```
//! use std::arch::global_asm;
//! use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
//!
//! use callpatch::CallSite;
//! use callpatch::stub::{CELL_SIZE, NUMBER, STUB_SIZE, stub};
//! use wordpatch::near::NearBlock;
//!
//! // A function with a NOP of five bytes, inside an aligned quadword.
//! global_asm!(
//!     ".globl work, work_site",
//!     ".balign 8",
//!     "work: sub rsp, 8",
//!     ".balign 8",
//!     "work_site: .byte 0x0f, 0x1f, 0x44, 0, 0",
//!     "add rsp, 8",
//!     "ret",
//! );
//!
//! unsafe extern "C" {
//!     safe fn work();
//!     static work_site: u8;
//! }
//!
//! static LAST: AtomicU32 = AtomicU32::new(0);
//!
//! extern "C" fn hook(number: u32) {
//!     LAST.store(number, Ordering::Relaxed);
//! }
//!
//! fn main() -> Result<(), callpatch::Error> {
//!     let site = &raw const work_site as usize;
//!     let mut block = NearBlock::allocate(&(site..site + 5), STUB_SIZE, CELL_SIZE)?;
//!     let code = stub(block.code_address(), block.data_address())?;
//!     block.code_mut()[..STUB_SIZE].copy_from_slice(&code);
//!     let block = block.seal()?;
//!     // SAFETY: the data of the block, which is writable and zero, and which only these two refer to.
//!     let (callee, number) = unsafe {
//!         let cell = std::ptr::with_exposed_provenance_mut::<u8>(block.data);
//!         (AtomicUsize::from_ptr(cell.cast()), AtomicU32::from_ptr(cell.add(NUMBER).cast()))
//!     };
//!     number.store(7, Ordering::Relaxed);
//!     callee.store(hook as *const () as usize, Ordering::Release);
//!
//!     // SAFETY: 1. the program's own code, which only callpatch writes; 2. `work` is right with and without the call,
//!     // for which the stack is aligned, and needs no caller-saved register after it; 3. nothing branches into it.
//!     let site = unsafe { CallSite::at_nop(site, block.code)? };
//!     work();
//!     assert_eq!(LAST.load(Ordering::Relaxed), 0);
//!     site.activate()?;
//!     work();
//!     assert_eq!(LAST.load(Ordering::Relaxed), 7);
//!     Ok(())
//! }
//! ```

use wordpatch::Bytes;
use wordpatch::internal::INT3;

use crate::encoding::{self, Shape};
use crate::error::Error;

/// The size of a stub in bytes; a multiple of 16, so that stubs are aligned.
pub const STUB_SIZE: usize = 16;

/// The size of a cell in bytes: eight with the address to continue at, four with the number. The
/// rest belongs to the provider.
pub const CELL_SIZE: usize = 16;

/// The offset of the number in a cell, in bytes.
pub const NUMBER: usize = 8;

/// `mov rdx, rdi`.
const MOV_RDX_RDI: [u8; 3] = [0x48, 0x89, 0xfa];

/// The first bytes of `mov edi, disp32(%rip)`.
const MOV_EDI_RIP: [u8; 2] = [0x8b, 0x3d];

/// The size of a relay in bytes.
pub const RELAY_SIZE: usize = Shape::Jump.len();

/// The code of a relay at `address`: a jump to `target`, which returns to the site.
///
/// # Errors
/// [`Error::OutOfReach`].
pub fn relay(address: usize, target: usize) -> Result<Bytes, Error> {
    let displacement = encoding::displacement(Shape::Jump, address, target);
    let jump = |displacement| encoding::active(Shape::Jump, displacement);
    displacement.map(jump).ok_or(Error::OutOfReach { address, target })
}

/// The code of a stub at `address` whose cell is at `cell`.
///
/// # Errors
/// [`Error::OutOfReach`].
pub fn stub(address: usize, cell: usize) -> Result<[u8; STUB_SIZE], Error> {
    code(address, cell).ok_or(Error::OutOfReach { address, target: cell })
}

fn code(address: usize, cell: usize) -> Option<[u8; STUB_SIZE]> {
    // As long as a jump through a pointer, so its displacement is relative to the same end.
    let load = address + MOV_RDX_RDI.len();
    let number = encoding::displacement(Shape::IndirectJump, load, cell + NUMBER)?;
    let jump = load + Shape::IndirectJump.len();
    let jump =
        encoding::active(Shape::IndirectJump, encoding::displacement(Shape::IndirectJump, jump, cell)?);
    let mut code = [INT3; STUB_SIZE];
    code[..3].copy_from_slice(&MOV_RDX_RDI);
    code[3..5].copy_from_slice(&MOV_EDI_RIP);
    code[5..9].copy_from_slice(&number.to_le_bytes());
    code[9..9 + jump.len()].copy_from_slice(&jump);
    Some(code)
}
