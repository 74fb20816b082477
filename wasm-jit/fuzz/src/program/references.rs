//! Typed references to functions: in locals, globals, tables and parameters, in branches that
//! compare them with null, and in calls.
//!
//! A place for references belongs to one function, `$f7` for example, and holds it or null. Only
//! functions before that one call what they find there, so that every program terminates.

use std::fmt::Write as _;

use super::{Function, ITERATIONS, Signature, Ty};

/// Number of elements of each table.
const ELEMENTS: u32 = 2;

/// The declarations; `index` is the word for the type of the tables' indices.
pub(super) fn declare(out: &mut String, signatures: &[Signature], index: &str) {
    // Writing to a String cannot fail, here and below.
    for (at, Signature { params, results }) in signatures.iter().enumerate() {
        let (params, results) = (names(params), names(results));
        let _ = writeln!(out, " (type $s{at} (func (param{params}) (result{results})))");
    }
    for ty in super::TYPES.map(Ty::name) {
        let _ = writeln!(out, " (type $h{ty} (func (param i32 {ty}) (result {ty})))");
    }
    for (at, Signature { params, results }) in signatures.iter().enumerate() {
        let _ =
            writeln!(out, " (global $r{at} (export \"r{at}\") (mut (ref null $s{at})) (ref.null $s{at}))");
        let _ = writeln!(
            out,
            " (table $t{at} (export \"t{at}\") {index}{ELEMENTS} (ref $s{at}) (ref.func $f{at}))"
        );
        // What it calls may be null.
        let arguments: String = (1..=params.len()).map(|param| format!(" (local.get {param})")).collect();
        let call = if at % 2 == 0 { "call_ref" } else { "return_call_ref" };
        let _ = writeln!(
            out,
            " (func $apply{at} (param (ref null $s{at})) (param{}) (result{}) ({call} $s{at}{arguments} (local.get 0)))",
            names(params),
            names(results),
        );
    }
    out.push_str(" (elem declare func $h32 $h64 $hf32 $hf64 $hv128)\n");
}

fn names(types: &[Ty]) -> String {
    types.iter().map(|ty| format!(" {}", ty.name())).collect()
}

/// A function's own places for references.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The functions to which they refer.
    nullable: Vec<usize>,
    /// The functions to which the references refer that are never null.
    sure: Vec<usize>,
}

impl Places {
    /// The locals.
    pub(super) fn locals(&self) -> String {
        let nullable = self.nullable.iter().enumerate();
        let sure = self.sure.iter().enumerate();
        let nullable = nullable.map(|(at, to)| format!(" (local $ref{at} (ref null $s{to}))"));
        nullable.chain(sure.map(|(at, to)| format!(" (local $sure{at} (ref $s{to}))"))).collect()
    }
}

impl Function<'_> {
    /// A later function.
    fn later(&mut self) -> Option<usize> {
        let later = self.signatures.len() - self.index - 1;
        (later > 0).then(|| self.index + 1 + self.random.below(later as u64) as usize)
    }

    /// A call to a function by a reference, without its parentheses.
    pub(super) fn call_by_reference(&mut self, callee: usize, arguments: &str) -> String {
        match self.random.below(6) {
            0 => {
                let reference = self.reference(callee, 2);
                format!("call_ref $s{callee}{arguments} {reference}")
            }
            1 => {
                let ty = self.indices.tables.name();
                format!("call_indirect $t{callee} (type $s{callee}){arguments} ({ty}.const 1)")
            }
            2 => {
                let reference = self.sure(callee, 2);
                format!("call $apply{callee} {reference}{arguments}")
            }
            _ => {
                let reference = self.sure(callee, 2);
                format!("call_ref $s{callee}{arguments} {reference}")
            }
        }
    }

    /// A reference to a function, or null.
    fn reference(&mut self, to: usize, depth: usize) -> String {
        self.budget -= 1;
        let choices = if depth > 3 || self.budget < 0 { 5 } else { 9 };
        match self.random.below(choices) {
            0 => format!("(ref.null $s{to})"),
            1 => format!("(global.get $r{to})"),
            2 => {
                let (ty, index) = (self.indices.tables.name(), self.expression(self.indices.tables, 4));
                format!("(table.get $t{to} ({ty}.and {index} ({ty}.const {})))", ELEMENTS - 1)
            }
            3 | 4 => format!("(ref.func $f{to})"),
            5 => {
                let (left, right) = (self.reference(to, depth + 1), self.reference(to, depth + 1));
                let condition = self.condition();
                format!("(select (result (ref null $s{to})) {left} {right} {condition})")
            }
            6 => {
                let (value, local) = (self.reference(to, depth + 1), self.nullable_local(to));
                format!("(local.tee $ref{local} {value})")
            }
            7 => {
                let condition = self.condition();
                let (then, otherwise) = (self.reference(to, depth + 1), self.sure(to, depth + 1));
                format!("(if (result (ref null $s{to})) {condition} (then {then}) (else {otherwise}))")
            }
            _ => self.sure(to, depth + 1),
        }
    }

    /// A reference to a function that is not null.
    fn sure(&mut self, to: usize, depth: usize) -> String {
        match self.random.below(12) {
            0 => format!("(ref.as_non_null {})", self.reference(to, depth + 1)),
            1..=4 => {
                let label = self.new_label();
                let reference = self.reference(to, depth + 1);
                format!(
                    "(block $n{label} (result (ref $s{to})) (br_on_non_null $n{label} {reference}) (ref.func $f{to}))"
                )
            }
            _ => format!("(ref.func $f{to})"),
        }
    }

    pub(super) fn reference_statement(&mut self, depth: usize) -> String {
        let Some(to) = self.later() else { return self.assignment() };
        match self.random.below(8) {
            0 => format!("(global.set $r{to} {})", self.reference(to, 0)),
            1 => format!("(table.set $t{to} ({}.const 0) {})", self.indices.tables.name(), self.sure(to, 0)),
            2 => {
                let value = self.reference(to, 0);
                format!("(local.set $ref{} {value})", self.nullable_local(to))
            }
            3 => {
                let (label, reference) = (self.new_label(), self.reference(to, 0));
                let body = self.statements(depth + 1);
                format!("(block $n{label} (drop (br_on_null $n{label} {reference})) {body})")
            }
            4 => self.null_with_value(to, depth),
            5 => {
                // The label has another value below the reference.
                let (ty, label, sure) = (self.ty(), self.new_label(), self.sure_local(to));
                let (name, value) = (ty.name(), self.expression(ty, 2));
                let (reference, body) = (self.reference(to, 0), self.statements(depth + 1));
                let take = self.take(ty);
                format!(
                    "(block $n{label} (result {name} (ref $s{to})) {value} (br_on_non_null $n{label} {reference}) {body} \
                     (ref.func $f{to})) (local.set $sure{sure}){take}"
                )
            }
            6 if self.open_loops < super::MAX_LOOPS => self.loop_on_reference(to, depth),
            _ => {
                let (sure, value) = (self.sure_local(to), self.sure(to, 0));
                let body = self.statements(depth + 1);
                let Signature { params, results } = self.signatures[to].clone();
                let arguments: String =
                    params.iter().map(|ty| format!(" {}", self.expression(*ty, 2))).collect();
                let take = self.take_all(&results);
                format!(
                    "(local.set $sure{sure} {value}) {body} (call_ref $s{to}{arguments} (local.get $sure{sure})){take}"
                )
            }
        }
    }

    /// A value stays on the stack while the reference below it is not null.
    fn null_with_value(&mut self, to: usize, depth: usize) -> String {
        let (ty, label, sure) = (self.ty(), self.new_label(), self.sure_local(to));
        let (name, value, reference) = (ty.name(), self.expression(ty, 2), self.reference(to, 0));
        let (body, other, take) = (self.statements(depth + 1), self.expression(ty, 2), self.take(ty));
        format!(
            "(block $n{label} (result {name}) {value} (br_on_null $n{label} {reference}) (local.set $sure{sure}) {body} \
             (drop) {other}){take}"
        )
    }

    /// A loop that a comparison with null repeats.
    fn loop_on_reference(&mut self, to: usize, depth: usize) -> String {
        let counter = self.counter();
        let iterations = 1 + self.random.below(ITERATIONS);
        let first = self.reference(to, 0);
        self.open_loops += 1;
        let body = self.statements(depth + 1);
        self.open_loops -= 1;
        let again = Self::counted_down(counter);
        let start = format!("(local.set {counter} (i32.const {iterations}))");
        if self.random.one_in(2) {
            return format!(
                "{start} (loop $n{counter} {body} (drop (br_on_null $n{counter} (select (result (ref null $s{to})) \
                 (ref.null $s{to}) (ref.func $f{to}) {again}))))"
            );
        }
        let local = self.nullable_local(to);
        format!(
            "{start} {first} (loop $n{counter} (param (ref null $s{to})) (local.set $ref{local}) {body} \
             (br_on_non_null $n{counter} (select (result (ref null $s{to})) (ref.func $f{to}) (ref.null $s{to}) {again})))"
        )
    }

    fn new_label(&mut self) -> usize {
        self.label += 1;
        self.label - 1
    }

    fn nullable_local(&mut self, to: usize) -> usize {
        Self::place_for(&mut self.references.nullable, to)
    }

    fn sure_local(&mut self, to: usize) -> usize {
        Self::place_for(&mut self.references.sure, to)
    }

    /// A place for references to a function.
    fn place_for(places: &mut Vec<usize>, to: usize) -> usize {
        places.iter().position(|of| *of == to).unwrap_or_else(|| {
            places.push(to);
            places.len() - 1
        })
    }
}
