//! Operators on vectors whose code depends on what the compiler knows of an operand: a constant,
//! also one that a local holds, or bytes that are small.

use std::fmt::Write;

use wasm_jit::{Engine, Instance, Module, Store};

use super::vectors::numbered;

/// Indices of bytes in the reverse order, for a swizzle.
const REVERSED: u128 = u128::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// A constant in text form.
fn text_of(bits: u128) -> String {
    format!("(v128.const i64x2 {} {})", bits as u64, (bits >> 64) as u64)
}

fn swizzled(vector: u128, indices: u128) -> u128 {
    let bytes = vector.to_le_bytes();
    let byte = |index: u8| bytes.get(usize::from(index)).copied().unwrap_or(0);
    u128::from_le_bytes(indices.to_le_bytes().map(byte))
}

/// Functions of two vectors and an integer, and their results for `numbered(1)`, `numbered(9)` and
/// each of the integers 0 and 1.
fn check(functions: &[(&str, String, [u128; 2])]) {
    let mut text = String::from("(module ");
    for (name, body, _) in functions {
        write!(
            text,
            "(func (export \"{name}\") (param $x v128) (param $y v128) (param $n i32) (result v128)
                (local $c v128) (local $d v128) (local $sum v128) {body})\n"
        )
        .unwrap();
    }
    text.push(')');
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    for (name, _, expected) in functions {
        let func = instance.get_typed_func::<(u128, u128, i32), u128>(&mut store, name).unwrap();
        for (n, expected) in (0..).zip(expected) {
            let found = func.call(&mut store, (numbered(1), numbered(9), n)).unwrap();
            assert_eq!(found, *expected, "{name} {n}: {found:032x}, not {expected:032x}");
        }
    }
}

#[test]
fn selections_from_zero_are_half_of_it() {
    let (x, y) = (numbered(1), numbered(9));
    let zero = "(local.set $c (v128.const i64x2 0 0))";
    check(&[
        (
            "first",
            format!("{zero} (v128.bitselect (local.get $c) (local.get $x) (local.get $y))"),
            [x & !y; 2],
        ),
        (
            "second",
            format!("{zero} (v128.bitselect (local.get $x) (local.get $c) (local.get $y))"),
            [x & y; 2],
        ),
        (
            "no longer zero",
            format!(
                "{zero} (local.set $c (local.get $y)) (v128.bitselect (local.get $x) (local.get $c) (local.get $x))"
            ),
            [x | y & !x; 2],
        ),
    ]);
}

#[test]
fn shuffles_with_zero() {
    let (x, zero) = (numbered(1), "(local.set $c (v128.const i64x2 0 0))");
    let check_lanes = |lanes: [u8; 16]| {
        let list: String = lanes.iter().map(|lane| format!("{lane} ")).collect();
        let expected = |offset: u8| {
            swizzled(
                x,
                u128::from_le_bytes(lanes.map(|lane| if lane ^ offset < 16 { lane % 16 } else { 255 })),
            )
        };
        let shuffle =
            |a: &str, b: &str| format!("{zero} (i8x16.shuffle {list} (local.get {a}) (local.get {b}))");
        check(&[
            ("second", shuffle("$x", "$c"), [expected(0); 2]),
            ("first", shuffle("$c", "$x"), [expected(16); 2]),
        ]);
    };
    check_lanes(std::array::from_fn(|at| at as u8 + 4));
    check_lanes([4, 5, 6, 7, 16, 17, 18, 19, 0, 1, 2, 3, 20, 21, 22, 23]);
    check_lanes([31, 0, 30, 1, 29, 2, 28, 3, 27, 4, 26, 5, 25, 6, 24, 7]);
}

#[test]
fn a_local_holds_a_constant_until_it_is_set_or_may_be() {
    let (x, y) = (numbered(1), numbered(9));
    let set = format!("(local.set $c {})", text_of(REVERSED));
    let get = "(i8x16.swizzle (local.get $x) (local.get $c))";
    let of_constant = swizzled(x, REVERSED);
    let of_y = swizzled(x, y);
    assert_ne!(of_constant, of_y);
    check(&[
        ("set", format!("{set} {get}"), [of_constant; 2]),
        ("set again", format!("{set} (local.set $c (local.get $y)) {get}"), [of_y; 2]),
        (
            "copy",
            format!(
                "{set} (local.set $d (local.get $c)) (local.set $c (local.get $y))
                (i8x16.swizzle (local.get $x) (local.get $d))"
            ),
            [of_constant; 2],
        ),
        (
            "one branch",
            format!("{set} (if (local.get $n) (then (local.set $c (local.get $y)))) {get}"),
            [of_constant, of_y],
        ),
        (
            "other branch",
            format!("(local.set $c (local.get $y)) (if (local.get $n) (then) (else {set})) {get}"),
            [of_constant, of_y],
        ),
        (
            "left block",
            format!(
                "{set} (block (br_if 0 (local.get $n)) (local.set $c (local.get $y)) (br_if 0 (local.get $n))) {get}"
            ),
            [of_y, of_constant],
        ),
        (
            "loop",
            format!(
                "{set}
                (loop $again
                    (local.set $sum (i8x16.add (local.get $sum) {get}))
                    (local.set $c (local.get $y))
                    (br_if $again (i32.ge_s (local.tee $n (i32.sub (local.get $n) (i32.const 1))) (i32.const 0))))
                (local.get $sum)"
            ),
            [of_constant, bytes_added(of_constant, of_y)],
        ),
        (
            "loop that does not set it",
            format!(
                "{set}
                (loop $again
                    (local.set $sum (i8x16.add (local.get $sum) {get}))
                    (br_if $again (i32.ge_s (local.tee $n (i32.sub (local.get $n) (i32.const 1))) (i32.const 0))))
                (i8x16.add (local.get $sum) {get})"
            ),
            [bytes_added(of_constant, of_constant), bytes_added(bytes_added(of_constant, of_constant), of_constant)],
        ),
        (
            "way around such a loop",
            format!(
                "(local.set $c (local.get $y))
                (block (br_if 0 (local.get $n)) {set}
                    (loop $again
                        (local.set $sum (i8x16.add (local.get $sum) {get}))
                        (br_if $again (i32.ge_s (local.tee $n (i32.sub (local.get $n) (i32.const 1))) (i32.const 0)))))
                {get}"
            ),
            [of_constant, of_y],
        ),
    ]);
}

fn bytes_added(a: u128, b: u128) -> u128 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    u128::from_le_bytes(std::array::from_fn(|at| a[at].wrapping_add(b[at])))
}

#[test]
fn indices_of_a_swizzle_are_small_only_on_all_paths() {
    let (x, y) = (numbered(1), numbered(9));
    let masked = |mask: u8| format!("(v128.and (local.get $y) {})", text_of(u128::from_le_bytes([mask; 16])));
    let of = |indices: &str| format!("(i8x16.swizzle (local.get $x) {indices})");
    let expected = |mask: u8| swizzled(x, y & u128::from_le_bytes([mask; 16]));
    assert_ne!(expected(0x0f), expected(0x1f));
    let two_paths =
        format!("(block (result v128) (br_if 0 (local.get $y) (local.get $n)) drop {})", masked(0x0f));
    check(&[
        ("half", of(&masked(0x0f)), [expected(0x0f); 2]),
        ("more", of(&masked(0x1f)), [expected(0x1f); 2]),
        (
            "shifted",
            of("(i8x16.shr_u (local.get $y) (i32.const 4))"),
            [swizzled(x, u128::from_le_bytes(y.to_le_bytes().map(|byte| byte >> 4))); 2],
        ),
        (
            "shifted less",
            of("(i8x16.shr_u (local.get $y) (i32.const 2))"),
            [swizzled(x, u128::from_le_bytes(y.to_le_bytes().map(|byte| byte >> 2))); 2],
        ),
        ("local", of(&format!("(local.tee $c {})", masked(0x0f))), [expected(0x0f); 2]),
        ("two paths", of(&two_paths), [expected(0x0f), expected(0xff)]),
    ]);
}

/// Whether each lane of `a` is greater, as ones in the lane.
fn above(bits: u32, a: u128, b: u128) -> u128 {
    let most = (1_u128 << bits) - 1;
    let lanes = (0..128 / bits).map(|at| at * bits);
    lanes.filter(|at| (a >> at & most) > (b >> at & most)).fold(0, |all, at| all | most << at)
}

#[test]
fn unsigned_comparisons_with_anything() {
    let x = numbered(1);
    let splat = |byte: u8| u128::from_le_bytes([byte; 16]);
    let constants =
        [0, splat(0xff), splat(0x11), splat(0x7f), splat(0x80), x, x ^ 0xff << 40, splat(0xff) >> 64];
    for (lanes, bits) in [("i8x16", 8), ("i16x8", 16), ("i32x4", 32)] {
        for constant in constants {
            let constant_text = text_of(constant);
            let compare = |name: &str, a: &str, b: &str| format!("({lanes}.{name} {a} {b})");
            let get = "(local.get $x)";
            let held = format!("(local.set $c {constant_text})");
            let variable = "(v128.xor (local.get $c) (local.get $d))";
            check(&[
                ("gt", compare("gt_u", get, &constant_text), [above(bits, x, constant); 2]),
                ("lt", compare("lt_u", get, &constant_text), [above(bits, constant, x); 2]),
                ("gt reversed", compare("gt_u", &constant_text, get), [above(bits, constant, x); 2]),
                ("lt reversed", compare("lt_u", &constant_text, get), [above(bits, x, constant); 2]),
                (
                    "gt held",
                    held.clone() + &compare("gt_u", get, "(local.get $c)"),
                    [above(bits, x, constant); 2],
                ),
                (
                    "gt variable",
                    held.clone() + &compare("gt_u", get, variable),
                    [above(bits, x, constant); 2],
                ),
                ("lt variable", held + &compare("lt_u", get, variable), [above(bits, constant, x); 2]),
            ]);
        }
    }
}
