//! Programs to which other processes can attach, and the fuel of programs that are monitored.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Writes a line, and waits for the end of its input.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\06\00\00\00")
    (data (i32.const 16) "ready\n")
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;

/// A command in a folder with the program, without directories for sockets in its environment.
fn command(folder: &TempDir, arguments: &[&str]) -> Command {
    fs::write(folder.path().join("app.wat"), PROGRAM).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.args(arguments).current_dir(folder.path()).env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
    command
}

/// Starts a program; returns it when it has written its line.
fn start(command: &mut Command) -> Child {
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line != "ready\n" {
        child.stderr.as_mut().unwrap().read_to_string(&mut line).unwrap();
        panic!("{line}");
    }
    child
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn programs_of_other_environments_are_attached_to() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tempfile::tempdir().unwrap();
    for variable in ["XDG_RUNTIME_DIR", "TMPDIR"] {
        let arguments = ["run", "--control", "app.wat"];
        let child = start(command(&folder, &arguments).env(variable, runtime.path()));
        let process = child.id().to_string();
        let output = command(&folder, &["attach", &process, "list"]).output().unwrap();
        assert!(output.status.success(), "{variable}: {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains("hotness -\n"));
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let this = std::process::id().to_string();
    let output =
        command(&folder, &["attach", &this, "list"]).env("TMPDIR", "/tmp/of-shell").output().unwrap();
    let said = said(&output);
    assert!(said.contains("/tmp/of-shell/wasm-jit-") && said.contains("/run/user/"), "{said}");
}

/// The names of the sockets in a directory, and in those in it.
fn sockets(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(sockets(&entry.path()));
        } else if kind.is_socket() {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn programs_that_do_not_start_leave_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for failing in [["--debug-port", "file"], ["--dir", "missing"], ["--replay", "file"]] {
        let arguments = [&["run", "--control"][..], &failing, &["app.wat"]].concat();
        let output = command(&folder, &arguments).env("XDG_RUNTIME_DIR", runtime.path()).output().unwrap();
        assert!(!output.status.success(), "{failing:?}");
        assert!(sockets(runtime.path()).is_empty(), "{failing:?}: {}", said(&output));
    }
}

#[test]
fn the_instructions_of_monitors_use_no_fuel_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"(module (func (export "down") (param i32)
        (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))"#;
    fs::write(folder.path().join("down.wat"), text).unwrap();
    // Not only additions of constants, for which the program's code has counters.
    let script = "report var n: i32;\nwasm:opcode:i32.sub:before { if (arg0 > 3) { n = n + arg0; } }\n";
    fs::write(folder.path().join("count.mm"), script).unwrap();
    let run = |fuel: &str, more: &[&str]| {
        let arguments = ["run", "--fuel", fuel, "--invoke", "down"];
        let arguments = [&arguments[..], more, &["down.wat", "10"]].concat();
        command(&folder, &arguments).output().unwrap()
    };
    let enough = (1..200).find(|fuel| run(&fuel.to_string(), &[]).status.success()).unwrap().to_string();
    let output = run(&enough, &["--monitors=./count.mm"]);
    assert!(output.status.success() && said(&output).contains("count.mm\n  n  "), "{}", said(&output));
}
