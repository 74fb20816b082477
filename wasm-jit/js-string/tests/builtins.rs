//! Edge cases of each function, with the results and traps that the proposal's overview says.

mod support;

use support::{Program, units_of};
use wasm_jit::{AnyRef, Engine, Error, ExternRef, I31, Linker, Module, Store, Trap, Val};
use wasm_jit_js_string::{JsString, add_to_linker, define_constants};

const NULL: Val = Val::ExternRef(None);
const NO_ARRAY: Val = Val::AnyRef(None);
/// A surrogate pair, U+1F600, and its halves.
const PAIR: [u16; 2] = [0xd83d, 0xde00];
const HIGH: u16 = PAIR[0];
const LOW: u16 = PAIR[1];

fn string(text: &str) -> Val {
    JsString::from(text).into()
}

fn units(units: &[u16]) -> Val {
    JsString::from(units).into()
}

fn other() -> Val {
    ExternRef::new("a value of the host, and no JsString".to_owned()).into()
}

/// Calls a function that returns an integer.
#[track_caller]
fn integer(name: &str, arguments: &[Val], expected: i32) {
    let result = Program::new().call(name, arguments).unwrap();
    assert_eq!(result.unwrap_i32(), expected, "{name}({arguments:?})");
}

/// Calls a function that returns a string.
#[track_caller]
fn returns(name: &str, arguments: &[Val], expected: &[u16]) {
    let result = Program::new().call(name, arguments).unwrap();
    assert_eq!(units_of(&result), expected, "{name}({arguments:?})");
}

/// Calls a function that traps, in a program with one frame.
#[track_caller]
fn traps(name: &str, arguments: &[Val], expected: Trap) {
    let error = Program::new().call(name, arguments).unwrap_err();
    assert_eq!(error.trap(), Some(expected), "{name}({arguments:?}): {error}");
    assert_eq!(error.backtrace().unwrap().frames().len(), 1, "{error}");
}

#[test]
fn types_are_those_of_the_proposal() {
    let link = |types: &str, import: &str| {
        let engine = Engine::default();
        let text = format!(r#"(module {types} (import "wasm:js-string" {import}))"#);
        let module = Module::new(&engine, text).unwrap();
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker).unwrap();
        linker.instantiate(&mut Store::new(&engine, ()), &module).map(|_| ())
    };
    let array = "(type $array (array (mut i16)))";
    let import = r#""fromCharCodeArray" (func (param (ref null $array) i32 i32) (result (ref extern)))"#;
    link(array, import).unwrap();
    for (types, import) in [
        ("", r#""length" (func (param externref) (result i64))"#),
        ("", r#""length" (func (param (ref extern)) (result i32))"#),
        ("", r#""concat" (func (param externref externref) (result externref))"#),
        ("(type $array (array i16))", import),
        ("(type $array (array (mut i8)))", import),
        ("(type $array (sub (array (mut i16))))", import),
        ("(rec (type $array (array (mut i16))) (type (func)))", import),
    ] {
        let error = link(types, import).unwrap_err();
        assert!(matches!(error, Error::IncompatibleImport { .. }), "{types} {import}: {error}");
    }
    let error = link("", r#""lengths" (func (param externref) (result i32))"#).unwrap_err();
    assert!(matches!(error, Error::UnknownImport { .. }), "{error}");
}

#[test]
fn strings_are_told_from_null_and_other_values() {
    let object: Val = AnyRef::from(I31::wrapping(1)).to_extern().into();
    for (value, expected) in [(string(""), 1), (string("x"), 1), (NULL, 0), (other(), 0), (object, 0)] {
        integer("test", std::slice::from_ref(&value), expected);
        match (expected, value.is_null()) {
            (1, _) => {
                let result = Program::new().call("cast", std::slice::from_ref(&value)).unwrap();
                assert!(result.unwrap_extern_ref().unwrap().same(value.unwrap_extern_ref().unwrap()));
            }
            (_, true) => traps("cast", &[value], Trap::NullReference),
            (_, false) => traps("cast", &[value], Trap::CastFailure),
        }
    }
}

#[test]
fn arguments_that_are_no_strings_trap() {
    let zero = Val::I32(0);
    for (value, trap) in [(NULL, Trap::NullReference), (other(), Trap::CastFailure)] {
        traps("charCodeAt", &[value.clone(), zero.clone()], trap);
        traps("codePointAt", &[value.clone(), zero.clone()], trap);
        traps("length", std::slice::from_ref(&value), trap);
        traps("substring", &[value.clone(), zero.clone(), zero.clone()], trap);
        for name in ["concat", "compare"] {
            traps(name, &[value.clone(), string("x")], trap);
            traps(name, &[string("x"), value.clone()], trap);
        }
        let mut program = Program::new();
        let array = program.array(&[]);
        let error = program.call("intoCharCodeArray", &[value, array.into(), zero.clone()]).unwrap_err();
        assert_eq!(error.trap(), Some(trap));
    }
    // Only two nulls, or null and a string, can be compared for equality.
    integer("equals", &[NULL, NULL], 1);
    integer("equals", &[NULL, string("")], 0);
    integer("equals", &[string(""), NULL], 0);
    traps("equals", &[other(), NULL], Trap::CastFailure);
    traps("equals", &[string(""), other()], Trap::CastFailure);
    traps("fromCharCodeArray", &[NO_ARRAY, zero.clone(), zero.clone()], Trap::NullReference);
    traps("intoCharCodeArray", &[string(""), NO_ARRAY, zero], Trap::NullReference);
}

#[test]
fn code_units_are_numbers_of_16_bits() {
    returns("fromCharCode", &[Val::I32(0x41)], &[0x41]);
    returns("fromCharCode", &[Val::I32(0x1_0041)], &[0x41]);
    returns("fromCharCode", &[Val::I32(-1)], &[0xffff]);
    returns("fromCharCode", &[Val::I32(0xdc00)], &[0xdc00]);
    let text = units(&[0xffff, HIGH, LOW]);
    integer("charCodeAt", &[text.clone(), Val::I32(0)], 0xffff);
    integer("charCodeAt", &[text.clone(), Val::I32(2)], LOW.into());
    for index in [3, -1, i32::MIN, i32::MAX] {
        traps("charCodeAt", &[text.clone(), Val::I32(index)], Trap::StringOutOfBounds);
        traps("codePointAt", &[text.clone(), Val::I32(index)], Trap::StringOutOfBounds);
    }
    traps("charCodeAt", &[string(""), Val::I32(0)], Trap::StringOutOfBounds);
    integer("length", &[text], 3);
    integer("length", &[string("")], 0);
}

#[test]
fn code_points_are_pairs_of_surrogates_or_single_units() {
    returns("fromCodePoint", &[Val::I32(0x1f600)], &PAIR);
    returns("fromCodePoint", &[Val::I32(0xffff)], &[0xffff]);
    returns("fromCodePoint", &[Val::I32(0x1_0000)], &[0xd800, 0xdc00]);
    returns("fromCodePoint", &[Val::I32(0x10_ffff)], &[0xdbff, 0xdfff]);
    returns("fromCodePoint", &[Val::I32(0xd800)], &[0xd800]);
    for none in [0x11_0000, -1, i32::MIN] {
        traps("fromCodePoint", &[Val::I32(none)], Trap::InvalidCodePoint);
    }
    let at = |text: &[u16], index, expected| {
        integer("codePointAt", &[units(text), Val::I32(index)], expected);
    };
    at(&PAIR, 0, 0x1f600);
    at(&PAIR, 1, LOW.into());
    at(&[HIGH], 0, HIGH.into());
    at(&[HIGH, HIGH, LOW], 0, HIGH.into());
    at(&[HIGH, HIGH, LOW], 1, 0x1f600);
    at(&[HIGH, 0x41], 0, HIGH.into());
    at(&[LOW, HIGH], 0, LOW.into());
}

#[test]
fn substrings_are_clamped_at_the_end_and_empty_without_order() {
    let text = units(&[0x41, HIGH, LOW, 0x42]);
    let part = |start, end, expected: &[u16]| {
        returns("substring", &[text.clone(), Val::I32(start), Val::I32(end)], expected);
    };
    part(0, 4, &[0x41, HIGH, LOW, 0x42]);
    part(0, -1, &[0x41, HIGH, LOW, 0x42]);
    part(1, 2, &[HIGH]);
    part(2, 2, &[]);
    part(3, 1, &[]);
    part(-1, 2, &[]);
    part(4, 5, &[]);
    part(5, 6, &[]);
    part(i32::MIN, -1, &[]);
    returns("substring", &[string(""), Val::I32(0), Val::I32(0)], &[]);
}

#[test]
fn strings_are_concatenated_and_compared_by_code_units() {
    returns("concat", &[units(&[HIGH]), units(&[LOW])], &PAIR);
    returns("concat", &[string(""), string("a")], &[0x61]);
    returns("concat", &[string("a"), string("")], &[0x61]);
    returns("concat", &[string(""), string("")], &[]);
    integer("equals", &[string("ab"), string("ab")], 1);
    integer("equals", &[string("ab"), string("a")], 0);
    let order = |first: &[u16], second: &[u16], expected| {
        integer("compare", &[units(first), units(second)], expected);
    };
    order(&[], &[], 0);
    order(&[], &[0], -1);
    order(&[0x61, 0x62], &[0x61], 1);
    order(&[0x62], &[0x61, 0x62], 1);
    // By code points it would be the other way round.
    order(&PAIR, &[0xe000], -1);
    order(&[0xe000], &PAIR, 1);
    order(&PAIR, &PAIR, 0);
}

#[test]
fn arrays_are_read_and_written_within_their_bounds() {
    let mut program = Program::new();
    let array = program.array(&[0x61, HIGH, 0xffff]);
    let mut read = |start, end| {
        let arguments = [array.clone().into(), Val::I32(start), Val::I32(end)];
        program.call("fromCharCodeArray", &arguments).map(|result| units_of(&result)).map_err(|e| e.trap())
    };
    let beyond = Err(Some(Trap::ArrayOutOfBounds));
    assert_eq!(read(0, 3), Ok(vec![0x61, HIGH, 0xffff]));
    assert_eq!(read(1, 2), Ok(vec![HIGH]));
    assert_eq!(read(3, 3), Ok(vec![]));
    for (start, end) in [(0, 4), (4, 4), (2, 1), (-1, 3), (-1, -1), (0, -1), (4, 3)] {
        assert_eq!(read(start, end), beyond, "{start} {end}");
    }

    let array = program.array(&[1, 2, 3, 4]);
    let mut write = |text: &[u16], start| {
        let arguments = [units(text), array.clone().into(), Val::I32(start)];
        program.call("intoCharCodeArray", &arguments).map(|n| n.unwrap_i32()).map_err(|e| e.trap().unwrap())
    };
    let beyond = Err(Trap::ArrayOutOfBounds);
    assert_eq!(write(&PAIR, 1), Ok(2));
    assert_eq!(write(&[], 4), Ok(0));
    assert_eq!(write(&[7], 4), beyond);
    assert_eq!(write(&[], 5), beyond);
    assert_eq!(write(&[7], -1), beyond);
    assert_eq!(write(&[7, 7], 3), beyond, "nothing is written");
    assert_eq!(write(&[7; 5], 0), beyond);
    assert_eq!(program.units(&array), [1, HIGH, LOW, 4]);
}

#[test]
fn constants_are_immutable_globals_named_by_their_text() {
    let engine = Engine::default();
    let link = |import: &str| {
        let module = Module::new(&engine, format!("(module {import})")).unwrap();
        let (mut linker, mut store) = (Linker::new(&engine), Store::new(&engine, ()));
        define_constants(&mut linker, &mut store, &module, "'").unwrap();
        let instance = linker.instantiate(&mut store, &module)?;
        let values = ["a", "b"].map(|name| {
            let global = instance.get_global(&store, name).unwrap();
            String::from_utf16(&units_of(&global.get(&mut store))).unwrap()
        });
        Ok::<_, Error>(values)
    };
    // Two imports of one name are one constant.
    let text = r#"(global (export "a") (import "'" "Z\c3\b6e \f0\9f\98\80") (ref extern))
        (import "'" "Z\c3\b6e \f0\9f\98\80" (global externref))
        (global (export "b") (import "'" "") externref)"#;
    assert_eq!(link(text).unwrap(), ["Zöe 😀", ""]);
    for import in [r#"(import "'" "x" (global (mut externref)))"#, r#"(import "'" "x" (global i32))"#] {
        let error = link(import).unwrap_err();
        assert!(matches!(error, Error::IncompatibleImport { .. }), "{import}: {error}");
    }
    for import in [r#"(import "'" "x" (func))"#, r#"(import "\"" "x" (global externref))"#] {
        let error = link(import).unwrap_err();
        assert!(matches!(error, Error::UnknownImport { .. }), "{import}: {error}");
    }
}

#[test]
fn modules_share_constants_and_definitions_of_the_embedder_stay() {
    let engine = Engine::default();
    let module =
        Module::new(&engine, r#"(module (global (export "x") (import "s" "x") externref))"#).unwrap();
    let (mut linker, mut store) = (Linker::new(&engine), Store::new(&engine, ()));
    for _ in 0..2 {
        define_constants(&mut linker, &mut store, &module, "s").unwrap();
    }
    let other =
        Module::new(&engine, r#"(module (global (export "x") externref (ref.null extern)))"#).unwrap();
    let mut linker = Linker::new(&engine);
    let instance = linker.instantiate(&mut store, &other).unwrap();
    linker.instance(&store, "s", instance).unwrap();
    define_constants(&mut linker, &mut store, &module, "s").unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    assert!(instance.get_global(&store, "x").unwrap().get(&mut store).is_null());
}

#[test]
fn text_is_converted_and_shown() {
    let text = JsString::from("Zöe 😀");
    assert_eq!(text.units(), [0x5a, 0xf6, 0x65, 0x20, 0xd83d, 0xde00]);
    assert_eq!((text.to_string(), format!("{text:?}")), ("Zöe 😀".into(), "\"Zöe 😀\"".into()));
    let lone = JsString::from(vec![0x61, LOW, HIGH]);
    assert_eq!(lone.to_string(), "a\u{fffd}\u{fffd}");
    assert!(JsString::from(&PAIR[..]) < JsString::from("\u{e000}"));
    assert!(JsString::from_extern(&ExternRef::new(7)).is_none());
}
