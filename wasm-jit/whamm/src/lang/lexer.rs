//! Tokens of a script.

use super::diagnostics::{Problem, ProblemKind, Span};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Int(u64),
    Float(f64),
    Str(String),
    /// An operator or other punctuation.
    Mark(&'static str),
    End,
}

impl Token {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Int(_) | Self::Float(_) => "a number".to_owned(),
            Self::Str(_) => "a string".to_owned(),
            Self::Mark(mark) => format!("`{mark}`"),
            Self::End => "the end of the script".to_owned(),
        }
    }
}

/// The operators and other punctuation, longer ones first.
const MARKS: [&str; 35] = [
    "->", "++", "--", "<<", ">>", "&&", "||", "==", "!=", ">=", "<=", "(", ")", "{", "}", "[", "]", "<", ">",
    ",", ";", ":", "=", "+", "-", "*", "/", "%", "!", "~", "&", "|", "^", "?", "@",
];

/// A position in a script, from which tokens are read.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'a> {
    source: &'a str,
    position: usize,
}

fn problem(span: Span, message: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Syntax, span, message)
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        Self { source, position: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.source[self.position..]
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.position += bytes;
    }

    /// The text of a part.
    pub(super) fn text(&self, span: Span) -> String {
        self.source[span].to_owned()
    }

    /// Skips blanks and comments; block comments nest.
    pub(super) fn skip_blanks(&mut self) -> Result<(), Problem> {
        loop {
            let rest = self.rest();
            let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            if blanks > 0 {
                self.advance(blanks);
            } else if rest.starts_with("//") {
                self.advance(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                self.skip_block_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    fn skip_block_comment(&mut self) -> Result<(), Problem> {
        let start = self.position;
        let mut depth = 0_usize;
        loop {
            let rest = self.rest();
            if rest.starts_with("/*") {
                depth += 1;
                self.advance(2);
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.advance(2);
                if depth == 0 {
                    return Ok(());
                }
            } else {
                match rest.chars().next() {
                    Some(c) => self.advance(c.len_utf8()),
                    None => return Err(problem(start..start + 2, "this comment does not end")),
                }
            }
        }
    }

    /// The next token and its place.
    pub(super) fn next(&mut self) -> Result<(Token, Span), Problem> {
        self.skip_blanks()?;
        let start = self.position;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start..start)) };
        let token = match first {
            'a'..='z' | 'A'..='Z' | '_' => {
                let length =
                    rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.advance(length);
                Token::Name(rest[..length].to_owned())
            }
            '0'..='9' => self.number()?,
            '"' => self.string()?,
            // Only after a name: `tuple.0`, `library.function`.
            '.' => {
                self.advance(1);
                Token::Mark(".")
            }
            _ => {
                let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) else {
                    let span = start..start + first.len_utf8();
                    return Err(problem(span, format!("unexpected character {first:?}")));
                };
                self.advance(mark.len());
                Token::Mark(mark)
            }
        };
        Ok((token, start..self.position))
    }

    fn number(&mut self) -> Result<Token, Problem> {
        let start = self.position;
        let rest = self.rest();
        let radix = match rest.get(..2) {
            Some("0x" | "0X") => 16,
            Some("0b" | "0B") => 2,
            _ => 10,
        };
        if radix != 10 {
            let length = 2 + rest[2..].find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len() - 2);
            self.advance(length);
            return u64::from_str_radix(&rest[2..length], radix)
                .map(Token::Int)
                .map_err(|_| problem(start..start + length, "not an integer of at most 64 bits"));
        }
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let mut length = digits(rest);
        let mut is_float = false;
        if rest[length..].starts_with('.') {
            is_float = true;
            length += 1 + digits(&rest[length + 1..]);
        }
        if rest[length..].starts_with(['e', 'E']) {
            let signed = rest[length + 1..].starts_with(['+', '-']);
            let from = length + 1 + usize::from(signed);
            let exponent = digits(&rest[from..]);
            if exponent > 0 {
                is_float = true;
                length = from + exponent;
            }
        }
        self.advance(length);
        let text = rest[..length].replace('_', "");
        let token = match is_float {
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        token.ok_or_else(|| problem(start..start + length, "not an integer of at most 64 bits"))
    }

    fn string(&mut self) -> Result<Token, Problem> {
        let start = self.position;
        let mut text = String::new();
        self.advance(1);
        loop {
            let at = self.position;
            let mut chars = self.rest().chars();
            let Some(c) = chars.next() else {
                return Err(problem(start..start + 1, "this string does not end"));
            };
            self.advance(c.len_utf8());
            match c {
                '"' => return Ok(Token::Str(text)),
                '\\' => text.push(self.escape(at)?),
                other => text.push(other),
            }
        }
    }

    /// The character of an escape sequence, after its backslash.
    fn escape(&mut self, start: usize) -> Result<char, Problem> {
        let rest = self.rest();
        let (length, character) = match rest.chars().next() {
            Some('n') => (1, Some('\n')),
            Some('r') => (1, Some('\r')),
            Some('t') => (1, Some('\t')),
            Some('0') => (1, Some('\0')),
            Some(same @ ('"' | '\'' | '\\')) => (1, Some(same)),
            Some('x') => {
                let byte = rest.get(1..3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (3, byte.map(char::from))
            }
            Some('u') => {
                let digits =
                    rest.strip_prefix("u{").and_then(|rest| rest.split_once('}')).map(|(digits, _)| digits);
                let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                (3 + digits.map_or(0, str::len), value.and_then(char::from_u32))
            }
            _ => (0, None),
        };
        let unknown = || problem(start..(start + 2).min(self.source.len()), "unknown escape sequence");
        let character = character.ok_or_else(unknown)?;
        self.advance(length);
        Ok(character)
    }
}
