//! Type parameters of rules: `wasm:opcode:drop<T: numeric>(arg0: T):before`.
//!
//! A rule with type parameters stands for one rule for each choice of types. The parser reads its
//! text once for each, and looks up the names of types here; later steps see rules without type
//! parameters. Since each parameter is the type of an operand, at most one of these rules matches a
//! place.

use super::ast::Ident;
use super::diagnostics::{Problem, ProblemKind, Span};
use super::types::Type;

/// The maximum number of type parameters of a rule.
const MAX_PARAMETERS: usize = 3;

/// The types that a parameter stands for, by the word after its name.
const CLASSES: [(&str, &[Type]); 3] = [
    ("numeric", &[Type::I32, Type::I64, Type::F32, Type::F64]),
    ("int", &[Type::I32, Type::I64]),
    ("float", &[Type::F32, Type::F64]),
];

/// The type parameters of a rule, with a choice of types.
#[derive(Debug, Default)]
pub(super) struct TypeParameters {
    parameters: Vec<TypeParameter>,
    /// Where they are declared, if they are.
    pub(super) span: Option<Span>,
}

#[derive(Debug)]
struct TypeParameter {
    name: Ident,
    types: &'static [Type],
    /// The number of the type that is chosen.
    chosen: usize,
    /// Whether it is the type of a value.
    is_used: bool,
}

impl TypeParameters {
    /// Declares a parameter, for which the first of its types is chosen.
    pub(super) fn declare(&mut self, name: Ident, class: &str, class_span: Span) -> Result<(), Problem> {
        let Some((_, types)) = CLASSES.iter().find(|(known, _)| *known == class) else {
            let message = format!("there is no class of types `{class}`");
            let help = "there are `numeric` (i32, i64, f32, f64), `int` (i32, i64) and `float` (f32, f64)";
            return Err(Problem::new(ProblemKind::Type, class_span, message).help(help));
        };
        let refused = |kind, message: String| Err(Problem::new(kind, name.span.clone(), message));
        if Type::primitive(&name.name).is_some() {
            return refused(ProblemKind::Name, format!("`{}` is a type", name.name));
        }
        if self.parameters.iter().any(|known| known.name.name == name.name) {
            return refused(
                ProblemKind::Name,
                format!("the type parameter `{}` is declared twice", name.name),
            );
        }
        if self.parameters.len() == MAX_PARAMETERS {
            return refused(
                ProblemKind::Limit,
                format!("a rule has at most {MAX_PARAMETERS} type parameters"),
            );
        }
        self.parameters.push(TypeParameter { name, types, chosen: 0, is_used: false });
        Ok(())
    }

    /// The type that is chosen for a parameter.
    pub(super) fn find(&mut self, name: &str) -> Option<Type> {
        let parameter = self.parameters.iter_mut().find(|parameter| parameter.name.name == name)?;
        parameter.is_used = true;
        Some(parameter.types[parameter.chosen].clone())
    }

    /// Refuses parameters that do not depend on the place, after the type bounds of the rule.
    pub(super) fn all_used(&self) -> Result<(), Problem> {
        match self.parameters.iter().find(|parameter| !parameter.is_used) {
            None => Ok(()),
            Some(TypeParameter { name: Ident { name, span }, .. }) => {
                let message = format!("the type parameter `{name}` is not the type of a value");
                let help = format!("a type bound gives it a meaning: `(arg0: {name})`");
                Err(Problem::new(ProblemKind::Type, span.clone(), message).help(help))
            }
        }
    }

    /// The number of choices.
    pub(super) fn choices(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.types.len()).product()
    }

    /// The types that are chosen, by the names of the parameters.
    pub(super) fn choice(&self) -> Vec<(String, Type)> {
        let chosen = |of: &TypeParameter| (of.name.name.clone(), of.types[of.chosen].clone());
        self.parameters.iter().map(chosen).collect()
    }

    /// Proceeds to the next choice, if there is one.
    pub(super) fn advance(&mut self) -> bool {
        for parameter in self.parameters.iter_mut().rev() {
            parameter.chosen += 1;
            if parameter.chosen < parameter.types.len() {
                return true;
            }
            parameter.chosen = 0;
        }
        false
    }
}
