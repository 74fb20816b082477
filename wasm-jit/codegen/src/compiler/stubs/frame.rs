//! What a stub saves before it calls functions that may use the store: every register that may hold
//! a value, and a frame that makes the stub look like a trampoline to host functions.

use std::mem::offset_of;

use crate::asm::{Assembler, Mem, Reg, Size, Width};
use crate::compiler::abi::{CALLEE_SAVED, CONTEXT};

/// Lies at the stack pointer of the stub. The registers may be changed: the stub restores them.
#[repr(C)]
#[derive(Debug)]
pub struct SiteFrame {
    /// General registers by their number, then SSE registers, of two words each. Only registers
    /// that are live and not callee-saved are valid.
    registers: [u64; 16 + 2 * 16],
    /// All arithmetic flags: those of LAHF in bits 8 to 15, and the overflow flag in bit 0.
    pub flags: u64,
    /// The condition that is the top operand, as 0 or 1.
    pub condition: u64,
    /// Belongs to the runtime: the operand that the site keeps before the context, while calls may
    /// change it there.
    pub settled: u64,
    /// Belongs to the runtime: at an exit, the address of the results that are not in registers,
    /// while calls may overwrite them in the store's buffer.
    pub results: *mut u64,
    /// `r13`, `r12` and `rbx`.
    callee_saved: [u64; 3],
    /// The running instance's context.
    pub context: usize,
    /// The frame pointer of the function. From this field, the structure has the layout of a frame.
    pub fp: usize,
    /// An address in the stub.
    pub return_address: usize,
}

const FRAME: usize = offset_of!(SiteFrame, fp);
// The layout of a host trampoline's frame.
const _: () = assert!(offset_of!(SiteFrame, context) + 8 == FRAME);
const _: () = assert!(offset_of!(SiteFrame, callee_saved) + 32 == FRAME);
const _: () = assert!(offset_of!(SiteFrame, return_address) == FRAME + 8);
const _: () = assert!(size_of::<SiteFrame>().is_multiple_of(16));

impl SiteFrame {
    pub(crate) const SIZE: i32 = size_of::<Self>() as i32;
    pub(crate) const FLAGS: i32 = offset_of!(Self, flags) as i32;
    pub(crate) const CONDITION: i32 = offset_of!(Self, condition) as i32;
    pub(crate) const FRAME: i32 = FRAME as i32;

    /// The frame that ends at this frame pointer ([`EXIT_FP`](crate::vmctx::EXIT_FP)).
    #[must_use]
    pub fn at(exit_fp: usize) -> *mut Self {
        std::ptr::with_exposed_provenance_mut(exit_fp - FRAME)
    }

    /// What a stub would have saved where a thread has these registers: the general ones by their
    /// numbers, which include the context and the frame pointer, and the SSE registers.
    #[must_use]
    pub fn of_thread(general: &[u64; 16], vectors: &[u128; 16], return_address: usize) -> Self {
        let mut registers = [0; 48];
        registers[..16].copy_from_slice(general);
        for (number, vector) in vectors.iter().enumerate() {
            registers[16 + 2 * number] = *vector as u64;
            registers[17 + 2 * number] = (*vector >> 64) as u64;
        }
        let general = |reg: Reg| general[usize::from(reg.number())];
        let [(first, _), (second, _), (third, _)] = CALLEE_SAVED;
        Self {
            registers,
            flags: 0,
            condition: 0,
            settled: 0,
            results: std::ptr::null_mut(),
            callee_saved: [general(third), general(second), general(first)],
            context: general(CONTEXT) as usize,
            fp: general(Reg::RBP) as usize,
            return_address,
        }
    }

    /// A register's value; for an SSE register the lower half, which the upper half follows.
    pub fn register(&mut self, reg: Reg) -> &mut u64 {
        match CALLEE_SAVED.iter().position(|(kept, _)| *kept == reg) {
            Some(number) => &mut self.callee_saved[2 - number],
            None => &mut self.registers[Self::word(reg)],
        }
    }

    /// The index in `registers` of a register's first word.
    fn word(reg: Reg) -> usize {
        if reg.is_float() { 16 + 2 * usize::from(reg.number()) } else { reg.index() }
    }

    /// Where a register is saved, from the stub's stack pointer.
    pub(crate) fn offset(reg: Reg) -> i32 {
        match CALLEE_SAVED.iter().find(|(kept, _)| *kept == reg) {
            Some((_, slot)) => Self::FRAME + slot,
            None => (offset_of!(Self, registers) + 8 * Self::word(reg)) as i32,
        }
    }

    fn place(reg: Reg) -> Mem {
        Mem::base(Reg::RSP, Self::offset(reg))
    }

    /// Saves the parts of the frame that are not in `registers`.
    pub(crate) fn save(asm: &mut Assembler<'_>) {
        for (reg, _) in CALLEE_SAVED {
            asm.mov_store(Size::B8, Self::place(reg), reg);
        }
        asm.mov_store(Size::B8, Mem::base(Reg::RSP, offset_of!(Self, context) as i32), CONTEXT);
        asm.mov_store(Size::B8, Mem::base(Reg::RSP, Self::FRAME), Reg::RBP);
    }

    /// Restores what [`Self::save`] has saved.
    pub(crate) fn restore(asm: &mut Assembler<'_>) {
        for (reg, _) in CALLEE_SAVED {
            asm.mov(Width::W64, reg, Self::place(reg));
        }
    }
}

/// Where a function's frame has the caller's value of a register, as an offset from its `rbp`, if
/// the register is callee-saved.
#[must_use]
pub fn callee_saved_slot(reg: Reg) -> Option<i32> {
    CALLEE_SAVED.iter().find(|(kept, _)| *kept == reg).map(|(_, slot)| *slot)
}
