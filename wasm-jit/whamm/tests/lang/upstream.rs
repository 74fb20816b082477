//! The scripts with which the crate whamm is tested, which `scripts/whamm-scripts.sh` fetches: each
//! compiles for a target, or is refused for a reason that is known.

mod run;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wasm_jit::{Engine, Module};
use wasm_jit_whamm::lang::{self, Script};
use wasm_jit_whamm::rewrite;

/// The directory `tests` of the crate, if it can be fetched.
fn sources() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/whamm-scripts.sh");
    let output = Command::new(&script).output();
    let skipped = match output {
        Ok(output) if output.status.success() => {
            let folder = String::from_utf8(output.stdout).expect("a UTF-8 path");
            return Some(Path::new(folder.trim()).join("tests"));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => format!("{}: {error}", script.display()),
    };
    println!("skipped, since the scripts of the crate whamm are not here: {skipped}");
    None
}

fn scripts(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            scripts(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "mm") {
            all.push(path);
        }
    }
}

/// Libraries that are not in the crate, with the functions that its scripts call.
const CACHE: &str = "(module (func (export \"check_access\") (param i32 i32) (result i32) (i32.const 0)))";
const ALPHA: &str = r#"(module (memory (export "memory") 1)
    (data (i32.const 0) "abcdefghijklmnopqrstuvwxyz\n")
    (func (export "mem_alloc") (param i32) (result i32) (i32.const 64))
    (func (export "mem_free") (param i32))
    (func (export "write_alphabet") (param i32 i32) (result i32)
        (memory.copy (local.get 0) (i32.const 0) (i32.const 27)) (i32.const 27)))"#;

fn library(tests: &Path, name: &str) -> Vec<u8> {
    let path = match name {
        "whamm_core" => "libs/whamm_core.wasm",
        "toggle" => "libs/toggle/toggle.wasm",
        "tracer" => "libs/loop_tracer/tracer.wasm",
        "dyninstr" => "libs/whamm_dyninstr/whamm_dyninstr.wasm",
        "cache" => return wat::parse_str(CACHE).unwrap(),
        _ => return wat::parse_str(ALPHA).unwrap(),
    };
    fs::read(tests.join(path)).expect("the library is there")
}

/// The libraries that a script uses.
fn libraries(tests: &Path, source: &[u8]) -> Vec<(String, Vec<u8>)> {
    let names = lang::libraries("upstream.mm", source).unwrap_or_default();
    names.into_iter().map(|name| (name.clone(), library(tests, &name))).collect()
}

/// The problems of a script, if it does not compile for any target.
fn problems(tests: &Path, source: &[u8]) -> Option<String> {
    let libraries = libraries(tests, source);
    let libraries: Vec<_> = libraries.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let error = lang::compile("upstream.mm", source, &libraries).err()?;
    if Script::new("upstream.mm", source, &libraries).is_ok() {
        return None;
    }
    let program = Module::new(&Engine::default(), "(module)").unwrap();
    match rewrite::instrument("upstream.mm", source, &program) {
        Ok(_) => None,
        Err(_) => Some(error.problems().iter().map(|problem| format!("{}\n", problem.message)).collect()),
    }
}

/// Parts of messages about what `docs/whamm.md` lists as not supported, and about the language: the
/// other compiler has other rules there, which the manual names.
const UNSUPPORTED: [&str; 20] = [
    "type parameters are not supported",
    "there is no map `targets`",
    "`bytecode` is not supported",
    "`probe_id` is not supported",
    "`%` has no meaning for a `f",
    "-1 is not in the range of `u8`",
    "there is no function `mem_size`",
    "there is no function `page_size`",
    "there is no function `active_data_start`",
    "there is no function `active_data_len`",
    "there is no function `dup_at`",
    "there is no function `memcpy`",
    "there is no function `read_str`",
    "there is no function `write_str`",
    "there is no function `resolve_funcref`",
    "unknown type `funcref`",
    "there is no variable `table_entry_idx`",
    "there is no variable `failed`",
    "there is no variable `resolved_fid`",
    "an expression of more than 256 levels",
];

/// Scripts that are mistakes for the other compiler as well, test which modes it allows, or have an
/// old form of the language.
const MISTAKES: [&str; 10] = [
    "alt_mode_legality/",
    "arity_checks/",
    "bool-ops/",
    "check_erroring/",
    "numerics/lit_overflow_",
    "polymorphism/err-",
    "error/bad.mm",
    "lang_features/report_and_alloc_vars.mm",
    "functionality_test/dfinity_testing_",
    "fault_injection/dfinity/dfinity_async_strcmp_fn.mm",
];

/// Scripts with values that are initialized by each event there, and here when a site is matched:
/// the message says what to do.
const INITIAL_VALUES: [&str; 2] = ["strings/utils_static.mm", "report/report_decl_init_from_map.mm"];

/// Scripts for a library that is not in the crate.
const LIBRARIES: [&str; 1] = ["core_suite/libs/nested_call.mm"];

#[test]
fn scripts_of_the_other_compiler() {
    let Some(tests) = sources() else { return };
    let mut all = Vec::new();
    scripts(&tests.join("scripts"), &mut all);
    all.sort();
    for path in &all {
        let name = path.strip_prefix(&tests.join("scripts")).unwrap().display().to_string();
        let source = fs::read(path).expect("a script");
        let kind = Expected::of(path);
        match problems(&tests, &source) {
            Some(problems) => println!("@@ {kind:?} {name}: {problems:?}"),
            None => {
                let outcome = run::run(&tests, path, &source, &libraries(&tests, &source));
                println!("@+ {kind:?} {name}: {:?} {} {}", outcome.targets, outcome.is_compared, outcome.differences.replace('\n', " // "));
            }
        }
    }
}

/// What the other compiler does with a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It compiles it for one of its targets.
    Compiles,
    /// It refuses it.
    Refused,
    /// No test runs it.
    Unknown,
}

impl Expected {
    fn of(path: &Path) -> Self {
        let name = path.file_name().expect("a name").to_string_lossy();
        let has = |target: &str, ending: &str| {
            path.with_file_name("expected").join(target).join(format!("{name}.{ending}")).exists()
        };
        let targets = ["rewriting", "wei"];
        if targets.iter().any(|target| has(target, "exp") && !has(target, "err")) {
            Self::Compiles
        } else if targets.iter().any(|target| has(target, "err")) {
            Self::Refused
        } else {
            Self::Unknown
        }
    }
}
