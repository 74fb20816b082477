//! Arguments and results of native functions, as rules ask for them: `arg0: u64`, `args.size: u64`,
//! `res0: i32`.

use std::fmt;

/// An argument or a result that a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NativeValue {
    /// The argument or result.
    pub name: ValueName,
    /// The type that the rule expects.
    pub ty: NumberType,
    /// Whether the rule uses the value. If not, it only matches functions that have it.
    pub is_used: bool,
}

/// The beginning of the names of values in exports that the rule does not use.
pub(crate) const UNUSED: &str = "unused.";

/// The name of an argument of a function, or of its result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueName {
    /// The argument at this position in the list of parameters, counted from 0: `arg0`.
    Position(u32),
    /// The argument with this name in the function's source: `args.size`.
    Name(String),
    /// The return value of the function, at its exit: `res0`.
    Result,
}

/// A numeric type of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumberType {
    /// An integer of 8, 16, 32 or 64 bits.
    Integer {
        /// The number of bits.
        bits: u8,
        /// Whether the integer is signed.
        is_signed: bool,
    },
    /// A boolean: 0 or 1.
    Bool,
    /// A 32-bit float.
    F32,
    /// A 64-bit float.
    F64,
}

impl NativeValue {
    /// Parses the name of a value in an export: `args.size.u64`, `unused.arg0.u64`.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let used = word.strip_prefix(UNUSED);
        let is_used = used.is_none();
        let (name, ty) = used.unwrap_or(word).rsplit_once('.')?;
        let ty = NumberType::parse(ty)?;
        if name == "res0" {
            return Some(Self { name: ValueName::Result, ty, is_used });
        }
        if let Some(name) = name.strip_prefix("args.") {
            return (!name.is_empty()).then(|| Self { name: ValueName::Name(name.to_owned()), ty, is_used });
        }
        let position = name.strip_prefix("arg")?;
        let is_number = !position.is_empty() && position.bytes().all(|byte| byte.is_ascii_digit());
        let name = ValueName::Position(position.parse().ok().filter(|_| is_number)?);
        Some(Self { name, ty, is_used })
    }
}

impl NumberType {
    fn parse(text: &str) -> Option<Self> {
        let (is_signed, bits) = match text {
            "bool" => return Some(Self::Bool),
            "f32" => return Some(Self::F32),
            "f64" => return Some(Self::F64),
            "u8" | "u16" | "u32" | "u64" => (false, text[1..].parse().ok()?),
            "i8" | "i16" | "i32" | "i64" => (true, text[1..].parse().ok()?),
            _ => return None,
        };
        Some(Self::Integer { bits, is_signed })
    }

    /// Whether each value of the other type is also a value of this type.
    ///
    /// ```
    /// use wasm_jit_whamm::native::NumberType;
    ///
    /// let [int, size] = [(32, true), (64, false)]
    ///     .map(|(bits, is_signed)| NumberType::Integer { bits, is_signed });
    /// assert!(NumberType::F64.holds(NumberType::F32) && size.holds(NumberType::Bool));
    /// assert!(!size.holds(int), "it may be negative");
    /// ```
    pub fn holds(self, other: Self) -> bool {
        match (self, other) {
            (Self::Integer { bits, is_signed }, Self::Integer { bits: of_other, is_signed: other }) => {
                match (is_signed, other) {
                    (true, false) => bits > of_other,
                    (false, true) => false,
                    _ => bits >= of_other,
                }
            }
            (Self::Integer { .. }, Self::Bool) | (Self::F64, Self::F32) => true,
            _ => self == other,
        }
    }
}

impl fmt::Display for NumberType {
    /// Writes the type as in a rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer { bits, is_signed } => write!(f, "{}{bits}", if *is_signed { 'i' } else { 'u' }),
            Self::Bool => f.write_str("bool"),
            Self::F32 => f.write_str("f32"),
            Self::F64 => f.write_str("f64"),
        }
    }
}

impl fmt::Display for NativeValue {
    /// Writes the name as in a rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            ValueName::Position(position) => write!(f, "arg{position}"),
            ValueName::Name(name) => write!(f, "args.{name}"),
            ValueName::Result => f.write_str("res0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed() {
        let parse = |word| NativeValue::parse(word).map(|found| (found.to_string(), found.ty));
        let integer = |bits, is_signed| NumberType::Integer { bits, is_signed };
        assert_eq!(parse("arg12.i16"), Some(("arg12".to_owned(), integer(16, true))));
        assert_eq!(parse("args.u8.u64"), Some(("args.u8".to_owned(), integer(64, false))));
        assert_eq!(parse("args.x.bool"), Some(("args.x".to_owned(), NumberType::Bool)));
        assert_eq!(parse("unused.arg1.u8"), Some(("arg1".to_owned(), integer(8, false))));
        assert_eq!(parse("res0.f32"), Some(("res0".to_owned(), NumberType::F32)));
        assert_eq!(parse("args.res0.f32"), Some(("args.res0".to_owned(), NumberType::F32)));
        for ty in ["u8", "i64", "bool", "f32", "f64"] {
            assert_eq!(NumberType::parse(ty).map(|ty| ty.to_string()).as_deref(), Some(ty));
        }
        for word in [
            "arg.u8",
            "arg0",
            "args.u8",
            "args..u8",
            "arg0.u7",
            "arg99999999999.u8",
            "argx.u8",
            "tid.u32",
            "res0",
            "res1.u8",
        ] {
            assert_eq!(parse(word), None, "{word}");
        }
    }

    /// The ranges of the types determine this.
    #[test]
    fn a_type_holds_another_if_its_range_does() {
        let range = |ty: NumberType| match ty {
            NumberType::Integer { bits, is_signed: true } => (-(1_i128 << (bits - 1)), 1_i128 << (bits - 1)),
            NumberType::Integer { bits, is_signed: false } => (0, 1 << bits),
            _ => (0, 2),
        };
        let integers = [8, 16, 32, 64]
            .into_iter()
            .flat_map(|bits| [true, false].map(|is_signed| NumberType::Integer { bits, is_signed }));
        for outer in integers.clone() {
            for inner in integers.clone().chain([NumberType::Bool]) {
                let ((start, end), (from, to)) = (range(outer), range(inner));
                assert_eq!(outer.holds(inner), start <= from && to <= end, "{outer:?} {inner:?}");
            }
            assert!(
                !NumberType::Bool.holds(outer)
                    && !NumberType::F64.holds(outer)
                    && !outer.holds(NumberType::F32)
            );
        }
        assert!(!NumberType::F32.holds(NumberType::F64));
    }
}
