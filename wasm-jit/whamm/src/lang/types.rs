//! Types of the language, and how their values are represented.
//!
//! A value is a sequence of components, each of which is a WebAssembly value. Numbers and booleans
//! are one component, strings an address and a length, tuples the components of their fields.
//! Narrow integers are kept extended to 32 bits. A component takes eight bytes in memory. A map is
//! not a value: it is stored at an address. A bucket of a histogram is its 64-bit lower bound; a
//! stack is the number by which the observer of a native program identifies it.

use std::fmt;

use wasm_encoder::ValType;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Type {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    Bool,
    Str,
    /// A bucket of a histogram.
    Bucket(Buckets),
    /// The functions that are being called, in a native program.
    Stack,
    /// A reference, in bounds of results: no value has this type.
    Ref,
    /// A function of the program, during an event: its number, or -1.
    FuncRef,
    Tuple(Vec<Type>),
    Map(Box<Type>, Box<Type>),
}

/// How a histogram divides unsigned integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Buckets {
    /// 0, 1, 2 to 3, 4 to 7, and so on.
    Log2,
    /// Buckets of this width, which is not 0.
    Linear(u64),
}

impl Buckets {
    /// The first number after the bucket with this lower bound.
    pub(super) fn end(self, start: u64) -> i128 {
        let start = i128::from(start);
        match self {
            Self::Log2 => (2 * start).max(1),
            // The last bucket may be smaller than the others.
            Self::Linear(width) => (start + i128::from(width)).min(1 << 64),
        }
    }
}

/// The maximum number of components of a tuple, or of the key or value of a map.
pub(super) const MAX_COMPONENTS: usize = 16;

impl Type {
    pub(super) const UNIT: Self = Self::Tuple(Vec::new());

    /// The size in bytes of a map's header.
    pub(super) const MAP_SIZE: u32 = 16;

    pub(super) fn primitive(name: &str) -> Option<Self> {
        Some(match name {
            "u8" => Self::U8,
            "i8" => Self::I8,
            "u16" => Self::U16,
            "i16" => Self::I16,
            "u32" => Self::U32,
            "i32" => Self::I32,
            "f32" => Self::F32,
            "u64" => Self::U64,
            "i64" => Self::I64,
            "f64" => Self::F64,
            "bool" => Self::Bool,
            "str" => Self::Str,
            "log2" => Self::Bucket(Buckets::Log2),
            "stack" => Self::Stack,
            "funcref" => Self::FuncRef,
            _ => return None,
        })
    }

    /// The WebAssembly type of a number or boolean.
    pub(super) fn scalar(&self) -> Option<ValType> {
        Some(match self {
            Self::U8
            | Self::I8
            | Self::U16
            | Self::I16
            | Self::U32
            | Self::I32
            | Self::Bool
            | Self::Stack
            | Self::FuncRef => ValType::I32,
            Self::U64 | Self::I64 | Self::Bucket(_) => ValType::I64,
            Self::F32 => ValType::F32,
            Self::F64 => ValType::F64,
            Self::Str | Self::Ref | Self::Tuple(_) | Self::Map(..) => return None,
        })
    }

    /// The components of a value.
    pub(super) fn components(&self) -> Vec<ValType> {
        match self {
            Self::Str => vec![ValType::I32; 2],
            Self::Tuple(fields) => fields.iter().flat_map(Self::components).collect(),
            Self::Map(..) => Vec::new(),
            scalar => scalar.scalar().into_iter().collect(),
        }
    }

    /// The size in memory, in bytes.
    pub(super) fn size(&self) -> u32 {
        match self {
            Self::Map(..) => Self::MAP_SIZE,
            value => 8 * value.components().len() as u32,
        }
    }

    /// Whether it is a stack, or a tuple with one.
    pub(super) fn has_stack(&self) -> bool {
        match self {
            Self::Tuple(fields) => fields.iter().any(Self::has_stack),
            ty => *ty == Self::Stack,
        }
    }

    /// Whether it is a reference to a function, or contains one.
    pub(super) fn has_reference(&self) -> bool {
        match self {
            Self::Tuple(fields) => fields.iter().any(Self::has_reference),
            Self::Map(key, value) => key.has_reference() || value.has_reference(),
            ty => *ty == Self::FuncRef,
        }
    }

    /// Whether it is an integer, or a tuple whose first field is one.
    pub(super) fn begins_with_integer(&self) -> bool {
        match self {
            Self::Tuple(fields) => fields.first().is_some_and(Self::begins_with_integer),
            ty => ty.is_integer(),
        }
    }

    pub(super) fn is_integer(&self) -> bool {
        self.bits().is_some()
    }

    pub(super) fn is_float(&self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    pub(super) fn is_signed(&self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// The number of bits of an integer.
    pub(super) fn bits(&self) -> Option<u32> {
        Some(match self {
            Self::U8 | Self::I8 => 8,
            Self::U16 | Self::I16 => 16,
            Self::U32 | Self::I32 => 32,
            Self::U64 | Self::I64 => 64,
            _ => return None,
        })
    }

    /// Whether `as` converts values of this type, and to this type.
    pub(super) fn is_converted(&self) -> bool {
        self.is_integer() || self.is_float() || *self == Self::Bool
    }

    pub(super) fn has_map(&self) -> bool {
        match self {
            Self::Map(..) => true,
            Self::Tuple(fields) => fields.iter().any(Self::has_map),
            _ => false,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::Bucket(Buckets::Log2) => "log2",
            Self::Bucket(Buckets::Linear(width)) => return write!(out, "linear<{width}>"),
            Self::Stack => "stack",
            Self::Ref => "ref",
            Self::FuncRef => "funcref",
            Self::Map(key, value) => return write!(out, "map<{key}, {value}>"),
            Self::Tuple(fields) => {
                out.write_str("(")?;
                for (index, field) in fields.iter().enumerate() {
                    write!(out, "{}{field}", if index > 0 { ", " } else { "" })?;
                }
                return out.write_str(")");
            }
        };
        out.write_str(name)
    }
}
