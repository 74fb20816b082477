//! The parts that all encodings share: prefixes, REX, VEX and EVEX, ModRM, SIB, displacement (Intel
//! SDM volume 2, chapter 2).

use super::{Assembler, Reg, Rm, Width};

/// Opcode maps: the escape bytes before the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    One,
    X0F,
    X0F38,
    X0F3A,
}

impl Map {
    /// The code in VEX and EVEX.
    fn code(self) -> u8 {
        match self {
            Self::One | Self::X0F => 1,
            Self::X0F38 => 2,
            Self::X0F3A => 3,
        }
    }
}

/// Mandatory prefixes, by their code in VEX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    None = 0,
    X66 = 1,
    XF3 = 2,
    XF2 = 3,
}

/// A part of an instruction: up to eight bytes, the first one lowest. The rest is zero.
#[derive(Clone, Copy, Default)]
struct Part {
    bits: u64,
    length: u32,
}

impl Part {
    fn new(bits: u64, length: u32) -> Self {
        Self { bits, length }
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.bits |= u64::from(byte) << (8 * self.length);
        self.length += 1;
    }
}

/// An instruction being encoded, as a number, which can be in registers: the first byte is the
/// lowest one. The longest instruction has 15 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Bytes {
    bits: u128,
    length: u32,
}

impl Bytes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    #[inline]
    fn push_part(&mut self, part: Part) {
        self.bits |= u128::from(part.bits) << (8 * self.length);
        self.length += part.length;
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.push_part(Part::new(byte.into(), 1));
    }

    #[inline]
    pub(super) fn push_i32(&mut self, value: i32) {
        self.push_part(Part::new((value as u32).into(), 4));
    }

    pub(super) fn push_u64(&mut self, value: u64) {
        self.push_part(Part::new(value, 8));
    }
}

/// ModRM and what follows it, except for an immediate. `short` returns the code of a displacement
/// that fits one byte.
#[inline(always)]
fn operands(reg: u8, rm: Rm, short: impl Fn(i32) -> Option<i8>) -> Part {
    let reg = u64::from(reg & 7) << 3;
    let mem = match rm {
        Rm::Reg(rm) => return Part::new(0xc0 | reg | u64::from(rm.number() & 7), 1),
        Rm::Mem(mem) => mem,
    };
    if mem.data_label().is_some() {
        // Mod 00 with r/m 101: relative to the end of the instruction.
        return Part::new(reg | 5, 5);
    }
    let disp = u64::from(mem.disp as u32);
    let scale = u64::from(mem.scale) << 6;
    let Some(base) = mem.base_register() else {
        // Mod 00 with base 101 in the SIB byte: no base, 32-bit displacement.
        let index = mem.index_register().map_or(4, |index| u64::from(index.number() & 7));
        return Part::new(reg | 4 | (scale | index << 3 | 5) << 8 | disp << 16, 6);
    };
    let low = u64::from(base.number() & 7);
    // Mod 00 with base 101 (rbp, r13) would mean no base.
    let (mode, disp, disp_length) = match short(mem.disp) {
        Some(0) if low != 5 => (0, 0, 0),
        Some(short) => (1 << 6, u64::from(short as u8), 1),
        None => (2 << 6, disp, 4),
    };
    let (address, length) = match mem.index_register() {
        Some(index) => (4 | (scale | u64::from(index.number() & 7) << 3 | low) << 8, 2),
        // rsp and r12 as a base need a SIB byte.
        None if low == 4 => (4 | 0x24 << 8, 2),
        None => (low, 1),
    };
    Part::new(mode | reg | address | disp << (8 * length), length + disp_length)
}

/// The code of a displacement that fits one byte.
fn one_byte(disp: i32) -> Option<i8> {
    i8::try_from(disp).ok()
}

/// An instruction without its immediate.
#[inline(always)]
fn instruction(head: Part, operands: Part) -> Bytes {
    let mut bytes = Bytes { bits: head.bits.into(), length: head.length };
    bytes.push_part(operands);
    bytes
}

/// The bits X and B: extensions of index and base, or of the r/m register.
fn extensions(rm: Rm) -> (u8, u8) {
    let high = |reg: Option<Reg>| reg.map_or(0, |reg| reg.number() >> 3);
    match rm {
        Rm::Reg(reg) => (0, reg.number() >> 3),
        Rm::Mem(mem) => (high(mem.index_register()), high(mem.base_register())),
    }
}

/// An opcode with its prefix and map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    pub(super) prefix: Prefix,
    pub(super) map: Map,
    pub(super) byte: u8,
}

pub(super) const fn op(byte: u8) -> Opcode {
    Opcode { prefix: Prefix::None, map: Map::One, byte }
}

pub(super) const fn op_0f(byte: u8) -> Opcode {
    Opcode { prefix: Prefix::None, map: Map::X0F, byte }
}

pub(super) const fn op_p(prefix: Prefix, map: Map, byte: u8) -> Opcode {
    Opcode { prefix, map, byte }
}

/// The bytes before the mandatory prefix, and whether a byte register needs REX (`spl` to `dil`).
#[derive(Clone, Copy, Default)]
pub(super) struct Extra {
    pub(super) lock: bool,
    pub(super) byte_register: bool,
}

impl Assembler<'_> {
    #[inline]
    pub(super) fn emit(&mut self, bytes: &Bytes) {
        // A copy of a fixed size compiles to a few instructions, a copy of a variable size to a
        // call.
        self.last = Some(self.code.len() as u32);
        let end = self.code.len() + bytes.length as usize;
        self.code.extend_from_slice(&bytes.bits.to_le_bytes());
        self.code.truncate(end);
    }

    /// The operand that is encoded; see [`Assembler::redirect`].
    #[inline]
    fn redirected(&self, rm: Rm) -> Rm {
        match self.redirected {
            Some((from, to)) if rm == Rm::Mem(from) => Rm::Mem(to),
            _ => rm,
        }
    }

    /// Takes note of the operands in ModRM. In a vector instruction, `reg` may be `xmm11`, which
    /// counts as `r11`.
    #[inline]
    fn use_operands(&mut self, reg: u8, rm: Rm) {
        self.use_register(Reg(reg));
        if let Rm::Reg(reg) = rm {
            self.use_register(reg);
        }
    }

    /// An instruction in the legacy encoding, without its immediate.
    #[inline(always)]
    pub(super) fn legacy(&mut self, opcode: Opcode, width: Width, reg: u8, rm: Rm, extra: Extra) -> Bytes {
        let rm = self.redirected(rm);
        self.use_operands(reg, rm);
        let mut head = Part::default();
        if extra.lock {
            head.push(0xf0);
        }
        match opcode.prefix {
            Prefix::None => {}
            Prefix::X66 => head.push(0x66),
            Prefix::XF3 => head.push(0xf3),
            Prefix::XF2 => head.push(0xf2),
        }
        let (x, b) = extensions(rm);
        let rex = (width as u8) << 3 | (reg >> 3 & 1) << 2 | x << 1 | b;
        if rex != 0 || extra.byte_register {
            head.push(0x40 | rex);
        }
        match opcode.map {
            Map::One => {}
            Map::X0F => head.push(0x0f),
            Map::X0F38 => {
                head.push(0x0f);
                head.push(0x38);
            }
            Map::X0F3A => {
                head.push(0x0f);
                head.push(0x3a);
            }
        }
        head.push(opcode.byte);
        instruction(head, operands(reg, rm, one_byte))
    }

    #[inline(always)]
    pub(super) fn instruction(&mut self, opcode: Opcode, width: Width, reg: u8, rm: Rm) {
        let bytes = self.legacy(opcode, width, reg, rm, Extra::default());
        self.emit(&bytes);
        self.link_data(rm);
    }

    /// Links the instruction just appended, which has no immediate, to its data after the code.
    #[inline]
    fn link_data(&mut self, rm: Rm) {
        if let Rm::Mem(mem) = rm
            && let Some(label) = mem.data_label()
        {
            self.link_last(label);
        }
    }

    #[inline(always)]
    pub(super) fn instruction_imm8(&mut self, opcode: Opcode, width: Width, reg: u8, rm: Rm, imm: u8) {
        let mut bytes = self.legacy(opcode, width, reg, rm, Extra::default());
        bytes.push(imm);
        self.emit(&bytes);
    }

    #[inline(always)]
    pub(super) fn instruction_imm32(&mut self, opcode: Opcode, width: Width, reg: u8, rm: Rm, imm: i32) {
        let mut bytes = self.legacy(opcode, width, reg, rm, Extra::default());
        bytes.push_i32(imm);
        self.emit(&bytes);
    }

    /// An instruction in the 128-bit VEX encoding, with an optional immediate. `second` is the
    /// operand in VEX.vvvv.
    #[inline]
    pub(super) fn vex(&mut self, opcode: Opcode, width: Width, reg: u8, second: u8, rm: Rm, imm: Option<u8>) {
        let rm = self.redirected(rm);
        self.use_operands(reg, rm);
        let mut head = Part::default();
        let (x, b) = extensions(rm);
        let r = reg >> 3 & 1;
        let last = (!second & 15) << 3 | opcode.prefix as u8;
        if x == 0 && b == 0 && width == Width::W32 && opcode.map == Map::X0F {
            head.push(0xc5);
            head.push((r ^ 1) << 7 | last);
        } else {
            head.push(0xc4);
            head.push((r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | opcode.map.code());
            head.push((width as u8) << 7 | last);
        }
        head.push(opcode.byte);
        self.emit_vector(instruction(head, operands(reg, rm, one_byte)), rm, imm);
    }

    /// An instruction in the 128-bit EVEX encoding, on the registers that VEX has, without a mask
    /// (Intel SDM volume 2, section 2.7).
    pub(super) fn evex(
        &mut self,
        opcode: Opcode,
        width: Width,
        reg: u8,
        second: u8,
        rm: Rm,
        imm: Option<u8>,
    ) {
        let rm = self.redirected(rm);
        self.use_operands(reg, rm);
        let mut head = Part::default();
        let (x, b) = extensions(rm);
        let r = reg >> 3 & 1;
        head.push(0x62);
        head.push((r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | 1 << 4 | opcode.map.code());
        head.push((width as u8) << 7 | (!second & 15) << 3 | 1 << 2 | opcode.prefix as u8);
        head.push(1 << 3);
        head.push(opcode.byte);
        // A one-byte displacement would be in units of the operand's size.
        let operands = operands(reg, rm, |disp| (disp == 0).then_some(0));
        self.emit_vector(instruction(head, operands), rm, imm);
    }

    /// Appends an instruction with an optional immediate.
    #[inline]
    fn emit_vector(&mut self, mut bytes: Bytes, rm: Rm, imm: Option<u8>) {
        if let Some(imm) = imm {
            bytes.push(imm);
        }
        self.emit(&bytes);
        debug_assert!(
            imm.is_none() || !matches!(rm, Rm::Mem(mem) if mem.data_label().is_some()),
            "it counts from the end"
        );
        self.link_data(rm);
    }
}
