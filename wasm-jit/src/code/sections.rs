//! Parts of a binary module that do not affect its execution: names, and DWARF. Read on demand;
//! malformed parts count as absent.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};

use wasmparser::{KnownCustom, Name, NameSectionReader, Parser, Payload};

/// The parts of a binary module, borrowed from it.
#[derive(Debug, Default)]
pub(crate) struct Sections<'a> {
    pub module_name: Option<&'a str>,
    pub function_names: HashMap<u32, &'a str>,
    /// Start of the contents of the code section: DWARF addresses are relative to it.
    pub code_start: u64,
    /// The sections whose names begin with `.debug_`.
    pub dwarf: HashMap<&'a str, &'a [u8]>,
}

impl<'a> Sections<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        let mut sections = Self::default();
        let mut parser = Parser::new(0);
        let mut rest = bytes;
        while let Ok(wasmparser::Chunk::Parsed { consumed, payload }) = parser.parse(rest, true) {
            rest = &rest[consumed..];
            match payload {
                Payload::CodeSectionStart { unchecked_range: range, size, .. } => {
                    sections.code_start = range.start;
                    parser.skip_section();
                    let Some(after) = rest.get(size as usize..) else { break };
                    rest = after;
                }
                Payload::CustomSection(custom) => match custom.as_known() {
                    KnownCustom::Name(names) => sections.read_names(names),
                    _ if custom.name().starts_with(".debug_") => {
                        sections.dwarf.insert(custom.name(), custom.data());
                    }
                    _ => {}
                },
                Payload::End(_) => break,
                _ => {}
            }
        }
        sections
    }

    fn read_names(&mut self, names: NameSectionReader<'a>) {
        for names in names.into_iter().map_while(Result::ok) {
            match names {
                Name::Module { name, .. } => self.module_name = Some(name),
                Name::Function(names) => {
                    let names = names.into_iter().map_while(Result::ok);
                    self.function_names.extend(names.map(|naming| (naming.index, naming.name)));
                }
                _ => {}
            }
        }
    }

    /// A function's name in source form.
    pub(crate) fn function_name(&self, index: u32) -> Option<String> {
        self.function_names.get(&index).map(|name| demangle(name))
    }
}

/// Escapes a text for a terminal: control characters, line breaks among them, and characters that
/// change the direction of the text become escapes such as `\u{1b}`.
///
/// ```
/// assert_eq!(wasm_jit::printable("red\u{1b}[31m"), r"red\u{1b}[31m");
/// assert_eq!(wasm_jit::printable("\"größe\""), "\"größe\"");
/// ```
pub fn printable(name: &str) -> Cow<'_, str> {
    if name.contains(acts_on_terminal) { name.escape_debug().to_string().into() } else { name.into() }
}

/// As [`printable`], for text of several lines.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| c != '\n' && acts_on_terminal(c);
    if !text.contains(is_escaped) {
        return text.into();
    }
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n").into()
}

/// Control characters, and characters that change the direction of the text.
fn acts_on_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Maximum length of a name that is shown. Short symbols may stand for very long names: each part
/// may repeat the preceding ones.
const MAX_NAME_LENGTH: usize = 64 << 10;

/// The symbol, demangled if it is a Rust or C++ symbol whose name is not too long; otherwise
/// unchanged.
///
/// ```
/// assert_eq!(wasm_jit::demangle("_ZN5space4sizeE"), "space::size");
/// assert_eq!(wasm_jit::demangle("size"), "size");
/// ```
pub fn demangle(symbol: &str) -> String {
    let mut name = Bounded(String::new());
    let demangled = if let Ok(demangled) = rustc_demangle::try_demangle(symbol) {
        write!(name, "{demangled:#}").is_ok()
    } else if symbol.starts_with("_Z") {
        let options = cpp_demangle::ParseOptions::default().recursion_limit(128);
        let of_name = cpp_demangle::DemangleOptions::default();
        cpp_demangle::Symbol::new_with_options(symbol, &options)
            .is_ok_and(|parsed| parsed.structured_demangle(&mut name, &of_name).is_ok())
    } else {
        false
    };
    if demangled { name.0 } else { symbol.to_owned() }
}

/// Accepts no more than [`MAX_NAME_LENGTH`].
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_NAME_LENGTH {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_rust_and_cpp_are_demangled() {
        let check = |symbol, expected| assert_eq!(demangle(symbol), expected);
        check("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt");
        check("_RNvC6_123foo3bar", "123foo::bar");
        check("_ZN3foo3barEi", "foo::bar(int)");
        check("_Zwrong", "_Zwrong");
        check("main", "main");
    }

    #[test]
    fn a_symbol_that_expands_to_gigabytes_is_not_demangled() {
        // std::pair<int, int>, then a pair of two of these, and so on.
        let mut symbol = "_Z1fSt4pairIiiE".to_owned();
        for digit in ('0'..='9').chain('A'..='Z') {
            symbol += &format!("S_IS{digit}_S{digit}_E");
        }
        assert_eq!(demangle(&symbol), symbol);
    }
}
