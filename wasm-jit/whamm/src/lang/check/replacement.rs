//! Rules that act in place of the program's code: `alt` and `block_alt`.
//!
//! Such a rule is a function like any other, which is called before the instruction. Through words
//! of the monitor's memory, [`Place::Replacement`], it tells the program that it has acted, and the
//! results:
//!
//! ```text
//! if (predicate) {
//!     replaced = 1;
//!     res0 = 0;                            each result that is a number
//!     body
//! }
//! ```
//!
//! The program reads them directly after the call. If several rules replace the same instruction,
//! each rule whose predicate holds acts, in the order of the script, and the results are those of
//! the last one.
//!
//! # Alternatives
//! `alt_call_by_name("f")` and `alt_call_by_id(7)` set `replaced` to a number that stands for the
//! function. When the rules have been executed, the program calls it with the operands of the
//! instruction, and its results become those of the instruction. A rule that calls alternatives
//! need not state the types of results. It then computes none, and begins with `replaced = 0`: if
//! it calls no alternative, the original is executed.

use super::super::Target;
use super::super::ast::{self, Expr, Ident};
use super::super::bound::{numbered, results};
use super::super::diagnostics::ProblemKind;
use super::super::events::Event;
use super::super::ir::{
    ALT_CALL_BY_ID, ALT_CALL_BY_NAME, Alternative, Const, FIRST_ALTERNATIVE, Kind, MAX_RESULTS, Place,
    REPLACEMENT_RESULT, Statement, Typed,
};
use super::super::opcodes::Known;
use super::super::types::Type;
use super::statements::zero;
use super::{Checker, Context, Variable};

/// The statement that says that the replaced instruction takes its operands.
const DROP_ARGS: &str = "drop_args";

/// Whether a name refers to a result of the replaced instruction.
pub(super) fn is_result(name: &str) -> bool {
    numbered(name, "res").is_some()
}

fn place(index: usize) -> Place {
    Place::Replacement(REPLACEMENT_RESULT + 8 * index as u32)
}

/// The results of a replaced instruction, as far as the rule and the instruction determine them.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// The types, from the top of the stack.
    types: Vec<Type>,
    /// Whether the type of the next one differs from place to place, and the rule does not state
    /// it.
    is_incomplete: bool,
    /// Whether the number of results differs from place to place, and the rule states none.
    is_open: bool,
}

impl Checker<'_> {
    /// Whether the script's target supports what a rule for these events asks for; reports a
    /// problem if not.
    pub(super) fn can_replace(&mut self, rule: &ast::Rule, events: &[Event]) -> bool {
        let Some(event) = events.iter().find(|event| event.mode().replaces()) else { return true };
        if self.target == Target::Program {
            return true;
        }
        let message =
            format!("the mode `{}` changes the program, which is only observed here", event.mode().text());
        let help = "`wasm-jit whamm instrument SCRIPT APP -o FILE` makes a program with such rules in it";
        self.help(ProblemKind::Unsupported, &rule.span, message, help);
        false
    }

    /// Declares the results of the replaced instruction that are known before the rule's statements
    /// are checked.
    pub(super) fn declare_results(
        &mut self,
        rule: &ast::Rule,
        event: &Event,
        bounds: &[(String, Type)],
    ) -> Results {
        let mut found = Results::default();
        let Event::Opcode(opcode, mode) = event else { return found };
        let Some(values) = results(opcode, *mode).filter(|_| mode.replaces()) else { return found };
        for index in 0..MAX_RESULTS {
            let bound = bounds.iter().find(|(name, _)| numbered(name, "res") == Some(index));
            let ty = match (bound, values.known.get(index).map(Known::ty)) {
                (Some((_, ty)), _) | (None, Some(Some(ty))) => ty.clone(),
                (None, Some(None)) => {
                    found.is_incomplete = true;
                    break;
                }
                (None, None) => break,
            };
            // A reference is not a variable: a rule cannot compute one.
            if ty != Type::Ref {
                let variable = Variable { ty: ty.clone(), place: place(index) };
                let scope = self.scopes.last_mut().expect("there is always a scope");
                scope.insert(format!("res{index}"), variable);
            }
            found.types.push(ty);
        }
        found.is_open = values.more && found.types.is_empty();
        let is_beyond = |bound: &&ast::Parameter| {
            numbered(&bound.name.name, "res").is_some_and(|index| index >= found.types.len())
        };
        if let Some(beyond) = rule.bounds.iter().find(is_beyond) {
            let message = match found.types.len() {
                MAX_RESULTS => format!("a rule replaces at most {MAX_RESULTS} results"),
                known => format!("`{}` has a type, and `res{known}` has none", beyond.name.name),
            };
            let help = "the types of all results are necessary, from the top of the stack: `res0`, `res1` ..";
            self.help(ProblemKind::Rule, &beyond.name.span, message, help);
        }
        found
    }

    /// The types of the results that a rule computes; `None` if it only calls alternatives.
    pub(super) fn replaced_results(
        &mut self,
        rule: &ast::Rule,
        event: &Event,
        found: Results,
        calls_alternatives: bool,
    ) -> Option<Vec<Type>> {
        if calls_alternatives && (found.is_incomplete || found.is_open) {
            return None;
        }
        if let (true, Event::Opcode(opcode, mode)) = (found.is_incomplete, event) {
            let message = format!("the type of the result of `{}` differs from place to place", opcode.name);
            let help =
                format!("say for which type the rule is: `{}(res0: i32):{}`", opcode.name, mode.text());
            self.help(ProblemKind::Type, &rule.span, message, help);
        }
        Some(found.types)
    }

    /// Adds code to the statements of a rule that tells the program that they were executed.
    pub(super) fn mark_replaced(&mut self, results: Option<&[Type]>, statements: &mut Vec<Statement>) {
        let set = |place, value| Statement::Set { place, component: 0, value };
        let replaced = set(Place::Replacement(0), Typed::int(Type::U32, i128::from(results.is_some())));
        let numbers = results.into_iter().flatten().enumerate().filter(|(_, ty)| **ty != Type::Ref);
        let zeroes = numbers.map(|(index, ty)| set(place(index), zero(ty)));
        statements.splice(0..0, [replaced].into_iter().chain(zeroes));
    }

    /// Whether a name is the statement `drop_args()`.
    pub(super) fn is_dropping(&self, name: &Ident) -> bool {
        name.name == DROP_ARGS && !self.functions.contains_key(&name.name)
    }

    /// Checks the statement `drop_args()`. A replaced instruction takes its operands in any case.
    pub(super) fn drop_arguments(&mut self, name: &Ident, arguments: &[Expr]) {
        let may_replace = matches!(&self.context, Context::Rule { event, .. } if event.mode().replaces());
        if may_replace {
            self.check_count(name, 0, arguments.len());
        } else {
            let message = format!("`{}` belongs to rules of the modes `alt` and `block_alt`", name.name);
            self.problem(ProblemKind::Rule, &name.span, message);
        }
    }

    /// Whether a name is a statement that calls a function of the program.
    pub(super) fn is_alternative(&self, name: &Ident) -> bool {
        [ALT_CALL_BY_NAME, ALT_CALL_BY_ID].contains(&name.name.as_str())
            && !self.functions.contains_key(&name.name)
    }

    /// Checks a statement that calls a function of the program in place of the instruction.
    pub(super) fn call_alternative(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Statement> {
        let may_replace = matches!(&self.context, Context::Rule { event, .. } if event.mode().replaces());
        if !may_replace {
            let message = format!("`{}` belongs to rules of the modes `alt` and `block_alt`", name.name);
            self.problem(ProblemKind::Rule, &name.span, message);
            return None;
        }
        self.check_count(name, 1, arguments.len())?;
        let expected = if name.name == ALT_CALL_BY_NAME { Type::Str } else { Type::U32 };
        let value = self.expr(&arguments[0], Some(&expected))?;
        if !self.same_type(&value, &expected, &arguments[0].span) {
            return None;
        }
        let alternative = match value.kind {
            Kind::Const(Const::Str(function)) => Alternative::Named(function),
            Kind::Const(Const::Int(function)) => Alternative::Numbered(function as u32),
            _ => {
                let message = "the function is not known when the script is compiled";
                let help = "write its name or number as a constant, in one rule for each function";
                self.help(ProblemKind::Type, &arguments[0].span, message, help);
                return None;
            }
        };
        let all = &mut self.program.alternatives;
        let known = all.iter().position(|known| *known == alternative);
        let number = known.unwrap_or_else(|| {
            all.push(alternative);
            all.len() - 1
        }) as u32;
        if !self.alternatives.contains(&number) {
            self.alternatives.push(number);
        }
        let value = Typed::int(Type::U32, i128::from(FIRST_ALTERNATIVE + number));
        Some(Statement::Set { place: Place::Replacement(0), component: 0, value })
    }
}
