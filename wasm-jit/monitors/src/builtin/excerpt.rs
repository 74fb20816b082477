//! Excerpts: small modules in which chosen functions of a module have the same text as in the
//! module.
//!
//! The printer prints a module from start to end, which takes minutes and gigabytes for the largest
//! programs. An excerpt has the bodies of the chosen functions, the types of the module, and those
//! of its names that instructions can show:
//!
//! * functions that the bodies name. If a name is not unique, the printer adds the index to all but
//!   its first use, so the first function of that name is named, too;
//! * locals and labels of the chosen functions, which have the indices 0, 1 ... in the excerpt;
//! * everything else: types, tables, memories, globals, segments, fields, tags.
//!
//! An excerpt is not valid, because the entities that its bodies use are missing. The printer does
//! not check that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use wasm_encoder::{
    CodeSection, FunctionSection, IndirectNameMap, NameMap, NameSection, RawSection, SectionId,
};
use wasm_jit::Module;
use wasm_jit::wasmparser::{
    BinaryReaderError, IndirectNameMap as IndirectNames, KnownCustom, Name, NameMap as Names,
    NameSectionReader, Operator, Parser, Payload,
};

/// Makes excerpts of a module.
pub(super) struct Excerpts {
    module: Module,
    /// The contents of the type section.
    types: Range<usize>,
    /// The type of each function that has a body.
    type_of: Vec<u32>,
    imported: u32,
    functions: HashMap<u32, FunctionName>,
    locals: HashMap<u32, Vec<(u32, Text)>>,
    labels: HashMap<u32, Vec<(u32, Text)>>,
    /// All other names.
    others: NameSection,
}

/// The range of a text in the module.
type Text = Range<usize>;

struct FunctionName {
    name: Text,
    /// The first function of this name, if it is a different one.
    first: Option<u32>,
}

/// A module with some functions of another one.
pub(super) struct Excerpt {
    /// The excerpt in the binary format.
    pub(super) bytes: Vec<u8>,
    /// The functions, and where their bodies begin in the excerpt.
    pub(super) bodies: Vec<(u32, usize)>,
}

impl Excerpts {
    pub(super) fn of(module: &Module) -> Self {
        let mut excerpts = Self {
            module: module.clone(),
            types: 0..0,
            type_of: Vec::new(),
            imported: module.functions().filter(|function| function.body().is_none()).count() as u32,
            functions: HashMap::new(),
            locals: HashMap::new(),
            labels: HashMap::new(),
            others: NameSection::new(),
        };
        // The module was validated, so there are no errors.
        for payload in Parser::new(0).parse_all(module.bytes()).flatten() {
            match payload {
                Payload::TypeSection(types) => {
                    excerpts.types = types.range().start as usize..types.range().end as usize;
                }
                Payload::FunctionSection(types) => excerpts.type_of = types.into_iter().flatten().collect(),
                Payload::CustomSection(section) => {
                    if let KnownCustom::Name(names) = section.as_known() {
                        // As in the printer, everything before an error counts.
                        let _ = excerpts.read_names(module.bytes(), names);
                    }
                }
                _ => {}
            }
        }
        excerpts
    }

    fn read_names(&mut self, bytes: &[u8], names: NameSectionReader<'_>) -> Result<(), BinaryReaderError> {
        for name in names {
            let others = &mut self.others;
            match name? {
                Name::Function(names) => self.read_functions(bytes, names)?,
                Name::Local(names) => read_indirect(&mut self.locals, bytes, names)?,
                Name::Label(names) => read_indirect(&mut self.labels, bytes, names)?,
                Name::Type(names) => others.types(&copy(names)?),
                Name::Table(names) => others.tables(&copy(names)?),
                Name::Memory(names) => others.memories(&copy(names)?),
                Name::Global(names) => others.globals(&copy(names)?),
                Name::Element(names) => others.elements(&copy(names)?),
                Name::Data(names) => others.data(&copy(names)?),
                Name::Field(names) => others.fields(&copy_indirect(names)?),
                Name::Tag(names) => others.tags(&copy(names)?),
                Name::Parameter(names) => others.parameters(&copy_indirect(names)?),
                Name::TagParameter(names) => others.tag_parameters(&copy_indirect(names)?),
                Name::Module { .. } | Name::Unknown { .. } => {}
            }
        }
        Ok(())
    }

    fn read_functions(&mut self, bytes: &[u8], names: Names<'_>) -> Result<(), BinaryReaderError> {
        let mut first_of: HashMap<&str, u32> = HashMap::new();
        for naming in names {
            let naming = naming?;
            let first = *first_of.entry(naming.name).or_insert(naming.index);
            let first = (first != naming.index).then_some(first);
            self.functions.insert(naming.index, FunctionName { name: text(bytes, naming.name), first });
        }
        Ok(())
    }

    /// An excerpt with the bodies of these functions.
    pub(super) fn excerpt(&self, functions: &[u32]) -> Excerpt {
        let mut named: BTreeMap<u32, &str> = BTreeMap::new();
        let (mut of_locals, mut of_labels) = (IndirectNameMap::new(), IndirectNameMap::new());
        let (mut types, mut code) = (FunctionSection::new(), CodeSection::new());
        let mut bodies = Vec::new();
        for function in functions {
            let Some(body) = self.module.function(*function).and_then(|function| function.body()) else {
                continue;
            };
            for instruction in body.instructions() {
                if let Operator::Call { function_index: index }
                | Operator::ReturnCall { function_index: index }
                | Operator::RefFunc { function_index: index } = instruction.operator()
                {
                    self.name(*index, &mut named);
                }
            }
            let number = bodies.len() as u32;
            self.add_indirect(number, self.locals.get(function), &mut of_locals);
            self.add_indirect(number, self.labels.get(function), &mut of_labels);
            types.function(self.type_of[(function - self.imported) as usize]);
            code.raw(body.bytes());
            bodies.push(*function);
        }
        let mut names = NameSection::new();
        let mut of_functions = NameMap::new();
        named.iter().for_each(|(index, name)| of_functions.append(*index, name));
        names.functions(&of_functions);
        names.locals(&of_locals);
        names.labels(&of_labels);
        let mut module = wasm_encoder::Module::new();
        module.section(&RawSection {
            id: SectionId::Type.into(),
            data: &self.module.bytes()[self.types.clone()],
        });
        module.section(&types);
        module.section(&code);
        // The other names have greater numbers, in the same section.
        let mut contents = names.as_custom().data.to_vec();
        contents.extend_from_slice(&self.others.as_custom().data);
        module.section(&wasm_encoder::CustomSection { name: "name".into(), data: contents.into() });
        let bytes = module.finish();
        let starts = Parser::new(0).parse_all(&bytes).flatten().filter_map(|payload| match payload {
            Payload::CodeSectionEntry(body) => Some(body.range().start as usize),
            _ => None,
        });
        let bodies = bodies.into_iter().zip(starts).collect();
        Excerpt { bytes, bodies }
    }

    fn text(&self, text: &Text) -> &str {
        self.module.bytes().get(text.clone()).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    fn name<'a>(&'a self, index: u32, named: &mut BTreeMap<u32, &'a str>) {
        let Some(FunctionName { name, first }) = self.functions.get(&index) else { return };
        for index in [Some(index), *first].into_iter().flatten() {
            named.insert(index, self.text(name));
        }
    }

    fn add_indirect(&self, number: u32, names: Option<&Vec<(u32, Text)>>, to: &mut IndirectNameMap) {
        let Some(names) = names else { return };
        let mut map = NameMap::new();
        names.iter().for_each(|(index, name)| map.append(*index, self.text(name)));
        to.append(number, &map);
    }
}

/// The range of a part of `bytes`.
fn text(bytes: &[u8], part: &str) -> Text {
    let start = part.as_ptr() as usize - bytes.as_ptr() as usize;
    start..start + part.len()
}

fn read_indirect(
    into: &mut HashMap<u32, Vec<(u32, Text)>>,
    bytes: &[u8],
    names: IndirectNames<'_>,
) -> Result<(), BinaryReaderError> {
    for of_one in names {
        let of_one = of_one?;
        let of_function = into.entry(of_one.index).or_default();
        for naming in of_one.names {
            let naming = naming?;
            of_function.push((naming.index, text(bytes, naming.name)));
        }
    }
    Ok(())
}

fn copy(names: Names<'_>) -> Result<NameMap, BinaryReaderError> {
    let mut copy = NameMap::new();
    for naming in names {
        let naming = naming?;
        copy.append(naming.index, naming.name);
    }
    Ok(copy)
}

fn copy_indirect(names: IndirectNames<'_>) -> Result<IndirectNameMap, BinaryReaderError> {
    let mut all = IndirectNameMap::new();
    for of_one in names {
        let of_one = of_one?;
        all.append(of_one.index, &copy(of_one.names)?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use wasm_jit::Engine;

    use super::*;
    use crate::builtin::listing::Listing;

    /// Each line of each function is the same as in the text of the complete module.
    #[test]
    fn functions_have_the_text_that_they_have_in_the_module() {
        let text = "(module $named
            (type $binary (func (param i32 i32) (result i32)))
            (import \"host\" \"f\" (func $same (param i32)))
            (table $t 1 funcref) (memory $m 1) (global $g (mut i32) (i32.const 0)) (tag $e)
            (data $d \"x\") (elem $s func $add)
            (func $add (type $binary) (local $sum i32)
                (block $out (br_if $out (local.get 0)))
                (i32.add (local.get 0) (local.tee $sum (local.get 1))))
            (func $#odd (call $same (i32.const 1)))
            (func (param $only i64) (local $only2 i32)
                (i32.const 1) (i32.const 2) (block $typed (type $binary) (i32.add)) (drop)
                (drop (ref.func $add)) (call $\"a name\" (i64.const 1))
                (memory.init $d (i32.const 0) (i32.const 0) (i32.const 0)) (data.drop $d)
                (table.init $s (i32.const 0) (i32.const 0) (i32.const 0))
                (drop (call_indirect $t (type $binary) (i32.const 0) (global.get $g) (i32.const 0)))
                (throw $e))
            (func $\"a name\" (param i64) (call 2) (call 1 (i32.const 0) (i32.const 1)) (drop) (call 4 (i64.const 1)) (call 3 (i64.const 0)))
            (func))";
        let mut bytes = wat::parse_str(text).unwrap();
        // A name that is not unique would need another name section: rename in place.
        let at = bytes.windows(4).rposition(|part| part == b"#odd").unwrap();
        bytes[at..at + 4].copy_from_slice(b"same");
        let module = Module::new(&Engine::default(), &bytes).unwrap();
        let mut storage = String::new();
        let whole: HashMap<u64, String> = wasmprinter::Config::new()
            .offsets_and_lines(module.bytes(), &mut storage)
            .unwrap()
            .filter_map(|(offset, line)| Some((offset?, line.trim().to_owned())))
            .collect();
        assert!(whole.values().any(|line| line == "call $\"#func2 same\""), "{whole:?}");
        let excerpts = Excerpts::of(&module);
        let mut compared = 0;
        for function in module.functions() {
            let Some(body) = function.body() else { continue };
            let (index, start) = (function.index(), body.range().start);
            let listing = Listing::of_function(&module, &excerpts, index);
            for instruction in body.instructions() {
                let offset = (instruction.offset() - start) as u32;
                let text = listing.text(&module, index, offset);
                let is_end = instruction.offset() + 1 == body.range().end;
                let expected = whole.get(&(instruction.offset() as u64)).map(String::as_str);
                let expected = if is_end { Some("end") } else { expected };
                assert_eq!(text, expected, "{index} {offset}");
                compared += usize::from(text.is_some());
            }
        }
        assert!(compared > 40, "{compared}");
    }
}
