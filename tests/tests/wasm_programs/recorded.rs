//! The programs with small workloads are recorded: output and exit code are those of `run`, and
//! replays equal the recordings, event by event.

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::{Run, ensure_wasm_jit, run_within};
use wasm_jit::{Engine, Linker, Module, Store};

use super::TIME_LIMIT;
use super::monitors::{GOFMT, ICEPLL, LUA, PYTHON, RUST, SQLITE, Workload};

/// Runs the command `wasm-jit`, which must succeed.
#[track_caller]
fn command(arguments: &[&str], folder: &Path) -> Run {
    let mut command = Command::new(ensure_wasm_jit());
    let run = run_within(command.args(arguments).current_dir(folder), TIME_LIMIT);
    assert!(run.status.success(), "{arguments:?}: {}\n{}", run.status, run.stderr);
    run
}

/// Runs a replay with checks; returns the number of the event that differs, the last one that it
/// reached, and that of the end of the recording.
fn replay(file: &Path) -> [i32; 3] {
    let engine = Engine::default();
    let module = Module::from_file(&engine, file).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    // A run that has ended by exit traps.
    let _ = start.call(&mut store, ());
    ["replay.difference", "replay.position", "replay.last"]
        .map(|name| instance.get_global(&mut store, name).unwrap().get(&mut store).unwrap_i32())
}

#[track_caller]
fn check(workload: &Workload) {
    let plain = workload.run(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path();
    let trace = folder.join("app.trace");
    let (recorded, program) = workload.recorded(&trace);
    // Nothing on standard error either, but for what the program prints.
    assert_eq!(
        (recorded.status, &recorded.stdout, &recorded.stderr),
        (plain.status, &plain.stdout, &plain.stderr)
    );
    let program = program.to_str().expect("a UTF-8 path");
    // This runs the program with the host of the trace, and compares all events.
    let reduced = command(&["reduce", "app.trace", program, "-o", "small.trace"], folder);
    for trace in ["app.trace", "small.trace"] {
        command(&["replay-gen", "--check", trace, program, "-o", "check.wasm"], folder);
        let [difference, position, last] = replay(&folder.join("check.wasm"));
        assert_eq!((difference, position), (0, last), "{program}: {trace}");
    }
    let text = |run: &Run| String::from_utf8_lossy(&run.stdout).into_owned();
    let (reduced, dump) = (text(&reduced), text(&command(&["trace", "dump", "small.trace"], folder)));
    let after = format!("{} after", dump.lines().count());
    assert!(reduced.lines().next().is_some_and(|line| line.ends_with(&after)), "{reduced}");
    // A trace that was cut anywhere is an error, or a part of it.
    let bytes = fs::read(&trace).unwrap();
    fs::write(&trace, &bytes[..bytes.len() / 2]).unwrap();
    let mut cut = Command::new(ensure_wasm_jit());
    let cut = run_within(cut.args(["trace", "dump", "app.trace"]).current_dir(folder), TIME_LIMIT);
    assert!(matches!(cut.status.code(), Some(0 | 1)), "{}\n{}", cut.status, cut.stderr);
}

#[test]
fn recorded_icepll() {
    check(&ICEPLL);
}

#[test]
fn recorded_lua() {
    check(&LUA);
}

#[test]
fn recorded_sqlite() {
    check(&SQLITE);
}

#[test]
fn recorded_gofmt() {
    check(&GOFMT);
}

#[test]
fn recorded_rust() {
    check(&RUST);
}

#[test]
fn recorded_python() {
    check(&PYTHON);
}
