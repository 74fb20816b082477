//! Out-of-line copies of instructions: what a thread executes instead when it meets a site that is locked with INT3.
//!
//! A copy does what the instruction does at its own place, then jumps behind it. iced-x86 re-encodes what depends on the place
//! (RIP-relative operands, relative branches). A CALL would push the wrong return address, so it becomes
//!
//! ```text
//! push imm32              ; low half of the return address, sign-extended
//! mov dword [rsp+4], imm  ; high half
//! jmp target
//! ```

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, FlowControl, Instruction, InstructionBlock, MemoryOperand,
    Register,
};

use crate::Error;

/// The longest copy: three instructions of at most 15 bytes, and what the encoder appends for far branches.
pub(crate) const MAX_COPY: usize = 64;

fn immovable(instruction: &Instruction, reason: &'static str) -> Error {
    Error::Immovable { address: instruction.ip() as usize, reason }
}

fn encodes(result: Result<Instruction, iced_x86::IcedError>) -> Instruction {
    result.expect("a fixed, valid operand combination")
}

/// The instructions that stand for `instruction` at another place.
fn stand_in(instruction: &Instruction) -> Result<Vec<Instruction>, Error> {
    let behind = instruction.next_ip();
    let jump_behind = || encodes(Instruction::with_branch(Code::Jmp_rel32_64, behind));
    let push_return_address = || {
        let high_half = MemoryOperand::with_base_displ(Register::RSP, 4);
        [
            encodes(Instruction::with1(Code::Pushq_imm32, behind as i32)),
            encodes(Instruction::with2(Code::Mov_rm32_imm32, high_half, (behind >> 32) as u32)),
        ]
    };
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::ConditionalBranch => Ok(vec![*instruction, jump_behind()]),
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
        _ => Err(immovable(instruction, "its control flow is not understood")),
    }
}

/// The code of a copy of `instruction` that will stand at `address`.
///
/// # Errors
/// [`Error::Immovable`], perhaps only at this address.
pub(crate) fn copy_at(instruction: &Instruction, address: usize) -> Result<Vec<u8>, Error> {
    let instructions = stand_in(instruction)?;
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

    fn check(bytes: &[u8], expected: Option<&[Code]>) {
        let instruction = Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE).decode();
        let codes = stand_in(&instruction).map(|copy| copy.iter().map(Instruction::code).collect::<Vec<_>>());
        assert_eq!(codes.ok().as_deref(), expected, "{bytes:02x?}");
    }

    #[test]
    fn what_stands_for_each_kind_of_instruction() {
        use Code::*;
        check(&[0x0f, 0x1f, 0x44, 0, 0], Some(&[Nop_rm32, Jmp_rel32_64]));
        check(&[0xe8, 1, 0, 0, 0], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rel32_64]));
        check(&[0xff, 0x15, 1, 0, 0, 0], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rm64]));
        check(&[0xff, 0xd3], Some(&[Pushq_imm32, Mov_rm32_imm32, Jmp_rm64]));
        check(&[0xff, 0x14, 0x24], None);
        check(&[0xe9, 1, 0, 0, 0], Some(&[Jmp_rel32_64]));
        check(&[0x0f, 0x84, 1, 0, 0, 0], Some(&[Je_rel32_64, Jmp_rel32_64]));
        check(&[0xc3], Some(&[Retnq]));
        check(&[0x0f, 0x05], None);
    }
}
