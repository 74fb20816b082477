//! Types by their names.

use super::Dwarf;

impl Dwarf {
    /// The size in bytes of a type with this name, as in C: `struct point`, `unsigned long`. `None`
    /// if the program has no such type, or its size is not known.
    pub(crate) fn size_of_name(&self, name: &str) -> Option<u64> {
        const TYPES: [gimli::DwTag; 6] = [
            gimli::DW_TAG_base_type,
            gimli::DW_TAG_typedef,
            gimli::DW_TAG_structure_type,
            gimli::DW_TAG_class_type,
            gimli::DW_TAG_union_type,
            gimli::DW_TAG_enumeration_type,
        ];
        // Declarations have no size.
        let size = |unit, entry: &_| Some(self.size_of_entry(unit, entry)).filter(|size| *size > 0);
        self.find(&TYPES, &canonical(name), size)
    }

    /// The size of an address in bytes; `None` without units.
    pub(crate) fn address_size(&self) -> Option<u64> {
        Some(self.parsed.0.first()?.encoding().address_size.into())
    }
}

/// The name of a type in DWARF: without qualifiers, and for integers, the words that clang uses, in
/// their order.
fn canonical(name: &str) -> String {
    let ignored = ["const", "volatile", "struct", "union", "enum", "class"];
    let words: Vec<&str> = name.split_whitespace().filter(|word| !ignored.contains(word)).collect();
    let count = |word: &str| words.iter().filter(|of| **of == word).count();
    let integer = ["unsigned", "signed", "long", "short", "int", "char"];
    if words.is_empty() || !words.iter().all(|word| integer.contains(word)) {
        return words.join(" ");
    }
    let size = match (count("long"), count("short"), count("char")) {
        (0, 0, 0) => "int",
        (1, ..) => "long",
        (0, 1.., _) => "short",
        (0, 0, _) => "char",
        (2.., ..) => "long long",
    };
    match (count("unsigned") > 0, count("signed") > 0) {
        (true, _) => format!("unsigned {size}"),
        (false, true) if size == "char" => "signed char".to_owned(),
        _ => size.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_name() {
        for (name, expected) in [
            ("unsigned", "unsigned int"),
            ("long unsigned int", "unsigned long"),
            ("long long", "long long"),
            ("signed char", "signed char"),
            ("short int", "short"),
            ("const char", "char"),
            ("struct point", "point"),
            ("size_t", "size_t"),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }
}
