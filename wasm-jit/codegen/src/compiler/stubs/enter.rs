//! Entry stubs: a function whose code is to change before its next call jumps from its entry to
//! such a stub.
//!
//! ```text
//! stub of a function:
//! mov r11d, function
//! jmp common
//!
//! common:
//! push rbp                         the state is that of a call: arguments are in their locations
//! mov rbp, rsp
//! lea rsp, [rsp - SAVED]
//! mov [rsp + n], register          each register that an argument may be in, and rax
//! mov rdi, image
//! mov rsi, r11
//! mov rax, routine
//! call rax                         returns where to continue, and whether after the entry's PUSH
//! mov r11, rax
//! mov r10, rdx                     no argument is in it
//! mov register, [rsp + n]
//! mov rsp, rbp
//! pop rbp
//! test r10, r10
//! jne after
//! jmp r11
//! after:
//! push rbp
//! jmp r11
//! ```
//!
//! During this time no frame of the function exists, and no code of the program is executed.

use crate::asm::{Assembler, Cond, Mem, Reg, Size, Width};
use crate::compiler::abi::{FLOAT_ARGS, INT_ARGS, SCRATCH};

/// The distance between the stubs of two functions.
pub const ENTER_STUB_SIZE: usize = 16;

/// Where execution continues after the stub of a function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Continue {
    /// The function's entry, or the instruction after it.
    pub address: usize,
    /// Whether the stub must execute the instruction at the entry, PUSH of `rbp`, before it
    /// continues: 0 or 1.
    pub after_entry: usize,
}

/// Stubs for functions with these indices, one after the other, followed by their common part. They
/// call `routine`, an `extern "sysv64" fn(image, function) -> Continue`. Also returns the offset
/// from which the code has a frame, whose `rbp` points to that of the caller.
#[must_use]
pub fn enter_stubs(functions: std::ops::Range<u32>, image: usize, routine: usize) -> (Vec<u8>, u32) {
    let mut code = Vec::new();
    let asm = &mut Assembler::new(&mut code);
    let common = asm.new_label();
    for (number, function) in functions.enumerate() {
        let filled = (number * ENTER_STUB_SIZE) as u32 - asm.offset();
        asm.nops(filled);
        asm.mov_imm(SCRATCH, function.into());
        asm.jmp(common);
    }
    asm.bind(common);
    let frame = call_and_continue(asm, |asm| {
        asm.mov_imm(Reg::RDI, image as u64);
        asm.mov(Width::W64, Reg::RSI, SCRATCH);
        asm.mov_imm(Reg::RAX, routine as u64);
        asm.call_reg(Reg::RAX);
    });
    (code, frame)
}

/// Saves the arguments of a call, and `rbp`, calls a routine by `call`, which returns a
/// [`Continue`], and continues there as if nothing had happened. Returns the offset from which the
/// code has a frame.
pub(crate) fn call_and_continue(asm: &mut Assembler<'_>, call: impl FnOnce(&mut Assembler<'_>)) -> u32 {
    let saved = || std::iter::once(Reg::RAX).chain(INT_ARGS).chain(FLOAT_ARGS).zip(0..);
    // The argument may be a vector.
    let size = 16 * saved().count() as i32;
    let place = |number: i32| Mem::base(Reg::RSP, 16 * number);
    asm.push(Reg::RBP);
    asm.mov(Width::W64, Reg::RBP, Reg::RSP);
    let frame = asm.offset();
    asm.lea(Width::W64, Reg::RSP, Mem::base(Reg::RSP, -size));
    for (reg, number) in saved() {
        if reg.is_float() {
            asm.vector_store(place(number), reg);
        } else {
            asm.mov_store(Size::B8, place(number), reg);
        }
    }
    call(asm);
    asm.mov(Width::W64, SCRATCH, Reg::RAX);
    asm.mov(Width::W64, Reg::R10, Reg::RDX);
    for (reg, number) in saved() {
        if reg.is_float() {
            asm.vector_load(reg, place(number));
        } else {
            asm.mov(Width::W64, reg, place(number));
        }
    }
    asm.mov(Width::W64, Reg::RSP, Reg::RBP);
    asm.pop(Reg::RBP);
    let after = asm.new_label();
    asm.test(Width::W64, Reg::R10, Reg::R10);
    asm.jcc(Cond::NotEqual, after);
    asm.jmp_reg(SCRATCH);
    asm.bind(after);
    asm.push(Reg::RBP);
    asm.jmp_reg(SCRATCH);
    frame
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    use super::*;

    /// Each stub names its function, and all lead to the common part.
    #[test]
    fn stubs_name_their_functions() {
        let (code, frame) = enter_stubs(7..10, 1, 2);
        let mut targets = Vec::new();
        for (number, function) in (7..10).enumerate() {
            let start = number * ENTER_STUB_SIZE;
            let mut decoder = Decoder::with_ip(64, &code[start..], start as u64, DecoderOptions::NONE);
            let (load, jump) = (decoder.decode(), decoder.decode());
            assert_eq!((load.mnemonic(), load.immediate(1)), (Mnemonic::Mov, function));
            assert_eq!(load.op0_register().full_register(), Register::R11);
            assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
            targets.push(jump.near_branch_target());
        }
        targets.dedup();
        let [common] = targets[..] else { panic!("{targets:?}") };
        assert!(common as usize >= 2 * ENTER_STUB_SIZE + 5);
        let mut decoder = Decoder::with_ip(64, &code[common as usize..], common, DecoderOptions::NONE);
        let prologue = [(); 2].map(|()| decoder.decode().mnemonic());
        assert_eq!(prologue, [Mnemonic::Push, Mnemonic::Mov]);
        assert_eq!(decoder.ip(), frame.into());
    }
}
