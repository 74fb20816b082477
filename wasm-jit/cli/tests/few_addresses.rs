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
    run_in(&dir, LIMIT, arguments)
}

fn run_in(dir: &TempDir, limit: u64, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.arg("run").args(arguments).current_dir(dir.path()).stdin(Stdio::null());
    // The C library reserves 64 MiB for each thread that allocates, and uses those of threads that
    // have ended again: how many there are depends on the load.
    command.env("MALLOC_ARENA_MAX", "1");
    limit_addresses(&mut command, limit);
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

/// An unsigned number in the binary format.
fn number(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A module to which functions are added with as many instructions as possible, which do nothing.
fn with_large_functions(text: &str, count: usize) -> Vec<u8> {
    // The code section, of fewer than 128 bytes, is the last one. It ends with empty functions.
    let module = wat::parse_str(format!("{text} {})", "(func)".repeat(count))).unwrap();
    let at = (8..module.len())
        .rev()
        .find(|at| module[*at] == 10 && *at + 2 + usize::from(module[at + 1]) == module.len());
    let (before, section) = module.split_at(at.expect("it has code"));
    let empty = [2, 0, 0x0b].repeat(count);
    let functions = section[2..].strip_suffix(&empty[..]).expect("empty functions");
    let body = [&[0][..], &vec![1; 7_654_000], &[0x0b]].concat();
    let large = [&number(body.len()), &body[..]].concat().repeat(count);
    let content = [functions, &large].concat();
    [before, &[10], &number(content.len()), &content].concat()
}

/// There are no addresses for the counters of an instance, which depend on the size of all code.
#[test]
fn functions_without_probes_are_reported_by_every_monitor() {
    const TEXT: &str = r#"(module
        (import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))
        (memory (export "memory") 1)
        (global (mut i32) (i32.const 0))
        (table funcref (elem 2))
        (func (export "malloc") (param i32) (result i32)
            (loop
                (drop (call 0))
                (call 2)
                (call_indirect (i32.const 0))
                (i32.store (i32.const 8) (i32.load (i32.const 4)))
                (global.set 0 (i32.const 1))
                (br_if 0 (local.get 0)))
            (i32.const 64))
        (func)
        (func (export "run") (drop (call 1 (i32.const 0))))"#;
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("large.wasm"), with_large_functions(TEXT, 2)).unwrap();
    let monitors = Command::new(env!("CARGO_BIN_EXE_wasm-jit")).arg("monitors").output().unwrap();
    let monitors = String::from_utf8(monitors.stdout).unwrap();
    for line in monitors.lines() {
        let name = line.split_whitespace().next().unwrap();
        let monitor = format!("--monitors={name}{{function=malloc}}");
        let output = run_in(&dir, LIMIT * 3 / 8, &[&monitor, "--invoke", "run", "large.wasm"]);
        check(&output, 0, "", "not observed");
    }
}
