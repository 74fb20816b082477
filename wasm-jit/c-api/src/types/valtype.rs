//! `wasm_valtype_t`, and the kinds of values.

use wasm_jit::{HeapType, RefType};

use crate::last_error::{failed, required};
use crate::vector::export_vectors;

/// Kinds of values: `wasm_valkind_t`. The last four have no names in `wasm.h`.
pub(crate) mod kind {
    pub(crate) const I32: u8 = 0;
    pub(crate) const I64: u8 = 1;
    pub(crate) const F32: u8 = 2;
    pub(crate) const F64: u8 = 3;
    /// 128-bit vectors: their values do not fit into a `wasm_val_t`.
    pub(crate) const V128: u8 = 4;
    pub(crate) const EXTERNREF: u8 = 128;
    pub(crate) const FUNCREF: u8 = 129;
    /// Structures, arrays, `i31` values, and converted `externref` values.
    pub(crate) const ANYREF: u8 = 130;
    /// Exceptions.
    pub(crate) const EXNREF: u8 = 131;

    /// Whether values of this kind are references.
    pub(crate) fn is_reference(kind: u8) -> bool {
        kind >= EXTERNREF
    }

    /// The kind of the values of a type.
    pub(crate) fn of(ty: wasm_jit::ValType) -> u8 {
        use wasm_jit::{HeapType, ValType};
        match ty {
            ValType::I32 => I32,
            ValType::I64 => I64,
            ValType::F32 => F32,
            ValType::F64 => F64,
            ValType::V128 => V128,
            ValType::Ref(reference) => match reference.heap_type().top() {
                HeapType::Func => FUNCREF,
                HeapType::Extern => EXTERNREF,
                HeapType::Exn => EXNREF,
                _ => ANYREF,
            },
        }
    }
}

/// `wasm_valtype_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValType(pub(crate) wasm_jit::ValType);

impl ValType {
    fn of_kind(kind: u8) -> Option<Self> {
        use wasm_jit::ValType;
        Some(Self(match kind {
            kind::I32 => ValType::I32,
            kind::I64 => ValType::I64,
            kind::F32 => ValType::F32,
            kind::F64 => ValType::F64,
            kind::V128 => ValType::V128,
            kind::EXTERNREF => ValType::EXTERNREF,
            kind::FUNCREF => ValType::FUNCREF,
            kind::ANYREF => ValType::Ref(RefType::new(true, HeapType::Any)),
            kind::EXNREF => ValType::EXNREF,
            _ => return None,
        }))
    }
}

export_vectors! {
    "valtype" Option<Box<crate::types::ValType>>;
}

/// Creates a type of values. Null for a kind that does not exist.
#[unsafe(no_mangle)]
extern "C" fn wasm_valtype_new(kind: u8) -> Option<Box<ValType>> {
    let ty = ValType::of_kind(kind).map(Box::new);
    if ty.is_none() {
        failed(format_args!("there is no kind {kind} of values"));
    }
    ty
}

#[unsafe(no_mangle)]
extern "C" fn wasm_valtype_delete(_: Option<Box<ValType>>) {}

#[unsafe(no_mangle)]
extern "C" fn wasm_valtype_copy(ty: Option<&ValType>) -> Option<Box<ValType>> {
    ty.copied().map(Box::new)
}

/// The kind of a type; for null, the kind of `i32`.
#[unsafe(no_mangle)]
extern "C" fn wasm_valtype_kind(ty: Option<&ValType>) -> u8 {
    required(ty, "a type of values").map_or(kind::I32, |ty| kind::of(ty.0))
}
