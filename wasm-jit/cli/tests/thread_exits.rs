//! A thread other than the main one ends the program.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

/// The main thread waits for ever; the other one exits, or traps if it gets 1.
const PROGRAM: &str = r#"(module
    (import "env" "memory" (memory 1 1 shared))
    (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (export "memory" (memory 0))
    (func $work (param $traps i32)
        (if (local.get $traps) (then unreachable))
        (call $exit (i32.const 9)))
    (func (export "wasi_thread_start") (param i32 i32) (call $work (local.get 1)))
    (func $run (param $traps i32)
        (drop (call $spawn (local.get $traps)))
        (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))
        unreachable)
    (func (export "exit") (call $run (i32.const 0)))
    (func (export "trap") (call $run (i32.const 1))))"#;

#[test]
fn everything_is_reported_as_if_the_main_thread_had_ended_it() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("app.wat"), PROGRAM).unwrap();
    let socket = place.path().join("socket");
    for (name, code) in [("exit", 9), ("trap", 134)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(["run", "--count", "work", "--monitors=calls", "--debug-port", "socket"]);
        let output = command.args(["--invoke", name, "app.wat"]).current_dir(place.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("1 work\n"), "{said}");
        assert_eq!(said.contains("unreachable"), name == "trap", "{said}");
        assert_eq!(said.matches("by_host     2\n").count(), 1, "one report of the monitor: {said}");
        assert!(!socket.exists());
    }
}
