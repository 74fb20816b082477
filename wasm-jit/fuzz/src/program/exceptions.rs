//! Exceptions, in both forms: the current one, and the legacy one, which possibly only one of the
//! engines supports. Both texts of a seed are equivalent.

use super::{F64, Function, I32, I64};

/// The form of exceptions in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `try_table` and `exnref`.
    Table,
    /// `try`, `catch`, `rethrow` and `delegate`.
    Legacy,
}

/// The exceptions that an arm handles: those of a tag with values, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handles {
    T0,
    T1,
    All,
}

impl Function<'_> {
    /// A statement, some of whose exceptions are handled.
    pub(super) fn handled(&mut self, depth: usize) -> String {
        if self.random.one_in(4) {
            return self.delegated(depth);
        }
        let mut handles = Vec::new();
        for what in [Handles::T0, Handles::T1, Handles::All] {
            if self.random.one_in(2) {
                handles.push(what);
            }
        }
        if handles.is_empty() {
            handles.push(Handles::All);
        }
        let (label, body) = self.labelled(depth);
        let arms: Vec<(Handles, String)> =
            handles.into_iter().map(|what| (what, self.arm(what, label, depth))).collect();
        let tried = match self.form {
            Form::Legacy => {
                let arms: String = arms
                    .iter()
                    .map(|(what, arm)| match what {
                        Handles::T0 => format!(" catch $t0 {arm}"),
                        Handles::T1 => format!(" catch $t1 {arm}"),
                        Handles::All => format!(" catch_all {arm}"),
                    })
                    .collect();
                format!("try $r{label} {body}{arms} end")
            }
            Form::Table => table(label, &body, &arms),
        };
        self.exceptions.push(label);
        format!("(block $b{label} {tried})")
    }

    /// Handles an exception, whose values are operands; it may be rethrown.
    fn arm(&mut self, what: Handles, label: usize, depth: usize) -> String {
        let mut code = String::new();
        let values: &[_] = match what {
            Handles::T0 => &[I32],
            Handles::T1 => &[I64, F64],
            Handles::All => &[],
        };
        // Sometimes they stay on the stack during another statement.
        let first = if self.random.one_in(2) { self.statement(depth + 1) } else { String::new() };
        code.push_str(&first);
        for ty in values {
            code.push_str(&self.take(*ty));
        }
        code.push_str(&self.statements(depth + 1));
        if self.random.one_in(4) {
            let condition = self.condition();
            let again = match self.form {
                Form::Legacy => format!("(rethrow $r{label})"),
                Form::Table => format!("(throw_ref (local.get $exception{label}))"),
            };
            code.push_str(&format!("(if {condition} (then {again}))"));
        }
        code
    }

    /// Two nested `try`, where the outer one does not see the exceptions of the inner one.
    fn delegated(&mut self, depth: usize) -> String {
        let (label, first) = self.labelled(depth);
        let body = self.statements(depth + 2);
        let last = self.statements(depth + 1);
        let arm = self.statements(depth + 1);
        match self.form {
            Form::Legacy => format!(
                "(block $w{label} try (block $b{label} {first} try {body} delegate $w{label} {last}) catch_all {arm} end)"
            ),
            Form::Table => format!(
                "(block $w{label} (block $d{label} (result exnref) (block $e{label} (block $a{label} (try_table \
                 (catch_all $a{label}) (block $b{label} {first} (try_table (catch_all_ref $d{label}) {body}) {last})) \
                 (br $e{label})) {arm}) (br $w{label})) (throw_ref))"
            ),
        }
    }

    /// A statement that throws.
    pub(super) fn throw(&mut self) -> String {
        let condition = self.condition();
        let throw = if self.random.one_in(2) {
            format!("(throw $t0 {})", self.expression(I32, 2))
        } else {
            let (float, integer) = (self.expression(F64, 2), self.expression(I64, 2));
            format!("(throw $t1 {float} {integer})")
        };
        format!("(if {condition} (then {throw}))")
    }
}

/// `try_table` in the blocks that its clauses branch to; each arm continues after the outermost
/// one.
fn table(label: usize, body: &str, arms: &[(Handles, String)]) -> String {
    let mut clauses = String::new();
    let mut code = String::new();
    for (at, (what, _)) in arms.iter().enumerate() {
        clauses.push_str(&match what {
            Handles::T0 => format!(" (catch_ref $t0 $c{label}-{at})"),
            Handles::T1 => format!(" (catch_ref $t1 $c{label}-{at})"),
            Handles::All => format!(" (catch_all_ref $c{label}-{at})"),
        });
    }
    code.push_str(&format!("(try_table{clauses} {body}) (br $e{label})"));
    for (at, (what, arm)) in arms.iter().enumerate() {
        let values = match what {
            Handles::T0 => "i32 exnref",
            Handles::T1 => "f64 i64 exnref",
            Handles::All => "exnref",
        };
        code = format!(
            "(block $c{label}-{at} (result {values}) {code}) (local.set $exception{label}) {arm} (br $e{label})"
        );
    }
    format!("(block $e{label} {code})")
}
