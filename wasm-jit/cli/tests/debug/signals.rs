//! Signals, and programs with threads.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Place, attachable, program, server};

/// Starts a thread and waits for it without end.
const THREADS: &str = r#"(module
    (import "env" "memory" (memory 1 1 shared))
    (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (export "memory" (memory 0))
    (data (i32.const 16) "\20\00\00\00\06\00\00\00")
    (data (i32.const 32) "ready\n")
    (func $work (export "wasi_thread_start") (param i32 i32)
        (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))
        WORK
        (i32.atomic.store (i32.const 0) (i32.const 1))
        (drop (memory.atomic.notify (i32.const 0) (i32.const 1))))
    (func (export "main") (result i32)
        (if (i32.le_s (call $spawn (i32.const 7)) (i32.const 0)) (then unreachable))
        (drop (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1)))
        (i32.atomic.load (i32.const 4))))"#;

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Waits until a signal has been taken.
fn until_taken(child: &Child, signal: Signal) {
    let pending = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap().trim();
        u64::from_str_radix(pending, 16).unwrap() & 1 << (signal as u32 - 1) != 0
    };
    while pending() {
        std::thread::yield_now();
    }
}

#[test]
fn ctrl_c_ends_a_server_for_gdb() {
    let place = Place::new();
    let (mut child, _) = server(&place, &["--invoke", "main", "loops.wat"]);
    send(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGINT as i32));
}

#[test]
fn signals_control_monitors_in_the_debugger() {
    let place = Place::new();
    let monitors = ["--monitors=icount", "--monitor-toggle", "--monitor-out=out"];
    let arguments = [&["debug"][..], &monitors, &["--invoke", "main", "loops.wat"]].concat();
    let mut child = place.command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut commands = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut until_stopped = || lines.find(|line| line.contains("Breakpoint 1, ")).expect("it stops");
    commands.write_all(b"break turn\nrun\n").unwrap();
    until_stopped();
    let report = place.path("out/icount.csv");
    let count = || {
        send(&child, Signal::SIGUSR1);
        while !report.exists() {
            std::thread::yield_now();
        }
        let text = std::fs::read_to_string(&report).unwrap();
        std::fs::remove_file(&report).unwrap();
        text.lines().find_map(|line| line.strip_prefix("instructions,")).unwrap().to_owned()
    };
    send(&child, Signal::SIGUSR2);
    until_taken(&child, Signal::SIGUSR2);
    // Signals are obeyed one after the other: the monitor is on when the report has been written.
    assert_eq!(count(), "0");
    commands.write_all(b"continue\n").unwrap();
    until_stopped();
    assert_ne!(count(), "0");
    commands.write_all(b"delete 1\nset $stop = 7\ncontinue\n").unwrap();
    drop(commands);
    assert!(lines.any(|line| line.contains("The program has ended")));
    assert!(child.wait().unwrap().success());
}

#[test]
fn reports_are_written_if_a_thread_of_a_debugged_program_fails() {
    let place = Place::new();
    let file = program(&place, &THREADS.replace("WORK", "(unreachable)"));
    let arguments = ["--monitors=icount", "--invoke", "main", file];
    let text = place.session(&["catch off", "run"], &arguments);
    assert!(text.contains("wasm trap: wasm `unreachable` instruction executed"), "{text}");
    assert!(text.contains("icount\n  instructions  "), "{text}");
}

#[test]
fn reports_are_written_when_the_debugger_is_left() {
    let place = Place::new();
    let arguments = ["--monitors=icount", "--invoke", "main", "loops.wat"];
    for commands in
        [&["break turn", "run"][..], &["break turn", "run", "quit"], &["break turn", "run", "none"]]
    {
        let text = place.session(commands, &arguments);
        assert_eq!(text.matches("icount\n  instructions  ").count(), 1, "{commands:?}: {text}");
    }
    // The program has ended before.
    let text = place.session(&["break turn", "run", "delete", "set $stop = 7", "continue"], &arguments);
    assert_eq!(text.matches("icount\n  instructions  ").count(), 1, "{text}");
}

/// The main thread waits, and cannot be paused.
#[test]
fn any_thread_of_a_program_is_paused() {
    let place = Place::new();
    let file =
        program(&place, &THREADS.replace("WORK", "(loop (br_if 0 (i32.eqz (i32.load (i32.const 4)))))"));
    let (mut child, _said, address) = attachable(&place, &["--invoke", "main", file]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    out.read_line(&mut printed).unwrap();
    assert_eq!(printed, "ready\n");
    let port = address.rsplit(':').next().unwrap();
    let commands = ["--command", "backtrace", "--command", "set i32[4] = 7", "--command", "continue"];
    let arguments = [&["debug", "--connect", port, "--batch"][..], &commands].concat();
    let output = place.command(&arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Paused") && text.contains("The program has ended"), "{text}");
    printed.clear();
    out.read_line(&mut printed).unwrap();
    assert_eq!((printed.as_str(), child.wait().unwrap().code()), ("7\n", Some(0)));
}
