//! The opcodes of instructions in the binary format.

use std::collections::HashMap;

use wasm_jit::wasmparser::{BinaryReader, OperatorsReader};

use super::instructions::name;

/// The opcodes of all instructions by name. A prefix is the higher byte: `memory.copy` is 0xfc0a,
/// and `i8x16.relaxed_swizzle` is 0xfd0100.
///
/// They are found by decoding each number, in the contexts that some instructions need.
pub(crate) fn encodings() -> HashMap<String, u32> {
    let plain = (0..=0xff_u8).map(|opcode| (u32::from(opcode), vec![opcode]));
    let prefixed = (0xfb..=0xfe_u8).flat_map(|prefix| {
        (0..0x200_u32).map(move |number| {
            let shift = if number < 0x100 { 8 } else { 16 };
            let leb = [number as u8 & 0x7f | 0x80, (number >> 7) as u8];
            (u32::from(prefix) << shift | number, vec![prefix, leb[0], leb[1]])
        })
    });
    let mut all = HashMap::new();
    for (opcode, bytes) in plain.chain(prefixed) {
        if let Some(name) = decode(&bytes) {
            all.entry(name).or_insert(opcode);
        }
    }
    all
}

/// The name of the instruction with this opcode, if there is one.
fn decode(opcode: &[u8]) -> Option<String> {
    // Nothing, `if`, and `try`; then immediates that are zero, and a list of one type.
    const CONTEXTS: [&[u8]; 3] = [&[], &[0x04, 0x7f], &[0x06, 0x7f]];
    const IMMEDIATES: [&[u8]; 2] = [&[1, 0x7f], &[]];
    CONTEXTS.into_iter().find_map(|context| {
        IMMEDIATES.into_iter().find_map(|immediates| {
            let bytes = [context, opcode, immediates, &[0; 24]].concat();
            let mut operators = OperatorsReader::new(BinaryReader::new(&bytes, 0));
            if !context.is_empty() {
                operators.read().ok()?;
            }
            operators.read().ok().map(|operator| name(&operator))
        })
    })
}
