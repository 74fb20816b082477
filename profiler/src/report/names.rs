//! Names for tables: as short as possible, but unique.
//!
//! 1. Without return type and parameters, template arguments as `<…>`: `std::vector<…>::push_back`.
//! 2. If functions would have the same name, with template arguments; if that is not sufficient,
//!    the full demangled name.
//! 3. If that is also the same, with the file and line of the definition or, without debugging
//!    information, with the object or the address.

use std::collections::{HashMap, HashSet};

use super::FunctionReport;
use super::text::printable;
use crate::binary::symbol::{short, without_parameters};

/// A name for each function, in the same order.
#[must_use]
pub fn names(functions: &[&FunctionReport]) -> Vec<String> {
    let mut groups: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, function) in functions.iter().enumerate() {
        groups.entry(short(&function.name)).or_default().push(index);
    }
    let mut names = vec![String::new(); functions.len()];
    for (name, indices) in groups {
        let group: Vec<&FunctionReport> = indices.iter().map(|index| functions[*index]).collect();
        for (index, name) in indices.into_iter().zip(disambiguated(&name, &group)) {
            names[index] = printable(&name);
        }
    }
    names
}

/// Names for functions that initially have the same name.
fn disambiguated(name: &str, group: &[&FunctionReport]) -> Vec<String> {
    let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let forms: [&dyn Fn(&FunctionReport) -> String; 6] = [
        &|_| name.to_owned(),
        &|function| without_parameters(&function.name).to_owned(),
        &|function| function.name.clone(),
        &|function| match &function.location {
            Some(location) => format!("{name} ({})", file(location)),
            None => format!("{name} ({})", file(&function.object)),
        },
        &|function| format!("{name} ({})", function.location.as_ref().unwrap_or(&function.object)),
        &|function| format!("{name} ({}+{:#x})", file(&function.object), function.address),
    ];
    let mut named = Vec::new();
    for form in forms {
        named = group.iter().map(|function| form(function)).collect();
        if named.iter().collect::<HashSet<_>>().len() == named.len() {
            break;
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::example;
    use super::*;

    #[test]
    fn names_are_as_long_as_they_must_be() {
        #[track_caller]
        fn check(functions: &[(&str, &str, u64, Option<&str>)], expected: &[&str]) {
            let functions: Vec<FunctionReport> = functions
                .iter()
                .map(|(name, object, address, location)| FunctionReport {
                    name: (*name).to_owned(),
                    object: (*object).to_owned(),
                    address: *address,
                    location: location.map(str::to_owned),
                    ..example().functions[1].clone()
                })
                .collect();
            assert_eq!(names(&functions.iter().collect::<Vec<_>>()), expected);
        }
        let at = |name, address| (name, "/bin/app", address, None);
        check(&[at("f(int)", 1), at("void g<int>(char)", 2)], &["f", "g<…>"]);
        check(&[at("f(int)", 1), at("f(long)", 2), at("g(int)", 3)], &["f(int)", "f(long)", "g"]);
        check(&[at("void f<int>(A)", 1), at("void f<char>(B)", 2)], &["f<int>", "f<char>"]);
        check(&[at("f", 1), ("f", "/lib/libz.so", 1, None)], &["f (app)", "f (libz.so)"]);
        check(&[at("f", 1), at("f", 2)], &["f (app+0x1)", "f (app+0x2)"]);
        let (one, two) = (Some("/src/a/x.c:1"), Some("/src/b/x.c:1"));
        check(&[("f", "/o", 1, one), ("f", "/o", 2, Some("/src/y.c:9"))], &["f (x.c:1)", "f (y.c:9)"]);
        check(&[("f", "/o", 1, one), ("f", "/o", 2, two)], &["f (/src/a/x.c:1)", "f (/src/b/x.c:1)"]);
        check(&[("f", "/o", 1, one), ("f", "/o", 2, one)], &["f (o+0x1)", "f (o+0x2)"]);
        check(&[at("\u{1b}[31m", 1)], &["?[31m"]);
        check(&[], &[]);
    }
}
