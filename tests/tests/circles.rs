//! Modules do not import each other in cycles: between directories in no crate except those listed,
//! so that a directory can be understood, moved and tested without those above it; and in most
//! crates not within a directory either.
//!
//! Imports are read from the source: paths that begin with `crate` or `super`; re-exports are
//! followed. Tests are ignored. A module's children are parts of it: what it takes from them is not
//! an import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::repo_root;

/// A module, by its path in the crate.
type Module = Vec<String>;

/// Crates with cycles between the directories of this module (of the crate, if it is empty):
/// ARCHITECTURE.md has the reasons.
const EXCEPTIONS: [(&str, &str); 2] = [("wordpatch", ""), ("wasm-jit/codegen", "compiler")];

/// Crates with cycles between modules of the same directory.
const WITHIN_A_FOLDER: [&str; 10] = [
    "fastinst",
    "profiler",
    "profiler/script",
    "wasm-jit",
    "wasm-jit/cli",
    "wasm-jit/codegen",
    "wasm-jit/wasi",
    "wasm-jit/whamm",
    "wordpatch",
    "wordpatch/model",
];

/// The files of each crate, by directory.
fn crates() -> BTreeMap<PathBuf, Vec<PathBuf>> {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(repo_root()).output();
    let listed = String::from_utf8(listed.expect("git can be started").stdout).expect("UTF-8 paths");
    let mut crates: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for file in listed.lines().map(Path::new) {
        let is_source = |folder: &&Path| {
            folder.ends_with("src") && repo_root().join(folder).with_file_name("Cargo.toml").exists()
        };
        let Some(source) = file.ancestors().find(is_source) else { continue };
        // A file that was deleted but not committed is still listed.
        if repo_root().join(file).exists() {
            crates.entry(source.to_owned()).or_default().push(file.to_owned());
        }
    }
    crates
}

/// The module that a file contains.
fn module_of(file: &Path, source: &Path) -> Module {
    let relative = file.strip_prefix(source).expect("in the folder").with_extension("");
    let mut module: Module = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

/// All paths in a text that begin with `crate` or `super`, with groups in braces expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                expand(&text[at..], Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Reads a path, or each path of a group, and adds it. Returns the rest of the text.
fn expand<'t>(mut text: &'t str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    loop {
        text = text.trim_start();
        if let Some(mut rest) = text.strip_prefix('{') {
            loop {
                rest = expand(rest, path.clone(), found).trim_start();
                // An alias.
                if let Some(alias) = rest.strip_prefix("as ") {
                    rest = alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
                }
                rest = rest.trim_start();
                match rest.strip_prefix(',') {
                    Some(more) if !more.trim_start().starts_with('}') => rest = more,
                    Some(end) => return end.trim_start().strip_prefix('}').unwrap_or(end),
                    None => return rest.strip_prefix('}').unwrap_or(rest),
                }
            }
        }
        let length = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        path.push(text[..length].to_owned());
        match text[length..].strip_prefix("::") {
            Some(rest) => text = rest,
            None => {
                found.push(path);
                return &text[length..];
            }
        }
    }
}

/// A file's code, without comments and tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(repo_root().join(file)).expect("a UTF-8 file");
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text);
    let code = code.split("#[cfg(all(test").next().unwrap_or(code);
    let lines: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    lines.join("\n")
}

/// The path from the crate's root for a path in a module.
fn absolute(path: Vec<String>, module: &Module) -> Module {
    let mut absolute = if path[0] == "crate" { Vec::new() } else { module.clone() };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => _ = absolute.pop(),
            _ => absolute.push(part),
        }
    }
    absolute
}

/// The modules of a crate, and the items that they re-export, with the places where these are
/// defined.
struct Modules {
    all: BTreeSet<Module>,
    reexports: BTreeMap<Module, Module>,
}

impl Modules {
    fn new(code: &BTreeMap<Module, String>) -> Self {
        let mut reexports = BTreeMap::new();
        for (module, code) in code {
            for statement in code.split_inclusive(';') {
                let uses = ["pub use ", "pub(crate) use ", "pub(super) use "];
                let used = uses.iter().find_map(|start| Some(statement.split_once(start)?.1));
                let Some(used) = used else { continue };
                let mut found = Vec::new();
                expand(used, Vec::new(), &mut found);
                for path in found {
                    let target = absolute(path, module);
                    let mut exported = module.clone();
                    exported.extend(target.last().cloned());
                    if exported != target {
                        reexports.insert(exported, target);
                    }
                }
            }
        }
        Self { all: code.keys().cloned().collect(), reexports }
    }

    /// The module in which an item is defined; the root for items of other crates.
    fn of(&self, mut item: Module) -> Module {
        // Each step leads to another module, in which the item may be re-exported again.
        for _ in 0..10 {
            let prefixes = (1..=item.len()).map(|length| &item[..length]);
            let Some((prefix, target)) =
                prefixes.filter_map(|prefix| self.reexports.get_key_value(prefix)).next()
            else {
                break;
            };
            item = target.iter().chain(&item[prefix.len()..]).cloned().collect();
        }
        // The last parts of the path are items.
        while !item.is_empty() && !self.all.contains(&item) {
            item.pop();
        }
        item
    }
}

/// The imports of each module.
fn imports(files: &[PathBuf], source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    imports_of(files.iter().map(|file| (module_of(file, source), code(file))).collect())
}

/// The imports of each module with this code.
fn imports_of(code: BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let modules = Modules::new(&code);
    let mut all = BTreeMap::new();
    for (module, code) in code {
        let imported = paths(&code).into_iter().map(|path| modules.of(absolute(path, &module)));
        // An item of the root belongs to another crate.
        let imported = imported.filter(|other| !other.is_empty() && !other.starts_with(&module)).collect();
        if !module.is_empty() {
            all.insert(module, imported);
        }
    }
    all
}

/// The modules that can be reached by imports.
fn reached<'g>(from: &Module, imports: &'g BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'g Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = imports.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Pairs of modules of different directories that reach each other. A module with its own directory
/// belongs to that directory; all others belong to the directory above.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>, is_folder: impl Fn(&Module) -> bool) -> Vec<String> {
    let folder = |module: &Module| {
        let depth = if is_folder(module) { module.len() } else { module.len() - 1 };
        module[..depth].to_vec()
    };
    let all: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reached(module, imports))).collect();
    let mut found = Vec::new();
    for (one, reached) in &all {
        for other in reached.iter().filter(|other| one < other) {
            if folder(one) != folder(other) && all.get(*other).is_some_and(|back| back.contains(*one)) {
                found.push(format!("{} and {}", one.join("::"), other.join("::")));
            }
        }
    }
    found
}

fn name(source: &Path) -> String {
    source.parent().unwrap_or(source).display().to_string()
}

#[test]
fn modules_of_most_crates_are_in_no_circle_at_all() {
    let mut with_circles = BTreeSet::new();
    for (source, files) in crates() {
        let circles = circles(&imports(&files, &source), |_| true);
        let name = name(&source);
        if WITHIN_A_FOLDER.contains(&name.as_str()) {
            assert!(!circles.is_empty(), "{name} has no circles any more");
            with_circles.insert(name);
        } else {
            assert!(circles.is_empty(), "{name}: {circles:#?}");
        }
    }
    assert_eq!(with_circles.len(), WITHIN_A_FOLDER.len());
}

#[test]
fn modules_of_different_folders_are_in_no_circle() {
    let mut excepted = BTreeSet::new();
    for (source, files) in crates() {
        // The module of a directory may be a file in it, or next to it.
        let is_folder = |module: &Module| {
            let folder = module.iter().fold(source.clone(), |folder, part| folder.join(part));
            files.contains(&folder.join("mod.rs"))
        };
        let name = name(&source);
        let exception = EXCEPTIONS.iter().find(|(of, _)| *of == name).map(|(_, module)| *module);
        let is_excepted = |circle: &String| {
            let modules = || circle.split(" and ");
            exception.is_some_and(|exception| modules().all(|module| module.starts_with(exception)))
        };
        let (known, others): (Vec<_>, Vec<_>) =
            circles(&imports(&files, &source), is_folder).into_iter().partition(is_excepted);
        assert!(others.is_empty(), "{name}: {others:#?}");
        if exception.is_some() {
            assert!(!known.is_empty(), "{name} is no exception any more");
            excepted.insert(name);
        }
    }
    assert_eq!(excepted.len(), EXCEPTIONS.len());
}

#[test]
fn circles_are_found() {
    let of = |edges: &[(&str, &str)]| {
        let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
        let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (from, to) in edges {
            imports.entry(module(from)).or_default().insert(module(to));
            imports.entry(module(to)).or_default();
        }
        circles(&imports, |module| module.len() == 1 && module[0] == "group")
    };
    assert_eq!(of(&[("a", "b"), ("b", "a")]), <[&str; 0]>::default(), "of one folder");
    assert_eq!(of(&[("a", "group"), ("group::x", "a")]), <[&str; 0]>::default(), "not back");
    assert_eq!(of(&[("a", "b"), ("b", "group::x"), ("group::x", "a")]).len(), 2, "through another one");
    let crate_with = |two: &str| {
        let code = [("", "pub use one::{Item, self};"), ("one", "use crate::two;"), ("two", two)];
        let module = |path: &str| path.split_terminator("::").map(str::to_owned).collect::<Module>();
        circles(&imports_of(code.map(|(path, code)| (module(path), code.to_owned())).into()), |_| true)
    };
    assert_eq!(crate_with("use crate::Item;"), ["one and two"], "by a re-export");
    assert_eq!(crate_with("use crate::Other;"), <[&str; 0]>::default(), "of another crate");
    let mut all = paths("use crate::{a, b::{self, c as d,},}; super::super::e::f(); xcrate::no");
    all.sort();
    let text = |path: &Vec<String>| path.join("::");
    assert_eq!(
        all.iter().map(text).collect::<Vec<_>>(),
        ["crate::a", "crate::b::c", "crate::b::self", "super::super::e::f"]
    );
}
