//! The command `wasm-jit`, on small modules in the text format and on C programs.
//!
//! The C programs are in `programs/`; clang compiles them against wasi-libc
//! (`scripts/install-packages.sh`). The expected output is that of wasmtime, except in two places,
//! which are marked.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A directory with modules, in which the command is run.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a module in the text format.
    fn text(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }

    /// Compiles `programs/NAME.c` to `NAME.wasm`.
    fn c(&self, name: &str) -> &Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
        let output = Command::new("clang")
            .args(["--target=wasm32-wasi", "--sysroot=/usr", "-O2", "-Wall", "-Werror", "-o"])
            .arg(self.path(name).with_extension("wasm"))
            .arg(source.with_extension("c"))
            .output()
            .expect("clang can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(arguments).current_dir(self.dir.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.command(arguments).stdin(Stdio::null()).output().unwrap())
    }

    fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Ran::new(child.wait_with_output().unwrap())
    }
}

/// The output of the command.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn check(&self, code: i32, stdout: &str) -> &Self {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), stdout), "{}", self.stderr);
        self
    }

    /// Checks that the diagnostic, which begins with the command's name, contains all of these
    /// texts.
    #[track_caller]
    fn says(&self, parts: &[&str]) -> &Self {
        assert!(self.stderr.starts_with("wasm-jit: "), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in:\n{}", self.stderr);
        }
        self
    }
}

const MATH: &str = r#"(module
    (func (export "fib") (param i32) (result i32)
        (if (result i32) (i32.lt_s (local.get 0) (i32.const 2))
            (then (local.get 0))
            (else (i32.add
                (call 0 (i32.sub (local.get 0) (i32.const 1)))
                (call 0 (i32.sub (local.get 0) (i32.const 2)))))))
    (func (export "all") (param i32 i64 f32 f64) (result f64 f32 i64 i32 funcref externref)
        (local.get 3) (local.get 2) (local.get 1) (local.get 0) (ref.func 0) (ref.null extern))
    (func (export "none")))"#;

#[test]
fn invoke_prints_results() {
    let place = Place::new();
    place.text("math.wat", MATH);
    place.run(&["run", "--invoke", "fib", "math.wat", "20"]).check(0, "6765\n");
    place
        .run(&["run", "--invoke", "all", "math.wat", "-1", "0x10", "0.1", "-2.5"])
        .check(0, "-2.5\n0.1\n16\n-1\n<funcref>\n<null externref>\n");
    place.run(&["run", "--invoke", "none", "math.wat"]).check(0, "");
    place.run(&["run", "--invoke", "none", "math.wat", "--"]).check(0, "");
    place.run(&["run", "--invoke", "fib", "math.wat", "--", "-3"]).check(0, "-3\n");
}

#[test]
fn counts_are_printed_when_the_program_has_ended() {
    let place = Place::new();
    place.text("math.wat", MATH);
    let count = |counts: &[&str]| {
        let counts = counts.iter().flat_map(|count| ["--count", count]);
        let line: Vec<&str> =
            ["run", "--invoke", "fib"].into_iter().chain(counts).chain(["math.wat", "10"]).collect();
        place.run(&line)
    };
    // The offset of the first `local.get`.
    let ran = count(&["fib", "0:0x41", "none"]);
    assert_eq!(ran.check(0, "55\n").stderr, "         177 fib\n         177 0:0x41\n           0 none\n");
    count(&["main"]).check(1, "").says(&["--count: there is no function `main` with code"]);
    count(&["fib:x"]).check(2, "").says(&["--count fib:x: expected an offset such as 0x2c1"]);
    count(&["fib:0x42"]).check(1, "").says(&["--count fib:0x42: no instruction begins there"]);
    // What was counted until the program trapped.
    place.text("trap.wat", "(module (func $f (export \"f\") (call $g) unreachable) (func $g))");
    let ran = place.run(&["run", "--invoke", "f", "--count", "g", "trap.wat"]);
    ran.check(134, "");
    assert!(ran.stderr.starts_with("           1 g\n"), "{}", ran.stderr);
}

#[test]
fn invoke_refuses_mismatched_arguments() {
    let place = Place::new();
    place.text("math.wat", MATH);
    let check = |arguments: &[&str], expected| {
        place.run(&[&["run", "--invoke"], arguments].concat()).check(1, "").says(&[expected]);
    };
    check(&["fib", "math.wat"], "the function takes 1 argument, 0 are given\n");
    check(&["fib", "math.wat", "1", "2"], "the function takes 1 argument, 2 are given\n");
    check(&["none", "math.wat", "1"], "the function takes no arguments, 1 is given\n");
    check(&["all", "math.wat", "--", "--"], "the function takes 4 arguments, 1 is given\n");
    check(&["fib", "math.wat", "x"], "`x`: expected an integer of 32 bits");
    check(&["main", "math.wat"], "no function is exported as `main`");
}

#[test]
fn a_file_that_cannot_be_run_gives_one_line() {
    let place = Place::new();
    place.text("broken.wat", "(module (func (unknown)))");
    place.text("invalid.wat", "(module (func (result i32)))");
    place.text("import.wat", r#"(module (import "a" "b" (func)) (func (export "_start")))"#);
    place.text("broken.wasm", "\0asm\u{1}\0\0\0\u{1}");
    let check = |file: &str, parts: &[&str]| {
        let ran = place.run(&["run", file]);
        ran.check(1, "").says(&[file]).says(parts);
    };
    check("missing.wasm", &["No such file or directory"]);
    check("broken.wat", &["unknown operator or unexpected token\n", "broken.wat:1:16\n"]);
    check("invalid.wat", &["type mismatch"]);
    check("broken.wasm", &["offset"]);
    check("import.wat", &["unknown import: `a` `b`"]);
    place.text("component.wat", "(component)");
    check("component.wat", &["unsupported: this is a component, not a core module"]);
    std::fs::write(place.path("picture"), b"\x89PNG\r\n").unwrap();
    check("picture", &["neither a binary module nor a text\n"]);
    place.text("nothing.wat", r#"(module (func $nothing) (start $nothing))"#);
    place.run(&["run", "nothing.wat"]).check(0, "");
    place
        .run(&["run", "--dir", "missing::/", "nothing.wat"])
        .check(1, "")
        .says(&["missing: No such file or directory"]);
}

#[test]
fn a_trap_has_its_reason_a_backtrace_and_an_exit_code() {
    let place = Place::new();
    place.text(
        "trap.wat",
        r#"(module
            (memory 1)
            (func $inner (drop (i32.load (i32.const 65536))))
            (func $outer (call $inner))
            (func (export "_start") (call $outer))
            (func (export "zero") (drop (i32.div_s (i32.const 1) (i32.const 0))))
            (func $deep (export "deep") (call $deep)))"#,
    );
    place.run(&["run", "trap.wat"]).check(134, "").says(&[
        "trap.wat: wasm trap: out of bounds memory access\n",
        "inner",
        "outer",
    ]);
    place.run(&["run", "--invoke", "zero", "trap.wat"]).check(134, "").says(&["integer divide by zero"]);
    for stack in ["64K", "8M", "100M"] {
        place
            .run(&["run", "--max-stack", stack, "--invoke", "deep", "trap.wat"])
            .check(134, "")
            .says(&["call stack exhausted", "deep"]);
    }
}

#[test]
fn the_heap_is_bounded() {
    let place = Place::new();
    place.text(
        "list.wat",
        r#"(module
            (type $node (struct (field (ref null $node)) (field i64)))
            (global $kept (mut (ref null $node)) (ref.null $node))
            (func (export "list") (param $length i32) (result i32) (local $list (ref null $node))
                (loop $more
                    (local.set $list (struct.new $node (local.get $list) (i64.const 7)))
                    (global.set $kept (local.get $list))
                    (br_if $more (local.tee $length (i32.sub (local.get $length) (i32.const 1)))))
                (i32.const 1))
            (func (export "garbage") (param $count i32) (result i32)
                (loop $more
                    (drop (struct.new $node (ref.null $node) (i64.const 7)))
                    (br_if $more (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
                (i32.const 1)))"#,
    );
    // 24 bytes each.
    let run =
        |function, count| place.run(&["run", "--max-heap", "16M", "--invoke", function, "list.wat", count]);
    run("list", "600000").check(0, "1\n");
    let stopped = run("list", "800000");
    stopped
        .check(134, "")
        .says(&["limit of heap memory is reached\nwasm backtrace:\n", "!<wasm function 0>\n"]);
    run("garbage", "10000000").check(0, "1\n");
}

#[test]
fn a_pointer_outside_of_the_memory_traps() {
    let place = Place::new();
    place.text(
        "pointer.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
            (memory (export "memory") 1)
            (func (export "inside") (result i32) (call $random (i32.const 65535) (i32.const 1)))
            (func $caller (export "outside") (result i32) (call $random (i32.const 65535) (i32.const 2))))"#,
    );
    place.run(&["run", "--invoke", "inside", "pointer.wat"]).check(0, "0\n");
    place
        .run(&["run", "--invoke", "outside", "pointer.wat"])
        .check(134, "")
        .says(&["out of bounds memory access", "caller"]);
}

#[test]
fn exit_codes_are_passed_through() {
    let place = Place::new();
    place.text(
        "exit.wat",
        r#"(module
            (import "wasi_unstable" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const 42)) unreachable)
            (func (export "exit") (param i32) (call $exit (local.get 0)) unreachable))"#,
    );
    place.run(&["run", "exit.wat"]).check(42, "");
    for code in [0, 1, 134, 255] {
        place.run(&["run", "--invoke", "exit", "exit.wat", &code.to_string()]).check(code, "");
    }
    // As for a native process.
    place.run(&["run", "--invoke", "exit", "exit.wat", "256"]).check(0, "");
}

#[test]
fn a_library_is_initialized_first() {
    let place = Place::new();
    place.text(
        "library.wat",
        r#"(module
            (global $ready (mut i32) (i32.const 0))
            (func (export "_initialize") (global.set $ready (i32.const 7)))
            (func (export "ready") (result i32) (global.get $ready)))"#,
    );
    place.run(&["run", "--invoke", "ready", "library.wat"]).check(0, "7\n");
}

#[test]
fn a_main_function_with_arguments_or_results_is_refused() {
    let place = Place::new();
    for (ty, shown) in [("(result i32)", "[] -> [i32]"), ("(param i64)", "[i64] -> []")] {
        place.text("odd.wat", &format!(r#"(module (func (export "_start") {ty} unreachable))"#));
        let expected = format!(
            "wasm-jit: odd.wat: `_start` has the type {shown}, that of a program is [] -> []: use --invoke '_start' to call it\n"
        );
        let run = place.run(&["run", "odd.wat"]);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(1), "", expected.as_str()));
    }
}

#[test]
fn time_runs_out() {
    let place = Place::new();
    place.text(
        "forever.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            ;; One subscription: the monotonic clock, in an hour.
            (data (i32.const 16) "\01")
            (data (i32.const 24) "\00\a0\b8\30\46\03\00\00")
            (func $spin (export "spin") (loop $again (br $again)))
            (func $sleep (export "sleep")
                (drop (call $poll (i32.const 0) (i32.const 100) (i32.const 1) (i32.const 200)))))"#,
    );
    for function in ["spin", "sleep"] {
        let start = Instant::now();
        let run = place.run(&["run", "--timeout", "1s", "--invoke", function, "forever.wat"]);
        run.check(134, "").says(&["1s", "wasm trap: interrupt", function]);
        assert!(start.elapsed() >= Duration::from_secs(1));
    }
    // The input is never written to or closed.
    place.text(
        "read.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\10\00\00\00\10\00\00\00")
            (func (export "_start")
                (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 200)))))"#,
    );
    let mut waiting = place.command(&["run", "--timeout", "200ms", "read.wat"]);
    let mut waiting = waiting.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _open = waiting.stdin.take();
    Ran::new(waiting.wait_with_output().unwrap()).check(134, "").says(&["wasm trap: interrupt"]);
    // The output is never read or closed.
    place.text("write.wat", WRITES_UNTIL_IT_FAILS);
    let mut waiting = place.command(&["run", "--timeout", "200ms", "write.wat"]);
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _open = waiting.stdout.take();
    Ran::new(waiting.wait_with_output().unwrap()).check(134, "").says(&["wasm trap: interrupt"]);
    place.text("quick.wat", r#"(module (func (export "_start")))"#);
    place.run(&["run", "--timeout", "1h", "quick.wat"]).check(0, "");
}

/// Writes 16 KiB repeatedly; the error that ends it is its exit code. With `--invoke once` it
/// writes the given number of bytes, once.
const WRITES_UNTIL_IT_FAILS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 4)
    (func $once (export "once") (param $length i32) (result i32)
        (i32.store (i32.const 12) (local.get $length))
        (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 0)))
    (func (export "_start")
        (local $error i32)
        (loop $again
            (br_if $again (i32.eqz (local.tee $error (call $once (i32.const 16384))))))
        (call $exit (local.get $error))))"#;

#[test]
fn fuel_ends_a_program_at_the_same_instruction() {
    let place = Place::new();
    place.text("math.wat", MATH);
    // An entry and 5 instructions of each call with an argument below 2, 13 of the others.
    let fuel = 89 * 6 + 88 * 14;
    let run =
        |fuel: u32| place.run(&["run", "--fuel", &fuel.to_string(), "--invoke", "fib", "math.wat", "10"]);
    run(fuel).check(0, "55\n");
    run(fuel - 1).check(134, "").says(&["all fuel consumed", "wasm backtrace"]);
    let spin = "(module (func (export \"_start\") (loop $l (br $l))))";
    place.text("spin.wat", spin);
    // The monitor has its own.
    let icount = ["run", "--fuel", "1000001", "--monitors=icount", "spin.wat"];
    let ran = place.run(&icount);
    ran.check(134, "");
    // The `loop` of each iteration as well, but not the branch for which there is no fuel.
    assert!(ran.stderr.contains("instructions  2000001\n"), "{}", ran.stderr);
}

#[test]
fn modules_are_preloaded_and_unknown_functions_fail_when_they_are_called() {
    let place = Place::new();
    place.text(
        "lib.wat",
        r#"(module (global $ready (mut i32) (i32.const 0))
            (func (export "_initialize") (global.set $ready (i32.const 1)))
            (func (export "scaled") (param i32) (result i32) (i32.mul (local.get 0) (global.get $ready))))"#,
    );
    place.text(
        "main.wat",
        r#"(module (import "lib" "scaled" (func $scaled (param i32) (result i32)))
            (import "host" "missing" (func $missing (param i64) (result f32)))
            (func (export "run") (param i32) (result i32)
              (if (i32.eqz (local.get 0)) (then (drop (call $missing (i64.const 1)))))
              (call $scaled (local.get 0))))"#,
    );
    let run = |options: &[&str], argument: &str| {
        place.run(&[&["run"], options, &["--invoke", "run", "main.wat", argument]].concat())
    };
    run(&[], "1").check(1, "").says(&["unknown import: `lib` `scaled`"]);
    run(&["--preload", "lib=lib.wat"], "1").check(1, "").says(&["unknown import: `host` `missing`"]);
    let both = ["--preload", "lib=lib.wat", "--allow-unknown-functions"];
    run(&both, "21").check(0, "21\n");
    run(&both, "0").check(134, "").says(&["called `host` `missing`", "not defined"]);
    run(&["--preload", "lib=none.wat"], "1").check(1, "").says(&["none.wat"]);
    run(&["--preload", "lib"], "1").check(2, "");
}

#[test]
fn strings_of_javascript_and_their_constants_are_linked() {
    const GREET: &str = include_str!("../../examples/greet.wat");
    let place = Place::new();
    place.text("greet.wat", GREET).text("other.wat", &GREET.replace(r#""'""#, r#""S""#));
    place.text(
        "polyfill.wat",
        r#"(module (import "'" "!" (global $end (ref extern)))
            (func (export "concat") (param externref externref) (result (ref extern)) (global.get $end)))"#,
    );
    let greet = |options: &[&str], file: &str| {
        place.run(&[&["run"], options, &["--invoke", "greet", file, "Zoë"]].concat())
    };
    greet(&[], "greet.wat").check(0, "Hello, Zoë!\n");
    greet(&[], "other.wat").check(1, "").says(&["unknown import: `S` `Hello, `"]);
    greet(&["--string-constants", "S"], "other.wat").check(0, "Hello, Zoë!\n");
    greet(&["--preload", "wasm:js-string=polyfill.wat"], "greet.wat").check(0, "!\n");

    place.text(
        "trap.wat",
        r#"(module (import "wasm:js-string" "length" (func $length (param externref) (result i32)))
            (func $of_null (export "f") (result i32) (call $length (ref.null extern))))"#,
    );
    place.run(&["run", "--invoke", "f", "trap.wat"]).check(134, "").says(&["null reference", "of_null"]);
}

#[test]
fn a_write_is_complete_and_fails_without_a_reader() {
    let place = Place::new();
    place.text("write.wat", WRITES_UNTIL_IT_FAILS);
    // More than a pipe can hold, with a delayed reader.
    let mut writing = place.command(&["run", "--invoke", "once", "write.wat", "200000"]);
    let mut writing = writing.stdout(Stdio::piped()).spawn().unwrap();
    let mut written = Vec::new();
    writing.stdout.take().unwrap().read_to_end(&mut written).unwrap();
    assert_eq!(written.len(), 200_000 + "0\n".len());
    assert!(writing.wait().unwrap().success());
    let mut writing = place.command(&["run", "write.wat"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(writing.stdout.take());
    let broken_pipe = 64;
    assert_eq!(writing.wait().unwrap().code(), Some(broken_pipe));
}

#[test]
fn reading_zero_bytes_does_not_wait() {
    let place = Place::new();
    place.text(
        "nothing.wat",
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (func (export "read") (result i32)
                (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16))))"#,
    );
    let mut reading = place.command(&["run", "--timeout", "20s", "--invoke", "read", "nothing.wat"]);
    let reading = reading.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut reading = reading.spawn().unwrap();
    let _open = reading.stdin.take();
    Ran::new(reading.wait_with_output().unwrap()).check(0, "0\n");
}

#[test]
fn output_without_a_reader_is_not_a_failure() {
    let place = Place::new();
    place.text("trap.wat", r#"(module (func (export "_start") unreachable) (func (export "f")))"#);
    let run = |arguments: &[&str], stdout: bool| {
        let mut child = place.command(arguments);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        match stdout {
            true => drop(child.stdout.take()),
            false => drop(child.stderr.take()),
        }
        Ran::new(child.wait_with_output().unwrap())
    };
    // The exit code is the same if standard error has no reader.
    run(&["run", "trap.wat"], false).check(134, "");
    run(&["run", "missing.wat"], false).check(1, "");
    // A reader that closes the pipe early is not a failure.
    place.text("math.wat", MATH);
    let print: [&[&str]; 3] = [
        &["objdump", "math.wat"],
        &["compile", "--stats", "math.wat"],
        &["run", "--invoke", "fib", "math.wat", "5"],
    ];
    for arguments in print {
        assert_eq!(run(arguments, true).check(0, "").stderr, "");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let full = place.command(arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let full = Ran::new(full.wait_with_output().unwrap());
        full.check(1, "").says(&["standard output: No space left on device"]);
    }
}

#[test]
fn a_c_program_has_arguments_environment_clocks_and_input() {
    let place = Place::new();
    place.c("process");
    let run =
        ["run", "--env", "A=1", "--env", "B=", "--env", "NOT_SET_ANYWHERE", "process.wasm", "7", "a b", ""];
    let ran = place.run_with_input(&run, "one\ntwo\n");
    ran.check(
        7,
        "\
argument 0: 'process.wasm'
argument 1: '7'
argument 2: 'a b'
argument 3: ''
variable: A=1
variable: B=
HOME is not set
slept long enough: 1
slept not much longer: 1
this century: 1
random: 1
a terminal: 0 0
poll: 1
input 1: one
input 2: two
",
    );
    assert_eq!(ran.stderr, "to standard error\n");
    let run = ["run", "--env", "HOME", "process.wasm"];
    let ran = Ran::new(place.command(&run).env("HOME", "/h").stdin(Stdio::null()).output().unwrap());
    assert!(ran.stdout.contains("variable: HOME=/h\nHOME is set\n"), "{ran:?}");
    assert_eq!(ran.code, Some(0));
}

#[test]
fn a_c_program_uses_files_and_directories() {
    let place = Place::new();
    place.c("files");
    std::fs::create_dir(place.path("inside")).unwrap();
    std::fs::write(place.path("outside"), "secret").unwrap();
    std::os::unix::fs::symlink("../outside", place.path("inside/escape")).unwrap();
    let expected = "\
fopen for writing: ok
fclose: ok
fgets: ok
last line: line 999
position: 8890
stat: ok
size: 8899, regular: 1
readv: 8 'LINE' ' 0\nl'
pread: 4 'line'
lseek: 8
write to a file open for reading: Bad file descriptor
read of a closed descriptor: Bad file descriptor
mkdir: ok
mkdir again: File exists
rename: ok
stat of the old name: No such file or directory
link: ok
symlink: ok
readlink: ok
contents: sub/moved
lstat: ok
symbolic link: 1
truncate: ok
stat through the link: ok
size: 5
utimensat: ok
modified: 2000.6
entries: ./ ../ escape linked sub/ symbolic
rmdir of a directory that is not empty: Directory not empty
open of a directory for writing: Is a directory
open with O_EXCL: File exists
open with O_NOFOLLOW: Symbolic link loop
readdir: 303, then 303
unlink: ok
rmdir: ok
stat of a link that leads nowhere: No such file or directory
entries: ./ ../ escape
open outside: Operation not permitted
open of an absolute path: Capabilities insufficient
symlink to the outside: Operation not permitted
open through a link to the outside: Operation not permitted
";
    // Differs from wasmtime, which fills only the first buffer of readv, and loses its position in
    // a directory whose entries are removed.
    place.run(&["run", "--dir", "inside::/data", "files.wasm", "/data"]).check(0, expected);
    place.run(&["run", "files.wasm", "/data"]).check(1, "fopen for writing: Capabilities insufficient\n");
}

#[test]
fn threads_share_a_memory() {
    let place = Place::new();
    place.text(
        "threads.wat",
        r#"(module
            (import "env" "memory" (memory 1 1 shared))
            (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (export "memory" (memory 0))
            ;; Adds its argument to the word at 0, and counts itself at 4.
            (func (export "wasi_thread_start") (param $thread i32) (param $argument i32)
                (if (i32.eq (local.get $argument) (i32.const 100)) (then (call $exit (i32.const 9))))
                (if (i32.eq (local.get $argument) (i32.const 101)) (then unreachable))
                (drop (i32.atomic.rmw.add (i32.const 0) (local.get $argument)))
                (drop (i32.atomic.rmw.add (i32.const 4) (i32.const 1)))
                (drop (memory.atomic.notify (i32.const 4) (i32.const 1))))
            (func $start (param $argument i32)
                (if (i32.le_s (call $spawn (local.get $argument)) (i32.const 0)) (then unreachable)))
            (func $wait (param $count i32)
                (local $seen i32)
                (loop $again
                    (local.set $seen (i32.atomic.load (i32.const 4)))
                    (if (i32.lt_u (local.get $seen) (local.get $count)) (then
                        (drop (memory.atomic.wait32 (i32.const 4) (local.get $seen) (i64.const -1)))
                        (br $again)))))
            (func (export "sum") (result i32)
                (call $start (i32.const 1))
                (call $start (i32.const 20))
                (call $start (i32.const 300))
                (call $start (i32.const 4000))
                (call $wait (i32.const 4))
                (i32.atomic.load (i32.const 0)))
            (func (export "exit") (call $start (i32.const 100)) (call $wait (i32.const 1)))
            (func (export "trap") (call $start (i32.const 101)) (call $wait (i32.const 1))))"#,
    );
    place.run(&["run", "--invoke", "sum", "threads.wat"]).check(0, "4321\n");
    place.run(&["run", "--invoke", "exit", "threads.wat"]).check(9, "");
    place.run(&["run", "--invoke", "trap", "threads.wat"]).check(134, "").says(&["unreachable"]);
}

#[test]
fn precompiled_modules_run_if_they_are_allowed_to() {
    let place = Place::new();
    place.text("math.wat", MATH);
    place.run(&["compile", "-o", "math.cwasm", "math.wat"]).check(0, "");
    let run = ["run", "--allow-precompiled", "--invoke", "fib", "math.cwasm", "10"];
    place.run(&run).check(0, "55\n");
    place
        .run(&["run", "--invoke", "fib", "math.cwasm", "10"])
        .check(1, "")
        .says(&["math.cwasm: this is a precompiled module", "--allow-precompiled"]);
    let hardened = ["run", "--allow-precompiled", "--harden-speculation", "--invoke", "fib", "math.cwasm"];
    place.run(&[&hardened[..], &["10"]].concat()).check(1, "").says(&[
        "math.cwasm: the module was precompiled with hardening of speculation off, which is on here",
    ]);
    place.run(&["compile", "--harden-speculation", "-o", "math.cwasm", "math.wat"]).check(0, "");
    place.run(&[&hardened[..], &["10"]].concat()).check(0, "55\n");
    place.run(&run).check(1, "").says(&["compile it again"]);
    place
        .run(&["compile", "-o", "missing/math.cwasm", "math.wat"])
        .check(1, "")
        .says(&["missing/math.cwasm: "]);
}

#[test]
fn damaged_precompiled_modules_are_refused() {
    let place = Place::new();
    place.text("math.wat", MATH).run(&["compile", "-o", "math.cwasm", "math.wat"]).check(0, "");
    let mut bytes = std::fs::read(place.path("math.cwasm")).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(place.path("math.cwasm"), &bytes).unwrap();
    let run = ["run", "--allow-precompiled", "--invoke", "fib", "math.cwasm", "10"];
    place.run(&run).check(1, "").says(&["math.cwasm: the precompiled module is damaged"]);
}

#[test]
fn listings_of_precompiled_modules_are_those_of_the_modules() {
    let place = Place::new();
    place.text("math.wat", MATH).run(&["compile", "-o", "math.cwasm", "math.wat"]).check(0, "");
    let of_module = place.run(&["objdump", "math.wat"]);
    place.run(&["objdump", "--allow-precompiled", "math.cwasm"]).check(0, &of_module.stdout);
}

#[test]
fn functions_are_compiled_when_they_are_called() {
    let place = Place::new();
    place.text("math.wat", MATH);
    let run = |options: &[&str]| place.run(&[&["run", "--lazy"], options].concat());
    run(&["--invoke", "fib", "math.wat", "10"]).check(0, "55\n");
    // A counter compiles its function.
    run(&["--count", "fib", "--gdb", "--invoke", "fib", "math.wat", "5"]).check(0, "5\n");
    // perf gets the names of what has been compiled.
    let line = ["run", "--lazy", "--perf-map", "--invoke", "fib", "math.wat", "5"];
    let child = place.command(&line).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = child.expect("the command can be started");
    let map = format!("/tmp/perf-{}.map", child.id());
    assert!(child.wait().expect("it ends").success());
    let names = std::fs::read_to_string(&map).expect("the map was written");
    std::fs::remove_file(map).expect("it can be removed");
    assert!(names.contains("!function[0]\n") && !names.contains("function[1]"), "{names}");
}

#[test]
fn code_is_kept_in_a_cache() {
    let place = Place::new();
    place.text("math.wat", MATH);
    let files = |folder: &str| match std::fs::read_dir(place.path(folder)) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    };
    let run = |options: &[&str]| {
        let line = [&["run"], options, &["--invoke", "fib", "math.wat", "10"]].concat();
        let mut command = place.command(&line);
        command.env("XDG_CACHE_HOME", place.path("home")).stdin(Stdio::null());
        Ran::new(command.output().unwrap())
    };
    run(&[]).check(0, "55\n");
    run(&["--cache=folder"]).check(0, "55\n");
    let [file] = &files("folder")[..] else { panic!("one file") };
    let stored = std::fs::metadata(file).unwrap();
    run(&["--cache=folder"]).check(0, "55\n");
    assert_eq!(stored.ino(), std::fs::metadata(file).unwrap().ino(), "not replaced");
    run(&["--cache"]).check(0, "55\n");
    assert_eq!(files("home/wasm-jit").len(), 1);
    std::fs::set_permissions(place.path("folder"), Permissions::from_mode(0o777)).unwrap();
    run(&["--cache=folder"]).check(1, "").says(&["the cache folder cannot be used: others can write to it"]);
}

#[test]
fn compile_prints_sizes_and_times() {
    let place = Place::new();
    place.text("math.wat", MATH);
    place.run(&["compile", "math.wat"]).check(0, "");
    let ran = place.run(&["compile", "--stats", "--threads", "1", "math.wat"]);
    let names: Vec<&str> = ran.stdout.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(names, ["functions", "bytes in", "code bytes", "time", "processor", "throughput"], "{ran:?}");
    assert!(ran.stdout.starts_with("functions   3\n") && ran.stdout.contains("on 1 thread\n"), "{ran:?}");
    let ran = place.run(&["compile", "--stats", "--json", "math.wat"]);
    let stats: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(stats["functions"], 3);
    let binary = wat::parse_str(MATH).unwrap();
    assert_eq!(stats["bytes_in"], binary.len());
    assert!(stats["code_bytes"].as_u64().unwrap() > 20, "{ran:?}");
    let names = ["milliseconds", "megabytes_per_second", "processor_milliseconds", "threads"];
    let [time, rate, processor, threads] = names.map(|name| stats[name].as_f64().unwrap());
    assert!((rate * time - binary.len() as f64 / 1e3).abs() < 1e-6, "{ran:?}");
    assert!(processor > 0.0 && processor < (time + 1.0) * (threads + 1.0), "{ran:?}");
    place.text("invalid.wat", "(module (func (result i32)))");
    place.run(&["compile", "invalid.wat"]).check(1, "").says(&["invalid.wat: ", "type mismatch"]);
}

#[test]
fn objdump_shows_the_requested_functions() {
    let place = Place::new();
    place.text(
        "two.wat",
        "(module
            (func $double (param i32) (result i32) (i32.shl (local.get 0) (i32.const 1)))
            (func $load (param i32) (result i32) (i32.load (local.get 0)))
            (memory 1))",
    );
    let all = place.run(&["objdump", "two.wat"]);
    assert!(all.stdout.contains("i32.shl") && all.stdout.contains("i32.load"), "{all:?}");
    for function in ["load", "1"] {
        let one = place.run(&["objdump", "--function", function, "two.wat"]);
        assert!(!one.stdout.contains("i32.shl") && one.stdout.contains("i32.load"), "{one:?}");
        assert!(one.stdout.contains("ret") && one.code == Some(0), "{one:?}");
    }
    place
        .run(&["objdump", "--function", "other", "two.wat"])
        .check(1, "")
        .says(&["two.wat: there is no function `other` with code"]);
    place.text(
        "sites.wat",
        "(module (func $work (block (br 0) (unreachable)) (drop (i32.const 1))) (func $other))",
    );
    // The entry; `block`, `br` and the last `end`; `i32.const` and `drop`. The others are
    // unreachable.
    for (sites, expected) in [("functions", 1), ("branches", 4), ("all", 6)] {
        let listed = place.run(&["objdump", "--function", "work", "--sites", sites, "sites.wat"]);
        assert_eq!(listed.stdout.matches(" ; site\n").count(), expected, "{listed:?}");
        assert_eq!(listed.stdout.matches(" stub:\n").count(), expected, "{listed:?}");
        assert!(listed.code == Some(0) && !listed.stdout.contains("other"), "{listed:?}");
    }
}

/// What calls a function needs a settled site: a load that belongs to the next instruction is done
/// before, and a comparison in the flags is saved.
#[test]
fn objdump_shows_the_stubs_of_active_probes_of_all_kinds() {
    let place = Place::new();
    let text = "(module (memory 1) (func $work (param i32) (result i32)
        (i32.add (local.get 0) (i32.load (local.get 0)))
        (if (i32.lt_s (local.get 0) (i32.const 3)) (then (nop)))))";
    place.text("work.wat", text);
    let listing = |kinds: &str| {
        let listed = place.run(&["objdump", "--sites", "all", "--probes", kinds, "work.wat"]);
        assert_eq!((listed.code, &*listed.stderr), (Some(0), ""), "{listed:?}");
        listed.stdout
    };
    // The code of an instruction, up to the next one.
    let code_of = |listing: &str, instruction: &str| -> Vec<String> {
        let lines = listing.lines().skip_while(|line| line.trim() != instruction).skip(1);
        lines.take_while(|line| line.contains(": ") || line.contains("stub")).map(str::to_owned).collect()
    };
    let position = |lines: &[String], code: &str| lines.iter().position(|line| line.ends_with(code));
    let has = |lines: &[String], code: &str| position(lines, code).is_some();
    let [list, load] = ["stub of active probes:", "mov r11d, [r15+rdi]"];
    for kinds in ["empty", "counter"] {
        let listed = listing(kinds);
        let add = code_of(&listed, "i32.add");
        assert!(!listed.contains(list) && has(&add, " ; site") && has(&add, " stub:"), "{listed}");
        let order = [load, "add qword [r11+0x20], 1"].map(|code| position(&add, code));
        assert!(order[0].is_some() && order[0] < order[1], "{listed}");
    }
    for kinds in ["record", "native", "wasm", "callback", "generic", "counter,native,generic"] {
        let listed = listing(kinds);
        assert_eq!(listed.matches(list).count(), listed.matches(" ; site\n").count(), "{listed}");
        let add = code_of(&listed, "i32.add");
        let order = [load, " ; site"].map(|code| position(&add, code));
        assert!(order[0].is_some() && order[0] < order[1], "{listed}");
        let branch = code_of(&listed, "if ;; label = @1");
        let stub: Vec<String> = branch.into_iter().skip_while(|line| !line.ends_with(list)).collect();
        assert!(has(&stub, "lahf") && has(&stub, "setl r11b") && has(&stub, "sahf"), "{kinds}: {stub:#?}");
        let count = |code: &str| stub.iter().filter(|line| line.contains(code)).count();
        let expected = match kinds {
            "wasm" => [0, 1, 0],
            "counter,native,generic" => [2, 0, 1],
            _ => [1, 0, 0],
        };
        let counts = ["call rax", "call qword [r10]", " add qword "].map(count);
        assert_eq!(counts, expected, "{kinds}: {stub:#?}");
    }
    let without_sites = place.run(&["objdump", "--probes", "native", "work.wat"]);
    assert!(without_sites.check(2, "").stderr.contains("--sites <PLACES>"), "{without_sites:?}");
}

#[test]
fn perf_gets_a_map_of_the_functions() {
    let place = Place::new();
    let text = r#"(module $"of two\0alines" (memory 1)
        (func $the_function_in_the_map (export "_start") (drop (i32.load (i32.const 0)))))"#;
    place.text("map.wat", text);
    let mut child = place.command(&["run", "--perf-map", "--monitors=memory", "map.wat"]).spawn().unwrap();
    let path = format!("/tmp/perf-{}.map", child.id());
    assert!(child.wait().unwrap().success());
    let map = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let line = map.lines().find(|line| line.ends_with(r" of two\nlines!the_function_in_the_map"));
    let line = line.expect("its line");
    for what in ["[probed]", "[stub]"] {
        let name = format!(r" of two\nlines!the_function_in_the_map {what}");
        assert!(map.lines().any(|line| line.ends_with(&name)), "{map}");
    }
    let mut fields = line.split(' ').map(|field| u64::from_str_radix(field, 16));
    assert!(fields.next().unwrap().unwrap() > 4096 && fields.next().unwrap().unwrap() > 0, "{line}");
}

/// Stopped in a stub, gdb finds the callers by unwind information; the stub has no prologue.
#[test]
fn gdb_unwinds_from_a_stub() {
    let place = Place::new();
    let text = "(module $m (memory 1)
        (func $work (param i32) (result i32) (i32.load (local.get 0)))
        (func $caller (export \"caller\") (result i32) (call $work (i32.const 6))))";
    place.text("stub.wat", text);
    let mut gdb = std::process::Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set breakpoint pending on"])
        .args(["-ex", "break __jit_debug_register_code", "-ex", "run"])
        // The module, the version of `work`, then the stub of its probe.
        .args(["-ex", "continue", "-ex", "continue", "-ex", "finish", "-ex", "delete"])
        .args([
            "-ex",
            "set language c",
            "-ex",
            // The counter's stub, which comes before it, has the same symbol.
            "hbreak *((long)&'m!work [stub]' + 16)",
            "-ex",
            "continue",
            "-ex",
            "backtrace 4",
        ])
        .arg("--args");
    let program = place.command(&["run", "--gdb", "--monitors=memory", "--invoke", "caller", "stub.wat"]);
    gdb.arg(program.get_program()).args(program.get_args()).current_dir(program.get_current_dir().unwrap());
    let output = gdb.output().expect("gdb can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    let frames: Vec<&str> = said.lines().filter(|line| line.starts_with('#')).collect();
    let at = |number: usize| frames.iter().rfind(|line| line.starts_with(&format!("#{number} ")));
    let named = |number: usize, name: &str| at(number).is_some_and(|line| line.contains(name));
    assert!(named(0, "m!work [stub]"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(named(1, "m!caller") && named(2, "m!trampoline[enter]"), "{said}");
}
