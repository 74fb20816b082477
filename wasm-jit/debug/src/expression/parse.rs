//! Parses expressions: recursive descent, by precedence.

use super::size::{SizeOperand, TypeName};
use super::{Binary, Load, Node, Special, Unary};
use crate::Error;

/// Maximum nesting depth of expressions, and of pointers in the names of types.
const MAX_DEPTH: usize = 100;

/// Maximum number of operators: a chain of them is a nested node.
const MAX_OPERATORS: usize = 1000;

/// The length of a vector as it is shown, and written: `0x` and all of its digits.
const VECTOR: usize = 34;

/// By increasing precedence.
const LEVELS: [&[(&str, Binary)]; 10] = [
    &[("||", Binary::Either)],
    &[("&&", Binary::Both)],
    &[("|", Binary::Or)],
    &[("^", Binary::Xor)],
    &[("&", Binary::And)],
    &[("==", Binary::Equal), ("!=", Binary::NotEqual)],
    &[("<=", Binary::LessEqual), (">=", Binary::GreaterEqual), ("<", Binary::Less), (">", Binary::Greater)],
    &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[("*", Binary::Multiply), ("/", Binary::Divide), ("%", Binary::Remainder)],
];

/// Operators, longer ones first.
const TOKENS: [&str; 29] = [
    "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "->", "|", "^", "&", "<", ">", "+", "-", "*", "/", "%",
    "!", "~", "(", ")", "[", "]", ".", ",", ":", "?",
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Operator(&'static str),
    Integer(i128),
    Float(f64),
    Vector(u128),
    Name(String),
    End,
}

pub(super) fn parse(text: &str) -> Result<Node, Error> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0, operators: 0 };
    let node = parser.choice()?;
    match parser.peek() {
        Token::End => Ok(node),
        _ => Err(parser.expected("an operator, or the end")),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, Error> {
    let wrong = |text: &str, expected| Error::Syntax { text: text.to_owned(), expected };
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let token;
        if first.is_ascii_digit() {
            let is_hexadecimal = rest.starts_with("0x") || rest.starts_with("0X");
            let mut end = rest.find(|c: char| !is_word(c) && c != '.').unwrap_or(rest.len());
            // The sign of an exponent.
            if !is_hexadecimal && rest[..end].ends_with(['e', 'E']) && rest[end..].starts_with(['+', '-']) {
                end += 1;
                end += rest[end..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - end);
            }
            let (number, after) = rest.split_at(end);
            let hexadecimal = number.get(2..).unwrap_or_default();
            let found = match is_hexadecimal {
                true if number.len() == VECTOR => {
                    u128::from_str_radix(hexadecimal, 16).ok().map(Token::Vector)
                }
                true => i128::from_str_radix(hexadecimal, 16).ok().map(Token::Integer),
                false => {
                    number.parse().ok().map(Token::Integer).or_else(|| number.parse().ok().map(Token::Float))
                }
            };
            token = found.ok_or_else(|| wrong(number, "a number"))?;
            rest = after;
        } else if is_word(first) || rest.strip_prefix("::").is_some_and(|rest| rest.starts_with(is_word)) {
            let (name, after) = rest.split_at(name_length(rest));
            token = Token::Name(name.to_owned());
            rest = after;
        } else if first == '\'' {
            let mut chars = rest[1..].chars();
            let value = chars.next().ok_or_else(|| wrong(rest, "a character"))?;
            rest = chars.as_str().strip_prefix('\'').ok_or_else(|| wrong(rest, "a character in quotes"))?;
            token = Token::Integer(i128::from(u32::from(value)));
        } else {
            let operator = TOKENS.into_iter().find(|operator| rest.starts_with(operator));
            let operator = operator.ok_or_else(|| wrong(rest, "a value or an operator"))?;
            rest = &rest[operator.len()..];
            token = Token::Operator(operator);
        }
        tokens.push(token);
        rest = rest.trim_start();
    }
    tokens.push(Token::End);
    Ok(tokens)
}

/// The length of the name at the start of a text: words that are separated by `::`.
fn name_length(text: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let mut end = 0;
    loop {
        let rest = &text[end..];
        let separator =
            if rest.strip_prefix("::").is_some_and(|rest| rest.starts_with(is_word)) { 2 } else { 0 };
        if end > 0 && separator == 0 {
            return end;
        }
        let word = &rest[separator..];
        end += separator + word.find(|c: char| !is_word(c)).unwrap_or(word.len());
        if end == 0 {
            return 0;
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    operators: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at]
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        // The end token is not consumed.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn take(&mut self, operator: &str) -> bool {
        let is_it = matches!(self.peek(), Token::Operator(found) if *found == operator);
        if is_it {
            self.next();
        }
        is_it
    }

    fn expected(&self, expected: &'static str) -> Error {
        Error::Syntax { text: self.text.to_owned(), expected }
    }

    fn operator(&mut self) -> Result<(), Error> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS { Err(self.expected("fewer operators")) } else { Ok(()) }
    }

    fn choice(&mut self) -> Result<Node, Error> {
        let condition = self.binary(0)?;
        if !self.take("?") {
            return Ok(condition);
        }
        self.operator()?;
        let then = self.nested(Self::choice)?;
        if !self.take(":") {
            return Err(self.expected("`:`"));
        }
        let otherwise = self.nested(Self::choice)?;
        Ok(Node::Choice(Box::new([condition, then, otherwise])))
    }

    fn binary(&mut self, level: usize) -> Result<Node, Error> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.take(text)) {
            self.operator()?;
            let right = self.binary(level + 1)?;
            left = Node::Binary(*operator, Box::new([left, right]));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, Error> {
        let operators = [
            ("-", Unary::Negate),
            ("!", Unary::Not),
            ("~", Unary::Complement),
            ("*", Unary::Deref),
            ("&", Unary::Address),
        ];
        let operator = operators.into_iter().find(|(text, _)| self.take(text));
        match operator {
            Some((_, operator)) => {
                let of = self.nested(Self::unary)?;
                Ok(Node::Unary(operator, Box::new(of)))
            }
            None if matches!(self.peek(), Token::Name(name) if name == "sizeof") => {
                self.next();
                self.nested(Self::size_of)
            }
            None => match self.cast() {
                Some(ty) => {
                    self.operator()?;
                    Ok(Node::Cast(ty, Box::new(self.nested(Self::unary)?)))
                }
                None => self.postfix(),
            },
        }
    }

    /// The type of a cast, if one is next. One word in parentheses is a value before an operator,
    /// unless it is a type of C.
    fn cast(&mut self) -> Option<TypeName> {
        let start = self.at;
        let ty = if self.take("(") { self.type_name() } else { None };
        let is_operand = match self.peek() {
            Token::End => false,
            Token::Operator(operator) => match *operator {
                "(" | "!" | "~" => true,
                "-" | "*" | "&" => ty.as_ref().is_some_and(TypeName::is_type),
                _ => false,
            },
            _ => true,
        };
        let ty = ty.filter(|_| is_operand);
        if ty.is_none() {
            self.at = start;
        }
        ty
    }

    /// The operand of `sizeof`. As in C, operators after an operand in parentheses belong to it.
    fn size_of(&mut self) -> Result<Node, Error> {
        let start = self.at;
        let type_name = if self.take("(") { self.type_name() } else { None };
        if type_name.as_ref().is_some_and(TypeName::is_type) {
            return Ok(Node::SizeOf(Box::new(SizeOperand { expression: None, type_name })));
        }
        let after_type = std::mem::replace(&mut self.at, start);
        let is_parenthesis = matches!(self.peek(), Token::Operator("("));
        let operand = match if is_parenthesis { self.postfix() } else { self.unary() } {
            Ok(expression) => {
                let type_name = type_name.filter(|_| self.at == after_type);
                SizeOperand { expression: Some(expression), type_name }
            }
            Err(_) if type_name.is_some() => {
                self.at = after_type;
                SizeOperand { expression: None, type_name }
            }
            Err(error) => return Err(error),
        };
        Ok(Node::SizeOf(Box::new(operand)))
    }

    /// The name of a type and a closing parenthesis, if this is what follows.
    fn type_name(&mut self) -> Option<TypeName> {
        let mut words = Vec::new();
        while let Token::Name(word) = self.peek().clone() {
            self.next();
            words.push(word);
        }
        let mut stars = 0;
        while self.take("*") {
            stars += 1;
        }
        let is_type = !words.is_empty() && stars <= MAX_DEPTH && self.take(")");
        is_type.then(|| TypeName { name: words.join(" "), stars })
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Result<Node, Error>) -> Result<Node, Error> {
        if self.depth == MAX_DEPTH {
            return Err(self.expected("less nesting"));
        }
        self.depth += 1;
        let node = read(self);
        self.depth -= 1;
        node
    }

    fn postfix(&mut self) -> Result<Node, Error> {
        let mut node = self.primary()?;
        loop {
            let is_arrow = self.take("->");
            if is_arrow || self.take(".") {
                self.operator()?;
                let Token::Name(name) = self.next() else {
                    return Err(self.expected("the name of a member"));
                };
                if is_arrow {
                    node = Node::Unary(Unary::Deref, Box::new(node));
                }
                node = Node::Member(Box::new(node), name);
            } else if self.take("[") {
                self.operator()?;
                let load = if let Node::Name(name) = &node { Load::of(name) } else { None };
                let memory = if load.is_some() { self.memory()? } else { None };
                let index = self.nested(Self::choice)?;
                if !self.take("]") {
                    return Err(self.expected("`]`"));
                }
                node = match load {
                    Some(load) => Node::Load(load, memory.unwrap_or(0), Box::new(index)),
                    None => Node::Index(Box::new([node, index])),
                };
            } else {
                return Ok(node);
            }
        }
    }

    /// The index of a memory, if one precedes the address: `1:`.
    fn memory(&mut self) -> Result<Option<u32>, Error> {
        let is_colon = matches!(self.tokens.get(self.at + 1), Some(Token::Operator(":")));
        let (Token::Integer(index), true) = (self.peek().clone(), is_colon) else { return Ok(None) };
        let index = u32::try_from(index).map_err(|_| self.expected("the index of a memory"))?;
        self.next();
        self.next();
        Ok(Some(index))
    }

    fn primary(&mut self) -> Result<Node, Error> {
        if self.take("(") {
            let node = self.nested(Self::choice)?;
            return if self.take(")") { Ok(node) } else { Err(self.expected("`)`")) };
        }
        match self.next() {
            Token::Integer(value) => Ok(Node::Integer(value)),
            Token::Float(value) => Ok(Node::Float(value)),
            Token::Vector(bits) => Ok(Node::Vector(bits)),
            Token::Name(name) => Ok(named(name)),
            _ => Err(self.expected("a value")),
        }
    }
}

fn named(name: String) -> Node {
    let numbered = |prefix: &str| name.strip_prefix(prefix)?.parse().ok();
    match name.as_str() {
        "$pc" => return Node::Special(Special::Pc),
        "$depth" => return Node::Special(Special::Depth),
        "$function" => return Node::Special(Special::Function),
        _ => {}
    }
    if let Some(index) = numbered("$local") {
        Node::Local(index)
    } else if let Some(depth) = numbered("$stack") {
        Node::Operand(depth)
    } else if let Some(index) = numbered("$global") {
        Node::Global(index)
    } else {
        Node::Name(name)
    }
}
