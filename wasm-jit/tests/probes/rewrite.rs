//! References for probes: a module rewritten so that it counts, or records values, by itself, in a
//! global for each place.

use wasm_encoder::{CodeSection, Encode, Module, RawSection, SectionId, ValType};
use wasmparser::{FunctionBody, Operator, Parser, Payload};

/// A place that is counted: function, and the module offset of the instruction; none for the entry.
pub(crate) type Counted = (u32, Option<u32>);

/// The module with counters before all instructions (of a loop, after it), and at all entries.
/// The counter of the n-th place is exported as `count n`.
pub(crate) fn rewrite(bytes: &[u8]) -> (Vec<u8>, Vec<Counted>) {
    rewrite_by(bytes, &[], |out, _, global| {
        // global.get, i64.const 1, i64.add, global.set
        out.push(0x23);
        global.encode(out);
        out.extend([0x42, 1, 0x7c, 0x24]);
        global.encode(out);
    })
}

/// The module with code that `emit` writes before all instructions (of a loop, after it), and at
/// all entries, with a global of type i64 for each of them. Functions get one more local of each of
/// the types.
pub(crate) fn rewrite_by(
    bytes: &[u8],
    locals: &[ValType],
    mut emit: impl FnMut(&mut Vec<u8>, Counted, u32),
) -> (Vec<u8>, Vec<Counted>) {
    let (mut sections, mut code, mut places) = (Vec::new(), CodeSection::new(), Vec::new());
    let (mut functions, mut first) = (0, 0);
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.unwrap();
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    match import.unwrap().ty {
                        wasmparser::TypeRef::Func(_) => functions += 1,
                        wasmparser::TypeRef::Global(_) => first += 1,
                        _ => {}
                    }
                }
            }
            Payload::GlobalSection(globals) => first += globals.count(),
            _ => {}
        }
        if let Payload::CodeSectionEntry(body) = &payload {
            code.raw(&instrumented(bytes, body, locals, |out, at| {
                let global = first + places.len() as u32;
                places.push((functions, at));
                emit(out, (functions, at), global);
            }));
            functions += 1;
        } else if let Some((id, range)) = payload.as_section()
            && id != 0
            && id != SectionId::Code as u8
        {
            sections.push((id, bytes[range.start as usize..range.end as usize].to_vec()));
        }
    }
    let mut global = Vec::new();
    let mut export = Vec::new();
    for number in 0..places.len() as u32 {
        global.extend([0x7e, 1, 0x42, 0, 0x0b]);
        format!("count {number}").encode(&mut export);
        export.push(3);
        (first + number).encode(&mut export);
    }
    extend(&mut sections, SectionId::Global as u8, places.len() as u32, &global);
    extend(&mut sections, SectionId::Export as u8, places.len() as u32, &export);
    let mut module = Module::new();
    let order = |id: u8| [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 11, 6][id as usize];
    sections.sort_by_key(|(id, _)| order(*id));
    let follows_code = |(id, _): &&(u8, Vec<u8>)| *id == SectionId::Data as u8;
    for (id, data) in sections.iter().filter(|section| !follows_code(section)) {
        module.section(&RawSection { id: *id, data });
    }
    module.section(&code);
    for (id, data) in sections.iter().filter(follows_code) {
        module.section(&RawSection { id: *id, data });
    }
    (module.finish(), places)
}

/// Adds items to a section, which there may not be yet.
fn extend(sections: &mut Vec<(u8, Vec<u8>)>, id: u8, count: u32, items: &[u8]) {
    let found = sections.iter_mut().find(|(section, _)| *section == id);
    let (before, old) = match &found {
        Some((_, data)) => {
            let mut reader = wasmparser::BinaryReader::new(data, 0);
            let before = reader.read_var_u32().unwrap();
            (before, data[reader.current_position()..].to_vec())
        }
        None => (0, Vec::new()),
    };
    let mut data = Vec::new();
    (before + count).encode(&mut data);
    data.extend(old);
    data.extend(items);
    match found {
        Some(section) => section.1 = data,
        None => sections.push((id, data)),
    }
}

/// A body with more locals, and more code at all places.
fn instrumented(
    bytes: &[u8],
    body: &FunctionBody<'_>,
    locals: &[ValType],
    mut emit: impl FnMut(&mut Vec<u8>, Option<u32>),
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reader = body.get_operators_reader().unwrap();
    let (start, first) = (body.range().start as usize, reader.original_position() as usize);
    let mut declared = wasmparser::BinaryReader::new(&bytes[start..first], 0);
    (declared.read_var_u32().unwrap() + locals.len() as u32).encode(&mut out);
    out.extend(&bytes[start + declared.current_position()..first]);
    for ty in locals {
        1_u32.encode(&mut out);
        ty.encode(&mut out);
    }
    emit(&mut out, None);
    while !reader.eof() {
        let at = reader.original_position() as usize;
        let operator = reader.read().unwrap();
        let code = &bytes[at..reader.original_position() as usize];
        if matches!(operator, Operator::Loop { .. }) {
            out.extend(code);
            emit(&mut out, Some(at as u32));
        } else {
            emit(&mut out, Some(at as u32));
            out.extend(code);
        }
    }
    out
}
