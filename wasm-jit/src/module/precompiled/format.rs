//! The format of a precompiled module.
//!
//! | offset | what it is |
//! | --- | --- |
//! | 0 | [`MAGIC`] |
//! | 8 | [`FORMAT`], 32 bits, little-endian like all numbers here |
//! | 12 | CRC-32 of the following, up to the end of the header |
//! | 16 | length of the header, 64 bits |
//! | 24 | [`Header`], in the encoding of the crate postcard, with the tables of the code |
//! | `code.start` | the machine code, from a multiple of [`PAGE`], and zeros up to the next |
//! | `module.start` | the binary module, up to the end |
//!
//! The header has the checksums of the other two parts: of the code, from the end of the header up
//! to the start of the module, and of the module. All are compared when the module is loaded,
//! before anything of it is used. If the module is known, as in a cache, it is compared itself.
//!
//! The checksums detect accidents: changed bits, missing parts, and parts of an older version of
//! the file. They do not detect deliberate changes; protection against them depends on who can
//! write the file.

use std::ops::Range;

use bytes::Bytes;
use crc32fast::Hasher;
use serde::{Deserialize, Serialize};
use wasm_jit_codegen::{CodeSettings, FINGERPRINT};

use crate::code::CodeImage;
use crate::code::stored::StoredTables;
use crate::engine::Engine;
use crate::error::PrecompiledError;
use crate::parallel::{self, PIECE};

/// The first bytes of the file. No text and no binary module contains the first of them.
pub(super) const MAGIC: [u8; 8] = *b"\xffwasmjit";

/// Incremented when this format, or the tables of an image, change.
const FORMAT: u32 = 2;

/// Length of what precedes the header.
const PREAMBLE: usize = 24;

/// Where the first checksum begins.
const CHECKED: usize = 16;

/// Code begins and ends at multiples of this, so that it can be mapped.
const PAGE: usize = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// The names and values of [`requirements`].
    requirements: Vec<(String, String)>,
    /// Where the machine code is, without the padding of its last page.
    code: Range<u64>,
    /// Where the binary module is.
    module: Range<u64>,
    /// The checksum of the code. Like the next one, of the same length whatever it is.
    code_checksum: [u8; 4],
    /// The checksum of the module.
    module_checksum: [u8; 4],
    tables: StoredTables,
}

/// A precompiled module that this engine can load.
pub(super) struct Contents {
    /// The binary module.
    pub module: Bytes,
    pub code: Bytes,
    /// Where the code begins, a multiple of [`PAGE`].
    pub code_offset: u64,
    pub tables: StoredTables,
}

/// Everything that affects the code of a module, and everything that it relies on, with the values
/// of this engine.
pub(super) fn requirements(engine: &Engine) -> Vec<(&'static str, String)> {
    // Versions of probed functions depend on the number of counters in stubs; they are not stored.
    let CodeSettings {
        checks_bounds,
        masks_indices,
        relaxes_vectors,
        uses_avx512,
        uses_fuel,
        sites,
        counter_stubs: _,
        patches_calls: _,
    } = engine.code_settings();
    let is_on = |on: bool| if on { "on" } else { "off" }.to_owned();
    vec![
        ("version", format!("{}-{FINGERPRINT}", env!("CARGO_PKG_VERSION"))),
        // `Engine::new` has checked that the processor has it. Code uses nothing else except
        // AVX-512.
        ("processor", "x86-64-v3".to_owned()),
        ("AVX-512", is_on(uses_avx512)),
        ("bounds checks by instructions", is_on(checks_bounds)),
        ("hardening of speculation", is_on(masks_indices)),
        ("deterministic relaxed vectors", is_on(!relaxes_vectors)),
        ("fuel", is_on(uses_fuel)),
        ("probe sites", format!("{sites:?}").to_lowercase()),
    ]
}

/// The image as a precompiled module, with its code and its tables.
pub(super) fn encode(engine: &Engine, image: &CodeImage, (code, tables): (Vec<u8>, StoredTables)) -> Vec<u8> {
    let requirements = requirements(engine).into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut header = Header {
        requirements: requirements.collect(),
        code: 0..0,
        module: 0..0,
        code_checksum: [0; 4],
        module_checksum: checksum(engine, &image.bytes),
        tables,
    };
    // The four positions are zeros still, of one byte each; a position takes at most ten.
    let longest = 4 * (10 - 1);
    let start = (PREAMBLE + encoded(&header).len() + longest).next_multiple_of(PAGE);
    let end = start + code.len();
    let module = end.next_multiple_of(PAGE);
    header.code = start as u64..end as u64;
    header.module = module as u64..(module + image.bytes.len()) as u64;
    let header_end = PREAMBLE + encoded(&header).len();
    let mut bytes = Vec::with_capacity(module + image.bytes.len());
    bytes.resize(start, 0);
    bytes.extend(code);
    bytes.resize(module, 0);
    header.code_checksum = checksum(engine, &bytes[header_end..]);
    bytes.extend(&image.bytes[..]);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes[CHECKED..PREAMBLE].copy_from_slice(&((header_end - PREAMBLE) as u64).to_le_bytes());
    bytes[PREAMBLE..header_end].copy_from_slice(&encoded(&header));
    let of_header = checksum(engine, &bytes[CHECKED..header_end]);
    bytes[12..CHECKED].copy_from_slice(&of_header);
    bytes
}

/// The CRC-32 of bytes.
fn checksum(engine: &Engine, bytes: &[u8]) -> [u8; 4] {
    let of_piece = |piece: &[u8]| {
        let mut hasher = Hasher::new();
        hasher.update(piece);
        hasher
    };
    let mut all = Hasher::new();
    for piece in parallel::map(engine.compile_threads().get(), bytes.chunks(PIECE), of_piece) {
        all.combine(&piece);
    }
    all.finalize().to_le_bytes()
}

fn encoded(header: &Header) -> Vec<u8> {
    postcard::to_allocvec(header).expect("vectors, strings and numbers can be encoded")
}

/// The contents of a precompiled module, which are parts of `bytes`, not copies. The binary module
/// must be `expected`, if that is known.
///
/// # Errors
/// `bytes` is not a precompiled module, is damaged, or is not for this engine.
pub(super) fn decode(
    engine: &Engine,
    bytes: &Bytes,
    expected: Option<&[u8]>,
) -> Result<Contents, PrecompiledError> {
    let damaged = |what| PrecompiledError::Damaged { what };
    let (incomplete, wrong) = (damaged("it is incomplete"), damaged("its checksum is wrong"));
    let preamble = bytes.strip_prefix(&MAGIC).ok_or(PrecompiledError::NotPrecompiled)?;
    let Some((format, rest)) = preamble.split_first_chunk() else { return Err(incomplete) };
    let Some((header_checksum, rest)) = rest.split_first_chunk() else { return Err(incomplete) };
    let Some((length, _)) = rest.split_first_chunk() else { return Err(incomplete) };
    let format = u32::from_le_bytes(*format);
    if format != FORMAT {
        let (expected, found) = (FORMAT.to_string(), format.to_string());
        return Err(PrecompiledError::Incompatible { what: "format", expected, found });
    }
    let part = |range: &Range<u64>| {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        bytes.get(range.clone())?;
        Some(bytes.slice(range))
    };
    let header_end = (PREAMBLE as u64).saturating_add(u64::from_le_bytes(*length));
    let Some(checked) = part(&(CHECKED as u64..header_end)) else { return Err(incomplete) };
    if checksum(engine, &checked) != *header_checksum {
        return Err(wrong);
    }
    // Not a part of the header's type, so that modules compiled by another version are recognized
    // although the rest of their header differs.
    let header = &checked[PREAMBLE - CHECKED..];
    let malformed = |_| damaged("its header is malformed");
    let found: Vec<(String, String)> = postcard::take_from_bytes(header).map_err(malformed)?.0;
    check(engine, &found)?;
    let header: Header = postcard::from_bytes(header).map_err(malformed)?;
    let parts = (part(&header.code), part(&(header_end..header.module.start)), part(&header.module));
    let (Some(code), Some(with_code), Some(module)) = parts else { return Err(incomplete) };
    if header.module.end != bytes.len() as u64 {
        return Err(damaged("something follows it"));
    }
    if checksum(engine, &with_code) != header.code_checksum {
        return Err(wrong);
    }
    match expected {
        Some(expected) if !parallel::are_equal(engine.compile_threads().get(), &module, expected) => {
            return Err(damaged("it is that of another module"));
        }
        None if checksum(engine, &module) != header.module_checksum => return Err(wrong),
        _ => {}
    }
    Ok(Contents { module, code, code_offset: header.code.start, tables: header.tables })
}

/// Compares the requirements of a precompiled module with those of this engine.
fn check(engine: &Engine, found: &[(String, String)]) -> Result<(), PrecompiledError> {
    let mut found = found.iter();
    for (what, expected) in requirements(engine) {
        let of_module = found.next().filter(|(name, _)| name == what);
        match of_module {
            Some((_, value)) if *value == expected => {}
            other => {
                let found = other.map_or_else(|| "of another kind".to_owned(), |(_, value)| value.clone());
                return Err(PrecompiledError::Incompatible { what, expected, found });
            }
        }
    }
    match found.next() {
        None => Ok(()),
        Some(_) => Err(PrecompiledError::Damaged { what: "it has unknown requirements" }),
    }
}
