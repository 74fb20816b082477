//! Stubs: what a retargeted site calls. A stub tells the callee which site it was, and goes on
//! through a pointer.
//!
//! ```text
//! mov rdx, rdi            48 89 fa             the site's own first argument becomes the third
//! mov edi, cell+8(%rip)   8b 3d n0 n1 n2 n3    the number becomes the first; the second stays as it is
//! jmp *cell(%rip)         ff 25 p0 p1 p2 p3    nothing is pushed: the callee returns to the site
//! ```
//!
//! Everything that differs from site to site is in the cell, so a page of stubs is written and
//! sealed before their sites are known.
//!
//! Live at a stub is what is live at a call under the System V convention: the stack is aligned as
//! the site left it, and RDX and RDI, which are argument registers, may change. Nothing is pushed,
//! so unwinding needs no CFI here, and shadow stacks keep in step.

use crate::encoding;
use crate::error::Error;

/// Room for one stub; a multiple of 16, so that stubs are aligned.
pub const STUB_SIZE: usize = 16;

/// Room for one cell: eight bytes with the address to go on at, four with the number. The rest is
/// the provider's.
pub const CELL_SIZE: usize = 16;

/// Where in a cell the number is.
pub const NUMBER: usize = 8;

/// The code of a stub that will stand at `address` and whose cell is at `cell`.
///
/// # Errors
/// [`Error::OutOfReach`].
pub fn stub(address: usize, cell: usize) -> Result<[u8; STUB_SIZE], Error> {
    encoding::stub(address, cell).ok_or(Error::OutOfReach { address, target: cell })
}
