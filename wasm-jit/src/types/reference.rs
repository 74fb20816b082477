//! Types of references.

use std::fmt;

use wasmparser as wp;

/// A function type that an [`Engine`](crate::Engine) knows, as a part of other types: the `$t` of
/// `(ref $t)`. Two types of an engine are the same type exactly if their ids are equal.
///
/// The engine knows the types of its modules and of the host's functions as long as they exist, and
/// those registered with [`Engine::func_type_id`](crate::Engine::func_type_id) as long as it exists
/// itself. Afterwards no function is of the type with this id, and functions and tags whose types
/// refer to it are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncTypeId(pub(crate) u32);

/// The type of what a reference refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeapType {
    /// Any function.
    Func,
    /// A function of this type.
    ConcreteFunc(FuncTypeId),
    /// A value of the host.
    Extern,
    /// An exception.
    Exn,
}

/// The type of references to values of a heap type, with or without null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefType {
    nullable: bool,
    heap_type: HeapType,
}

impl HeapType {
    /// Whether every value of this type is one of type `other`, too.
    pub fn matches(&self, other: &Self) -> bool {
        self == other || self.top() == *other
    }

    /// The most general type of such values.
    pub(crate) fn top(self) -> Self {
        match self {
            Self::Func | Self::ConcreteFunc(_) => Self::Func,
            Self::Extern => Self::Extern,
            Self::Exn => Self::Exn,
        }
    }
}

impl RefType {
    /// A function, or null: `funcref`.
    pub const FUNCREF: Self = Self::new(true, HeapType::Func);
    /// A value of the host, or null: `externref`.
    pub const EXTERNREF: Self = Self::new(true, HeapType::Extern);
    /// An exception, or null: `exnref`.
    pub const EXNREF: Self = Self::new(true, HeapType::Exn);

    /// The type of references to values of this type, and of null if `nullable`.
    pub const fn new(nullable: bool, heap_type: HeapType) -> Self {
        Self { nullable, heap_type }
    }

    /// Whether null is one of its values.
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// The type of what its values refer to.
    pub fn heap_type(&self) -> HeapType {
        self.heap_type
    }

    /// Whether every value of this type is one of type `other`, too.
    pub fn matches(&self, other: &Self) -> bool {
        (other.nullable || !self.nullable) && self.heap_type.matches(&other.heap_type)
    }

    /// The type in a module whose types have these ids; `None` for an unsupported type.
    pub(crate) fn from_wasm(ty: wp::RefType, ids: &[u32]) -> Option<Self> {
        use wp::AbstractHeapType as Abstract;
        let heap_type = match ty.heap_type() {
            wp::HeapType::Abstract { shared: false, ty: Abstract::Func } => HeapType::Func,
            wp::HeapType::Abstract { shared: false, ty: Abstract::Extern } => HeapType::Extern,
            wp::HeapType::Abstract { shared: false, ty: Abstract::Exn } => HeapType::Exn,
            wp::HeapType::Concrete(index) => {
                let index = index.as_module_index()?;
                HeapType::ConcreteFunc(FuncTypeId(*ids.get(index as usize)?))
            }
            wp::HeapType::Abstract { .. } | wp::HeapType::Exact(_) => return None,
        };
        Some(Self { nullable: ty.is_nullable(), heap_type })
    }

    /// The type in an accepted module, which has no unsupported types.
    pub(crate) fn of(ty: wp::RefType, ids: &[u32]) -> Self {
        Self::from_wasm(ty, ids).expect("parsing refuses the types that this engine does not have")
    }

    /// The most general nullable type of these values, which has a representation in any module.
    pub(crate) fn top_to_wasm(self) -> wp::RefType {
        match self.heap_type.top() {
            HeapType::Extern => wp::RefType::EXTERNREF,
            HeapType::Exn => wp::RefType::EXNREF,
            HeapType::Func | HeapType::ConcreteFunc(_) => wp::RefType::FUNCREF,
        }
    }
}

impl fmt::Display for FuncTypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$type{}", self.0)
    }
}

impl fmt::Display for HeapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Func => f.write_str("func"),
            Self::ConcreteFunc(id) => id.fmt(f),
            Self::Extern => f.write_str("extern"),
            Self::Exn => f.write_str("exn"),
        }
    }
}

impl fmt::Display for RefType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FUNCREF => f.write_str("funcref"),
            Self::EXTERNREF => f.write_str("externref"),
            Self::EXNREF => f.write_str("exnref"),
            Self { nullable: true, heap_type } => write!(f, "(ref null {heap_type})"),
            Self { nullable: false, heap_type } => write!(f, "(ref {heap_type})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtypes_have_fewer_values() {
        let [first, second] = [0, 1].map(|id| HeapType::ConcreteFunc(FuncTypeId(id)));
        let all = [HeapType::Func, first, second, HeapType::Extern, HeapType::Exn];
        let heap =
            |sub: HeapType, of: HeapType| sub == of || of == HeapType::Func && [first, second].contains(&sub);
        for (sub, of) in all.iter().flat_map(|sub| all.map(|of| (*sub, of))) {
            assert_eq!(sub.matches(&of), heap(sub, of), "{sub} {of}");
            for (sub_null, of_null) in [(false, false), (false, true), (true, false), (true, true)] {
                let expected = heap(sub, of) && (of_null || !sub_null);
                assert_eq!(RefType::new(sub_null, sub).matches(&RefType::new(of_null, of)), expected);
            }
        }
    }

    #[test]
    fn types_are_shown_as_in_the_text_format() {
        let concrete = HeapType::ConcreteFunc(FuncTypeId(7));
        assert_eq!(RefType::FUNCREF.to_string(), "funcref");
        assert_eq!(RefType::new(false, HeapType::Extern).to_string(), "(ref extern)");
        assert_eq!(RefType::new(true, concrete).to_string(), "(ref null $type7)");
    }
}
