//! A site in eight bytes, for tables with very many sites: what its address and its text do not
//! determine. The [`Switch`] that toggles it is made again for each toggle.

use wordpatch::text::TogglePair;
use wordpatch::{FetchWindow, TextRef};

use crate::encoding::{self, Shape};
use crate::site::CallSite;
use crate::strategy::Strategy;
use crate::switch::Switch;

/// What the sites of one mapping have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteText {
    /// The location of a base address, which need not be in the mapping.
    base: TextRef,
    window: FetchWindow,
}

impl SiteText {
    /// The base address, from which callers measure the offsets of sites.
    pub fn base(&self) -> usize {
        self.base.address()
    }
}

/// A decoded site, without its address and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedSite {
    displacement: i32,
    shape: Shape,
    strategy: Strategy,
}

const _: () = assert!(size_of::<PackedSite>() == 8, "tables of probes contain one per probe");

impl CallSite {
    /// The site in two parts: its text, which other sites share, with the base address `base`, and
    /// the rest. `None` if the site uses a RET island, whose address would be needed as well: that
    /// is so only with [`Clobbers::Nothing`](crate::Clobbers::Nothing).
    pub fn pack(&self, base: usize) -> Option<(SiteText, PackedSite)> {
        let text = SiteText { base: self.text.at(base), window: self.window };
        let packed =
            PackedSite { displacement: self.displacement(), shape: self.shape, strategy: self.strategy };
        (self.strategy != Strategy::RetIsland).then_some((text, packed))
    }
}

impl PackedSite {
    /// The kind of the site's instruction.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether the site's instruction is at `address`, in either of its forms: its operand
    /// distinguishes it from the same call before it was [retargeted](crate::retarget).
    ///
    /// # Safety
    /// The instruction at the address is mapped readable.
    pub unsafe fn is_at(&self, address: usize) -> bool {
        let active = encoding::active(self.shape, self.displacement);
        let front = self.strategy.inactive_front(self.shape).expect("only such sites are packed");
        let mut inactive = active.to_vec();
        inactive[..front.len()].copy_from_slice(&front);
        let start = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the caller's obligation.
        let found: Vec<u8> = (0..active.len()).map(|at| unsafe { start.add(at).read_volatile() }).collect();
        found == *active || found == inactive
    }

    /// The switch of the site, `offset` bytes after the base address of its text. It is equal to
    /// that of the [`CallSite`] if text and offset are those of that site; with others, the result
    /// is meaningless, and a toggle may change any bytes of the text.
    ///
    /// # Safety
    /// The site was [packed](CallSite::pack) with this text, or one that was resolved later where
    /// the same instruction is at the same address; `offset` is the site's.
    #[inline]
    pub unsafe fn switch(&self, text: &SiteText, offset: usize) -> Switch {
        let inactive = self.strategy.inactive_front(self.shape).expect("only such sites are packed");
        let length = inactive.len();
        let active = encoding::active_word(self.shape, self.displacement) & (u64::MAX >> (64 - 8 * length));
        let forms = [active, inactive.word()];
        Switch::new(TogglePair::of_words(&text.base, text.window, offset, length, forms))
    }
}

#[cfg(test)]
mod tests {
    use wordpatch::near::NearBlock;

    use super::*;
    use crate::strategy::Clobbers;

    /// Calls of every shape, one at each offset in a cache line.
    #[test]
    fn a_packed_site_has_the_same_switch() {
        const DISTANCE: usize = 65;
        let shapes = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];
        let near = encoding::active as *const () as usize;
        let length = DISTANCE * 64 * shapes.len();
        let mut block = NearBlock::allocate(&(near..near), length, 0).expect("a block of text");
        let places: Vec<_> = shapes.iter().flat_map(|shape| std::iter::repeat_n(*shape, 64)).collect();
        for (code, shape) in block.code_mut().chunks_exact_mut(DISTANCE).zip(&places) {
            let call = encoding::active(*shape, 0x0102_0304);
            code[..call.len()].copy_from_slice(&call);
        }
        let code = block.seal().expect("text can be sealed").code;
        let mut packed_ones = 0;
        for number in 0..places.len() {
            for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
                let address = code + number * DISTANCE;
                // SAFETY: a call in text that belongs to this module and is never executed.
                let site = unsafe { CallSite::decode(address, clobbers) }.expect("a call");
                let Some((text, packed)) = site.pack(code - 64) else {
                    assert_eq!((site.strategy(), clobbers), (Strategy::RetIsland, Clobbers::Nothing));
                    continue;
                };
                packed_ones += 1;
                // SAFETY: its text and offset.
                let switch = unsafe { packed.switch(&text, address - text.base()) };
                assert!(switch.is_equivalent(&site.switch()) && switch.shares_text_with(&site.switch()));
                assert_eq!(switch.state(), site.switch().state());
                assert_eq!((text.base(), packed.shape()), (code - 64, site.shape()));
                let other = PackedSite { displacement: packed.displacement + 1, ..packed };
                for toggle in [CallSite::deactivate, CallSite::activate] {
                    toggle(&site).expect("the site has one of its forms");
                    // SAFETY: text of this test.
                    assert!(unsafe { packed.is_at(address) });
                }
                // SAFETY: as above. The site is active.
                assert!(!unsafe { other.is_at(address) });
            }
        }
        assert!(packed_ones > places.len());
    }
}
