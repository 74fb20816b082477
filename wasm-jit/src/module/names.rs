//! The names that a module gives to its functions.

use std::collections::HashMap;

use wasmparser::{BinaryReader, Name, NameSectionReader};

/// Function names by index. A name section that is broken from some place on counts up to there, as the specification has it:
/// custom sections do not make a module invalid.
pub(crate) fn function_names(section: &[u8]) -> HashMap<u32, Box<str>> {
    let mut names = HashMap::new();
    for subsection in NameSectionReader::new(BinaryReader::new(section, 0)) {
        let Ok(subsection) = subsection else { break };
        let Name::Function(functions) = subsection else { continue };
        for naming in functions {
            let Ok(naming) = naming else { break };
            names.insert(naming.index, naming.name.into());
        }
    }
    names
}
