//! Random programs with branches, calls, tail calls, exceptions and traps.

use rand::prelude::*;

/// Statements with branches, calls and exceptions. Loops, and calls to the functions `$f0` to
/// `$f2`, take fuel, so that programs end.
struct Statements<'a> {
    random: &'a mut StdRng,
    text: String,
    /// Labels in scope: the last one is the innermost.
    labels: usize,
}

impl Statements<'_> {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// One of the labels in scope.
    fn label(&mut self) -> usize {
        self.random.random_range(0..self.labels)
    }

    fn block(&mut self, head: &str, depth: usize) {
        let label = self.labels;
        self.push(&format!("({head} $l{label}"));
        self.labels += 1;
        let count = self.random.random_range(0..4);
        (0..count).for_each(|_| self.statement(depth));
        self.labels -= 1;
    }

    fn statement(&mut self, depth: usize) {
        const CONDITION: &str = "(call $random)";
        let choices = if depth == 0 { 7 } else { 12 };
        match self.random.random_range(0..choices) {
            0 => self.push("(local.set $x (i32.add (local.get $x) (i32.const 1)))"),
            1 => self.push("nop"),
            2 | 3 if self.labels > 0 => {
                let label = self.label();
                self.push(&format!("(if (call $fuel) (then (br_if $l{label} {CONDITION})))"));
            }
            4 if self.labels > 1 => {
                let (one, other, last) = (self.label(), self.label(), self.label());
                self.push(&format!(
                    "(if (call $fuel) (then (br_table $l{one} $l{other} $l{last} (i32.and (call $random) (i32.const 3)))))"
                ));
            }
            5 => {
                let callee = self.random.random_range(0..3);
                self.push(&format!(
                    "(if (call $fuel) (then (local.set $x (call $f{callee} (local.get $x)))))"
                ));
            }
            6 => match self.random.random_range(0..4) {
                0 => self.push(&format!("(if {CONDITION} (then (return (local.get $x))))")),
                1 => self.push(&format!("(if {CONDITION} (then (throw $e)))")),
                2 => self.push(&format!("(if {CONDITION} (then (return_call $f1 (local.get $x))))")),
                _ => self.push("(drop (i32.load (local.get $x)))"),
            },
            7 | 8 => {
                self.block("block", depth - 1);
                self.push(")");
            }
            9 => {
                let label = self.labels;
                self.block("loop", depth - 1);
                self.push(&format!("(if (call $fuel) (then (br_if $l{label} {CONDITION}))))"));
            }
            10 => {
                self.push(&format!("(if {CONDITION} (then"));
                self.statement(depth - 1);
                self.push(") (else");
                self.statement(depth - 1);
                self.push("))");
            }
            11 => {
                self.block("block", depth - 1);
                let label = self.labels;
                self.push(&format!("(try_table (catch_all $l{label})"));
                self.statement(depth - 1);
                self.push("))");
            }
            _ => self.push("(global.set $g (local.get $x))"),
        }
    }
}

/// A program: its export `run` has neither parameters nor results.
pub(crate) fn program(random: &mut StdRng) -> String {
    let mut functions = String::new();
    for number in 0..3 {
        let mut body = Statements { random, text: String::new(), labels: 0 };
        (0..4).for_each(|_| body.statement(3));
        functions.push_str(&format!(
            "(func $f{number} (param $x i32) (result i32)\n{}(local.get $x))\n",
            body.text
        ));
    }
    format!(
        "(module (memory 1) (tag $e) (global $g (mut i32) (i32.const 0))
        (global $fuel (mut i32) (i32.const 300)) (global $seed (mut i32) (i32.const {}))
        (func $random (result i32)
            (global.set $seed (i32.add (i32.mul (global.get $seed) (i32.const 1103515245)) (i32.const 12345)))
            (i32.and (i32.shr_u (global.get $seed) (i32.const 16)) (i32.const 1)))
        (func $fuel (result i32)
            (if (result i32) (i32.eqz (global.get $fuel)) (then (i32.const 0)) (else
                (global.set $fuel (i32.sub (global.get $fuel) (i32.const 1))) (i32.const 1))))
        {functions}
        (func (export \"run\") (local $i i32)
            (loop $next
                (block $caught (try_table (catch_all $caught) (drop (call $f0 (i32.const 0)))))
                (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 5))))))",
        random.random::<i32>()
    )
}
