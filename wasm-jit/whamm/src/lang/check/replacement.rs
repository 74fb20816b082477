//! Rules that act in place of the program's code: `alt` and `block_alt`.
//!
//! Such a rule is a function as others, which is called before the instruction. It tells the
//! program through two words of the monitor's memory, [`Place::Replacement`], that it has acted,
//! and what the result is:
//!
//! ```text
//! if (predicate) {
//!     replaced = 1;
//!     res0 = 0;
//!     body
//! }
//! ```
//!
//! The program reads them directly after the call. If several rules replace the same instruction,
//! each of them acts whose predicate holds, in the order of the script, and the result is that of
//! the last one.

use super::super::Target;
use super::super::ast;
use super::super::bound::results;
use super::super::diagnostics::ProblemKind;
use super::super::events::Event;
use super::super::ir::{Place, REPLACEMENT_RESULT, Statement, Typed};
use super::super::types::Type;
use super::statements::zero;
use super::{Checker, Variable};

/// The variable with the result of what is replaced.
pub(super) const RESULT: &str = "res0";

impl Checker<'_> {
    /// Whether the script's target can do what a rule for these events asks for; if not, there is a
    /// problem.
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

    /// Declares the result of what a rule replaces, if it has one; returns its type.
    pub(super) fn declare_result(
        &mut self,
        rule: &ast::Rule,
        event: &Event,
        bounds: &[(String, Type)],
    ) -> Option<Type> {
        let Event::Opcode(opcode, mode) = event else { return None };
        if !mode.replaces() {
            return None;
        }
        let bound = bounds.iter().find(|(name, _)| name == RESULT).map(|(_, ty)| ty.clone());
        let ty = match (bound, results(opcode, *mode)?.known.first()) {
            (Some(ty), _) => ty,
            (None, Some(Some(ty))) => ty.clone(),
            (None, Some(None)) => {
                let message =
                    format!("the type of the result of `{}` differs from place to place", opcode.name);
                let help = format!("say for which type the rule is: `{}({RESULT}: i32):alt`", opcode.name);
                self.help(ProblemKind::Type, &rule.span, message, help);
                return None;
            }
            (None, None) => return None,
        };
        let variable = Variable { ty: ty.clone(), place: Place::Replacement(REPLACEMENT_RESULT) };
        self.scopes.last_mut().expect("there is always a scope").insert(RESULT.to_owned(), variable);
        Some(ty)
    }

    /// Adds to the statements of a rule what tells the program that they were executed.
    pub(super) fn mark_replaced(&mut self, result: Option<&Type>, statements: &mut Vec<Statement>) {
        let set = |place, value| Statement::Set { place, component: 0, value };
        let result = result.map(|ty| set(Place::Replacement(REPLACEMENT_RESULT), zero(ty)));
        let replaced = set(Place::Replacement(0), Typed::int(Type::U32, 1));
        statements.splice(0..0, [replaced].into_iter().chain(result));
    }
}
