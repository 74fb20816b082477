//! RET islands: a RET that an inactive 1|4 site calls, and a pointer to it for the sites that call through one.
//!
//! One island serves every site within reach of a 32-bit displacement. Islands live as long as the process.

use std::sync::Mutex;

use wordpatch::near::NearBlock;

use crate::encoding::{self, RET, Shape};
use crate::error::Error;

#[derive(Clone, Copy)]
struct Island {
    ret: usize,
    pointer: usize,
}

static ISLANDS: Mutex<Vec<Island>> = Mutex::new(Vec::new());

/// The displacement that leads a site of `shape` at `address` to a RET. Allocates an island where none is within reach.
pub(crate) fn displacement(shape: Shape, address: usize) -> Result<i32, Error> {
    let to = |island: &Island| {
        let operand = if shape == Shape::IndirectCall { island.pointer } else { island.ret };
        encoding::displacement(shape, address, operand)
    };
    let mut islands = ISLANDS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(displacement) = islands.iter().find_map(to) {
        return Ok(displacement);
    }
    let mut block = NearBlock::allocate(&(address..address + shape.len()), 1, size_of::<usize>())?;
    block.code_mut()[0] = RET;
    let sealed = block.seal()?;
    let pointer = std::ptr::with_exposed_provenance_mut::<usize>(sealed.data);
    // SAFETY: the block's data page is mapped writable, aligned, and not known to anybody else yet.
    unsafe { pointer.write(sealed.code) };
    let island = Island { ret: sealed.code, pointer: sealed.data };
    islands.push(island);
    to(&island).ok_or(Error::OutOfReach { address, target: island.ret })
}
