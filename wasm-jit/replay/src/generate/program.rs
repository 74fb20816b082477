//! [`Program`]: the sections of the recorded module.

use std::collections::HashMap;

use wasm_encoder::{Encode, Section};
use wasm_jit::wasmparser as wp;
use wasm_jit::wasmparser::types::CoreTypeId;

use crate::error::{Error, not_generated};

/// A section: the number of its items, and their encoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    pub(super) count: u32,
    pub(super) bytes: Vec<u8>,
}

impl Items {
    /// The items of a section.
    fn of(section: &[u8]) -> Result<Self, Error> {
        let mut reader = wp::BinaryReader::new(section, 0);
        let count = reader.read_var_u32()?;
        Ok(Self { count, bytes: section[reader.original_position() as usize..].to_vec() })
    }

    pub(super) fn encoded(section: &impl Encode) -> Self {
        let mut bytes = Vec::new();
        section.encode(&mut bytes);
        let mut reader = wp::BinaryReader::new(&bytes, 0);
        reader.read_var_u32().expect("a section has a size");
        let count = reader.read_var_u32().expect("a section has a number of items");
        let items = reader.original_position() as usize;
        // The section may be large: its bytes are moved in place, without a second allocation.
        bytes.drain(..items);
        Self { count, bytes }
    }

    /// The encoded section.
    pub(super) fn section(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.count.encode(&mut bytes);
        bytes.extend(&self.bytes);
        bytes
    }

    pub(super) fn append(mut self, more: &Self) -> Self {
        self.count += more.count;
        self.bytes.extend(&more.bytes);
        self
    }
}

/// A section whose items are in several places. They are only copied to the module, since they may
/// be large.
pub(super) struct Joined<'a> {
    id: u8,
    count: u32,
    parts: Vec<&'a [u8]>,
}

impl<'a> Joined<'a> {
    pub(super) fn new(id: u8, items: &[&'a Items]) -> Self {
        let count = items.iter().map(|items| items.count).sum();
        Self { id, count, parts: items.iter().map(|items| &items.bytes[..]).collect() }
    }

    /// Appends one item, which is in these parts.
    pub(super) fn with_item(mut self, parts: [&'a [u8]; 2]) -> Self {
        self.count += 1;
        self.parts.extend(parts);
        self
    }
}

impl Encode for Joined<'_> {
    fn encode(&self, sink: &mut Vec<u8>) {
        let mut count = Vec::new();
        self.count.encode(&mut count);
        let length = count.len() + self.parts.iter().map(|part| part.len()).sum::<usize>();
        // Not twice as much.
        sink.reserve_exact(length + 8);
        length.encode(sink);
        sink.extend(count);
        self.parts.iter().for_each(|part| sink.extend(*part));
    }
}

impl Section for Joined<'_> {
    fn id(&self) -> u8 {
        self.id
    }
}

/// The ids of the sections of tables, globals, elements, code and data.
pub(super) const TABLES: u8 = 4;
pub(super) const GLOBALS: u8 = 6;
pub(super) const ELEMENTS: u8 = 9;
pub(super) const CODE: u8 = 10;
pub(super) const DATA: u8 = 11;

/// The parts of the program that are needed.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) sections: HashMap<u8, Items>,
    pub(super) names: Option<Vec<u8>>,
    /// All types, by index; `None` for types of objects.
    pub(super) types: Vec<Option<wp::FuncType>>,
    /// The identities of all types, by index: equal types may have several indices.
    ids: Vec<CoreTypeId>,
    /// The types that types are declared as subtypes of.
    supertypes: HashMap<CoreTypeId, CoreTypeId>,
    /// The types of all functions, imported ones first.
    pub(super) functions: Vec<u32>,
    pub(super) imports: u32,
    /// The kinds of all imports, in order.
    pub(super) imported: Vec<wp::ExternalKind>,
    pub(super) imported_memories: Vec<wp::MemoryType>,
    pub(super) imported_tables: Vec<wp::TableType>,
    /// Number of imported globals.
    pub(super) imported_globals: u32,
    pub(super) exports: Vec<(String, wp::ExternalKind, u32)>,
    /// The types of all tables. Here and below, imported ones come first.
    pub(super) tables: Vec<wp::TableType>,
    pub(super) memories: Vec<wp::MemoryType>,
    pub(super) globals: Vec<wp::GlobalType>,
    /// The types of all tags.
    pub(super) tags: Vec<u32>,
    /// Number of imported tags.
    pub(super) imported_tags: u32,
    /// Whether the code uses legacy exceptions; some engines support only these.
    pub(super) has_legacy_exceptions: bool,
}

impl Program {
    pub(super) fn parse(program: &[u8]) -> Result<Self, Error> {
        // The engine has accepted and recorded the program; here only the structure matters.
        let mut validator = wp::Validator::new_with_features(wp::WasmFeatures::all());
        let types = validator.validate_all(program)?;
        let types = types.as_ref();
        let ids: Vec<CoreTypeId> =
            (0..types.core_type_count_in_module()).map(|ty| types.core_type_at_in_module(ty)).collect();
        let supertype = |ty: &CoreTypeId| Some((*ty, types.supertype_of(*ty)?));
        let supertypes = ids.iter().filter_map(supertype).collect();
        let mut this = Self { ids, supertypes, ..Self::default() };
        for payload in wp::Parser::new(0).parse_all(program) {
            let payload = payload?;
            if let Some((id, range)) = payload.as_section()
                && id != 0
                && id != 8
            {
                this.sections.insert(id, Items::of(&program[range.start as usize..range.end as usize])?);
            }
            this.add(payload)?;
        }
        Ok(this)
    }

    fn add(&mut self, payload: wp::Payload<'_>) -> Result<(), Error> {
        match payload {
            wp::Payload::TypeSection(types) => {
                for group in types {
                    self.types.extend(group?.into_types().map(|ty| match ty.composite_type.inner {
                        wp::CompositeInnerType::Func(ty) => Some(ty),
                        _ => None,
                    }));
                }
            }
            wp::Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    let kind = match import?.ty {
                        wp::TypeRef::Func(ty) => {
                            self.functions.push(ty);
                            self.imports += 1;
                            wp::ExternalKind::Func
                        }
                        wp::TypeRef::Memory(ty) => {
                            self.memories.push(ty);
                            self.imported_memories.push(ty);
                            wp::ExternalKind::Memory
                        }
                        wp::TypeRef::Global(ty) => {
                            self.globals.push(ty);
                            self.imported_globals += 1;
                            wp::ExternalKind::Global
                        }
                        wp::TypeRef::Table(ty) => {
                            self.tables.push(ty);
                            self.imported_tables.push(ty);
                            wp::ExternalKind::Table
                        }
                        wp::TypeRef::Tag(ty) => {
                            self.tags.push(ty.func_type_idx);
                            self.imported_tags += 1;
                            wp::ExternalKind::Tag
                        }
                        wp::TypeRef::FuncExact(_) => {
                            return Err(not_generated("an import of a function of an exact type"));
                        }
                    };
                    self.imported.push(kind);
                }
            }
            wp::Payload::FunctionSection(functions) => {
                for ty in functions {
                    self.functions.push(ty?);
                }
            }
            wp::Payload::TableSection(tables) => {
                for table in tables {
                    self.tables.push(table?.ty);
                }
            }
            wp::Payload::MemorySection(memories) => {
                for memory in memories {
                    self.memories.push(memory?);
                }
            }
            wp::Payload::TagSection(tags) => {
                for tag in tags {
                    self.tags.push(tag?.func_type_idx);
                }
            }
            wp::Payload::GlobalSection(globals) => {
                for global in globals {
                    self.globals.push(global?.ty);
                }
            }
            wp::Payload::ExportSection(exports) => {
                for export in exports {
                    let export = export?;
                    self.exports.push((export.name.to_owned(), export.kind, export.index));
                }
            }
            wp::Payload::CodeSectionEntry(body) if !self.tags.is_empty() && !self.has_legacy_exceptions => {
                for operator in body.get_operators_reader()? {
                    self.has_legacy_exceptions |= matches!(operator?, wp::Operator::Try { .. });
                }
            }
            wp::Payload::CustomSection(section) if section.name() == "name" => {
                self.names = Some(section.data().to_vec());
            }
            _ => {}
        }
        Ok(())
    }

    /// The number of items in a section.
    pub(super) fn number_of(&self, section: u8) -> u32 {
        self.sections.get(&section).map_or(0, |items| items.count)
    }

    /// The type of a tag, by its index.
    pub(super) fn tag_type(&self, tag: u32) -> Option<&wp::FuncType> {
        self.tags.get(tag as usize).and_then(|ty| self.types[*ty as usize].as_ref())
    }

    /// Whether a function of the program has a type, given by its index.
    pub(super) fn is_of_type(&self, function: u32, ty: u32) -> bool {
        let id = |ty: u32| self.ids.get(ty as usize).copied();
        let own = self.functions.get(function as usize).and_then(|own| id(*own));
        let mut types = std::iter::successors(own, |ty| self.supertypes.get(ty).copied());
        types.any(|own| Some(own) == id(ty))
    }

    /// The type of a function, by its index.
    pub(super) fn type_of(&self, function: u32) -> Option<&wp::FuncType> {
        self.functions.get(function as usize).and_then(|ty| self.types[*ty as usize].as_ref())
    }
}
