//! Floating-point instructions, scalar, in the VEX encoding.

use super::encode::{Map, Opcode, Prefix, op_p};
use super::{Assembler, Mem, Precision, Reg, Rm, Width};

/// Arithmetic of two operands, by opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FloatOp {
    Sqrt = 0x51,
    And = 0x54,
    Or = 0x56,
    Xor = 0x57,
    Add = 0x58,
    Mul = 0x59,
    Sub = 0x5c,
    Min = 0x5d,
    Div = 0x5e,
    Max = 0x5f,
}

/// How ROUNDSS and ROUNDSD round; the precision exception is suppressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rounding {
    Nearest = 8,
    Floor = 9,
    Ceil = 10,
    Trunc = 11,
}

fn scalar(precision: Precision) -> Prefix {
    if precision == Precision::Double { Prefix::XF2 } else { Prefix::XF3 }
}

fn packed(precision: Precision) -> Prefix {
    if precision == Precision::Double { Prefix::X66 } else { Prefix::None }
}

fn x0f(prefix: Prefix, byte: u8) -> Opcode {
    op_p(prefix, Map::X0F, byte)
}

/// The register that supplies the bits above the result: they are never read, and the instruction
/// depends on the source anyway.
fn upper_half(dst: Reg, src: Rm) -> u8 {
    match src {
        Rm::Reg(src) => src.number(),
        Rm::Mem(_) => dst.number(),
    }
}

impl Assembler<'_> {
    /// `dst = left op right`; AND, OR and XOR work on the full register.
    pub(crate) fn float(
        &mut self,
        what: FloatOp,
        precision: Precision,
        dst: Reg,
        left: Reg,
        right: impl Into<Rm>,
    ) {
        let bitwise = matches!(what, FloatOp::And | FloatOp::Or | FloatOp::Xor);
        let prefix = if bitwise { packed(precision) } else { scalar(precision) };
        self.vex(x0f(prefix, what as u8), Width::W32, dst.number(), left.number(), right.into(), None);
    }

    /// A copy of the full register.
    pub(crate) fn float_mov(&mut self, dst: Reg, src: Reg) {
        self.vex(x0f(Prefix::None, 0x28), Width::W32, dst.number(), 0, src.into(), None);
    }

    pub(crate) fn float_load(&mut self, precision: Precision, dst: Reg, src: Mem) {
        self.vex(x0f(scalar(precision), 0x10), Width::W32, dst.number(), 0, src.into(), None);
    }

    pub(crate) fn float_store(&mut self, precision: Precision, dst: Mem, src: Reg) {
        self.vex(x0f(scalar(precision), 0x11), Width::W32, src.number(), 0, dst.into(), None);
    }

    /// Stores the 32 bytes of an AVX register, see [`Self::float_zero`].
    pub(crate) fn wide_store(&mut self, dst: Mem, src: Reg) {
        // VMOVUPS ymm: VEX.L is bit 2 of the last VEX byte.
        let at = self.offset() as usize;
        self.vex(x0f(Prefix::None, 0x11), Width::W32, src.number(), 0, dst.into(), None);
        let last = if self.code[at] == 0xc5 { at + 1 } else { at + 2 };
        self.code[last] |= 4;
    }

    /// Zeroes the register, including the upper half of its 32 bytes.
    pub(crate) fn float_zero(&mut self, dst: Reg) {
        self.float(FloatOp::Xor, Precision::Single, dst, dst, dst);
    }

    /// Compares and sets the flags like an unsigned comparison; unordered sets ZF, PF and CF.
    pub(crate) fn float_compare(&mut self, precision: Precision, left: Reg, right: impl Into<Rm>) {
        self.vex(x0f(packed(precision), 0x2e), Width::W32, left.number(), 0, right.into(), None);
    }

    pub(crate) fn float_round(&mut self, how: Rounding, precision: Precision, dst: Reg, src: impl Into<Rm>) {
        let byte = if precision == Precision::Double { 0x0b } else { 0x0a };
        let opcode = op_p(Prefix::X66, Map::X0F3A, byte);
        let src = src.into();
        self.vex(opcode, Width::W32, dst.number(), upper_half(dst, src), src, Some(how as u8));
    }

    /// A signed integer of 32 or 64 bits to a float.
    pub(crate) fn float_from_int(
        &mut self,
        precision: Precision,
        dst: Reg,
        width: Width,
        src: impl Into<Rm>,
    ) {
        self.vex(x0f(scalar(precision), 0x2a), width, dst.number(), dst.number(), src.into(), None);
    }

    /// A float to a signed integer, rounded towards zero; a value out of range gives the smallest
    /// integer.
    pub(crate) fn float_to_int(&mut self, precision: Precision, dst: Reg, width: Width, src: impl Into<Rm>) {
        self.vex(x0f(scalar(precision), 0x2c), width, dst.number(), 0, src.into(), None);
    }

    /// Between the two float types; `from_double` names the source's.
    pub(crate) fn float_convert(&mut self, from: Precision, dst: Reg, src: impl Into<Rm>) {
        let src = src.into();
        self.vex(x0f(scalar(from), 0x5a), Width::W32, dst.number(), upper_half(dst, src), src, None);
    }

    /// Bits of a general register to an SSE register.
    pub(crate) fn float_from_bits(&mut self, width: Width, dst: Reg, src: Reg) {
        self.vex(x0f(Prefix::X66, 0x6e), width, dst.number(), 0, src.into(), None);
    }

    /// Bits of an SSE register to a general register.
    pub(crate) fn float_to_bits(&mut self, width: Width, dst: Reg, src: Reg) {
        self.vex(x0f(Prefix::X66, 0x7e), width, src.number(), 0, dst.into(), None);
    }
}
