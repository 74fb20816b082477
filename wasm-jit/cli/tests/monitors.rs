//! Monitors of the command: reports at the end of programs, at signals, and for other processes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Writes `ready` and a line feed, then executes a loop without end.
const ENDLESS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\06\00\00\00")
    (data (i32.const 16) "ready\n")
    (func $spin (loop (br 0)))
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $spin)))"#;

fn command(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
    command.args(arguments).current_dir(directory.path()).env("XDG_RUNTIME_DIR", directory.path());
    command
}

/// A directory with a module.
fn with_module(text: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("app.wat"), text).unwrap();
    directory
}

fn run(directory: &TempDir, arguments: &[&str]) -> Output {
    command(directory, arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Starts a program that writes a line, and waits for it.
fn start(directory: &TempDir, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child =
        command(directory, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, out)
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Waits until a file is there.
fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::yield_now();
    }
}

#[test]
fn programs_are_reported_however_they_end() {
    let ends = [
        ("(i32.const 7)", 0, "7\n"),
        ("(unreachable)", 134, ""),
        ("(i32.const 1) (call $exit (i32.const 5))", 5, ""),
        ("(throw $thrown)", 1, ""),
    ];
    for (end, code, out) in ends {
        let directory = with_module(&format!(
            "(module (import \"wasi_snapshot_preview1\" \"proc_exit\" (func $exit (param i32)))
                (tag $thrown)
                (func (export \"f\") (result i32) (nop) {end}))"
        ));
        let ran = run(
            &directory,
            &["run", "--monitors=icount", "--monitor-format=json", "--invoke", "f", "app.wat"],
        );
        assert_eq!((ran.status.code(), text(&ran.stdout)), (Some(code), out), "{end}");
        let report = text(&ran.stderr).lines().find(|line| line.starts_with('{')).unwrap();
        let report: serde_json::Value = serde_json::from_str(report).unwrap();
        assert!(report["instructions"].as_u64().unwrap() >= 2, "{end}: {report}");
    }
}

#[test]
fn reports_are_written_at_signals() {
    let directory = with_module(ENDLESS);
    let (mut child, _out) = start(&directory, &["run", "--monitors=icount", "--monitor-out=out", "app.wat"]);
    let file = directory.path().join("out/icount.csv");
    let count = || {
        let text = std::fs::read_to_string(&file).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("instructions,"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let next = || {
        send(&child, Signal::SIGUSR1);
        wait_for(&file);
        let count = count();
        std::fs::remove_file(&file).unwrap();
        count
    };
    let first = next();
    // The program may have to wait for a processor.
    let last = std::iter::repeat_with(next).find(|count| *count > first).unwrap();
    send(&child, Signal::SIGTERM);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(15));
    assert!(count() >= last, "{last}");
}

#[test]
fn programs_whose_time_is_up_are_reported() {
    let directory = with_module(ENDLESS);
    let ran = run(&directory, &["run", "--timeout=100ms", "--monitors=icount", "app.wat"]);
    assert_eq!(ran.status.code(), Some(134));
    assert!(text(&ran.stderr).contains("icount\n  instructions  "), "{}", text(&ran.stderr));
}

#[test]
fn other_processes_switch_monitors() {
    let directory = with_module(ENDLESS);
    let (mut child, _out) = start(&directory, &["run", "--control", "app.wat"]);
    let process = child.id().to_string();
    let attach = |arguments: &[&str]| run(&directory, &[&["attach", &process], arguments].concat());
    let count = || {
        let ran = attach(&["report", "icount", "--format=json"]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        report["instructions"].as_u64().unwrap()
    };
    assert!(text(&attach(&["list"]).stdout).contains("icount -\n"));
    // The loop runs already: it goes to a version of the function with probes.
    assert!(attach(&["enable", "icount"]).status.success());
    while count() == 0 {}
    assert!(text(&attach(&["list"]).stdout).contains("icount on\n"));
    assert!(attach(&["disable", "icount"]).status.success());
    let ran = attach(&["enable", "icnt"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stderr).starts_with("wasm-jit: there is no monitor `icnt`"));
    // The thread may count once more for some microseconds.
    let mut last = count();
    loop {
        let now = count();
        if now == last {
            break;
        }
        last = now;
    }
    send(&child, Signal::SIGINT);
    child.wait().unwrap();
    let mut report = String::new();
    child.stderr.unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("icount\n  instructions  "), "{report}");
    let ran = attach(&["list"]);
    assert_eq!(ran.status.code(), Some(1));
    let expected = format!("wasm-jit: process {process} does not listen: start it with run --control\n");
    assert_eq!(text(&ran.stderr), expected);
    let sockets = std::fs::read_dir(directory.path().join("wasm-jit")).unwrap();
    assert_eq!(sockets.count(), 0, "the socket is removed");
}

#[test]
fn mistakes_are_named() {
    let directory = with_module(ENDLESS);
    let refused = |arguments: &[&str]| {
        let ran = run(&directory, arguments);
        assert_eq!(ran.status.code(), Some(2));
        text(&ran.stderr).to_owned()
    };
    let message = refused(&["run", "--monitors=hot", "app.wat"]);
    assert!(message.starts_with("wasm-jit: --monitors: there is no monitor `hot`; there are: "), "{message}");
    let message = refused(&["run", "--monitors=icount{x}", "app.wat"]);
    assert!(message.contains("the monitor `icount` has no option `x`; it has: function, rows"), "{message}");
    let message = refused(&["run", "--monitors=icount{", "app.wat"]);
    assert!(message.contains("expected NAME or NAME{key=value,...}"), "{message}");
    assert!(refused(&["monitors", "hot"]).contains("there is no monitor `hot`"));
}

#[test]
fn monitors_are_listed_and_described() {
    let directory = TempDir::new().unwrap();
    let list = run(&directory, &["monitors"]);
    let names: Vec<&str> = text(&list.stdout).lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.is_sorted() && names.contains(&"hotness"), "{names:?}");
    for name in names {
        let described = run(&directory, &["monitors", name]);
        let described = text(&described.stdout);
        assert!(described.starts_with(&format!("{name}: ")) && described.contains("Example:"), "{described}");
        assert!(described.lines().all(|line| line.chars().count() <= 100), "{described}");
    }
}

#[test]
fn a_file_is_a_monitor_module() {
    let directory = with_module(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const 3))))"#,
    );
    let monitor = r#"(module
        (import "printer" "print" (func $print (param i32)))
        (global $calls (mut i32) (i32.const 0))
        (func (export "wasm:opcode:call") (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
        (func (export "wasm:exit") (call $print (global.get $calls))))"#;
    let printer = r#"(module
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\02\00\00\00")
        (data (i32.const 16) "0\n")
        (func (export "print") (param i32)
            (i32.store8 (i32.const 16) (i32.add (i32.const 48) (local.get 0)))
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    std::fs::write(directory.path().join("monitor.wat"), monitor).unwrap();
    std::fs::write(directory.path().join("printer.wat"), printer).unwrap();
    let ended = run(&directory, &["run", "--monitors=./monitor.wat+printer.wat", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stdout), text(&ended.stderr)), (Some(3), "", "1\n"));
    // Beside another monitor, into files.
    let ended = run(
        &directory,
        &["run", "--monitors=icount,monitor.wat+printer.wat", "--monitor-out=out", "app.wat"],
    );
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), ""));
    assert_eq!(std::fs::read_to_string(directory.path().join("out/monitor.txt")).unwrap(), "1\n");
    assert!(directory.path().join("out/icount.txt").exists());
    // Mistakes are found before the program runs.
    std::fs::write(directory.path().join("wrong.wat"), r#"(module (func (export "wasm:opcode:cal")))"#)
        .unwrap();
    let ended = run(&directory, &["run", "--monitors=wrong.wat", "app.wat"]);
    assert_eq!(ended.status.code(), Some(1));
    let expected =
        "wasm-jit: wrong.wat: the export `wasm:opcode:cal`, column 13: no instruction has this name\n";
    assert_eq!(text(&ended.stderr), expected);
    let ended = run(&directory, &["run", "--monitors=printer.wat", "app.wat"]);
    assert_eq!(ended.status.code(), Some(1));
    let expected = "wasm-jit: printer.wat: none of its exports is a rule, so that it would observe nothing\n";
    assert_eq!(text(&ended.stderr), expected);
}

#[test]
fn a_script_is_a_monitor() {
    let directory = with_module(
        r#"(module
            (memory (export "memory") 1)
            (func $three)
            (func (export "_start") (call $three) (call $three) (call $three)))"#,
    );
    let script = "report var calls: u64;\nwasm:opcode:call:before { calls++; }\n";
    std::fs::write(directory.path().join("count.mm"), script).unwrap();
    let ended = run(&directory, &["run", "--monitors=count.mm", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), "count.mm\n  calls  3\n"));
    // Compiled before, it prints by itself.
    let report = "name,type,event,fid,pc,key,value\ncalls,u64,,,,,3\n";
    let ended = run(&directory, &["whamm", "compile", "count.mm", "-o", "count.wasm"]);
    assert_eq!((ended.status.code(), text(&ended.stdout), text(&ended.stderr)), (Some(0), "", ""));
    let ended = run(&directory, &["run", "--monitors=./count.wasm", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), report));

    let script = "use step; report var sum: i32;
        wasm:func:entry { report var calls: u64; report var by: map<(u32, str), i32>;
            calls++; by[(fid, fname)] = step.of(sum); sum = step.of(sum); }\n";
    std::fs::write(directory.path().join("sites.mm"), script).unwrap();
    // Beside the script, or named.
    let ended = run(&directory, &["run", "--monitors=sites.mm", "app.wat"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("there is no library `step`"), "{}", text(&ended.stderr));
    let library =
        r#"(module (func (export "of") (param i32) (result i32) (i32.add (local.get 0) (i32.const 5))))"#;
    std::fs::create_dir(directory.path().join("lib")).unwrap();
    std::fs::write(directory.path().join("lib/step.wat"), library).unwrap();
    let ended = run(&directory, &["run", "--monitors=sites.mm+lib/step.wat", "app.wat"]);
    let expected = "\
sites.mm
  sum  20

wasm:func:entry

by_site
  calls  offset  function  event            source
      3    0x31  three     wasm:func:entry
      1    0x34  _start    wasm:func:entry

wasm:func:entry

by
  key.0  key.1  value  offset  function  event            source
      0  three     20    0x31  three     wasm:func:entry
      1             5    0x34  _start    wasm:func:entry
";
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), expected));
    std::fs::copy(directory.path().join("lib/step.wat"), directory.path().join("step.wat")).unwrap();
    let ended = run(&directory, &["run", "--monitors=sites.mm,icount", "--monitor-format=json", "app.wat"]);
    let last = text(&ended.stderr).lines().last().unwrap().to_owned();
    assert!(
        last.starts_with(
            r#"{"monitor":"sites.mm","sum":20,"by_site":[{"calls":3,"offset":49,"function":"three","#
        ),
        "{last}"
    );
    let arguments = ["run", "--monitors=sites.mm", "--monitor-out=found", "app.wat"];
    let ended = run(&directory, &arguments);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    let found = |name: &str| std::fs::read_to_string(directory.path().join("found").join(name)).unwrap();
    assert_eq!(found("sites.mm.txt"), expected);
    assert_eq!(found("sites.mm.csv"), "name,value\nsum,20\n");
    assert!(found("sites.mm.by.csv").starts_with("key.0,key.1,value,offset,function,event,source\n"));
    assert!(found("sites.mm.json").starts_with(r#"{"monitor":"sites.mm""#));

    std::fs::write(directory.path().join("wrong.mm"), "wasm:opcode:call:befor { }").unwrap();
    let compile = ["whamm", "compile", "wrong.mm", "-o", "no.wasm"];
    let observe = ["run", "--monitors", "wrong.mm", "app.wat"];
    for arguments in [&compile[..], &observe] {
        let ended = run(&directory, arguments);
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(1), ""));
        let message = text(&ended.stderr);
        assert!(message.contains("wrong.mm:1:1") && message.contains("`before`"), "{message}");
    }
    assert!(!directory.path().join("no.wasm").exists());
    let ended = run(&directory, &["whamm", "info", "wasm:opcode:br_if:before"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    assert!(text(&ended.stdout).contains("taken"), "{}", text(&ended.stdout));
}
