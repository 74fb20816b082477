//! `fastinst info` on every kind of binary that gcc produces.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

const SOURCE: &str = "int work(int x) { return x + 1; }\nint main(void) { return work(-1); }\n";

/// Compiles the source with these flags, and returns the output of `info --json` for the result.
#[track_caller]
fn info(folder: &TempDir, flags: &[&str]) -> Value {
    let (source, binary) = (folder.path().join("app.c"), folder.path().join("app"));
    fs::write(&source, SOURCE).expect("a file can be written");
    let gcc = Command::new("gcc").args(flags).arg(&source).arg("-o").arg(&binary).status();
    assert!(gcc.expect("gcc can be started").success(), "gcc {flags:?}");
    let printed = run(&["info", "--json", binary.to_str().expect("UTF-8")]);
    serde_json::from_str(&printed).expect("it is JSON")
}

#[track_caller]
fn run(arguments: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fastinst")).args(arguments).output().expect("it can be started");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && messages.is_empty(), "{arguments:?}: {messages}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn each_kind_of_binary_has_its_verdict() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    #[track_caller]
    fn check(folder: &TempDir, flags: &[&str], kind: &str, measured: bool, remarks: &[&str]) {
        let found = info(folder, flags);
        assert_eq!(found["kind"], kind, "{flags:?}");
        assert_eq!(found["profiler"]["measured"], measured, "{flags:?}: {found}");
        let said = found["profiler"]["remarks"].as_array().expect("a list");
        assert_eq!(said.len(), remarks.len(), "{flags:?}: {said:?}");
        for (said, expected) in said.iter().zip(remarks) {
            assert!(said.as_str().expect("text").contains(expected), "{flags:?}: {said}");
        }
    }
    let pie = "position-independent executable";
    let probed = "-finstrument-functions";
    check(&folder, &[probed, "-g"], pie, true, &["by `fastinst record`"]);
    check(&folder, &[probed, "-no-pie", "-g"], "executable", true, &["by `fastinst record`"]);
    check(&folder, &[probed], pie, true, &["by `fastinst record`", "no debug information"]);
    let stripped = ["by `fastinst record`", "no symbols", "no debug information"];
    check(&folder, &[probed, "-s"], pie, true, &stripped);
    check(&folder, &["-g"], pie, false, &["compile it with -finstrument-functions"]);
    check(&folder, &[probed, "-static"], "executable", false, &["statically linked"]);
    let library = ["-shared", "-fPIC", "-g", "-Wl,-soname,libapp.so", probed];
    check(&folder, &library, "shared library", true, &["in every program that is recorded"]);
    check(&folder, &["-c", "-g", probed], "object file", true, &["what it is linked into"]);
}

#[test]
fn instrumentation_of_a_binary_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let flags = ["-g", "-Wl,-rpath,/opt/lib", "-Wl,--build-id=0x0123abcd", "-fpatchable-function-entry=5"];
    let found = info(&folder, &flags);
    assert_eq!(found["search_path"], serde_json::json!(["/opt/lib"]));
    assert_eq!(found["build_id"], "0123abcd");
    assert_eq!(found["probes"]["patchable_entries"], 2);
    assert_eq!(found["debug"], serde_json::json!({"dwarf": true, "compressed": false, "separate": null}));
    assert_eq!(found["libraries"], serde_json::json!(["libc.so.6"]));
    assert!(found["interpreter"].as_str().expect("a loader").contains("ld-linux"), "{found}");
    let hooked = info(&folder, &["-pg", "-mfentry"]);
    assert_eq!(hooked["probes"]["entry_hook"], "__fentry__");
}

#[test]
fn the_text_is_for_people() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    info(&folder, &["-g", "-finstrument-functions"]);
    let binary = folder.path().join("app");
    let text = run(&["info", binary.to_str().expect("UTF-8")]);
    for line in
        ["instrumentation    entries and exits", "debug information  DWARF", "libraries          libc.so.6"]
    {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

#[test]
fn other_files_exit_1() {
    let check = |file: &Path, expected: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_fastinst")).arg("info").arg(file).output();
        let output = output.expect("it can be started");
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.starts_with("fastinst: ") && message.contains(expected), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    check(Path::new("/etc/passwd"), "is not an ELF file");
    check(Path::new("/no/such/file"), "cannot read");
    check(Path::new("/tmp"), "cannot read");
}
