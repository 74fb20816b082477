//! The programs with small workloads are recorded: output and exit code are the same as those of
//! `run`, and replays equal the recordings, event by event, in three engines: this one, wasmi, and
//! node.

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

/// The exported globals of a replay with checks: the number of the event that differs, the last one
/// that it reached, and that of the end of the recording.
const GLOBALS: [&str; 3] = ["replay.difference", "replay.position", "replay.last"];

/// Runs a replay with checks; returns its globals.
fn replay(file: &Path) -> [i32; 3] {
    let engine = Engine::default();
    let module = Module::from_file(&engine, file).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap();
    // The replay of a run that has ended by exit traps.
    let _ = start.call(&mut store, ());
    GLOBALS.map(|name| instance.get_global(&mut store, name).unwrap().get(&mut store).unwrap_i32())
}

/// The same in wasmi; `None`, with a message, for a program with exceptions, which wasmi does not
/// support.
fn replay_in_wasmi(file: &Path) -> Option<[i32; 3]> {
    let engine = wasmi::Engine::default();
    let module = match wasmi::Module::new(&engine, fs::read(file).unwrap()) {
        Ok(module) => module,
        Err(error) if error.to_string().contains("exceptions proposal") => {
            eprintln!("not replayed in wasmi: {error}");
            return None;
        }
        Err(error) => panic!("wasmi: {error}"),
    };
    let mut store = wasmi::Store::new(&engine, ());
    let instance = wasmi::Linker::new(&engine).instantiate_and_start(&mut store, &module).unwrap();
    let start = instance.get_typed_func::<(), ()>(&store, "_start").unwrap();
    let _ = start.call(&mut store, ());
    Some(GLOBALS.map(|name| match instance.get_global(&store, name).unwrap().get(&store) {
        wasmi::Val::I32(value) => value,
        other => panic!("{name}: {other:?}"),
    }))
}

/// Runs a replay with checks in V8, and prints its globals.
const IN_NODE: &str = "
const [file, ...names] = process.argv.slice(1);
const module = new WebAssembly.Module(require('fs').readFileSync(file));
const { exports } = new WebAssembly.Instance(module);
try { exports._start(); } catch (error) {
  if (!(error instanceof WebAssembly.RuntimeError)) throw error;
}
console.log(JSON.stringify(names.map((name) => exports[name].value)));
";

/// The same in node; `None`, with a message, if there is no node.
fn replay_in_node(file: &Path) -> Option<[i32; 3]> {
    let mut command = Command::new("node");
    if command.arg("--version").output().is_err() {
        eprintln!("node is not installed: not replayed in node");
        return None;
    }
    let mut command = Command::new("node");
    let run = run_within(command.args(["-e", IN_NODE]).arg(file).args(GLOBALS), TIME_LIMIT);
    assert!(run.status.success(), "{}\n{}", run.status, run.stderr);
    Some(serde_json::from_slice(&run.stdout).expect("three numbers"))
}

/// Replays a trace with checks in node, with a host in JavaScript.
#[track_caller]
fn check_javascript(trace: &str, program: &str, folder: &Path) {
    command(&["replay-gen", "--javascript", trace, program, "-o", "javascript"], folder);
    let mut node = Command::new("node");
    if node.arg("--version").output().is_err() {
        eprintln!("node is not installed: not replayed by a host in JavaScript");
        return;
    }
    let mut node = Command::new("node");
    let run = run_within(node.arg(folder.join("javascript/replay.mjs")).arg("--check"), TIME_LIMIT);
    assert!(run.status.success(), "{program}: {trace}: {}\n{}", run.status, run.stderr);
}

/// Replays with checks in all engines.
#[track_caller]
fn check_replay(file: &Path, what: &str) {
    let [difference, position, last] = replay(file);
    assert_eq!((difference, position), (0, last), "{what}");
    for (engine, replayed) in [("wasmi", replay_in_wasmi(file)), ("node", replay_in_node(file))] {
        if let Some(replayed) = replayed {
            assert_eq!(replayed, [0, last, last], "{what} in {engine}");
        }
    }
}

/// The calls to one function are a separate replay.
#[track_caller]
fn check_slice(workload: &Workload, function: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path();
    let (_, program) = workload.recorded(&folder.join("app.trace"), &[]);
    let program = program.to_str().expect("a UTF-8 path");
    let slice = ["reduce", "--json", "--slice", function, "app.trace", program, "-o", "slice.trace"];
    let sliced = command(&slice, folder);
    let figures: serde_json::Value = serde_json::from_slice(&sliced.stdout).expect("JSON");
    let calls = figures["calls"].as_u64().expect("a number");
    let dump = command(&["trace", "dump", "slice.trace"], folder);
    let dump = String::from_utf8(dump.stdout).expect("UTF-8");
    let left = dump.lines().filter(|line| line.contains(" leave")).count() as u64;
    assert!(calls > 1 && left >= calls, "{function}: {calls} calls, {left} returns");
    let generate = ["replay-gen", "--check", "slice.trace", program, "-o", "check.wasm"];
    command(&generate, folder);
    check_replay(&folder.join("check.wasm"), function);
    check_javascript("slice.trace", program, folder);
}

/// Several calls to a function in the middle of the run are a separate replay, and the program is
/// not affected.
#[track_caller]
fn check_middle(workload: &Workload, from: &str, calls: u64) {
    let plain = workload.run(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path();
    let trace = folder.join("app.trace");
    let (recorded, program) = workload.recorded(&trace, &["--from", from, "--calls", &calls.to_string()]);
    assert_eq!(
        (recorded.status, &recorded.stdout, &recorded.stderr),
        (plain.status, &plain.stdout, &plain.stderr)
    );
    let program = program.to_str().expect("a UTF-8 path");
    command(&["reduce", "app.trace", program, "-o", "small.trace"], folder);
    let dump = command(&["trace", "dump", "small.trace"], folder);
    let dump = String::from_utf8(dump.stdout).expect("UTF-8");
    let left = dump.lines().filter(|line| line.contains(" leave")).count() as u64;
    assert_eq!(left, calls, "{from}");
    for trace in ["app.trace", "small.trace"] {
        command(&["replay-gen", "--check", trace, program, "-o", "check.wasm"], folder);
        check_replay(&folder.join("check.wasm"), &format!("{from}: {trace}"));
    }
    check_javascript("small.trace", program, folder);
}

#[track_caller]
fn check(workload: &Workload) {
    let plain = workload.run(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path();
    let trace = folder.join("app.trace");
    let (recorded, program) = workload.recorded(&trace, &[]);
    // Nothing on standard error either, except what the program prints.
    assert_eq!(
        (recorded.status, &recorded.stdout, &recorded.stderr),
        (plain.status, &plain.stdout, &plain.stderr)
    );
    let program = program.to_str().expect("a UTF-8 path");
    // Runs the program with the host of the trace, and compares all events.
    let reduced = command(&["reduce", "app.trace", program, "-o", "small.trace"], folder);
    for trace in ["app.trace", "small.trace"] {
        command(&["replay-gen", "--check", trace, program, "-o", "check.wasm"], folder);
        check_replay(&folder.join("check.wasm"), &format!("{program}: {trace}"));
    }
    // node takes seconds to compile larger programs.
    let is_small = fs::metadata(program).unwrap().len() < 2 << 20;
    if is_small || std::env::var_os("LONG_TESTS").is_some() {
        check_javascript("small.trace", program, folder);
    }
    let text = |run: &Run| String::from_utf8_lossy(&run.stdout).into_owned();
    let (reduced, dump) = (text(&reduced), text(&command(&["trace", "dump", "small.trace"], folder)));
    let after = format!("{} after", dump.lines().count());
    assert!(reduced.lines().next().is_some_and(|line| line.ends_with(&after)), "{reduced}");
    // A truncated trace is either an error, or a prefix of the trace.
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

#[test]
fn slices_of_lua() {
    check_slice(&LUA, "luaV_finishget");
    // It calls host functions that change memory.
    check_slice(&LUA, "fread");
}

#[test]
fn slices_of_sqlite() {
    check_slice(&SQLITE, "sqlite3BtreeIndexMoveto");
    check_slice(&SQLITE, "memcpy");
}

#[test]
fn the_middle_of_lua() {
    check_middle(&LUA, "luaV_finishget:5", 3);
    check_middle(&LUA, "fread", 1);
}

#[test]
fn the_middle_of_sqlite() {
    check_middle(&SQLITE, "sqlite3BtreeIndexMoveto:20", 4);
    check_middle(&SQLITE, "sqlite3VdbeExec", 2);
}
