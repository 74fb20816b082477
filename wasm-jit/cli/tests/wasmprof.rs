//! `wasm-jit run` of programs that import the functions of WasmProf.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wasm-jit"))
        .args(arguments)
        .current_dir(directory)
        .env("XDG_STATE_HOME", directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Programs that import the functions of WasmProf run wherever the monitor may be started.
#[test]
fn functions_of_wasmprof_are_there_if_there_may_be_monitors() {
    let directory = tempfile::tempdir().unwrap();
    let program = "(module (import \"prof\" \"getTime\" (func $time (result f64)))
        (import \"prof\" \"addArcData\" (func $add (param i32 i32 i32 f64)))
        (import \"prof\" \"printResults\" (func $print))
        (func (export \"_start\")
            (call $add (i32.const 0) (i32.const 4) (i32.const 2) (f64.const 1)) (call $print)
            (if (f64.le (call $time) (f64.const 0)) (then unreachable))))";
    std::fs::write(directory.path().join("prof.wat"), program).unwrap();
    for (option, prints) in [("--control", false), ("--monitors=icount", false), ("--monitors=profile", true)]
    {
        let ended = run(directory.path(), &["run", option, "prof.wat"]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{option}: {said}");
        assert_eq!(said.contains("Flat profile:"), prints, "{option}: {said}");
    }
    let ended = run(directory.path(), &["run", "prof.wat"]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(said.contains("; it is defined with --monitors=profile, or --control\n"), "{said}");
}
