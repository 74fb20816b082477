//! The scripts with which the crate whamm is tested, which `scripts/whamm-scripts.sh` fetches: each
//! compiles for a target, or is refused for a reason that is known.

mod run;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wasm_jit::{Engine, Module};
use wasm_jit_whamm::lang::{self, Script};
use wasm_jit_whamm::rewrite::{self, RewriteError};

use self::run::Outcome;

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

/// The libraries that a script uses: those that are named for it, or with which all scripts run.
fn libraries(tests: &Path, path: &Path, source: &[u8]) -> Vec<(String, Vec<u8>)> {
    let name = path.file_name().expect("a name").to_string_lossy();
    let named =
        fs::read_to_string(path.with_file_name("libs").join(format!("{name}.libs"))).unwrap_or_default();
    let library = |name: String| {
        let given =
            named.lines().find_map(|line| line.strip_prefix(&*name)?.split_once('=')).map(|(_, path)| path);
        let path = given.unwrap_or("tests/libs/whamm_core.wasm");
        let read = fs::read(tests.parent().expect("a directory").join(path));
        let bytes = read.unwrap_or_else(|_| {
            let text = if name == "cache" { CACHE } else { ALPHA };
            wat::parse_str(text).expect("valid text")
        });
        (name, bytes)
    };
    lang::libraries("upstream.mm", source).unwrap_or_default().into_iter().map(library).collect()
}

/// The problems of a script, if it does not compile for any target.
fn problems(source: &[u8], libraries: &[(String, Vec<u8>)]) -> Option<String> {
    let libraries: Vec<_> = libraries.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
    let error = lang::compile("upstream.mm", source, &libraries).err()?;
    if Script::new("upstream.mm", source, &libraries).is_ok() {
        return None;
    }
    let program = Module::new(&Engine::default(), "(module)").unwrap();
    match rewrite::instrument("upstream.mm", source, &program) {
        Ok(_) => None,
        // It has no libraries, but more modes.
        Err(RewriteError::Script(of_program)) if libraries.is_empty() => {
            Some(of_program.problems().iter().map(|problem| format!("{}\n", problem.message)).collect())
        }
        Err(_) => Some(error.problems().iter().map(|problem| format!("{}\n", problem.message)).collect()),
    }
}

/// Scripts that the other compiler compiles, and that are refused here, with the reasons.
const NOT_COMPILED: [(&str, &str); 11] = [
    (
        "core_suite/bulk-mem-ops/all-dup_at.mm",
        "it reads the memory of the program, which monitors do not see",
    ),
    (
        "core_suite/bulk-mem-ops/copy-dup_at.mm",
        "it reads the memory of the program, which monitors do not see",
    ),
    (
        "core_suite/bulk-mem-ops/fill-dup_at.mm",
        "it reads the memory of the program, which monitors do not see",
    ),
    (
        "core_suite/bulk-mem-ops/init-dup_at.mm",
        "it reads the memory of the program, which monitors do not see",
    ),
    (
        "core_suite/data-init/active_data_segs.mm",
        "it reads the memory of the program, which monitors do not see",
    ),
    ("core_suite/libs/unused-res.mm", "`strcmp` reads the memory of the program, which monitors do not see"),
    (
        "core_suite/mem_builtins-invalid_id/valid_id.mm",
        "it asks for the program's memory, which monitors do not see",
    ),
    ("core_suite/memsize/memsize-custom.mm", "it asks for the program's memory, which monitors do not see"),
    ("core_suite/memsize/memsize.mm", "it asks for the program's memory, which monitors do not see"),
    (
        "core_suite/call-indirect-funcref/table-get-resolved.mm",
        "functions are known only where they are called",
    ),
    (
        "core_suite/call-indirect-funcref/table-set-resolved.mm",
        "functions are known only where they are called",
    ),
];

/// Scripts that no test of the crate runs, and that are refused, with the reasons.
const UNUSED: [(&str, &str); 6] = [
    ("error/bad.mm", "it is a mistake for the other compiler as well"),
    ("fault_injection/dfinity/dfinity_async_strcmp_fn.mm", "`strcmp` reads the memory of the program"),
    ("functionality_test/dfinity_testing_access_global_after.mm", "an old form of declarations, `bool i;`"),
    ("functionality_test/dfinity_testing_access_global_before.mm", "an old form of declarations, `bool i;`"),
    ("functionality_test/dfinity_testing_var_init.mm", "an old name of the package, `wasm:bytecode`"),
    ("lang_features/report_and_alloc_vars.mm", "a variable without a type"),
];

/// Scripts that the other compiler refuses, and that are compiled here, with the reasons.
const ACCEPTED: [(&str, &str); 10] = [
    (
        "core_suite/alt_mode_legality/drop_alt_predicated_no_bound.mm",
        "an operand that is dropped needs no type",
    ),
    ("core_suite/branch-monitor/reserved-var-targets-local.mm", "a variable may hide a bound one"),
    ("core_suite/branch-monitor/reserved-var-targets.mm", "a variable may hide a bound one"),
    ("core_suite/check_erroring/dead_code_after_return.mm", "statements after `return` are not executed"),
    ("core_suite/deep-predicate/deep-nonassoc.mm", "expressions have 256 levels here, 48 there"),
    ("core_suite/deep-predicate/deep-parens.mm", "parentheses have 128 levels here, 48 there"),
    ("core_suite/probe-arg-types/drop-type-bound.mm", "places with operands of other types do not match"),
    ("core_suite/strings/write-to-map.mm", "the values of maps may be strings"),
    ("core_suite/type-bounds/star-conflicting-types.mm", "rules may differ in type bounds only"),
    ("core_suite/wildcard_opcode/star.mm", "vector instructions are observed like others"),
];

/// Scripts that the other compiler refuses, with a part of the message here.
const REFUSED: [(&str, &str); 44] = [
    (
        "core_suite/alt_mode_legality/alt_call_before.mm",
        "`alt_call_by_id` belongs to rules of the modes `alt` and `block_alt`",
    ),
    (
        "core_suite/alt_mode_legality/alt_call_by_id_folds_binop.mm",
        "has the type (i32) -> (i32), and what it replaces",
    ),
    ("core_suite/alt_mode_legality/alt_call_by_id_nonconst.mm", "expected a `u32`, this is a `i32`"),
    (
        "core_suite/alt_mode_legality/alt_call_by_name_no_name.mm",
        "the program has no function for `alt_call_by_name",
    ),
    (
        "core_suite/alt_mode_legality/drop_args_after.mm",
        "`drop_args` belongs to rules of the modes `alt` and `block_alt`",
    ),
    (
        "core_suite/alt_mode_legality/drop_args_before.mm",
        "`drop_args` belongs to rules of the modes `alt` and `block_alt`",
    ),
    (
        "core_suite/alt_mode_legality/invalid_call_insertion.mm",
        "has the type (i64) -> (i32), and what it replaces",
    ),
    ("core_suite/arity_checks/len_too_many.mm", "`len` has 0 parameters, and is called with 1"),
    (
        "core_suite/arity_checks/page_size_too_few.mm",
        "`page_size` is about the memory of the program, which scripts do not see",
    ),
    (
        "core_suite/arity_checks/page_size_too_many.mm",
        "`page_size` is about the memory of the program, which scripts do not see",
    ),
    ("core_suite/arity_checks/starts_with_too_few.mm", "`starts_with` has 1 parameter, and is called with 0"),
    ("core_suite/bool-ops/arith_add_bool.mm", "`+` has no meaning for a `bool`"),
    ("core_suite/bool-ops/bitand_bool.mm", "`&` has no meaning for a `bool`"),
    ("core_suite/bool-ops/bitwise_not_bool.mm", "a number is expected, this is a `bool`"),
    (
        "core_suite/bulk-mem-ops/out-of-scope.mm",
        "`dup_at` is about the memory of the program, which scripts do not see",
    ),
    ("core_suite/check_erroring/addr_of_compiler_str.mm", "a `str` has no function `addr`"),
    ("core_suite/check_erroring/corrupt_user_lib.mm", "is not a module"),
    ("core_suite/check_erroring/duplicate_use.mm", "`whamm_core` is used twice"),
    ("core_suite/check_erroring/empty_tuple.mm", "a variable has a value, and `()` is none"),
    (
        "core_suite/check_erroring/imm_out_of_range.mm",
        "`wasm:opcode:i32.const:before` has no `imm1` that could have a type",
    ),
    ("core_suite/check_erroring/invalid_cast.mm", "a `i32` cannot be converted to `str`"),
    ("core_suite/check_erroring/mem_size_nonconst.mm", "`mem_size` is about the memory of the program"),
    ("core_suite/check_erroring/mode_as_value.mm", "there is no variable `before`"),
    (
        "core_suite/check_erroring/multiret_lib_fn.mm",
        "functions of libraries have numbers as parameters, and one or no number as a result",
    ),
    (
        "core_suite/check_erroring/no_imported_memory.mm",
        "`memid` stands for a memory in calls of `memcpy`, `read_str` and `write_str`",
    ),
    (
        "core_suite/check_erroring/report_from_str_method.mm",
        "the initial value depends on the program's execution",
    ),
    ("core_suite/check_erroring/report_funcref.mm", "a `funcref` does not outlive the event"),
    ("core_suite/check_erroring/self_referential_map.mm", "a map lives longer than a block"),
    (
        "core_suite/check_erroring/unknown_tybound_id.mm",
        "`wasm:opcode:i32.const:before` has no `foobarnonexistent` that could have a type",
    ),
    ("core_suite/check_erroring/unshared_funcref.mm", "a `funcref` does not outlive the event"),
    (
        "core_suite/mem_builtins-invalid_id/active_data_len_invalid_id.mm",
        "`active_data_len` is about the memory of the program, which scripts do not see",
    ),
    (
        "core_suite/mem_builtins-invalid_id/active_data_start_invalid_id.mm",
        "`active_data_start` is about the memory of the program, which scripts do not see",
    ),
    (
        "core_suite/mem_builtins-invalid_id/mem_size_invalid_id.mm",
        "`mem_size` is about the memory of the program, which scripts do not see",
    ),
    (
        "core_suite/mem_builtins-invalid_id/page_size_invalid_id.mm",
        "`page_size` is about the memory of the program, which scripts do not see",
    ),
    ("core_suite/numerics/lit_overflow_i8.mm", "99999 is not in the range of `i8`"),
    ("core_suite/numerics/lit_overflow_u16.mm", "99999 is not in the range of `u16`"),
    ("core_suite/numerics/lit_overflow_u8.mm", "99999 is not in the range of `u8`"),
    ("core_suite/polymorphism/err-cast-unknown-param.mm", "unknown type `Z`"),
    (
        "core_suite/polymorphism/err-distinct-vars.mm",
        "the operands are a `i32` and a `i64`, where T = i32, U = i64",
    ),
    ("core_suite/polymorphism/err-float-literal.mm", "the operands are a `i32` and a `f64`, where T = i32"),
    ("core_suite/polymorphism/err-float-shift.mm", "an integer is expected, this is a `f32`, where T = f32"),
    (
        "core_suite/polymorphism/err-shift-needs-int.mm",
        "an integer is expected, this is a `f32`, where T = f32",
    ),
    (
        "core_suite/polymorphism/err-var-with-concrete.mm",
        "the operands are a `i64` and a `i32`, where T = i64",
    ),
    (
        "core_suite/report/report_decl_init_from_map.mm",
        "the initial value depends on the program's execution",
    ),
];

/// Maps belong to the script here, and not to the library, which panics.
const PRINTS_MAP: &str = "its report prints a map of `whamm_core`";

/// Scripts whose report is not that of the other compiler in any of its targets, with the reasons.
const OTHER_REPORT: [(&str, &str); 17] = [
    (
        "core_suite/call-indirect-funcref/call-ref-resolved.mm",
        "it does not know a function that is known here",
    ),
    ("core_suite/call-indirect-funcref/call_graph_funcref.mm", PRINTS_MAP),
    (
        "core_suite/call-indirect-funcref/shadow-maintenance.mm",
        "it does not know functions that are known here",
    ),
    (
        "core_suite/check_erroring/instr_count_proc_exit.mm",
        "the block does not end, since the program exits in it",
    ),
    ("core_suite/overlap/star-type_bounds.mm", "there, `return` and `end` have no operands"),
    (
        "core_suite/strings/get-from-lib-global.mm",
        "`whamm_core` prints complete lines, and there also the last one",
    ),
    ("paper_eval/basic_block_profiling/basic-blocks.mm", "its two targets divide blocks in different ways"),
    ("paper_eval/cache_sim/cache_sim-hw.mm", "the library is not in the crate"),
    ("paper_eval/cache_sim/cache_sim-hw2.mm", "the library is not in the crate"),
    ("paper_eval/call_graph/call_graph.mm", PRINTS_MAP),
    ("paper_eval/call_graph_resolved/call_graph_resolved.mm", PRINTS_MAP),
    ("paper_eval/ins_count/ins_count-rust.mm", "its two targets differ by 3 %"),
    ("paper_eval/ins_coverage/basic-blocks.mm", "its two targets divide blocks in different ways"),
    ("paper_eval/ins_coverage_dyninstr/basic-blocks.mm", "its two targets divide blocks in different ways"),
    ("paper_eval/ins_coverage_dyninstr/coverage.mm", "it counts the last `end` after a `return`"),
    ("paper_eval/mem_access_tracing/mem_access-nomatches.mm", PRINTS_MAP),
    ("paper_eval/mem_access_tracing/mem_access.mm", PRINTS_MAP),
];

/// The number of scripts that the other compiler compiles.
const POSITIVE: usize = 135;

/// Each script of the crate compiles and reports what it reports there, or is refused as there, or
/// is an exception with a reason.
#[test]
fn scripts_of_the_other_compiler() {
    let Some(tests) = sources() else { return };
    let mut all = Vec::new();
    scripts(&tests.join("scripts"), &mut all);
    all.sort();
    let find = |list: &[(&str, &'static str)], name: &str| {
        list.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
    };
    let (mut wrong, mut compiled, mut refused, mut unused, mut compared) = (String::new(), 0, 0, 0, 0);
    for path in &all {
        let name = path.strip_prefix(tests.join("scripts")).unwrap().display().to_string();
        let source = fs::read(path).expect("a script");
        let libraries = libraries(&tests, path, &source);
        let mut problems = problems(&source, &libraries);
        let mut outcome = Outcome::default();
        if problems.is_none() {
            outcome = run::run(&tests, path, &source, &libraries);
            // Rules that replace instructions are checked against the program.
            let is_refused = outcome.targets.is_empty() && !outcome.not_rewritten.is_empty();
            problems = is_refused.then(|| outcome.not_rewritten.clone());
        }
        match (Expected::of(path), &problems) {
            (Expected::Compiles, None) => compiled += 1,
            (Expected::Compiles, Some(_)) if find(&NOT_COMPILED, &name).is_some() => {}
            (Expected::Refused, None) if find(&ACCEPTED, &name).is_some() => {}
            (Expected::Refused, Some(problems)) => {
                refused += 1;
                if !find(&REFUSED, &name).is_some_and(|message| problems.contains(message)) {
                    let _ = writeln!(wrong, "{name} is refused: {problems}");
                }
            }
            (Expected::Unknown, None) => unused += 1,
            (Expected::Unknown, Some(_)) if find(&UNUSED, &name).is_some() => {}
            (expected, problems) => {
                let _ = writeln!(wrong, "{name}: {expected:?}, {problems:?}");
            }
        }
        let other_report = find(&OTHER_REPORT, &name);
        if !outcome.between_targets.is_empty() && other_report != Some(PRINTS_MAP) {
            let _ = writeln!(wrong, "{name} differs: {}", outcome.between_targets);
        }
        if outcome.is_compared && outcome.from_upstream.is_empty() == other_report.is_some() {
            let _ = writeln!(wrong, "{name}: {other_report:?}, {}", outcome.from_upstream);
        }
        compared += usize::from(outcome.is_compared && other_report.is_none());
    }
    println!(
        "{compiled} compile, {compared} have the same report; {refused} are refused; {unused} are not run"
    );
    assert_eq!(wrong, "");
    assert_eq!(compiled, POSITIVE - NOT_COMPILED.len());
    assert_eq!(refused, REFUSED.len());
    assert_eq!(all.len(), POSITIVE + refused + ACCEPTED.len() + unused + UNUSED.len());
    assert!(compared > 100, "{compared}");
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
