//! Object types: structures and arrays.

use std::fmt;
use std::sync::Arc;

use super::reference::{HeapType, ObjectTypeId};
use super::{Mutability, ValType};

/// What a field or element holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StorageType {
    /// The lower eight bits of an `i32`.
    I8,
    /// The lower 16 bits of an `i32`.
    I16,
    /// A value of this type, unpacked.
    Val(ValType),
}

impl StorageType {
    /// The type of the values that are written there.
    pub fn unpacked(&self) -> ValType {
        match self {
            Self::I8 | Self::I16 => ValType::I32,
            Self::Val(ty) => *ty,
        }
    }
}

impl fmt::Display for StorageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I8 => f.write_str("i8"),
            Self::I16 => f.write_str("i16"),
            Self::Val(ty) => ty.fmt(f),
        }
    }
}

/// The type of a field of a structure, or of the elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldType {
    storage: StorageType,
    mutability: Mutability,
}

impl FieldType {
    /// The type of fields that hold values of this storage type.
    pub fn new(storage: StorageType, mutability: Mutability) -> Self {
        Self { storage, mutability }
    }

    /// The type of the values that the field holds.
    pub fn storage(&self) -> StorageType {
        self.storage
    }

    /// Whether the field is mutable.
    pub fn mutability(&self) -> Mutability {
        self.mutability
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mutability {
            Mutability::Const => self.storage.fmt(f),
            Mutability::Var => write!(f, "(mut {})", self.storage),
        }
    }
}

/// A structure type. It comes from an [`Engine`](crate::Engine), which compares types by the
/// recursion groups that they were declared in: two are equal if they have the same id.
#[derive(Clone, Debug)]
pub struct StructType {
    id: ObjectTypeId,
    fields: Arc<[FieldType]>,
}

impl StructType {
    pub(crate) fn known(id: u32, fields: Arc<[FieldType]>) -> Self {
        Self { id: ObjectTypeId(id), fields }
    }

    /// The type's id in its engine.
    pub fn id(&self) -> ObjectTypeId {
        self.id
    }

    /// The heap type of references to such structures.
    pub fn heap_type(&self) -> HeapType {
        HeapType::ConcreteStruct(self.id)
    }

    /// The types of the structure's fields, in order.
    pub fn fields(&self) -> &[FieldType] {
        &self.fields
    }
}

impl PartialEq for StructType {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for StructType {}

impl fmt::Display for StructType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(struct")?;
        self.fields.iter().try_for_each(|field| write!(f, " (field {field})"))?;
        f.write_str(")")
    }
}

/// An array type. It comes from an [`Engine`](crate::Engine), as a [`StructType`] does.
#[derive(Clone, Copy, Debug)]
pub struct ArrayType {
    id: ObjectTypeId,
    element: FieldType,
}

impl ArrayType {
    pub(crate) fn known(id: u32, element: FieldType) -> Self {
        Self { id: ObjectTypeId(id), element }
    }

    /// The type's id in its engine.
    pub fn id(&self) -> ObjectTypeId {
        self.id
    }

    /// The heap type of references to such arrays.
    pub fn heap_type(&self) -> HeapType {
        HeapType::ConcreteArray(self.id)
    }

    /// The type of the array's elements.
    pub fn element(&self) -> FieldType {
        self.element
    }
}

impl PartialEq for ArrayType {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ArrayType {}

impl fmt::Display for ArrayType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(array {})", self.element)
    }
}
