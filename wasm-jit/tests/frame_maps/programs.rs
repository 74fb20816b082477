//! Random programs in text form, rich in values that the compiler keeps in different locations:
//! locals in loops and across calls, operands below blocks, comparisons, loads, constants.
//!
//! `main` returns an i64. All other functions take an i32, an i64 and an f64, and call only later
//! ones. Floats never produce an observable NaN.

use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Number of functions besides `main`.
const FUNCTIONS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ty {
    I32,
    I64,
    F64,
}
use Ty::{F64, I32, I64};

const TYPES: [Ty; 3] = [I32, I64, F64];

impl Ty {
    fn name(self) -> &'static str {
        match self {
            I32 => "i32",
            I64 => "i64",
            F64 => "f64",
        }
    }
}

pub(crate) fn program(seed: u64) -> String {
    let mut random = SmallRng::seed_from_u64(seed);
    let memory64 = random.random_range(0..4) == 0;
    let index = if memory64 { "i64 " } else { "" };
    let mut text = format!("(module (memory (export \"memory\") {index}1)\n");
    for index in 0..=FUNCTIONS {
        let result = [I64, I32, I64, F64][index];
        let mut locals = if index == 0 { Vec::new() } else { vec![I32, I64, F64] };
        let params = locals.len();
        for _ in 0..random.random_range(1..20) {
            locals.push(TYPES[random.random_range(0..3)]);
        }
        let budget = random.random_range(10..60);
        let random = &mut random;
        let mut function = Function { random, index, memory64, locals, counters: 0, labels: 0, budget };
        let body = function.statements(0);
        let value = function.expression(result, 3);
        let Function { locals, counters, .. } = function;
        let export = if index == 0 { "(export \"main\")" } else { "(param i32 i64 f64)" };
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, "(func $f{index} {export} (result {})", result.name());
        for local in &locals[params..] {
            let _ = write!(text, " (local {})", local.name());
        }
        for counter in 0..counters {
            let _ = write!(text, " (local $counter{counter} i32)");
        }
        let _ = writeln!(text, "\n{body}{value})");
    }
    text + ")"
}

struct Function<'r> {
    random: &'r mut SmallRng,
    index: usize,
    /// Whether the addresses of the memory have 64 bits.
    memory64: bool,
    locals: Vec<Ty>,
    /// Counters of loops, which are locals after the others.
    counters: usize,
    labels: usize,
    /// Number of statements that may still be generated.
    budget: i32,
}

impl Function<'_> {
    fn one_in(&mut self, count: u32) -> bool {
        self.random.random_range(0..count) == 0
    }

    fn choose<'c>(&mut self, choices: &[&'c str]) -> &'c str {
        choices[self.random.random_range(0..choices.len())]
    }

    /// A local of this type, if there is one.
    fn local(&mut self, ty: Ty) -> Option<usize> {
        let start = self.random.random_range(0..self.locals.len());
        let all = (start..self.locals.len()).chain(0..start);
        all.into_iter().find(|local| self.locals[*local] == ty)
    }

    fn address(&mut self) -> String {
        let (ty, name) = if self.memory64 { (I64, "i64") } else { (I32, "i32") };
        format!("({name}.and {} ({name}.const 504))", self.expression(ty, 1))
    }

    fn statements(&mut self, depth: u32) -> String {
        let mut text = String::new();
        for _ in 0..self.random.random_range(2..6) {
            self.budget -= 1;
            if self.budget > 0 {
                text += &self.statement(depth);
                text.push('\n');
            }
        }
        text
    }

    fn statement(&mut self, depth: u32) -> String {
        let ty = TYPES[self.random.random_range(0..3)];
        match self.random.random_range(0..if depth < 3 { 10 } else { 5 }) {
            0..=2 => match self.local(ty) {
                Some(local) => format!("(local.set {local} {})", self.expression(ty, 3)),
                None => String::new(),
            },
            3 => {
                let (address, value) = (self.address(), self.expression(ty, 2));
                format!("({}.store offset=8 {address} {value})", ty.name())
            }
            4 => format!("(drop {})", self.expression(ty, 2)),
            5 | 6 => {
                let (counter, label) = (self.counters, self.labels);
                self.counters += 1;
                self.labels += 1;
                let body = self.statements(depth + 1);
                let down = format!(
                    "(local.tee $counter{counter} (i32.sub (local.get $counter{counter}) (i32.const 1)))"
                );
                format!(
                    "(local.set $counter{counter} (i32.const 3)) (loop $l{label} {body} (br_if $l{label} {down}))"
                )
            }
            7 => {
                let condition = self.condition(3);
                let (one, other) = (self.statements(depth + 1), self.statements(depth + 1));
                match self.one_in(2) {
                    true => format!("(if {condition} (then {one}) (else {other}))"),
                    false => format!("(if {condition} (then {one}))"),
                }
            }
            8 => {
                let label = self.labels;
                self.labels += 1;
                let (one, condition, other) =
                    (self.statements(depth + 1), self.condition(3), self.statements(depth + 1));
                format!("(block $l{label} {one} (br_if $l{label} {condition}) {other})")
            }
            _ => {
                let label = self.labels;
                self.labels += 3;
                let [a, b, c] = [label, label + 1, label + 2];
                let index = self.expression(I32, 1);
                let (one, other) = (self.statements(depth + 1), self.statements(depth + 1));
                format!(
                    "(block $l{a} (block $l{b} (block $l{c}
                        (br_table $l{a} $l{b} $l{c} $l{b} (i32.and {index} (i32.const 7)))) {one}) {other})"
                )
            }
        }
    }

    /// An i32 that is likely to be a comparison.
    fn condition(&mut self, depth: u32) -> String {
        let Some(depth) = depth.checked_sub(1) else { return self.expression(I32, 0) };
        let ty = TYPES[self.random.random_range(0..3)];
        let operators: &[&str] = match ty {
            I32 => &["eq", "ne", "lt_s", "lt_u", "gt_s", "le_u", "ge_s"],
            I64 => &["eq", "lt_s", "gt_u"],
            F64 => &["lt", "eq", "ne"],
        };
        match self.random.random_range(0..6) {
            0 => format!("(i32.eqz {})", self.expression(I32, depth)),
            1 => format!("(i64.eqz {})", self.expression(I64, depth)),
            2 => self.expression(I32, depth),
            _ => {
                let operator = self.choose(operators);
                format!(
                    "({}.{operator} {} {})",
                    ty.name(),
                    self.expression(ty, depth),
                    self.expression(ty, depth)
                )
            }
        }
    }

    fn expression(&mut self, ty: Ty, depth: u32) -> String {
        let name = ty.name();
        let choice =
            if depth == 0 { self.random.random_range(0..4) } else { self.random.random_range(0..16) };
        match choice {
            0 => match ty {
                F64 => format!("(f64.const {})", self.random.random_range(-4..5)),
                _ if self.one_in(4) => format!("({name}.const {})", self.random.random::<i32>()),
                _ => format!("({name}.const {})", self.random.random_range(-2..9)),
            },
            1..=3 => match self.local(ty) {
                Some(local) => format!("(local.get {local})"),
                None => format!("({name}.const 1)"),
            },
            4 => format!("({name}.load offset={} {})", 8 * self.random.random_range(0..9), self.address()),
            5 => match self.local(ty) {
                Some(local) => format!("(local.tee {local} {})", self.expression(ty, depth - 1)),
                None => format!("({name}.const 2)"),
            },
            6 => {
                let (one, other) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("(select {one} {other} {})", self.condition(depth - 1))
            }
            7 => {
                let condition = self.condition(depth - 1);
                let (one, other) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("(if (result {name}) {condition} (then {one}) (else {other}))")
            }
            8 => {
                let label = self.labels;
                self.labels += 1;
                let (early, condition) = (self.expression(ty, depth - 1), self.condition(depth - 1));
                format!(
                    "(block $l{label} (result {name}) {early} (br_if $l{label} {condition}) (drop) {})",
                    self.expression(ty, depth - 1)
                )
            }
            9 => {
                let result = match ty {
                    I32 => 1,
                    I64 => 2,
                    F64 => 3,
                };
                if self.index >= result {
                    return self.expression(ty, depth - 1);
                }
                let [a, b, c] = TYPES.map(|ty| self.expression(ty, depth - 1));
                format!("(call $f{result} {a} {b} {c})")
            }
            10 => match ty {
                I32 if self.one_in(2) => format!("(i32.wrap_i64 {})", self.expression(I64, depth - 1)),
                I32 => self.condition(depth),
                I64 => {
                    let operator = self.choose(&["extend_i32_u", "extend_i32_s"]);
                    format!("(i64.{operator} {})", self.expression(I32, depth - 1))
                }
                F64 => format!("(f64.convert_i32_s {})", self.expression(I32, depth - 1)),
            },
            11 if ty == I32 => {
                let operator = self.choose(&["div_u", "rem_u"]);
                let (one, other) = (self.expression(ty, depth - 1), self.expression(ty, depth - 1));
                format!("(i32.{operator} {one} (i32.or {other} (i32.const 1)))")
            }
            11 if ty == I64 => {
                let operator = self.choose(&["add128", "sub128", "mul_wide_s", "mul_wide_u"]);
                let operands = if operator.ends_with("128") { 4 } else { 2 };
                let operands: String = (0..operands).map(|_| self.expression(I64, depth - 1)).collect();
                let both = format!("(i64.{operator} {operands})");
                match self.local(I64) {
                    Some(local) if self.one_in(2) => format!("(local.set {local} {both})"),
                    _ => format!("(i64.sub {both})"),
                }
            }
            _ => {
                let operators: &[&str] = match ty {
                    I32 => &["add", "add", "sub", "mul", "and", "or", "xor", "shl", "shr_u", "shr_s"],
                    I64 => &["add", "add", "sub", "mul", "and", "xor", "shl"],
                    F64 => &["add", "sub", "mul"],
                };
                let operator = self.choose(operators);
                format!(
                    "({name}.{operator} {} {})",
                    self.expression(ty, depth - 1),
                    self.expression(ty, depth - 1)
                )
            }
        }
    }
}
