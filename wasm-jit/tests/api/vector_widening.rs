//! Operators whose result has lanes of another width, or pairs of lanes, against a model: the
//! official suite gives many of them vectors of equal lanes only.

use std::fmt::Write;

use wasm_jit::{Engine, Instance, Module, Store};

/// The lanes of a vector, extended.
fn lanes(vector: u128, bits: u32, signed: bool) -> Vec<i128> {
    let lane = |at: u32| {
        let bare = vector >> (at * bits) & ((1 << bits) - 1);
        if signed && bare >> (bits - 1) == 1 { bare as i128 - (1 << bits) } else { bare as i128 }
    };
    (0..128 / bits).map(lane).collect()
}

/// The vector with these lanes, which wrap around.
fn vector(lanes: impl IntoIterator<Item = i128>, bits: u32) -> u128 {
    let lane = |lane: i128| lane as u128 & ((1 << bits) - 1);
    (0..).zip(lanes).fold(0, |all, (at, value)| all | lane(value) << (at * bits))
}

/// Their sums in pairs.
fn pairs(lanes: &[i128]) -> Vec<i128> {
    lanes.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect()
}

fn products(a: &[i128], b: &[i128]) -> Vec<i128> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

type Model = Box<dyn Fn(u128, u128) -> u128>;

/// The operators, with how many operands they have.
fn operators() -> Vec<(String, usize, Model)> {
    let mut all: Vec<(String, usize, Model)> = Vec::new();
    let mut add = |name: String, operands: usize, model: Model| all.push((name, operands, model));
    for bits in [8, 16, 32] {
        let (wide, count) = (2 * bits, 128 / bits);
        let (from, to) = (format!("i{bits}x{count}"), format!("i{wide}x{}", count / 2));
        for (sign, signed) in [("s", true), ("u", false)] {
            for (part, start) in [("low", 0), ("high", count as usize / 2)] {
                let half =
                    move |vector: u128| lanes(vector, bits, signed)[start..][..count as usize / 2].to_vec();
                let extend = move |a: u128, _: u128| vector(half(a), wide);
                add(format!("{to}.extend_{part}_{from}_{sign}"), 1, Box::new(extend));
                let multiply = move |a: u128, b: u128| vector(products(&half(a), &half(b)), wide);
                add(format!("{to}.extmul_{part}_{from}_{sign}"), 2, Box::new(multiply));
            }
            if bits < 32 {
                let sum = move |a: u128, _: u128| vector(pairs(&lanes(a, bits, signed)), wide);
                add(format!("{to}.extadd_pairwise_{from}_{sign}"), 1, Box::new(sum));
                let (least, most) =
                    if signed { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
                let narrow = move |a: u128, b: u128| {
                    let wide = [lanes(a, wide, true), lanes(b, wide, true)].concat();
                    vector(wide.into_iter().map(|lane| lane.clamp(least, most)), bits)
                };
                add(format!("{from}.narrow_{to}_{sign}"), 2, Box::new(narrow));
            }
        }
    }
    let dot = |bits: u32| {
        move |a: u128, b: u128| {
            vector(pairs(&products(&lanes(a, bits, true), &lanes(b, bits, true))), 2 * bits)
        }
    };
    add("i32x4.dot_i16x8_s".to_owned(), 2, Box::new(dot(16)));
    add("i16x8.relaxed_dot_i8x16_i7x16_s".to_owned(), 2, Box::new(dot(8)));
    let rounded = |a: u128, b: u128| {
        let products = products(&lanes(a, 16, true), &lanes(b, 16, true));
        vector(products.into_iter().map(|lane| ((lane + 0x4000) >> 15).clamp(-0x8000, 0x7fff)), 16)
    };
    add("i16x8.q15mulr_sat_s".to_owned(), 2, Box::new(rounded));
    let wrapped = |a: u128, b: u128| {
        let product = |(a, b): (&i128, &i128)| i128::from((*a as u64).wrapping_mul(*b as u64));
        vector(lanes(a, 64, false).iter().zip(&lanes(b, 64, false)).map(product), 64)
    };
    add("i64x2.mul".to_owned(), 2, Box::new(wrapped));
    all
}

#[test]
fn lanes_of_other_widths_are_those_of_the_model() {
    let operators = operators();
    let mut text = String::from("(module ");
    for (name, operands, _) in &operators {
        let operands = ["(local.get 0)", "(local.get 0) (local.get 1)"][operands - 1];
        writeln!(text, "(func (export \"{name}\") (param v128 v128) (result v128) ({name} {operands}))")
            .unwrap();
    }
    text.push(')');
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    // Different in each lane of any width; then all pairs of extremes.
    let mut vectors =
        vec![0x8001_fe7f_0280_ff03_7ffe_81fd_c040_5511, 0x1234_8765_9abc_0fed_f0e1_2d3c_4b5a_a697];
    let mut random = 0x2545_f491_4f6c_dd1d_u128;
    for _ in 0..30 {
        random = random.wrapping_mul(0xda94_2042_e4dd_58b5_da94_2042_e4dd_58b5).wrapping_add(1);
        vectors.push(random ^ random >> 64);
    }
    for extremes in [0x80_u128, 0x7f, 0xff, 0x8000, 0x7fff, 0x8000_0000, 0x7fff_ffff, 1 << 63] {
        vectors.push((0..2).fold(0, |all, at| all | extremes << (64 * at)));
        vectors.push((0..8).fold(0, |all, at| all | (extremes & 0xffff) << (16 * at)));
    }
    vectors.extend([0, u128::MAX]);
    for (name, _, model) in &operators {
        let func = instance.get_typed_func::<(u128, u128), u128>(&mut store, name).unwrap();
        for &a in &vectors {
            for &b in &vectors {
                let (found, expected) = (func.call(&mut store, (a, b)).unwrap(), model(a, b));
                assert_eq!(found, expected, "{name} {a:032x} {b:032x}: {found:032x}, not {expected:032x}");
            }
        }
    }
}
