//! Entries of functions that are compiled when they are first called.
//!
//! ```text
//! entry of a function:
//! nop                              five bytes: JMP to the code, once there is some
//! mov r11d, function
//! jmp common
//!
//! common:
//! push rbp                         the state is that of a call, as in `enter.rs`
//! mov rbp, rsp
//! ...                              arguments are saved
//! mov rdi, r14
//! mov rsi, r11
//! mov rax, [r14 + LIBCALLS]
//! call [rax + CompileFunction]     returns where to continue; 0 if that failed
//! test rax, rax
//! je failed
//! ...                              arguments are restored
//! jmp r11
//!
//! failed:                          the frame is that of `common`, below that of the caller
//! mov rax, [r14 + LIBCALLS]
//! call [rax + Raise]
//! ```
//!
//! An entry is 16 bytes long, at a multiple of 16, so the NOP is inside an aligned quadword.

use super::enter::call_and_continue;
use crate::asm::{Assembler, Cond, Mem, Reg, SITE_OFF, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH};
use crate::vmctx::{LIBCALLS, Libcall};

/// The distance between the entries of two functions.
pub const LAZY_ENTRY_SIZE: usize = 16;

/// Entries of functions with these indices, one after the other, followed by their common part. The
/// code can be at any address.
#[must_use]
pub fn lazy_entries(functions: std::ops::Range<u32>) -> Vec<u8> {
    let mut code = Vec::with_capacity((functions.len() + 16) * LAZY_ENTRY_SIZE);
    let asm = &mut Assembler::new(&mut code);
    let common = asm.new_label();
    for (number, function) in functions.enumerate() {
        asm.nops((number * LAZY_ENTRY_SIZE) as u32 - asm.offset());
        asm.bytes(&SITE_OFF);
        asm.mov_imm(SCRATCH, function.into());
        asm.jmp(common);
    }
    asm.bind(common);
    let failed = asm.new_label();
    call_and_continue(asm, |asm| {
        asm.mov(Width::W64, Reg::RDI, CONTEXT);
        asm.mov(Width::W64, Reg::RSI, SCRATCH);
        asm.mov(Width::W64, Reg::RAX, Mem::base(CONTEXT, LIBCALLS));
        asm.call_mem(Mem::base(Reg::RAX, 8 * Libcall::CompileFunction as i32));
        asm.test(Width::W64, Reg::RAX, Reg::RAX);
        asm.jcc(Cond::Equal, failed);
    });
    asm.bind(failed);
    asm.mov(Width::W64, Reg::RAX, Mem::base(CONTEXT, LIBCALLS));
    asm.call_mem(Mem::base(Reg::RAX, 8 * Libcall::Raise as i32));
    code
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    use super::*;

    /// The instruction that is patched is a separate NOP in each entry, whatever the index.
    #[test]
    fn entries_begin_with_a_nop_and_name_their_functions() {
        for first in [0, 127, 70_000, u32::MAX - 3] {
            let code = lazy_entries(first..first + 3);
            let mut targets = Vec::new();
            for (number, function) in (first..first + 3).enumerate() {
                let start = number * LAZY_ENTRY_SIZE;
                assert_eq!(code[start..][..SITE_OFF.len()], SITE_OFF);
                let mut decoder = Decoder::with_ip(64, &code[start..], start as u64, DecoderOptions::NONE);
                let [nop, load, jump] = [(); 3].map(|()| decoder.decode());
                assert_eq!((nop.mnemonic(), nop.len()), (Mnemonic::Nop, SITE_OFF.len()));
                assert_eq!(load.op0_register().full_register(), Register::R11);
                match load.mnemonic() {
                    Mnemonic::Mov => assert_eq!(load.immediate(1), function.into()),
                    other => assert_eq!((other, function), (Mnemonic::Xor, 0)),
                }
                assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
                assert!(decoder.position() <= LAZY_ENTRY_SIZE);
                targets.push(jump.near_branch_target());
            }
            targets.dedup();
            let [common] = targets[..] else { panic!("{targets:?}") };
            assert!(common as usize > 2 * LAZY_ENTRY_SIZE);
            let first = Decoder::new(64, &code[common as usize..], DecoderOptions::NONE).decode();
            assert_eq!(first.mnemonic(), Mnemonic::Push);
        }
    }
}
