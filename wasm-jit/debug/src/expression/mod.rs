//! [`Expression`]: a small language for values of a stopped program.
//!
//! | expression | value |
//! | --- | --- |
//! | `1`, `0xff`, `1.5`, `'a'` | numbers |
//! | `$local0`, `$stack0`, `$global0` | a local, an operand counted from the top, a global |
//! | `$pc`, `$depth`, `$function` | the instruction's offset in the module, the number of frames around this one, the function's index |
//! | `name`, `$name` | a variable of the source (DWARF), or a local or global of the name section |
//! | `i32[A]`, also `i64` `f32` `f64` `u8` `s8` `u16` `s16` `u32` | the contents of memory 0 at the address |
//! | `i32[1:A]` | the contents of memory 1 |
//! | `ns::name`, `::name`, `function::name` | a static variable of the source, by more of its full name |
//! | `v.member`, `p->member`, `*p`, `a[1]`, `&v` | for variables of the source |
//! | `p + 1`, `p - q`, `(T *) x`, `(T) x` | pointers to types of the source count their elements |
//! | `- ! ~ * / % + - << >> < <= > >= == != & ^ \| && \|\|`, `a ? b : c` | as in C |
//! | `sizeof(T)`, `sizeof(v)`, `sizeof v` | the size in bytes of a type of the source, `i32` etc., or of the value of an expression |
//!
//! Integers have 128 bits during the computation. A division by zero is an error.

mod check;
mod evaluate;
mod parse;
mod size;

pub(crate) use evaluate::Term;
use size::{SizeOperand, TypeName};

use std::sync::Arc;

use crate::Error;
use crate::dwarf::variables::Variable;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    node: Node,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`Error::Syntax`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { text: text.trim().to_owned(), node: parse::parse(text)? })
    }

    /// The text that was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same expression, in which names of static variables denote what they denote here,
    /// wherever it is evaluated. `find` returns these variables.
    pub(crate) fn bound(&self, find: &impl Fn(&str) -> Option<Arc<Variable>>) -> Self {
        Self { text: self.text.clone(), node: self.node.bound(find) }
    }

    /// Whether the value of the expression belongs to a frame.
    pub(crate) fn is_of_frame(&self, is_global: impl Fn(&str) -> bool) -> bool {
        self.node.any(&|node| match node {
            Node::Local(_) | Node::Operand(_) | Node::Special(_) => true,
            Node::Name(name) => !is_global(name),
            _ => false,
        })
    }

    /// Whether the value may be another one in another instance: the expression reads globals, or
    /// memories that are not shared.
    pub(crate) fn is_of_instance(&self, is_shared: impl Fn(u32) -> bool) -> bool {
        self.node.any(&|node| match node {
            Node::Global(_) | Node::Name(_) => true,
            Node::Load(_, memory, _) => !is_shared(*memory),
            Node::Static(_) => !is_shared(0),
            _ => false,
        })
    }

    /// Whether the value may change: the expression does not consist of numbers only.
    pub(crate) fn may_change(&self) -> bool {
        self.node.any(&|node| match node {
            Node::Integer(_) | Node::Float(_) | Node::Vector(_) => false,
            Node::Unary(..) | Node::Binary(..) | Node::Member(..) | Node::Index(_) => false,
            Node::Choice(_) | Node::SizeOf(_) | Node::Cast(..) => false,
            Node::Local(_) | Node::Operand(_) | Node::Global(_) => true,
            Node::Special(_) | Node::Name(_) | Node::Static(_) | Node::Load(..) => true,
        })
    }
}

/// The type of a load from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    I32,
    I64,
    F32,
    F64,
    U8,
    S8,
    U16,
    S16,
    U32,
}

impl Load {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "i32" | "s32" => Self::I32,
            "i64" | "s64" => Self::I64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "u32" => Self::U32,
            _ => return None,
        })
    }

    /// The size of the load in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 => 2,
            Self::I32 | Self::F32 | Self::U32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Pc,
    Depth,
    Function,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Negate,
    Not,
    Complement,
    Deref,
    Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Multiply,
    Divide,
    Remainder,
    Add,
    Subtract,
    ShiftLeft,
    ShiftRight,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Xor,
    Or,
    Both,
    Either,
}

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Integer(i128),
    Float(f64),
    Vector(u128),
    Local(u32),
    Operand(u32),
    Global(u32),
    Special(Special),
    Name(String),
    /// A static variable.
    Static(Arc<Variable>),
    /// The contents of a memory, by its index, at an address.
    Load(Load, u32, Box<Node>),
    Unary(Unary, Box<Node>),
    Binary(Binary, Box<[Node; 2]>),
    Member(Box<Node>, String),
    Index(Box<[Node; 2]>),
    /// The second one if the first one is true, else the third one.
    Choice(Box<[Node; 3]>),
    SizeOf(Box<SizeOperand>),
    Cast(TypeName, Box<Node>),
}

impl Node {
    /// Whether the expression, or a part of it, satisfies a condition.
    fn any(&self, test: &impl Fn(&Self) -> bool) -> bool {
        test(self) || self.parts().iter().any(|of| of.any(test))
    }

    /// The expressions of which it consists.
    fn parts(&self) -> &[Self] {
        match self {
            Self::Load(_, _, of) | Self::Unary(_, of) | Self::Member(of, _) | Self::Cast(_, of) => {
                std::slice::from_ref(of)
            }
            Self::Binary(_, of) | Self::Index(of) => &**of,
            Self::Choice(of) => &**of,
            Self::SizeOf(of) => of.expression.as_slice(),
            _ => &[],
        }
    }

    fn bound(&self, find: &impl Fn(&str) -> Option<Arc<Variable>>) -> Self {
        let one = |node: &Self| Box::new(node.bound(find));
        match self {
            Self::Name(name) => find(name).map_or_else(|| self.clone(), Self::Static),
            Self::Load(load, memory, of) => Self::Load(*load, *memory, one(of)),
            Self::Unary(operator, of) => Self::Unary(*operator, one(of)),
            Self::Member(of, name) => Self::Member(one(of), name.clone()),
            Self::Cast(ty, of) => Self::Cast(ty.clone(), one(of)),
            Self::Binary(operator, of) => {
                Self::Binary(*operator, Box::new(of.each_ref().map(|of| of.bound(find))))
            }
            Self::Index(of) => Self::Index(Box::new(of.each_ref().map(|of| of.bound(find)))),
            Self::Choice(of) => Self::Choice(Box::new(of.each_ref().map(|of| of.bound(find)))),
            Self::SizeOf(of) => Self::SizeOf(Box::new(SizeOperand {
                expression: of.expression.as_ref().map(|of| of.bound(find)),
                type_name: of.type_name.clone(),
            })),
            Self::Integer(_)
            | Self::Float(_)
            | Self::Vector(_)
            | Self::Local(_)
            | Self::Operand(_)
            | Self::Global(_)
            | Self::Special(_)
            | Self::Static(_) => self.clone(),
        }
    }
}
