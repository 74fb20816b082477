//! Every encoding, decoded by iced-x86.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::{Alu, Assembler, Cond, FloatOp, Mem, Reg, Rounding, Shift, Size};

fn check(expected: &str, assemble: impl FnOnce(&mut Assembler<'_>)) {
    let mut code = Vec::new();
    assemble(&mut Assembler::new(&mut code));
    let mut decoder = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
    let mut text = Vec::new();
    while decoder.can_decode() {
        let instruction: Instruction = decoder.decode();
        assert!(!instruction.is_invalid(), "{expected}: {code:02x?}");
        text.push(instruction.to_string());
    }
    assert_eq!(text.join("; "), expected, "{code:02x?}");
}
