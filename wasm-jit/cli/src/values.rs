//! Arguments and results of a function called with `--invoke`, as text.

use wasm_jit::{HeapType, Val, ValType};
use wasm_jit_js_string::JsString;

/// Reads an argument: an integer in decimal, or in hexadecimal after `0x`, a float, or a string for
/// an `externref`.
pub(super) fn parse(ty: ValType, text: &str) -> Result<Val, String> {
    let invalid = |expected: &str| format!("`{text}`: expected {expected}");
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match ty {
        ValType::I32 => {
            let parsed = match hexadecimal {
                Some(digits) => u32::from_str_radix(digits, 16).map(u32::cast_signed),
                None => text.parse().or_else(|_| text.parse::<u32>().map(u32::cast_signed)),
            };
            parsed.map(Val::I32).map_err(|_| invalid("an integer of 32 bits"))
        }
        ValType::I64 => {
            let parsed = match hexadecimal {
                Some(digits) => u64::from_str_radix(digits, 16).map(u64::cast_signed),
                None => text.parse().or_else(|_| text.parse::<u64>().map(u64::cast_signed)),
            };
            parsed.map(Val::I64).map_err(|_| invalid("an integer of 64 bits"))
        }
        ValType::F32 => {
            text.parse::<f32>().map(|float| Val::F32(float.to_bits())).map_err(|_| invalid("a float"))
        }
        ValType::F64 => {
            text.parse::<f64>().map(|float| Val::F64(float.to_bits())).map_err(|_| invalid("a float"))
        }
        ValType::V128 => {
            let parsed = match hexadecimal {
                Some(digits) => u128::from_str_radix(digits, 16),
                None => text.parse(),
            };
            parsed.map(Val::V128).map_err(|_| invalid("an unsigned integer of 128 bits"))
        }
        ValType::Ref(ty) if ty.heap_type() == HeapType::Extern => Ok(JsString::from(text).into()),
        ValType::Ref(_) => Err(format!("`{text}`: references are not supported")),
    }
}

/// Writes a result as wasmtime does, and strings as they are.
pub(super) fn print(value: &Val) -> String {
    match value {
        Val::I32(integer) => integer.to_string(),
        Val::I64(integer) => integer.to_string(),
        Val::F32(bits) => f32::from_bits(*bits).to_string(),
        Val::F64(bits) => f64::from_bits(*bits).to_string(),
        Val::V128(bits) => bits.to_string(),
        Val::FuncRef(None) => "<null funcref>".to_owned(),
        Val::FuncRef(Some(_)) => "<funcref>".to_owned(),
        Val::ExternRef(None) => "<null externref>".to_owned(),
        Val::ExternRef(Some(value)) => {
            JsString::from_extern(value).map_or_else(|| "<externref>".to_owned(), JsString::to_string)
        }
        Val::ExnRef(None) => "<null exnref>".to_owned(),
        Val::ExnRef(Some(_)) => "<exnref>".to_owned(),
        Val::AnyRef(None) => "<null anyref>".to_owned(),
        Val::AnyRef(Some(_)) => "<anyref>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_back_as_they_were_typed() {
        #[track_caller]
        fn check(ty: ValType, text: &str, expected: &str) {
            let printed = match parse(ty, text) {
                Ok(value) => print(&value),
                Err(message) => message,
            };
            assert_eq!(printed, expected);
        }
        check(ValType::I32, "-5", "-5");
        check(ValType::I32, "0xffffffff", "-1");
        check(ValType::I32, "4294967295", "-1");
        check(ValType::I32, "4294967296", "`4294967296`: expected an integer of 32 bits");
        check(ValType::I64, "9223372036854775807", "9223372036854775807");
        check(ValType::I64, "0X10", "16");
        check(ValType::I64, "1.5", "`1.5`: expected an integer of 64 bits");
        check(ValType::F32, "0.1", "0.1");
        check(ValType::F64, "-1e300", &(-1e300_f64).to_string());
        check(ValType::F64, "nan", "NaN");
        check(ValType::F64, "x", "`x`: expected a float");
        check(ValType::EXTERNREF, "Zoë", "Zoë");
        check(ValType::FUNCREF, "0", "`0`: references are not supported");
    }
}
