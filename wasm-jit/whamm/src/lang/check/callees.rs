//! The callees of indirect calls.
//!
//! This engine passes the number of the callee to a rule by a function, `callee`, if the rule asks
//! for it by the value of this name. In a program that is rewritten, the number is a value, which
//! the program looks up ([`rewrite`](crate::rewrite)). Names are in a map of the monitor, which is
//! filled when it is attached.

use super::super::Target;
use super::super::ast::{Expr, ExprKind, Ident};
use super::super::bound::{Callee, TABLE_INDEX};
use super::super::diagnostics::{ProblemKind, Span};
use super::super::ir::{Import, Kind, Place, Typed};
use super::super::types::Type;
use super::Checker;

impl Checker<'_> {
    /// The value that a rule asks for about the function that is about to be called.
    pub(super) fn callee(&mut self, callee: Callee, name: &str, span: &Span) -> Option<Typed> {
        let number = match self.target {
            Target::Here => {
                let import = self.program.import(Import::callee());
                Typed::new(Type::I32, Kind::Library(import, Vec::new()))
            }
            Target::Program => Typed::request(Type::I32, "callee_fid"),
            Target::Anywhere | Target::Native => {
                let message = format!("`{name}` of an indirect call is not told to monitor modules");
                let help = "run the script here, `wasm-jit run --monitors=SCRIPT.mm`, or make a program with it: \
                            `wasm-jit whamm instrument SCRIPT APP -o FILE`";
                self.help(ProblemKind::Unsupported, span, message, help);
                return None;
            }
        };
        Some(match callee {
            Callee::Number => number,
            Callee::Reference => Typed::cast(number, Type::FuncRef),
            Callee::Name => {
                let key = Box::new(Typed::cast(number, Type::U32));
                Typed::new(Type::Str, Kind::MapGet(self.names(), key))
            }
        })
    }

    /// Checks `resolve_funcref(target_funcref, table_entry_idx)`: the number of a function. A
    /// reference determines it; the index is an argument in the upstream compiler.
    pub(super) fn resolve_reference(&mut self, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        self.check_count(name, 2, arguments.len())?;
        let reference = self.expr(&arguments[0], None)?;
        if !self.same_type(&reference, &Type::FuncRef, &arguments[0].span) {
            return None;
        }
        match &arguments[1].kind {
            ExprKind::Name(index) if index == TABLE_INDEX && self.find(index).is_none() => {
                self.expr(&arguments[1], None)?;
                Some(Typed::cast(reference, Type::I32))
            }
            _ => {
                let message = format!("the second argument of `{}` is `{TABLE_INDEX}`", name.name);
                self.problem(ProblemKind::Type, &arguments[1].span, message);
                None
            }
        }
    }

    /// The map with the names of functions.
    fn names(&mut self) -> Place {
        *self.program.names.get_or_insert_with(|| {
            let names = Place::Absolute(self.program.static_size);
            self.program.static_size += Type::Map(Box::new(Type::U32), Box::new(Type::Str)).size();
            names
        })
    }
}
