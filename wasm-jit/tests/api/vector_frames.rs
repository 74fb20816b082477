//! Vectors in frames: slots have room for them in every function that has any, wherever they come
//! from, and locals are zero at first.

use std::fmt::Write;

use wasm_jit::{Engine, Instance, Module, Store};

use super::vectors::numbered;
use crate::{call0, instance};

/// Constants for the text format.
fn constant(bits: u128) -> String {
    format!("(v128.const i64x2 {} {})", bits as u64, (bits >> 64) as u64)
}

/// What each function has of vectors is of one kind only, and is live in slots across calls.
#[test]
fn slots_have_room_for_vectors_from_everywhere() {
    let text = format!(
        "(module
            (type $vector (func (result v128)))
            (type $two (func (param v128 v128)))
            (global $a v128 {a})
            (global $b (mut v128) {b})
            (global $sum (mut v128) (v128.const i64x2 0 0))
            (global $order (mut i64) (i64.const 0))
            (tag $tag (param i64 v128 v128))
            (table funcref (elem $first $second))
            (func $first (result v128) (global.get $a))
            (func $second (result v128) (global.get $b))
            ;; 2 * left + right, so that neither their order nor one of their halves is lost.
            (func $both (param $left v128) (param $right v128)
                (global.set $sum (i8x16.add (i8x16.add (local.get $left) (local.get $left)) (local.get $right))))
            (func $note (param i64) (global.set $order (i64.add (i64.shl (global.get $order) (i64.const 8)) (local.get 0))))
            (func $nothing)
            (func $clear (result v128)
                (global.get $sum) (global.set $sum (v128.const i64x2 0 0)))
            (func $throw (throw $tag (i64.const 5) (global.get $a) (global.get $b)))

            (func $calls (local i64 i64)
                (local.set 0 (i64.const 1)) (local.set 1 (i64.const 2))
                (i64.const 3)
                (call $both (call $first) (call $second))
                (call $note)
                (call $note (local.get 1))
                (call $note (local.get 0)))
            (func $indirect_calls (local i64)
                (local.set 0 (i64.const 1))
                (i64.const 3) (i64.const 2)
                (call_indirect (type $vector) (i32.const 0))
                (call_indirect (type $vector) (i32.const 1))
                (call $both)
                (call $note) (call $note)
                (call $note (local.get 0)))
            (func $globals (local i64)
                (local.set 0 (i64.const 1))
                (i64.const 3) (i64.const 2)
                (global.get $a) (call $nothing) (global.get $b) (call $nothing)
                (call $both)
                (call $note) (call $note)
                (call $note (local.get 0)))
            (func $catches (local i64)
                (local.set 0 (i64.const 1))
                (i64.const 3) (i64.const 2)
                (block $caught (result i64 v128 v128)
                    (try_table (catch $tag $caught) (call $throw))
                    unreachable)
                (call $nothing)
                (call $both)
                (drop)
                (call $note) (call $note)
                (call $note (local.get 0)))
            (func $parameters (param i64 v128 i64 v128 i64)
                (local.get 1) (call $nothing) (local.get 3) (call $nothing)
                (call $both)
                (call $note (local.get 4))
                (call $note (local.get 2))
                (call $note (local.get 0)))
            (func (export \"calls\") (result v128) (call $calls) (call $clear))
            (func (export \"indirect calls\") (result v128) (call $indirect_calls) (call $clear))
            (func (export \"globals\") (result v128) (call $globals) (call $clear))
            (func (export \"catches\") (result v128) (call $catches) (call $clear))
            (func (export \"parameters\") (result v128)
                (call $parameters (i64.const 1) (global.get $a) (i64.const 2) (global.get $b) (i64.const 3))
                (call $clear))
            (func (export \"order\") (result i64)
                (global.get $order) (global.set $order (i64.const 0))))",
        a = constant(numbered(3)),
        b = constant(numbered(7)),
    );
    let (mut store, instance) = instance(&text);
    let (a, b) = (numbered(3).to_le_bytes(), numbered(7).to_le_bytes());
    let expected: [u8; 16] = std::array::from_fn(|at| a[at].wrapping_add(a[at]).wrapping_add(b[at]));
    for name in ["calls", "indirect calls", "globals", "catches", "parameters"] {
        let found: u128 = call0(&mut store, instance, name).unwrap();
        assert_eq!(found.to_le_bytes(), expected, "{name}");
        let order: i64 = call0(&mut store, instance, "order").unwrap();
        // The numbers on the stack are noted from the top.
        let notes = if matches!(name, "calls" | "parameters") { 0x03_02_01 } else { 0x02_03_01 };
        assert_eq!(order, notes, "{name}: {order:x}");
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
    let mut results = vec![wasm_jit::Val::I32(0); 1000];
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
