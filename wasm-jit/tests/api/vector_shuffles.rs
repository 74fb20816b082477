//! Shuffles and swizzles of constants against a model of single bytes: the compiler has an
//! instruction for each of many patterns.

use std::fmt::Write;

use wasm_jit::{Engine, Instance, Module, Store};

use super::vectors::numbered;

type Lanes = [u8; 16];

/// What the operands of a shuffle are.
#[derive(Clone, Copy, Debug)]
enum Operands {
    Different,
    Same,
    /// The second one is a constant.
    Constant,
    /// Neither is a local.
    Own,
}

const CONSTANT: u128 = 0x1f2e_3d4c_5b6a_7988_9786_a5b4_c3d2_e1f0;

/// All patterns that are one instruction, and others.
fn patterns() -> Vec<Lanes> {
    let mut all = Vec::new();
    for size in [1, 2, 4, 8] {
        for start in [0, 8] {
            let lane = |at: usize| start + 16 * (at / size % 2) + at / (2 * size) * size + at % size;
            all.push(std::array::from_fn(|at| lane(at) as u8));
        }
    }
    for by in 1..16 {
        all.push(std::array::from_fn(|at| by + at as u8));
    }
    for words in [0b1000_0010_u32, 0b0101_0101, 0b1111_0000, 0b0000_0001, 0b0111_1111] {
        all.push(std::array::from_fn(|at| at as u8 + if words >> (at / 2) & 1 == 1 { 16 } else { 0 }));
    }
    // Doublewords: of the first operand, of the second one, and of both, in halves.
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 0, 3]] {
        for offset in [[0, 0], [16, 16], [0, 16]] {
            all.push(std::array::from_fn(|at| 4 * order[at / 4] + at as u8 % 4 + offset[at / 8]));
        }
    }
    // Almost patterns.
    all.push([0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 24]);
    all.push([4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 10]);
    all.push([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0]);
    all.push([4, 5, 6, 7, 16, 17, 18, 19, 0, 1, 2, 3, 20, 21, 22, 23]);
    all.push([31, 0, 30, 1, 29, 2, 28, 3, 27, 4, 26, 5, 25, 6, 24, 7]);
    // All of them with the operands exchanged.
    let exchanged: Vec<Lanes> = all.iter().map(|lanes| lanes.map(|lane| lane ^ 16)).collect();
    all.extend(exchanged);
    all
}

#[test]
fn shuffles_select_bytes() {
    let mut text = String::from("(module ");
    let mut cases = Vec::new();
    for lanes in patterns() {
        let list: String = lanes.iter().map(|lane| format!("{lane} ")).collect();
        for operands in [Operands::Different, Operands::Same, Operands::Constant, Operands::Own] {
            let (first, second) = match operands {
                Operands::Different => ("(local.get 0)".to_owned(), "(local.get 1)".to_owned()),
                Operands::Same => ("(local.get 0)".to_owned(), "(local.get 0)".to_owned()),
                Operands::Constant => {
                    let halves = (CONSTANT as u64, (CONSTANT >> 64) as u64);
                    ("(local.get 0)".to_owned(), format!("(v128.const i64x2 {} {})", halves.0, halves.1))
                }
                Operands::Own => {
                    ("(v128.not (local.get 0))".to_owned(), "(v128.not (local.get 1))".to_owned())
                }
            };
            write!(
                text,
                "(func (export \"{}\") (param v128 v128) (result v128)
                    (i8x16.shuffle {list} {first} {second}))\n",
                cases.len()
            )
            .unwrap();
            cases.push((lanes, operands));
        }
    }
    text.push(')');
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let (a, b) = (numbered(1), numbered(9));
    for (number, (lanes, operands)) in cases.into_iter().enumerate() {
        let (first, second) = match operands {
            Operands::Different => (a, b),
            Operands::Same => (a, a),
            Operands::Constant => (a, CONSTANT),
            Operands::Own => (!a, !b),
        };
        let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
        let expected = u128::from_le_bytes(lanes.map(|lane| bytes[usize::from(lane)]));
        let func = instance.get_typed_func::<(u128, u128), u128>(&mut store, &number.to_string()).unwrap();
        let found = func.call(&mut store, (a, b)).unwrap();
        assert_eq!(found, expected, "{lanes:?} {operands:?}: {found:032x}, not {expected:032x}");
    }
}

/// Indices from 16 on give 0, whatever their lower bits are.
#[test]
fn swizzles_by_constants_give_zero_for_other_indices() {
    let indices: [Lanes; 5] = [
        std::array::from_fn(|at| at as u8 + 1),
        std::array::from_fn(|at| 16 * at as u8 + at as u8),
        std::array::from_fn(|at| 255 - 5 * at as u8),
        // Doublewords, one of which is not there.
        [4, 5, 6, 7, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11],
        [4, 5, 6, 7, 0, 1, 2, 3, 128, 129, 130, 131, 8, 9, 10, 11],
    ];
    let mut text = String::from("(module ");
    for (number, lanes) in indices.iter().enumerate() {
        let list: String = lanes.iter().map(|lane| format!("{lane} ")).collect();
        for name in ["swizzle", "relaxed_swizzle"] {
            write!(
                text,
                "(func (export \"{name} {number}\") (param v128) (result v128)
                    (i8x16.{name} (local.get 0) (v128.const i8x16 {list})))"
            )
            .unwrap();
        }
    }
    text.push(')');
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let vector = numbered(5);
    let bytes = vector.to_le_bytes();
    for (number, lanes) in indices.iter().enumerate() {
        let expected = lanes.map(|lane| bytes.get(usize::from(lane)).copied().unwrap_or(0));
        for name in ["swizzle", "relaxed_swizzle"] {
            let func =
                instance.get_typed_func::<u128, u128>(&mut store, &format!("{name} {number}")).unwrap();
            let found = func.call(&mut store, vector).unwrap();
            assert_eq!(found, u128::from_le_bytes(expected), "{name} {lanes:?}");
        }
    }
}
