//! What `run` prints about modules of `replay-gen --check` that do not repeat the recorded run.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use wasm_jit_replay::{Event, Reader, Value, Writer};

/// With 0, asks the host twice, and exits; with 1, exits; with 2, traps; with 3, runs forever.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func (export "f") (param i32)
        (if (i32.eqz (local.get 0)) (then (drop (call $yield)) (drop (call $yield))))
        (if (i32.eq (local.get 0) (i32.const 2)) (then (unreachable)))
        (if (i32.eq (local.get 0) (i32.const 3)) (then (loop (br 0))))
        (call $exit (i32.const 3))))"#;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.args(arguments).current_dir(folder).output().unwrap()
}

/// The first line on standard error of the replay of `f(0)` with another argument.
fn replayed(argument: i32, options: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("app.wat"), PROGRAM).unwrap();
    let recorded = run(folder, &["record", "-o", "app.trace", "--invoke", "f", "app.wat", "0"]);
    assert_eq!(recorded.status.code(), Some(3), "{recorded:?}");
    let trace = Reader::new(File::open(folder.join("app.trace")).unwrap());
    let mut events: Vec<Event> = trace.collect::<Result<_, _>>().unwrap();
    let Event::Enter { arguments, .. } = &mut events[1] else { panic!("{}", events[1]) };
    arguments[0] = Value::I32(argument);
    let mut writer = Writer::new(File::create(folder.join("app.trace")).unwrap()).unwrap();
    events.iter().for_each(|event| writer.write(event).unwrap());
    drop(writer);
    let generated = run(folder, &["replay-gen", "--check", "app.trace", "app.wat", "-o", "check.wasm"]);
    assert!(generated.status.success(), "{generated:?}");
    let replayed = run(folder, &[&["run"], options, &["check.wasm"]].concat());
    assert!(!replayed.status.success(), "{replayed:?}");
    let message = String::from_utf8(replayed.stderr).unwrap();
    message.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_first_difference_is_printed() {
    let equal = "wasm-jit: check.wasm: the replay has ended as the recorded run did";
    assert_eq!(replayed(0, &[]), equal);
    let differs = "wasm-jit: check.wasm: the replay differs from the recorded run at event 2 of the trace";
    // The calls are missing, and the program exits.
    assert_eq!(replayed(1, &[]), differs);
    // The program traps by itself.
    assert_eq!(replayed(2, &[]), differs);
    // It is stopped, which is no difference.
    let stopped = replayed(3, &["--fuel", "100000"]);
    assert!(!stopped.contains("replay") && stopped.contains("fuel"), "{stopped}");
}
