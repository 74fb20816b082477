//! Vectors across every boundary: calls, results, globals, exceptions, blocks, probes; accesses to
//! memory at its end; relaxed operators by both settings.

use std::fmt::Write;

use wasm_jit::{
    BoundsChecks, Caller, Config, Engine, Error, ExnRef, Func, FuncType, Global, GlobalType, Instance,
    Module, Mutability, Store, Tag, TagType, Trap, Val, ValType,
};

use crate::{call0, instance, with_host};

/// A vector that is different in each byte.
pub(crate) fn numbered(number: u8) -> u128 {
    u128::from_le_bytes(std::array::from_fn(|at| number.wrapping_mul(16).wrapping_add(at as u8)))
}

#[test]
fn vectors_are_arguments_and_results_of_any_number() {
    // Ten vectors between other values: two of them and a float are on the stack. Five results:
    // three are in memory.
    let mut text = String::from("(module (import \"host\" \"f\" (func $host ");
    let params = "(param v128 i32 v128 f64 v128 v128 i64 v128 v128 v128 v128 v128 v128)";
    let results = "(result v128 i32 v128 f64 v128 v128 v128)";
    write!(text, "{params} {results}))").unwrap();
    let arguments: String = (0..13).map(|at| format!("(local.get {at})")).collect();
    write!(
        text,
        "(type $ty (func {params} {results}))
         (table funcref (elem $own $host))
         (func $own {params} {results} (local v128 v128 v128)
            (local.set 14 (local.get 12)) (local.set 15 (local.get 11))
            (call $host {arguments})
            (local.set 13)
            (local.get 14) (local.set 13 (i8x16.add (local.get 13) (v128.const i64x2 0 0))))
         (func (export \"direct\") {params} {results} (call $own {arguments}))
         (func (export \"indirect\") (param $which i32) {params} {results}
            {} (call_indirect (type $ty) (local.get $which)))
         (func (export \"tail\") (param $which i32) {params} {results}
            {} (return_call_indirect (type $ty) (local.get $which)))
         (func (export \"own tail\") {params} {results} (return_call $own {arguments})))",
        (1..14).map(|at| format!("(local.get {at})")).collect::<String>(),
        (1..14).map(|at| format!("(local.get {at})")).collect::<String>(),
    )
    .unwrap();
    let v = numbered;
    type Params = (u128, i32, u128, f64, u128, u128, i64, u128, u128, u128, u128, u128, u128);
    type Results = (u128, i32, u128, f64, u128, u128, u128);
    let host = |a: u128,
                b: i32,
                c: u128,
                d: f64,
                e: u128,
                f: u128,
                g: i64,
                h: u128,
                i: u128,
                j: u128,
                k: u128,
                l: u128,
                m: u128|
     -> Results {
        let all = [a, c, e, f, h, i, j, k, l, m];
        assert_eq!(all, std::array::from_fn(|at| numbered(at as u8 + 1)));
        assert_eq!((b, d, g), (-5, 2.5, i64::MIN));
        (m, b - 1, l, d * 2.0, k, a, c)
    };
    let (mut store, instance) = with_host(&text, host);
    let arguments: Params = (v(1), -5, v(2), 2.5, v(3), v(4), i64::MIN, v(5), v(6), v(7), v(8), v(9), v(10));
    let expected: Results = (v(10), -6, v(9), 5.0, v(8), v(1), v(10));
    for name in ["direct", "own tail"] {
        let run = instance.get_typed_func::<Params, Results>(&mut store, name).unwrap();
        assert_eq!(run.call(&mut store, arguments).unwrap(), expected, "{name}");
    }
    // The same by values whose types are known at run time; the host itself returns its last one.
    let values = |results: &[Val]| -> Vec<u128> { results.iter().filter_map(Val::v128).collect() };
    for (name, which, last) in
        [("indirect", 0, v(10)), ("indirect", 1, v(2)), ("tail", 0, v(10)), ("tail", 1, v(2))]
    {
        let a = arguments;
        let params: Vec<Val> = [
            Val::I32(which),
            a.0.into(),
            a.1.into(),
            a.2.into(),
            a.3.into(),
            a.4.into(),
            a.5.into(),
            a.6.into(),
            a.7.into(),
            a.8.into(),
            a.9.into(),
            a.10.into(),
            a.11.into(),
            a.12.into(),
        ]
        .into();
        let mut results = vec![Val::I32(0); 7];
        let func = instance.get_func(&store, name).unwrap();
        func.call(&mut store, &params, &mut results).unwrap();
        assert_eq!(values(&results), [v(10), v(9), v(8), v(1), last], "{name} {which}");
        assert_eq!((results[1].unwrap_i32(), results[3].unwrap_f64()), (-6, 5.0));
    }
}

#[test]
fn host_functions_of_any_type_take_and_return_vectors() {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let ty = FuncType::new([ValType::I32, ValType::V128, ValType::I64], [ValType::V128, ValType::I32]);
    let func = Func::new(&mut store, ty, |_: Caller<'_, ()>, params: &[Val], results: &mut [Val]| {
        results[0] = Val::V128(params[1].unwrap_v128().rotate_left(params[0].unwrap_i32() as u32));
        results[1] = Val::I32(params[2].unwrap_i64() as i32);
        Ok(())
    })
    .unwrap();
    let mut results = [Val::I32(0), Val::I32(0)];
    let params = [Val::I32(64), Val::V128(numbered(3)), Val::I64(9)];
    func.call(&mut store, &params, &mut results).unwrap();
    assert_eq!((results[0].unwrap_v128(), results[1].unwrap_i32()), (numbered(3).rotate_left(64), 9));
    let typed = func.typed::<(i32, u128, i64), (u128, i32)>(&store).unwrap();
    assert_eq!(typed.call(&mut store, (8, numbered(1), 7)).unwrap(), (numbered(1).rotate_left(8), 7));
    assert!(func.typed::<(i32, u64, i64), (u128, i32)>(&store).is_err());
}

#[test]
fn globals_hold_vectors() {
    let text = "(module
        (import \"\" \"a\" (global $a (mut v128))) (import \"\" \"b\" (global $b v128))
        (global $before (mut i32) (i32.const 7))
        (global $own (export \"own\") (mut v128) (v128.const i64x2 1 2))
        (global $after (export \"after\") (mut i64) (i64.const 8))
        (global $copy (export \"copy\") v128 (global.get $b))
        (func (export \"run\") (result v128)
            (global.set $a (i64x2.add (global.get $a) (global.get $own)))
            (global.set $own (global.get $b))
            (global.set $before (i32.const -1)) (global.set $after (i64.const -1))
            (i64x2.add (global.get $own) (global.get $copy))))";
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let mut global = |mutability, value: u128| {
        Global::new(&mut store, GlobalType::new(ValType::V128, mutability), value.into()).unwrap()
    };
    let (a, b) = (global(Mutability::Var, 5 << 64 | 6), global(Mutability::Const, 1 << 65 | 3));
    let instance = Instance::new(&mut store, &module, &[a.into(), b.into()]).unwrap();
    assert_eq!(call0::<u128>(&mut store, instance, "run").unwrap(), 1 << 66 | 6);
    assert_eq!(a.get(&mut store).unwrap_v128(), 7 << 64 | 7);
    let own = instance.get_global(&store, "own").unwrap();
    assert_eq!(own.get(&mut store).unwrap_v128(), 1 << 65 | 3);
    own.set(&mut store, Val::V128(u128::MAX)).unwrap();
    assert_eq!(own.get(&mut store).unwrap_v128(), u128::MAX);
    assert_eq!(instance.get_global(&store, "after").unwrap().get(&mut store).unwrap_i64(), -1);
    assert!(own.set(&mut store, Val::I64(0)).is_err());
}

#[test]
fn exceptions_carry_vectors() {
    let text = "(module (import \"\" \"t\" (tag $t (param i32 v128 i64 v128)))
        (func $throw (param v128 v128)
            (throw $t (i32.const 1) (local.get 0) (i64.const 2) (local.get 1)))
        (func (export \"catch\") (param v128 v128) (result i32 v128 i64 v128)
            (block $caught (result i32 v128 i64 v128)
                (try_table (catch $t $caught) (call $throw (local.get 0) (local.get 1)))
                unreachable))
        (func (export \"kept\") (param v128) (result v128) (local v128)
            (local.set 1 (i8x16.neg (local.get 0)))
            (block $caught
                (try_table (catch_all $caught) (call $throw (local.get 0) (local.get 0))))
            (i8x16.add (local.get 0) (local.get 1)))
        (func (export \"throw\") (param v128 v128) (call $throw (local.get 0) (local.get 1))))";
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let types = [ValType::I32, ValType::V128, ValType::I64, ValType::V128];
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new(types, []))).unwrap();
    let instance = Instance::new(&mut store, &module, &[tag.into()]).unwrap();
    let (a, b) = (numbered(1), numbered(2));
    let catch = instance.get_typed_func::<(u128, u128), (i32, u128, i64, u128)>(&mut store, "catch").unwrap();
    assert_eq!(catch.call(&mut store, (a, b)).unwrap(), (1, a, 2, b));
    let kept = instance.get_typed_func::<u128, u128>(&mut store, "kept").unwrap();
    assert_eq!(kept.call(&mut store, a).unwrap(), 0);
    let throw = instance.get_typed_func::<(u128, u128), ()>(&mut store, "throw").unwrap();
    let Error::Exception { exception: thrown, .. } = throw.call(&mut store, (a, b)).unwrap_err() else {
        panic!()
    };
    let made = [Val::I32(1), a.into(), Val::I64(2), b.into()];
    let made = ExnRef::new(&mut store, &tag, &made).unwrap();
    for exception in [thrown, made] {
        let fields = exception.fields(&mut store);
        assert_eq!((fields[0].unwrap_i32(), fields[2].unwrap_i64()), (1, 2));
        assert_eq!((fields[1].unwrap_v128(), fields[3].unwrap_v128()), (a, b));
    }
}

#[test]
fn blocks_and_selections_pass_vectors() {
    let (mut store, instance) = instance(
        "(module (func (export \"run\") (param i32) (result v128) (local $sum v128) (local $i i32)
            (v128.const i32x4 1 1 1 1) (v128.const i32x4 7 7 7 7)
            (loop $again (param v128 v128) (result v128)
                (local.set $sum (i32x4.add (local.get $sum)))
                (if (param v128) (result v128) (i32.and (local.get $i) (i32.const 1))
                    (then (v128.const i32x4 2 2 2 2) (i32x4.add))
                    (else (v128.not)))
                (local.get $sum)
                (local.set $i (i32.add (local.get $i) (i32.const 1)))
                (br_if $again (i32.lt_s (local.get $i) (local.get 0)))
                (select (i32.gt_s (local.get $i) (i32.const 100)))
                (i32x4.add (local.get $sum)))))",
    );
    let run = instance.get_typed_func::<i32, u128>(&mut store, "run").unwrap();
    for count in 1..6 {
        let (mut first, mut second, mut sum) = (1_i32, 7_i32, 0_i32);
        for i in 0..count {
            sum += second;
            first = if i & 1 == 1 { first + 2 } else { !first };
            second = sum;
        }
        let lane = (second + sum) as u32;
        let expected = (0..4).fold(0, |all, at| all | u128::from(lane) << (32 * at));
        assert_eq!(run.call(&mut store, count).unwrap(), expected, "{count}: {first}");
    }
}

/// Accesses of vectors, each with its bytes.
const LOADS: [(&str, i32); 12] = [
    ("load", 16),
    ("load8x8_s", 8),
    ("load8x8_u", 8),
    ("load16x4_s", 8),
    ("load16x4_u", 8),
    ("load32x2_s", 8),
    ("load32x2_u", 8),
    ("load8_splat", 1),
    ("load16_splat", 2),
    ("load32_splat", 4),
    ("load64_splat", 8),
    ("load32_zero", 4),
];
const LANES: [(&str, i32); 4] = [("8", 1), ("16", 2), ("32", 4), ("64", 8)];

#[test]
fn accesses_at_the_end_of_memory_trap_as_a_whole() {
    let mut text = String::from(
        "(module (memory (export \"m\") 1 1)
        (func (export \"fill\") (memory.fill (i32.const 0) (i32.const 7) (i32.const 65536)))",
    );
    let mut accesses = Vec::new();
    let mut add = |name: String, bytes: i32, is_store: bool, lane: Option<i32>| {
        let vector = if is_store || lane.is_some() { "(v128.const i64x2 -1 -1)" } else { "" };
        let lane = lane.map_or(String::new(), |lane| lane.to_string());
        for (kind, offset) in [("near", ""), ("far", " offset=8")] {
            let result = if is_store { "" } else { "(result v128)" };
            write!(
                text,
                "(func (export \"{name} {lane} {kind}\") (param i32) {result}
                    (v128.{name}{offset} {lane} (local.get 0) {vector}))"
            )
            .unwrap();
            let last = 65536 - bytes - if kind == "far" { 8 } else { 0 };
            accesses.push((format!("{name} {lane} {kind}"), bytes, last, is_store));
        }
    };
    for (name, bytes) in LOADS {
        add(name.to_owned(), bytes, false, None);
    }
    add("load64_zero".to_owned(), 8, false, None);
    add("store".to_owned(), 16, true, None);
    for (bits, bytes) in LANES {
        for lane in [0, 16 / bytes - 1] {
            add(format!("load{bits}_lane"), bytes, false, Some(lane));
            add(format!("store{bits}_lane"), bytes, true, Some(lane));
        }
    }
    text.push(')');
    for (checks, hardens) in [
        (BoundsChecks::default(), false),
        (BoundsChecks::Instructions, false),
        (BoundsChecks::Instructions, true),
    ] {
        let engine = Engine::new(Config::new().bounds_checks(checks).harden_speculation(hardens)).unwrap();
        let module = Module::new(&engine, &text).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&store, "m").unwrap();
        for (name, bytes, last, is_store) in &accesses {
            call0::<()>(&mut store, instance, "fill").unwrap();
            let func = instance.get_func(&store, name).unwrap();
            let mut results = vec![Val::I32(0); func.ty(&store).results().len()];
            let mut call = |at: i32| func.call(&mut store, &[Val::I32(at)], &mut results);
            for beyond in [last + 1, last + bytes - 1, last + bytes, 65536, -1, i32::MAX] {
                // An access of one byte has its last address before.
                if beyond > *last || beyond < 0 {
                    let error = call(beyond).unwrap_err();
                    assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds), "{name} {beyond}");
                }
            }
            call(*last).unwrap();
            let (before, end) = memory.data(&store).split_at(65536 - *bytes as usize);
            assert!(before.iter().all(|byte| *byte == 7), "{name}");
            assert!(end.iter().all(|byte| *byte == if *is_store { 0xff } else { 7 }), "{name}");
        }
    }
}

#[test]
fn relaxed_operators_follow_the_setting() {
    let text = "(module
        (func (export \"swizzle\") (param v128 v128) (result v128)
            (i8x16.relaxed_swizzle (local.get 0) (local.get 1)))
        (func (export \"trunc\") (param v128 v128) (result v128)
            (i32x4.relaxed_trunc_f32x4_s (local.get 0)))
        (func (export \"min\") (param v128 v128) (result v128)
            (f32x4.relaxed_min (local.get 0) (local.get 1))))";
    let splat = |bits: u32| (0..4).fold(0, |all, at| all | u128::from(bits) << (32 * at));
    let nan = splat(f32::NAN.to_bits());
    // Index 16 is out of range, and 0 modulo 16; a NaN has no integer; the minimum with a NaN is
    // one.
    let cases = [
        ("swizzle", numbered(1), u128::MAX / 255 * 16, [0, u128::MAX / 255 * 16]),
        ("trunc", nan, 0, [0, splat(0x8000_0000)]),
        ("min", nan, splat(1.0_f32.to_bits()), [nan, splat(1.0_f32.to_bits())]),
    ];
    for (number, deterministic) in [(0, true), (1, false)] {
        let engine = Engine::new(Config::new().relaxed_simd_deterministic(deterministic)).unwrap();
        let module = Module::new(&engine, text).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        for (name, a, b, expected) in cases {
            let func = instance.get_typed_func::<(u128, u128), u128>(&mut store, name).unwrap();
            let found = func.call(&mut store, (a, b)).unwrap()
                & if name == "min" { splat(0x7fff_ffff) } else { u128::MAX };
            assert_eq!(found, expected[number], "{name} {deterministic}");
        }
    }
}

/// With the setting, results are those of the instruction: the upper bit of each lane selects it,
/// and the dot product takes the bytes of the second operand, of seven bits, for unsigned.
#[test]
fn relaxed_operators_are_one_instruction_each() {
    let text = "(module
        (func (export \"8\") (param v128 v128 v128) (result v128)
            (i8x16.relaxed_laneselect (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"16\") (param v128 v128 v128) (result v128)
            (i16x8.relaxed_laneselect (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"32\") (param v128 v128 v128) (result v128)
            (i32x4.relaxed_laneselect (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"64\") (param v128 v128 v128) (result v128)
            (i64x2.relaxed_laneselect (local.get 0) (local.get 1) (local.get 2)))
        (func (export \"dot\") (param v128 v128 v128) (result v128)
            (i16x8.relaxed_dot_i8x16_i7x16_s (local.get 0) (local.get 1)))
        (func (export \"dot add\") (param v128 v128 v128) (result v128)
            (i32x4.relaxed_dot_i8x16_i7x16_add_s (local.get 0) (local.get 1) (local.get 2))))";
    let of_bytes = |byte: &dyn Fn(usize) -> u8| u128::from_le_bytes(std::array::from_fn(byte));
    let (a, b) = (of_bytes(&|at| 200 + 3 * at as u8), of_bytes(&|at| 100 - 5 * at as u8));
    for deterministic in [true, false] {
        let engine = Engine::new(Config::new().relaxed_simd_deterministic(deterministic)).unwrap();
        let module = Module::new(&engine, text).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let mut call = |name: &str, c: u128| {
            let func = instance.get_typed_func::<(u128, u128, u128), u128>(&mut store, name).unwrap();
            func.call(&mut store, (a, b, c)).unwrap()
        };
        for bits in [8, 16, 32, 64] {
            // Whole lanes, which are selected in the same way by either setting.
            let lane = |at: u32| (u128::MAX >> (128 - bits)) << (at * bits);
            let odd = (0..128 / bits).filter(|at| at % 2 == 1).fold(0, |mask, at| mask | lane(at));
            for mask in [odd, !odd] {
                let expected = a & mask | b & !mask;
                assert_eq!(call(&bits.to_string(), mask), expected, "{bits} {deterministic}");
            }
            // The sign bit alone selects the lane, or only the bit.
            let sign = (0..128 / bits).fold(0, |mask, at| mask | 1_u128 << (at * bits + bits - 1));
            // There is no instruction for words.
            let selects = !deterministic && bits != 16;
            let mask = if selects { u128::MAX } else { sign };
            assert_eq!(call(&bits.to_string(), sign), a & mask | b & !mask, "{bits} {deterministic}");
        }
        // Neither saturates, so that there is one result only.
        let (left, right) = (a.to_le_bytes(), b.to_le_bytes());
        let product = |at: usize| i16::from(left[at] as i8) * i16::from(right[at]);
        let pair = |at: usize| product(2 * at) + product(2 * at + 1);
        let words = (0..8).fold(0, |all, at| all | u128::from(pair(at) as u16) << (16 * at));
        assert_eq!(call("dot", 0), words, "{deterministic}");
        let sum = |at: usize| i32::from(pair(2 * at)) + i32::from(pair(2 * at + 1)) + 1000;
        let sums = (0..4).fold(0, |all, at| all | u128::from(sum(at) as u32) << (32 * at));
        let thousands = (0..4).fold(0, |all, at| all | 1000 << (32 * at));
        assert_eq!(call("dot add", thousands), sums, "{deterministic}");
    }
}
