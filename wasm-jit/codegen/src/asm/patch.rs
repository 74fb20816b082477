//! The bytes that patches exchange in running code.

use std::ops::Range;

use super::{Assembler, Mem, Reg};

/// The prefix CS, which has no effect on PUSH, or on any other instruction except conditional
/// jumps.
pub const ENTRY_PREFIX: u8 = 0x2e;

/// The longest instruction that the processor executes.
const MAX_LENGTH: u32 = 15;

/// The number of bytes that a store changes at once.
const QUADWORD: u32 = 8;

/// The size of the operand of JMP and CALL in bytes.
const OPERAND: u32 = 4;

/// A byte that no x86-64 processor executes: it raises SIGILL.
pub const TRANSFER_TRAP: u8 = 0x06;

/// The bytes of a site that is off: a NOP of the site's length.
pub const SITE_OFF: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// The bytes of a site that is on, at the address `from`: JMP to `to`, with its rel32.
#[must_use]
pub fn site_jump(from: usize, to: usize) -> [u8; 5] {
    let distance = to.wrapping_sub(from + SITE_OFF.len()) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// A jump of the program that is a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteJump {
    /// The jump's condition by its code in Jcc; `None` for JMP.
    pub condition: Option<u8>,
    /// The length of the jump, in bytes.
    pub length: u32,
    /// The displacement of the jump, relative to its end.
    pub displacement: i32,
}

impl SiteJump {
    /// The number of bytes that are needed to decode a jump.
    pub const MAX_LENGTH: usize = 6;

    /// Decodes JMP or Jcc with a 32-bit displacement.
    #[must_use]
    pub fn decode(code: [u8; Self::MAX_LENGTH]) -> Option<Self> {
        let displacement = |at: usize| i32::from_le_bytes([0, 1, 2, 3].map(|byte| code[at + byte]));
        match code {
            [0xe9, ..] => Some(Self { condition: None, length: 5, displacement: displacement(1) }),
            [0x0f, jcc @ 0x80..=0x8f, ..] => {
                Some(Self { condition: Some(jcc & 15), length: 6, displacement: displacement(2) })
            }
            _ => None,
        }
    }
}

impl Assembler<'_> {
    /// Lengthens the last instruction by prefixes without effect. Returns whether it did: it does
    /// not if a label is bound after the instruction, or if the instruction is a jump, a call to a
    /// function of the module, or relative to RIP.
    pub(crate) fn lengthen_last(&mut self, by: u32) -> bool {
        let end = self.offset();
        let Some(last) = self.last.filter(|last| end - last + by <= MAX_LENGTH) else {
            return false;
        };
        let prefixes = [ENTRY_PREFIX; MAX_LENGTH as usize];
        self.code.splice(last as usize..last as usize, prefixes[..by as usize].iter().copied());
        true
    }

    /// Replaces code that was appended before, and is longer than this, by an addition of 1 to a
    /// quadword.
    pub(crate) fn overwrite_with_add_one(&mut self, range: Range<u32>, dst: Mem) {
        let mut code = Vec::new();
        Assembler::new(&mut code).add_one_long(dst);
        let mut all = vec![ENTRY_PREFIX; range.len() - code.len()];
        all.append(&mut code);
        self.overwrite(range.start, &all);
    }

    /// Appends prefixes without effect on the JMP or CALL that follows, so that its four-byte
    /// operand, which comes after one byte, is inside an aligned quadword.
    pub(crate) fn prefix_patched_operand(&mut self) {
        let at = (self.offset() + 1) % QUADWORD;
        if at + OPERAND > QUADWORD {
            self.bytes(&[ENTRY_PREFIX; OPERAND as usize][..(QUADWORD - at) as usize]);
        }
    }

    /// PUSH with as many prefixes as make it `length` bytes long.
    pub(crate) fn long_push(&mut self, reg: Reg, length: u32) {
        let end = self.offset() + length;
        let mut push = Vec::new();
        Assembler::new(&mut push).push(reg);
        while self.offset() + (push.len() as u32) < end {
            self.bytes(&[ENTRY_PREFIX]);
        }
        self.bytes(&push);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};

    use super::*;

    fn decode(code: &[u8], ip: u64) -> Instruction {
        Decoder::with_ip(64, code, ip, DecoderOptions::NONE).decode()
    }

    #[test]
    fn a_push_of_every_length_is_one_instruction() {
        for length in 1..=8 {
            let mut code = Vec::new();
            Assembler::new(&mut code).long_push(Reg::RBP, length);
            let push = decode(&code, 0);
            assert_eq!((push.mnemonic(), push.op0_register()), (Mnemonic::Push, Register::RBP));
            assert_eq!((push.len(), code.len()), (length as usize, length as usize));
        }
    }

    #[test]
    fn operands_that_are_patched_are_in_a_quadword() {
        for filled in 0..16 {
            for is_call in [true, false] {
                let mut code = vec![0x90; filled];
                let asm = &mut Assembler::new(&mut code);
                asm.prefix_patched_operand();
                let operand = if is_call { asm.call_to_link() } else { asm.jmp_to_link() };
                assert!(operand % 8 <= 4, "{operand}");
                let instruction = decode(&code[filled..], 100);
                let mnemonic = if is_call { Mnemonic::Call } else { Mnemonic::Jmp };
                assert_eq!((instruction.mnemonic(), instruction.len()), (mnemonic, code.len() - filled));
                assert_eq!(instruction.near_branch_target(), 100 + instruction.len() as u64);
                assert!(instruction.len() <= 5 + 3);
            }
        }
    }

    #[test]
    fn a_site_is_a_nop_or_jumps() {
        let nop = decode(&SITE_OFF, 0);
        assert_eq!((nop.mnemonic(), nop.len()), (Mnemonic::Nop, SITE_OFF.len()));
        for (from, to) in [(0x1000_usize, 0x1005), (0x7000_0000, 0x1000), (0x1000, 0x7000_0000)] {
            let jump = decode(&site_jump(from, to), from as u64);
            assert_eq!((jump.mnemonic(), jump.len()), (Mnemonic::Jmp, SITE_OFF.len()));
            assert_eq!(jump.near_branch_target(), to as u64);
        }
        assert_eq!(decode(&[TRANSFER_TRAP; 8], 0).mnemonic(), Mnemonic::INVALID);
    }
}
