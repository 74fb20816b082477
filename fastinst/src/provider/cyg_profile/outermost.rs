//! The outermost functions of a program: `main`, and those to which it leads by direct calls.
//!
//! The first call of such a function is often the only one, and the longest: the main loop of a
//! server, the function of a thread, the steps of a compiler. Were their probes made when they have
//! been executed, this call would only be counted. Therefore they are made before the program runs,
//! beginning with `main` and continuing with the functions that these refer to: in the order of
//! their distance from `main`, up to a number that takes a few milliseconds.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::{Object as _, ObjectSection};

use super::elf::Elf;

/// The number of functions whose probes are made in advance. One takes about 5 us.
pub(super) const LIMIT: usize = 1000;

/// The number of bytes of an entry point that are decoded.
const ENTRY_POINT: u64 = 64;

/// The address in memory of an executable's `main`: the first argument of the call that the C
/// library's code at the entry point makes. Does not need symbols.
pub(super) fn main(elf: &Elf<'_>, bias: usize) -> Option<usize> {
    let entry = elf.entry();
    let code = elf.sections().find_map(|section| section.data_range(entry, ENTRY_POINT).ok()?)?;
    first_argument(code, bias.wrapping_add(entry as usize))
}

/// The constant in the register of the first argument at the first call of this code.
fn first_argument(code: &[u8], address: usize) -> Option<usize> {
    let mut argument = None;
    for instruction in &mut Decoder::with_ip(64, code, address as u64, DecoderOptions::NONE) {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall => return argument,
            _ => return None,
        }
        if instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().full_register() == Register::RDI
        {
            argument = address_of(&instruction);
        }
    }
    None
}

/// The address that an instruction loads into a register, if it may be that of a function.
pub(super) fn address_of(instruction: &Instruction) -> Option<usize> {
    match instruction.code() {
        Code::Lea_r64_m if instruction.memory_base() == Register::RIP => {
            Some(instruction.memory_displacement64() as usize)
        }
        Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 => {
            Some(instruction.immediate(1) as usize)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_argument_of_the_first_call_is_main() {
        // xor ebp,ebp; mov r9,rdx; pop rsi; ...; lea rdi,[rip+0x1000]; call [rip]; hlt
        let independent = b"\x31\xed\x49\x89\xd1\x5e\x48\x8d\x3d\x00\x10\x00\x00\xff\x15\x00\x00\x00\x00\xf4";
        assert_eq!(first_argument(independent, 0x5000), Some(0x500d + 0x1000));
        // mov rdi,0x401136; call [rip]
        let fixed = b"\x48\xc7\xc7\x36\x11\x40\x00\xff\x15\x00\x00\x00\x00";
        assert_eq!(first_argument(fixed, 0x40_1000), Some(0x40_1136));
        // The argument is loaded from memory; there is no call; a branch.
        assert_eq!(first_argument(b"\xbf\x01\x00\x00\x00\x48\x8b\x3c\x24\xe8\x00\x00\x00\x00", 0), None);
        assert_eq!(first_argument(b"\xbf\x01\x00\x00\x00\x90", 0), None);
        assert_eq!(first_argument(b"\xbf\x01\x00\x00\x00\xeb\x00\xe8\x00\x00\x00\x00", 0), None);
    }
}
