//! Control flow with values: loops with parameters, tables of labels, tail calls; and unreachable
//! code after a branch.

use super::{Function, ITERATIONS, Ty};

impl Function<'_> {
    /// Pops the top operand.
    pub(super) fn take(&mut self, ty: Ty) -> String {
        match self.local(ty) {
            Some(local) if !self.random.one_in(4) => format!(" (local.set {local})"),
            _ => " (drop)".to_owned(),
        }
    }

    pub(super) fn take_all(&mut self, types: &[Ty]) -> String {
        types.iter().rev().map(|ty| self.take(*ty)).collect()
    }

    /// A loop with parameters, which each iteration passes to the next one.
    pub(super) fn loop_with_values(&mut self, depth: usize) -> String {
        let types: Vec<Ty> = (0..=self.random.below(4)).map(|_| self.ty()).collect();
        let names: String = types.iter().map(|ty| format!(" {}", ty.name())).collect();
        let counter = self.counter();
        let iterations = 1 + self.random.below(ITERATIONS);
        let first: String = types.iter().map(|ty| self.expression(*ty, 2) + " ").collect();
        // The parameters may stay on the stack during another statement.
        let before = if self.random.one_in(2) { self.statement(depth + 1) } else { String::new() };
        let taken = self.take_all(&types);
        self.open_loops += 1;
        let body = self.statements(depth + 1);
        self.open_loops -= 1;
        let next: String = types.iter().map(|ty| self.expression(*ty, 2) + " ").collect();
        let (again, last) = (Self::counted_down(counter), self.take_all(&types));
        format!(
            "(local.set {counter} (i32.const {iterations})) {first} (loop $m{counter} (param{names}) (result{names}) \
             {before} {taken} {body} {next} (br_if $m{counter} {again})){last}"
        )
    }

    /// A table of labels with a value, with duplicates.
    pub(super) fn table_with_value(&mut self, depth: usize) -> String {
        let ty = self.ty();
        let (outer, inner) = (self.label, self.label + 1);
        self.label += 2;
        self.value_labels.extend([(outer, ty), (inner, ty)]);
        let body = self.statements(depth + 1);
        let of_type: Vec<usize> =
            self.value_labels.iter().filter(|(_, other)| *other == ty).map(|(label, _)| *label).collect();
        let targets: String =
            (0..=self.random.below(5)).map(|_| format!(" $v{}", self.random.choose(&of_type))).collect();
        let (value, index) = (self.expression(ty, 2), self.expression(super::I32, 1));
        self.value_labels.pop();
        // The value stays on the stack.
        let (arm, other, condition) = (self.statement(depth + 1), self.expression(ty, 2), self.condition());
        self.value_labels.pop();
        let (name, take) = (ty.name(), self.take(ty));
        format!(
            "(block $v{outer} (result {name}) (block $v{inner} (result {name}) {body} (br_table{targets} {value} {index})) \
             {arm} (select {other} {condition})){take}"
        )
    }

    /// A call to a later function with the same results, instead of a return.
    pub(super) fn tail_call(&mut self) -> Option<String> {
        let results = &self.signatures[self.index].results;
        let fitting: Vec<usize> = (self.index + 1..self.signatures.len())
            .filter(|later| self.signatures[*later].results == *results)
            .collect();
        if fitting.is_empty() {
            return None;
        }
        let callee = self.random.choose(&fitting);
        let (call, condition) = (self.call_of(callee), self.condition());
        Some(format!("(if {condition} (then (return_{call})))"))
    }

    /// Unreachable code after a branch.
    pub(super) fn dead_code(&mut self, depth: usize) -> String {
        let label = self.label;
        self.label += 1;
        self.labels.push(label);
        let (body, dead) = (self.statements(depth + 1), self.statements(depth + 1));
        self.labels.pop();
        format!("(block $b{label} {body} (br $b{label}) {dead})")
    }
}
