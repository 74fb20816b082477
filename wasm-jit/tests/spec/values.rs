//! Arguments and expected results of a script.

use wasm_jit::{AnyRef, AsContext, ExternRef, HeapType as Type, Val};
use wast::WastArg;
use wast::WastRet;
use wast::core::{AbstractHeapType, HeapType, NanPattern, V128Pattern, WastArgCore, WastRetCore};
use wast::token::{F32, F64};

/// An argument as a value, or the reason why it has none.
pub(crate) fn argument(argument: &WastArg<'_>) -> Result<Val, String> {
    let WastArg::Core(argument) = argument else { return Err(format!("argument {argument:?}")) };
    Ok(match argument {
        WastArgCore::I32(value) => Val::I32(*value),
        WastArgCore::I64(value) => Val::I64(*value),
        WastArgCore::F32(value) => Val::F32(value.bits),
        WastArgCore::F64(value) => Val::F64(value.bits),
        WastArgCore::RefNull(ty) => null(ty)?,
        WastArgCore::RefExtern(value) => Val::ExternRef(Some(ExternRef::new(*value))),
        WastArgCore::V128(value) => Val::V128(u128::from_le_bytes(value.to_le_bytes())),
        WastArgCore::RefHost(value) => AnyRef::from_extern(ExternRef::new(*value)).into(),
    })
}

/// The types of objects.
const OBJECTS: [AbstractHeapType; 6] = [
    AbstractHeapType::Any,
    AbstractHeapType::Eq,
    AbstractHeapType::I31,
    AbstractHeapType::Struct,
    AbstractHeapType::Array,
    AbstractHeapType::None,
];

fn null(ty: &HeapType<'_>) -> Result<Val, String> {
    match ty {
        HeapType::Abstract { shared: false, ty: AbstractHeapType::Func } | HeapType::Concrete(_) => {
            Ok(Val::FuncRef(None))
        }
        HeapType::Abstract { shared: false, ty: AbstractHeapType::Extern } => Ok(Val::ExternRef(None)),
        HeapType::Abstract { shared: false, ty: AbstractHeapType::Exn } => Ok(Val::ExnRef(None)),
        HeapType::Abstract { shared: false, ty } if OBJECTS.contains(ty) => Ok(Val::AnyRef(None)),
        other => Err(format!("null reference of {other:?}")),
    }
}

/// Compares results with the expected ones; returns a message if they differ.
pub(crate) fn check_results(
    store: impl AsContext,
    results: &[Val],
    expected: &[WastRet<'_>],
) -> Result<(), String> {
    if results.len() != expected.len() {
        return Err(format!("{} results instead of {}", results.len(), expected.len()));
    }
    for (at, (result, expected)) in results.iter().zip(expected).enumerate() {
        let WastRet::Core(expected) = expected else { return Err(format!("result {expected:?}")) };
        if !matches(&store, result, expected) {
            return Err(format!("result {at} is {} instead of {expected:?}", shown(result)));
        }
    }
    Ok(())
}

fn shown(value: &Val) -> String {
    match value {
        Val::F32(bits) => format!("f32 {bits:#010x} ({})", f32::from_bits(*bits)),
        Val::F64(bits) => format!("f64 {bits:#018x} ({})", f64::from_bits(*bits)),
        other => format!("{other:?}"),
    }
}

fn matches_f32(bits: u32, expected: &NanPattern<F32>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & 0x7fff_ffff == 0x7fc0_0000,
        NanPattern::ArithmeticNan => bits & 0x7fc0_0000 == 0x7fc0_0000,
        NanPattern::Value(expected) => bits == expected.bits,
    }
}

fn matches_f64(bits: u64, expected: &NanPattern<F64>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & 0x7fff_ffff_ffff_ffff == 0x7ff8_0000_0000_0000,
        NanPattern::ArithmeticNan => bits & 0x7ff8_0000_0000_0000 == 0x7ff8_0000_0000_0000,
        NanPattern::Value(expected) => bits == expected.bits,
    }
}

fn matches_vector(bits: u128, expected: &V128Pattern) -> bool {
    let lane = |at: usize, width: usize| (bits >> (at * width)) as u64;
    match expected {
        V128Pattern::I8x16(lanes) => (0..16).all(|at| lane(at, 8) as i8 == lanes[at]),
        V128Pattern::I16x8(lanes) => (0..8).all(|at| lane(at, 16) as i16 == lanes[at]),
        V128Pattern::I32x4(lanes) => (0..4).all(|at| lane(at, 32) as i32 == lanes[at]),
        V128Pattern::I64x2(lanes) => (0..2).all(|at| lane(at, 64) as i64 == lanes[at]),
        V128Pattern::F32x4(lanes) => (0..4).all(|at| matches_f32(lane(at, 32) as u32, &lanes[at])),
        V128Pattern::F64x2(lanes) => (0..2).all(|at| matches_f64(lane(at, 64), &lanes[at])),
    }
}

fn matches(store: &impl AsContext, value: &Val, expected: &WastRetCore<'_>) -> bool {
    match (value, expected) {
        (_, WastRetCore::Either(cases)) => cases.iter().any(|case| matches(store, value, case)),
        (Val::I32(value), WastRetCore::I32(expected)) => value == expected,
        (Val::I64(value), WastRetCore::I64(expected)) => value == expected,
        (Val::F32(bits), WastRetCore::F32(expected)) => matches_f32(*bits, expected),
        (Val::F64(bits), WastRetCore::F64(expected)) => matches_f64(*bits, expected),
        (Val::V128(bits), WastRetCore::V128(expected)) => matches_vector(*bits, expected),
        (Val::FuncRef(value), WastRetCore::RefNull(ty)) => {
            let is_concrete = matches!(ty, Some(HeapType::Concrete(_)));
            let types = [AbstractHeapType::Func, AbstractHeapType::NoFunc];
            value.is_none() && (is_concrete || is_null_of(ty.as_ref(), &types))
        }
        (Val::ExternRef(value), WastRetCore::RefNull(ty)) => {
            value.is_none()
                && is_null_of(ty.as_ref(), &[AbstractHeapType::Extern, AbstractHeapType::NoExtern])
        }
        (Val::ExnRef(value), WastRetCore::RefNull(ty)) => {
            value.is_none() && is_null_of(ty.as_ref(), &[AbstractHeapType::Exn, AbstractHeapType::NoExn])
        }
        (Val::FuncRef(value), WastRetCore::RefFunc(None)) => value.is_some(),
        (Val::ExternRef(Some(_)), WastRetCore::RefExtern(None)) => true,
        (Val::ExternRef(Some(value)), WastRetCore::RefExtern(Some(expected))) => {
            value.data().downcast_ref::<u32>() == Some(expected)
        }
        (Val::AnyRef(None), WastRetCore::RefNull(ty)) => {
            matches!(ty, Some(HeapType::Concrete(_))) || is_null_of(ty.as_ref(), &OBJECTS)
        }
        (Val::AnyRef(Some(value)), WastRetCore::RefHost(expected)) => {
            value.as_extern().and_then(|host| host.data().downcast_ref::<u32>()) == Some(expected)
        }
        (Val::AnyRef(Some(_)), WastRetCore::RefAny) => true,
        (Val::AnyRef(Some(value)), WastRetCore::RefEq) => value.ty(store).matches(&Type::Eq),
        (Val::AnyRef(Some(value)), WastRetCore::RefI31) => value.as_i31().is_some(),
        (Val::AnyRef(Some(value)), WastRetCore::RefStruct) => value.as_struct(store).is_some(),
        (Val::AnyRef(Some(value)), WastRetCore::RefArray) => value.as_array(store).is_some(),
        _ => false,
    }
}

/// Whether a null pattern, which may leave the type open, matches one of these types.
fn is_null_of(pattern: Option<&HeapType<'_>>, types: &[AbstractHeapType]) -> bool {
    match pattern {
        None => true,
        Some(HeapType::Abstract { shared: false, ty }) => types.contains(ty),
        Some(_) => false,
    }
}
