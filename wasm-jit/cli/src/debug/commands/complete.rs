//! Completion of lines.

use wasm_jit_debug::{Error, Expression};

use super::{COMMANDS, Done, INFO, Session, find, say};

/// What the arguments of a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    None,
    Place,
    Function,
    Expression,
    /// Numbers of breakpoints; an expression may follow.
    Breakpoints,
    Words(&'static [&'static str]),
    Command,
}

fn arguments_of(command: &str) -> Arguments {
    match command {
        "break" | "tbreak" | "until" | "list" => Arguments::Place,
        "disassemble" => Arguments::Function,
        "watch" | "print" | "set" | "x" => Arguments::Expression,
        "delete" | "enable" | "disable" | "condition" | "ignore" => Arguments::Breakpoints,
        "info" => Arguments::Words(INFO),
        "catch" => Arguments::Words(&["on", "off"]),
        "help" | "complete" => Arguments::Command,
        _ => Arguments::None,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$' || c == ':'
}

/// The start of the name at the end of a line.
pub(in crate::debug) fn word_start(line: &str) -> usize {
    line.trim_end_matches(is_word).len()
}

/// The start of the operand at the end of an expression: a name, with members and elements.
fn operand_start(text: &str) -> usize {
    let (mut start, mut open) = (text.len(), Vec::new());
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => open.push(c),
            '(' if open.last() == Some(&')') => _ = open.pop(),
            '[' if open.last() == Some(&']') => _ = open.pop(),
            _ if !open.is_empty() => {}
            '>' if text[..at].ends_with('-') => {}
            '-' if text[at..].starts_with("->") => {}
            _ if is_word(c) || c == '.' => {}
            _ => break,
        }
        // What is open would end before it begins.
        if open.is_empty() {
            start = at;
        }
    }
    start
}

/// The parts of a full name that begin with a word: `b::c` of `a::b::c` for `b`.
fn parts<'n>(name: &'n str, word: &str) -> Option<&'n str> {
    let starts = std::iter::once(0).chain(name.match_indices("::").map(|(at, _)| at + 2));
    starts.map(|at| &name[at..]).find(|part| part.starts_with(word))
}

impl Session {
    pub(super) fn complete(&mut self, line: &str) -> Done {
        say(self.completions(line).into_iter().map(|line| line + "\n").collect::<String>())
    }

    /// The lines to which a line can be completed, in alphabetical order.
    fn completions(&self, line: &str) -> Vec<String> {
        let text = line.trim_start();
        let mut found: Vec<String> = match find(text) {
            _ if !text.contains(|c: char| c.is_whitespace() || c == '/') => {
                let names = COMMANDS.iter().filter(|command| command.name.starts_with(text));
                names.map(|command| format!("{} ", command.name)).collect()
            }
            Ok((command, rest)) => {
                let before = &line[..line.len() - rest.len()];
                let all = self.arguments(arguments_of(command.name), rest);
                all.into_iter().map(|rest| format!("{before}{rest}")).collect()
            }
            Err(_) => Vec::new(),
        };
        found.sort();
        found.dedup();
        found
    }

    /// The arguments to which some can be completed.
    fn arguments(&self, kind: Arguments, text: &str) -> Vec<String> {
        let start = text.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let (before, word) = text.split_at(start);
        let with = |names: Vec<String>| -> Vec<String> {
            let names = names.iter().filter_map(|name| parts(name, word));
            names.map(|name| format!("{before}{name}")).collect()
        };
        match kind {
            Arguments::None => Vec::new(),
            Arguments::Place if text.contains(" if ") => self.expression(text),
            Arguments::Place => {
                let files = self.debugger.code().source_files().into_iter();
                with(
                    self.debugger
                        .code()
                        .function_names()
                        .into_iter()
                        .chain(files.map(|file| file + ":"))
                        .collect(),
                )
            }
            Arguments::Function => with(self.debugger.code().function_names()),
            Arguments::Expression => self.expression(text),
            Arguments::Breakpoints if before.trim().is_empty() => {
                with(self.debugger.breakpoints().iter().map(|of| of.number.to_string()).collect())
            }
            Arguments::Breakpoints => self.expression(text),
            Arguments::Words(words) => with(words.iter().map(|word| (*word).to_owned()).collect()),
            Arguments::Command => with(
                COMMANDS
                    .iter()
                    .map(|command| command.name.to_owned())
                    .chain(["expressions".to_owned()])
                    .collect(),
            ),
        }
    }

    /// The texts to which one that ends with a part of an expression can be completed.
    fn expression(&self, text: &str) -> Vec<String> {
        let (before, word) = text.split_at(word_start(text));
        let of = before.strip_suffix("->").or_else(|| before.strip_suffix('.'));
        let names = match of {
            Some(of) => match Expression::parse(&of[operand_start(of)..]) {
                Ok(of) => self.inspect(move |stopped, level| stopped.frame(level)?.member_names(&of)),
                Err(error) => Err(error.to_string()),
            },
            None => self
                .inspect(|stopped, level| Ok::<_, Error>(stopped.frame(level)?.names()))
                .or_else(|_| Ok(self.debugger.code().static_names())),
        };
        let names = names.unwrap_or_default();
        let found = names.iter().filter_map(|name| parts(name, word));
        found.map(|name| format!("{before}{name}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_have_members_and_elements() {
        for (text, expected) in [
            ("a + b", "b"),
            ("x == p->next", "p->next"),
            ("-a.b[i + 1].c", "a.b[i + 1].c"),
            ("1 + (*p)", "(*p)"),
            ("f[(1)]", "f[(1)]"),
            ("ns::a", "ns::a"),
            ("a > b", "b"),
            ("a)", ""),
        ] {
            assert_eq!(&text[operand_start(text)..], expected, "{text}");
        }
    }

    #[test]
    fn names_are_completed_from_any_component() {
        assert_eq!(parts("a::bc::d", "b"), Some("bc::d"));
        assert_eq!(parts("a::bc::d", "a::b"), Some("a::bc::d"));
        assert_eq!(parts("a::bc::d", "c"), None);
    }
}
