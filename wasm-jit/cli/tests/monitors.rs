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
fn monitors_are_switched_at_signals() {
    let directory = with_module(ENDLESS);
    let script = "report var branches: i64; wasm:opcode:br:before { branches++; }";
    std::fs::write(directory.path().join("branches.mm"), script).unwrap();
    let monitors = "--monitors=icount,./branches.mm";
    let arguments = ["run", monitors, "--monitor-toggle", "--monitor-out=out", "app.wat"];
    let (mut child, _out) = start(&directory, &arguments);
    let counts = || {
        let of = |name: &str, key: &str| {
            let file = directory.path().join(format!("out/{name}.csv"));
            wait_for(&file);
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(','));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        send(&child, Signal::SIGUSR1);
        [of("icount", "instructions"), of("branches.mm", "branches")]
    };
    // Until it is taken: it would be taken after a SIGUSR1 that is sent later, and two count as
    // one.
    let switch = || {
        send(&child, Signal::SIGUSR2);
        let pending = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap().trim();
            u64::from_str_radix(pending, 16).unwrap() & 1 << (Signal::SIGUSR2 as u32 - 1) != 0
        };
        while pending() {
            std::thread::yield_now();
        }
    };
    assert_eq!(counts(), [0, 0]);
    switch();
    while counts().contains(&0) {}
    switch();
    let mut last = counts();
    loop {
        let now = counts();
        if now == last {
            break;
        }
        last = now;
    }
    switch();
    while counts().iter().zip(last).any(|(now, last)| *now == last) {}
    send(&child, Signal::SIGTERM);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(15));
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
    let ran = attach(&["report"]);
    assert!(ran.status.success() && ran.stdout.is_empty());
    let expected = format!("wasm-jit: process {process}: there is no report: ");
    assert!(text(&ran.stderr).starts_with(&expected), "{}", text(&ran.stderr));
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
    send(&child, Signal::SIGTERM);
    child.wait().unwrap();
    let mut report = String::new();
    child.stderr.unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("icount\n  instructions  "), "{report}");
    let ran = attach(&["list"]);
    assert_eq!(ran.status.code(), Some(1));
    let expected = format!("wasm-jit: there is no process {process}\n");
    assert_eq!(text(&ran.stderr), expected);
    let sockets = std::fs::read_dir(directory.path().join("wasm-jit")).unwrap();
    assert_eq!(sockets.count(), 0, "the socket is removed");
}

/// At signals, and by other processes, which switch them off and on.
#[test]
fn sampled_times_are_reported_while_the_program_runs() {
    let directory = with_module(
        &ENDLESS
            .replace("(func $spin (loop (br 0)))", "(func $leaf) (func $spin (loop (call $leaf) (br 0)))"),
    );
    let monitor = "calltree{times=sampled}";
    let arguments = ["run", "--control", "--monitors", monitor, "--monitor-out=out", "app.wat"];
    let (mut child, _out) = start(&directory, &arguments);
    let file = directory.path().join("out/calltree.csv");
    let written = || {
        send(&child, Signal::SIGUSR1);
        wait_for(&file);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.contains("times,sampled\n"), "{text}");
        let samples = text.lines().find_map(|line| line.strip_prefix("samples,"));
        samples.unwrap().parse::<u64>().unwrap()
    };
    while written() == 0 {}
    let process = child.id().to_string();
    let attach = |arguments: &[&str]| {
        let ran = run(&directory, &[&["attach", &process], arguments].concat());
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        ran.stdout
    };
    let samples = || {
        let report = attach(&["report", "calltree", "--format=json"]);
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let functions = report["functions"].as_array().unwrap();
        let own = functions.iter().map(|function| function["self_samples"].as_u64().unwrap());
        let samples = report["samples"].as_u64().unwrap();
        assert_eq!(own.sum::<u64>(), samples);
        samples
    };
    attach(&["disable", "calltree"]);
    let off = samples();
    assert!(off > 0);
    assert_eq!(written(), off);
    attach(&["enable", monitor]);
    while samples() == off {}
    send(&child, Signal::SIGTERM);
    child.wait().unwrap();
    let report = std::fs::read_to_string(&file).unwrap();
    assert!(report.contains("times,sampled\n"), "{report}");
    assert!(directory.path().join("out/calltree.sampled.folded").exists());
}

/// Calls of a function of a program that runs are recorded, again and again.
#[test]
fn other_processes_record_a_program() {
    let loops = "(func $work (param i32) (result i32) (i32.mul (local.get 0) (i32.load (i32.const 100))))
        (func $spin (loop
            (i32.store (i32.const 100) (call $work (i32.add (i32.load (i32.const 100)) (i32.const 1))))
            (br 0)))";
    let directory = with_module(&ENDLESS.replace("(func $spin (loop (br 0)))", loops));
    let (mut child, _out) = start(&directory, &["run", "--control", "app.wat"]);
    let process = child.id().to_string();
    let attach = |arguments: &[&str]| run(&directory, &[&["attach", &process], arguments].concat());
    for (from, trace) in [
        (&["--from", "work"][..], "first.trace"),
        (&["--from", "work:1000"], "second.trace"),
        // All calls from now on: `spin` runs already.
        (&[], "third.trace"),
    ] {
        let started = attach(&[&["record", "--calls", "3", "-o", trace], from].concat());
        assert!(started.status.success(), "{}", text(&started.stderr));
        let dump = || run(&directory, &["trace", "dump", trace]);
        while text(&dump().stdout).matches(" leave ").count() < 3 {}
        let stopped = attach(&["record", "--stop"]);
        assert_eq!(text(&stopped.stdout), "calls: 3\n", "{}", text(&stopped.stderr));
        let made = run(&directory, &["replay-gen", "--check", trace, "app.wat", "-o", "check.wasm"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let replayed = run(&directory, &["run", "check.wasm"]);
        assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    }
    // Until it is stopped.
    assert!(attach(&["record", "-o", "all.trace"]).status.success());
    let dump = || text(&run(&directory, &["trace", "dump", "all.trace"]).stdout).to_owned();
    while dump().matches(" leave ").count() < 10 {}
    let stopped = attach(&["record", "--stop"]);
    let recorded = text(&stopped.stdout).strip_prefix("calls: ").map(|calls| calls.trim_end().to_owned());
    let entered = dump().matches(" enter func=1 ").count();
    assert_eq!(recorded, Some(entered.to_string()), "{}", text(&stopped.stderr));
    let refused = |arguments: &[&str], expected: &str| {
        let ran = attach(arguments);
        assert_eq!(ran.status.code(), Some(1));
        assert_eq!(text(&ran.stderr), format!("wasm-jit: {expected}\n"));
    };
    refused(&["record", "--stop"], "the program is not recorded");
    refused(&["record", "--from", "wrk", "-o", "no.trace"], "there is no function `wrk` with code");
    let endless = ["record", "--from", "spin", "-o", "no.trace"];
    assert!(attach(&endless).status.success());
    refused(&endless, "the program is recorded already");
    refused(&["record", "--stop"], "`spin` is not called in this run");
    assert_eq!(attach(&["record", "--from", "work"]).status.code(), Some(2), "without --output");
    assert_eq!(attach(&["record", "--stop", "--from", "work"]).status.code(), Some(2));
    send(&child, Signal::SIGTERM);
    child.wait().unwrap();
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
    for monitors in ["icount{function=nosuch}", "icount{rows=1,rows=2}", "memory{trace=yes}"] {
        let message = refused(&["run", &format!("--monitors={monitors}"), "app.wat"]);
        assert!(message.starts_with("wasm-jit: --monitors: option `"), "{message}");
    }
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
fn histograms_have_bars() {
    let directory = with_module(
        r#"(module
            (func $of (param i32))
            (func (export "_start") (local i32)
                (loop
                    (call $of (local.get 0))
                    (br_if 0 (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 6))))))"#,
    );
    let script = "report var of: map<log2, u64>;\nwasm:func:entry(local0: i32) / fname == \"of\" / { of[local0 as u32]++; }\n";
    std::fs::write(directory.path().join("of.mm"), script).unwrap();
    let ended = run(&directory, &["run", "--monitors=of.mm", "app.wat"]);
    let bar = |length: usize| "@".repeat(length);
    let expected = format!(
        "of.mm\n\nof\n     key  value  share\n  [0, 1)      1  {} 16.7%\n  [1, 2)      1  {} 16.7%\n  [2, 4)      2  {} 33.3%\n  [4, 8)      2  {} 33.3%\n",
        bar(20),
        bar(20),
        bar(40),
        bar(40)
    );
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), expected.as_str()));
    let ended = run(&directory, &["run", "--monitors=of.mm", "--monitor-format=csv", "app.wat"]);
    let printed = text(&ended.stderr);
    assert!(printed.contains("key,value,share\n0,1,0.1666"), "{printed}");
}

/// Names with control characters, quotes and separators are escaped only in text.
#[test]
fn names_of_functions_are_unchanged_in_json_and_csv() {
    let directory = with_module(
        r#"(module (func (export "_start") (call $"f\1b[31m,\0a\22")) (func $"f\1b[31m,\0a\22"))"#,
    );
    let script = "wasm:func:entry / fid == 1 / { report var calls: map<str, u64>; calls[fname]++; }\n";
    std::fs::write(directory.path().join("calls.mm"), script).unwrap();
    let report = |name: &str| std::fs::read_to_string(directory.path().join("out").join(name)).unwrap();
    let ended = run(&directory, &["run", "--monitors=calls.mm,icount", "--monitor-out=out", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    let (name, json): (_, serde_json::Value) =
        ("f\u{1b}[31m,\n\"", serde_json::from_str(&report("calls.mm.json")).unwrap());
    let row = &json["calls"][0];
    assert_eq!([&row["key"], &row["function"]], [name, name], "{json}");
    let quoted = "\"f\u{1b}[31m,\n\"\"\"";
    let csv = report("calls.mm.calls.csv");
    assert!(csv.contains(&format!("\n{quoted},1,")) && csv.matches(quoted).count() == 2, "{csv}");
    assert!(report("icount.functions.csv").contains(quoted));
    let printed = report("calls.mm.txt");
    assert_eq!(printed.matches(r#"f\u{1b}[31m,\n\""#).count(), 2, "{printed}");
    assert!(!printed.contains('\u{1b}'), "{printed}");
    // Monitors that know nodes without a function, too.
    let ended = run(&directory, &["run", "--monitors=calltree,profile", "--monitor-out=out", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    for monitor in ["calltree", "profile"] {
        let json: serde_json::Value = serde_json::from_str(&report(&format!("{monitor}.json"))).unwrap();
        let functions = json["functions"].as_array().unwrap();
        assert!(functions.iter().any(|row| row["function"] == name), "{json}");
    }
    for file in ["calltree.txt", "calltree.folded", "calltree.svg", "profile.txt"] {
        assert!(!report(file).contains('\u{1b}'), "{file}");
    }
}

/// A comma in the name of a file, or of a library, does not end it. Other commas do.
#[test]
fn monitors_follow_a_file_with_libraries() {
    let directory = with_module(r#"(module (func (export "_start")))"#);
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("m.mm", "report var entries: u32;\nwasm:func:entry { entries++; }\n");
    write("l.wat", "(module)");
    write("l,icount.wat", "(module)");
    let list = |list: &str| {
        let ended = run(&directory, &["run", "--monitors", list, "app.wat"]);
        (ended.status.code(), text(&ended.stderr).to_owned())
    };
    let (code, reports) = list("./m.mm+./l.wat,icount");
    assert!(code == Some(0) && reports.contains("entries  1\n"), "{reports}");
    assert!(reports.contains("icount\n"), "{reports}");
    let (code, error) = list("./m.mm+./l.wat,nonexistent");
    assert!(code == Some(2) && error.contains("`nonexistent`"), "{code:?} {error}");
    let (code, report) = list("./m.mm+./l,icount.wat");
    assert!(code == Some(0) && report.contains("entries  1\n"), "{report}");
    assert!(!report.contains("icount\n"), "{report}");
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
    assert_eq!(ended.status.code(), Some(2));
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
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(2), ""));
        let message = text(&ended.stderr);
        assert!(message.contains("wrong.mm:1:1") && message.contains("`before`"), "{message}");
    }
    assert!(!directory.path().join("no.wasm").exists());
    let ended = run(&directory, &["whamm", "info", "wasm:opcode:br_if:before"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    assert!(text(&ended.stdout).contains("taken"), "{}", text(&ended.stdout));
}

#[test]
fn scripts_need_no_rules_and_have_names_of_their_own() {
    let directory = with_module("(module (func (export \"_start\") (nop)))");
    for folder in ["one", "two"] {
        std::fs::create_dir(directory.path().join(folder)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("one/ends.mm", "report var n: u32; wasm:begin { n = 5; } wasm:end { n++; }");
    write("two/ends.mm", "report var n: u32; wasm:begin { n = 7; }");
    write("never.mm", "wasm:opcode:nop:before / false / { report var n: u32; n++; }");
    write("empty.mm", "");
    write("module.wat", "(module (func (export \"f\")))");
    let monitors = "--monitors=one/ends.mm,two/ends.mm,./never.mm,./empty.mm";
    for more in [&[][..], &["--control"]] {
        let ended =
            run(&directory, &[&["run", monitors, "--monitor-format=json"], more, &["app.wat"]].concat());
        let expected = "{\"monitor\":\"ends.mm\",\"n\":6}\n{\"monitor\":\"ends.mm_2\",\"n\":7}\n";
        let (code, printed) = (ended.status.code(), text(&ended.stderr));
        assert!(code == Some(0) && printed.starts_with(expected), "{code:?} {printed}");
    }
    let ended = run(&directory, &["run", monitors, "--monitor-out=found", "app.wat"]);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    let found = |name: &str| std::fs::read_to_string(directory.path().join("found").join(name)).unwrap();
    assert_eq!([found("ends.mm.csv"), found("ends.mm_2.csv")], ["name,value\nn,6\n", "name,value\nn,7\n"]);
    let ended = run(&directory, &["run", "--monitors=./module.wat", "app.wat"]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("none of its exports is a rule"), "{}", text(&ended.stderr));
}

#[test]
fn a_monitor_that_fails_is_named() {
    let directory = with_module(
        r#"(module (global $n (mut i32) (i32.const 0))
            (func (export "_start") (global.set $n (i32.add (global.get $n) (i32.const 1)))))"#,
    );
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("ratio.mm", "report var n: i32;\nwasm:opcode:i32.add:before { n++; n = 1 / (n - n); }");
    write("trap.wat", "(module (func (export \"wasm:opcode:i32.add\") unreachable))");
    write(
        "exit.wat",
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (func (export "wasm:opcode:i32.add") (call $exit (i32.const 42))))"#,
    );
    write("wide.wat", "(module (func (export \"wasm:opcode:i32.add (arg0)\") (param i64)))");
    let check = |monitor: &str, code: i32, expected: &str| {
        let ended = run(&directory, &["run", &format!("--monitors=./{monitor}"), "app.wat"]);
        let printed = text(&ended.stderr);
        assert!(ended.status.code() == Some(code) && printed.starts_with(expected), "{printed}");
    };
    // The program goes on, and the report has what was counted before.
    check(
        "ratio.mm",
        0,
        "wasm-jit: ./ratio.mm: `wasm:opcode:i32.add:before (line 2)` failed, and later events were not observed: \
         an integer was divided by zero\nratio.mm\n  n  1\n",
    );
    // So it is from a store of its own, where the report says it as well.
    let control = ["run", "--control", "--monitor-format=json", "--monitors=./ratio.mm", "app.wat"];
    let ended = run(&directory, &control);
    let printed = text(&ended.stderr);
    assert!(printed.contains(r#""n":1,"failed":"`wasm:opcode:i32.add:before (line 2)` failed"#), "{printed}");
    check("trap.wat", 134, "wasm-jit: app.wat: in the monitor ./trap.wat: wasm trap: ");
    check("exit.wat", 1, "wasm-jit: app.wat: the monitor ./exit.wat called `proc_exit`: ");
    check(
        "wide.wat",
        0,
        "wasm-jit: ./wide.wat: `wasm:opcode:i32.add (arg0)` observes nothing: it matches 1 place",
    );
}

/// Starts, by a thread for each, `spin` in a loop without end, and three calls of `work` in the
/// main thread and in four others, which are waited for.
const THREADS: &str = r#"(module
    (import "wasi" "thread-spawn" (func $spawn (param i32) (result i32)))
    (memory (export "memory") (import "env" "memory") 1 1 shared)
    (func $work (param $n i32) (result i32)
        (if (result i32) (local.get $n)
            (then (i32.add (i32.const 1) (call $work (i32.sub (local.get $n) (i32.const 1)))))
            (else (i32.const 0))))
    (func (export "wasi_thread_start") (param i32 i32)
        (drop (call $work (local.get 1)))
        (drop (call $work (local.get 1)))
        (drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1)))
        (drop (memory.atomic.notify (i32.const 0) (i32.const 1))))
    (func (export "_start") (local $n i32)
        (loop $next
            (drop (call $spawn (i32.add (local.get $n) (i32.const 5))))
            (br_if $next (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 4))))
        (loop $wait
            (local.set $n (i32.atomic.load (i32.const 0)))
            (if (i32.lt_u (local.get $n) (i32.const 4))
                (then
                    (drop (memory.atomic.wait32 (i32.const 0) (local.get $n) (i64.const -1)))
                    (br $wait))))))"#;

#[test]
fn scripts_observe_all_threads_of_a_program() {
    let directory = with_module(THREADS);
    // One that is counted; and one with frames, which each thread has for itself.
    std::fs::write(
        directory.path().join("count.mm"),
        "wasm:func:entry / fname == \"work\" / { report var calls: u64; calls++; }",
    )
    .unwrap();
    std::fs::write(
        directory.path().join("frames.mm"),
        "frame var n: i32; report var wrong: u64; report var by: map<i32, u64>;
        wasm:func:entry(local0: i32) / fname == \"work\" / { n = local0; }
        wasm:func:exit / fname == \"work\" / { by[n]++; }
        wasm:opcode:i32.add:before / fname == \"work\" / { if (n == 0) { wrong++; } }",
    )
    .unwrap();
    let arguments = ["run", "--monitors=count.mm,frames.mm", "--monitor-out=out", "app.wat"];
    let ended = run(&directory, &arguments);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), ""));
    let found = |name: &str| std::fs::read_to_string(directory.path().join("out").join(name)).unwrap();
    // Twice 5 to 8, and down to 0.
    let count = found("count.mm.by_site.csv");
    assert!(count.contains(&format!("\n{},", 2 * (6 + 7 + 8 + 9))), "{count}");
    let by = (0..9).map(|n| format!("{n},{}\n", if n <= 5 { 8 } else { 2 * (9 - n) })).collect::<String>();
    assert_eq!(found("frames.mm.by.csv"), format!("key,value\n{by}"));
    assert_eq!(found("frames.mm.csv"), "name,value\nwrong,0\n");
    // A module that asks for frames is refused when a second thread comes.
    std::fs::write(
        directory.path().join("frame.wat"),
        "(module (global $last (mut i64) (i64.const 0))
            (func (export \"wasm:func:entry (frame)\") (param i64) (global.set $last (local.get 0))))",
    )
    .unwrap();
    let ended = run(&directory, &["run", "--monitors=frame.wat", "app.wat"]);
    assert_eq!(ended.status.code(), Some(0));
    let message = text(&ended.stderr);
    assert!(message.starts_with("wasm-jit: ") && message.contains("several threads"), "{message}");
}

/// The same loop without end, which calls a function.
const ENDLESS_CALLS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\06\00\00\00")
    (data (i32.const 16) "ready\n")
    (func $step (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
    (func $spin (local i32) (loop (local.set 0 (call $step (local.get 0))) (br 0)))
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $spin)))"#;

#[test]
fn other_processes_switch_scripts() {
    let directory = with_module(ENDLESS_CALLS);
    let write = |name: &str, script: &str| std::fs::write(directory.path().join(name), script).unwrap();
    write("count.mm", "report var calls: u64; wasm:func:entry { calls++; }");
    write("by.mm", "report var by: map<i32, u64>; wasm:func:entry(local0: i32) { by[local0 & 1]++; }");
    write("wrong.mm", "wasm:func:entri { }");
    let (mut child, _out) = start(&directory, &["run", "--control", "--monitor-out=out", "app.wat"]);
    let process = child.id().to_string();
    let attach = |arguments: &[&str]| run(&directory, &[&["attach", &process], arguments].concat());
    let report = |script: &str| {
        let ran = attach(&["report", script, "--format=json"]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(report["monitor"], script);
        report
    };
    let calls = || report("count.mm")["calls"].as_u64().unwrap();
    // The names are relative to the directory of `attach`, in lists, too.
    write("a,b.mm", "report var n: u64; wasm:begin { n = 1; }");
    for list in ["count.mm", "icount{rows=3},./by.mm,loops", "a,b.mm"] {
        let ran = attach(&["enable", list]);
        assert!(ran.status.success(), "{list}: {}", text(&ran.stderr));
    }
    let listed = |end: &str| text(&attach(&["list"]).stdout).lines().any(|line| line.ends_with(end));
    assert!(["icount on", "loops on", "/a,b.mm on"].iter().all(|end| listed(end)));
    while calls() == 0 {}
    while report("by.mm")["by"].as_array().unwrap().len() < 2 {}
    let by = report("by.mm");
    let [even, odd] = [0, 1].map(|key| by["by"][key]["value"].as_i64().unwrap());
    assert!((even - odd).abs() <= 1, "{by}");
    assert!(listed("/count.mm on") && listed("/by.mm on"));
    // A report at a signal, into files.
    send(&child, Signal::SIGUSR1);
    wait_for(&directory.path().join("out/by.mm.json"));
    assert!(attach(&["disable", "count.mm"]).status.success());
    assert!(attach(&["disable", "by.mm"]).status.success());
    assert!(listed("/count.mm off") && listed("/by.mm off"));
    // The thread may call once more for some microseconds.
    let settled = |read: &dyn Fn() -> serde_json::Value| {
        let mut last = read();
        loop {
            let now = read();
            if now == last {
                return now;
            }
            last = now;
        }
    };
    let last = settled(&|| report("count.mm"))["calls"].as_u64().unwrap();
    settled(&|| report("by.mm"));
    // It continues.
    assert!(attach(&["enable", "count.mm"]).status.success());
    while calls() <= last {}
    // Mistakes point into the script.
    let ran = attach(&["enable", "wrong.mm"]);
    assert_eq!(ran.status.code(), Some(1));
    let message = text(&ran.stderr);
    assert!(message.contains("wrong.mm:1:1") && message.contains("matches nothing"), "{message}");
    assert!(message.lines().count() > 3, "{message}");
    let ran = attach(&["enable", "no.mm"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(text(&ran.stderr).contains("no.mm: No such file"), "{}", text(&ran.stderr));
    let ran = attach(&["enable", "icount.mm{rows=3}"]);
    assert_eq!(ran.status.code(), Some(1));
    send(&child, Signal::SIGTERM);
    child.wait().unwrap();
    let text = std::fs::read_to_string(directory.path().join("out/count.mm.csv")).unwrap();
    let at_end = text.lines().find_map(|line| line.strip_prefix("calls,")).unwrap();
    assert!(at_end.parse::<u64>().unwrap() > last, "{text}");
}

/// Without --control, a script runs in the program's store, and reports at the end.
#[test]
fn a_script_that_reports_at_the_end_says_so_at_a_signal() {
    let directory = with_module(ENDLESS_CALLS);
    std::fs::write(directory.path().join("count.mm"), "report var n: u64; wasm:func:entry { n++; }").unwrap();
    let (mut child, _out) = start(&directory, &["run", "--monitors=count.mm", "app.wat"]);
    send(&child, Signal::SIGUSR1);
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let expected =
        "wasm-jit: count.mm: its report is written when the program ends; with --control, also at SIGUSR1\n";
    assert_eq!(line, expected);
    send(&child, Signal::SIGKILL);
    child.wait().unwrap();
}

/// The three targets of a script: in place, as a monitor module, and in the program.
#[test]
fn a_script_is_written_into_a_program() {
    let directory = with_module(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\10\00\00\00\03\00\00\00")
            (data (i32.const 16) "hi\n")
            (func $f (param i32) (result i32)
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
                (if (result i32) (local.get 0) (then (call $f (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 4))))
            (func (export "_start") (call $exit (call $f (i32.const 2)))))"#,
    );
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("calls.mm", "wasm:opcode:call:before { report var times: u64; times++; }");
    let compiled = run(&directory, &["whamm", "compile", "calls.mm"]);
    assert_eq!((compiled.status.code(), text(&compiled.stderr)), (Some(0), ""));
    let in_place = run(&directory, &["run", "--monitors=./calls.wasm", "app.wat"]);
    assert_eq!((in_place.status.code(), text(&in_place.stdout)), (Some(4), "hi\nhi\nhi\n"));
    assert_eq!(text(&in_place.stderr).lines().count(), 5, "{}", text(&in_place.stderr));
    let rewritten = run(&directory, &["whamm", "instrument", "calls.mm", "app.wat", "-o", "counted.wasm"]);
    assert_eq!((rewritten.status.code(), text(&rewritten.stderr)), (Some(0), ""));
    let by_itself = run(&directory, &["run", "counted.wasm"]);
    let outcome =
        |ran: &Output| (ran.status.code(), text(&ran.stdout).to_owned(), text(&ran.stderr).to_owned());
    assert_eq!(outcome(&by_itself), outcome(&in_place));

    // A program without `_start`: a hint, unless another function is the entry point.
    write("library.wat", "(module (func (export \"work\") (result i32) (i32.const 7)))");
    let hinted = run(&directory, &["whamm", "instrument", "calls.mm", "library.wat", "-o", "library.wasm"]);
    let hint = "wasm-jit: library.wat: there is no function _start: the report is made when the host calls the export \
                `whamm:report`; or name a function at whose end it is made: --entry FUNCTION\n";
    assert_eq!((hinted.status.code(), text(&hinted.stderr)), (Some(0), hint));
    let with_entry =
        ["whamm", "instrument", "calls.mm", "library.wat", "--entry", "work", "-o", "entry.wasm"];
    let instrumented = run(&directory, &with_entry);
    assert_eq!((instrumented.status.code(), text(&instrumented.stderr)), (Some(0), ""));
    let by_itself = run(&directory, &["run", "--invoke", "work", "entry.wasm"]);
    assert_eq!((by_itself.status.code(), text(&by_itself.stdout)), (Some(0), "7\n"));
    assert!(text(&by_itself.stderr).starts_with("name,type,event,fid,pc,key,value\n"), "{by_itself:?}");
    let missing = ["whamm", "instrument", "calls.mm", "library.wat", "--entry", "play", "-o", "entry.wasm"];
    let refused = run(&directory, &missing);
    let expected =
        "wasm-jit: library.wat: the program exports no function `play`: choose one that it exports\n";
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(1), expected));

    write("library.mm", "use clock;\nwasm:func:entry { }");
    let refused = run(&directory, &["whamm", "instrument", "library.mm", "app.wat", "-o", "no.wasm"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = text(&refused.stderr);
    assert!(
        message.starts_with("wasm-jit: library.mm: 1 problem") && message.contains("library.mm:1:5"),
        "{message}"
    );
    write("threads.wat", "(module (memory 1 1 shared))");
    let refused = run(&directory, &["whamm", "instrument", "calls.mm", "threads.wat", "-o", "no.wasm"]);
    let expected =
        "wasm-jit: threads.wat: the program cannot be rewritten: it shares a memory with other threads\n";
    assert_eq!((refused.status.code(), text(&refused.stderr)), (Some(1), expected));
    assert!(!directory.path().join("no.wasm").exists());
}

/// The same line as in place, about rules that do not observe 64-bit memories.
#[test]
fn rules_for_addresses_of_32_bits_are_named_by_all_targets() {
    let program = r#"(module (memory i64 1) (func (export "_start") (drop (i32.load (i64.const 0)))))"#;
    let directory = with_module(program);
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("small.wat", &program.replace("i64", "i32"));
    write("both.mm", "report var n: u64;\nwasm:opcode:*load*(addr: u64):before / addr < 9 / { n++; }");
    write("narrow.mm", "report var n: u64;\nwasm:opcode:*load*:before / addr < 9 / { n++; }");
    let check = |arguments: &[&str], is_named: bool| {
        let ended = run(&directory, arguments);
        let said = text(&ended.stderr);
        let line = "wasm-jit: narrow.mm: `wasm:opcode:*load*:before (line 2)` does not observe memories \
                    with addresses of 64 bits, because it uses addresses or sizes of 32 bits: give it \
                    the type bound `(addr: u64)`, which is for both\n";
        assert_eq!((ended.status.code(), said.contains(line)), (Some(0), is_named), "{arguments:?}: {said}");
        assert!(is_named || !said.contains("64 bits"), "{arguments:?}: {said}");
    };
    for (script, is_narrow) in [("narrow.mm", true), ("both.mm", false)] {
        check(&["whamm", "compile", script, "-o", "monitor.wasm"], is_narrow);
        for (program, is_wide) in [("app.wat", true), ("small.wat", false)] {
            check(&["run", &format!("--monitors={script}"), program], is_narrow && is_wide);
            check(&["whamm", "instrument", script, program, "-o", "out.wasm"], is_narrow && is_wide);
        }
    }
}
