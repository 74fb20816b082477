//! What a binary module says about itself that is no part of its execution: names, and DWARF. Looked at only when somebody
//! asks where a program is; what is malformed counts as absent.

use std::collections::HashMap;

use wasmparser::{KnownCustom, Name, NameSectionReader, Parser, Payload};

/// The parts of a binary module, borrowed from it.
#[derive(Debug, Default)]
pub(crate) struct Sections<'a> {
    pub module_name: Option<&'a str>,
    pub function_names: HashMap<u32, &'a str>,
    /// Where the contents of the code section begin: DWARF counts addresses from here.
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
                    let Some(behind) = rest.get(size as usize..) else { break };
                    rest = behind;
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

    /// A function's name as its author would write it.
    pub(crate) fn function_name(&self, index: u32) -> Option<String> {
        self.function_names.get(&index).map(|name| demangle(name))
    }
}

/// A symbol of Rust or C++ as its author would write it; any other unchanged.
pub(crate) fn demangle(symbol: &str) -> String {
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return format!("{name:#}");
    }
    let options = cpp_demangle::ParseOptions::default().recursion_limit(128);
    if symbol.starts_with("_Z")
        && let Ok(name) = cpp_demangle::Symbol::new_with_options(symbol, &options)
        && let Ok(name) = name.demangle()
    {
        return name;
    }
    symbol.to_owned()
}
