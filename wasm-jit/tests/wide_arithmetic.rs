//! 128-bit arithmetic with all combinations of operands: copies of locals in registers, several of
//! the same local, register-cached locals, values in registers of their own, constants.

use std::fmt::Write as _;

use wasm_jit::{Engine, Instance, Module, Store};

/// The values of the locals `$a` to `$d`, of which registers have copies, and of the
/// register-cached local `$cached`.
const SETS: [[u64; 5]; 3] = [
    [1, u64::MAX, 1 << 63, 5, u64::MAX - 3],
    [u64::MAX, u64::MAX, 2, 0, 7],
    [0x0123_4567_89ab_cdef, 0, u64::MAX >> 1, 0xfedc_ba98_7654_3210, 1 << 63],
];

/// An operand: its text, and its value.
type Operand = (&'static str, fn(&[u64; 5]) -> u64);

const OPERANDS: [Operand; 8] = [
    ("(local.get $a)", |locals| locals[0]),
    ("(local.get $b)", |locals| locals[1]),
    ("(local.get $c)", |locals| locals[2]),
    ("(local.get $d)", |locals| locals[3]),
    ("(local.get $cached)", |locals| locals[4]),
    ("(i64.xor (local.get $a) (i64.const -1))", |locals| !locals[0]),
    ("(i64.const -2)", |_| u64::MAX - 1),
    ("(i64.const 0x1_0000_0007)", |_| 0x1_0000_0007),
];

/// What is done with the two results: the text before the operands and after the operator.
const USES: [(&str, &str); 4] = [
    ("", "(local.set $high) (local.set $low)"),
    // The high half is assigned to a register-cached local.
    ("", "(local.set $cached) (local.set $low) (local.set $high (local.get $cached))"),
    // Its old value is still needed.
    (
        "(local.get $cached)",
        "(local.set $cached) (local.set $low) (local.set $high (local.get $cached)) \
         (if (i64.ne (local.get $before)) (then unreachable))",
    ),
    // The operands are used again.
    (
        "",
        "(local.set $high) (local.set $low) \
         (if (i64.ne (i64.add (i64.add (local.get $a) (local.get $b)) (i64.add (local.get $c) (local.get $d)))
            (local.get $sum)) (then unreachable))",
    ),
];

struct Case {
    operator: &'static str,
    operands: Vec<Operand>,
}

impl Case {
    /// All combinations of operands.
    fn all(operators: [&'static str; 2], count: u32) -> impl Iterator<Item = Self> {
        let choices = OPERANDS.len();
        (0..choices.pow(count)).map(move |combination| {
            let operand = |at: u32| OPERANDS[combination / choices.pow(at) % choices];
            // Both operators with each of the operands, but not with each combination.
            let operator = operators[(combination / 3) % 2];
            Self { operator, operands: (0..count).map(operand).collect() }
        })
    }

    fn expected(&self, locals: &[u64; 5]) -> u128 {
        let values: Vec<u64> = self.operands.iter().map(|(_, value)| value(locals)).collect();
        let wide = |low: usize| u128::from(values[low]) | u128::from(values[low + 1]) << 64;
        match self.operator {
            "add128" => wide(0).wrapping_add(wide(2)),
            "sub128" => wide(0).wrapping_sub(wide(2)),
            "mul_wide_s" => (i128::from(values[0] as i64) * i128::from(values[1] as i64)) as u128,
            _ => u128::from(values[0]) * u128::from(values[1]),
        }
    }

    /// A function whose loop makes the locals of its sixteen accesses register-cached.
    fn write(&self, out: &mut String, name: usize, (before, after): (&str, &str)) {
        let often: String = (0..6).map(|at| format!("$often-{at} ")).collect();
        let locals: String = often.split_whitespace().map(|name| format!("(local {name} i64)")).collect();
        let accesses: String = often
            .split_whitespace()
            .chain(["$cached"])
            .map(|name| format!("(local.set {name} (i64.sub (local.get {name}) (i64.const 0)))"))
            .collect();
        // Registers have copies of what has just been assigned.
        let copies: String = ["a", "b", "c", "d"]
            .iter()
            .map(|name| format!("(local.set ${name} (i64.sub (local.get $of-{name}) (i64.const 0)))"))
            .collect();
        let operands: String = self.operands.iter().map(|(text, _)| *text).collect();
        let _ = writeln!(
            out,
            "(func (export \"{name}\") (param $of-a i64) (param $of-b i64) (param $of-c i64) (param $of-d i64)
               (param $cached i64) (result i64 i64)
               (local $a i64) (local $b i64) (local $c i64) (local $d i64)
               (local $low i64) (local $high i64) (local $before i64) (local $sum i64) {locals}
               (local.set $before (local.get $cached))
               (local.set $sum (i64.add (i64.add (local.get $of-a) (local.get $of-b))
                 (i64.add (local.get $of-c) (local.get $of-d))))
               (loop $again {accesses} {accesses}
                 {copies} {before} {operands} i64.{} {after}
                 (br_if $again (i64.ne (local.get $often-0) (i64.const 0))))
               (local.get $low) (local.get $high))",
            self.operator
        );
    }
}

fn check(cases: impl Iterator<Item = Case>) {
    let engine = Engine::default();
    let cases: Vec<Case> = cases.collect();
    for after in USES {
        for cases in cases.chunks(1024) {
            let mut text = String::from("(module\n");
            for (name, case) in cases.iter().enumerate() {
                case.write(&mut text, name, after);
            }
            text.push(')');
            let module = Module::new(&engine, &text).unwrap();
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            for (name, case) in cases.iter().enumerate() {
                let name = name.to_string();
                let func =
                    instance.get_typed_func::<(i64, i64, i64, i64, i64), (i64, i64)>(&mut store, &name);
                let func = func.unwrap();
                for locals in &SETS {
                    let [a, b, c, d, cached] = locals.map(|value| value as i64);
                    let (low, high) = func.call(&mut store, (a, b, c, d, cached)).unwrap();
                    let found = u128::from(low as u64) | u128::from(high as u64) << 64;
                    let operands: Vec<&str> = case.operands.iter().map(|(text, _)| *text).collect();
                    let what = format!("{} {operands:?}, {after:?}, {locals:x?}", case.operator);
                    assert_eq!(found, case.expected(locals), "{what}");
                }
            }
        }
    }
}

#[test]
fn sums_and_differences() {
    check(Case::all(["add128", "sub128"], 4));
}

#[test]
fn products() {
    check(Case::all(["mul_wide_s", "mul_wide_u"], 2));
}
