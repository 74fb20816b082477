//! Bytes that are not a module, or nearly one: loading them must end soon, without a crash.

use arbitrary::Unstructured;
use wasm_smith::{Config, Module};

use crate::hints;
use crate::random::{Random, mixed};

/// The bytes of a seed.
#[must_use]
pub fn of_seed(seed: u64) -> Vec<u8> {
    let mut random = Random::new(mixed(seed) ^ 0x6279_7465);
    if random.one_in(20) {
        let length = random.below(200) as usize;
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        bytes.extend(random.bytes(length));
        return bytes;
    }
    let mut bytes = module(&mut random);
    if random.one_in(2) {
        bytes = hints::with_hints(&bytes, &mut random);
    }
    if !random.one_in(8) {
        for _ in 0..=random.below(8) {
            mutate(&mut bytes, &mut random);
        }
    }
    bytes
}

/// A module with features that wasm-jit may not support; some of its functions may be invalid.
fn module(random: &mut Random) -> Vec<u8> {
    let config = Config {
        allow_invalid_funcs: random.one_in(3),
        gc_enabled: random.one_in(6),
        simd_enabled: random.one_in(6),
        relaxed_simd_enabled: random.one_in(2),
        memory64_enabled: random.one_in(6),
        threads_enabled: random.one_in(2),
        exceptions_enabled: !random.one_in(3),
        max_memories: 3,
        max_tables: 3,
        max_instructions: random.choose(&[20, 300, 3000]),
        max_funcs: random.choose(&[3, 50]),
        generate_custom_sections: random.one_in(3),
        ..Config::default()
    };
    let length = 1 << random.choose(&[8, 11, 14]);
    let bytes = random.bytes(length);
    Module::new(config, &mut Unstructured::new(&bytes)).map_or(bytes, |module| module.to_bytes())
}

/// Makes one small change.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(7) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.number() as u8,
        2 => bytes[at] = random.choose(&[0x00, 0x7f, 0x80, 0xff, 0x0b, 0x05, 0x40, 0x70, 0x6f, 0xfc, 0xfe]),
        3 => bytes.truncate(at),
        4 => {
            bytes.remove(at);
        }
        5 => bytes.insert(at, random.number() as u8),
        _ => {
            let length = (random.below(30) as usize).min(bytes.len() - at);
            let from = random.below((bytes.len() - length + 1) as u64) as usize;
            let part = bytes[from..from + length].to_vec();
            bytes[at..at + length].copy_from_slice(&part);
        }
    }
}
