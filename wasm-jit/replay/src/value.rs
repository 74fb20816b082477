//! [`Value`]: the values that a trace contains.

use std::fmt;

use super::any_store::AnyStore;
use serde::{Serialize, Serializer};
use wasm_jit::{AnyRef, ExternRef, Func, Global, I31, Instance, Mutability, Val, ValType};

/// The type of a value in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// 32-bit integers: `i32`.
    I32,
    /// 64-bit integers: `i64`.
    I64,
    /// 32-bit floats: `f32`.
    F32,
    /// 64-bit floats: `f64`.
    F64,
    /// 128-bit vectors: `v128`.
    V128,
    /// References to functions of any type: `funcref`.
    Func,
    /// References to host values: `externref`.
    Extern,
    /// References to integers and objects: `anyref`.
    Any,
    /// References to exceptions: `exnref`.
    Exn,
}

impl Type {
    pub(crate) const ALL: [Self; 9] = [
        Self::I32,
        Self::I64,
        Self::F32,
        Self::F64,
        Self::V128,
        Self::Func,
        Self::Extern,
        Self::Any,
        Self::Exn,
    ];

    pub(crate) fn of(ty: ValType) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.engine() == ty)
    }

    /// The engine's representation of the type.
    pub(crate) fn engine(self) -> ValType {
        match self {
            Self::I32 => ValType::I32,
            Self::I64 => ValType::I64,
            Self::F32 => ValType::F32,
            Self::F64 => ValType::F64,
            Self::V128 => ValType::V128,
            Self::Func => ValType::FUNCREF,
            Self::Extern => ValType::EXTERNREF,
            Self::Any => ValType::ANYREF,
            Self::Exn => ValType::EXNREF,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine().fmt(f)
    }
}

/// A value: the bits of a number or vector, the index of a function in the module, the number of a
/// host value, or an integer as a reference. A null has the most general type of its kind: that of
/// a `(ref null $struct)` is a null of `anyref`.
///
/// Serialized as a map with its type: `{"i32": -1}`. JSON readers round large numbers, so 64-bit
/// integers and vectors are text, as in `{"i64": "-1"}`; floats and vectors are in hexadecimal
/// digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    #[serde(serialize_with = "decimal")]
    I64(i64),
    /// The bits of a 32-bit float.
    F32(u32),
    /// The bits of a 64-bit float.
    #[serde(serialize_with = "hexadecimal")]
    F64(u64),
    /// The bits of a vector; lane 0 is in the lowest bits.
    #[serde(serialize_with = "hexadecimal")]
    V128(u128),
    /// A function, or null. Numbers beyond the indices of the module's functions stand for
    /// [functions](crate::Event::Function) that it does not have.
    Func(Option<u32>),
    /// A host value, or null. Equal numbers stand for the same value.
    Extern(Option<u32>),
    /// An integer of 31 bits as a reference (`i31ref`), or null. Other references of type `anyref`
    /// have no recorded form.
    Any(Option<i32>),
    /// A null of type `exnref`.
    #[serde(serialize_with = "null")]
    Exn,
}

impl Value {
    /// Whether it is a null reference.
    pub(crate) fn is_null(self) -> bool {
        matches!(self, Self::Func(None) | Self::Extern(None) | Self::Any(None) | Self::Exn)
    }

    /// The most general type of such values.
    pub(crate) fn ty(self) -> Type {
        match self {
            Self::I32(_) => Type::I32,
            Self::I64(_) => Type::I64,
            Self::F32(_) => Type::F32,
            Self::F64(_) => Type::F64,
            Self::V128(_) => Type::V128,
            Self::Func(_) => Type::Func,
            Self::Extern(_) => Type::Extern,
            Self::Any(_) => Type::Any,
            Self::Exn => Type::Exn,
        }
    }

    /// The recorded value; `None` for a reference to an object, to an exception, or to a function
    /// or host value without a number.
    pub(crate) fn of(
        value: &Val,
        index: impl FnOnce(&Func) -> Option<u32>,
        host: impl FnOnce(&ExternRef) -> Option<u32>,
    ) -> Option<Self> {
        match value {
            Val::FuncRef(None) => Some(Self::Func(None)),
            Val::FuncRef(Some(func)) => Some(Self::Func(Some(index(func)?))),
            Val::ExternRef(None) => Some(Self::Extern(None)),
            Val::ExternRef(Some(value)) => Some(Self::Extern(Some(host(value)?))),
            Val::AnyRef(None) => Some(Self::Any(None)),
            Val::AnyRef(Some(value)) => Some(Self::Any(Some(value.as_i31()?.signed()))),
            Val::ExnRef(None) => Some(Self::Exn),
            value => Self::of_number(value),
        }
    }

    /// The recorded value of a number or a vector.
    pub(crate) fn of_number(value: &Val) -> Option<Self> {
        Some(match value {
            Val::I32(value) => Self::I32(*value),
            Val::I64(value) => Self::I64(*value),
            Val::F32(bits) => Self::F32(*bits),
            Val::F64(bits) => Self::F64(*bits),
            Val::V128(bits) => Self::V128(*bits),
            _ => return None,
        })
    }
}

fn null<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_unit()
}

fn decimal<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serializes all digits of the type, with a prefix.
fn hexadecimal<T: fmt::LowerHex, S: Serializer>(bits: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{bits:#0width$x}", width = 2 + 2 * size_of::<T>()))
}

impl fmt::Display for Value {
    /// Floats are shown as numbers, with their bits where the number does not determine them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::I32(value) => write!(f, "i32:{value}"),
            Self::I64(value) => write!(f, "i64:{value}"),
            Self::F32(bits) if f32::from_bits(bits).is_nan() => write!(f, "f32:nan:{bits:#010x}"),
            Self::F64(bits) if f64::from_bits(bits).is_nan() => write!(f, "f64:nan:{bits:#018x}"),
            Self::F32(bits) => write!(f, "f32:{:?}", f32::from_bits(bits)),
            Self::F64(bits) => write!(f, "f64:{:?}", f64::from_bits(bits)),
            Self::V128(bits) => write!(f, "v128:{bits:#034x}"),
            Self::Func(Some(index)) => write!(f, "func:{index}"),
            Self::Func(None) => f.write_str("func:null"),
            Self::Extern(Some(number)) => write!(f, "extern:{number}"),
            Self::Extern(None) => f.write_str("extern:null"),
            Self::Any(Some(value)) => write!(f, "i31:{value}"),
            Self::Any(None) => f.write_str("any:null"),
            Self::Exn => f.write_str("exn:null"),
        }
    }
}

/// A reference to an integer of 31 bits.
pub(crate) fn i31(value: i32) -> Val {
    Val::AnyRef(Some(AnyRef::from(I31::wrapping(value))))
}

/// The mutable globals of an instance, by index.
pub(crate) fn mutable_globals(store: &dyn AnyStore, instance: Instance) -> Vec<(u32, Global)> {
    let all = (0..).map_while(|index| Some((index, store.global(instance, index)?)));
    all.filter(|(_, global)| store.global_type(*global).mutability() == Mutability::Var).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reader_of_json_rounds_a_value() {
        let check = |value: Value, expected: &str| {
            assert_eq!(serde_json::to_string(&value).unwrap(), expected);
        };
        check(Value::I32(-1), r#"{"i32":-1}"#);
        check(Value::F32(1.0_f32.to_bits()), r#"{"f32":1065353216}"#);
        check(Value::I64(i64::MIN), r#"{"i64":"-9223372036854775808"}"#);
        check(Value::F64(0.0_f64.to_bits() | 1), r#"{"f64":"0x0000000000000001"}"#);
        check(Value::Any(Some(-7)), r#"{"any":-7}"#);
        check(Value::Any(None), r#"{"any":null}"#);
        check(Value::Exn, r#"{"exn":null}"#);
        check(Value::V128(0xa << 64), r#"{"v128":"0x000000000000000a0000000000000000"}"#);
    }
}
