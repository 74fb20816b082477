//! The command `wasm-jit` with a small address space, as under `ulimit -v`.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Far less than the 8 GiB that a memory reserves.
const LIMIT: u64 = 1 << 30;

fn limit_addresses(command: &mut Command, bytes: u64) {
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// Runs the command with a small address space.
fn run(file: &str, text: &str, arguments: &[&str]) -> Output {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join(file), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.arg("run").args(arguments).current_dir(dir.path()).stdin(Stdio::null());
    limit_addresses(&mut command, LIMIT);
    command.output().unwrap()
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    let found = (output.status.code(), String::from_utf8_lossy(&output.stdout));
    assert_eq!(found, (Some(code), stdout.into()), "{said}");
    assert!(said.contains(stderr), "{said}");
}

#[test]
fn a_program_runs_in_a_small_address_space() {
    let text = r#"(module
        (memory 1)
        (memory $other 0 3)
        (func (export "grow") (result i32 i32 i32 i32)
            ;; 16 MiB, then more than there are addresses.
            (memory.grow (i32.const 255))
            (i32.store (i32.const 0xfffffc) (i32.const 7))
            (i32.load (i32.const 0xfffffc))
            (memory.grow (i32.const 32768))
            (memory.size))
        (func (export "beyond") (param i32) (result i32) (i32.load offset=65532 (local.get 0)))
        (func (export "other") (result i32)
            (drop (memory.grow $other (i32.const 2)))
            (i64.store $other offset=131000 (i32.const 64) (i64.const 9))
            (i32.load $other (i32.const 131064))))"#;
    check(&run("a.wat", text, &["--invoke", "grow", "a.wat"]), 0, "1\n7\n-1\n256\n", "");
    check(&run("a.wat", text, &["--invoke", "beyond", "a.wat", "0"]), 0, "0\n", "");
    check(&run("a.wat", text, &["--invoke", "other", "a.wat"]), 0, "9\n", "");
    for index in ["1", "65532", "-1"] {
        let output = run("a.wat", text, &["--invoke", "beyond", "a.wat", index]);
        check(&output, 134, "", "out of bounds memory access");
    }
}

#[test]
fn threads_run_in_a_small_address_space() {
    let text = r#"(module
        (import "env" "memory" (memory 1 4 shared))
        (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
        (func (export "wasi_thread_start") (param i32 i32)
            (drop (memory.grow (i32.const 2)))
            (i32.atomic.store (i32.const 131072) (local.get 1))
            (i32.atomic.store (i32.const 0) (i32.const 1))
            (drop (memory.atomic.notify (i32.const 0) (i32.const 1))))
        (func (export "run") (result i32)
            (if (i32.le_s (call $spawn (i32.const 7)) (i32.const 0)) (then unreachable))
            (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))
            (i32.atomic.load (i32.const 131072))))"#;
    let output = run("t.wat", text, &["--max-stack", "256K", "--invoke", "run", "t.wat"]);
    check(&output, 0, "7\n", "");
}
