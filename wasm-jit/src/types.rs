//! The types of values, and of functions and all other items that modules import and export.

mod object;
mod reference;

use std::fmt;
use std::sync::Arc;

pub use object::{ArrayType, FieldType, StorageType, StructType};
pub use reference::{FuncTypeId, HeapType, ObjectTypeId, RefType};

use wasm_jit_codegen::{ModuleInfo, PAGE_SIZE_LOG2};
use wasmparser as wp;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValType {
    /// A 32-bit integer.
    I32,
    /// A 64-bit integer.
    I64,
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
    /// A 128-bit vector.
    V128,
    /// A reference.
    Ref(RefType),
}

impl ValType {
    /// A function, or null.
    pub const FUNCREF: Self = Self::Ref(RefType::FUNCREF);
    /// A host value, or null.
    pub const EXTERNREF: Self = Self::Ref(RefType::EXTERNREF);
    /// An exception, or null.
    pub const EXNREF: Self = Self::Ref(RefType::EXNREF);
    /// A structure, an array, an `i31`, a host value, or null.
    pub const ANYREF: Self = Self::Ref(RefType::ANYREF);

    /// Whether every value of this type is also a value of type `other`, as far as the two types
    /// alone show: see [`HeapType::matches`].
    pub fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ref(reference), Self::Ref(other)) => reference.matches(other),
            _ => self == other,
        }
    }

    /// The type in a module; `None` for an unsupported type.
    pub(crate) fn from_wasm(ty: wp::ValType, module: &ModuleInfo) -> Option<Self> {
        Some(match ty {
            wp::ValType::I32 => Self::I32,
            wp::ValType::I64 => Self::I64,
            wp::ValType::F32 => Self::F32,
            wp::ValType::F64 => Self::F64,
            wp::ValType::V128 => Self::V128,
            wp::ValType::Ref(reference) => Self::Ref(RefType::from_wasm(reference, module)?),
        })
    }

    /// The type in an accepted module, which has no unsupported types.
    pub(crate) fn of(ty: wp::ValType, module: &ModuleInfo) -> Self {
        Self::from_wasm(ty, module).expect("parsing refuses the types that this engine does not have")
    }

    /// The number of quadwords that a value has in compiled code.
    pub(crate) fn words(self) -> usize {
        if self == Self::V128 { 2 } else { 1 }
    }

    /// The type that values of this type have in compiled code, in any module.
    pub(crate) fn to_wasm(self) -> wp::ValType {
        match self {
            Self::I32 => wp::ValType::I32,
            Self::I64 => wp::ValType::I64,
            Self::F32 => wp::ValType::F32,
            Self::F64 => wp::ValType::F64,
            Self::V128 => wp::ValType::V128,
            Self::Ref(reference) => wp::ValType::Ref(reference.top_to_wasm()),
        }
    }
}

impl fmt::Display for ValType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I32 => f.write_str("i32"),
            Self::I64 => f.write_str("i64"),
            Self::F32 => f.write_str("f32"),
            Self::F64 => f.write_str("f64"),
            Self::V128 => f.write_str("v128"),
            Self::Ref(reference) => reference.fmt(f),
        }
    }
}

/// The parameters and results of a function.
///
/// A type that is in a recursion group with other types, refers to itself, or has subtypes or a
/// supertype equals only the corresponding type of an equal group. Such types come from modules,
/// not from [`new`](Self::new).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FuncType {
    /// The parameters, then the results.
    types: Arc<[ValType]>,
    params: usize,
    /// The id, if the recursion group is a part of the type's identity.
    recursive: Option<FuncTypeId>,
}

impl FuncType {
    /// The type of functions with these parameters and results.
    pub fn new(
        params: impl IntoIterator<Item = ValType>,
        results: impl IntoIterator<Item = ValType>,
    ) -> Self {
        let mut types: Vec<ValType> = params.into_iter().collect();
        let params = types.len();
        types.extend(results);
        Self { types: types.into(), params, recursive: None }
    }

    /// As [`Self::new`], with a recursion group.
    pub(crate) fn recursive(types: Arc<[ValType]>, params: usize, id: Option<FuncTypeId>) -> Self {
        Self { types, params, recursive: id }
    }

    /// The id, if the recursion group is a part of the type's identity.
    pub(crate) fn recursive_id(&self) -> Option<FuncTypeId> {
        self.recursive
    }

    /// The types of the parameters, in order.
    pub fn params(&self) -> impl ExactSizeIterator<Item = ValType> + '_ {
        self.types[..self.params].iter().copied()
    }

    /// The types of the results, in order.
    pub fn results(&self) -> impl ExactSizeIterator<Item = ValType> + '_ {
        self.types[self.params..].iter().copied()
    }

    /// The number of quadwords of an array that holds first the arguments and then the results.
    pub(crate) fn value_words(&self) -> usize {
        let words = |types: &[ValType]| types.iter().map(|ty| ty.words()).sum::<usize>();
        words(&self.types[..self.params]).max(words(&self.types[self.params..]))
    }

    /// A type whose values have the same representation in compiled code, in any module.
    pub(crate) fn to_wasm(&self) -> wp::FuncType {
        wp::FuncType::new(self.params().map(ValType::to_wasm), self.results().map(ValType::to_wasm))
    }
}

impl fmt::Display for FuncType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(f: &mut fmt::Formatter<'_>, types: impl Iterator<Item = ValType>) -> fmt::Result {
            f.write_str("[")?;
            for (at, ty) in types.enumerate() {
                write!(f, "{}{ty}", if at == 0 { "" } else { " " })?;
            }
            f.write_str("]")
        }
        list(f, self.params())?;
        f.write_str(" -> ")?;
        list(f, self.results())
    }
}

/// Whether a global is mutable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutability {
    /// The global or field is constant.
    Const,
    /// The global or field can be assigned.
    Var,
}

/// The type of a global.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalType {
    content: ValType,
    mutability: Mutability,
}

impl GlobalType {
    /// The type of globals that hold a value of type `content`.
    pub fn new(content: ValType, mutability: Mutability) -> Self {
        Self { content, mutability }
    }

    /// The type of the global's value.
    pub fn content(&self) -> ValType {
        self.content
    }

    /// Whether the global is mutable.
    pub fn mutability(&self) -> Mutability {
        self.mutability
    }

    pub(crate) fn of(ty: wp::GlobalType, module: &ModuleInfo) -> Self {
        let mutability = if ty.mutable { Mutability::Var } else { Mutability::Const };
        Self { content: ValType::of(ty.content_type, module), mutability }
    }
}

impl fmt::Display for GlobalType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mutability {
            Mutability::Const => self.content.fmt(f),
            Mutability::Var => write!(f, "mut {}", self.content),
        }
    }
}

/// The type of a table. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableType {
    element: RefType,
    minimum: u64,
    maximum: Option<u64>,
    is_64: bool,
}

impl TableType {
    /// The type of tables of such references with 32-bit indices, at least `minimum` elements and
    /// at most `maximum`.
    pub fn new(element: RefType, minimum: u32, maximum: Option<u32>) -> Self {
        Self { element, minimum: minimum.into(), maximum: maximum.map(u64::from), is_64: false }
    }

    /// The type of tables of such references with 64-bit indices.
    pub fn new64(element: RefType, minimum: u64, maximum: Option<u64>) -> Self {
        Self { element, minimum, maximum, is_64: true }
    }

    /// The type of the table's elements.
    pub fn element(&self) -> RefType {
        self.element
    }

    /// The initial number of elements.
    pub fn minimum(&self) -> u64 {
        self.minimum
    }

    /// The maximum number of elements, if there is one.
    pub fn maximum(&self) -> Option<u64> {
        self.maximum
    }

    /// Whether indices have 64 bits instead of 32.
    pub fn is_64(&self) -> bool {
        self.is_64
    }

    /// This type with another minimum.
    pub(crate) fn with_minimum(self, minimum: u64) -> Self {
        Self { minimum, ..self }
    }

    pub(crate) fn of(ty: wp::TableType, module: &ModuleInfo) -> Self {
        Self {
            element: RefType::of(ty.element_type, module),
            minimum: ty.initial,
            maximum: ty.maximum,
            is_64: ty.table64,
        }
    }
}

impl fmt::Display for TableType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        limits(f, self.minimum, self.maximum)?;
        write!(f, "{}", self.element)?;
        f.write_str(if self.is_64 { " with indices of 64 bits" } else { "" })
    }
}

/// The type of a linear memory. Sizes are in pages, of 64 KiB unless
/// [`page_size`](Self::page_size) is another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryType {
    minimum: u64,
    maximum: Option<u64>,
    shared: bool,
    is_64: bool,
    page_size_log2: u8,
}

impl MemoryType {
    /// The type of memories of one store with 32-bit addresses, at least `minimum` pages and at
    /// most `maximum`.
    pub fn new(minimum: u32, maximum: Option<u32>) -> Self {
        let (minimum, maximum) = (minimum.into(), maximum.map(u64::from));
        Self { is_64: false, ..Self::new64(minimum, maximum) }
    }

    /// The type of memories of one store with 64-bit addresses.
    pub fn new64(minimum: u64, maximum: Option<u64>) -> Self {
        Self { minimum, maximum, shared: false, is_64: true, page_size_log2: PAGE_SIZE_LOG2 }
    }

    /// The type of memories with 32-bit addresses that threads may share.
    pub fn shared(minimum: u32, maximum: u32) -> Self {
        Self { shared: true, ..Self::new(minimum, Some(maximum)) }
    }

    /// The type of memories with 64-bit addresses that threads may share.
    pub fn shared64(minimum: u64, maximum: u64) -> Self {
        Self { shared: true, ..Self::new64(minimum, Some(maximum)) }
    }

    /// The same type with one-byte pages: its sizes are in bytes.
    pub fn with_pages_of_one_byte(self) -> Self {
        Self { page_size_log2: 0, ..self }
    }

    /// The initial number of pages.
    pub fn minimum(&self) -> u64 {
        self.minimum
    }

    /// The maximum number of pages, if there is one.
    pub fn maximum(&self) -> Option<u64> {
        self.maximum
    }

    /// Whether threads may share the memory.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether addresses have 64 bits instead of 32.
    pub fn is_64(&self) -> bool {
        self.is_64
    }

    /// The size of a page in bytes.
    pub fn page_size(&self) -> u64 {
        1 << self.page_size_log2
    }

    /// This type with another minimum.
    pub(crate) fn with_minimum(self, minimum: u64) -> Self {
        Self { minimum, ..self }
    }

    /// The number of pages that addresses can reach.
    pub(crate) fn addressable_pages(&self) -> u64 {
        match (self.is_64, self.page_size_log2) {
            (true, 0) => u64::MAX,
            (true, log2) => 1 << (64 - log2),
            (false, 0) => u32::MAX.into(),
            (false, log2) => 1 << (32 - log2),
        }
    }

    /// The initial size in bytes, or `u64::MAX` if it does not fit into 64 bits.
    pub(crate) fn minimum_bytes(&self) -> u64 {
        self.minimum.saturating_mul(self.page_size())
    }

    /// Whether code always compares addresses in such memories with their length: see
    /// [`ModuleInfo::checks_bounds`](wasm_jit_codegen::ModuleInfo::checks_bounds).
    pub(crate) fn is_always_checked(&self) -> bool {
        self.is_64 || self.page_size_log2 != PAGE_SIZE_LOG2
    }

    pub(crate) fn of(ty: wp::MemoryType) -> Self {
        Self {
            minimum: ty.initial,
            maximum: ty.maximum,
            shared: ty.shared,
            is_64: ty.memory64,
            page_size_log2: ty.page_size_log2.map_or(PAGE_SIZE_LOG2, |log2| log2 as u8),
        }
    }
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        limits(f, self.minimum, self.maximum)?;
        f.write_str("pages")?;
        f.write_str(if self.page_size_log2 == 0 { " of one byte" } else { "" })?;
        f.write_str(if self.is_64 { " with addresses of 64 bits" } else { "" })?;
        f.write_str(if self.shared { " shared" } else { "" })
    }
}

fn limits(f: &mut fmt::Formatter<'_>, minimum: u64, maximum: Option<u64>) -> fmt::Result {
    match maximum {
        Some(maximum) => write!(f, "{minimum} to {maximum} "),
        None => write!(f, "{minimum} or more "),
    }
}

/// The type of a tag: the types of the values that its exceptions carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TagType(FuncType);

impl TagType {
    /// The type of tags whose exceptions carry the parameters of `ty`, which has no results.
    pub fn new(ty: FuncType) -> Self {
        Self(ty)
    }

    /// The type of the tag as a function type: the values of its exceptions are the parameters.
    pub fn ty(&self) -> &FuncType {
        &self.0
    }
}

/// The type of an imported or exported item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExternType {
    /// A function.
    Func(FuncType),
    /// A global.
    Global(GlobalType),
    /// A table.
    Table(TableType),
    /// A memory.
    Memory(MemoryType),
    /// A tag.
    Tag(TagType),
}

impl fmt::Display for ExternType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Func(ty) => write!(f, "function {ty}"),
            Self::Global(ty) => write!(f, "global {ty}"),
            Self::Table(ty) => write!(f, "table of {ty}"),
            Self::Memory(ty) => write!(f, "memory of {ty}"),
            Self::Tag(ty) => write!(f, "tag {}", ty.0),
        }
    }
}

/// An import of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportType<'m> {
    pub(crate) module: &'m str,
    pub(crate) name: &'m str,
    pub(crate) ty: ExternType,
}

impl<'m> ImportType<'m> {
    /// The first of the import's two names.
    pub fn module(&self) -> &'m str {
        self.module
    }

    /// The second of the import's two names.
    pub fn name(&self) -> &'m str {
        self.name
    }

    /// The type of the import.
    pub fn ty(&self) -> &ExternType {
        &self.ty
    }
}

/// An export of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportType<'m> {
    pub(crate) name: &'m str,
    pub(crate) ty: ExternType,
}

impl<'m> ExportType<'m> {
    /// The export's name.
    pub fn name(&self) -> &'m str {
        self.name
    }

    /// The type of the export.
    pub fn ty(&self) -> &ExternType {
        &self.ty
    }
}
