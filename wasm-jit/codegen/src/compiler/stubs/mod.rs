//! The code that a site jumps to.
//!
//! A stub is entered with the state before the site's instruction, and returns to the end of the
//! site with the same state: it changes only `r11` and `xmm15`, which are free at a site, and the
//! flags where they are not needed. It uses no stack, since the frame of a leaf function may lie
//! below `rsp`.
//!
//! If the site is not settled, the next instruction may do a load that belongs to the previous one.
//! The stub attempts this load first: if it traps, nothing has been counted.
//!
//! ```text
//! mov r11, [pending load]         mov r11, [pending load]
//! mov r11, [r14 + COUNTERS]       mov r11, [r14 + COUNTERS]
//! add qword [r11 + cell], 1       vmovq xmm15, rax
//! jmp back                        mov rax, [r11 + cell]
//!                                 lea rax, [rax + 1]
//! where flags are needed:         mov [r11 + cell], rax
//!                                 vmovq rax, xmm15
//!                                 jmp back
//! ```
//!
//! If the site is a jump of the program, the stub ends with it:
//!
//! ```text
//! jcc target                      jmp target
//! jmp back
//! ```
//!
//! A store runs on one thread, and has its own counters, so no LOCK is needed.

pub(super) mod enter;
mod fold;
pub(super) mod frame;
mod inline;
pub(super) mod inlined;
mod inliner;
mod interrupt_check;
pub(super) mod lazy;
pub(super) mod list;
pub(super) mod record;
pub(super) mod shortcut;
pub(super) mod trampoline;
pub(super) mod values;

use crate::asm::{Alu, Assembler, Mem, Reg, SiteJump, Size, Width};
use crate::compiler::abi::{CONTEXT, FLOAT_SCRATCH, SCRATCH};
use crate::vmctx::COUNTERS;

/// The state at a site, as far as its stub depends on it.
#[derive(Clone, Debug)]
pub struct AtSite {
    /// Whether the code that follows may rely on the flags.
    pub(crate) needs_flags: bool,
    /// The pending loads: where the values are, and whether they have eight bytes or four.
    pub(crate) pending: Vec<(Mem, Width)>,
    /// Whether the site is a jump of the program.
    pub(crate) is_jump: bool,
}

impl AtSite {
    /// Whether the site is a jump of the program, with a 32-bit displacement, instead of a NOP.
    #[must_use]
    pub fn is_jump(&self) -> bool {
        self.is_jump
    }

    /// The state for a stub of several instructions that share a site.
    pub fn join(&mut self, other: &Self) {
        self.needs_flags |= other.needs_flags;
    }
}

/// The parts of a counter's stub, by their offsets in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterStub {
    /// Where the stub begins.
    pub start: u32,
    /// Where the jump back begins, or the program's jump: from here, the stub does nothing else.
    pub back: u32,
    /// The rel32 of the jump back, relative to its end; if the site is JMP of the program, the
    /// rel32 of that JMP.
    pub rel32: u32,
    /// The rel32 of the program's jump, if it is conditional.
    pub taken: Option<u32>,
}

/// Appends a stub that adds 1 to the quadword at `cell`, an offset in the instance's counters, and
/// executes `jump`, if the site is one.
pub fn counter_stub(cell: i32, state: &AtSite, jump: Option<&SiteJump>, code: &mut Vec<u8>) -> CounterStub {
    let asm = &mut Assembler::new(code);
    let start = asm.offset();
    for (mem, width) in &state.pending {
        asm.mov(*width, SCRATCH, *mem);
    }
    increment(asm, cell, state.needs_flags);
    let back = asm.offset();
    let taken = jump.and_then(|jump| jump.condition).map(|condition| asm.jcc_code_to_link(condition));
    let rel32 = asm.jmp_to_link();
    CounterStub { start, back, rel32, taken }
}

/// Adds 1 to the quadword at `cell`, an offset in the instance's counters. Returns the offset of
/// the code that follows the addition. Changes the scratch registers, and the flags unless they are
/// needed.
pub(crate) fn increment(asm: &mut Assembler<'_>, cell: i32, needs_flags: bool) -> u32 {
    asm.mov(Width::W64, SCRATCH, Mem::base(CONTEXT, COUNTERS));
    let cell = Mem::base(SCRATCH, cell);
    if needs_flags {
        asm.float_from_bits(Width::W64, FLOAT_SCRATCH, Reg::RAX);
        asm.mov(Width::W64, Reg::RAX, cell);
        asm.lea(Width::W64, Reg::RAX, Mem::base(Reg::RAX, 1));
        asm.mov_store(Size::B8, cell, Reg::RAX);
        let counted = asm.offset();
        asm.float_to_bits(Width::W64, Reg::RAX, FLOAT_SCRATCH);
        counted
    } else {
        asm.alu_imm(Alu::Add, Width::W64, cell, 1);
        asm.offset()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instructions of a stub, each with the flags that it changes.
    fn disassembled(needs_flags: bool, pending: Vec<(Mem, Width)>) -> Vec<(String, bool)> {
        let mut code = vec![0; 3];
        let state = AtSite { needs_flags, pending, is_jump: false };
        let stub = counter_stub(800, &state, None, &mut code);
        assert_eq!((stub.start, stub.rel32, code.len() as u32), (3, stub.back + 1, stub.back + 5));
        let mut decoder = iced_x86::Decoder::new(64, &code[3..], iced_x86::DecoderOptions::NONE);
        let mut formatter = iced_x86::NasmFormatter::new();
        let mut all = Vec::new();
        for instruction in &mut decoder {
            let mut text = String::new();
            iced_x86::Formatter::format(&mut formatter, &instruction, &mut text);
            all.push((text, instruction.rflags_modified() != 0));
        }
        all
    }

    #[test]
    fn flags_change_where_nobody_needs_them() {
        let stub = disassembled(false, Vec::new());
        assert_eq!(stub[0].0, "mov r11,[r14-8]");
        assert_eq!(stub[1], ("add qword [r11+320h],1".to_owned(), true));
        assert_eq!(stub.len(), 3);
    }

    #[test]
    fn pending_loads_are_tried_before_anything_is_counted() {
        let pending =
            vec![(Mem::indexed(Reg::R15, Reg::RAX, 0, 8), Width::W32), (Mem::base(Reg::R15, 4), Width::W64)];
        let stub = disassembled(true, pending);
        let text: Vec<&str> = stub.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(text[..3], ["mov r11d,[r15+rax+8]", "mov r11,[r15+4]", "mov r11,[r14-8]"]);
    }

    #[test]
    fn flags_stay_where_they_are_needed_and_so_does_rax() {
        let stub = disassembled(true, Vec::new());
        assert!(stub.iter().all(|(_, changes_flags)| !changes_flags), "{stub:?}");
        let text: Vec<&str> = stub.iter().map(|(text, _)| text.as_str()).collect();
        let expected = [
            "mov r11,[r14-8]",
            "vmovq xmm15,rax",
            "mov rax,[r11+320h]",
            "lea rax,[rax+1]",
            "mov [r11+320h],rax",
            "vmovq rax,xmm15",
        ];
        assert_eq!(text[..6], expected);
    }
}
