//! Relays: jumps to an object's instrumentation function for entries. While an entry site is being
//! retargeted to its stub, its call leads to a relay, so that no entry is missed.
//!
//! ```text
//! e8 d0 d1 | d2 d3    the call of the compiler: of `target`, mostly a PLT entry
//! e8 d0 d1 | n2 n3    between two stores: of an address that differs from `target` in d2 and d3
//! e8 n0 n1 | n2 n3    of the stub
//! ```
//!
//! Which address that is depends on the split, but it is always congruent to `target`:
//!
//! | split | modulo | between the two stores, the call is of |
//! | --- | --- | --- |
//! | 2\|3 | 2^8 | a relay among the stubs, in a slot that is at most 256 bytes from the stub |
//! | 3\|2 | 2^16 | a relay on a page of its own, at either end of the region that contains the stub |
//! | 4\|1 | 2^24 | nothing: one store suffices, because the stubs are below the object, as `target` is below the site |
//!
//! A *region* is the space between two such pages, below the object. Stubs whose object has no
//! relays (no free space below it, or calls through pointers) are anywhere within reach; sites that
//! would need a relay are off while they are retargeted to them.

use std::ops::Range;

use callpatch::stub::{RELAY_SIZE, STUB_SIZE, relay};
use wordpatch::near::NearBlock;

use crate::error::Error;

const PAGE: usize = 4096;

/// The distance between relays on pages of their own.
const REGION: usize = 1 << 16;

/// The distance between relays among stubs.
pub(super) const SLOTS: usize = 1 << 8;

/// The number of addresses below an object at which a page for a relay is tried. Further down, the
/// operands of nearby calls differ in their last byte.
const PLACES: usize = 256;

/// The relays of one object.
#[derive(Debug)]
pub(super) struct Relays {
    /// The callee of its entry sites.
    target: usize,
    /// The index of the next page, counted from the target down.
    next: usize,
    end: usize,
    /// The start of the last page, if it is directly above the next one.
    last: Option<usize>,
    /// The addresses of the relays on pages of their own.
    own_pages: Vec<usize>,
    /// The region in which blocks are allocated.
    region: Option<Range<usize>>,
}

impl Relays {
    /// Relays for calls to `target` in an object with this range.
    pub(super) fn new(target: usize, object: &Range<usize>) -> Self {
        let below = object.start.saturating_sub(2 * PAGE);
        let next = target.saturating_sub(below).div_ceil(REGION).max(1);
        Self { target, next, end: next + PLACES, last: None, own_pages: Vec::new(), region: None }
    }

    /// The callee of the sites that can use these relays.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// Whether a slot for a stub at this address is used for a relay.
    pub(super) fn is_in_slot(&self, address: usize) -> bool {
        self.target.is_multiple_of(STUB_SIZE) && address % SLOTS == self.target % SLOTS
    }

    /// Whether a page of its own has a relay at this address.
    pub(super) fn is_on_own_page(&self, address: usize) -> bool {
        self.own_pages.contains(&address)
    }

    /// Allocates a block in a region; `None` if there is no room below the object.
    pub(super) fn allocate(&mut self, code: usize, data: usize) -> Result<Option<NearBlock>, Error> {
        loop {
            if let Some(region) = &self.region
                && let Some(block) = NearBlock::allocate_within(region, code, data)?
            {
                return Ok(Some(block));
            }
            self.region = self.next_region()?;
            if self.region.is_none() {
                return Ok(None);
            }
        }
    }

    fn next_region(&mut self) -> Result<Option<Range<usize>>, Error> {
        while self.next < self.end {
            let Some(address) = self.target.checked_sub(self.next * REGION) else { break };
            self.next += 1;
            let page = address & !(PAGE - 1);
            let length = address - page + RELAY_SIZE;
            let Some(mut block) = NearBlock::allocate_at(page, length, 0)? else {
                self.last = None;
                continue;
            };
            block.code_mut()[address - page..length].copy_from_slice(&relay(address, self.target)?);
            block.seal()?;
            self.own_pages.push(address);
            let above = self.last.replace(page);
            if let Some(above) = above {
                return Ok(Some((page + length).next_multiple_of(PAGE)..above));
            }
        }
        self.next = self.end;
        Ok(None)
    }

    /// The memory of the relays, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.own_pages.len() * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates blocks below an imagined object until several regions are in use.
    #[test]
    fn every_block_is_between_two_relays() {
        let object = (5 << 40)..(5 << 40) + 0x20_0000;
        let target = object.start + 0x1_2340;
        let mut relays = Relays::new(target, &object);
        for _ in 0..20 {
            // A block that is not sealed is unmapped.
            let block = relays.allocate(4 * PAGE, 4 * PAGE).unwrap().expect("free space").seal().unwrap();
            let code = block.code..block.code + 4 * PAGE;
            assert!(code.end < object.start);
            for address in code.step_by(STUB_SIZE) {
                let below = address - (address.wrapping_sub(target)) % REGION;
                for relay in [below, below + REGION] {
                    assert!(relays.is_on_own_page(relay), "{relay:#x} for a stub at {address:#x}");
                }
            }
        }
        assert!(relays.own_pages.len() > 3, "{relays:x?}");
        let slots = (0..PAGE).step_by(STUB_SIZE).filter(|offset| relays.is_in_slot(object.start + offset));
        assert_eq!(slots.count(), PAGE / SLOTS);
    }

    #[test]
    fn pages_in_use_are_not_replaced() {
        let object = (6 << 40)..(6 << 40) + 0x20_0000;
        let target = object.start + 0x2340;
        let taken = NearBlock::allocate_at((target - 2 * REGION) & !(PAGE - 1), 1, 0).unwrap().unwrap();
        let mut relays = Relays::new(target, &object);
        let block = relays.allocate(PAGE, PAGE).unwrap().expect("free space");
        assert!(block.code_address() < taken.code_address(), "{relays:x?}");
        assert!(!relays.is_on_own_page(target - 2 * REGION));
    }

    /// The lowest addresses cannot be mapped.
    #[test]
    fn without_space_below_the_object_there_is_no_block() {
        let object = 0x1_8000..0x2_0000;
        let mut relays = Relays::new(0x1_9000, &object);
        assert!(relays.allocate(PAGE, PAGE).unwrap().is_none());
        assert!(relays.allocate(PAGE, PAGE).unwrap().is_none());
    }
}
