//! [`Value`]: the value of an expression.

use std::fmt;

use wasm_jit::{AnyRef, Val};

use crate::quad;

/// The value of an expression.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// The bits of a 32-bit float.
    F32(u32),
    /// The bits of a 64-bit float.
    F64(u64),
    /// The bits of a 128-bit float, which only variables of the source have.
    F128(u128),
    /// An unsigned integer of up to 64 bits.
    Unsigned(u64),
    /// The bits of a vector.
    V128(u128),
    /// An integer that is shown in another way: one for which an enumeration has a name, a pointer
    /// or a character.
    Named {
        /// The value.
        value: i128,
        /// The text as which the value is shown.
        name: String,
    },
    /// Anything else, as text: a reference, a structure.
    Text(String),
}

impl PartialEq for Value {
    /// Floats are equal if their bits are.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a == b,
            (Self::F64(a), Self::F64(b)) => a == b,
            (Self::F128(a), Self::F128(b)) | (Self::V128(a), Self::V128(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            _ => match (self.integer(), other.integer()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }
}

impl From<&Val> for Value {
    fn from(value: &Val) -> Self {
        match value {
            Val::I32(value) => Self::I32(*value),
            Val::I64(value) => Self::I64(*value),
            Val::F32(bits) => Self::F32(*bits),
            Val::F64(bits) => Self::F64(*bits),
            Val::V128(bits) => Self::V128(*bits),
            null if null.is_null() => Self::Text("null".to_owned()),
            Val::FuncRef(_) => Self::Text("<funcref>".to_owned()),
            Val::ExternRef(_) => Self::Text("<externref>".to_owned()),
            Val::ExnRef(_) => Self::Text("<exnref>".to_owned()),
            Val::AnyRef(value) => match value.as_ref().and_then(AnyRef::as_i31) {
                Some(value) => Self::I32(value.signed()),
                None => Self::Text("<anyref>".to_owned()),
            },
        }
    }
}

impl Value {
    /// The value as an integer, if it is one.
    pub fn integer(&self) -> Option<i128> {
        match self {
            Self::I32(value) => Some((*value).into()),
            Self::I64(value) => Some((*value).into()),
            Self::Unsigned(value) => Some((*value).into()),
            Self::Named { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The value as a float, if it is a number; the nearest one.
    pub fn float(&self) -> Option<f64> {
        match self {
            Self::F32(bits) => Some(f32::from_bits(*bits).into()),
            Self::F64(bits) => Some(f64::from_bits(*bits)),
            Self::F128(bits) => Some(quad::to_f64(*bits)),
            _ => self.integer().map(|integer| integer as f64),
        }
    }

    pub(crate) fn is_float(&self) -> bool {
        matches!(self, Self::F32(_) | Self::F64(_) | Self::F128(_))
    }

    /// The bits of the value as a 128-bit float, if it is a number.
    pub(crate) fn quad(&self) -> Option<u128> {
        match self {
            Self::F128(bits) => Some(*bits),
            _ => self.integer().map(quad::from_integer).or_else(|| self.float().map(quad::from_f64)),
        }
    }

    /// Whether it is a number other than 0, or not a number.
    pub fn is_true(&self) -> bool {
        if let Self::F128(bits) = self {
            // The nearest 64-bit float may be 0.
            return bits << 1 != 0;
        }
        self.float().is_none_or(|number| number != 0.0)
    }

    /// Converts the value to the type of another WebAssembly value.
    pub(crate) fn like(&self, like: &Val) -> Option<Val> {
        let integer = self.integer();
        Some(match like {
            // As many bits as there are.
            Val::I32(_) => Val::I32(integer.filter(|value| fits(*value, 32))? as i32),
            Val::I64(_) => Val::I64(integer.filter(|value| fits(*value, 64))? as i64),
            Val::F32(_) => match self {
                Self::F32(bits) => Val::F32(*bits),
                _ => Val::F32((self.float()? as f32).to_bits()),
            },
            Val::F64(_) => Val::F64(self.float()?.to_bits()),
            Val::V128(_) => match self {
                Self::V128(bits) => Val::V128(*bits),
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Whether an integer can be represented in this many bits, signed or unsigned.
pub(crate) fn fits(value: i128, bits: u32) -> bool {
    (-(1_i128 << (bits - 1))..1_i128 << bits).contains(&value)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::I32(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::F32(bits) => write!(f, "{:?}", f32::from_bits(*bits)),
            Self::F64(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Self::F128(bits) => f.write_str(&quad::text(*bits)),
            Self::V128(bits) => write!(f, "{bits:#034x}"),
            Self::Named { name: text, .. } | Self::Text(text) => f.write_str(text),
        }
    }
}
