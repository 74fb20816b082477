//! The assembler: machine code as bytes, one function per instruction or family of instructions.
//!
//! It knows only encodings, and appends to a vector. The tests check every encoding against
//! iced-x86's decoder. Processors of the level x86-64-v3 are assumed: AVX in its three-operand
//! form, BMI1, BMI2, LZCNT and POPCNT; a few instructions belong to AVX-512
//! ([`CodeSettings::uses_avx512`](crate::CodeSettings)).
//!
//! `reg.rs` has the operands, `encode.rs` the parts that all encodings share, `int.rs` and
//! `float.rs` the scalar instructions, `vector.rs` the vector instructions, `label.rs` the jumps,
//! whose displacements are filled in when their label is bound, and `patch.rs` the bytes that
//! patches exchange.

mod encode;
mod float;
mod int;
mod label;
mod patch;
mod reg;
#[cfg(test)]
mod tests;
mod vector;

pub(crate) use float::{FloatOp, Rounding};
pub(crate) use int::{Alu, Cond, Shift, Size};
pub use label::UD2;
pub(crate) use label::{Label, Labels};
pub use patch::{ENTRY_PREFIX, SITE_OFF, SiteJump, TRANSFER_TRAP, site_jump};
pub(crate) use reg::{Mem, Precision, RegClass, Rm};
pub use reg::{Reg, Width};
pub(crate) use vector::{VectorImmOp, VectorOp, VectorShiftOp};

/// Appends machine code to a vector.
#[derive(Debug)]
pub(crate) struct Assembler<'c> {
    code: &'c mut Vec<u8>,
    labels: Labels,
    redirected: Option<(Mem, Mem)>,
    /// Where the last instruction begins, if it can be lengthened by prefixes: see
    /// [`Assembler::lengthen_last`].
    last: Option<u32>,
    /// Where the last label was bound.
    last_bound: u32,
    /// The number of instructions that may have changed `r11`: every one that has it as an operand,
    /// other than in an address, and every call.
    pub(crate) r11_changes: u32,
}

impl<'c> Assembler<'c> {
    pub(crate) fn new(code: &'c mut Vec<u8>) -> Self {
        Self::with_labels(code, Labels::default())
    }

    /// As [`Self::new`], with an allocation for labels.
    pub(crate) fn with_labels(code: &'c mut Vec<u8>, mut labels: Labels) -> Self {
        labels.clear();
        Self { code, labels, redirected: None, last: None, last_bound: u32::MAX, r11_changes: 0 }
    }

    /// The allocation of the labels.
    pub(crate) fn into_labels(self) -> Labels {
        self.labels
    }

    /// The offset of the next instruction.
    pub(crate) fn offset(&self) -> u32 {
        self.code.len() as u32
    }

    /// Takes note of an instruction with this register as an operand.
    #[inline]
    fn use_register(&mut self, reg: Reg) {
        self.r11_changes += u32::from(reg == Reg::R11);
    }

    /// From now on, instructions with the first memory operand are encoded with the second one.
    pub(crate) fn redirect(&mut self, redirected: Option<(Mem, Mem)>) {
        self.redirected = redirected;
    }

    /// Appends bytes that are not an instruction of this assembler: data or padding.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.last = None;
        self.code.extend_from_slice(bytes);
    }

    /// Overwrites bytes that were appended before.
    pub(crate) fn overwrite(&mut self, at: u32, bytes: &[u8]) {
        self.code[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}
