//! Out-of-line copies of instructions, which threads execute while the site is locked with INT3.
//!
//! A copy has the effect of the instruction at its original address, and jumps to the next
//! instruction after that. iced-x86 re-encodes operands that depend on the address (RIP-relative
//! operands, relative branches).
//!
//! # Calls
//! A CALL in the copy would push an address in the copy. But return addresses are used:
//! `__cyg_profile_func_enter` gets that of its caller, and unwinders look them up in tables. The
//! copy would also stay in use until the callee returns. Therefore a CALL becomes
//!
//! ```text
//! push imm32              ; low half of the return address, sign-extended
//! mov dword [rsp+4], imm  ; high half
//! jmp target
//! ```
//!
//! With user shadow stacks (CET), this is fatal: only CALL pushes to the shadow stack, so the
//! callee's RET would raise a control-protection exception. A CALL is refused then. All other
//! instructions, including RET, are copied unchanged and keep the shadow stack correct. An
//! arbitrary address cannot be pushed: WRSS is reserved for runtimes that enable it.

use std::arch::asm;

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, FlowControl, Instruction, InstructionBlock, MemoryOperand,
    Register,
};

use crate::Error;

/// The maximum length of a copy: three instructions of at most 15 bytes, and the bytes that the
/// encoder appends for far branches.
pub(crate) const MAX_COPY: usize = 64;

fn immovable(instruction: &Instruction, reason: &'static str) -> Error {
    Error::Immovable { address: instruction.ip() as usize, reason }
}

fn encodes(result: Result<Instruction, iced_x86::IcedError>) -> Instruction {
    result.expect("a fixed, valid operand combination")
}

/// Whether a thread has a shadow stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShadowStack {
    Disabled,
    Enabled,
}

impl ShadowStack {
    /// Reads the shadow stack pointer of this thread. The C library enables shadow stacks for the
    /// entire process when it starts.
    fn of_this_thread() -> Self {
        let pointer: u64;
        // SAFETY: reads the shadow stack pointer; without shadow stacks it is a NOP and leaves 0.
        unsafe {
            asm!(
                "xor eax, eax",
                // rdsspq rax
                ".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8",
                out("rax") pointer,
                options(nomem, nostack),
            );
        }
        if pointer == 0 { Self::Disabled } else { Self::Enabled }
    }
}

/// The instructions that replace `instruction` at another address.
fn displaced(instruction: &Instruction, shadow_stack: ShadowStack) -> Result<Vec<Instruction>, Error> {
    if shadow_stack == ShadowStack::Enabled
        && (instruction.is_call_near() || instruction.is_call_near_indirect())
    {
        return Err(immovable(instruction, "it is a call, and shadow stacks are enabled in this process"));
    }
    let next = instruction.next_ip();
    let jump_to_next = || encodes(Instruction::with_branch(Code::Jmp_rel32_64, next));
    let push_return_address = || {
        let high_half = MemoryOperand::with_base_displ(Register::RSP, 4);
        [
            encodes(Instruction::with1(Code::Pushq_imm32, next as i32)),
            encodes(Instruction::with2(Code::Mov_rm32_imm32, high_half, (next >> 32) as u32)),
        ]
    };
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::ConditionalBranch => Ok(vec![*instruction, jump_to_next()]),
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => {
            Ok(vec![*instruction])
        }
        FlowControl::Call if instruction.is_call_near() => {
            let mut copy = push_return_address().to_vec();
            copy.push(encodes(Instruction::with_branch(
                Code::Jmp_rel32_64,
                instruction.near_branch_target(),
            )));
            Ok(copy)
        }
        FlowControl::IndirectCall if instruction.code() == Code::Call_rm64 => {
            if instruction.memory_base() == Register::RSP || instruction.op0_register() == Register::RSP {
                return Err(immovable(instruction, "it calls through the stack pointer"));
            }
            let mut jump = *instruction;
            jump.set_code(Code::Jmp_rm64);
            let mut copy = push_return_address().to_vec();
            copy.push(jump);
            Ok(copy)
        }
        FlowControl::Call | FlowControl::Interrupt => {
            Err(immovable(instruction, "it enters the kernel or traps"))
        }
        _ => Err(immovable(instruction, "its control flow is not supported")),
    }
}

/// The code of a copy of `instruction` at `address`.
///
/// # Errors
/// [`Error::Immovable`], possibly at this address only.
pub(crate) fn copy_at(instruction: &Instruction, address: usize) -> Result<Vec<u8>, Error> {
    let instructions = displaced(instruction, ShadowStack::of_this_thread())?;
    let place = InstructionBlock::new(&instructions, address as u64);
    let encoded = BlockEncoder::encode(64, place, BlockEncoderOptions::NONE)
        .map_err(|_| immovable(instruction, "it cannot be encoded at another address"))?;
    assert!(encoded.code_buffer.len() <= MAX_COPY);
    Ok(encoded.code_buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    const IP: u64 = 0x7000_1234_5000;

    fn decode(bytes: &[u8]) -> Instruction {
        Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE).decode()
    }

    /// Compares the instructions of a copy, without and with shadow stacks.
    fn check(bytes: &[u8], expected: Option<&[Code]>) {
        let instruction = decode(bytes);
        let codes = |shadow_stack| {
            let copy = displaced(&instruction, shadow_stack);
            copy.map(|copy| copy.iter().map(Instruction::code).collect::<Vec<_>>())
        };
        assert_eq!(codes(ShadowStack::Disabled).ok().as_deref(), expected, "{bytes:02x?}");
        let pushes = expected.is_some_and(|codes| codes.contains(&Code::Pushq_imm32));
        if pushes {
            let refused = codes(ShadowStack::Enabled).unwrap_err().to_string();
            assert!(refused.contains("shadow stacks"), "{bytes:02x?}: {refused}");
        } else {
            assert_eq!(codes(ShadowStack::Enabled).ok().as_deref(), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn copies_of_each_kind_of_instruction() {
        use Code::*;
        check(&[0x0f, 0x1f, 0x44, 0, 0], Some(&[Nop_rm32, Jmp_rel32_64]));
        check(&[0xe8, 1, 0, 0, 0], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rel32_64]));
        check(&[0xff, 0x15, 1, 0, 0, 0], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rm64]));
        check(&[0xff, 0xd3], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rm64]));
        check(&[0xff, 0x14, 0x24], None);
        check(&[0xff, 0xd4], None);
        check(&[0xff, 0x94, 0xc4, 8, 0, 0, 0], None);
        check(&[0xe9, 1, 0, 0, 0], Some(&[Jmp_rel32_64]));
        check(&[0xff, 0xe3], Some(&[Jmp_rm64]));
        check(&[0x0f, 0x84, 1, 0, 0, 0], Some(&[Je_rel32_64, Jmp_rel32_64]));
        check(&[0xc3], Some(&[Retnq]));
        // SYSCALL, far CALL, INT, UD2, XBEGIN.
        check(&[0x0f, 0x05], None);
        check(&[0xff, 0x1b], None);
        check(&[0xcd, 0x80], None);
        check(&[0x0f, 0x0b], None);
        check(&[0xc7, 0xf8, 0, 0, 0, 0], None);
    }

    /// The return address is that of the CALL at its original address, in both halves.
    #[test]
    fn a_call_pushes_its_own_return_address() {
        for ip in [IP, 0x1234_5678, 0x7fff_ffff_f000, 0x5555_8000_0000] {
            let call = Decoder::with_ip(64, &[0xe8, 0x10, 0, 0, 0], ip, DecoderOptions::NONE).decode();
            let copy = displaced(&call, ShadowStack::Disabled).unwrap();
            let (low, high) = (copy[0].immediate32to64() as u32, copy[1].immediate32());
            assert_eq!(u64::from(high) << 32 | u64::from(low), ip + 5);
            assert_eq!((copy[1].memory_base(), copy[1].memory_displacement64()), (Register::RSP, 4));
            assert_eq!(copy[2].near_branch_target(), ip + 0x15);
        }
    }

    #[test]
    fn a_copy_continues_at_the_next_instruction() {
        let copy = copy_at(&decode(&[0x0f, 0x1f, 0x44, 0, 0]), IP as usize + 0x1000).unwrap();
        let mut decoder = Decoder::with_ip(64, &copy, IP + 0x1000, DecoderOptions::NONE);
        assert_eq!(decoder.decode().code(), Code::Nop_rm32);
        assert_eq!(decoder.decode().near_branch_target(), IP + 5);
    }

    /// Compares with the kernel's report (proc(5)), if it supports shadow stacks.
    #[test]
    fn the_shadow_stack_of_this_thread() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let features = status.lines().find_map(|line| line.strip_prefix("x86_Thread_features:"));
        let enabled = features.is_some_and(|features| features.split_whitespace().any(|one| one == "shstk"));
        assert_eq!(ShadowStack::of_this_thread() == ShadowStack::Enabled, enabled);
    }
}
