//! Recordings that another process requests, and that the end of the program ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Writes a line, waits for the end of its input, and calls `work` twice.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\06\00\00\00")
    (data (i32.const 16) "ready\n")
    (func $work)
    (func $never)
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $work)
        (call $work)
        (if (i32.const 0) (then (call $never)))))"#;

#[test]
fn a_program_that_ends_says_that_calls_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("app.wat"), PROGRAM).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(arguments).current_dir(folder.path());
        command
    };
    for (from, calls, message, is_kept) in [
        ("never", "1", "`never` is not called in this run", false),
        ("work:3", "1", "nothing was recorded: the number of calls to `work` in this run is 2", false),
        ("work", "5", "2 of 5 calls were recorded", true),
        ("work", "2", "", true),
        ("work", "1", "", true),
        // Of all functions.
        ("", "", "", true),
    ] {
        let mut program = command(&["run", "--control", "app.wat"]);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(program.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let process = program.id().to_string();
        let refused = command(&["attach", &process, "record", "-o", "app.wat"]).output().unwrap();
        let refusal = String::from_utf8(refused.stderr).unwrap();
        assert!(refusal.contains("it would overwrite the input app.wat"), "{refusal}");
        assert_eq!(fs::read_to_string(folder.path().join("app.wat")).unwrap(), PROGRAM);
        let mut record = vec!["attach", &process, "record", "-o", "app.trace"];
        if !from.is_empty() {
            record.extend(["--from", from, "--calls", calls]);
        }
        let started = command(&record).output().unwrap();
        assert!(started.status.success(), "{started:?}");
        drop(program.stdin.take());
        let ended = program.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let trace = folder.path().join("app.trace");
        let expected = match message {
            "" => String::new(),
            message => format!("wasm-jit: {}: {message}\n", trace.display()),
        };
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), expected, "{from} {calls}");
        assert_eq!(trace.exists(), is_kept, "{from} {calls}");
        if is_kept {
            let dump = command(&["trace", "dump", "app.trace"]).output().unwrap();
            assert!(dump.status.success(), "{dump:?}");
            fs::remove_file(trace).unwrap();
        }
    }
}
