//! Objects of the garbage-collected heap, as compiled code sees them.
//!
//! ```text
//! 0    the address of the object's type: a VmType
//! 8    a structure: its fields, in order, each at a multiple of its size
//!      an array: its length, 32 bits
//! 16   an array: its elements
//! ```
//!
//! A reference is the address of an object, a multiple of 8. An `i31` is its value shifted left by
//! one bit, plus 1. A host value has bit 1 set, and bit 0 clear. Null is 0. An `anyref` therefore
//! refers to an object if it is not null and its two lowest bits are 0.
//!
//! A field is aligned to at most eight bytes, even a vector. The fields of a subtype begin with
//! those of its supertype, at the same offsets.

use wasmparser::{ArrayType, FieldType, FuncType, StorageType, StructType, ValType};

/// The offset of an array's length, in bytes.
pub const ARRAY_LENGTH: i32 = 8;
/// The offset of an array's elements, in bytes.
pub const ARRAY_ELEMENTS: i32 = 16;
/// The offset of a structure's first field, in bytes.
pub const FIRST_FIELD: u32 = 8;
/// The bit that is set in an `i31`.
pub const I31_BIT: u64 = 1;
/// The bit that is set in a reference to a host value, and clear in one to an object.
pub const HOST_BIT: u64 = 2;
/// Both bits: references to objects have neither.
pub const NO_OBJECT: u64 = I31_BIT | HOST_BIT;
/// The size in bytes up to which objects are allocated by compiled code.
pub const MAX_SMALL_OBJECT: u32 = 16 << 10;

/// How a field or element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The lower eight bits of an `i32`.
    I8,
    /// The lower 16 bits of an `i32`.
    I16,
    /// A value of this type, unpacked.
    Value(ValType),
}

impl Storage {
    /// The size of the field in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Self::I8 => 1,
            Self::I16 => 2,
            Self::Value(ValType::I32 | ValType::F32) => 4,
            Self::Value(ValType::I64 | ValType::F64 | ValType::Ref(_)) => 8,
            Self::Value(ValType::V128) => 16,
        }
    }

    /// The binary logarithm of the size in bytes.
    #[must_use]
    pub fn log2(self) -> u8 {
        self.bytes().trailing_zeros() as u8
    }

    /// The type of the value that the field is read as.
    #[must_use]
    pub fn unpacked(self) -> ValType {
        match self {
            Self::I8 | Self::I16 => ValType::I32,
            Self::Value(ty) => ty,
        }
    }
}

impl From<StorageType> for Storage {
    fn from(ty: StorageType) -> Self {
        match ty {
            StorageType::I8 => Self::I8,
            StorageType::I16 => Self::I16,
            StorageType::Val(ty) => Self::Value(ty),
        }
    }
}

impl From<FieldType> for Storage {
    fn from(field: FieldType) -> Self {
        field.element_type.into()
    }
}

/// Where a field of a structure is, and how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's distance from the start of the object, in bytes.
    pub offset: u32,
    /// How the field is stored.
    pub storage: Storage,
}

/// Where the fields of a structure are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// The fields, in order.
    pub fields: Box<[Field]>,
    /// The size of the object in bytes, a multiple of 8.
    pub size: u32,
}

impl StructLayout {
    /// The layout of a structure with these fields.
    pub fn new(fields: impl IntoIterator<Item = Storage>) -> Self {
        let mut end = FIRST_FIELD;
        let fields = fields.into_iter().map(|storage| {
            let offset = end.next_multiple_of(storage.bytes().min(8));
            end = offset + storage.bytes();
            Field { offset, storage }
        });
        let fields = fields.collect();
        Self { fields, size: end.next_multiple_of(8) }
    }
}

impl From<&StructType> for StructLayout {
    fn from(ty: &StructType) -> Self {
        Self::new(ty.fields.iter().map(|field| (*field).into()))
    }
}

/// The size in bytes, a multiple of 8, of an array with this many elements of the size with this
/// binary logarithm.
#[must_use]
#[inline]
pub const fn array_size(element_log2: u8, length: u32) -> u64 {
    (ARRAY_ELEMENTS as u64 + ((length as u64) << element_log2)).next_multiple_of(8)
}

/// What a type of a module describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Composite {
    /// Functions with this signature.
    Func(FuncType),
    /// Structures with this layout.
    Struct(StructLayout),
    /// Arrays with such elements.
    Array(Storage),
}

/// A type that a module declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleType {
    /// What the type describes.
    pub composite: Composite,
    /// Whether the type has no subtypes.
    pub is_final: bool,
    /// The number of types that this one is a subtype of, other than itself.
    pub depth: u32,
}

impl ModuleType {
    /// A function type without supertypes and subtypes.
    #[must_use]
    pub fn of_function(ty: FuncType) -> Self {
        Self { composite: Composite::Func(ty), is_final: true, depth: 0 }
    }

    /// Whether a parameter, result, field or element is a vector.
    #[must_use]
    pub fn has_vector(&self) -> bool {
        let is_vector = |storage: &Storage| *storage == Storage::Value(ValType::V128);
        match &self.composite {
            Composite::Func(ty) => ty.params().iter().chain(ty.results()).any(|ty| *ty == ValType::V128),
            Composite::Struct(layout) => layout.fields.iter().any(|field| is_vector(&field.storage)),
            Composite::Array(element) => is_vector(element),
        }
    }

    /// The function type, if the type describes functions.
    #[must_use]
    pub fn func(&self) -> Option<&FuncType> {
        if let Composite::Func(ty) = &self.composite { Some(ty) } else { None }
    }
}

impl From<&ArrayType> for Composite {
    fn from(ty: &ArrayType) -> Self {
        Self::Array(ty.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_aligned_and_in_order() {
        let value = Storage::Value;
        let layout = StructLayout::new([
            Storage::I8,
            value(ValType::I32),
            Storage::I16,
            value(ValType::FUNCREF),
            Storage::I8,
            value(ValType::V128),
        ]);
        let offsets: Vec<u32> = layout.fields.iter().map(|field| field.offset).collect();
        assert_eq!(offsets, [8, 12, 16, 24, 32, 40]);
        assert_eq!(layout.size, 56);
        assert_eq!(StructLayout::new([]).size, 8);
    }

    #[test]
    fn sizes_of_arrays_are_multiples_of_eight() {
        assert_eq!(array_size(Storage::I8.log2(), 0), 16);
        assert_eq!(array_size(Storage::I8.log2(), 9), 32);
        let vector = Storage::Value(ValType::V128);
        assert_eq!(array_size(vector.log2(), u32::MAX), 16 + 16 * u64::from(u32::MAX));
    }
}
