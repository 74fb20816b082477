//! The bytes that patches exchange in running code.

use super::{Assembler, Reg};

/// A prefix that changes nothing about PUSH: CS.
pub const ENTRY_PREFIX: u8 = 0x2e;

/// A byte that no x86-64 processor executes: it raises SIGILL.
pub const TRANSFER_TRAP: u8 = 0x06;

/// What a site is while it is off: the NOP of its length.
pub const SITE_OFF: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// What a site is while it is on: JMP, with its rel32.
#[must_use]
pub fn site_jump(from: usize, to: usize) -> [u8; 5] {
    let distance = to.wrapping_sub(from + SITE_OFF.len()) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

impl Assembler<'_> {
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
