//! Stubs: what a retargeted site calls. A stub tells the callee which site it was, and goes on through a pointer.
//!
//! ```text
//! mov rdx, rdi            48 89 fa             the site's own first argument becomes the third
//! mov edi, number         bf n0 n1 n2 n3       the number becomes the first; the second stays as it is
//! jmp *pointer(%rip)      ff 25 p0 p1 p2 p3    nothing is pushed: the callee returns to the site
//! ```
//!
//! Live at a stub is what is live at a call under the System V convention: the stack is aligned as the site left it, and RDX and
//! RDI, which are argument registers, may change. Nothing is pushed, so unwinding needs no CFI here, and shadow stacks
//! keep in step.

use crate::encoding;
use crate::error::Error;

/// Room for one stub; a multiple of 16, so that stubs are aligned.
pub const STUB_SIZE: usize = 16;

/// The code of a stub that will stand at `address`, passes `number`, and jumps to where the eight bytes at
/// `pointer` say.
///
/// # Errors
/// [`Error::OutOfReach`].
pub fn stub(address: usize, number: u32, pointer: usize) -> Result<[u8; STUB_SIZE], Error> {
    encoding::stub(address, number, pointer).ok_or(Error::OutOfReach { address, target: pointer })
}
