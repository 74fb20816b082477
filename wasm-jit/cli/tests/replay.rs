//! `wasm-jit record`, `trace`, `reduce`, `replay-gen`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use wasm_jit_replay::{Event, Reader, Reason, Writer};

/// Asks for random bytes, of which it uses eight, and exits with a code.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (func (export "_start") (local $sum i64)
        (drop (call $random (i32.const 1000) (i32.const 64)))
        (local.set $sum (i64.load (i32.const 1007)))
        (drop (call $random (i32.const 1000) (i32.const 64)))
        (if (i64.eqz (i64.and (local.get $sum) (i64.const 0))) (then (call $exit (i32.const 7))))))"#;

/// A folder with a program and its trace.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::write(place.path("app.wat"), PROGRAM).unwrap();
        let recorded = place.run(&["record", "-o", "app.trace", "app.wat"]);
        assert_eq!(recorded.status.code(), Some(7), "the program's own\n{}", text(&recorded.stderr));
        assert_eq!(text(&recorded.stderr), "");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wasm-jit"));
        command.args(arguments).current_dir(self.0.path()).output().unwrap()
    }

    /// What a command prints, which must succeed.
    #[track_caller]
    fn print(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        text(&output.stdout)
    }

    /// The line with which a command fails.
    #[track_caller]
    fn fail(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{arguments:?}");
        let line = text(&output.stderr);
        assert_eq!(line.trim_end().lines().count(), 1, "{line}");
        line
    }

    /// A module that replays the trace of `app.wat` says that the recorded run has not ended.
    #[track_caller]
    fn ends_early(&self, trace: &str) {
        self.print(&["replay-gen", "--check", trace, "app.wat", "-o", "early.wasm"]);
        let replayed = self.run(&["run", "early.wasm"]);
        let line = "wasm-jit: early.wasm: the recording ends here, before the program does\n";
        assert!(text(&replayed.stderr).starts_with(line), "{}", text(&replayed.stderr));
        assert_eq!(replayed.status.code(), Some(134));
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn a_run_is_recorded_reduced_and_replayed() {
    let place = Place::new();
    let lines = place.print(&["trace", "dump", "app.trace"]);
    let kinds: Vec<&str> = lines.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    let of_random = ["call", "write", "return"];
    let expected = [&["start", "enter"][..], &of_random, &of_random, &["call", "fail", "fail"]].concat();
    assert_eq!(kinds, expected, "{lines}");
    assert!(lines.contains("\n2 call import=0 i32:1000 i32:64\n"), "{lines}");

    let events: Vec<Value> = place
        .print(&["trace", "dump", "--json", "app.trace"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), kinds.len());
    let call = json!({"number": 2, "event": "call", "import": 0, "arguments": [{"i32": 1000}, {"i32": 64}]});
    assert_eq!(events[2], call);
    assert_eq!((&events[3]["address"], events[3]["bytes"].as_str().unwrap().len() % 2), (&json!(1000), 0));

    // In place: the input is read to its end before it is replaced.
    let before = size(&place.path("app.trace"));
    let figures: Value =
        serde_json::from_str(&place.print(&["reduce", "--json", "app.trace", "app.wat", "-o", "app.trace"]))
            .unwrap();
    // Those of the eight bytes that are not zero, as the memory was before.
    assert!((1..=8).contains(&figures["bytes"][1].as_u64().unwrap()), "{figures}");
    assert_eq!(figures["events"], json!([11, 10]), "{figures}");
    assert!(size(&place.path("app.trace")) < before);

    place.print(&["replay-gen", "--check", "app.trace", "app.wat", "-o", "check.wasm"]);
    // The run has ended by exit, which is a trap of the replay.
    let replayed = place.run(&["run", "check.wasm"]);
    assert_eq!(replayed.status.code(), Some(134), "{}", text(&replayed.stderr));
    let ended = "wasm-jit: check.wasm: the replay has ended as the recorded run did\n";
    assert!(text(&replayed.stderr).starts_with(ended), "{}", text(&replayed.stderr));
    assert_eq!(place.files(), ["app.trace", "app.wat", "check.wasm"]);
}

/// Only the host calls `_initialize` and `_start`, not what loads the program.
#[test]
fn a_separate_program_is_initialized_once() {
    let place = Place::new();
    let counts = r#"(module (memory (export "memory") 1)
        (func (export "_initialize")
            (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1))))
        (func (export "f") (result i32) (i32.load (i32.const 0))))"#;
    let asks = r#"(module
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "_initialize") (drop (call $random (i32.const 0) (i32.const 4))))
        (func (export "f") (result i32) (i32.load (i32.const 0))))"#;
    for program in [counts, asks, PROGRAM] {
        fs::write(place.path("app.wat"), program).unwrap();
        let is_library = program != PROGRAM;
        let invoke = if is_library { &["--invoke", "f"][..] } else { &[] };
        place.run(&[&["record", "-o", "app.trace"], invoke, &["app.wat"]].concat());
        place.print(&["replay-gen", "--separate", "--check", "app.trace", "app.wat", "-o", "parts"]);
        let [imports, module] = ["imports=parts/imports.wasm", "program=parts/program.wasm"];
        let replayed = place.run(&["run", "--preload", imports, "--preload", module, "parts/host.wasm"]);
        // The last one exits, which is a trap.
        let (code, message) = match is_library {
            true => (0, ""),
            false => (134, "wasm-jit: parts/host.wasm: the replay has ended as the recorded run did\n"),
        };
        assert_eq!(replayed.status.code(), Some(code), "{program}: {}", text(&replayed.stderr));
        assert!(text(&replayed.stderr).starts_with(message), "{}", text(&replayed.stderr));
        let module = fs::read(place.path("parts/program.wasm")).unwrap();
        let module = wasm_jit::Module::from_binary(&wasm_jit::Engine::default(), &module).unwrap();
        for name in ["_initialize", "_start"] {
            assert!(module.get_export(name).is_none(), "{name}");
        }
    }
}

/// The first difference is named, by the module and by `run --replay`.
#[test]
fn a_difference_is_named() {
    let place = Place::new();
    let trace = fs::File::open(place.path("app.trace")).unwrap();
    let events: Vec<_> = wasm_jit_replay::Reader::new(trace).map(Result::unwrap).collect();
    let mut changed = wasm_jit_replay::Writer::new(fs::File::create(place.path("x.trace")).unwrap()).unwrap();
    for mut event in events {
        if let wasm_jit_replay::Event::Call { import: 1, arguments } = &mut event {
            arguments[0] = wasm_jit_replay::Value::I32(8);
        }
        changed.write(&event).unwrap();
    }
    changed.close().unwrap();
    let line = place.fail(&["run", "--replay", "x.trace", "app.wat"]);
    assert!(line.contains(": `call import=1 i32:7` instead of `call import=1 i32:8`"), "{line}");
    place.print(&["replay-gen", "--check", "x.trace", "app.wat", "-o", "check.wasm"]);
    place.print(&["replay-gen", "--separate", "--check", "x.trace", "app.wat", "-o", "parts"]);
    let parts = ["--preload", "imports=parts/imports.wasm", "--preload", "program=parts/program.wasm"];
    for arguments in [&["run", "check.wasm"][..], &[&["run"], &parts[..], &["parts/host.wasm"]].concat()] {
        let run = place.run(arguments);
        assert_eq!(run.status.code(), Some(134));
        let text = text(&run.stderr);
        assert!(text.contains("differs from the recorded run at event 8 of the trace\n"), "{text}");
    }
    // What JavaScript does not have.
    let wide = "(module (table i64 1 funcref) (func (export \"_start\")))";
    fs::write(place.path("wide.wat"), wide).unwrap();
    place.print(&["record", "-o", "wide.trace", "wide.wat"]);
    place.print(&["replay-gen", "wide.trace", "wide.wat", "-o", "wide.wasm"]);
    let line = place.fail(&["replay-gen", "--javascript", "wide.trace", "wide.wat", "-o", "wide"]);
    assert!(line.contains("wide.wat: cannot be replayed as a module: a table of 64 bits"), "{line}");
}

/// A preloaded module is a part of the host: its writes to a memory that it shares with the program
/// and its exceptions, of which the last one ends the run.
#[test]
fn preloaded_modules_and_their_exceptions_are_recorded() {
    let place = Place::new();
    let library = r#"(module (tag $e (export "e") (param i32)) (memory (export "memory") 1)
        (func (export "f") (param i32)
            (i32.store (i32.const 8) (local.get 0))
            (if (i32.gt_u (local.get 0) (i32.const 1)) (then (throw $e (local.get 0))))))"#;
    let program = r#"(module (import "lib" "e" (tag $e (param i32))) (import "lib" "memory" (memory 1))
        (import "lib" "f" (func $f (param i32)))
        (func (export "_start") (local $n i32)
            (call $f (i32.const 1))
            (local.set $n
                (block $caught (result i32) (try_table (catch $e $caught) (call $f (i32.const 2))) (i32.const 0)))
            (call $f (i32.add (local.get $n) (i32.load (i32.const 8))))))"#;
    fs::write(place.path("lib.wat"), library).unwrap();
    fs::write(place.path("main.wat"), program).unwrap();
    let ends = [
        &["run", "--preload", "lib=lib.wat", "main.wat"][..],
        &["record", "-o", "main.trace", "--preload", "lib=lib.wat", "main.wat"],
        &["run", "--replay", "main.trace", "main.wat"],
    ]
    .map(|arguments| {
        let output = place.run(arguments);
        (output.status.code(), text(&output.stderr))
    });
    assert!(ends[0].1.contains("uncaught exception"), "{ends:?}");
    assert_eq!(ends[0], ends[1]);
    // The library is not there when the run is repeated, and neither are its frames.
    let frames = |(code, text): &(Option<i32>, String)| {
        let (reason, frames) = text.split_once('\n').expect("frames");
        let frames = frames.lines().filter_map(|line| line.split_once(": "));
        let places: Vec<String> = frames.map(|(_, place)| place.trim().to_owned()).collect();
        (*code, reason.to_owned(), places)
    };
    let (run, mut repeated) = (frames(&ends[0]), frames(&ends[2]));
    assert_eq!((run.2.len(), repeated.2.len()), (2, 1), "{ends:?}");
    repeated.2.insert(0, run.2[0].clone());
    assert_eq!(run, repeated);
    let lines = place.print(&["trace", "dump", "main.trace"]);
    let events: Vec<&str> = lines.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    let write = |byte| format!("write memory=0 address=0x8 length=1 bytes={byte}");
    let expected = [
        "import memory=0 pages=1",
        "enter func=1",
        "call import=0 i32:1",
        &write("01"),
        "return",
        "call import=0 i32:2",
        &write("02"),
        "throw tag=0 i32:2",
        "call import=0 i32:4",
        &write("04"),
        "throw tag=0 i32:4",
        "throw tag=0 i32:4",
    ];
    assert_eq!(events[1..], expected);
    place.print(&["replay-gen", "--check", "main.trace", "main.wat", "-o", "check.wasm"]);
    place.print(&["run", "check.wasm"]);
}

/// The host fills the memory of the library, which the program reads and the library changes: each
/// replays alone.
#[test]
fn each_module_has_a_trace() {
    let place = Place::new();
    let library = r#"(module
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "_initialize") (drop (call $random (i32.const 0) (i32.const 8))))
        (func (export "next") (param $seed i64) (result i64)
            (i64.store (i32.const 0) (i64.mul (i64.load (i32.const 0)) (local.get $seed)))
            (drop (call $random (i32.const 8) (i32.const 8)))
            (i64.add (i64.load (i32.const 0)) (i64.load (i32.const 8)))))"#;
    let program = r#"(module
        (import "lib" "memory" (memory 1))
        (import "lib" "next" (func $next (param i64) (result i64)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory $own (export "memory") 1)
        (func $first (i64.store (i32.const 0) (i64.or (call $next (i64.load (i32.const 0))) (i64.const 1))))
        (func (export "_start")
            (call $first)
            (drop (call $next (i64.load (i32.const 8))))
            (call $exit (i32.wrap_i64 (i64.and (call $next (i64.const 3)) (i64.const 0))))))"#;
    fs::write(place.path("lib.wat"), library).unwrap();
    fs::write(place.path("main.wat"), program).unwrap();
    let recorded = place.run(&["record", "--each", "-o", "traces", "--preload", "lib=lib.wat", "main.wat"]);
    assert_eq!((recorded.status.code(), text(&recorded.stderr)), (Some(0), String::new()));
    let names = fs::read_dir(place.path("traces")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["lib.trace", "program.trace"]);
    let calls = |trace: &str, what: &str| {
        place.print(&["trace", "dump", trace]).lines().filter(|line| line.contains(what)).count()
    };
    // The initialization, and three calls; each asks the host.
    assert_eq!([calls("traces/lib.trace", " enter "), calls("traces/lib.trace", " call ")], [4, 4]);
    assert_eq!([calls("traces/program.trace", " enter "), calls("traces/program.trace", " call ")], [1, 4]);
    // The program has exited, which is a trap of its replay.
    for (trace, module, code) in
        [("traces/lib.trace", "lib.wat", 0), ("traces/program.trace", "main.wat", 134)]
    {
        place.print(&["replay-gen", "--check", trace, module, "-o", "check.wasm"]);
        let replayed = place.run(&["run", "check.wasm"]);
        assert_eq!(replayed.status.code(), Some(code), "{trace}: {}", text(&replayed.stderr));
        let replayed = place.run(&["run", "--replay", trace, module]);
        assert_eq!((replayed.status.code(), text(&replayed.stderr)), (Some(0), String::new()), "{trace}");
    }
    // With hosts in JavaScript; node 20 has no second memory.
    fs::write(place.path("one.wat"), program.replace("(memory $own (export \"memory\") 1)", "")).unwrap();
    let recorded = place.run(&["record", "--each", "-o", "one", "--preload", "lib=lib.wat", "one.wat"]);
    assert_eq!((recorded.status.code(), text(&recorded.stderr)), (Some(0), String::new()));
    for (trace, module) in [("one/lib.trace", "lib.wat"), ("one/program.trace", "one.wat")] {
        place.print(&["replay-gen", "--javascript", trace, module, "-o", "javascript"]);
        let mut node = Command::new("node");
        match node.arg(place.path("javascript/replay.mjs")).arg("--check").output() {
            Ok(replayed) => assert!(replayed.status.success(), "{trace}: {}", text(&replayed.stderr)),
            Err(error) => eprintln!("not replayed by a host in JavaScript: node: {error}"),
        }
    }
    // A part of the run of one of them.
    place.print(&["record", "--from", "first", "-o", "part.trace", "--preload", "lib=lib.wat", "main.wat"]);
    assert_eq!([calls("part.trace", " enter "), calls("part.trace", " call ")], [1, 1]);
    place.print(&["replay-gen", "--check", "part.trace", "main.wat", "-o", "check.wasm"]);
    place.print(&["run", "check.wasm"]);
    for (preload, expected) in [
        ("program=lib.wat", "there cannot be a trace for a module named `program`"),
        ("a/b=lib.wat", "there cannot be a trace for a module named `a/b`"),
    ] {
        let refused = place.run(&["record", "--each", "-o", "more", "--preload", preload, "main.wat"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(expected), "{}", text(&refused.stderr));
    }
    assert!(!place.path("more").exists());
    for arguments in [&["--each"][..], &["--each", "--from", "0", "--preload", "lib=lib.wat"]] {
        let refused = place.run(&[&["record", "-o", "more"], arguments, &["main.wat"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
    }
}

/// The library calls a function that the program has put into their table.
#[test]
fn functions_of_other_modules_have_numbers() {
    let place = Place::new();
    let library = r#"(module (table (export "table") 1 funcref)
        (func (export "run") (result i32) (call_indirect (result i32) (i32.const 0))))"#;
    let program = r#"(module
        (import "lib" "table" (table 1 funcref))
        (import "lib" "run" (func $run (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func $seven (result i32) (i32.const 7))
        (elem (i32.const 0) func $seven)
        (func (export "_start") (call $exit (call $run))))"#;
    fs::write(place.path("lib.wat"), library).unwrap();
    fs::write(place.path("main.wat"), program).unwrap();
    let recorded = place.run(&["record", "--each", "-o", "traces", "--preload", "lib=lib.wat", "main.wat"]);
    assert_eq!((recorded.status.code(), text(&recorded.stderr)), (Some(7), String::new()));
    place.print(&["reduce", "traces/lib.trace", "lib.wat", "-o", "small.trace"]);
    let dumped = place.print(&["trace", "dump", "small.trace"]);
    let events: Vec<&str> = dumped.lines().map(|line| line.trim_start().split_once(' ').unwrap().1).collect();
    let expected = [
        "function func=1 parameters= results=i32",
        "set table=0 element=0 func:1",
        "enter func=0",
        "call import=1",
        "return i32:7",
        "leave i32:7",
    ];
    assert_eq!(events[1..], expected);
    let json = place.print(&["trace", "dump", "--json", "small.trace"]);
    let function = r#""event":"function","function":1,"parameters":[],"results":["i32"]"#;
    assert!(json.contains(function), "{json}");
    place.print(&["replay-gen", "--check", "small.trace", "lib.wat", "-o", "check.wasm"]);
    place.print(&["run", "check.wasm"]);
    let replayed = place.run(&["run", "--replay", "traces/program.trace", "main.wat"]);
    assert_eq!((replayed.status.code(), text(&replayed.stderr)), (Some(7), String::new()));
}

#[test]
fn monitors_observe_a_recorded_run() {
    let place = Place::new();
    fs::write(place.path("calls.mm"), "report var calls: i32;\nwasm:func:entry { calls++; }\n").unwrap();
    let observed = |arguments: &[&str]| {
        let monitors = ["--monitors=icount,hostcalls", "--monitor-format=json", "--count", "2", "app.wat"];
        let output = place.run(&[arguments, &monitors].concat());
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    // Without what depends on time.
    let counts = |text: &str| {
        let numbers = |line: &str| line.contains("instructions") || line.trim_end().ends_with(" 2");
        text.lines().filter(|line| numbers(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    let recorded = counts(&observed(&["record", "-o", "again.trace"]));
    let replayed = observed(&["run", "--replay", "again.trace"]);
    assert_eq!(counts(&replayed), recorded);
    assert!(!recorded.is_empty(), "{replayed}");
    assert!(replayed.contains("random_get"), "{replayed}");
    // A script has a store of its own.
    let output = place.run(&["run", "--replay", "again.trace", "--monitors=./calls.mm", "app.wat"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("calls"), "{}", text(&output.stderr));
}

#[test]
fn a_replay_is_what_was_recorded_or_an_error() {
    let place = Place::new();
    let replayed = place.run(&["run", "--replay", "app.trace", "app.wat"]);
    assert_eq!((replayed.status.code(), text(&replayed.stderr)), (Some(7), String::new()));
    fs::write(place.path("other.wat"), "(module (func (export \"_start\")))").unwrap();
    let line = place.fail(&["run", "--replay", "app.trace", "other.wat"]);
    assert!(line.contains("app.trace: the trace was recorded with another module"), "{line}");
    let line = place.fail(&["run", "--replay", "missing.trace", "app.wat"]);
    assert!(line.contains("missing.trace: "), "{line}");
    let short = place.run(&["run", "--replay", "app.trace", "--fuel", "5", "app.wat"]);
    assert_eq!(short.status.code(), Some(134));
    assert!(text(&short.stderr).contains("all fuel consumed"), "{}", text(&short.stderr));
    let usage = place.run(&["record", "-o", "x.trace", "--replay", "app.trace", "app.wat"]);
    assert_eq!(usage.status.code(), Some(2));
    let usage = place.run(&["run", "--replay", "app.trace", "app.wat", "argument"]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn failures_leave_files_as_they_are() {
    let place = Place::new();
    let trace = fs::read(place.path("app.trace")).unwrap();
    fs::write(place.path("other.wat"), "(module (func (export \"_start\")))").unwrap();
    fs::write(place.path("refused.wat"), "(module (memory 1 1 shared) (func (export \"_start\")))").unwrap();
    fs::write(place.path("kept"), "kept").unwrap();
    let line = place.fail(&["reduce", "app.trace", "other.wat", "-o", "kept"]);
    assert!(line.contains("app.trace: the trace was recorded with another module"), "{line}");
    let line = place.fail(&["replay-gen", "app.trace", "other.wat", "-o", "kept"]);
    assert!(line.contains("app.trace: the trace was recorded with another module"), "{line}");
    let line = place.fail(&["record", "-o", "kept", "refused.wat"]);
    assert!(line.contains("refused.wat: cannot be recorded: a shared memory"), "{line}");
    // Of a damaged trace.
    fs::write(place.path("cut.trace"), &trace[..trace.len() / 2]).unwrap();
    fs::write(place.path("none.trace"), "no trace").unwrap();
    let line = place.fail(&["reduce", "none.trace", "app.wat", "-o", "kept"]);
    assert!(line.contains("none.trace: the trace is damaged at byte 0: this is not a trace"), "{line}");
    let cut = place.run(&["trace", "dump", "cut.trace"]);
    assert!(text(&cut.stderr).contains("cut.trace: the trace is damaged"), "{}", text(&cut.stderr));
    let missing = place.fail(&["trace", "dump", "missing.trace"]);
    assert!(missing.contains("missing.trace: "), "{missing}");
    assert_eq!(fs::read_to_string(place.path("kept")).unwrap(), "kept");
    let expected = ["app.trace", "app.wat", "cut.trace", "kept", "none.trace", "other.wat", "refused.wat"];
    assert_eq!(place.files(), expected);
}

/// Its function reads what the rest of the program has written.
const SLICED: &str = r#"(module
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "_start")
        (drop (call $random (i32.const 1000) (i32.const 8)))
        (i32.store (i32.const 100) (i32.const 65793))
        (drop (call $sum (i32.const 2)))
        (i32.store8 (i32.const 101) (i32.const 9))
        (drop (call $sum (i32.const 1))))
    (func $sum (param i32) (result i32)
        (i32.add (local.get 0) (i32.load8_u (i32.const 101))))
    (func $unused))"#;

#[test]
fn the_calls_of_one_function_are_replayed() {
    let place = Place::new();
    fs::write(place.path("app.wat"), SLICED).unwrap();
    place.print(&["record", "-o", "app.trace", "app.wat"]);
    let slice = |name| ["reduce", "--json", "--slice", name, "app.trace", "app.wat", "-o", "sum.trace"];
    let figures: Value = serde_json::from_str(&place.print(&slice("sum"))).unwrap();
    assert_eq!((&figures["calls"], &figures["bytes"][1]), (&json!(2), &json!(2)), "{figures}");
    let lines = place.print(&["trace", "dump", "sum.trace"]);
    let kinds: Vec<&str> = lines.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    let expected = ["start", "write", "enter", "leave", "write", "enter", "leave"];
    assert_eq!(kinds, expected, "{lines}");
    place.print(&["replay-gen", "--check", "sum.trace", "app.wat", "-o", "sum.wasm"]);
    place.print(&["run", "sum.wasm"]);
    let replay = ["run", "--replay", "sum.trace", "--monitors=calls", "--monitor-format=json", "app.wat"];
    let calls: Value = serde_json::from_slice(&place.run(&replay).stderr).unwrap();
    assert_eq!(calls["by_host"], 2, "a function that is not exported: {calls}");
    let plain = place.print(&["reduce", "--slice", "2", "app.trace", "app.wat", "-o", "sum.trace"]);
    assert!(plain.starts_with("calls in the slice: 2\nevents: "), "{plain}");
    let line = place.fail(&slice("none"));
    assert!(line.contains("app.wat: there is no function `none` with code"), "{line}");
    let line = place.fail(&slice("unused"));
    assert!(line.contains("app.wat: `unused` is not called in this run"), "{line}");
}

#[test]
fn calls_in_the_middle_of_a_run_are_recorded() {
    let place = Place::new();
    fs::write(place.path("app.wat"), SLICED).unwrap();
    let record = |options: &[&str], expected: &[&str]| {
        let arguments = [&["record"], options, &["-o", "sum.trace", "app.wat"]].concat();
        place.print(&arguments);
        let lines = place.print(&["trace", "dump", "sum.trace"]);
        let kinds: Vec<&str> = lines.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(kinds, expected, "{lines}");
        place.print(&["reduce", "sum.trace", "app.wat", "-o", "sum.trace"]);
        place.print(&["replay-gen", "--check", "sum.trace", "app.wat", "-o", "sum.wasm"]);
        place.print(&["run", "sum.wasm"]);
        lines
    };
    let one = ["start", "snapshot", "write", "write", "enter", "leave"];
    assert!(record(&["--from", "sum"], &one).ends_with(" enter func=2 i32:2\n5 leave i32:3\n"));
    assert!(record(&["--from", "2:2"], &one).ends_with(" enter func=2 i32:1\n5 leave i32:10\n"));
    let two = [&one[..], &["write", "enter", "leave"]].concat();
    record(&["--from", "sum:1", "--calls", "2"], &two);
    // Fewer calls than are wanted.
    let few = place.run(&["record", "--from", "sum", "--calls", "20", "-o", "sum.trace", "app.wat"]);
    assert_eq!(few.status.code(), Some(0));
    assert_eq!(text(&few.stderr), "wasm-jit: sum.trace: 2 of 20 calls were recorded\n");

    let line = place.fail(&["record", "--from", "sum:3", "-o", "none.trace", "app.wat"]);
    let expected = "app.wat: nothing was recorded: the number of calls to `sum` in this run is 2\n";
    assert!(line.ends_with(expected), "{line}");
    assert!(!place.path("none.trace").exists(), "it could not be replayed");
    for (from, message) in [
        ("none", "there is no function `none` with code"),
        ("none:1", "there is no function `none:1` with code"),
        ("sum:0", "`0` is not the number of a call to `sum`: the first one is 1"),
        ("sum:x", "`x` is not the number of a call to `sum`: the first one is 1"),
        ("unused:", "`` is not the number of a call to `unused`: the first one is 1"),
    ] {
        fs::write(place.path("kept"), "kept").unwrap();
        let line = place.fail(&["record", "--from", from, "-o", "kept", "app.wat"]);
        assert!(line.contains(&format!("app.wat: {message}")), "{line}");
        assert_eq!(fs::read_to_string(place.path("kept")).unwrap(), "kept");
    }
    let mistake = place.run(&["record", "--calls", "2", "-o", "none.trace", "app.wat"]);
    assert_eq!(mistake.status.code(), Some(2), "--calls without --from");
    // The exit code of the program holds.
    fs::write(place.path("app.wat"), PROGRAM.replace("(func (export", "(func $unused) (func (export"))
        .unwrap();
    let ended = place.run(&["record", "--from", "unused", "-o", "none.trace", "app.wat"]);
    assert_eq!(ended.status.code(), Some(7));
    assert!(text(&ended.stderr).contains("`unused` is not called in this run"), "{}", text(&ended.stderr));
    assert!(!place.path("none.trace").exists());
}

/// Also where the program has trapped in a function of another module or of WASI, or before any of
/// its code ran.
#[test]
fn a_replay_traps_where_the_recorded_run_did() {
    let place = Place::new();
    let library = r#"(module (func (export "f") (param i32 i32) (result i32) (unreachable)))"#;
    fs::write(place.path("lib.wat"), library).unwrap();
    let host = |module: &str, name: &str| {
        format!(
            r#"(module (import "{module}" "{name}" (func $f (param i32 i32) (result i32)))
            (memory (export "memory") 1)
            (func (export "_start") (drop (call $f (i32.const 65530) (i32.const 20)))))"#
        )
    };
    let segment = r#"(module (memory 1) (data (i32.const 65535) "ab") (func (export "_start")))"#;
    for (program, expected) in [
        (host("wasi_snapshot_preview1", "random_get"), "out of bounds memory access"),
        (host("lib", "f"), "wasm `unreachable` instruction executed"),
        (segment.to_owned(), "out of bounds memory access"),
    ] {
        fs::write(place.path("app.wat"), program).unwrap();
        let recorded = place.run(&["record", "-o", "app.trace", "--preload", "lib=lib.wat", "app.wat"]);
        let replayed = place.run(&["run", "--replay", "app.trace", "app.wat"]);
        for output in [recorded, replayed] {
            let text = text(&output.stderr);
            assert!(text.starts_with("wasm-jit: app.wat: ") && text.contains(expected), "{text}");
            assert_eq!(output.status.code(), Some(134), "{text}");
        }
    }
    // Another module ends the program.
    let library = r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "f") (param i32 i32) (result i32) (call $exit (i32.const 9)) (i32.const 0)))"#;
    fs::write(place.path("lib.wat"), library).unwrap();
    fs::write(place.path("app.wat"), host("lib", "f")).unwrap();
    let recorded = place.run(&["record", "-o", "app.trace", "--preload", "lib=lib.wat", "app.wat"]);
    let replayed = place.run(&["run", "--replay", "app.trace", "app.wat"]);
    let dump = place.print(&["trace", "dump", "app.trace"]);
    assert!(dump.ends_with(" fail exit 9\n"), "{dump}");
    // Up to version 5 of the format, a trace had the message.
    let file = fs::File::open(place.path("app.trace")).unwrap();
    let mut writer = Writer::new(fs::File::create(place.path("old.trace")).unwrap()).unwrap();
    for event in Reader::new(file) {
        let event = match event.unwrap() {
            Event::Fail { reason: Some(Reason::Exit(code)) } => {
                Event::Fail { reason: Some(Reason::Host(format!("the program ended with exit code {code}"))) }
            }
            event => event,
        };
        writer.write(&event).unwrap();
    }
    writer.close().unwrap();
    let mut old = fs::read(place.path("old.trace")).unwrap();
    assert_eq!(std::mem::replace(&mut old[8], 5), 7, "the version");
    fs::write(place.path("old.trace"), old).unwrap();
    let replayed_old = place.run(&["run", "--replay", "old.trace", "app.wat"]);
    for output in [recorded, replayed, replayed_old] {
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(9), String::new()));
    }
}

/// A recursion that ends when the stack is exhausted goes further on a larger stack, and the other
/// way round.
#[test]
fn replays_need_the_stack_of_the_recorded_run() {
    let place = Place::new();
    let program = r#"(module
        (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
        (memory (export "memory") 1)
        (func $down (drop (call $yield)) (call $down) (drop (call $yield)))
        (func (export "_start") (call $down)))"#;
    fs::write(place.path("app.wat"), program).unwrap();
    let hint = "; --max-stack must be as large as in the recorded run";
    for [recorded, replayed] in [["64K", "128K"], ["128K", "64K"]] {
        let run = place.run(&["record", "--max-stack", recorded, "-o", "app.trace", "app.wat"]);
        let first = text(&run.stderr).lines().next().unwrap_or_default().to_owned();
        let needs_stack = "call stack exhausted; recording needs more stack than `run`: --max-stack sets it";
        assert!(first.ends_with(needs_stack), "{first}");
        let line = place.run(&["run", "--max-stack", replayed, "--replay", "app.trace", "app.wat"]);
        assert!(text(&line.stderr).contains(hint), "{}", text(&line.stderr));
        let line = place.fail(&["reduce", "--max-stack", replayed, "app.trace", "app.wat", "-o", "s.trace"]);
        assert!(line.contains(hint), "{line}");
    }
}

#[test]
fn a_trace_of_wasm_r3_is_imported() {
    let place = Place::new();
    let text = r#"(module (import "env" "f" (func $f (result i32))) (memory (export "memory") 1)
        (func (export "run") (result i32) (i32.add (call $f) (i32.load8_u (i32.const 7)))))"#;
    fs::write(place.path("web.wat"), text).unwrap();
    fs::write(place.path("web.r3"), "EC;1;run;\nIC;0\nIR;0;5\nL;0;7;6\nER").unwrap();
    fs::write(place.path("wrong.r3"), "EC;1;run;\nIC;0\nIR;0;x\n").unwrap();
    place.print(&["trace", "import", "web.r3", "web.wat", "-o", "web.trace"]);
    let lines = place.print(&["trace", "dump", "web.trace"]);
    assert!(lines.ends_with("\n4 return i32:5\n5 leave i32:11\n"), "{lines}");
    place.print(&["replay-gen", "--check", "web.trace", "web.wat", "-o", "web.wasm"]);
    place.print(&["run", "web.wasm"]);
    let before = fs::read(place.path("web.trace")).unwrap();
    let line = place.fail(&["trace", "import", "wrong.r3", "web.wat", "-o", "web.trace"]);
    assert!(line.contains("wrong.r3: line 3: `x` is no i32"), "{line}");
    assert_eq!(fs::read(place.path("web.trace")).unwrap(), before);
}

/// A program that is killed while it waits for its host leaves what it did before.
#[test]
fn a_killed_program_leaves_its_trace() {
    let place = Place::new();
    let endless = PROGRAM.replace("(call $exit (i32.const 7))", "(loop (br 0))");
    fs::write(place.path("app.wat"), endless).unwrap();
    let run = place.run(&["record", "--timeout", "500ms", "-o", "endless.trace", "app.wat"]);
    assert_eq!(run.status.code(), Some(134));
    let recorded = place.print(&["trace", "dump", "endless.trace"]);
    assert!(recorded.ends_with(" fail interrupted\n"), "a run that was ended is a failure: {recorded}");
    // It would run without end: what is made of it ends where the host was active last.
    place.print(&["reduce", "endless.trace", "app.wat", "-o", "small.trace"]);
    place.print(&["replay-gen", "--check", "small.trace", "app.wat", "-o", "endless.wasm"]);
    assert_eq!(place.run(&["run", "endless.wasm"]).status.code(), Some(134));
    let replayed = place.run(&["run", "--replay", "endless.trace", "app.wat"]);
    let expected = "wasm-jit: endless.trace: the recorded run was stopped after this: interrupted\n";
    assert_eq!((replayed.status.code(), text(&replayed.stderr)), (Some(134), expected.to_owned()));
    // With as much fuel, it ends at the same instruction.
    let run = place.run(&["record", "--fuel", "10000", "-o", "fuel.trace", "app.wat"]);
    assert_eq!(run.status.code(), Some(134));
    let replayed = place.run(&["run", "--replay", "fuel.trace", "app.wat"]);
    assert_eq!(replayed.status.code(), Some(134));
    assert!(text(&replayed.stderr).contains("all fuel consumed, 10000 units; with --fuel 10000, the replay"));
    let replayed = place.run(&["run", "--replay", "fuel.trace", "--fuel", "10000", "app.wat"]);
    assert_eq!((replayed.status.code(), text(&replayed.stderr)), (Some(134), text(&run.stderr)));

    let mut child = Command::new(env!("CARGO_BIN_EXE_wasm-jit"))
        .args(["record", "-o", "killed.trace", "app.wat"])
        .current_dir(place.0.path())
        .spawn()
        .unwrap();
    let dump = || place.run(&["trace", "dump", "killed.trace"]);
    let returns = |output: &Output| String::from_utf8_lossy(&output.stdout).matches(" return ").count();
    while returns(&dump()) < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it runs without end");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(returns(&dump()), 2);
    place.print(&["replay-gen", "killed.trace", "app.wat", "-o", "killed.wasm"]);
}

/// The host is entered at the deepest place of a recursion, which needs some MiB of stack.
const DEEP: &str = r#"(module
    (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
    (memory (export "memory") 1)
    (func $down (param i32) (result i32)
        (if (result i32) (i32.eqz (local.get 0))
            (then (call $yield))
            (else (i32.add (call $down (i32.sub (local.get 0) (i32.const 1))) (i32.const 1)))))
    (func (export "_start") (drop (call $down (i32.const 50000))))
    (func (export "run") (call 2)))"#;

/// What runs the program once more gives it the same stack as `record`, and can limit it.
#[test]
fn reductions_and_imports_have_the_limits_of_a_run() {
    let place = Place::new();
    fs::write(place.path("deep.wat"), DEEP).unwrap();
    fs::write(place.path("deep.r3"), "EC;2;_start;\nIC;0\nIR;0;0\nER").unwrap();
    place.print(&["record", "-o", "deep.trace", "deep.wat"]);
    place.print(&["run", "--replay", "deep.trace", "deep.wat"]);
    let reduce = ["reduce", "deep.trace", "deep.wat", "-o", "small.trace"];
    let slice = ["reduce", "--slice", "down", "deep.trace", "deep.wat", "-o", "slice.trace"];
    let import = ["trace", "import", "deep.r3", "deep.wat", "-o", "imported.trace"];
    for arguments in [&reduce[..], &slice, &import] {
        place.print(arguments);
        let small = place.fail(&[arguments, &["--max-stack", "64K"]].concat());
        assert!(small.contains("call stack exhausted"), "{small}");
        let short = place.fail(&[arguments, &["--fuel", "1000"]].concat());
        assert!(short.contains("all fuel consumed"), "{short}");
    }
    // It would run without end.
    fs::write(place.path("endless.wat"), DEEP.replace("(call $yield))", "(loop (br 0)) (i32.const 0))"))
        .unwrap();
    fs::write(place.path("endless.r3"), "EC;2;_start;\n").unwrap();
    let line =
        place.fail(&["trace", "import", "--timeout", "100ms", "endless.r3", "endless.wat", "-o", "x.trace"]);
    assert!(line.contains("interrupt"), "{line}");
}

/// The trace has the call of the host in which the process was killed. A replay says that it ends
/// there.
#[test]
fn the_call_in_which_a_program_is_killed_is_recorded() {
    let place = Place::new();
    let program = r#"(module
        (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\08\00\00\00")
        (func (export "_start") (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    fs::write(place.path("app.wat"), program).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_wasm-jit"))
        .args(["record", "-o", "killed.trace", "app.wat"])
        .stdin(std::process::Stdio::piped())
        .current_dir(place.0.path())
        .spawn()
        .unwrap();
    let dump = || text(&place.run(&["trace", "dump", "killed.trace"]).stdout);
    while !dump().ends_with("\n2 call import=0 i32:0 i32:0 i32:1 i32:8\n") {
        assert!(child.try_wait().unwrap().is_none(), "it waits for input: {}", dump());
    }
    // Nobody else writes to it meanwhile.
    let second = place.fail(&["record", "-o", "killed.trace", "app.wat"]);
    assert_eq!(second, "wasm-jit: killed.trace: another recording writes to it\n");
    child.kill().unwrap();
    child.wait().unwrap();
    let line = place.fail(&["run", "--replay", "killed.trace", "app.wat"]);
    assert!(line.contains("killed.trace: the recording ends here, before the program does"), "{line}");
    place.ends_early("killed.trace");
    let debugged =
        place.run(&["debug", "--replay", "killed.trace", "--command", "run", "--batch", "app.wat"]);
    let debugged = text(&debugged.stdout) + &text(&debugged.stderr);
    assert!(debugged.contains("the recording ends here"), "{debugged}");
}

/// Whenever it is killed: the trace has each line that the program has written, and more than one
/// block of the file is needed for it.
#[test]
fn a_trace_is_readable_whenever_its_process_is_killed() {
    use std::io::Read;
    let place = Place::new();
    let program = r#"(module
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\01\00\00\00x")
        (data (i32.const 16) "x")
        (func (export "_start")
            (loop
                (drop (call $random (i32.const 1000) (i32.const 4096)))
                (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
                (br 0))))"#;
    fs::write(place.path("app.wat"), program).unwrap();
    for round in 0..12 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wasm-jit"))
            .args(["record", "-o", "killed.trace", "app.wat"])
            .stdout(std::process::Stdio::piped())
            .current_dir(place.0.path())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        // Then it goes on, up to the capacity of the pipe.
        out.read_exact(&mut vec![0; 1 + 97 * round]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        let written = 1 + 97 * round + rest.len();
        let lines = place.print(&["trace", "dump", "killed.trace"]);
        let calls = lines.matches(" call import=1 ").count();
        assert!((written..=written + 1).contains(&calls), "{calls} calls, {written} lines");
    }
}

#[test]
fn an_input_is_not_overwritten_by_a_trace() {
    let place = Place::new();
    let refused = |arguments: &[&str], expected: &str| {
        let output = place.run(arguments);
        assert_eq!(
            (output.status.code(), text(&output.stderr)),
            (Some(2), format!("wasm-jit: {expected}\n"))
        );
        assert_eq!(fs::read_to_string(place.path("app.wat")).unwrap(), PROGRAM);
    };
    std::os::unix::fs::symlink("app.wat", place.path("link")).unwrap();
    refused(&["record", "-o", "app.wat", "app.wat"], "app.wat: it would overwrite the input app.wat");
    refused(&["record", "-o", "link", "app.wat"], "link: it would overwrite the input app.wat");
    refused(
        &["reduce", "-o", "app.wat", "app.trace", "app.wat"],
        "app.wat: it would overwrite the input app.wat",
    );
    let preloaded = ["record", "-o", "app.wat", "--preload", "lib=app.wat", "app.trace"];
    assert_ne!(place.run(&preloaded).status.code(), Some(0));
    assert_eq!(fs::read_to_string(place.path("app.wat")).unwrap(), PROGRAM);
}

/// A program that cannot be linked, or does not call the function, has no trace.
#[test]
fn an_earlier_trace_stays_if_nothing_is_recorded() {
    let place = Place::new();
    let earlier = fs::read(place.path("app.trace")).unwrap();
    let missing = r#"(module (import "a" "b" (func)) (func $f (export "_start")))"#;
    fs::write(place.path("missing.wat"), missing).unwrap();
    fs::write(place.path("unused.wat"), r#"(module (func $f) (func (export "_start")))"#).unwrap();
    for (arguments, expected) in [
        (&["missing.wat"][..], "unknown import: `a` `b`"),
        (&["--from", "f", "missing.wat"], "unknown import: `a` `b`"),
        (&["--from", "f", "unused.wat"], "unused.wat: `f` is not called in this run"),
    ] {
        for (trace, exists) in [("app.trace", true), ("new.trace", false)] {
            let output = place.run(&[&["record", "-o", trace], arguments].concat());
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains(expected), "{error}");
            assert_eq!(place.path(trace).exists(), exists, "{arguments:?}");
        }
        assert_eq!(fs::read(place.path("app.trace")).unwrap(), earlier, "{arguments:?}");
    }
}

/// As on a disk that is full: the limit of the size of files is reached. The call that was to be
/// written fails with this error; what was written before can be read.
#[test]
fn a_trace_that_cannot_be_written_ends_the_program() {
    let place = Place::new();
    let program = r#"(module
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "_start") (loop (drop (call $random (i32.const 0) (i32.const 65536))) (br 0))))"#;
    fs::write(place.path("app.wat"), program).unwrap();
    // In units of 512 bytes. Below 4 MiB, the trace is written as a stream.
    for (limit, returns) in [(16384, 50), (4096, 20), (1024, 5), (1, 0)] {
        let command = format!("ulimit -f {limit}; exec \"$0\" record -o full.trace app.wat");
        let shell = Command::new("sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_wasm-jit")])
            .current_dir(place.0.path())
            .output()
            .unwrap();
        let error = text(&shell.stderr);
        assert_eq!(shell.status.code(), Some(1), "{error}");
        assert_eq!(error.matches("File too large").count(), 1, "{error}");
        assert!(size(&place.path("full.trace")) <= limit * 512);
        let lines = place.print(&["trace", "dump", "full.trace"]);
        let found = lines.matches(" return ").count();
        assert!(found >= returns, "{found} of {limit}");
        let last = lines.lines().last().unwrap();
        assert!(last.contains(" call import=0 ") || last.contains(" return "), "{limit}: {last:.80}");
        let line = place.fail(&["run", "--replay", "full.trace", "app.wat"]);
        assert!(line.contains("full.trace: the recording ends here, before the program does"), "{line}");
    }
    // Not even the beginning can be written.
    let command = "ulimit -f 0; exec \"$0\" record -o none.trace app.wat";
    let mut shell = Command::new("sh");
    shell.args(["-c", command, env!("CARGO_BIN_EXE_wasm-jit")]).current_dir(place.0.path());
    let shell = shell.output().unwrap();
    let error = text(&shell.stderr);
    assert_eq!(shell.status.code(), Some(1), "{error}");
    assert!(error.contains("File too large") && error.lines().count() == 1, "{error}");
}
