//! [`Names`]: names of functions that differ from each other.

use std::collections::{HashMap, HashSet};

use wasm_jit::{FunctionInfo, Module, printable};

/// Tells functions of one name apart: static functions of several files, or instances of a generic
/// function whose symbols are demangled to one name. The name of each of them is `NAME#INDEX`, with
/// its index in the module; all other names are unchanged.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The functions whose names are followed by their indices.
    with_index: HashSet<u32>,
}

impl Names {
    pub(crate) fn of(module: &Module) -> Self {
        Self::among((0..).zip(module.function_names()))
    }

    /// Tells functions apart that have these indices and names.
    pub(crate) fn among(functions: impl IntoIterator<Item = (u32, String)>) -> Self {
        let mut first_of: HashMap<String, u32> = HashMap::new();
        let mut with_index = HashSet::new();
        let mut shared: HashSet<String> = HashSet::new();
        let mut numbered: Vec<(u32, String)> = Vec::new();
        for (index, name) in functions {
            let name = as_shown(&name);
            if without_numbers(&name).len() < name.len() {
                numbered.push((index, name.clone()));
            }
            if let Some(first) = first_of.get(&name) {
                with_index.extend([*first, index]);
                shared.insert(name);
            } else {
                first_of.insert(name, index);
            }
        }
        // A function may be called `f#2`, and the function 2 `f`, as another one.
        let shared: HashSet<&str> = shared.iter().map(|name| without_numbers(name)).collect();
        let may_be_shared = |name: &str| shared.contains(without_numbers(name));
        with_index.extend(numbered.iter().filter(|(_, name)| may_be_shared(name)).map(|(index, _)| *index));
        Self { with_index }
    }

    /// The name of a function. Control characters are not escaped.
    pub(crate) fn get(&self, function: &FunctionInfo<'_>) -> String {
        self.complete(function.index(), function.unescaped_display_name())
    }

    /// The name of the function with this index, completed by the index if others have it, too.
    pub(crate) fn complete(&self, index: u32, mut name: String) -> String {
        if self.with_index.contains(&index) {
            name.push_str(&format!("#{index}"));
        }
        name
    }
}

/// Names that are different may become equal where they are shown: control characters are escaped,
/// and folded stacks have no `;` in names.
fn as_shown(name: &str) -> String {
    printable(name).replace(';', ":")
}

/// The part of a name before all of the `#NUMBER` at its end.
fn without_numbers(mut name: &str) -> &str {
    loop {
        let before = name.trim_end_matches(|last: char| last.is_ascii_digit());
        match before.strip_suffix('#').filter(|_| before.len() < name.len()) {
            Some(base) => name = base,
            None => return name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_names_are_unique() {
        let check = |names: &[&str], expected: &[&str]| {
            let all = || (0..).zip(names.iter().map(|name| (*name).to_owned()));
            let unique = Names::among(all());
            let completed: Vec<_> = all().map(|(index, name)| unique.complete(index, name)).collect();
            assert_eq!(completed, expected);
            let shown: HashSet<_> = completed.iter().map(|name| as_shown(name)).collect();
            assert_eq!(shown.len(), names.len(), "{completed:?}");
        };
        check(&["a", "b", "a#1", "c#", "#2"], &["a", "b", "a#1", "c#", "#2"]);
        check(&["a", "b", "a", "a"], &["a#0", "b", "a#2", "a#3"]);
        check(&["a", "a", "a#1", "a#x"], &["a#0", "a#1", "a#1#2", "a#x"]);
        check(&["a", "a", "a#3", "a#3#2"], &["a#0", "a#1", "a#3#2", "a#3#2#3"]);
        check(&["a;b", "a:b", "a"], &["a;b#0", "a:b#1", "a"]);
        check(&["a\u{1b}", "a\\u{1b}", "a"], &["a\u{1b}#0", "a\\u{1b}#1", "a"]);
    }
}
