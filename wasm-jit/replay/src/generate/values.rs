//! The values of a trace and their types, as a module contains them.

use wasm_encoder::{AbstractHeapType, HeapType, Ieee32, Ieee64, InstructionSink, ValType};
use wasm_jit::wasmparser as wp;
use wasm_jit::wasmparser::AbstractHeapType as Abstract;

use super::program::Program;
use crate::value::{Type, Value};

/// Whether a value of a program has this type, which may exclude null.
pub(super) fn fits(value: Value, ty: wp::ValType, program: &Program) -> bool {
    let wp::ValType::Ref(reference) = ty else { return parsed_type(value.ty()) == ty };
    if value.is_null() {
        return null(reference, program) == Some(value);
    }
    let heap = reference.heap_type();
    match value {
        Value::Func(Some(function)) => match heap {
            wp::HeapType::Concrete(ty) => {
                ty.as_module_index().is_some_and(|ty| program.is_of_type(function, ty))
            }
            heap => heap == wp::HeapType::FUNC,
        },
        Value::Extern(Some(_)) => heap == wp::HeapType::EXTERN,
        Value::Any(Some(_)) => matches!(
            heap,
            wp::HeapType::Abstract { ty: Abstract::Any | Abstract::Eq | Abstract::I31, shared: false }
        ),
        _ => false,
    }
}

/// The null of this type in a program, if the type has one.
pub(super) fn null(ty: wp::RefType, program: &Program) -> Option<Value> {
    if !ty.is_nullable() {
        return None;
    }
    match ty.heap_type() {
        wp::HeapType::Abstract { ty, .. } => match ty {
            Abstract::Func | Abstract::NoFunc => Some(Value::Func(None)),
            Abstract::Extern | Abstract::NoExtern => Some(Value::Extern(None)),
            Abstract::Exn | Abstract::NoExn => Some(Value::Exn),
            Abstract::Any
            | Abstract::Eq
            | Abstract::I31
            | Abstract::Struct
            | Abstract::Array
            | Abstract::None => Some(Value::Any(None)),
            Abstract::Cont | Abstract::NoCont => None,
        },
        wp::HeapType::Concrete(index) | wp::HeapType::Exact(index) => {
            let is_function = program.types.get(index.as_module_index()? as usize)?.is_some();
            Some(if is_function { Value::Func(None) } else { Value::Any(None) })
        }
    }
}

pub(super) fn parsed_type(ty: Type) -> wp::ValType {
    match ty {
        Type::I32 => wp::ValType::I32,
        Type::I64 => wp::ValType::I64,
        Type::F32 => wp::ValType::F32,
        Type::F64 => wp::ValType::F64,
        Type::V128 => wp::ValType::V128,
        Type::Func => wp::ValType::FUNCREF,
        Type::Extern => wp::ValType::EXTERNREF,
        Type::Any => wp::ValType::Ref(wp::RefType::ANYREF),
        Type::Exn => wp::ValType::EXNREF,
    }
}

/// The type of a value.
pub(super) fn type_of(value: Value) -> ValType {
    encoded_type(value.ty())
}

fn encoded_type(ty: Type) -> ValType {
    match ty {
        Type::I32 => ValType::I32,
        Type::I64 => ValType::I64,
        Type::F32 => ValType::F32,
        Type::F64 => ValType::F64,
        Type::V128 => ValType::V128,
        Type::Func => ValType::FUNCREF,
        Type::Extern => ValType::EXTERNREF,
        Type::Any => ValType::Ref(wasm_encoder::RefType::ANYREF),
        Type::Exn => ValType::EXNREF,
    }
}

/// Converts these types, which can be in a trace.
pub(super) fn encoded(types: &[wp::ValType]) -> Vec<ValType> {
    let ty = |ty: &wp::ValType| Type::ALL.into_iter().find(|one| parsed_type(*one) == *ty);
    types.iter().filter_map(ty).map(encoded_type).collect()
}

/// Appends the instruction that produces this value. With `has_typed_nulls`, nulls are those of all
/// types of their kind, which needs an engine that knows the types `nofunc` and the like.
pub(super) fn constant(code: &mut InstructionSink<'_>, value: Value, has_typed_nulls: bool) {
    let null = |general: AbstractHeapType, none: AbstractHeapType| {
        let ty = if has_typed_nulls { none } else { general };
        HeapType::Abstract { shared: false, ty }
    };
    match value {
        Value::I32(value) => code.i32_const(value),
        Value::I64(value) => code.i64_const(value),
        Value::F32(bits) => code.f32_const(Ieee32::new(bits)),
        Value::F64(bits) => code.f64_const(Ieee64::new(bits)),
        Value::V128(bits) => code.v128_const(bits as i128),
        Value::Func(Some(index)) => code.ref_func(index),
        Value::Func(None) => code.ref_null(null(AbstractHeapType::Func, AbstractHeapType::NoFunc)),
        // A host value that any engine with garbage collection has.
        Value::Extern(Some(number)) => code.i32_const(number as i32).ref_i31().extern_convert_any(),
        Value::Extern(None) => code.ref_null(null(AbstractHeapType::Extern, AbstractHeapType::NoExtern)),
        Value::Any(Some(value)) => code.i32_const(value).ref_i31(),
        Value::Any(None) => code.ref_null(null(AbstractHeapType::Any, AbstractHeapType::None)),
        Value::Exn => code.ref_null(null(AbstractHeapType::Exn, AbstractHeapType::NoExn)),
    };
}
