//! The syntax tree of a script.

use super::diagnostics::Span;
use super::types::Type;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ident {
    pub(super) name: String,
    pub(super) span: Span,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) items: Vec<Item>,
}

#[derive(Debug)]
pub(super) enum Item {
    Use(Ident),
    Function(Function),
    Rule(Rule),
    Statement(Statement),
}

#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: Ident,
    pub(super) ty: Type,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: Ident,
    pub(super) parameters: Vec<Parameter>,
    pub(super) result: Type,
    pub(super) body: Vec<Statement>,
}

/// The part of the events on which a rule acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sample {
    /// `@sample(1%)`: each event with a probability, in units of 2^-32.
    Probability(u64),
    /// `@sample(10ms)`: the first event in each period, in nanoseconds.
    Period(u64),
}

/// The occurrences of an event on which a rule acts.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// `@once`: the first occurrence at each place.
    pub(super) once: Option<Span>,
    /// `@sample(..)`: a part of the occurrences.
    pub(super) sample: Option<(Sample, Span)>,
    /// `@toggle`: the occurrences for which the predicate holds, at no cost for others.
    pub(super) toggle: Option<Span>,
    /// The annotations as in the script, with a blank after each.
    pub(super) text: String,
}

/// `annotations provider:package:event:mode (bounds) /predicate/ { body }`
///
/// A rule with type parameters, as in `wasm:opcode:drop<T: int>(arg0: T):before`, stands for one
/// rule for each choice of types, of which one is this.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) selection: Selection,
    /// The types that the type parameters stand for, by their names.
    pub(super) types: Vec<(String, Type)>,
    /// The parts between colons; an empty one matches anything.
    pub(super) parts: Vec<Ident>,
    pub(super) bounds: Vec<Parameter>,
    pub(super) predicate: Option<Expr>,
    pub(super) body: Vec<Statement>,
    /// The position of the parts and bounds.
    pub(super) span: Span,
}

impl Rule {
    /// What the rule matches, for messages and the report.
    pub(super) fn text(&self) -> String {
        let parts = self.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(":");
        match self.types.as_slice() {
            [] => parts,
            _ => format!("{parts} ({})", self.chosen_types()),
        }
    }

    /// The choice of types: `T = i32, U = f64`.
    pub(super) fn chosen_types(&self) -> String {
        self.types.iter().map(|(name, ty)| format!("{name} = {ty}")).collect::<Vec<_>>().join(", ")
    }
}

/// The lifetime of a variable, and the code that shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Until the end of the block; outside rules, until the end of the run.
    Plain,
    /// One for each place that the rule matches.
    Unshared,
    /// One for all places that the rule matches.
    Shared,
    /// One for each activation of a function of the program.
    Frame,
    /// One for each thread of the program.
    Thread,
}

#[derive(Debug)]
pub(super) struct Declaration {
    pub(super) storage: Storage,
    pub(super) report: bool,
    pub(super) name: Ident,
    pub(super) ty: Type,
    pub(super) init: Option<Expr>,
}

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) kind: StatementKind,
    pub(super) span: Span,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    Declare(Declaration),
    Assign {
        target: Expr,
        value: Expr,
    },
    /// `++` or `--`
    Step {
        target: Expr,
        up: bool,
    },
    Call(Expr),
    Return(Option<Expr>),
    /// Conditions with their blocks, and the block of `else`.
    If {
        arms: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    While {
        condition: Expr,
        body: Vec<Statement>,
    },
    Break,
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UnaryOp {
    /// `!`
    Not,
    /// `~`
    Complement,
    /// `-`
    Negate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BinaryOp {
    And,
    Or,
    BitOr,
    BitXor,
    BitAnd,
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
    Shl,
    Shr,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl BinaryOp {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::And => "&&",
            Self::Or => "||",
            Self::BitOr => "|",
            Self::BitXor => "^",
            Self::BitAnd => "&",
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Ge => ">=",
            Self::Gt => ">",
            Self::Le => "<=",
            Self::Lt => "<",
            Self::Shl => "<<",
            Self::Shr => ">>",
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::Rem => "%",
        }
    }

    /// Higher binds tighter. `&&` and `||` bind equally, from left to right.
    pub(super) fn precedence(self) -> u8 {
        match self {
            Self::And | Self::Or => 0,
            Self::BitOr => 1,
            Self::BitXor => 2,
            Self::BitAnd => 3,
            Self::Eq | Self::Ne | Self::Ge | Self::Gt | Self::Le | Self::Lt => 4,
            Self::Shl | Self::Shr => 5,
            Self::Add | Self::Sub => 6,
            Self::Mul | Self::Div | Self::Rem => 7,
        }
    }

    pub(super) fn is_comparison(self) -> bool {
        self.precedence() == 4
    }
}

#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) kind: ExprKind,
    pub(super) span: Span,
    /// Height of the tree.
    pub(super) depth: usize,
}

#[derive(Clone, Debug)]
pub(super) enum ExprKind {
    /// An integer without its sign.
    Int(u64),
    Float(f64),
    Bool(bool),
    Str(String),
    Name(String),
    /// `map[key]`
    Index(Ident, Box<Expr>),
    /// `tuple.0.1`
    Field(Ident, Vec<usize>),
    Tuple(Vec<Expr>),
    /// `name(..)`, or `library.name(..)`, with an annotation such as `@static`.
    Call {
        annotation: Option<Ident>,
        object: Option<Ident>,
        name: Ident,
        arguments: Vec<Expr>,
    },
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Cast(Box<Expr>, Type),
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
}

impl Expr {
    pub(super) fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Bool(_)
            | ExprKind::Str(_)
            | ExprKind::Name(_)
            | ExprKind::Field(..) => Vec::new(),
            ExprKind::Index(_, one) | ExprKind::Unary(_, one) | ExprKind::Cast(one, _) => vec![one],
            ExprKind::Tuple(all) | ExprKind::Call { arguments: all, .. } => all.iter().collect(),
            ExprKind::Binary(_, left, right) => vec![left, right],
            ExprKind::Ternary(condition, yes, no) => vec![condition, yes, no],
        }
    }
}
