//! `wasm_externtype_t`, and the types of functions, globals, tables, memories and tags. They are
//! one type in Rust, so that a pointer to any of them is also a pointer to an extern type.

use wasm_jit::{FuncType, GlobalType, MemoryType, Mutability, TableType, TagType};

use super::valtype::ValType;
use crate::last_error::{expect, failed, required};
use crate::vector::{Vector, export_vectors};

/// Kinds of imports and exports: `wasm_externkind_t`.
pub(crate) mod kind {
    pub(crate) const FUNC: u8 = 0;
    pub(crate) const GLOBAL: u8 = 1;
    pub(crate) const TABLE: u8 = 2;
    pub(crate) const MEMORY: u8 = 3;
    pub(crate) const TAG: u8 = 4;
}

/// `wasm_limits_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    min: u32,
    max: u32,
}

/// The maximum in limits that have none.
const NO_MAXIMUM: u32 = u32::MAX;

impl Limits {
    /// Limits with these numbers; those above the range of `u32` become its maximum.
    fn of(minimum: u64, maximum: Option<u64>) -> Self {
        let fit = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self { min: fit(minimum), max: maximum.map_or(NO_MAXIMUM, fit) }
    }

    fn maximum(self) -> Option<u32> {
        (self.max != NO_MAXIMUM).then_some(self.max)
    }
}

/// The name of an argument in failure messages.
const A_VALTYPE: &str = "a type of values";

type ValTypes = Vector<Option<Box<ValType>>>;

/// `wasm_externtype_t`, with the parts that C code gets pointers to.
#[derive(Clone, Debug)]
pub(crate) enum ExternType {
    Func { ty: FuncType, params: ValTypes, results: ValTypes },
    Global { ty: GlobalType, content: ValType },
    Table { ty: TableType, element: ValType, limits: Limits },
    Memory { ty: MemoryType, limits: Limits },
    Tag(Box<ExternType>),
}

impl ExternType {
    pub(crate) fn of(ty: wasm_jit::ExternType) -> Self {
        match ty {
            wasm_jit::ExternType::Func(ty) => Self::func(ty),
            wasm_jit::ExternType::Global(ty) => Self::Global { content: ValType(ty.content()), ty },
            wasm_jit::ExternType::Table(ty) => Self::Table {
                element: ValType(wasm_jit::ValType::Ref(ty.element())),
                limits: Limits::of(ty.minimum(), ty.maximum()),
                ty,
            },
            wasm_jit::ExternType::Memory(ty) => {
                Self::Memory { limits: Limits::of(ty.minimum(), ty.maximum()), ty }
            }
            wasm_jit::ExternType::Tag(ty) => Self::Tag(Box::new(Self::func(ty.ty().clone()))),
        }
    }

    pub(crate) fn func(ty: FuncType) -> Self {
        let object = |ty| Some(Box::new(ValType(ty)));
        let (params, results) = (ty.params().map(object).collect(), ty.results().map(object).collect());
        Self::Func { ty, params, results }
    }

    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Func { .. } => kind::FUNC,
            Self::Global { .. } => kind::GLOBAL,
            Self::Table { .. } => kind::TABLE,
            Self::Memory { .. } => kind::MEMORY,
            Self::Tag(_) => kind::TAG,
        }
    }

    pub(crate) fn as_func(&self) -> Option<&FuncType> {
        if let Self::Func { ty, .. } = self { Some(ty) } else { None }
    }

    pub(crate) fn as_global(&self) -> Option<GlobalType> {
        if let Self::Global { ty, .. } = self { Some(*ty) } else { None }
    }

    pub(crate) fn as_table(&self) -> Option<TableType> {
        if let Self::Table { ty, .. } = self { Some(*ty) } else { None }
    }

    pub(crate) fn as_memory(&self) -> Option<MemoryType> {
        if let Self::Memory { ty, .. } = self { Some(*ty) } else { None }
    }
}

export_vectors! {
    "functype" Option<Box<crate::types::ExternType>>;
    "globaltype" Option<Box<crate::types::ExternType>>;
    "tabletype" Option<Box<crate::types::ExternType>>;
    "memorytype" Option<Box<crate::types::ExternType>>;
    "tagtype" Option<Box<crate::types::ExternType>>;
    "externtype" Option<Box<crate::types::ExternType>>;
}

/// For each kind of type: destructor and copy, and the conversions to and from extern types.
macro_rules! export_types {
    ($($name:literal $kind:path;)*) => {
        $(
            const _: () = {
                use super::ExternType;

                #[unsafe(export_name = concat!("wasm_", $name, "_delete"))]
                extern "C" fn delete(_: Option<Box<ExternType>>) {}

                #[unsafe(export_name = concat!("wasm_", $name, "_copy"))]
                extern "C" fn copy(ty: Option<&ExternType>) -> Option<Box<ExternType>> {
                    ty.cloned().map(Box::new)
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_as_externtype"))]
                extern "C" fn as_extern(ty: *mut ExternType) -> *mut ExternType {
                    ty
                }

                #[unsafe(export_name = concat!("wasm_", $name, "_as_externtype_const"))]
                extern "C" fn as_extern_const(ty: *const ExternType) -> *const ExternType {
                    ty
                }

                #[unsafe(export_name = concat!("wasm_externtype_as_", $name))]
                unsafe extern "C" fn of_extern(ty: *mut ExternType) -> *mut ExternType {
                    // SAFETY: the caller's obligation.
                    if unsafe { super::is_of_kind(ty, $kind) } { ty } else { std::ptr::null_mut() }
                }

                #[unsafe(export_name = concat!("wasm_externtype_as_", $name, "_const"))]
                unsafe extern "C" fn of_extern_const(ty: *const ExternType) -> *const ExternType {
                    // SAFETY: the caller's obligation.
                    if unsafe { super::is_of_kind(ty, $kind) } { ty } else { std::ptr::null() }
                }
            };
        )*
    };
}

/// # Safety
/// The pointer is null or points to a type.
unsafe fn is_of_kind(ty: *const ExternType, kind: u8) -> bool {
    // SAFETY: the caller's obligation.
    unsafe { ty.as_ref() }.is_some_and(|ty| ty.kind() == kind)
}

mod of_each_kind {
    use super::kind;

    export_types! {
        "functype" kind::FUNC;
        "globaltype" kind::GLOBAL;
        "tabletype" kind::TABLE;
        "memorytype" kind::MEMORY;
        "tagtype" kind::TAG;
    }
}

#[unsafe(no_mangle)]
extern "C" fn wasm_externtype_delete(_: Option<Box<ExternType>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_externtype_copy(ty: Option<&ExternType>) -> Option<Box<ExternType>> {
    ty.cloned().map(Box::new)
}

/// The kind of an extern type; for null, that of a function.
#[unsafe(no_mangle)]
extern "C" fn wasm_externtype_kind(ty: Option<&ExternType>) -> u8 {
    required(ty, "a type").map_or(kind::FUNC, ExternType::kind)
}

/// Creates the type of a function. Null if an element is null.
#[unsafe(no_mangle)]
extern "C" fn wasm_functype_new(
    params: Option<&mut ValTypes>,
    results: Option<&mut ValTypes>,
) -> Option<Box<ExternType>> {
    let list = |types: Option<&mut ValTypes>| -> Option<Vec<wasm_jit::ValType>> {
        let types = types.map_or_else(Vector::empty, Vector::take);
        types.elements().iter().map(|ty| Some(required(ty.as_ref(), A_VALTYPE)?.0)).collect()
    };
    // Both arguments are consumed, even if the first one is invalid.
    let (params, results) = (list(params), list(results));
    Some(Box::new(ExternType::func(FuncType::new(params?, results?))))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_functype_params(ty: Option<&ExternType>) -> Option<&ValTypes> {
    expect(ty, "the type of a function", |ty| match ty {
        ExternType::Func { params, .. } => Some(params),
        _ => None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_functype_results(ty: Option<&ExternType>) -> Option<&ValTypes> {
    expect(ty, "the type of a function", |ty| match ty {
        ExternType::Func { results, .. } => Some(results),
        _ => None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_globaltype_new(content: Option<Box<ValType>>, mutability: u8) -> Option<Box<ExternType>> {
    let mutability = if mutability == 0 { Mutability::Const } else { Mutability::Var };
    let ty = GlobalType::new(required(content, A_VALTYPE)?.0, mutability);
    Some(Box::new(ExternType::of(wasm_jit::ExternType::Global(ty))))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_globaltype_content(ty: Option<&ExternType>) -> Option<&ValType> {
    expect(ty, "the type of a global", |ty| match ty {
        ExternType::Global { content, .. } => Some(content),
        _ => None,
    })
}

/// The mutability of a global type; for any other type, that of a constant.
#[unsafe(no_mangle)]
extern "C" fn wasm_globaltype_mutability(ty: Option<&ExternType>) -> u8 {
    let ty = expect(ty, "the type of a global", ExternType::as_global);
    u8::from(ty.is_some_and(|ty| ty.mutability() == Mutability::Var))
}

/// Creates the type of a table. Null if the elements are not references.
#[unsafe(no_mangle)]
extern "C" fn wasm_tabletype_new(
    element: Option<Box<ValType>>,
    limits: Option<&Limits>,
) -> Option<Box<ExternType>> {
    let (element, limits) = (required(element, A_VALTYPE)?.0, required(limits, "limits")?);
    let wasm_jit::ValType::Ref(element) = element else {
        failed(format_args!("the elements of a table are references, not of type {element}"));
        return None;
    };
    let ty = TableType::new(element, limits.min, limits.maximum());
    Some(Box::new(ExternType::of(wasm_jit::ExternType::Table(ty))))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_tabletype_element(ty: Option<&ExternType>) -> Option<&ValType> {
    expect(ty, "the type of a table", |ty| match ty {
        ExternType::Table { element, .. } => Some(element),
        _ => None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_tabletype_limits(ty: Option<&ExternType>) -> Option<&Limits> {
    expect(ty, "the type of a table", |ty| match ty {
        ExternType::Table { limits, .. } => Some(limits),
        _ => None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn wasm_memorytype_new(limits: Option<&Limits>) -> Option<Box<ExternType>> {
    let limits = required(limits, "limits")?;
    let ty = MemoryType::new(limits.min, limits.maximum());
    Some(Box::new(ExternType::of(wasm_jit::ExternType::Memory(ty))))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_memorytype_limits(ty: Option<&ExternType>) -> Option<&Limits> {
    expect(ty, "the type of a memory", |ty| match ty {
        ExternType::Memory { limits, .. } => Some(limits),
        _ => None,
    })
}

/// Creates the type of a tag. Null if the argument is not the type of a function.
#[unsafe(no_mangle)]
extern "C" fn wasm_tagtype_new(func: Option<Box<ExternType>>) -> Option<Box<ExternType>> {
    let func = expect(func.as_deref(), "the type of a function", ExternType::as_func)?;
    let ty = TagType::new(func.clone());
    Some(Box::new(ExternType::of(wasm_jit::ExternType::Tag(ty))))
}

#[unsafe(no_mangle)]
extern "C" fn wasm_tagtype_functype(ty: Option<&ExternType>) -> Option<&ExternType> {
    expect(ty, "the type of a tag", |ty| match ty {
        ExternType::Tag(func) => Some(&**func),
        _ => None,
    })
}
