//! What compiled scripts say about their rules, in custom sections.

use std::collections::HashSet;

use wasm_jit::wasmparser::{BinaryReader, Parser, Payload};

use crate::conditions::{self, Predicates};
use crate::sums;

/// The descriptions in a module.
#[derive(Debug, Default)]
pub(crate) struct Described {
    pub(crate) predicates: Predicates,
    /// The exports of the rules that only add to numbers which nothing else uses.
    pub(crate) sums: HashSet<String>,
}

impl Described {
    /// Reads the custom sections of a module. Sections that cannot be read describe nothing; of
    /// several with one name, the last counts.
    pub(crate) fn of(module: &[u8]) -> Self {
        let mut all = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            let Ok(Payload::CustomSection(section)) = payload else { continue };
            let reader = BinaryReader::new(section.data(), 0);
            match section.name() {
                conditions::SECTION => replace(&mut all.predicates, Predicates::read(reader)),
                sums::SECTION => replace(&mut all.sums, sums::read(reader)),
                _ => {}
            }
        }
        all
    }
}

fn replace<T, E>(place: &mut T, read: Result<T, E>) {
    if let Ok(read) = read {
        *place = read;
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{CustomSection, Module};

    use super::*;

    #[test]
    fn the_last_section_that_can_be_read_counts() {
        let list = |names: &[&str]| sums::section(names.iter().copied());
        let broken = |name: &'static str| CustomSection { name: name.into(), data: (&[0xff_u8][..]).into() };
        let predicates = conditions::section("intern", &[("p".to_owned(), Vec::new())].into());
        let mut module = Module::new();
        module.section(&list(&["a"])).section(&list(&["b", "c"])).section(&predicates);
        module.section(&broken(sums::SECTION)).section(&broken(conditions::SECTION));
        let described = Described::of(module.as_slice());
        assert_eq!(described.sums, ["b".to_owned(), "c".to_owned()].into());
        assert_eq!(described.predicates.names().collect::<Vec<_>>(), ["p"]);
        let none = Described::of(b"no module");
        assert!(none.sums.is_empty() && none.predicates.names().count() == 0);
    }
}
