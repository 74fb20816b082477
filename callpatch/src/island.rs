//! RET islands: a RET that an inactive 1|4 site calls, and a pointer to it for sites that call
//! through a pointer.
//!
//! One island serves every site within reach of a 32-bit displacement. Islands are never freed.
//! Their bytes are new to every core when a site is first directed there, by one store: unreachable
//! bytes may be written freely (AMD APM volume 2, section 7.6.1).
//!
//! If there is no memory within reach, a direct call is directed to a RET of the program itself, as
//! the paper proposes (section 6, footnote 2): the first one after the site. It must be permanent:
//! not an inactive tail call of ours.

use std::collections::BTreeSet;
use std::sync::Mutex;

use wordpatch::near::NearBlock;
use wordpatch::{Error as Refusal, TextRef};

use crate::encoding::{self, RET, Shape};
use crate::error::Error;
use crate::forks::without_forks;

/// Number of bytes after a site that are searched for a RET.
const SEARCH: usize = 4096;

#[derive(Clone, Copy)]
struct Island {
    ret: usize,
    pointer: usize,
}

static ISLANDS: Mutex<Vec<Island>> = Mutex::new(Vec::new());

/// Tail-call sites, whose inactive form is a RET that may disappear.
static TAIL_CALLS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Excludes a tail-call site from the search for a RET.
pub(crate) fn note_tail_call(address: usize) {
    without_forks(|| TAIL_CALLS.lock().unwrap_or_else(|e| e.into_inner()).insert(address));
}

/// The displacement that directs a site of `shape` at `text` to a RET. Allocates an island if there
/// is none within reach.
///
/// # Safety
/// The text must stay mapped during the call.
pub(crate) unsafe fn displacement(shape: Shape, text: &TextRef) -> Result<i32, Error> {
    // SAFETY: the caller's obligation.
    without_forks(|| unsafe { displacement_locked(shape, text) })
}

/// As [`displacement`], while no thread forks.
///
/// # Safety
/// As [`displacement`].
unsafe fn displacement_locked(shape: Shape, text: &TextRef) -> Result<i32, Error> {
    let address = text.address();
    let to = |island: &Island| {
        let operand = if shape == Shape::IndirectCall { island.pointer } else { island.ret };
        encoding::displacement(shape, address, operand)
    };
    let mut islands = ISLANDS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(displacement) = islands.iter().find_map(to) {
        return Ok(displacement);
    }
    let mut block = match NearBlock::allocate(&(address..address + shape.len()), 1, size_of::<usize>()) {
        Ok(block) => block,
        Err(refusal @ Refusal::OutOfReach { .. }) if shape == Shape::Call => {
            // SAFETY: the caller's obligation.
            let ret = unsafe { ret_after(text, shape) };
            let displacement = ret.and_then(|ret| encoding::displacement(shape, address, ret));
            return displacement.ok_or(refusal.into());
        }
        Err(refusal) => return Err(refusal.into()),
    };
    block.code_mut()[0] = RET;
    let sealed = block.seal()?;
    let pointer = std::ptr::with_exposed_provenance_mut::<usize>(sealed.data);
    // SAFETY: the block's data page is mapped writable, aligned, and not known to other threads
    // yet.
    unsafe { pointer.write(sealed.code) };
    let island = Island { ret: sealed.code, pointer: sealed.data };
    islands.push(island);
    to(&island).ok_or(Error::OutOfReach { address, target: island.ret })
}

/// The first RET after the site, among consecutive instructions from there.
///
/// # Safety
/// The text must stay mapped during the call.
unsafe fn ret_after(text: &TextRef, shape: Shape) -> Option<usize> {
    let start = text.address() + shape.len();
    let to_page_end = |length: usize| (start + length).next_multiple_of(SEARCH) - start;
    // SAFETY: the caller's obligation.
    let is_text = |length: &usize| unsafe { TextRef::resolve(start, *length) }.is_ok();
    let length = [to_page_end(SEARCH), to_page_end(1)].into_iter().find(is_text)?;
    let place = std::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: `length` bytes of text were found there, and stay mapped by the caller's obligation.
    // Other sites among them may change concurrently.
    let code: Vec<u8> = (0..length).map(|i| unsafe { place.add(i).read_volatile() }).collect();
    let tail_calls = TAIL_CALLS.lock().unwrap_or_else(|e| e.into_inner());
    encoding::rets(&code, start).find(|ret| !tail_calls.contains(ret))
}
