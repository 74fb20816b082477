//! The bytes of a site that change when it is toggled.
//!
//! A call that crosses a fetch window would need two stores. Therefore only one side of the
//! boundary is ever changed (paper section 6), by a strategy that depends on the split:
//!
//! ```text
//! split            active             inactive
//! inside           e8 d0 d1 d2 d3     0f 1f 44 00 00     a NOP
//! 1|4              e8|d0 d1 d2 d3     e8|r0 r1 r2 r3     the call goes to a RET island
//! 2|3, 3|2, 4|1    e8 d0|..           eb 03|..           a jump over the rest
//! tail call        e9 d0 d1 d2 d3     c3 d0 d1 d2 d3     one byte, at any split
//! any, see below   e8 d0 d1 d2 d3     b8 d0 d1 d2 d3     `mov eax, imm32`: one byte, at any split
//! ```
//!
//! The six-byte forms through a pointer are analogous: `eb 04`; for 1|5 the back five bytes name a
//! pointer to the RET island; and FF 15 becomes `8d 15`, `lea edx, [rip+d]`, which reads no memory.
//!
//! The last row is ours, not the paper's. A compiler assumes that a call clobbers the caller-saved
//! registers, so a compiled call to a function without result may load EAX or EDX while inactive
//! ([`Clobbers::CallerSaved`]). That is one micro-operation without inputs, whereas the jump costs
//! a taken branch and the island a call and a return.

use wordpatch::{Bytes, FetchWindow, Split};

use crate::encoding::{self, Shape};

/// The registers that an inactive site may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clobbers {
    /// No registers: correct for any call.
    Nothing,
    /// EAX and EDX: correct if the call follows the System V calling convention and its result is
    /// not used.
    CallerSaved,
}

/// The way in which a site is made inactive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The entire instruction becomes a NOP.
    Nop,
    /// The first two bytes become a jump over the rest.
    Skip,
    /// The operand is directed to a RET.
    RetIsland,
    /// The first byte becomes the opcode of a load of a constant into a caller-saved register.
    Load,
    /// The first byte becomes RET.
    Ret,
}

impl Strategy {
    /// The strategy for a call of this shape at `address`, when `window` is the fetch window.
    pub fn choose(shape: Shape, window: FetchWindow, address: usize, clobbers: Clobbers) -> Self {
        match window.split(address, shape.len()) {
            _ if shape.is_tail_call() => Self::Ret,
            Split::Inside => Self::Nop,
            Split::Crossing { .. } if clobbers == Clobbers::CallerSaved => Self::Load,
            Split::Crossing { front: 1 } => Self::RetIsland,
            Split::Crossing { .. } => Self::Skip,
        }
    }
}

impl Strategy {
    /// The first bytes of an inactive site, if these differ from those of an active one; `None` for
    /// [`Strategy::RetIsland`].
    #[inline]
    pub(crate) fn inactive_front(self, shape: Shape) -> Option<Bytes> {
        match self {
            Self::Nop => Some(encoding::nop(shape)),
            Self::Skip => Some(encoding::skip(shape)),
            Self::Load => Some(encoding::opcode_of_load(shape)),
            Self::Ret => Some(encoding::ret()),
            Self::RetIsland => None,
        }
    }
}

/// The bytes that a toggle changes, all in one fetch window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) offset: usize,
    pub(crate) active: Bytes,
    pub(crate) inactive: Bytes,
}

impl Edit {
    /// The edit of `strategy` on a site whose active instruction is `instruction`. `island` is that
    /// instruction with the operand of the RET island, for [`Strategy::RetIsland`] only.
    pub(crate) fn new(strategy: Strategy, shape: Shape, instruction: &Bytes, island: Option<&Bytes>) -> Self {
        match strategy.inactive_front(shape) {
            Some(inactive) => {
                Self { offset: 0, active: encoding::bytes(&instruction[..inactive.len()]), inactive }
            }
            None => Self {
                offset: 1,
                active: encoding::bytes(&instruction[1..]),
                inactive: encoding::bytes(&island.expect("an island was looked up")[1..]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At any address, the bytes that change are in one window: the central claim of the crate.
    #[test]
    fn an_edit_never_crosses_the_window() {
        for window in FetchWindow::ALL {
            for shape in [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump] {
                for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
                    for address in 0..64 {
                        let strategy = Strategy::choose(shape, window, address, clobbers);
                        let instruction = encoding::active(shape, 0x0102_0304);
                        let edit =
                            Edit::new(strategy, shape, &instruction, Some(&encoding::active(shape, -1)));
                        let split = window.split(address + edit.offset, edit.active.len());
                        assert_eq!(split, Split::Inside, "{window:?} {shape:?} {clobbers:?} at {address}");
                        assert_eq!(edit.active.len(), edit.inactive.len());
                    }
                }
            }
        }
    }

    #[test]
    fn strategies_by_split() {
        let check = |address, clobbers, expected| {
            assert_eq!(Strategy::choose(Shape::Call, FetchWindow::Bytes64, address, clobbers), expected);
        };
        check(0, Clobbers::Nothing, Strategy::Nop);
        check(59, Clobbers::Nothing, Strategy::Nop);
        check(60, Clobbers::Nothing, Strategy::Skip);
        check(62, Clobbers::Nothing, Strategy::Skip);
        check(63, Clobbers::Nothing, Strategy::RetIsland);
        check(62, Clobbers::CallerSaved, Strategy::Load);
        check(63, Clobbers::CallerSaved, Strategy::Load);
    }
}
