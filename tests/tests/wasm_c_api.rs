//! The C interface `wasm.h` of wasm-jit (`libwasm_jit`), as C programs use it.
//!
//! The header and the examples are those of the WebAssembly C API, which `scripts/wasm-c-api.sh`
//! fetches: each example checks its results, and exits with 0. The programs in `wasm_c_api/` are
//! ours, for what the examples do not cover; they print nothing unless something is wrong. Their
//! modules are next to them in text format.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tests::{Run, dynamic_tags, ensure_built, repo_root, run, version_number};

/// The directory with `include/wasm.h` and `example/`.
fn c_api() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let output = Command::new(repo_root().join("scripts/wasm-c-api.sh")).output();
        let output = output.expect("the script can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8(output.stdout).expect("a UTF-8 path").trim())
    })
}

/// The directory with `libwasm_jit.so` and `libwasm_jit.a`.
fn library() -> PathBuf {
    ensure_built().canonicalize().expect("the library was built")
}

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    Shared,
    Static,
}

/// Compiles and links a program with a compiler and its flags.
fn build(source: &Path, compiler: &[&str], link: Link, folder: &Path) -> PathBuf {
    let binary = folder.join(source.file_stem().expect("a source has a name"));
    let mut command = Command::new(compiler[0]);
    command.args(["-g", "-pthread", "-Wall", "-Wextra", "-Werror"]).args(&compiler[1..]).arg("-isystem");
    command.arg(c_api().join("include")).arg("-I").arg(repo_root().join("wasm-jit/c-api/include"));
    command.arg(source).arg("-o").arg(&binary);
    match link {
        Link::Shared => {
            command.arg("-L").arg(library()).arg("-lwasm_jit");
            command.arg(format!("-Wl,-rpath,{}", library().display()))
        }
        Link::Static => command.arg(library().join("libwasm_jit.a")).args(["-lm", "-ldl"]),
    };
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    binary
}

/// A directory for compiled files, which exists while a test runs.
fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

/// Asserts that a program has succeeded without diagnostics, and returns its output.
#[track_caller]
fn output_of(ran: &Run, what: &str) -> String {
    let stdout = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        ran.status.success() && ran.stderr.is_empty(),
        "{what}: {}\n{stdout}\n{}",
        ran.status,
        ran.stderr
    );
    stdout
}

/// Builds and runs an example; returns its output.
fn example(name: &str, flags: &[&str], link: Link) -> String {
    let (folder, source) = (temporary(), c_api().join("example").join(format!("{name}.c")));
    // They were not written for all warnings.
    let compiler = [&["gcc", "-O1", "-w"], flags].concat();
    let binary = build(&source, &compiler, link, folder.path());
    // The example reads its module from the current directory.
    output_of(&run(Command::new(binary).current_dir(c_api().join("example"))), name)
}

/// Every example, with lines that it must print in addition to its own checks.
const EXAMPLES: [(&str, &[&str]); 13] = [
    ("callback", &["> 7", "> 42", "> 49"]),
    ("finalize", &["Live count 0", "Finalizing #0...", "Finalizing #100000..."]),
    ("global", &["Done."]),
    ("hello", &["> Hello World!", "Done."]),
    ("hostref", &["Accessing function...", "Done."]),
    ("memory", &["Creating stand-alone memory...", "Done."]),
    ("multi", &["> 4 3 2 1", "Done."]),
    ("reflect", &[">> initial: func i32 f64 f32 -> i32", ">> in-arity: 3, out-arity: 1", "Done."]),
    ("serialize", &["> Hello World!", "Done."]),
    ("start", &["> wasm trap: wasm `unreachable` instruction executed", "Done."]),
    ("table", &["Creating stand-alone table...", "Done."]),
    ("threads", &["> Thread 0 running", "> Thread 9 running"]),
    ("trap", &["> callback abort", "> wasm trap: wasm `unreachable` instruction executed", "Done."]),
];

#[test]
fn the_examples_of_the_c_api_succeed() {
    for (name, lines) in EXAMPLES {
        let printed = example(name, &[], Link::Shared);
        for line in lines {
            assert!(
                printed.lines().any(|printed| printed == *line),
                "{name}: no line '{line}' in\n{printed}"
            );
        }
    }
    let sources =
        fs::read_dir(c_api().join("example")).expect("a folder").map(|entry| entry.expect("an entry"));
    let sources = sources.filter(|entry| entry.path().extension().is_some_and(|end| end == "c"));
    assert_eq!(sources.count(), EXAMPLES.len(), "no example was forgotten");
}

#[test]
fn the_frames_that_an_example_prints_are_those_of_its_module() {
    let module = fs::read(c_api().join("example/trap.wasm")).expect("a module");
    let printed = example("trap", &[], Link::Shared);
    let frames = printed.lines().filter_map(|line| line.strip_prefix("> 0x")?.split_once(" @ 0x"));
    // Instance @ offset = function . offset
    let offsets = frames.map(|(_, place)| {
        let (offset, function) = place.split_once(" = ").expect("a function");
        let offset = usize::from_str_radix(offset, 16).expect("an offset");
        (module[offset], function.split_once('.').expect("its offset").0)
    });
    // Each twice, as the origin and in the trace: the CALL in function 1, UNREACHABLE in
    // function 2.
    let expected = [(0x10, "1"), (0x10, "1"), (0x00, "2"), (0x00, "2")];
    assert_eq!(offsets.collect::<Vec<_>>(), expected, "{printed}");
}

#[test]
fn the_library_can_be_linked_statically() {
    assert!(example("hello", &[], Link::Static).ends_with("Done.\n"));
}

/// Detects objects exchanged by C code and the library that are used after they were freed, freed
/// twice, or never freed; and leaks of the library itself. (Valgrind does not know the system call
/// by which the engine maps its code twice.)
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn the_examples_have_no_errors_of_memory() {
    for (name, _) in EXAMPLES {
        example(name, &SANITIZERS, Link::Shared);
    }
}

#[test]
fn the_example_in_the_readme_prints_what_it_computes() {
    let readme =
        fs::read_to_string(repo_root().join("wasm-jit/c-api/README.md")).expect("the README is there");
    let (_, example) = readme.split_once("```c\n").expect("a C example");
    let (example, _) = example.split_once("```").expect("its end");
    let folder = temporary();
    let source = folder.path().join("sum.c");
    fs::write(&source, example).expect("a file can be written");
    let binary = build(&source, &["gcc", "-O2"], Link::Shared, folder.path());
    assert_eq!(output_of(&run(&mut Command::new(binary)), "sum.c"), "sum() = 42\n");
}

/// The programs of `wasm_c_api/`.
const PROGRAMS: [&str; 7] =
    ["configuration", "deletion", "kinds", "misuse", "reentrance", "references", "traps"];

fn source(name: &str) -> PathBuf {
    repo_root().join("tests/wasm_c_api").join(name)
}

/// Compiles the modules of the programs into a directory.
fn modules(folder: &Path) {
    for entry in fs::read_dir(source("")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "wat") {
            let module = wat::parse_file(&path).unwrap_or_else(|error| panic!("{error}"));
            let name = path.with_extension("wasm");
            fs::write(folder.join(name.file_name().expect("a name")), module)
                .expect("a module can be written");
        }
    }
    let too_large = wat::parse_str(too_large()).expect("a module");
    fs::write(folder.join("too_large.wasm"), too_large).expect("a module can be written");
}

/// A module with a function whose code would exceed the limit, since it passes a thousand values in
/// each of many calls.
fn too_large() -> String {
    let types = "i32 ".repeat(1000);
    let (values, calls, sum) = ("(local.get 0)".repeat(1000), "call 2 ".repeat(500), "i32.add ".repeat(999));
    let results: String = (0..1000).rev().map(|value| format!("(local.get {value})")).collect();
    format!(
        r#"(module
            (func (export "answer") (result i32) (i32.const 42))
            (func (param i32) (result i32) {values} {calls} {sum})
            (func (param {types}) (result {types}) {results}))"#
    )
}

/// Builds and runs a program with each of these compilers; it must print nothing.
fn check(compilers: &[&[&str]]) {
    let folder = temporary();
    modules(folder.path());
    for compiler in compilers {
        for name in PROGRAMS {
            let binary = build(&source(&format!("{name}.c")), compiler, Link::Shared, folder.path());
            let what = format!("{name}, {compiler:?}");
            // The C library overwrites freed memory.
            let mut command = Command::new(binary);
            command.arg(folder.path()).env("MALLOC_PERTURB_", "165");
            assert_eq!(output_of(&run(&mut command), &what), "", "{what}");
        }
    }
}

#[test]
fn our_programs_succeed() {
    check(&[&["gcc", "-O2"], &["clang", "-O0", "-std=c11"]]);
}

#[test]
fn our_programs_have_no_errors_of_memory() {
    check(&[&[&["gcc", "-O1"][..], &SANITIZERS].concat()]);
}

/// The functions that headers declare, according to the compiler, without those that they define.
fn declared(include: &str) -> BTreeSet<String> {
    let folder = temporary();
    let (source, list) = (folder.path().join("header.c"), folder.path().join("list"));
    fs::write(&source, include).expect("a file can be written");
    let mut command = Command::new("gcc");
    command.arg("-fsyntax-only").arg("-aux-info").arg(&list).arg("-I").arg(c_api().join("include"));
    command.arg("-I").arg(repo_root().join("wasm-jit/c-api/include")).arg(&source);
    assert!(command.status().expect("gcc can be started").success(), "{command:?}");
    let list = fs::read_to_string(&list).expect("the compiler has written it");
    let declarations = list.lines().filter(|line| line.contains(" extern "));
    let names = declarations.filter_map(|line| line.split_once(" (")?.0.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("wasm_")).map(str::to_owned).collect()
}

fn exported() -> BTreeSet<String> {
    let library = library().join("libwasm_jit.so");
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm is there");
    let symbols = String::from_utf8(output.stdout).expect("text");
    let names = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.filter(|name| name.starts_with("wasm_")).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_every_function_of_the_headers_and_no_other() {
    let declared = declared("#include <wasm_jit.h>\n");
    assert!(declared.len() > 250, "{declared:?}");
    assert_eq!(exported(), declared);
}

#[test]
fn the_library_stays_loaded_and_has_a_name() {
    let tags = dynamic_tags(&library().join("libwasm_jit.so"));
    assert!(tags.contains("NODELETE") && tags.contains("soname: [libwasm_jit.so]"), "{tags}");
}

#[test]
fn the_version_of_the_header_is_that_of_the_workspace() {
    let header = repo_root().join("wasm-jit/c-api/include/wasm_jit.h");
    let header = fs::read_to_string(header).expect("the header is there");
    let line = format!("#define WASM_JIT_VERSION {}", version_number());
    assert!(header.lines().any(|found| found == line), "{line}");
}

#[test]
fn our_header_compiles_alone_and_without_a_warning() {
    let folder = temporary();
    let source = folder.path().join("header.c");
    fs::write(&source, "#include <wasm_jit.h>\n#include <wasm_jit.h>\nextern int used;\n").expect("a file");
    for (compiler, standard) in [("gcc", "-std=c11"), ("clang", "-std=c17"), ("g++", "-std=c++11")] {
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", standard]);
        if compiler == "g++" {
            command.args(["-x", "c++"]);
        }
        command.arg("-isystem").arg(c_api().join("include"));
        command.arg("-I").arg(repo_root().join("wasm-jit/c-api/include")).arg(&source);
        let output = command.output().unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
