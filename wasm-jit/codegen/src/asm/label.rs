//! Labels and jumps.
//!
//! A jump to a bound label is short if the label is in range. Jumps to a label that is not bound
//! yet form a chain: the displacement of each holds the offset of the previous one, until
//! [`Assembler::bind`] fills in all of them.

use super::encode::{Bytes, Extra, op};
use super::{Assembler, Cond, Mem, Reg, Width};

/// A position in the code of one assembler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(super) u32);

/// The instruction that raises #UD.
pub const UD2: [u8; 2] = [0x0f, 0x0b];

const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct LabelState {
    position: u32,
    /// Offset of the displacement of the last jump.
    last_jump: u32,
}

/// The labels of an assembler, in the order in which they were made.
pub(crate) type Labels = Vec<LabelState>;

impl Assembler<'_> {
    pub(crate) fn new_label(&mut self) -> Label {
        self.labels.push(LabelState { position: NONE, last_jump: NONE });
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds the label to the current offset.
    pub(crate) fn bind(&mut self, label: Label) {
        let here = self.offset();
        self.last = None;
        self.last_bound = here;
        let state = &mut self.labels[label.0 as usize];
        state.position = here;
        let mut at = std::mem::replace(&mut state.last_jump, NONE);
        while at != NONE {
            let field = &mut self.code[at as usize..][..4];
            let before = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
            field.copy_from_slice(&here.wrapping_sub(at + 4).to_le_bytes());
            at = before;
        }
    }

    /// Whether a label was bound to the current offset.
    pub(crate) fn is_bound_here(&self) -> bool {
        self.last_bound == self.offset()
    }

    /// The displacement at this offset to `label`, until that is bound the link of its chain.
    fn displacement(&mut self, at: u32, label: Label) -> [u8; 4] {
        let state = &mut self.labels[label.0 as usize];
        let field = if state.position == NONE {
            std::mem::replace(&mut state.last_jump, at)
        } else {
            state.position.wrapping_sub(at + 4)
        };
        field.to_le_bytes()
    }

    /// Turns the last four bytes into the displacement to `label`.
    pub(super) fn link_last(&mut self, label: Label) {
        let at = self.offset() - 4;
        self.last = None;
        let displacement = self.displacement(at, label);
        self.overwrite(at, &displacement);
    }

    /// The displacement of a two-byte jump, if the label is in range.
    fn short(&self, label: Label) -> Option<u8> {
        let position = self.labels[label.0 as usize].position;
        let distance = i64::from(position) - i64::from(self.offset()) - 2;
        (position != NONE).then_some(())?;
        i8::try_from(distance).ok().map(|distance| distance as u8)
    }

    pub(crate) fn jmp(&mut self, label: Label) {
        if let Some(distance) = self.short(label) {
            return self.bytes(&[0xeb, distance]);
        }
        self.long_jmp(label);
    }

    /// JMP with a 32-bit displacement.
    pub(crate) fn long_jmp(&mut self, label: Label) {
        let [a, b, c, d] = self.displacement(self.offset() + 1, label);
        self.bytes(&[0xe9, a, b, c, d]);
    }

    pub(crate) fn jcc(&mut self, cond: Cond, label: Label) {
        if let Some(distance) = self.short(label) {
            return self.bytes(&[0x70 | cond as u8, distance]);
        }
        self.long_jcc(cond, label);
    }

    /// A conditional jump with a 32-bit displacement.
    pub(crate) fn long_jcc(&mut self, cond: Cond, label: Label) {
        let [a, b, c, d] = self.displacement(self.offset() + 2, label);
        self.bytes(&[0x0f, 0x80 | cond as u8, a, b, c, d]);
    }

    /// LEA of a label's address.
    pub(crate) fn lea_label(&mut self, dst: Reg, label: Label) {
        self.use_register(dst);
        // RIP-relative: mod 00, r/m 101.
        let rex = 0x48 | (dst.number() >> 3) << 2;
        let [a, b, c, d] = self.displacement(self.offset() + 3, label);
        self.bytes(&[rex, 0x8d, (dst.number() & 7) << 3 | 5, a, b, c, d]);
    }

    /// A table of 32-bit displacements from the start of the table, which is bound as `table`. All
    /// labels must be bound.
    pub(crate) fn jump_table(&mut self, table: Label, targets: &[Label]) {
        while !self.offset().is_multiple_of(4) {
            self.ud2_byte();
        }
        let start = self.offset();
        self.bind(table);
        for target in targets {
            let position = self.labels[target.0 as usize].position;
            self.bytes(&position.wrapping_sub(start).to_le_bytes());
        }
    }

    /// Padding after code that does not fall through.
    fn ud2_byte(&mut self) {
        self.bytes(&[0x0f]);
    }

    /// CALL with a displacement to be linked; returns its offset.
    pub(crate) fn call_to_link(&mut self) -> u32 {
        self.r11_changes += 1;
        self.bytes(&[0xe8, 0, 0, 0, 0]);
        self.offset() - 4
    }

    /// JMP with a displacement to be linked; returns its offset.
    pub(crate) fn jmp_to_link(&mut self) -> u32 {
        self.bytes(&[0xe9, 0, 0, 0, 0]);
        self.offset() - 4
    }

    /// A conditional jump whose displacement, its last four bytes, is to be linked.
    pub(crate) fn jcc_to_link(&mut self, cond: Cond) {
        self.bytes(&[0x0f, 0x80 | cond as u8, 0, 0, 0, 0]);
    }

    /// As [`Self::jcc_to_link`], for the condition with this code; returns the offset of the
    /// displacement.
    pub(crate) fn jcc_code_to_link(&mut self, code: u8) -> u32 {
        self.bytes(&[0x0f, 0x80 | code, 0, 0, 0, 0]);
        self.offset() - 4
    }

    pub(crate) fn call_mem(&mut self, target: Mem) {
        self.r11_changes += 1;
        self.instruction(op(0xff), Width::W32, 2, target.into());
    }

    pub(crate) fn call_reg(&mut self, target: Reg) {
        self.r11_changes += 1;
        self.instruction(op(0xff), Width::W32, 2, target.into());
    }

    pub(crate) fn jmp_mem(&mut self, target: Mem) {
        self.instruction(op(0xff), Width::W32, 4, target.into());
    }

    pub(crate) fn jmp_reg(&mut self, target: Reg) {
        self.instruction(op(0xff), Width::W32, 4, target.into());
    }

    /// RET that removes `bytes` bytes of arguments.
    pub(crate) fn ret(&mut self, bytes: u16) {
        if bytes == 0 {
            return self.bytes(&[0xc3]);
        }
        let [low, high] = bytes.to_le_bytes();
        self.bytes(&[0xc2, low, high]);
    }

    pub(crate) fn push(&mut self, reg: Reg) {
        let mut bytes = Bytes::new();
        if reg.number() >= 8 {
            bytes.push(0x41);
        }
        bytes.push(0x50 | reg.number() & 7);
        self.emit(&bytes);
    }

    pub(crate) fn pop(&mut self, reg: Reg) {
        self.use_register(reg);
        let mut bytes = Bytes::new();
        if reg.number() >= 8 {
            bytes.push(0x41);
        }
        bytes.push(0x58 | reg.number() & 7);
        self.emit(&bytes);
    }

    /// LEAVE: `rsp` from `rbp`, then POP `rbp`.
    pub(crate) fn leave(&mut self) {
        self.bytes(&[0xc9]);
    }

    /// UD2 and the byte after it.
    pub(crate) fn ud2(&mut self, code: u8) {
        self.bytes(&UD2);
        self.bytes(&[code]);
    }

    /// `count` bytes of NOPs, in as few instructions as possible.
    pub(crate) fn nops(&mut self, mut count: u32) {
        while count > 0 {
            let length = count.min(9);
            match length {
                1 => self.bytes(&[0x90]),
                2 => self.bytes(&[0x66, 0x90]),
                3 => self.bytes(&[0x0f, 0x1f, 0x00]),
                4 => self.bytes(&[0x0f, 0x1f, 0x40, 0]),
                5 => self.bytes(&[0x0f, 0x1f, 0x44, 0, 0]),
                6 => self.bytes(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]),
                7 => self.bytes(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]),
                8 => self.bytes(&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]),
                _ => self.bytes(&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]),
            }
            count -= length;
        }
    }

    /// An ALU instruction or exchange with a LOCK prefix: see `int.rs`.
    pub(super) fn locked() -> Extra {
        Extra { lock: true, byte_register: false }
    }
}
