//! Data segments.
//!
//! Programs in Go have tens of thousands of them, nearly all of one form: for memory 0, at an
//! offset that is an `i32.const`. A section that has only these is read here, once, in a fifth of
//! the time that the validator takes.

use std::ops::Range;

use wasm_jit_codegen::ModuleInfo;
use wasmparser::{BinaryReader, Data, DataKind, DataSectionReader};

use super::const_expr::ConstExpr;
use super::parse::SegmentMode;
use crate::code::FEATURES;
use crate::error::Error;

#[derive(Debug)]
pub(crate) struct DataSegment {
    pub mode: SegmentMode,
    /// The segment's range in the module's bytes.
    pub range: Range<usize>,
}

/// The largest number of segments of a section that the validator need not see. It refuses sections
/// with more.
const MAX_SEGMENTS: u32 = 100_000;

/// Reads the segments of a section if it is valid, and all have the most frequent form. `info` has
/// what comes before the section.
///
/// This is all that the validator would check: the types of offsets, and that the memory is there.
/// It keeps nothing of the section.
pub(super) fn segments_at_constants(
    module: &[u8],
    section: &DataSectionReader<'_>,
    info: &ModuleInfo,
) -> Option<Vec<DataSegment>> {
    if info.memories.first().is_none_or(|memory| memory.memory64) || section.count() > MAX_SEGMENTS {
        return None;
    }
    let mut reader = contents(module, section);
    let count = reader.read_var_u32().ok()?;
    let segments = (0..count).map(|_| segment_at_constant(&mut reader)).collect::<Option<Vec<_>>>()?;
    reader.eof().then_some(segments)
}

/// Reads the segments of a valid section.
pub(super) fn segments(module: &[u8], section: &DataSectionReader<'_>) -> Result<Vec<DataSegment>, Error> {
    let mut reader = contents(module, section);
    let count = reader.read_var_u32()?;
    (0..count).map(|_| segment(&mut reader)).collect()
}

fn contents<'a>(module: &'a [u8], section: &DataSectionReader<'_>) -> BinaryReader<'a> {
    let Range { start, end } = section.range();
    BinaryReader::new_features(&module[start as usize..end as usize], start, FEATURES)
}

/// Reads a data segment.
fn segment(reader: &mut BinaryReader<'_>) -> Result<DataSegment, Error> {
    let mut ahead = reader.clone();
    if let Some(segment) = segment_at_constant(&mut ahead) {
        *reader = ahead;
        return Ok(segment);
    }
    let Data { kind, data, range } = reader.read()?;
    let mode = match kind {
        DataKind::Passive => SegmentMode::Passive,
        DataKind::Active { memory_index, offset_expr } => {
            SegmentMode::Active { target: memory_index, offset: ConstExpr::decode(&offset_expr)? }
        }
    };
    let end = range.end as usize;
    Ok(DataSegment { mode, range: end - data.len()..end })
}

/// Reads a data segment of the most frequent form.
fn segment_at_constant(reader: &mut BinaryReader<'_>) -> Option<DataSegment> {
    const MEMORY_0: u8 = 0;
    // Written 0x41 in the specification.
    const I32_CONST: u8 = 65;
    const END: u8 = 0x0b;
    let reads = |reader: &mut BinaryReader<'_>, expected| reader.read_u8().is_ok_and(|byte| byte == expected);
    if !(reads(reader, MEMORY_0) && reads(reader, I32_CONST)) {
        return None;
    }
    let offset = reader.read_var_i32().ok()?;
    if !reads(reader, END) {
        return None;
    }
    let range = reader.read_reader().ok()?.range();
    let mode = SegmentMode::Active { target: 0, offset: ConstExpr::Value(u128::from(offset as u32)) };
    Some(DataSegment { mode, range: range.start as usize..range.end as usize })
}

#[cfg(test)]
mod tests {
    use wasmparser::Validator;

    use super::*;
    use crate::engine::Engine;
    use crate::module::parse::parse;

    /// Checks that a module is refused for the same reason as by the validator, if it is refused.
    /// Returns whether it is valid.
    fn check(engine: &Engine, module: &[u8]) -> bool {
        let expected = Validator::new_with_features(FEATURES).validate_all(module).map(drop);
        match (parse(engine, module), expected) {
            (Ok(_), Ok(_)) => true,
            (Err(Error::Invalid { message, offset }), Err(expected)) => {
                assert_eq!((message.as_str(), offset), (expected.message(), expected.offset()));
                false
            }
            (Err(Error::Unsupported { .. }), _) => false,
            (parsed, expected) => panic!("{parsed:?}, {expected:?}: {module:x?}"),
        }
    }

    #[test]
    fn data_sections_are_refused_for_the_same_reasons_as_by_the_validator() {
        let engine = Engine::default();
        let at_constants = r#"(data (i32.const 8) "a") (data (i32.const -1) "bc") (data (i32.const 0) "")"#;
        let texts = [
            format!("(module (memory 1) {at_constants})"),
            format!("(module (memory i64 1) {at_constants})"),
            format!("(module {at_constants})"),
            format!(
                "(module (memory 1) (memory i64 1) (data (memory 1) (i64.const 3) \"a\") {at_constants})"
            ),
            format!(
                "(module (memory 1) (global i32 (i32.const 9)) (data (global.get 0) \"a\") {at_constants})"
            ),
            format!("(module (memory 1) {at_constants} (data \"passive\"))"),
            format!("(module (memory 1) (data (i32.add (i32.const 1) (i32.const 2)) \"a\") {at_constants})"),
        ];
        let mut valid = 0;
        for text in texts {
            let module = wat::parse_str(&text).unwrap();
            valid += usize::from(check(&engine, &module));
            for at in 8..module.len() {
                check(&engine, &module[..at]);
                let mut changed = module.clone();
                for byte in 0..=255 {
                    changed[at] = byte;
                    check(&engine, &changed);
                }
            }
        }
        assert_eq!(valid, 5);
    }

    #[test]
    fn sections_with_too_many_segments_are_refused() {
        let engine = Engine::default();
        let module = |count: u32| {
            let segments = "(data (i32.const 0))".repeat(count as usize);
            wat::parse_str(format!("(module (memory 1) {segments})")).unwrap()
        };
        assert!(check(&engine, &module(MAX_SEGMENTS)));
        assert!(!check(&engine, &module(MAX_SEGMENTS + 1)));
    }

    #[test]
    fn segments_of_the_most_frequent_form_are_read_like_others() {
        let engine = Engine::default();
        let read = |passive: &str| {
            let data = r#"(data (i32.const 8) "ab") (data (i32.const -1) "") (data (i32.const 70000) "c")"#;
            let text = format!("(module (memory 1) {data} {passive})");
            let module = wat::parse_str(text).unwrap();
            let (parsed, _) = parse(&engine, &module).unwrap();
            let mut offsets = parsed.data.into_iter().filter_map(|segment| match segment.mode {
                SegmentMode::Active { target: 0, offset: ConstExpr::Value(offset) } => {
                    Some((offset, module[segment.range].to_vec()))
                }
                _ => None,
            });
            std::array::from_fn(|_| offsets.next().unwrap())
        };
        let expected = [(8, b"ab".to_vec()), (0xffff_ffff, Vec::new()), (70_000, b"c".to_vec())];
        assert_eq!(read(""), expected);
        assert_eq!(read("(data \"passive\")"), expected);
    }
}
