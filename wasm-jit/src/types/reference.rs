//! Reference types, and the types of what references refer to.

use std::fmt;

use wasm_jit_codegen::ModuleInfo;
use wasm_jit_codegen::objects::Composite;
use wasmparser as wp;

use crate::vmctx::VmKind;

/// A function type that an [`Engine`](crate::Engine) knows, as a part of other types: the `$t` of
/// `(ref $t)`. Two types of an engine are the same type exactly if their ids are equal. The ids of
/// different engines of a process differ, as long as the process has created fewer than 2^32 types.
///
/// The engine knows the types of modules and of host functions as long as these exist, and the
/// types registered with [`Engine::func_type_id`](crate::Engine::func_type_id) as long as the
/// engine exists. Afterwards no function is of the type with this id, and functions, tables,
/// globals, tags and object types that refer to it are refused, as in every other engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncTypeId(pub(crate) u32);

/// A structure or array type that an [`Engine`](crate::Engine) knows, as a part of other types. Two
/// types of an engine are the same type exactly if their ids are equal; those of different engines
/// differ as [function types](FuncTypeId) do. The engine knows such a type as long as a module, a
/// store or a value of its type exists, and a type that the embedder has created as long as the
/// engine exists. Whatever refers to the type of a structure as that of an array, or the other way
/// round, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectTypeId(pub(crate) u32);

/// The type of what a reference refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeapType {
    /// Any function.
    Func,
    /// A function of this type, or of a subtype.
    ConcreteFunc(FuncTypeId),
    /// No function.
    NoFunc,
    /// A host value, or any other value that was converted to one.
    Extern,
    /// No host value.
    NoExtern,
    /// An exception.
    Exn,
    /// No exception.
    NoExn,
    /// A structure, an array, an `i31`, or a host value that was converted by `any.convert_extern`.
    Any,
    /// A structure, an array or an `i31`: the values that can be compared.
    Eq,
    /// A 31-bit integer.
    I31,
    /// Any structure.
    Struct,
    /// A structure of this type, or of a subtype.
    ConcreteStruct(ObjectTypeId),
    /// Any array.
    Array,
    /// An array of this type, or of a subtype.
    ConcreteArray(ObjectTypeId),
    /// No structure, array, `i31` or converted host value.
    None,
}

/// The type of references to values of a heap type, with or without null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RefType {
    nullable: bool,
    heap_type: HeapType,
}

impl HeapType {
    /// Whether every value of this type is also a value of type `other`, as far as the two types
    /// alone show: only their engine knows whether one was declared as a subtype of the other
    /// ([`Engine::is_subtype`](crate::Engine::is_subtype)).
    pub fn matches(&self, other: &Self) -> bool {
        if self == other || self.top() == *other {
            return true;
        }
        match self {
            Self::NoFunc | Self::NoExtern | Self::NoExn | Self::None => self.top() == other.top(),
            Self::I31 | Self::Struct | Self::Array => *other == Self::Eq,
            Self::ConcreteStruct(_) => matches!(other, Self::Struct | Self::Eq),
            Self::ConcreteArray(_) => matches!(other, Self::Array | Self::Eq),
            _ => false,
        }
    }

    /// The most general type of the same kind of values.
    pub fn top(&self) -> Self {
        match self {
            Self::Func | Self::ConcreteFunc(_) | Self::NoFunc => Self::Func,
            Self::Extern | Self::NoExtern => Self::Extern,
            Self::Exn | Self::NoExn => Self::Exn,
            Self::Any
            | Self::Eq
            | Self::I31
            | Self::Struct
            | Self::ConcreteStruct(_)
            | Self::Array
            | Self::ConcreteArray(_)
            | Self::None => Self::Any,
        }
    }

    /// What the concrete type describes, and its id, if this is one. The embedder may have combined
    /// the id of one kind of types with another kind.
    pub(crate) fn concrete(&self) -> Option<(VmKind, u32)> {
        match self {
            Self::ConcreteFunc(FuncTypeId(id)) => Some((VmKind::Func, *id)),
            Self::ConcreteStruct(ObjectTypeId(id)) => Some((VmKind::Struct, *id)),
            Self::ConcreteArray(ObjectTypeId(id)) => Some((VmKind::Array, *id)),
            _ => None,
        }
    }

    /// The type with this id, which describes these values: the reverse of
    /// [`concrete`](Self::concrete).
    pub(crate) fn of_id(kind: VmKind, id: u32) -> Self {
        match kind {
            VmKind::Func => Self::ConcreteFunc(FuncTypeId(id)),
            VmKind::Struct => Self::ConcreteStruct(ObjectTypeId(id)),
            VmKind::Array => Self::ConcreteArray(ObjectTypeId(id)),
        }
    }
}

impl RefType {
    /// A function, or null: `funcref`.
    pub const FUNCREF: Self = Self::new(true, HeapType::Func);
    /// A host value, or null: `externref`.
    pub const EXTERNREF: Self = Self::new(true, HeapType::Extern);
    /// An exception, or null: `exnref`.
    pub const EXNREF: Self = Self::new(true, HeapType::Exn);
    /// A structure, an array, an `i31`, a host value, or null: `anyref`.
    pub const ANYREF: Self = Self::new(true, HeapType::Any);
    /// A structure, an array, an `i31`, or null: `eqref`.
    pub const EQREF: Self = Self::new(true, HeapType::Eq);
    /// A 31-bit integer, or null: `i31ref`.
    pub const I31REF: Self = Self::new(true, HeapType::I31);
    /// A structure, or null: `structref`.
    pub const STRUCTREF: Self = Self::new(true, HeapType::Struct);
    /// An array, or null: `arrayref`.
    pub const ARRAYREF: Self = Self::new(true, HeapType::Array);
    /// Null: `nullref`.
    pub const NULLREF: Self = Self::new(true, HeapType::None);
    /// Null: `nullfuncref`.
    pub const NULLFUNCREF: Self = Self::new(true, HeapType::NoFunc);
    /// Null: `nullexternref`.
    pub const NULLEXTERNREF: Self = Self::new(true, HeapType::NoExtern);
    /// Null: `nullexnref`.
    pub const NULLEXNREF: Self = Self::new(true, HeapType::NoExn);

    /// The type of references to values of this type, and of null if `nullable`.
    pub const fn new(nullable: bool, heap_type: HeapType) -> Self {
        Self { nullable, heap_type }
    }

    /// Whether null is a value of this type.
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// The type of what values of this type refer to.
    pub fn heap_type(&self) -> HeapType {
        self.heap_type
    }

    /// Whether every value of this type is also a value of type `other`, as [`HeapType::matches`].
    pub fn matches(&self, other: &Self) -> bool {
        (other.nullable || !self.nullable) && self.heap_type.matches(&other.heap_type)
    }

    /// The type in a module; `None` for an unsupported type.
    pub(crate) fn from_wasm(ty: wp::RefType, module: &ModuleInfo) -> Option<Self> {
        use wp::AbstractHeapType as Abstract;
        let heap_type = match ty.heap_type() {
            wp::HeapType::Abstract { shared: false, ty } => match ty {
                Abstract::Func => HeapType::Func,
                Abstract::NoFunc => HeapType::NoFunc,
                Abstract::Extern => HeapType::Extern,
                Abstract::NoExtern => HeapType::NoExtern,
                Abstract::Exn => HeapType::Exn,
                Abstract::NoExn => HeapType::NoExn,
                Abstract::Any => HeapType::Any,
                Abstract::Eq => HeapType::Eq,
                Abstract::I31 => HeapType::I31,
                Abstract::Struct => HeapType::Struct,
                Abstract::Array => HeapType::Array,
                Abstract::None => HeapType::None,
                Abstract::Cont | Abstract::NoCont => return None,
            },
            wp::HeapType::Concrete(index) => {
                let index = index.as_module_index()? as usize;
                let id = *module.type_ids.get(index)?;
                HeapType::of_id(kind(&module.types.get(index)?.composite), id)
            }
            wp::HeapType::Abstract { .. } | wp::HeapType::Exact(_) => return None,
        };
        Some(Self { nullable: ty.is_nullable(), heap_type })
    }

    /// The type in an accepted module, which has no unsupported types.
    pub(crate) fn of(ty: wp::RefType, module: &ModuleInfo) -> Self {
        Self::from_wasm(ty, module).expect("parsing refuses the types that this engine does not have")
    }

    /// The most general nullable type of the same kind of values, which has a representation in any
    /// module.
    pub(crate) fn top_to_wasm(self) -> wp::RefType {
        match self.heap_type.top() {
            HeapType::Extern => wp::RefType::EXTERNREF,
            HeapType::Exn => wp::RefType::EXNREF,
            HeapType::Func => wp::RefType::FUNCREF,
            _ => wp::RefType::ANYREF,
        }
    }
}

/// What a type of a module describes.
fn kind(composite: &Composite) -> VmKind {
    match composite {
        Composite::Func(_) => VmKind::Func,
        Composite::Struct(_) => VmKind::Struct,
        Composite::Array(_) => VmKind::Array,
    }
}

impl fmt::Display for ObjectTypeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$type{}", self.0)
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
            Self::NoFunc => f.write_str("nofunc"),
            Self::Extern => f.write_str("extern"),
            Self::NoExtern => f.write_str("noextern"),
            Self::Exn => f.write_str("exn"),
            Self::NoExn => f.write_str("noexn"),
            Self::Any => f.write_str("any"),
            Self::Eq => f.write_str("eq"),
            Self::I31 => f.write_str("i31"),
            Self::Struct => f.write_str("struct"),
            Self::Array => f.write_str("array"),
            Self::ConcreteStruct(id) | Self::ConcreteArray(id) => id.fmt(f),
            Self::None => f.write_str("none"),
        }
    }
}

impl fmt::Display for RefType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NULLREF => f.write_str("nullref"),
            Self::NULLFUNCREF => f.write_str("nullfuncref"),
            Self::NULLEXTERNREF => f.write_str("nullexternref"),
            Self::NULLEXNREF => f.write_str("nullexnref"),
            Self { nullable: true, heap_type } if heap_type.concrete().is_none() => {
                write!(f, "{heap_type}ref")
            }
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
        use HeapType::*;
        let func = |id| ConcreteFunc(FuncTypeId(id));
        let of_structs = |id| ConcreteStruct(ObjectTypeId(id));
        let of_arrays = |id| ConcreteArray(ObjectTypeId(id));
        // Each type with those directly above it.
        let above = |ty: HeapType| match ty {
            Func | Extern | Exn | Any => vec![],
            ConcreteFunc(_) => vec![Func],
            NoFunc => vec![func(0), func(1)],
            NoExtern => vec![Extern],
            NoExn => vec![Exn],
            Eq => vec![Any],
            I31 | Struct | Array => vec![Eq],
            ConcreteStruct(_) => vec![Struct],
            ConcreteArray(_) => vec![Array],
            None => vec![I31, of_structs(2), of_structs(3), of_arrays(4), of_arrays(5)],
        };
        let mut all = vec![Func, NoFunc, Extern, NoExtern, Exn, NoExn, Any, Eq, I31, Struct, Array, None];
        all.extend([func(0), func(1), of_structs(2), of_structs(3), of_arrays(4), of_arrays(5)]);
        for sub in &all {
            let mut supertypes = vec![*sub];
            let mut next = 0;
            while let Some(ty) = supertypes.get(next) {
                supertypes.extend(above(*ty));
                next += 1;
            }
            for of in &all {
                let expected = supertypes.contains(of);
                assert_eq!(sub.matches(of), expected, "{sub} {of}");
                for (sub_null, of_null) in [(false, false), (false, true), (true, false), (true, true)] {
                    let found = RefType::new(sub_null, *sub).matches(&RefType::new(of_null, *of));
                    assert_eq!(found, expected && (of_null || !sub_null));
                }
            }
        }
    }

    #[test]
    fn types_are_shown_as_in_the_text_format() {
        let concrete = HeapType::ConcreteFunc(FuncTypeId(7));
        assert_eq!(RefType::FUNCREF.to_string(), "funcref");
        assert_eq!(RefType::new(false, HeapType::Extern).to_string(), "(ref extern)");
        assert_eq!(RefType::STRUCTREF.to_string(), "structref");
        assert_eq!(RefType::NULLREF.to_string(), "nullref");
        assert_eq!(RefType::new(true, concrete).to_string(), "(ref null $type7)");
    }
}
