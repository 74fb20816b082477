//! The C interface as C programs use it: linked with `-lfastinst`, and only preloaded.
//!
//! The programs are in `capi/`; each toggles its own probes, calls or instructions and counts what
//! is executed. They exit with 0, or with 1 and one line that describes the failure.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::Compiler::{Clang, Gcc};
use tests::{
    Compiler, Run, bare, compile, ensure_preload, is_long, preloaded, repo_root, run, target_release_dir,
};

type Build = (Compiler, &'static [&'static str]);

const USUAL: &[Build] = &[(Gcc, &["-O2"]), (Clang, &["-O2"])];

/// For programs whose own sites are toggled.
const SHAPES: &[Build] = &[
    (Gcc, &["-O0"]),
    (Gcc, &["-O2"]),
    (Gcc, &["-O2", "-no-pie"]),
    (Gcc, &["-O2", "-fno-plt"]),
    (Gcc, &["-Os", "-fcf-protection"]),
    (Clang, &["-O0"]),
    (Clang, &["-O2"]),
    (Clang, &["-Os", "-fno-plt"]),
];

/// How a program accesses the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The program is linked with the library, which the loader finds.
    Linked,
    /// The program includes only the header, and uses `dlsym`.
    Preloaded,
}

const BOTH: [Access; 2] = [Access::Linked, Access::Preloaded];

/// How the build with this number is tested.
fn accesses(build: usize) -> &'static [Access] {
    if is_long() { &BOTH } else { std::slice::from_ref(&BOTH[build % 2]) }
}

fn include_directory() -> PathBuf {
    repo_root().join("fastinst/include")
}

fn header() -> String {
    fs::read_to_string(include_directory().join("fastinst.h")).expect("the header is there")
}

/// Flags for programs that are linked.
fn link_flags() -> [String; 4] {
    ensure_preload();
    let directory = target_release_dir().canonicalize().expect("the library was built");
    let directory = directory.to_str().expect("a UTF-8 path");
    // The library precedes the source: it must be kept although nothing has referenced it yet.
    [
        "-Wl,--no-as-needed".to_owned(),
        format!("-L{directory}"),
        "-lfastinst".to_owned(),
        format!("-Wl,-rpath,{directory}"),
    ]
}

fn build(source: &str, (compiler, flags): Build, access: Access) -> PathBuf {
    // `compile` identifies binaries by their flags, and does not know this header.
    let mut hasher = DefaultHasher::new();
    header().hash(&mut hasher);
    let mut all =
        vec![format!("-I{}", include_directory().display()), format!("-DHEADER={}", hasher.finish() as u32)];
    all.extend(flags.iter().map(|flag| flag.to_string()));
    if access == Access::Linked {
        all.push("-DLINKED".to_owned());
        all.extend(link_flags());
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    compile(&format!("capi/{source}"), &all, compiler)
}

/// Names the calibration file, or `none`.
const CALIBRATION: &str = "FASTINST_CALIBRATION";

fn start(binary: &Path, args: &[&str], access: Access, options: &str, calibration: Option<&str>) -> Run {
    let mut command = match access {
        Access::Linked => {
            let mut command = bare(binary, args);
            command.env("FASTINST_OPTIONS", options);
            command
        }
        Access::Preloaded => preloaded(binary, args, options),
    };
    if let Some(calibration) = calibration {
        command.env(CALIBRATION, calibration);
    }
    run(&mut command)
}

/// Runs a program in each build, without the profiler, and asserts that it succeeds without
/// diagnostics: in the long form with both kinds of access, otherwise alternating between them.
/// Returns its output, which is the same each time.
#[track_caller]
fn check(source: &str, args: &[&str], builds: &[Build]) -> String {
    check_with(source, args, builds, "tool=none", None)
}

#[track_caller]
fn check_with(
    source: &str,
    args: &[&str],
    builds: &[Build],
    options: &str,
    calibration: Option<&str>,
) -> String {
    let mut printed = None;
    for (number, &(compiler, flags)) in builds.iter().enumerate() {
        for &access in accesses(number) {
            let binary = build(source, (compiler, flags), access);
            let ran = start(&binary, args, access, options, calibration);
            let what = format!("{source} {args:?}, {access:?}, by {compiler:?} {flags:?}, {options}");
            assert!(ran.status.success() && ran.stderr.is_empty(), "{what}: {}\n{}", ran.status, ran.stderr);
            let stdout = String::from_utf8(ran.stdout).expect("text");
            assert_eq!(*printed.get_or_insert_with(|| stdout.clone()), stdout, "{what}");
        }
    }
    printed.expect("at least one build")
}

#[test]
fn probes_toggled_by_four_threads_fire_exactly_while_active() {
    check("toggle.c", &[], SHAPES);
}

#[test]
fn probes_toggled_with_text_access_by_mprotect() {
    // Threads wait for each other's pages: this takes long.
    let (builds, bursts) = if is_long() { (USUAL, "1000") } else { (&USUAL[..1], "200") };
    check_with("toggle.c", &[bursts], builds, "tool=none:text=mprotect", None);
}

#[test]
fn probes_toggled_by_a_parent_and_its_forked_children_apart() {
    let plugin = plugin(USUAL[0]);
    let printed = check("fork.c", &[plugin.to_str().expect("a UTF-8 path")], USUAL);
    assert_eq!(printed, "parent and child toggled independently\n");
}

/// The library that programs load at run time.
fn plugin((compiler, flags): Build) -> PathBuf {
    let mut shared = vec!["-shared", "-fPIC"];
    shared.extend(flags);
    compile("capi/plugin.c", &shared, compiler)
}

#[test]
fn wrong_arguments_are_refused_and_every_error_has_its_text() {
    let expected = "\
0 success
-1 an argument is null or out of range
-2 there is no probe with this id
-3 the probe is not discovered before its site has been executed once
-4 the library that holds the probe was unloaded
-5 the address holds other bytes than expected
-6 the address is not mapped readable and executable
-7 another thread is patching the same instruction; try again
-8 a patch replaces 1 to 8 bytes, and each instruction by one of the same length
-9 the target, or memory for a stub, is out of reach of a 32-bit displacement
-10 there is no call at the address that can be toggled
-11 the instruction crosses a fetch window and cannot be executed out of line
-12 a discovery callback must not register callbacks
-13 the system refused a mapping, a protection, membarrier, a signal handler or a thread
-14 a thread has SIGTRAP blocked; unblock it before patching
-15 the code is shared with the parent process; call wordpatch_unshare
-16 the patch or finisher belongs to the parent process
-17 the module that held the probe is gone
1 unknown error
-18 unknown error
-2147483648 unknown error
";
    // The program replaces a function of the C library for the library.
    let builds: &[Build] = &[(Gcc, &["-O2", "-rdynamic"]), (Clang, &["-O2", "-rdynamic"])];
    assert_eq!(check("errors.c", &[], builds), expected);
}

#[test]
fn probes_of_a_library_that_is_loaded_and_unloaded() {
    for &build in USUAL {
        let plugin = plugin(build);
        for options in ["tool=none", "tool=none:text=mprotect"] {
            check_with("libraries.c", &[plugin.to_str().expect("a UTF-8 path")], &[build], options, None);
        }
    }
}

#[test]
fn instructions_at_every_offset_of_mapped_pages_patched_while_executing() {
    check("patch.c", &[], USUAL);
}

#[test]
fn instructions_patched_together_and_asynchronously_while_executing() {
    check("many_patches.c", &[], USUAL);
}

#[test]
fn batches_finished_in_every_way_while_executing() {
    check("batches.c", &[], USUAL);
}

#[test]
fn probes_switched_together_their_metadata_and_callers() {
    check("many_probes.c", &[], USUAL);
}

#[test]
fn call_sites_by_handle_toggled_and_retargeted_while_executing() {
    check("sites.c", &[], USUAL);
}

#[test]
fn fetch_model_threads_children_and_text_of_the_process() {
    check_with("process.c", &[], USUAL, "tool=none", Some("none"));
}

#[test]
fn patches_and_calls_where_the_kernel_refuses_membarrier() {
    check("refused.c", &[], USUAL);
}

#[test]
fn a_calibration_that_is_refused_is_named_with_its_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("calibration.toml");
    fs::write(&file, "no calibration").expect("a file can be written");
    let file = file.to_str().expect("a UTF-8 path");
    let binary = build("calibration.c", USUAL[0], Access::Linked);
    let ran = start(&binary, &[], Access::Linked, "tool=none", Some(file));
    assert!(ran.status.success(), "{}\n{}", ran.status, ran.stderr);
    let stdout = String::from_utf8(ran.stdout).expect("text");
    let lines: Vec<&str> = stdout.lines().collect();
    let [path, warning, model] = lines[..] else { panic!("{stdout}") };
    assert_eq!(path, format!("path: {file}"));
    assert_eq!(model, "window 8, source 1", "what the vendors guarantee");
    // The library prints the same at its start.
    let warning = warning.strip_prefix("warning: ").expect("a warning");
    assert!(warning.contains(file) && ran.stderr.contains(warning), "{warning}\n{}", ran.stderr);
}

#[test]
fn calls_of_every_shape_and_offset_in_mapped_pages_toggled_while_executing() {
    check("calls.c", &[], USUAL);
}

#[test]
fn instructions_of_a_page_that_is_mapped_again_with_the_same_code() {
    check("mapped_again.c", &["patch"], USUAL);
}

#[test]
fn calls_of_a_page_that_is_mapped_again_with_the_same_code() {
    check("mapped_again.c", &["call"], USUAL);
}

#[test]
fn a_page_that_is_mapped_again_with_other_code() {
    check("mapped_again.c", &["other"], USUAL);
}

#[test]
fn patches_and_calls_work_under_the_profiler_too() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let options = format!("output={}", folder.path().join("%p.json").display());
    // The macro helpers are not instrumented; all other functions are.
    for source in ["patch.c", "calls.c", "sites.c"] {
        check_with(source, &[], USUAL, &options, None);
    }
    let runs: usize = (0..USUAL.len()).map(|build| accesses(build).len()).sum();
    assert_eq!(tests::reports_in(folder.path()).len(), 3 * runs);
}

#[test]
fn the_header_compiles_alone_and_without_a_warning() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for (command, language, standards) in [
        ("gcc", "c", &["c99", "c11", "c17"][..]),
        ("clang", "c", &["c99", "c11", "c17"]),
        ("g++", "c++", &["c++11", "c++20"]),
        ("clang++", "c++", &["c++11", "c++20"]),
    ] {
        // Included twice: the second time it must be empty.
        let source = folder.path().join(format!("header.{language}"));
        fs::write(&source, "#include <fastinst.h>\n#include <fastinst.h>\nextern int used;\n")
            .expect("a file");
        for standard in standards {
            let output = Command::new(command)
                .args(["-x", language, &format!("-std={standard}"), "-fsyntax-only"])
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-I"])
                .arg(include_directory())
                .arg(&source)
                .output()
                .unwrap_or_else(|error| {
                    panic!("{command} (scripts/install-packages.sh installs it): {error}")
                });
            let messages = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && messages.is_empty(), "{command} -std={standard}:\n{messages}");
        }
    }
}

/// Compiles a C program given as text, as its documentation instructs, and returns its output.
fn print_of_example(source: &str, name: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (file, binary) = (folder.path().join(format!("{name}.c")), folder.path().join(name));
    fs::write(&file, source).expect("a file can be written");
    let output = Command::new("gcc")
        .args(["-O2", "-finstrument-functions", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include_directory())
        .arg(&file)
        .args(link_flags())
        .arg("-o")
        .arg(&binary)
        .output()
        .expect("gcc can be started");
    assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stderr));
    let ran = start(&binary, &[], Access::Linked, "tool=none", None);
    assert!(ran.status.success() && ran.stderr.is_empty(), "{name}: {}\n{}", ran.status, ran.stderr);
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn the_example_in_the_header_prints_what_it_says() {
    let header = header();
    let indented: Vec<&str> =
        header.lines().take_while(|line| *line != " */").filter_map(|line| line.strip_prefix(" *")).collect();
    let body = |line: &&str| line.is_empty() || line.starts_with("     ");
    let start = indented.iter().position(|line| line.trim() == "#include <stdio.h>").expect("an example");
    let example: Vec<&str> = indented[start..].iter().copied().take_while(body).collect();
    let commands = example.iter().position(|line| line.trim().starts_with("cc ")).expect("a command");
    let expected: Vec<&str> = example[commands + 1..].iter().map(|line| line.trim()).collect();
    assert_eq!(
        print_of_example(&example[..commands].join("\n"), "header").trim(),
        expected.join("\n").trim()
    );
}

#[test]
fn the_c_example_in_the_guide_works() {
    let guide = fs::read_to_string(repo_root().join("docs/c-api.md")).expect("the guide is there");
    let (_, example) = guide.split_once("```c\n").expect("a C example");
    let (example, _) = example.split_once("```").expect("its end");
    assert!(print_of_example(example, "guide").ends_with("calls of work\n"));
}

#[test]
fn the_library_stays_loaded_and_has_a_name() {
    ensure_preload();
    let tags = tests::dynamic_tags(&target_release_dir().join("libfastinst.so"));
    assert!(tags.contains("NODELETE") && tags.contains("soname: [libfastinst.so]"), "{tags}");
}

#[test]
fn the_version_of_the_header_is_that_of_the_workspace() {
    let line = format!("#define FASTINST_VERSION {}", tests::version_number());
    assert!(header().lines().any(|found| found == line), "{line}");
}

/// The header declares exactly the functions that the library exports.
#[test]
fn the_library_exports_every_function_of_the_header() {
    let library = ensure_preload();
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm is there");
    let symbols = String::from_utf8(output.stdout).expect("text");
    let exported: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let ours =
        |name: &&str| ["fastinst_", "wordpatch_", "callpatch_"].iter().any(|prefix| name.starts_with(prefix));
    let header = header();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with([' ', 't', '#']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let mut found: Vec<&str> = exported.iter().copied().filter(ours).collect();
    declared.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, declared);
}
