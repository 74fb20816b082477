//! Decoding and validation of everything but function bodies.
//!
//! The bodies are returned together with their validators, so that threads can validate and compile
//! them in parallel.

use std::collections::HashMap;

use wasm_jit_codegen::objects::{Composite, ModuleType};
use wasm_jit_codegen::{BranchHints, ModuleInfo};
use wasmparser::{
    self as wp, Chunk, CompositeInnerType, ElementItems, ElementKind, ExternalKind, KnownCustom, Parser,
    Payload, TableInit, TypeRef, ValidPayload, Validator,
};

use super::const_expr::ConstExpr;
use super::data::{self, DataSegment};
use crate::code::{FEATURES, ToCompile};
use crate::engine::{
    Engine, GroupComposite, GroupField, GroupStorage, GroupSupertype, GroupType, GroupValType, TypeId,
};
use crate::error::Error;
use crate::types::{Mutability, RefType, ValType};

/// One item of a module's index spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Func(u32),
    Table(u32),
    Memory(u32),
    Global(u32),
    Tag(u32),
}

#[derive(Debug)]
pub(crate) struct Import {
    pub module: Box<str>,
    pub name: Box<str>,
    pub item: Item,
}

/// When a segment is used.
#[derive(Debug)]
pub(crate) enum SegmentMode {
    /// At instantiation: at this offset of this table or memory.
    Active { target: u32, offset: ConstExpr },
    /// On request of the program.
    Passive,
    /// Not at all: it only declares functions that may be referenced.
    Declared,
}

#[derive(Debug)]
pub(crate) struct ElementSegment {
    pub mode: SegmentMode,
    pub ty: RefType,
    pub items: Elements,
}

#[derive(Debug)]
pub(crate) enum Elements {
    Functions(Box<[u32]>),
    Expressions(Box<[ConstExpr]>),
}

/// A module without its code.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub info: ModuleInfo,
    /// The ids of the types, by type index. They keep the ids in `info` in use.
    pub type_ids: Vec<TypeId>,
    pub imports: Vec<Import>,
    /// The exports, in module order.
    pub exports: Vec<(Box<str>, Item)>,
    pub export_index: HashMap<Box<str>, usize>,
    /// Initial values of the module's own globals.
    pub globals: Vec<ConstExpr>,
    /// Initial values of the elements of the module's own tables, if they are not null.
    pub tables: Vec<Option<ConstExpr>>,
    pub start: Option<u32>,
    pub elements: Vec<ElementSegment>,
    pub data: Vec<DataSegment>,
}

/// Decodes and validates a module, except for its function bodies.
pub(crate) fn parse<'a>(engine: &Engine, bytes: &'a [u8]) -> Result<(Parsed, Vec<ToCompile<'a>>), Error> {
    // Offsets in the module are stored as 32-bit numbers.
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::Invalid { message: "the module is larger than 4 GiB".to_owned(), offset: 0 });
    }
    if Parser::is_component(bytes) {
        let message = "this is a component, not a core module: build the program for the target \
                       wasm32-wasip1, or extract the core modules by `wasm-tools component unbundle`"
            .to_owned();
        return Err(Error::Unsupported { message, offset: 4 });
    }
    let mut validator = Validator::new_with_features(FEATURES);
    let mut parser = Parser::new(0);
    parser.set_features(FEATURES);
    let mut parsed = Parsed::default();
    parsed.info.settings = engine.code_settings();
    let mut bodies = Vec::new();
    for payload in parser.parse_all(bytes) {
        let payload = payload?;
        if let Payload::DataSection(section) = &payload
            && let Some(segments) = data::segments_at_constants(bytes, section, &parsed.info)
        {
            parsed.data = segments;
            continue;
        }
        if let ValidPayload::Func(validate, body) = validator.payload(&payload)? {
            bodies.push((validate, body));
        }
        section(engine, &mut parsed, bytes, payload)?;
    }
    Ok((parsed, bodies))
}

/// Decodes the declarations of a module that was validated before. Function bodies are skipped.
pub(super) fn declarations(engine: &Engine, bytes: &[u8]) -> Result<Parsed, Error> {
    let mut parser = Parser::new(0);
    parser.set_features(FEATURES);
    let mut parsed = Parsed::default();
    parsed.info.settings = engine.code_settings();
    let mut left = bytes;
    loop {
        let Chunk::Parsed { consumed, payload } = parser.parse(left, true)? else {
            unreachable!("all of the module is there")
        };
        left = &left[consumed..];
        match payload {
            Payload::CodeSectionStart { size, .. } => {
                parser.skip_section();
                let message = || "the code section is incomplete".to_owned();
                let skipped = left.split_at_checked(size as usize);
                (_, left) = skipped.ok_or_else(|| Error::Invalid { message: message(), offset: 0 })?;
            }
            Payload::End(_) => return Ok(parsed),
            payload => section(engine, &mut parsed, bytes, payload)?,
        }
    }
}

/// Records a section of the module that the validator has accepted.
fn section(engine: &Engine, parsed: &mut Parsed, bytes: &[u8], payload: Payload<'_>) -> Result<(), Error> {
    let info = &mut parsed.info;
    match payload {
        Payload::TypeSection(section) => {
            for group in section.into_iter_with_offsets() {
                let (offset, group) = group?;
                parsed.group(engine, group, offset)?;
            }
        }
        Payload::ImportSection(section) => {
            for import in section.into_imports_with_offsets() {
                let (offset, import) = import?;
                parsed.import(import, offset)?;
            }
        }
        Payload::FunctionSection(section) => {
            for ty in section {
                info.functions.push(ty?);
            }
        }
        Payload::TableSection(section) => {
            for table in section.into_iter_with_offsets() {
                let (offset, table) = table?;
                known(wp::ValType::Ref(table.ty.element_type), info, offset)?;
                info.tables.push(table.ty);
                parsed.tables.push(match table.init {
                    TableInit::RefNull => None,
                    TableInit::Expr(expr) => Some(ConstExpr::decode(&expr)?),
                });
            }
        }
        Payload::MemorySection(section) => {
            for memory in section {
                info.memories.push(memory?);
            }
        }
        Payload::TagSection(section) => {
            for tag in section {
                info.tags.push(tag?.func_type_idx);
            }
        }
        Payload::GlobalSection(section) => {
            for global in section.into_iter_with_offsets() {
                let (offset, global) = global?;
                known(global.ty.content_type, info, offset)?;
                info.globals.push(global.ty);
                parsed.globals.push(ConstExpr::decode(&global.init_expr)?);
            }
        }
        Payload::ExportSection(section) => {
            for export in section {
                let export = export?;
                let item = match export.kind {
                    ExternalKind::Func | ExternalKind::FuncExact => Item::Func(export.index),
                    ExternalKind::Table => Item::Table(export.index),
                    ExternalKind::Memory => Item::Memory(export.index),
                    ExternalKind::Global => Item::Global(export.index),
                    ExternalKind::Tag => Item::Tag(export.index),
                };
                parsed.export_index.insert(export.name.into(), parsed.exports.len());
                parsed.exports.push((export.name.into(), item));
            }
        }
        Payload::StartSection { func, .. } => parsed.start = Some(func),
        Payload::ElementSection(section) => {
            for element in section.into_iter_with_offsets() {
                let (offset, element) = element?;
                parsed.elements.push(element_segment(element, info, offset)?);
            }
        }
        Payload::DataSection(section) => {
            parsed.data = data::segments(bytes, &section)?;
        }
        Payload::CustomSection(section) => {
            if let KnownCustom::BranchHints(hints) = section.as_known() {
                info.branch_hints = BranchHints::decode(hints).unwrap_or_default();
            }
        }
        _ => {}
    }
    Ok(())
}

impl Parsed {
    /// Adds the types of a recursion group.
    fn group(&mut self, engine: &Engine, group: wp::RecGroup, offset: u64) -> Result<(), Error> {
        let mut types: Vec<ModuleType> = Vec::new();
        let mut group_types = Vec::new();
        let context = GroupContext { info: &self.info, first: self.info.types.len() as u32, offset };
        for ty in group.into_types() {
            let supertype = ty.supertype_idxs.first().map(|index| context.place(index.unpack()));
            let depth = match supertype {
                None => 0,
                Some(Place::Own(place)) => types[place as usize].depth + 1,
                Some(Place::Before(index)) => self.info.types[index as usize].depth + 1,
            };
            let (composite, group_composite) = context.composite(&ty.composite_type.inner)?;
            types.push(ModuleType { composite, is_final: ty.is_final, depth });
            let supertype = supertype.map(|place| match place {
                Place::Own(place) => GroupSupertype::Own(place),
                Place::Before(index) => GroupSupertype::Known(self.info.type_ids[index as usize]),
            });
            group_types.push(GroupType { composite: group_composite, is_final: ty.is_final, supertype });
        }
        for id in engine.register_group(group_types) {
            self.info.type_ids.push(id.get());
            self.type_ids.push(id);
        }
        self.info.types.append(&mut types);
        Ok(())
    }

    fn import(&mut self, import: wp::Import<'_>, offset: u64) -> Result<(), Error> {
        let info = &mut self.info;
        let item = match import.ty {
            TypeRef::Func(ty) | TypeRef::FuncExact(ty) => {
                info.functions.push(ty);
                info.imported_functions += 1;
                Item::Func(info.imported_functions - 1)
            }
            TypeRef::Table(ty) => {
                known(wp::ValType::Ref(ty.element_type), info, offset)?;
                info.tables.push(ty);
                info.imported_tables += 1;
                Item::Table(info.imported_tables - 1)
            }
            TypeRef::Memory(ty) => {
                info.memories.push(ty);
                info.imported_memories += 1;
                Item::Memory(info.imported_memories - 1)
            }
            TypeRef::Global(ty) => {
                known(ty.content_type, info, offset)?;
                info.globals.push(ty);
                info.imported_globals += 1;
                Item::Global(info.imported_globals - 1)
            }
            TypeRef::Tag(ty) => {
                info.tags.push(ty.func_type_idx);
                info.imported_tags += 1;
                Item::Tag(info.imported_tags - 1)
            }
        };
        self.imports.push(Import { module: import.module.into(), name: import.name.into(), item });
        Ok(())
    }
}

/// Where a recursion group is added to a module.
struct GroupContext<'a> {
    /// The module with the types before the group.
    info: &'a ModuleInfo,
    /// The index of the group's first type.
    first: u32,
    offset: u64,
}

/// Where a type is, as seen from a group.
#[derive(Clone, Copy)]
enum Place {
    /// In the group.
    Own(u32),
    /// Before it, at this type index.
    Before(u32),
}

impl GroupContext<'_> {
    fn place(&self, index: wp::UnpackedIndex) -> Place {
        let index = index.as_module_index().expect("types of a module refer to its types");
        index.checked_sub(self.first).map_or(Place::Before(index), Place::Own)
    }

    fn val_type(&self, ty: wp::ValType) -> Result<GroupValType, Error> {
        if let wp::ValType::Ref(reference) = ty
            && let wp::HeapType::Concrete(index) = reference.heap_type()
            && let Place::Own(place) = self.place(index)
        {
            return Ok(GroupValType::Own { nullable: reference.is_nullable(), place });
        }
        known(ty, self.info, self.offset).map(GroupValType::Known)
    }

    fn field(&self, ty: &wp::FieldType) -> Result<GroupField, Error> {
        let storage = match ty.element_type {
            wp::StorageType::I8 => GroupStorage::I8,
            wp::StorageType::I16 => GroupStorage::I16,
            wp::StorageType::Val(ty) => GroupStorage::Val(self.val_type(ty)?),
        };
        let mutability = if ty.mutable { Mutability::Var } else { Mutability::Const };
        Ok(GroupField { storage, mutability })
    }

    /// The contents of a type, for the code generator and for the engine.
    fn composite(&self, inner: &CompositeInnerType) -> Result<(Composite, GroupComposite), Error> {
        Ok(match inner {
            CompositeInnerType::Func(ty) => {
                let types = ty.params().iter().chain(ty.results()).map(|ty| self.val_type(*ty));
                let types = types.collect::<Result<_, _>>()?;
                let params = ty.params().len();
                (Composite::Func(ty.clone()), GroupComposite::Func { types, params })
            }
            CompositeInnerType::Struct(ty) => {
                let fields = ty.fields.iter().map(|field| self.field(field));
                let group = GroupComposite::Struct(fields.collect::<Result<_, _>>()?);
                (Composite::Struct(ty.into()), group)
            }
            CompositeInnerType::Array(ty) => (ty.into(), GroupComposite::Array(self.field(&ty.0)?)),
            CompositeInnerType::Cont(_) => {
                let message = "continuations (stack switching) are not supported".to_owned();
                return Err(Error::Unsupported { message, offset: self.offset });
            }
        })
    }
}

fn element_segment(
    element: wp::Element<'_>,
    info: &ModuleInfo,
    offset: u64,
) -> Result<ElementSegment, Error> {
    let mode = match element.kind {
        ElementKind::Passive => SegmentMode::Passive,
        ElementKind::Declared => SegmentMode::Declared,
        ElementKind::Active { table_index, offset_expr } => {
            SegmentMode::Active { target: table_index.unwrap_or(0), offset: ConstExpr::decode(&offset_expr)? }
        }
    };
    let (ty, items) = match element.items {
        ElementItems::Functions(functions) => {
            (RefType::FUNCREF, Elements::Functions(functions.into_iter().collect::<Result<_, _>>()?))
        }
        ElementItems::Expressions(ty, expressions) => {
            known(wp::ValType::Ref(ty), info, offset)?;
            let decoded = expressions.into_iter().map(|expr| ConstExpr::decode(&expr?));
            (RefType::of(ty, info), Elements::Expressions(decoded.collect::<Result<_, _>>()?))
        }
    };
    Ok(ElementSegment { mode, ty, items })
}

/// Converts a type. Refuses one that the validator accepts but this engine does not support.
fn known(ty: wp::ValType, info: &ModuleInfo, offset: u64) -> Result<ValType, Error> {
    let unsupported = || Error::Unsupported { message: format!("the type {ty} is not supported"), offset };
    ValType::from_wasm(ty, info).ok_or_else(unsupported)
}
