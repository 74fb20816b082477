//! Parses a script's text to its syntax tree, by recursive descent.
//!
//! The text of a match rule has its own lexical structure, so the parser looks for one wherever an
//! item of a script may start: parts of names and wildcards, then a colon. The grammar is in the
//! module documentation.

use super::ast::{
    BinaryOp, Declaration, Expr, ExprKind, Function, Ident, Item, Parameter, Rule, Sample, Script, Selection,
    Statement, StatementKind, Storage, UnaryOp,
};
use super::diagnostics::{Problem, ProblemKind, Span};
use super::lexer::{Lexer, Token};
use super::type_parameters::TypeParameters;
use super::types::{Buckets, Type};

/// The maximum nesting of expressions, blocks and types.
const MAX_DEPTH: usize = 128;

/// The maximum number of conditions of an `if` statement, including `elif`.
const MAX_ARMS: usize = 256;

/// The number of problems after which a script is abandoned.
const MAX_PROBLEMS: usize = 20;

const KEYWORDS: [&str; 16] = [
    "return", "if", "elif", "else", "while", "break", "continue", "var", "report", "unshared", "shared",
    "frame", "thread", "fn", "use", "map",
];

/// The object whose members are the arguments of a native function, by name.
const ARGUMENTS: &str = "args";

type Parsed<T> = Result<T, Problem>;

/// Parses a script; reports all problems after which parsing can continue.
pub(super) fn parse(source: &str) -> Result<Script, Vec<Problem>> {
    let mut parser = Parser::new(source);
    let mut items = Vec::new();
    let mut problems = Vec::new();
    loop {
        match parser.item(&mut items) {
            Ok(true) => {}
            Ok(false) => break,
            Err(problem) => {
                problems.push(problem);
                let span = problems.last().map_or(0..0, |problem: &Problem| problem.span.clone());
                if problems.len() == MAX_PROBLEMS || !parser.recover(&span) {
                    break;
                }
            }
        }
    }
    if problems.is_empty() { Ok(Script { items }) } else { Err(problems) }
}

/// Parses the match rule of `whamm info`: no predicate, no body. There are several if it has type
/// parameters.
pub(super) fn parse_rule(source: &str) -> Result<Vec<Rule>, Vec<Problem>> {
    let mut parser = Parser::new(source);
    let parsed = parser.lexer.skip_blanks().and_then(|()| {
        parser.for_each_choice(|parser| {
            let start = parser.lexer.position();
            let (parts, bounds) = parser.match_rule(start)?;
            let end = parser.lexer.position();
            match parser.lexer.next()? {
                (Token::End, _) => {}
                (other, span) => return Err(unexpected(&other, span, "the end of the rule")),
            }
            let (selection, types) = (Selection::default(), parser.parameters.choice());
            let span = start..end;
            Ok(Rule { selection, types, parts, bounds, predicate: None, body: Vec::new(), span })
        })
    });
    parsed.map_err(|problem| vec![problem])
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    depth: usize,
    /// The number of blocks that are open.
    braces: usize,
    /// Whether a `/` before `{` ends the expression.
    in_predicate: bool,
    /// The type parameters of the rule.
    parameters: TypeParameters,
    /// The bytes of the text that is read once for each choice of types.
    repeated: usize,
}

fn unexpected(token: &Token, span: Span, expected: &str) -> Problem {
    Problem::new(ProblemKind::Syntax, span, format!("expected {expected}, found {}", token.describe()))
}

/// Characters of match rules.
fn is_of_rule(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.*+\\?|![]-^".contains(c)
}

impl<'a> Parser<'a> {
    fn new(source: &'a str) -> Self {
        let parameters = TypeParameters::default();
        Self { lexer: Lexer::new(source), depth: 0, braces: 0, in_predicate: false, parameters, repeated: 0 }
    }

    fn peek(&self) -> Parsed<(Token, Span)> {
        self.lexer.clone().next()
    }

    /// Whether the next token is this punctuation.
    fn at(&self, mark: &'static str) -> Parsed<bool> {
        Ok(self.peek()?.0 == Token::Mark(mark))
    }

    fn accept(&mut self, mark: &'static str) -> Parsed<bool> {
        let mut after = self.lexer.clone();
        let found = after.next()?.0 == Token::Mark(mark);
        if found {
            self.lexer = after;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: &'static str) -> Parsed<Span> {
        match self.lexer.clone().next()? {
            (Token::Mark(found), span) if found == mark => {
                self.lexer.next()?;
                Ok(span)
            }
            (token, span) => Err(unexpected(&token, span, &format!("`{mark}`"))),
        }
    }

    /// Accepts a keyword.
    fn keyword(&mut self, word: &str) -> Parsed<bool> {
        let mut after = self.lexer.clone();
        let found = matches!(after.next()?.0, Token::Name(name) if name == word);
        if found {
            self.lexer = after;
        }
        Ok(found)
    }

    fn ident(&mut self, what: &str) -> Parsed<Ident> {
        match self.peek()? {
            (Token::Name(name), span) if !KEYWORDS.contains(&name.as_str()) => {
                self.lexer.next()?;
                Ok(Ident { name, span })
            }
            (token, span) => Err(unexpected(&token, span, what)),
        }
    }

    /// Runs a part of the parser one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            let (_, span) = self.peek()?;
            return Err(Problem::new(
                ProblemKind::Limit,
                span,
                format!("nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Skips the rest of an item that has a problem at this place; returns whether there may be
    /// more items.
    fn recover(&mut self, at: &Span) -> bool {
        self.depth = 0;
        self.in_predicate = false;
        self.parameters = TypeParameters::default();
        let mut braces = std::mem::take(&mut self.braces);
        // A brace that is itself the problem may have been read.
        if at.end == self.lexer.position() {
            match self.lexer.text(at.clone()).as_str() {
                "{" => braces += 1,
                "}" if braces == 1 => return true,
                "}" => braces = braces.saturating_sub(1),
                _ => {}
            }
        }
        loop {
            match self.lexer.next() {
                Ok((Token::End, _)) | Err(_) => return false,
                Ok((Token::Mark("{"), _)) => braces += 1,
                Ok((Token::Mark("}"), _)) => {
                    braces = braces.saturating_sub(1);
                    if braces == 0 {
                        return true;
                    }
                }
                Ok((Token::Mark(";"), _)) if braces == 0 => return true,
                Ok(_) => {}
            }
        }
    }

    /// Adds the next item, if there is one: several for a rule with type parameters.
    fn item(&mut self, items: &mut Vec<Item>) -> Parsed<bool> {
        self.lexer.skip_blanks()?;
        if self.lexer.rest().is_empty() {
            return Ok(false);
        }
        let selection = self.selection()?;
        if self.at_rule() {
            items.extend(self.rules(&selection)?.into_iter().map(Item::Rule));
            return Ok(true);
        }
        if let Some(span) = selection.once.or(selection.sample.map(|(_, span)| span)).or(selection.toggle) {
            let message = "this annotation belongs to a rule";
            return Err(Problem::new(ProblemKind::Syntax, span, message));
        }
        if self.keyword("use")? {
            let library = self.ident("the name of a library")?;
            self.expect(";")?;
            items.push(Item::Use(library));
        } else if self.keyword("fn")? {
            items.push(Item::Function(self.function()?));
        } else {
            items.push(Item::Statement(self.statement()?));
        }
        Ok(true)
    }

    /// The annotations of a rule, if there are any: `@once`, `@sample(1%)`, `@sample(10ms)`,
    /// `@toggle`.
    fn selection(&mut self) -> Parsed<Selection> {
        let mut selection = Selection::default();
        loop {
            let start = self.lexer.position();
            let mut after = self.lexer.clone();
            let (Ok((Token::Mark("@"), _)), Ok((Token::Name(name), _))) = (after.next(), after.next()) else {
                return Ok(selection);
            };
            let is_again = match name.as_str() {
                "once" => selection.once.is_some(),
                "sample" => selection.sample.is_some(),
                "toggle" => selection.toggle.is_some(),
                _ => return Ok(selection),
            };
            self.lexer = after;
            let part = if name == "sample" { Some(self.sample()?) } else { None };
            let span = start..self.lexer.position();
            if is_again {
                let message = format!("a rule has one `@{name}`");
                return Err(Problem::new(ProblemKind::Syntax, span, message));
            }
            selection.text.push_str(&self.lexer.text(span.clone()));
            selection.text.push(' ');
            match part {
                Some(sample) => selection.sample = Some((sample, span)),
                None if name == "toggle" => selection.toggle = Some(span),
                None => selection.once = Some(span),
            }
            self.lexer.skip_blanks()?;
        }
    }

    /// `(1%)` or `(10ms)`.
    fn sample(&mut self) -> Parsed<Sample> {
        self.expect("(")?;
        let (number, span) = self.lexer.next()?;
        let number = match number {
            Token::Int(number) => number as f64,
            Token::Float(number) => number,
            other => {
                return Err(unexpected(&other, span, "a percentage or a time, such as `1%` or `10ms`"));
            }
        };
        let (token, of_unit) = self.lexer.next()?;
        let nanoseconds = match &token {
            Token::Mark("%") => None,
            Token::Name(unit) if unit == "us" => Some(1e3),
            Token::Name(unit) if unit == "ms" => Some(1e6),
            Token::Name(unit) if unit == "s" => Some(1e9),
            _ => return Err(unexpected(&token, of_unit, "`%`, `us`, `ms` or `s`")),
        };
        self.expect(")")?;
        let wrong = |message| Err(Problem::new(ProblemKind::Syntax, span, message));
        let Some(nanoseconds) = nanoseconds else {
            let probability = (number / 100.0 * (1_u64 << 32) as f64).round() as u64;
            return match number > 100.0 || probability == 0 {
                true => wrong("a percentage is at most 100, and more than 0.00000001"),
                false => Ok(Sample::Probability(probability)),
            };
        };
        match (number * nanoseconds).round() {
            period @ 1e3..=3.6e12 => Ok(Sample::Period(period as u64)),
            _ => wrong("a time between two events is at least `1us`, and at most an hour"),
        }
    }

    /// Whether a match rule follows: a part, perhaps type bounds, and a colon.
    fn at_rule(&self) -> bool {
        let rest = self.lexer.rest();
        let part = rest.find(|c: char| !is_of_rule(c)).unwrap_or(rest.len());
        let mut after = rest[part..].trim_start();
        while let Some(bounds) = after.strip_prefix(['(', '<']) {
            match bounds.find([')', '>', ';', '{']) {
                Some(end) if bounds[end..].starts_with([')', '>']) => after = bounds[end + 1..].trim_start(),
                _ => return false,
            }
        }
        after.starts_with(':')
    }

    /// A rule: one for each choice of types, if it has type parameters.
    fn rules(&mut self, selection: &Selection) -> Parsed<Vec<Rule>> {
        self.for_each_choice(|parser| parser.rule(selection.clone()))
    }

    /// Reads a rule once for each choice of types for its type parameters.
    fn for_each_choice(&mut self, mut parse: impl FnMut(&mut Self) -> Parsed<Rule>) -> Parsed<Vec<Rule>> {
        let start = self.lexer.clone();
        self.parameters = TypeParameters::default();
        let mut rules = vec![parse(self)?];
        if let Some(span) = self.parameters.span.clone() {
            self.repeated += (self.lexer.position() - start.position()) * self.parameters.choices();
            if self.repeated > super::MAX_SIZE {
                let message = "rules with type parameters are too large, written once for each type";
                return Err(Problem::new(ProblemKind::Limit, span, message));
            }
        }
        while self.parameters.advance() {
            self.lexer = start.clone();
            rules.push(parse(self)?);
        }
        self.parameters = TypeParameters::default();
        Ok(rules)
    }

    fn rule(&mut self, selection: Selection) -> Parsed<Rule> {
        let start = self.lexer.position();
        let (parts, bounds) = self.match_rule(start)?;
        let span = start..self.lexer.position();
        let predicate = if self.accept("/")? {
            self.in_predicate = true;
            let predicate = self.expr();
            self.in_predicate = false;
            let predicate = predicate?;
            self.expect("/")?;
            Some(predicate)
        } else {
            None
        };
        let types = self.parameters.choice();
        Ok(Rule { selection, types, parts, bounds, predicate, body: self.block()?, span })
    }

    fn match_rule(&mut self, start: usize) -> Parsed<(Vec<Ident>, Vec<Parameter>)> {
        let mut parts = Vec::new();
        let mut bounds = Vec::new();
        loop {
            let at = self.lexer.position();
            let rest = self.lexer.rest();
            let length = rest.find(|c: char| !is_of_rule(c)).unwrap_or(rest.len());
            self.lexer.advance(length);
            parts.push(Ident { name: rest[..length].to_owned(), span: at..at + length });
            if self.at("<")? {
                self.type_parameters()?;
            }
            if self.at("(")? {
                bounds.extend(self.parameters(Self::bound, Self::bound_type)?);
            }
            // Blanks are allowed around colons only if a colon follows.
            let end = self.lexer.clone();
            self.lexer.skip_blanks()?;
            if !self.lexer.rest().starts_with(':') {
                self.lexer = end;
                break;
            }
            self.lexer.advance(1);
            let after_colon = self.lexer.clone();
            self.lexer.skip_blanks()?;
            if !self.lexer.rest().starts_with(is_of_rule) && !self.lexer.rest().starts_with(':') {
                self.lexer = after_colon;
            }
        }
        self.parameters.all_used()?;
        let span = start..self.lexer.position();
        match parts.len() {
            2..=4 => Ok((parts, bounds)),
            _ => Err(Problem::new(
                ProblemKind::Rule,
                span,
                "a match rule has the form `provider:package:event:mode`",
            )),
        }
    }

    /// `<T: numeric, ..>`: the first time, the parameters of the rule; then they are known.
    fn type_parameters(&mut self) -> Parsed<()> {
        let start = self.expect("<")?.start;
        let is_known = match &self.parameters.span {
            Some(known) if known.start != start => {
                let message = "the type parameters of a rule are declared once";
                return Err(Problem::new(ProblemKind::Rule, start..start + 1, message));
            }
            known => known.is_some(),
        };
        loop {
            let name = self.ident("the name of a type parameter")?;
            self.expect(":")?;
            let (token, span) = self.lexer.next()?;
            let Token::Name(class) = &token else {
                return Err(unexpected(&token, span, "`numeric`, `int` or `float`"));
            };
            if !is_known {
                self.parameters.declare(name, class, span)?;
            }
            if !self.accept(",")? {
                break;
            }
        }
        let end = self.expect(">")?.end;
        self.parameters.span = Some(start..end);
        Ok(())
    }

    /// The name of a bound, including that of an argument, such as `args.size`.
    fn bound(&mut self) -> Parsed<Ident> {
        let name = self.ident("a name")?;
        if name.name != ARGUMENTS || !self.accept(".")? {
            return Ok(name);
        }
        self.argument(name)
    }

    /// The name of an argument, after `args.`. It comes from the program: keywords are allowed.
    fn argument(&mut self, object: Ident) -> Parsed<Ident> {
        match self.lexer.next()? {
            (Token::Name(name), span) => {
                Ok(Ident { name: format!("{ARGUMENTS}.{name}"), span: object.span.start..span.end })
            }
            (token, span) => Err(unexpected(&token, span, "the name of an argument")),
        }
    }

    /// The type in a type bound, where `ref` is also a type.
    fn bound_type(&mut self) -> Parsed<Type> {
        match self.peek()? {
            (Token::Name(name), _) if name == "ref" => {
                self.lexer.next()?;
                Ok(Type::Ref)
            }
            _ => self.type_(),
        }
    }

    /// `(name: type, ..)`
    fn parameters(
        &mut self,
        parse_name: fn(&mut Self) -> Parsed<Ident>,
        parse_type: fn(&mut Self) -> Parsed<Type>,
    ) -> Parsed<Vec<Parameter>> {
        self.expect("(")?;
        let mut parameters = Vec::new();
        if self.accept(")")? {
            return Ok(parameters);
        }
        loop {
            let name = parse_name(self)?;
            self.expect(":")?;
            parameters.push(Parameter { name, ty: parse_type(self)? });
            if !self.accept(",")? {
                break;
            }
        }
        self.expect(")")?;
        Ok(parameters)
    }

    fn function(&mut self) -> Parsed<Function> {
        let name = self.ident("the name of a function")?;
        let parameters = self.parameters(|parser| parser.ident("a name"), Self::type_)?;
        let result = if self.accept("->")? { self.type_()? } else { Type::UNIT };
        Ok(Function { name, parameters, result, body: self.block()? })
    }

    fn type_(&mut self) -> Parsed<Type> {
        self.nested(|parser| match parser.lexer.next()? {
            (Token::Name(name), span) if name == "map" => {
                parser.expect("<")?;
                let key = parser.type_()?;
                parser.expect(",")?;
                let value = parser.type_()?;
                match parser.peek()? {
                    (Token::Mark(">>"), _) => {
                        let message = "a map of maps is not supported";
                        return Err(Problem::new(ProblemKind::Unsupported, span, message)
                            .help("use a tuple as the key: `map<(u32, u32), u32>`"));
                    }
                    _ => parser.expect(">")?,
                };
                Ok(Type::Map(Box::new(key), Box::new(value)))
            }
            (Token::Name(name), _) if name == "linear" => {
                parser.expect("<")?;
                let (token, span) = parser.lexer.next()?;
                let Token::Int(width @ 1..) = token else {
                    return Err(Problem::new(ProblemKind::Type, span, "the width of buckets is a number above 0"));
                };
                parser.expect(">")?;
                Ok(Type::Bucket(Buckets::Linear(width)))
            }
            (Token::Name(name), span) => {
                let chosen = parser.parameters.find(&name);
                chosen.or_else(|| Type::primitive(&name)).ok_or_else(|| {
                Problem::new(ProblemKind::Type, span, format!("unknown type `{name}`")).help(
                    "types are u8 to u64, i8 to i64, f32, f64, bool, str, log2, linear<WIDTH>, stack, tuples such as \
                     (u32, bool), and map<KEY, VALUE>",
                )
                })
            }
            (Token::Mark("("), _) => {
                let mut fields = Vec::new();
                if parser.accept(")")? {
                    return Ok(Type::UNIT);
                }
                loop {
                    fields.push(parser.type_()?);
                    if !parser.accept(",")? {
                        break;
                    }
                }
                parser.expect(")")?;
                Ok(Type::Tuple(fields))
            }
            (token, span) => Err(unexpected(&token, span, "a type")),
        })
    }

    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.nested(|parser| {
            parser.expect("{")?;
            parser.braces += 1;
            let mut statements = Vec::new();
            while !parser.accept("}")? {
                statements.push(parser.statement()?);
            }
            parser.braces -= 1;
            Ok(statements)
        })
    }

    fn statement(&mut self) -> Parsed<Statement> {
        self.lexer.skip_blanks()?;
        let start = self.lexer.position();
        let kind = if self.keyword("if")? {
            self.if_statement()?
        } else if self.keyword("while")? {
            self.expect("(")?;
            let condition = self.expr()?;
            self.expect(")")?;
            StatementKind::While { condition, body: self.block()? }
        } else {
            let kind = self.simple_statement()?;
            self.expect(";")?;
            kind
        };
        Ok(Statement { kind, span: start..self.lexer.position() })
    }

    fn if_statement(&mut self) -> Parsed<StatementKind> {
        let mut arms = Vec::new();
        loop {
            let open = self.expect("(")?;
            if arms.len() == MAX_ARMS {
                let message = format!("a statement `if` has at most {MAX_ARMS} conditions");
                return Err(Problem::new(ProblemKind::Limit, open, message));
            }
            let condition = self.expr()?;
            self.expect(")")?;
            arms.push((condition, self.block()?));
            if !self.keyword("elif")? {
                break;
            }
        }
        let otherwise = if self.keyword("else")? { self.block()? } else { Vec::new() };
        Ok(StatementKind::If { arms, otherwise })
    }

    fn simple_statement(&mut self) -> Parsed<StatementKind> {
        if self.keyword("return")? {
            let value = if self.at(";")? { None } else { Some(self.expr()?) };
            return Ok(StatementKind::Return(value));
        }
        if self.keyword("break")? {
            return Ok(StatementKind::Break);
        }
        if self.keyword("continue")? {
            return Ok(StatementKind::Continue);
        }
        if let Some(declaration) = self.declaration()? {
            return Ok(StatementKind::Declare(declaration));
        }
        let target = self.postfix()?;
        match self.peek()? {
            (Token::Mark("="), _) => {
                self.lexer.next()?;
                Ok(StatementKind::Assign { target, value: self.expr()? })
            }
            (Token::Mark(mark @ ("++" | "--")), _) => {
                self.lexer.next()?;
                Ok(StatementKind::Step { target, up: mark == "++" })
            }
            _ if matches!(target.kind, ExprKind::Call { .. }) => Ok(StatementKind::Call(target)),
            (token, span) => Err(unexpected(&token, span, "`=`, `++` or `--`")),
        }
    }

    fn declaration(&mut self) -> Parsed<Option<Declaration>> {
        let mut report = false;
        let mut storage = None;
        loop {
            let (token, span) = self.peek()?;
            let Token::Name(word) = token else { return Ok(None) };
            let class = match word.as_str() {
                "report" => {
                    report = true;
                    self.lexer.next()?;
                    continue;
                }
                "unshared" => Storage::Unshared,
                "shared" => Storage::Shared,
                "frame" => Storage::Frame,
                "thread" => Storage::Thread,
                "var" => {
                    self.lexer.next()?;
                    break;
                }
                _ if report || storage.is_some() => {
                    return Err(unexpected(&Token::Name(word), span, "`var`"));
                }
                _ => return Ok(None),
            };
            self.lexer.next()?;
            if storage.replace(class).is_some_and(|earlier| earlier != class) {
                return Err(Problem::new(ProblemKind::Syntax, span, "a variable has one storage class"));
            }
        }
        let name = self.ident("the name of a variable")?;
        self.expect(":")?;
        let ty = self.type_()?;
        let init = if self.accept("=")? { Some(self.expr()?) } else { None };
        Ok(Some(Declaration { storage: storage.unwrap_or(Storage::Plain), report, name, ty, init }))
    }

    /// An expression, with `?:`.
    fn expr(&mut self) -> Parsed<Expr> {
        self.nested(|parser| {
            let condition = parser.binary(0)?;
            if !parser.accept("?")? {
                return Ok(condition);
            }
            let yes = parser.expr()?;
            parser.expect(":")?;
            let no = parser.expr()?;
            let span = condition.span.start..no.span.end;
            node(span, ExprKind::Ternary(Box::new(condition), Box::new(yes), Box::new(no)))
        })
    }

    fn binary(&mut self, lowest: u8) -> Parsed<Expr> {
        let mut left = self.unary()?;
        // The operands of `&&` or `||` so far, after which only these two follow.
        let mut chain: Option<(BinaryOp, Vec<Expr>)> = None;
        while let Some(operator) = self.binary_operator()? {
            if operator.precedence() < lowest {
                break;
            }
            self.lexer.next()?;
            let right = self.nested(|parser| parser.binary(operator.precedence() + 1))?;
            if matches!(operator, BinaryOp::And | BinaryOp::Or) {
                match &mut chain {
                    Some((known, operands)) if *known == operator => operands.push(right),
                    _ => {
                        let first = match chain.take() {
                            Some((known, operands)) => balanced(known, operands)?,
                            None => left.clone(),
                        };
                        chain = Some((operator, vec![first, right]));
                    }
                }
                continue;
            }
            let span = left.span.start..right.span.end;
            left = node(span, ExprKind::Binary(operator, Box::new(left), Box::new(right)))?;
        }
        match chain {
            Some((operator, operands)) => balanced(operator, operands),
            None => Ok(left),
        }
    }

    /// The operator that follows.
    fn binary_operator(&self) -> Parsed<Option<BinaryOp>> {
        let mut after = self.lexer.clone();
        Ok(Some(match after.next()?.0 {
            Token::Mark("/") if self.in_predicate && after.next()?.0 == Token::Mark("{") => return Ok(None),
            Token::Mark("&&") => BinaryOp::And,
            Token::Mark("||") => BinaryOp::Or,
            Token::Mark("|") => BinaryOp::BitOr,
            Token::Mark("^") => BinaryOp::BitXor,
            Token::Mark("&") => BinaryOp::BitAnd,
            Token::Mark("==") => BinaryOp::Eq,
            Token::Mark("!=") => BinaryOp::Ne,
            Token::Mark(">=") => BinaryOp::Ge,
            Token::Mark(">") => BinaryOp::Gt,
            Token::Mark("<=") => BinaryOp::Le,
            Token::Mark("<") => BinaryOp::Lt,
            Token::Mark("<<") => BinaryOp::Shl,
            Token::Mark(">>") => BinaryOp::Shr,
            Token::Mark("+") => BinaryOp::Add,
            Token::Mark("-") => BinaryOp::Sub,
            Token::Mark("*") => BinaryOp::Mul,
            Token::Mark("/") => BinaryOp::Div,
            Token::Mark("%") => BinaryOp::Rem,
            _ => return Ok(None),
        }))
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let (token, span) = self.peek()?;
        let operator = match token {
            Token::Mark("!") => UnaryOp::Not,
            Token::Mark("~") => UnaryOp::Complement,
            Token::Mark("-") => UnaryOp::Negate,
            _ => return self.cast(),
        };
        self.lexer.next()?;
        let operand = self.nested(Self::unary)?;
        node(span.start..operand.span.end, ExprKind::Unary(operator, Box::new(operand)))
    }

    /// An operand, with casts: `operand as type`.
    fn cast(&mut self) -> Parsed<Expr> {
        let mut operand = self.postfix()?;
        while self.keyword("as")? {
            let ty = self.type_()?;
            let span = operand.span.start..self.lexer.position();
            operand = node(span, ExprKind::Cast(Box::new(operand), ty))?;
        }
        Ok(operand)
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let (token, span) = self.lexer.next()?;
        let start = span.start;
        let leaf = |kind| Ok(Expr { kind, span: span.clone(), depth: 1 });
        match token {
            Token::Int(value) => leaf(ExprKind::Int(value)),
            Token::Float(value) => leaf(ExprKind::Float(value)),
            Token::Str(text) => leaf(ExprKind::Str(text)),
            Token::Mark("(") => self.parenthesized(start),
            Token::Mark("@") => {
                let annotation = self.ident("`static` or `init`")?;
                let name = self.ident("a call of a library")?;
                self.call_or_field(start, Some(annotation), name)
            }
            Token::Name(name) if name == "true" || name == "false" => leaf(ExprKind::Bool(name == "true")),
            Token::Name(name) if !KEYWORDS.contains(&name.as_str()) => {
                self.call_or_field(start, None, Ident { name, span })
            }
            token => Err(unexpected(&token, span, "an expression")),
        }
    }

    fn parenthesized(&mut self, start: usize) -> Parsed<Expr> {
        if self.accept(")")? {
            return node(start..self.lexer.position(), ExprKind::Tuple(Vec::new()));
        }
        let in_predicate = std::mem::replace(&mut self.in_predicate, false);
        let mut fields = vec![self.expr()?];
        while self.accept(",")? {
            fields.push(self.expr()?);
        }
        self.expect(")")?;
        self.in_predicate = in_predicate;
        let span = start..self.lexer.position();
        match fields.pop() {
            Some(only) if fields.is_empty() => Ok(Expr { span, ..only }),
            last => {
                fields.extend(last);
                node(span, ExprKind::Tuple(fields))
            }
        }
    }

    /// The rest after a name: a call, an index, fields, or nothing.
    fn call_or_field(&mut self, start: usize, annotation: Option<Ident>, name: Ident) -> Parsed<Expr> {
        if self.at("(")? {
            return self.call(start, annotation, None, name);
        }
        if self.accept("[")? {
            let in_predicate = std::mem::replace(&mut self.in_predicate, false);
            let key = self.expr()?;
            self.in_predicate = in_predicate;
            self.expect("]")?;
            if self.at(".")? {
                let problem = unexpected(&Token::Mark("."), self.peek()?.1, "an operator");
                return Err(problem.help("assign the tuple to a variable, whose fields can be read"));
            }
            return node(start..self.lexer.position(), ExprKind::Index(name, Box::new(key)));
        }
        if !self.at(".")? {
            if let Some(annotation) = annotation {
                let message = "an annotation belongs to a call of a library";
                let help = "annotations of calls are `@static` and `@init`; those of rules are `@once`, \
                            `@sample(1%)` and `@toggle`";
                return Err(Problem::new(ProblemKind::Syntax, annotation.span, message).help(help));
            }
            let span = name.span;
            return Ok(Expr { kind: ExprKind::Name(name.name), span, depth: 1 });
        }
        let mut path = Vec::new();
        while self.accept(".")? {
            // `0.1` of `tuple.0.1` is a number for the lexer.
            let digits = self.lexer.rest();
            let length = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            if length == 0 && name.name == ARGUMENTS && annotation.is_none() && !self.is_call() {
                let Ident { name, span } = self.argument(name)?;
                return Ok(Expr { kind: ExprKind::Name(name), span, depth: 1 });
            }
            if length == 0 {
                let member = self.ident("a field's number or a function")?;
                if !path.is_empty() {
                    let message = "only variables have functions, not the fields of tuples";
                    let help = "assign the field to a variable, which has functions";
                    return Err(Problem::new(ProblemKind::Syntax, member.span, message).help(help));
                }
                return self.call(start, annotation, Some(name), member);
            }
            let at = self.lexer.position();
            self.lexer.advance(length);
            let unknown = || Problem::new(ProblemKind::Limit, at..at + length, "a tuple has fewer fields");
            path.push(digits[..length].parse().map_err(|_| unknown())?);
        }
        node(start..self.lexer.position(), ExprKind::Field(name, path))
    }

    /// Whether a name and an opening parenthesis follow.
    fn is_call(&self) -> bool {
        let mut after = self.lexer.clone();
        after.next().is_ok_and(|(token, _)| matches!(token, Token::Name(_)))
            && after.next().is_ok_and(|(token, _)| token == Token::Mark("("))
    }

    fn call(
        &mut self,
        start: usize,
        annotation: Option<Ident>,
        object: Option<Ident>,
        name: Ident,
    ) -> Parsed<Expr> {
        self.expect("(")?;
        let in_predicate = std::mem::replace(&mut self.in_predicate, false);
        let mut arguments = Vec::new();
        if !self.accept(")")? {
            loop {
                arguments.push(self.expr()?);
                if !self.accept(",")? {
                    break;
                }
            }
            self.expect(")")?;
        }
        self.in_predicate = in_predicate;
        node(start..self.lexer.position(), ExprKind::Call { annotation, object, name, arguments })
    }
}

/// Makes an expression from the operands of an associative operator, of which there may be
/// thousands: the height of the tree is the logarithm of their number.
fn balanced(operator: BinaryOp, mut operands: Vec<Expr>) -> Parsed<Expr> {
    let last = operands.split_off(operands.len() / 2);
    let half = |mut operands: Vec<Expr>| match operands.pop() {
        Some(only) if operands.is_empty() => Ok(only),
        last => {
            operands.extend(last);
            balanced(operator, operands)
        }
    };
    let (left, right) = (half(operands)?, half(last)?);
    node(left.span.start..right.span.end, ExprKind::Binary(operator, Box::new(left), Box::new(right)))
}

/// Makes an expression, unless its tree gets too high: later steps are recursive.
fn node(span: Span, kind: ExprKind) -> Parsed<Expr> {
    let mut node = Expr { kind, span, depth: 0 };
    node.depth = 1 + node.children().iter().map(|child| child.depth).max().unwrap_or(0);
    if node.depth <= 2 * MAX_DEPTH {
        return Ok(node);
    }
    let message = format!("an expression of more than {} levels", 2 * MAX_DEPTH);
    Err(Problem::new(ProblemKind::Limit, node.span, message).help("keep a part of it in a variable"))
}
