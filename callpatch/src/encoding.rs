//! The machine code of call sites: the only file that defines the bytes of CALL, JMP, NOP and RET.

use iced_x86::{Code, Decoder, DecoderOptions};
use wordpatch::Bytes;

/// The instruction of a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// `call rel32`: E8 and a displacement.
    Call,
    /// `jmp rel32`: E9 and a displacement; a tail call.
    Jump,
    /// `call *disp32(%rip)`: FF 15 and the displacement of a pointer.
    IndirectCall,
    /// `jmp *disp32(%rip)`: FF 25 and the displacement of a pointer; a tail call.
    IndirectJump,
}

impl Shape {
    /// The length of the instruction in bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.opcode().len() + DISPLACEMENT
    }

    /// Always false: an instruction has bytes.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// Whether the site is a tail call: the callee returns to the caller of the function that
    /// contains the site.
    pub const fn is_tail_call(self) -> bool {
        matches!(self, Self::Jump | Self::IndirectJump)
    }

    /// Whether a direct call or tail call begins with this byte: for a quick search, whose hits
    /// must be decoded.
    pub const fn is_direct_opcode(byte: u8) -> bool {
        byte == Self::Call.opcode()[0] || byte == Self::Jump.opcode()[0]
    }

    /// The opcode: the bytes before the displacement.
    #[inline]
    pub const fn opcode(self) -> &'static [u8] {
        match self {
            Self::Call => &[0xe8],
            Self::Jump => &[0xe9],
            Self::IndirectCall => &[0xff, 0x15],
            Self::IndirectJump => &[0xff, 0x25],
        }
    }

    /// The offset of the displacement from the start of the instruction.
    pub(crate) const fn operand_offset(self) -> usize {
        self.opcode().len()
    }
}

/// The addresses of one-byte RETs among consecutive instructions from the start of `code`, which is
/// at `address`.
pub(crate) fn rets(code: &[u8], address: usize) -> impl Iterator<Item = usize> {
    let instructions = Decoder::with_ip(64, code, address as u64, DecoderOptions::NONE).into_iter();
    let known = instructions.take_while(|instruction| !instruction.is_invalid());
    known
        .filter(|instruction| instruction.code() == Code::Retnq && instruction.len() == 1)
        .map(|ret| ret.ip() as usize)
}

/// The length of the displacement in bytes.
pub(crate) const DISPLACEMENT: usize = 4;

/// `ret`: the inactive form of a tail call, and the code of an island.
pub(crate) const RET: u8 = 0xc3;

/// Opcode of a two-byte jump.
const JMP_REL8: u8 = 0xeb;

/// `mov eax, imm32`: the result of changing only the first byte of E8 rel32.
const MOV_EAX_IMM32: u8 = 0xb8;

/// First byte of `lea edx, [rip+disp32]`: the result of changing only the first byte of FF 15.
const LEA: u8 = 0x8d;

const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
const NOP6: [u8; 6] = [0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];

/// The shape of the instruction at the start of `code`, if it is a call site. An instruction with a
/// prefix does not count as one (BND, NOTRACK, addr32 of a relaxed call).
pub(crate) fn decode(code: &[u8]) -> Option<Shape> {
    let shapes = [Shape::Call, Shape::Jump, Shape::IndirectCall, Shape::IndirectJump];
    // Each opcode is followed by a displacement, whatever that is.
    shapes.into_iter().find(|shape| code.starts_with(shape.opcode()) && code.len() >= shape.len())
}

/// Whether `code` starts with the NOP of an inactive [`Shape::Call`].
pub(crate) fn is_nop5(code: &[u8]) -> bool {
    code.starts_with(&NOP5)
}

/// The site's instruction with this displacement.
pub(crate) fn active(shape: Shape, displacement: i32) -> Bytes {
    let mut code = [0; Shape::IndirectCall.len()];
    let (opcode, operand) = code[..shape.len()].split_at_mut(shape.operand_offset());
    opcode.copy_from_slice(shape.opcode());
    operand.copy_from_slice(&displacement.to_le_bytes());
    bytes(&code[..shape.len()])
}

/// Bytes in a word, as [`Bytes::word`] returns them.
const fn word(bytes: &[u8]) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < bytes.len() {
        word |= (bytes[at] as u64) << (8 * at);
        at += 1;
    }
    word
}

/// As [`active`], in a word.
#[inline]
pub(crate) const fn active_word(shape: Shape, displacement: i32) -> u64 {
    const CALL: u64 = word(Shape::Call.opcode());
    const JUMP: u64 = word(Shape::Jump.opcode());
    const INDIRECT_CALL: u64 = word(Shape::IndirectCall.opcode());
    const INDIRECT_JUMP: u64 = word(Shape::IndirectJump.opcode());
    let displacement = displacement as u32 as u64;
    match shape {
        Shape::Call => CALL | displacement << 8,
        Shape::Jump => JUMP | displacement << 8,
        Shape::IndirectCall => INDIRECT_CALL | displacement << 16,
        Shape::IndirectJump => INDIRECT_JUMP | displacement << 16,
    }
}

/// The displacement from an instruction of `shape` at `address` to `target`, if it is in range.
pub(crate) fn displacement(shape: Shape, address: usize, target: usize) -> Option<i32> {
    (target as i64).wrapping_sub((address + shape.len()) as i64).try_into().ok()
}

/// The NOP of the length of a call of `shape`.
#[inline]
pub(crate) fn nop(shape: Shape) -> Bytes {
    const FIVE: Bytes = Bytes::new(&NOP5).expect("1 to 8 bytes");
    const SIX: Bytes = Bytes::new(&NOP6).expect("1 to 8 bytes");
    if shape.len() == NOP5.len() { FIVE } else { SIX }
}

/// The two bytes that jump over the rest of the instruction.
#[inline]
pub(crate) fn skip(shape: Shape) -> Bytes {
    bytes(&[JMP_REL8, shape.len() as u8 - 2])
}

/// The first byte that turns the call into a load of a constant: EAX for a direct call, EDX for an
/// indirect one.
#[inline]
pub(crate) fn opcode_of_load(shape: Shape) -> Bytes {
    bytes(&[match shape {
        Shape::Call => MOV_EAX_IMM32,
        Shape::IndirectCall => LEA,
        Shape::Jump | Shape::IndirectJump => RET,
    }])
}

/// The first byte of an inactive tail call.
#[inline]
pub(crate) fn ret() -> Bytes {
    bytes(&[RET])
}

#[inline]
pub(crate) fn bytes(slice: &[u8]) -> Bytes {
    Bytes::new(slice).expect("1 to 8 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let check = |code: &[u8], expected| assert_eq!(decode(code), expected, "{code:02x?}");
        check(&[0xe8, 1, 2, 3, 4], Some(Shape::Call));
        check(&[0xe9, 1, 2, 3, 4, 0x90], Some(Shape::Jump));
        check(&[0xff, 0x15, 1, 2, 3, 4], Some(Shape::IndirectCall));
        check(&[0xff, 0x25, 1, 2, 3, 4], Some(Shape::IndirectJump));
        check(&[0xff, 0x14, 0x25, 1, 2, 3, 4], None);
        check(&[0xff, 0xd3], None);
        check(&[0x67, 0xe8, 1, 2, 3, 4], None);
        check(&[0xf2, 0xe8, 1, 2, 3, 4], None);
        check(&[0xe8, 1, 2, 3], None);
    }

    /// Every inactive form has the length of the active one, and falls through, jumps to its end,
    /// or returns.
    #[test]
    fn inactive_forms_keep_the_layout() {
        for shape in [Shape::Call, Shape::IndirectCall] {
            let original = active(shape, 0x0102_0304);
            assert_eq!(active_word(shape, 0x0102_0304), original.word());
            for front in [nop(shape), skip(shape), opcode_of_load(shape)] {
                let mut code = original.to_vec();
                code[..front.len()].copy_from_slice(&front);
                let instruction = Decoder::new(64, &code, DecoderOptions::NONE).decode();
                let next = match instruction.code() {
                    Code::Jmp_rel8_64 => instruction.near_branch_target() as usize,
                    _ => instruction.len(),
                };
                assert_eq!(next, shape.len(), "{shape:?} {front}");
            }
        }
    }

    /// RETs that an inactive call may use: one byte long, at the start of an instruction.
    #[test]
    fn rets_are_found_where_an_instruction_starts() {
        let check = |code: &[u8], expected: &[usize]| {
            assert_eq!(rets(code, 0x1000).collect::<Vec<_>>(), expected, "{code:02x?}");
        };
        check(&[RET], &[0x1000]);
        check(&[0x90, RET, 0x90, RET], &[0x1001, 0x1003]);
        // In an operand; with a prefix; with an operand.
        check(&[0xb0, RET, RET], &[0x1002]);
        check(&[0xf3, RET, RET], &[0x1002]);
        check(&[0xc2, 8, 0, RET], &[0x1003]);
        // After a byte that begins no instruction, decoding stops.
        check(&[0x06, RET], &[]);
        check(&[RET, 0x06, 0x90, RET], &[0x1000]);
    }
}
