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

use wordpatch::Bytes;

use crate::encoding::{self, Shape};
use crate::error::Error;

/// Size of one stub; a multiple of 16, so that stubs are aligned.
pub const STUB_SIZE: usize = 16;

/// Size of one cell: eight bytes with the address to continue at, four with the number. The rest
/// belongs to the provider.
pub const CELL_SIZE: usize = 16;

/// Offset of the number in a cell.
pub const NUMBER: usize = 8;

/// Size of a relay.
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
    encoding::stub(address, cell).ok_or(Error::OutOfReach { address, target: cell })
}
