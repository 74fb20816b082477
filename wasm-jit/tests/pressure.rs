//! Every operator under register pressure: all cache registers are taken, more operands wait on the
//! stack, and the operator's own operands come from every place that an operand can be in. The
//! result must be that of the same operator alone in a function.

use std::fmt::Write as _;

use wasm_jit::{BoundsChecks, Config, Engine, Instance, Module, Store, Val};

/// An operator with its immediates, the types of its operands, and of its result if it has one.
struct Operator {
    /// A constant before the operands.
    constant: &'static str,
    text: String,
    operands: Vec<&'static str>,
    result: Option<&'static str>,
}

/// The location of an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// A register of its own.
    Own,
    /// A local that is not register-cached, of which a register has a copy.
    Copy,
    /// A local that is in its slot only.
    Slot,
    /// A register-cached local.
    Cached,
    /// Memory; base and address take a register each.
    Memory,
}

const FROM: [From; 5] = [From::Own, From::Copy, From::Slot, From::Cached, From::Memory];

/// The instruction after the operator, which changes the code for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Nothing,
    /// Sets a register-cached local whose old value is still an operand.
    SetCached,
    /// Adds to the result.
    Add,
    /// Uses the result as a condition.
    Condition,
}

fn operators() -> Vec<Operator> {
    let mut all = Vec::new();
    let mut add = |text: String, operands: &[&'static str], result: Option<&'static str>| {
        all.push(Operator { constant: "", text, operands: operands.to_vec(), result });
    };
    for ty in ["i32", "i64"] {
        for what in "add sub mul and or xor shl shr_s shr_u rotl rotr div_s div_u rem_s rem_u".split(' ') {
            add(format!("{ty}.{what}"), &[ty, ty], Some(ty));
        }
        for what in "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u".split(' ') {
            add(format!("{ty}.{what}"), &[ty, ty], Some("i32"));
        }
        for what in "clz ctz popcnt extend8_s extend16_s".split(' ') {
            add(format!("{ty}.{what}"), &[ty], Some(ty));
        }
        add(format!("{ty}.eqz"), &[ty], Some("i32"));
        for float in ["f32", "f64"] {
            for what in ["trunc", "trunc_sat"] {
                for sign in ["s", "u"] {
                    add(format!("{ty}.{what}_{float}_{sign}"), &[float], Some(ty));
                }
            }
            add(format!("{float}.convert_{ty}_s"), &[ty], Some(float));
            add(format!("{float}.convert_{ty}_u"), &[ty], Some(float));
        }
    }
    for ty in ["f32", "f64"] {
        for what in "add sub mul div min max copysign".split(' ') {
            add(format!("{ty}.{what}"), &[ty, ty], Some(ty));
        }
        for what in "eq ne lt gt le ge".split(' ') {
            add(format!("{ty}.{what}"), &[ty, ty], Some("i32"));
        }
        for what in "abs neg sqrt ceil floor trunc nearest".split(' ') {
            add(format!("{ty}.{what}"), &[ty], Some(ty));
        }
    }
    for (what, of, to) in [
        ("i32.wrap_i64", "i64", "i32"),
        ("i64.extend_i32_s", "i32", "i64"),
        ("i64.extend_i32_u", "i32", "i64"),
        ("f32.demote_f64", "f64", "f32"),
        ("f64.promote_f32", "f32", "f64"),
        ("i32.reinterpret_f32", "f32", "i32"),
        ("i64.reinterpret_f64", "f64", "i64"),
        ("f32.reinterpret_i32", "i32", "f32"),
        ("f64.reinterpret_i64", "i64", "f64"),
    ] {
        add(what.to_owned(), &[of], Some(to));
    }
    for ty in ["i32", "i64", "f32", "f64", "v128"] {
        add(format!("select (result {ty})"), &[ty, ty, "i32"], Some(ty));
        add(format!("global.set $own-{ty}"), &[ty], None);
        add(format!("global.set $imported-{ty}"), &[ty], None);
        add(format!("call ${ty}"), &[ty, ty], Some(ty));
        add(format!("call_indirect (type ${ty})"), &[ty, ty, "i32"], Some(ty));
    }
    vectors(&mut add);
    for memory in ["", " $other"] {
        for offset in ["", " offset=8", " offset=0x90000000"] {
            let at = format!("{memory}{offset}");
            for ty in ["i32", "i64", "f32", "f64"] {
                add(format!("{ty}.load{at}"), &["i32"], Some(ty));
                add(format!("{ty}.store{at}"), &["i32", ty], None);
            }
            add(format!("v128.load{at}"), &["i32"], Some("v128"));
            add(format!("v128.store{at}"), &["i32", "v128"], None);
            add(format!("v128.load8_splat{at}"), &["i32"], Some("v128"));
            add(format!("v128.load16_lane{at} 3"), &["i32", "v128"], Some("v128"));
            add(format!("v128.store64_lane{at} 1"), &["i32", "v128"], None);
            for part in ["i32.load8_s", "i64.load16_u", "i64.load32_s"] {
                add(format!("{part}{at}"), &["i32"], Some(&part[..3]));
            }
            for (ty, parts) in [("i32", &["", "8", "16"][..]), ("i64", &["", "8", "16", "32"])] {
                for part in parts {
                    let sign = if part.is_empty() { "" } else { "_u" };
                    add(format!("{ty}.atomic.load{part}{sign}{at}"), &["i32"], Some(ty));
                    add(format!("{ty}.atomic.store{part}{at}"), &["i32", ty], None);
                    for what in ["add", "sub", "and", "or", "xor", "xchg"] {
                        add(format!("{ty}.atomic.rmw{part}.{what}{sign}{at}"), &["i32", ty], Some(ty));
                    }
                    add(format!("{ty}.atomic.rmw{part}.cmpxchg{sign}{at}"), &["i32", ty, ty], Some(ty));
                }
            }
            add(format!("memory.atomic.notify{at}"), &["i32", "i32"], Some("i32"));
        }
        add(format!("memory.fill{memory}"), &["i32", "i32", "i32"], None);
        add(format!("memory.copy{memory}{}", if memory.is_empty() { "" } else { " 0" }), &["i32"; 3], None);
        add(format!("memory.grow{memory}"), &["i32"], Some("i32"));
    }
    for at in [" $wide", " $wide offset=8", " $wide offset=0x90000000", " $wide offset=0xfffffffffffffff0"] {
        add(format!("i32.load{at}"), &["i64"], Some("i32"));
        add(format!("f64.load{at}"), &["i64"], Some("f64"));
        add(format!("i64.store{at}"), &["i64", "i64"], None);
        add(format!("v128.load16_lane{at} 3"), &["i64", "v128"], Some("v128"));
        for rmw in ["rmw.add", "rmw.and", "rmw8.xchg_u"] {
            add(format!("i64.atomic.{rmw}{at}"), &["i64", "i64"], Some("i64"));
        }
        add(format!("i64.atomic.rmw16.cmpxchg_u{at}"), &["i64", "i64", "i64"], Some("i64"));
        add(format!("memory.atomic.notify{at}"), &["i64", "i32"], Some("i32"));
    }
    add("memory.copy $wide 0".to_owned(), &["i64", "i32", "i32"], None);
    add("memory.fill $wide".to_owned(), &["i64", "i32", "i64"], None);
    add("i32.load $bytes offset=8".to_owned(), &["i32"], Some("i32"));
    add("i64.atomic.rmw.or $bytes".to_owned(), &["i32", "i64"], Some("i64"));
    add("call_indirect $wide-table (type $i32)".to_owned(), &["i32", "i32", "i64"], Some("i32"));
    add("call_indirect (type $i32)".to_owned(), &["i32"; 3], Some("i32"));
    for what in "add sub mul and or xor eq lt_s ge_u".split(' ') {
        let result = if what.contains(['e', 't']) { "i32" } else { "i64" };
        let (text, operands) = (format!("i64.{what}"), vec!["i64"]);
        // A constant that needs a register.
        all.push(Operator { constant: "(i64.const 0x1_0000_0007)", text, operands, result: Some(result) });
    }
    all
}

/// Those that access a memory or a table. The code of the others does not depend on the settings
/// for bounds checks.
fn checked_operators() -> Vec<Operator> {
    let mut all = operators();
    let accesses = ["load", "store", "memory.", ".atomic.", "call_indirect"];
    all.retain(|operator| accesses.iter().any(|access| operator.text.contains(access)));
    all
}

/// Those of 128-bit arithmetic, followed by an operator that uses both results.
fn wide_operators() -> Vec<Operator> {
    let mut all = Vec::new();
    for (what, operands) in [("add128", 4), ("sub128", 4), ("mul_wide_s", 2), ("mul_wide_u", 2)] {
        // The high half is subtracted from the low one, or assigned to a register-cached local.
        let set = "(local.set $cached-result) (i64.sub (local.get $cached-result))";
        for after in ["i64.sub", set] {
            let (text, operands) = (format!("i64.{what} {after}"), vec!["i64"; operands]);
            all.push(Operator { constant: "", text, operands, result: Some("i64") });
        }
    }
    // A constant as a high half, small or large, and as a factor.
    for (constant, what) in [
        ("(i64.const -2)", "add128"),
        ("(i64.const 0x1_0000_0007)", "sub128"),
        ("(i64.const 0x1_0000_0007)", "mul_wide_s"),
    ] {
        let operands = vec!["i64"; if what == "mul_wide_s" { 1 } else { 3 }];
        let text = format!("i64.{what} i64.sub");
        all.push(Operator { constant, text, operands, result: Some("i64") });
    }
    all
}

/// The operators on vectors.
fn vectors(add: &mut impl FnMut(String, &[&'static str], Option<&'static str>)) {
    const V: &str = "v128";
    let integers = ["i8x16", "i16x8", "i32x4", "i64x2"];
    let mut each = |shapes: &[&str], names: &str, operands: &[&'static str], result: &'static str| {
        for shape in shapes {
            for name in names.split(' ') {
                add(format!("{shape}.{}", name.replace('@', " ")), operands, Some(result));
            }
        }
    };
    each(&["v128"], "not", &[V], V);
    each(&["v128"], "and andnot or xor", &[V, V], V);
    each(&["v128"], "bitselect", &[V, V, V], V);
    each(&["v128"], "any_true", &[V], "i32");
    each(&integers, "all_true bitmask", &[V], "i32");
    each(&integers, "abs neg", &[V], V);
    each(&integers, "add sub eq ne lt_s gt_s le_s ge_s", &[V, V], V);
    each(&integers, "shl shr_s shr_u", &[V, "i32"], V);
    each(&integers[..3], "min_s min_u max_s max_u lt_u gt_u le_u ge_u", &[V, V], V);
    each(&integers[1..], "mul", &[V, V], V);
    each(&integers[..2], "add_sat_s add_sat_u sub_sat_s sub_sat_u avgr_u", &[V, V], V);
    each(&["i8x16"], "popcnt", &[V], V);
    each(&["i8x16"], "swizzle narrow_i16x8_s relaxed_swizzle", &[V, V], V);
    each(&["i16x8"], "q15mulr_sat_s relaxed_dot_i8x16_i7x16_s relaxed_q15mulr_s", &[V, V], V);
    each(&["i16x8"], "extadd_pairwise_i8x16_s extadd_pairwise_i8x16_u extend_high_i8x16_s", &[V], V);
    each(&["i16x8"], "extmul_low_i8x16_s extmul_high_i8x16_u", &[V, V], V);
    each(&["i32x4"], "dot_i16x8_s extmul_low_i16x8_s extmul_high_i16x8_u", &[V, V], V);
    each(&["i32x4"], "extadd_pairwise_i16x8_u trunc_sat_f32x4_s trunc_sat_f32x4_u", &[V], V);
    each(&["i32x4"], "trunc_sat_f64x2_s_zero trunc_sat_f64x2_u_zero", &[V], V);
    each(&["i32x4"], "relaxed_dot_i8x16_i7x16_add_s relaxed_laneselect", &[V, V, V], V);
    each(&["i64x2"], "extmul_low_i32x4_s extmul_high_i32x4_u", &[V, V], V);
    each(&["f32x4", "f64x2"], "add sub mul div min max pmin pmax eq lt ge relaxed_max", &[V, V], V);
    each(&["f32x4", "f64x2"], "abs neg sqrt ceil nearest", &[V], V);
    each(&["f32x4", "f64x2"], "relaxed_madd relaxed_nmadd", &[V, V, V], V);
    each(&["f32x4"], "convert_i32x4_u demote_f64x2_zero", &[V], V);
    each(&["f64x2"], "convert_low_i32x4_u promote_low_f32x4", &[V], V);
    let lanes = [
        ("i8x16", "i32"),
        ("i16x8", "i32"),
        ("i32x4", "i32"),
        ("i64x2", "i64"),
        ("f32x4", "f32"),
        ("f64x2", "f64"),
    ];
    for (shape, lane) in lanes {
        each(&[shape], "splat", &[lane], V);
        each(&[shape], "replace_lane@1 replace_lane@0", &[V, lane], V);
        let sign = if lane == "i32" && shape != "i32x4" { "_s" } else { "" };
        each(&[shape], &format!("extract_lane{sign}@1 extract_lane{sign}@0"), &[V], lane);
    }
    for shuffle in [
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15",
        "3 3 2 1 0 1 2 3 4 5 6 7 15 14 13 12",
        "4 5 6 7 0 1 2 3 12 13 14 15 8 9 10 11",
        "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
        "16 0 17 1 18 2 19 3 20 4 21 5 22 6 23 7",
        "31 0 30 1 29 2 28 3 27 4 26 5 25 6 24 7",
    ] {
        each(&["i8x16"], &format!("shuffle@{}", shuffle.replace(' ', "@")), &[V, V], V);
    }
}

/// An operand named `$a` to `$d`.
fn operand(name: char, ty: &str, from: From) -> String {
    match from {
        From::Own if ty == "v128" => format!("(v128.not (v128.not (local.get ${name})))"),
        From::Own if ty.starts_with('f') => format!("({ty}.neg ({ty}.neg (local.get ${name})))"),
        From::Own => format!("({ty}.sub (local.get ${name}) ({ty}.const 0))"),
        From::Copy => format!("(local.get $copy-{name})"),
        From::Slot => format!("(local.get $slot-{name})"),
        From::Cached => format!("(local.get $cached-{name})"),
        From::Memory => format!("({ty}.load $operands offset={} {ADDRESS})", place(name)),
    }
}

/// 0, in a register of its own.
const ADDRESS: &str = "(i32.wrap_i64 (i64.sub (local.get $int-1) (i64.const 0)))";

/// The address of an operand in memory.
fn place(name: char) -> u32 {
    16 * (u32::from(name) - u32::from('a'))
}

const NAMES: [char; 4] = ['a', 'b', 'c', 'd'];

/// The operator under register pressure.
fn pressed(operator: &Operator, index: usize, from: &[From], after: After) -> String {
    let Operator { constant, text, operands, result } = operator;
    let result_ty = result.unwrap_or("i32");
    let mut params = String::new();
    let mut locals = format!("(local $cached-result {result_ty}) (local $result {result_ty})");
    let mut first = String::new();
    let mut copies = String::new();
    // Accesses in a loop that emit no code: they make these locals register-cached.
    let mut uses = String::new();
    let mut use_often = |name: &str| {
        let _ = write!(uses, "(local.set {name} (local.get {name}))");
    };
    for (name, ty) in NAMES.iter().zip(operands) {
        let _ = write!(params, "(param ${name} {ty})");
        let _ =
            write!(locals, "(local $copy-{name} {ty}) (local $slot-{name} {ty}) (local $cached-{name} {ty})");
        let _ = write!(first, "(local.set $slot-{name} (local.get ${name}))");
        let _ = write!(first, "(local.set $cached-{name} (local.get ${name}))");
        let at = place(*name);
        let _ = write!(first, "({ty}.store $operands offset={at} (i32.const 0) (local.get ${name}))");
        let own = operand(*name, ty, From::Own);
        let _ = write!(copies, "(local.set $copy-{name} {own})");
        use_often(&format!("$cached-{name}"));
    }
    use_often("$cached-result");
    for at in 0..8 {
        let _ = write!(locals, "(local $int-{at} i64) (local $float-{at} f64)");
        use_often(&format!("$int-{at}"));
        use_often(&format!("$float-{at}"));
    }
    let waiting: String = (1..=5)
        .map(|at| {
            format!("(i64.sub (local.get $int-{at}) (i64.const {at})) (f64.sub (f64.const {at}) (local.get $float-{at}))")
        })
        .collect();
    let fail = "(then unreachable)";
    let checks: String = (1..=5)
        .rev()
        .map(|at| {
            format!(
                "(if (i32.eqz (f64.eq (f64.const {at}))) {fail}) (if (i64.ne (i64.const -{at})) {fail})\n    "
            )
        })
        .collect();
    let values: String = NAMES
        .iter()
        .zip(operands)
        .zip(from)
        .map(|((name, ty), from)| operand(*name, ty, *from) + " ")
        .collect();
    let (before, behind) = match (after, result) {
        (_, None) => (String::new(), String::new()),
        (After::Nothing, Some(_)) => (String::new(), "(local.set $result)".to_owned()),
        (After::SetCached, Some("v128")) => (
            "(local.get $cached-result)".to_owned(),
            format!(
                "(local.set $cached-result) (if (v128.any_true) {fail}) (local.set $result (local.get $cached-result))"
            ),
        ),
        (After::Add, Some("v128")) => {
            ("(i8x16.neg (local.get $cached-result))".to_owned(), "i8x16.add (local.set $result)".to_owned())
        }
        (After::SetCached, Some(ty)) => (
            "(local.get $cached-result)".to_owned(),
            format!(
                "(local.set $cached-result) (if ({ty}.ne ({ty}.const 0)) {fail}) (local.set $result (local.get $cached-result))"
            ),
        ),
        (After::Add, Some(ty)) if ty.starts_with('f') => {
            (format!("({ty}.neg ({ty}.const 0))"), format!("{ty}.add (local.set $result)"))
        }
        (After::Add, Some(ty)) => (
            format!("({ty}.sub (local.get $cached-result) ({ty}.const 0))"),
            format!("{ty}.add (local.set $result)"),
        ),
        (After::Condition, Some(_)) => {
            (String::new(), "(if (then (local.set $result (i32.const 1))))".to_owned())
        }
    };
    format!(
        "(func (export \"{index}\") {params} (result {result_ty}) {locals}\n  {first}(loop {uses})\n  {waiting}\n  {copies}\n  \
         {before} {constant} {values} {text} {behind}\n  {checks} (local.get $result))\n",
    )
}

/// The operator alone.
fn alone(operator: &Operator) -> String {
    let Operator { constant, text, operands, result } = operator;
    let params: String =
        NAMES.iter().zip(operands).map(|(name, ty)| format!("(param ${name} {ty})")).collect();
    let values: String = NAMES.iter().zip(operands).map(|(name, _)| format!("(local.get ${name})")).collect();
    let (result, last) = match result {
        Some(ty) => (*ty, ""),
        None => ("i32", "(i32.const 0)"),
    };
    format!(
        "(func (export \"alone\") {params} (result {result}) (local $cached-result {result})\n  \
         {constant} {values} {text} {last})\n"
    )
}

fn module(operator: &Operator) -> (String, Vec<(Vec<From>, After)>) {
    let mut text = String::from(
        "(module (memory (export \"memory\") 1 2) (memory $other 1 2 shared) (memory $operands 1) \
         (memory $wide i64 1 2 shared) (memory $bytes 1000 (pagesize 1)) \
         (table funcref (elem $f64 $i32 $i64 $f32 $v128)) (table $wide-table i64 funcref (elem $i32 $i32))\n",
    );
    for ty in ["i32", "i64", "f32", "f64", "v128"] {
        let _ = write!(
            text,
            "(type ${ty} (func (param {ty} {ty}) (result {ty})))
            (import \"host\" \"{ty}\" (global $imported-{ty} (mut {ty})))
            "
        );
    }
    // Imports must come first.
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_by_key(|line| !line.contains("(import"));
    let head = lines.iter().position(|line| line.contains("(module")).expect("it is there");
    let head = lines.remove(head).to_owned();
    let (open, memories) = head.split_at("(module".len());
    let mut out = format!("{open}\n{}\n{memories}\n", lines.join("\n"));
    for ty in ["i32", "i64", "f32", "f64", "v128"] {
        let zero = if ty == "v128" { "i64x2 0 0" } else { "0" };
        let _ = write!(
            out,
            "(global $own-{ty} (export \"own-{ty}\") (mut {ty}) ({ty}.const {zero}))
            (func ${ty} (type ${ty}) (local.get 1))\n"
        );
    }
    out.push_str(
        "(func (export \"reset\") (memory.fill (i32.const 0) (i32.const 7) (i32.const 100))\n\
         (memory.fill $other (i32.const 0) (i32.const 9) (i32.const 100))\n\
         (memory.fill $wide (i64.const 0) (i32.const 5) (i64.const 100))\n\
         (memory.fill $bytes (i32.const 0) (i32.const 3) (i32.const 100)))\n",
    );
    out.push_str(&alone(operator));
    let mut cases = Vec::new();
    let count = operator.operands.len();
    for combination in 0..FROM.len().pow(count as u32) {
        let from: Vec<From> =
            (0..count).map(|at| FROM[combination / FROM.len().pow(at as u32) % FROM.len()]).collect();
        for after in [After::Nothing, After::SetCached, After::Add, After::Condition] {
            let fits = match after {
                After::Nothing => true,
                After::SetCached | After::Add => operator.result.is_some(),
                After::Condition => operator.result == Some("i32"),
            };
            if fits {
                out.push_str(&pressed(operator, cases.len(), &from, after));
                cases.push((from.clone(), after));
            }
        }
    }
    out.push(')');
    (out, cases)
}

/// Arguments, most of which never trap.
fn arguments(operator: &Operator) -> Vec<Vec<Val>> {
    let of = |ty: &str, number: i64, bits: f64| match ty {
        "i32" => Val::I32(number as i32),
        "i64" => Val::I64(number),
        "f32" => Val::F32((bits as f32).to_bits()),
        // Floats of both widths, and an integer.
        "v128" => Val::V128(
            u128::from(number as u64) << 64
                | u128::from((bits as f32).to_bits()) << 32
                | u128::from(bits.to_bits() >> 32),
        ),
        _ => Val::F64(bits.to_bits()),
    };
    let sets: [[(i64, f64); 4]; 6] = [
        [(16, 2.5), (7, -1.5), (1, 0.5), (5, 1.5)],
        [(24, -0.0), (i64::from_le_bytes([7; 8]), 0.0), (3, 1e10), (-9, 2.0)],
        [(32, 3e9), (9, -7.0), (0, 1.0), (8, 0.0)],
        [(i64::MIN, f64::NAN), (-1, 4.0), (2, -0.0), (i64::MAX, 3.0)],
        [(40, -1e30), (0, f64::INFINITY), (40, 2.0), (-1, 1.0)],
        // The sum of the first and the third has a carry.
        [(-1, 1.0), (-1, 2.0), (1, 3.0), (3, 4.0)],
    ];
    sets.iter()
        .map(|set| {
            operator.operands.iter().zip(set).map(|(ty, (number, bits))| of(ty, *number, *bits)).collect()
        })
        .collect()
}

/// A value as text; all NaNs are equal.
fn shown(value: &Val) -> String {
    match value {
        Val::F32(bits) if f32::from_bits(*bits).is_nan() => "nan".to_owned(),
        Val::F64(bits) if f64::from_bits(*bits).is_nan() => "nan".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_operator_has_registers_enough() {
    check_operators(Config::new().bounds_checks(BoundsChecks::Reservation), &operators());
}

#[test]
fn wide_arithmetic_has_registers_enough() {
    check_operators(&Config::new(), &wide_operators());
}

#[test]
fn operators_that_check_bounds_have_registers_enough() {
    check_operators(Config::new().bounds_checks(BoundsChecks::Instructions), &checked_operators());
}

#[test]
fn operators_that_mask_indices_have_registers_enough() {
    let config = &mut Config::new();
    config.bounds_checks(BoundsChecks::Instructions).harden_speculation(true);
    check_operators(config, &checked_operators());
}

fn check_operators(config: &Config, operators: &[Operator]) {
    let engine = Engine::new(config).unwrap();
    for operator in operators {
        let (text, cases) = module(operator);
        let module = Module::new(&engine, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut store = Store::new(&engine, ());
        let imports: Vec<wasm_jit::Extern> = module
            .imports()
            .map(|import| {
                let wasm_jit::ExternType::Global(ty) = import.ty() else {
                    panic!("only globals are imported")
                };
                let zero = match import.name() {
                    "i32" => Val::I32(0),
                    "i64" => Val::I64(0),
                    "f32" => Val::F32(0),
                    "v128" => Val::V128(0),
                    _ => Val::F64(0),
                };
                wasm_jit::Global::new(&mut store, *ty, zero).unwrap().into()
            })
            .collect();
        let instance = Instance::new(&mut store, &module, &imports).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let mut call = |name: &str, arguments: &[Val]| {
            let reset = instance.get_typed_func::<(), ()>(&mut store, "reset").unwrap();
            reset.call(&mut store, ()).unwrap();
            let func = instance.get_func(&mut store, name).unwrap();
            let mut results = [Val::I32(0)];
            let outcome = match func.call(&mut store, arguments, &mut results) {
                Ok(()) => Ok(shown(&results[0])),
                Err(wasm_jit::Error::Trap { trap, .. }) => Err(trap.to_string()),
                Err(other) => Err(other.to_string()),
            };
            (outcome, memory.data(&store)[..128].to_vec())
        };
        for arguments in arguments(operator) {
            if operator.text.starts_with("memory.grow") {
                continue;
            }
            let (outcome, bytes) = call("alone", &arguments);
            for (index, (from, after)) in cases.iter().enumerate() {
                let (mut expected, (found, found_bytes)) =
                    (outcome.clone(), call(&index.to_string(), &arguments));
                if *after == After::Condition
                    && let Ok(value) = &mut expected
                {
                    *value = format!("I32({})", i32::from(value != "I32(0)"));
                }
                let from: Vec<usize> = from.iter().map(|from| *from as usize).collect();
                let what = format!("{} of {from:?}, {}: {arguments:?}", operator.text, *after as usize);
                assert_eq!(found, expected, "{what}");
                assert_eq!(found_bytes, bytes, "{what}");
            }
        }
    }
}
