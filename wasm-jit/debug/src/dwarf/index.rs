//! [`Index`]: functions, static variables and types by their names.
//!
//! The name of an entry is preceded by those of the namespaces, structures and functions around it,
//! as in C++ and Rust: `ns::Der::st`. A definition may be elsewhere than its declaration, and a
//! function has one entry for each copy, so that an entry is known by the one that it refers to,
//! its key.

use std::collections::HashMap;

use gimli::{AttributeValue, Operation, UnitOffset};

use super::Dwarf;
use super::entries::{Entry, Key};

/// A function of the source.
#[derive(Debug, Default)]
pub(crate) struct Function {
    /// The full name.
    pub path: String,
    /// The addresses of its own code: usually one, but the linker may have removed it.
    pub starts: Vec<u64>,
    /// Where calls to it were inlined.
    pub inlined: Vec<u64>,
    /// Whether the program has a definition of it, which may have no code.
    is_defined: bool,
}

/// A static variable.
#[derive(Clone, Debug)]
pub(crate) struct Static {
    /// The full name.
    pub path: String,
    pub unit: usize,
    pub entry: UnitOffset,
    /// The function to which it belongs.
    function: Option<Key>,
    is_external: bool,
    /// Whether the linker has kept it.
    is_there: bool,
}

/// Where a name is used.
#[derive(Debug, Default)]
pub(crate) struct Around {
    pub unit: Option<usize>,
    /// The function, which may be one that is inlined.
    pub function: Option<Key>,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    functions: HashMap<Key, Function>,
    statics: Vec<Static>,
    /// By the last component.
    statics_by_name: HashMap<String, Vec<usize>>,
    functions_by_name: HashMap<String, Vec<Key>>,
    types_by_name: HashMap<String, Vec<(String, Key)>>,
    by_start: HashMap<u64, Key>,
}

/// Whether a name, which may have some of the components before it, is the one of a full name.
/// After `::`, it must be complete.
fn is_name(path: &str, name: &str) -> bool {
    match name.strip_prefix("::") {
        Some(name) => path == name,
        None => path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with("::")),
    }
}

/// The last component of a full name. Those between `<` and `>` are part of another one.
fn last(path: &str) -> &str {
    let (mut start, mut at, mut depth) = (0, 0, 0);
    while at < path.len() {
        if at == start
            && let Some(length) = operator_length(&path[at..])
        {
            at += length;
            continue;
        }
        match path.as_bytes()[at] {
            b'<' => depth += 1,
            b'>' if !path[..at].ends_with('-') => depth -= 1,
            b':' if depth == 0 && path[at..].starts_with("::") => {
                at += 1;
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    &path[start..]
}

/// The length of the name of an operator at the start of a text. A conversion to a type has the
/// rest of the text, since types have components, too.
fn operator_length(text: &str) -> Option<usize> {
    /// Those that would be read as the start or the end of arguments.
    const ANGLES: [&str; 11] = ["->*", "->", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "<", ">"];
    let rest = text.strip_prefix("operator")?;
    let keyword = text.len() - rest.len();
    match rest.chars().next() {
        None => None,
        Some(c) if c.is_alphanumeric() || matches!(c, '_' | '$' | ':') => None,
        Some(' ') => Some(text.len()),
        Some(_) => {
            let angle = ANGLES.iter().find(|angle| rest.starts_with(**angle));
            Some(keyword + angle.map_or(0, |angle| angle.len()))
        }
    }
}

/// A full name without the arguments of a template.
fn without_arguments(path: &str) -> &str {
    let start = path.len() - last(path).len();
    match path[start..].find('<') {
        Some(at) if operator_length(last(path)).is_none() => &path[..start + at],
        _ => path,
    }
}

impl Index {
    /// The functions with this name, those with a shorter full name first.
    pub(crate) fn functions(&self, name: &str) -> Vec<&Function> {
        let keys = self.functions_by_name.get(last(name)).into_iter().flatten();
        let is_it = |of: &&Function| is_name(&of.path, name) || is_name(without_arguments(&of.path), name);
        let mut found: Vec<&Function> = keys.map(|key| &self.functions[key]).filter(is_it).collect();
        found.sort_by_key(|of| (of.path.len(), of.starts.clone()));
        found
    }

    /// The function whose code begins at an address.
    pub(crate) fn function_at(&self, address: u64) -> Option<&Function> {
        self.functions.get(self.by_start.get(&address)?)
    }

    /// The full name of a function.
    pub(super) fn path(&self, function: Key) -> Option<&str> {
        Some(&self.functions.get(&function)?.path)
    }

    /// The full names of all functions with code.
    pub(crate) fn function_names(&self) -> impl Iterator<Item = &str> {
        self.functions.values().filter(|of| of.has_code()).map(|of| of.path.as_str())
    }

    /// The full names of the static variables outside of functions.
    pub(crate) fn static_names(&self) -> impl Iterator<Item = &str> {
        let all = self.statics.iter().filter(|of| of.is_there && of.function.is_none());
        all.map(|of| of.path.as_str())
    }

    /// The names of the static variables of the function.
    pub(crate) fn statics_of(&self, around: &Around) -> impl Iterator<Item = &str> {
        let is_inside = |of: &&Static| of.function.is_some() && of.function == around.function;
        self.statics.iter().filter(is_inside).map(|of| last(&of.path))
    }

    pub(super) fn types(&self, name: &str) -> Vec<Key> {
        let all = self.types_by_name.get(last(name)).into_iter().flatten();
        all.filter(|(path, _)| is_name(path, name)).map(|(_, key)| *key).collect()
    }

    /// The static variable that a name denotes where it is used. Those of a function are visible
    /// there only, unless its name is part of `name`. Of the others, the one in the innermost
    /// namespace or structure around, or else in the fewest other ones; of these, the one of the
    /// unit, or else one that all units see.
    pub(crate) fn static_variable(&self, name: &str, around: &Around) -> Option<&Static> {
        let scope = around.function.and_then(|key| self.functions.get(&key));
        let scope = scope.map_or("", |function| &function.path);
        let numbers = self.statics_by_name.get(last(name)).into_iter().flatten();
        let rank = |of: &&Static| {
            let is_same = Some(of.unit) == around.unit;
            let level = match of.function {
                Some(function) if name == last(&of.path) => {
                    around.function.filter(|of| *of == function)?;
                    (0, 0)
                }
                _ => {
                    let prefix = of.path.len() - name.trim_start_matches("::").len();
                    let prefix = of.path[..prefix].trim_end_matches("::");
                    let is_around = prefix.is_empty()
                        || scope
                            .strip_prefix(prefix)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
                    if is_around { (1, usize::MAX - prefix.len()) } else { (2, prefix.len()) }
                }
            };
            Some((!of.is_there, level, !is_same, !of.is_external))
        };
        let found = numbers.map(|number| &self.statics[*number]).filter(|of| is_name(&of.path, name));
        found.filter_map(|of| Some((rank(&of)?, of))).min_by_key(|(rank, _)| *rank).map(|(_, of)| of)
    }
}

impl Function {
    pub(crate) fn has_code(&self) -> bool {
        !self.starts.is_empty() || !self.inlined.is_empty()
    }
}

/// A scope that contains other entries.
struct Open {
    depth: isize,
    name: Option<String>,
    function: Option<Key>,
}

impl Dwarf {
    /// Whether there is code at an address: the linker gives functions that it removes others.
    fn has_code(&self, address: u64) -> bool {
        address != 0 && address < self.code_size
    }

    /// The first address of an entry's code.
    fn start(&self, unit: usize, entry: &Entry) -> Option<u64> {
        let of = &self.parsed.0[unit];
        let own = entry.attr_value(gimli::DW_AT_entry_pc).and_then(|value| match value {
            AttributeValue::Addr(address) => Some(address),
            _ => None,
        });
        let mut ranges = self.units.die_ranges(of, entry).ok()?;
        let first = || std::iter::from_fn(|| ranges.next().ok().flatten()).map(|range| range.begin).next();
        own.or_else(first)
    }

    pub(super) fn make_index(&self) -> Index {
        let mut index = Index::default();
        let mut declared: HashMap<Key, String> = HashMap::new();
        let mut found: Vec<(Static, Key)> = Vec::new();
        for unit in 0..self.parsed.0.len() {
            let mut open: Vec<Open> = Vec::new();
            let mut entries = self.parsed.0[unit].entries();
            while let Ok(Some(entry)) = entries.next_dfs() {
                let depth = entry.depth();
                while open.last().is_some_and(|scope| scope.depth >= depth) {
                    open.pop();
                }
                let path = |name: &str| {
                    let names = open.iter().filter_map(|scope| scope.name.as_deref());
                    names.chain([name]).collect::<Vec<_>>().join("::")
                };
                let key = (unit, entry.offset());
                match entry.tag() {
                    gimli::DW_TAG_namespace | gimli::DW_TAG_module => {
                        let name = self.name(unit, entry);
                        open.push(Open { depth, name, function: None });
                    }
                    gimli::DW_TAG_base_type
                    | gimli::DW_TAG_typedef
                    | gimli::DW_TAG_structure_type
                    | gimli::DW_TAG_class_type
                    | gimli::DW_TAG_union_type
                    | gimli::DW_TAG_enumeration_type => {
                        let name = self.name(unit, entry);
                        if let Some(name) = &name {
                            let types = index.types_by_name.entry(last(name).to_owned()).or_default();
                            types.push((path(name), key));
                        }
                        open.push(Open { depth, name, function: None });
                    }
                    gimli::DW_TAG_subprogram => {
                        let of = self.key(unit, entry);
                        let function = index.functions.entry(of).or_default();
                        let name = self.name(unit, entry);
                        if let Some(name) = name.as_deref().filter(|_| of == key) {
                            function.path = path(name);
                        }
                        function.is_defined |= entry.attr_value(gimli::DW_AT_declaration).is_none();
                        let start = self.start(unit, entry);
                        function.starts.extend(start.filter(|start| self.has_code(*start)));
                        open.push(Open { depth, name, function: Some(of) });
                    }
                    gimli::DW_TAG_inlined_subroutine => {
                        let of = self.key(unit, entry);
                        let start = self.start(unit, entry).filter(|start| self.has_code(*start));
                        index.functions.entry(of).or_default().inlined.extend(start);
                    }
                    gimli::DW_TAG_member | gimli::DW_TAG_variable => {
                        let Some(name) = self.name(unit, entry) else { continue };
                        if entry.attr_value(gimli::DW_AT_declaration).is_some() {
                            declared.insert(key, path(&name));
                        } else if let Some(address) = self.static_address(unit, entry) {
                            // A function without a name is an orphan of some compilers.
                            let function = open
                                .iter()
                                .rev()
                                .find_map(|scope| scope.function.filter(|_| scope.name.is_some()));
                            let flag = self.attribute(unit, entry, gimli::DW_AT_external);
                            let of = Static {
                                path: path(&name),
                                unit,
                                entry: entry.offset(),
                                function,
                                is_external: function.is_none() && flag.is_some(),
                                is_there: address < self.removed(unit),
                            };
                            found.push((of, self.key(unit, entry)));
                        }
                    }
                    _ => {}
                }
            }
        }
        index.functions.retain(|_, function| !function.path.is_empty() && function.is_defined);
        for (key, function) in &index.functions {
            let (full, short) = (last(&function.path), last(without_arguments(&function.path)));
            for name in [full, short].into_iter().take(if full == short { 1 } else { 2 }) {
                index.functions_by_name.entry(name.to_owned()).or_default().push(*key);
            }
            index.by_start.extend(function.starts.iter().map(|start| (*start, *key)));
        }
        for (mut of, key) in found {
            of.path = declared.get(&key).cloned().unwrap_or(of.path);
            of.function = of.function.filter(|function| index.functions.contains_key(function));
            if let Some(function) = of.function {
                of.path = format!("{}::{}", index.functions[&function].path, last(&of.path));
            }
            index.statics_by_name.entry(last(&of.path).to_owned()).or_default().push(index.statics.len());
            index.statics.push(of);
        }
        index
    }

    /// The least address of data that the linker has removed.
    pub(super) fn removed(&self, unit: usize) -> u64 {
        match self.parsed.0[unit].encoding().address_size {
            8 => u64::MAX - 1,
            _ => u64::from(u32::MAX) - 1,
        }
    }

    /// The address of a variable, if its location is nothing else.
    fn static_address(&self, unit: usize, entry: &Entry) -> Option<u64> {
        let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(gimli::DW_AT_location) else {
            return None;
        };
        let of = &self.parsed.0[unit];
        match expression.operations(of.encoding()).next().ok()?? {
            Operation::Address { address } => Some(address),
            Operation::AddressIndex { index } => self.units.address(of, index).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_lack_their_first_components() {
        for (name, expected) in
            [("st", true), ("Der::st", true), ("ns::Der::st", true), ("::ns::Der::st", true), ("t", false)]
        {
            assert_eq!(is_name("ns::Der::st", name), expected, "{name}");
        }
        assert!(!is_name("ns::Der::st", "::Der::st") && is_name("st", "::st"));
        for (path, component, plain) in [
            ("a::b", "b", "a::b"),
            ("b", "b", "b"),
            ("a::f<x::y>", "f<x::y>", "a::f"),
            ("<a as b::c>::f", "f", "<a as b::c>::f"),
            ("a::operator<", "operator<", "a::operator<"),
            ("a::operator<::count", "count", "a::operator<::count"),
            ("operator->::count", "count", "operator->::count"),
            ("a::operator+::f<x::y>", "f<x::y>", "a::operator+::f"),
            ("a::operator<< <x::y>", "operator<< <x::y>", "a::operator<< <x::y>"),
            ("a::operator()::count", "count", "a::operator()::count"),
            ("a::operator b::c", "operator b::c", "a::operator b::c"),
            ("operators::x", "x", "operators::x"),
            ("a::operators<b::c>", "operators<b::c>", "a::operators"),
            ("a::operator", "operator", "a::operator"),
            ("a<b>::", "", "a<b>::"),
            ("é::è", "è", "é::è"),
        ] {
            assert_eq!((last(path), without_arguments(path)), (component, plain));
        }
    }
}
