//! Vectors in frames: slots have room for them in every function that has any, wherever they come
//! from, and locals are zero at first.

use std::fmt::Write;

use wasm_jit::{Engine, Instance, Module, Store, Val};

use super::vectors::numbered;
use crate::{call0, instance};

/// Constants for the text format.
fn constant(bits: u128) -> String {
    format!("(v128.const i64x2 {} {})", bits as u64, (bits >> 64) as u64)
}

/// Each of these functions has vectors of one kind only, and no operator on vectors where its kind
/// is another. It leaves `$a` in `$first` and `$b` in `$second`, and returns 3, which was in a slot
/// next to theirs.
const KINDS: [(&str, &str); 7] = [
    (
        "results of calls",
        "(result i64) (call $three) (call $get_a) (call $get_b) (global.set $second) (global.set $first)",
    ),
    (
        "results of indirect calls",
        "(result i64) (call $three)
            (call_indirect (type $vector) (i32.const 0)) (call_indirect (type $vector) (i32.const 1))
            (global.set $second) (global.set $first)",
    ),
    (
        "globals",
        "(result i64) (call $three)
            (global.get $a) (call $nothing) (global.get $b) (call $nothing)
            (global.set $second) (global.set $first)",
    ),
    (
        "fields of exceptions",
        "(result i64) (call $three)
            (block $caught (result v128 v128)
                (try_table (catch $tag $caught) (call $throw))
                unreachable)
            (call $nothing) (global.set $second) (global.set $first)",
    ),
    (
        "parameters",
        "(param i64 v128 v128) (result i64) (call $nothing)
            (global.set $first (local.get 1)) (global.set $second (local.get 2)) (local.get 0)",
    ),
    (
        // They are zero.
        "locals",
        "(param i64) (result i64) (local v128 v128) (call $nothing)
            (call $set_both) (if (i64.eqz (local.get 0)) (then (global.set $first (local.get 1))))
            (call $nothing) (if (i64.eqz (local.get 0)) (then (global.set $first (local.get 2))))
            (local.get 0)",
    ),
    (
        "results of operators",
        "(result i64) (call $three)
            (v128.load (i32.const 0)) (call $nothing) (v128.load (i32.const 16)) (call $nothing)
            (global.set $second) (global.set $first)",
    ),
];

#[test]
fn slots_have_room_for_vectors_from_everywhere() {
    let (a, b) = (numbered(3), numbered(7));
    let mut text = format!(
        "(module
            (type $vector (func (result v128)))
            (memory 1)
            (global $a (mut v128) {a})
            (global $b (mut v128) {b})
            (global $first (export \"first\") (mut v128) (v128.const i64x2 0 0))
            (global $second (export \"second\") (mut v128) (v128.const i64x2 0 0))
            (tag $tag (param v128 v128))
            (table funcref (elem $get_a $get_b))
            (func $nothing)
            (func $three (result i64) (i64.const 3))
            (func $get_a (result v128) (global.get $a))
            (func $get_b (result v128) (global.get $b))
            (func $set_both (global.set $first (global.get $a)) (global.set $second (global.get $b)))
            (func $throw (throw $tag (global.get $a) (global.get $b)))
            (func (export \"store\")
                (v128.store (i32.const 0) (global.get $a)) (v128.store (i32.const 16) (global.get $b)))",
        a = constant(a),
        b = constant(b),
    );
    for (number, (name, body)) in KINDS.into_iter().enumerate() {
        let arguments = match name {
            "parameters" => "(i64.const 3) (global.get $a) (global.get $b)",
            "locals" => "(i64.const 3)",
            _ => "",
        };
        write!(
            text,
            "(func $kind{number} {body})
             (func (export \"{name}\") (result i64) (call $kind{number} {arguments}))"
        )
        .unwrap();
    }
    text.push(')');
    let (mut store, instance) = instance(&text);
    call0::<()>(&mut store, instance, "store").unwrap();
    for (name, _) in KINDS {
        for global in ["first", "second"] {
            let global = instance.get_global(&store, global).unwrap();
            global.set(&mut store, Val::V128(0)).unwrap();
        }
        assert_eq!(call0::<i64>(&mut store, instance, name).unwrap(), 3, "{name}");
        for (global, value) in [("first", a), ("second", b)] {
            let found = instance.get_global(&store, global).unwrap().get(&mut store).unwrap_v128();
            assert_eq!(found, value, "{name} {global}: {found:032x}");
        }
    }
}

/// The fields are collected on the stack before the exception is made, below slots that hold them.
#[test]
fn thrown_vectors_do_not_overwrite_slots() {
    let types = "v128 ".repeat(8);
    let gets: String =
        (0..8).map(|at| format!("(func $get{at} (result v128) {})", constant(numbered(at)))).collect();
    let calls: String = (0..8).map(|at| format!("(call $get{at})")).collect();
    let (mut store, instance) = instance(&format!(
        "(module (tag $tag (param {types})) {gets}
            (func $throw {calls} (throw $tag))
            (func (export \"run\") (result {types})
                (block $caught (result {types})
                    (try_table (catch $tag $caught) (call $throw))
                    unreachable)))"
    ));
    let mut results = vec![Val::I32(0); 8];
    instance.get_func(&store, "run").unwrap().call(&mut store, &[], &mut results).unwrap();
    for (at, result) in (0..).zip(results) {
        assert_eq!(result.unwrap_v128(), numbered(at), "{at}");
    }
}

/// Few locals are zeroed one by one, more by wide stores, many by a loop. The slots of the test
/// function were filled with ones before.
#[test]
fn locals_are_zero_at_first() {
    let mut text = String::from("(module (func $nothing) (func $ones (param v128)");
    const MOST: usize = 60;
    let list = |count: usize| "v128 ".repeat(count);
    write!(text, "(local {})", list(MOST)).unwrap();
    for local in 1..=MOST {
        write!(text, "(local.set {local} (local.get 0))").unwrap();
    }
    text.push_str("(call $nothing)");
    for local in 1..=MOST {
        write!(text, "(if (i32.eqz (v128.any_true (local.get {local}))) (then unreachable))").unwrap();
    }
    text.push(')');
    let counts = [1, 2, 3, 4, 5, 7, 12, 23, 24, 25, 40, MOST];
    for count in counts {
        for (kind, types) in [("vectors", "v128 "), ("mixed", "i64 v128 ")] {
            let or = |number: usize| match kind {
                "vectors" => format!("(local.get {number}) v128.or "),
                _ => format!(
                    "(local.get {}) v128.or (i64x2.splat (local.get {})) v128.or ",
                    2 * number,
                    2 * number - 1
                ),
            };
            // The parameter and an operand in a slot must not be zeroed.
            write!(
                text,
                "(func ${kind}{count} (param v128) (result v128) (local {})
                    (local.get 0) (call $nothing) {})
                 (func (export \"{kind} {count}\") (param v128) (result v128)
                    (call $ones (v128.const i64x2 -1 -1))
                    (call ${kind}{count} (local.get 0)))",
                types.repeat(count),
                (1..=count).map(or).collect::<String>(),
            )
            .unwrap();
        }
    }
    text.push(')');
    let (mut store, instance) = instance(&text);
    for count in counts {
        for kind in ["vectors", "mixed"] {
            let func = instance.get_typed_func::<u128, u128>(&mut store, &format!("{kind} {count}")).unwrap();
            assert_eq!(func.call(&mut store, numbered(6)).unwrap(), numbered(6), "{count} {kind}");
        }
    }
}

/// Constants after the code are shared only by equal ones.
#[test]
fn constants_that_are_equal_in_one_half_are_different() {
    let (mut store, instance) = instance(
        "(module (func (export \"run\") (param v128) (result v128 v128 v128 v128)
            (i64x2.add (local.get 0) (v128.const i64x2 1 2))
            (i64x2.add (local.get 0) (v128.const i64x2 1 3))
            (i64x2.add (local.get 0) (v128.const i64x2 4 2))
            (i64x2.add (local.get 0) (v128.const i64x2 1 2))))",
    );
    let run = instance.get_typed_func::<u128, (u128, u128, u128, u128)>(&mut store, "run").unwrap();
    let of = |low: u128, high: u128| high << 64 | low;
    assert_eq!(run.call(&mut store, 0).unwrap(), (of(1, 2), of(1, 3), of(4, 2), of(1, 2)));
}

/// The buffer of results has room for as many vectors as a function may have.
#[test]
fn a_function_may_have_a_thousand_vectors_as_results() {
    let types = "v128 ".repeat(1000);
    let values: String = (0..1000).map(|at| constant(numbered(at as u8) ^ at << 64)).collect();
    let sum = "i64x2.add ".repeat(999);
    let text = format!(
        "(module (func $all (result {types}) {values})
            (func (export \"all\") (result {types}) (call $all))
            (func (export \"sum\") (result v128) (call $all) {sum}))"
    );
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let value = |at: u128| numbered(at as u8) ^ at << 64;
    let mut results = vec![Val::I32(0); 1000];
    instance.get_func(&store, "all").unwrap().call(&mut store, &[], &mut results).unwrap();
    for (at, result) in results.iter().enumerate() {
        assert_eq!(result.unwrap_v128(), value(at as u128), "{at}");
    }
    let sum = (0..1000).map(value).fold((0_u64, 0_u64), |sum, value| {
        (sum.0.wrapping_add(value as u64), sum.1.wrapping_add((value >> 64) as u64))
    });
    let found: u128 = call0(&mut store, instance, "sum").unwrap();
    assert_eq!((found as u64, (found >> 64) as u64), sum);
}
