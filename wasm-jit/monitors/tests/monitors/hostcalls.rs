//! Calls to the host.

use std::fs;

use wasm_jit::{Caller, Engine, Linker, Module, Store};
use wasm_jit_monitors::{Format, Output, Report, Session};
use wasm_jit_wasi::{WasiCtx, WasiCtxBuilder};

use super::{Observed, integers, texts};

/// Runs a program with WASI, and returns the report and the lines.
fn run(text: &str, request: &str) -> (Report, Vec<String>) {
    let module = Module::new(&Engine::default(), text).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap());
    session.enable(request.parse().unwrap()).unwrap();
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("there.txt"), "some text").unwrap();
    let wasi = WasiCtxBuilder::new().preopened_dir(files.path(), "/").unwrap().build();
    let mut linker = Linker::<WasiCtx>::new(module.engine());
    wasm_jit_wasi::add_to_linker(&mut linker, |wasi| wasi).unwrap();
    let back = |mut caller: Caller<'_, WasiCtx>, argument: i32| -> Result<i64, wasm_jit::Error> {
        let back = caller.get_export("back").and_then(|back| back.into_func()).unwrap();
        back.typed::<i32, ()>(&caller)?.call(&mut caller, argument)?;
        Ok(i64::from(argument) * 10)
    };
    linker.func_wrap("host", "back", back).unwrap();
    let twice = |_: Caller<'_, WasiCtx>, vector: u128, factor: i32| (vector * 2, factor);
    linker.func_wrap("host", "twice", twice).unwrap();
    let mut store = Store::new(module.engine(), wasi);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let _ = instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap().call(&mut store, ());
    let report = session.report("hostcalls").unwrap();
    for (name, _) in report.values() {
        assert!(report.get_table(name).is_none(), "{name} is a key of the JSON format twice");
    }
    let read = |file: &str| fs::read_to_string(directory.path().join(file));
    let lines = read("hostcalls.log").or(read("hostcalls.jsonl")).or(read("hostcalls.trace.csv"));
    let lines = lines.unwrap_or_default();
    // Without times.
    let lines = lines.lines().map(|line| line.split(" <").next().unwrap().to_owned()).collect();
    (report, lines)
}

/// Calls, errors and calls that have not returned, by name, in alphabetical order.
fn counts(report: &Report) -> Vec<(String, u64, u64)> {
    let calls = integers(report, "functions", "calls");
    let unfinished = integers(report, "functions", "not returned");
    let names = texts(report, "functions", "function");
    let mut all: Vec<_> = names
        .into_iter()
        .zip(calls)
        .zip(unfinished)
        .map(|((name, calls), rest)| (name, calls, rest))
        .collect();
    all.sort();
    all
}

fn check(report: &Report, expected: &[(&str, u64, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, calls, rest)| ((*name).to_owned(), *calls, *rest)).collect();
    assert_eq!(counts(report), expected);
}

const FILES: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_close" (func $fd_close (param i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\40\00\00\00\04\00\00\00\50\00\00\00\20\00\00\00")
    (data (i32.const 100) "there.txt")
    (data (i32.const 120) "missing")
    (func $open (param i32 i32) (result i32)
        (call $path_open (i32.const 3) (i32.const 1) (local.get 0) (local.get 1) (i32.const 0)
            (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 32)))
    (func (export "_start")
        (drop (call $open (i32.const 100) (i32.const 9)))
        (drop (call $fd_read (i32.load (i32.const 32)) (i32.const 0) (i32.const 2) (i32.const 36)))
        (drop (call $fd_close (i32.load (i32.const 32))))
        (drop (call $fd_close (i32.const 99)))
        (drop (call $open (i32.const 120) (i32.const 7)))
        (call $proc_exit (i32.const 7))))"#;

const FILES_CALLS: [(&str, u64, u64); 4] =
    [("fd_close", 2, 0), ("fd_read", 1, 0), ("path_open", 2, 0), ("proc_exit", 1, 1)];

#[test]
fn reports_have_the_name_by_which_other_monitors_call_a_function() {
    let (report, _) = run(
        r#"(module
            (import "wasi_snapshot_preview1" "sched_yield" (func $pause (result i32)))
            (import "wasi_snapshot_preview1" "fd_close" (func (param i32) (result i32)))
            (import "host" "back" (func (param i32) (result i64)))
            (memory (export "memory") 1)
            (func (export "back") (param i32))
            (func (export "_start") (drop (call $pause)) (drop (call 1 (i32.const 9))) (drop (call 2 (i32.const 1)))))"#,
        "hostcalls",
    );
    let names = texts(&report, "functions", "function").into_iter();
    let mut names: Vec<_> = names.zip(texts(&report, "functions", "symbol")).collect();
    names.sort();
    let expected = [
        ("fd_close", "wasi_snapshot_preview1::fd_close"),
        ("host::back", "host::back"),
        ("sched_yield", "pause"),
    ];
    assert_eq!(names, expected.map(|(name, symbol)| (name.to_owned(), symbol.to_owned())));
}

#[test]
fn calls_of_wasi_are_counted_with_their_errors() {
    let (report, lines) = run(FILES, "hostcalls");
    check(&report, &FILES_CALLS);
    assert_eq!((report.get("calls"), report.get("errors")), (Some(6), Some(2)));
    let errors: Vec<_> =
        texts(&report, "by_error", "error").into_iter().zip(texts(&report, "by_error", "function")).collect();
    assert_eq!(
        errors,
        [("NOENT".to_owned(), "path_open".to_owned()), ("BADF".to_owned(), "fd_close".to_owned())]
    );
    assert_eq!(lines, Vec::<String>::new());
    let sum: u64 = integers(&report, "functions", "total ns").iter().sum();
    assert_eq!(report.get("nanoseconds"), Some(sum));
    assert!(sum > 0);
}

#[test]
fn lines_have_arguments_and_results() {
    let (report, lines) = run(FILES, "hostcalls{trace}");
    check(&report, &FILES_CALLS);
    let expected = [
        "path_open(fd=3, lookup=SYMLINK_FOLLOW, path=\"there.txt\", oflags=0, rights=0x2, inheriting=0x0, fdflags=0, opened=4) = 0",
        "fd_read(fd=4, iovs=[\"some\", \" text\"], nread=9) = 0",
        "fd_close(fd=4) = 0",
        "fd_close(fd=99) = 8 BADF",
        "path_open(fd=3, lookup=SYMLINK_FOLLOW, path=\"missing\", oflags=0, rights=0x2, inheriting=0x0, fdflags=0, opened=0x20) = 44 NOENT",
        "proc_exit(code=7) = ?",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn lines_are_json_on_request() {
    let (_, text) = run(FILES, "hostcalls{trace}");
    let (_, json) = run(FILES, "hostcalls{trace,json}");
    let line = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let [function, arguments, results] =
            ["function", "arguments", "results"].map(|name| line[name].as_str().unwrap());
        assert_eq!(line["thread"].as_u64(), Some(1));
        assert_eq!(line["seconds"].is_number(), results != "?", "{line}");
        format!("{function}({arguments}) = {results}")
    };
    assert_eq!(json.iter().map(line).collect::<Vec<_>>(), text);
}

#[test]
fn lines_are_rows_on_request() {
    let (_, text) = run(FILES, "hostcalls{trace}");
    let (_, rows) = run(FILES, "hostcalls{trace,csv}");
    let rows = rows.join("\n");
    let mut rows = csv::Reader::from_reader(rows.as_bytes());
    assert_eq!(rows.headers().unwrap(), &["thread", "function", "arguments", "results", "seconds"][..]);
    let line = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.unwrap();
        let [thread, function, arguments, results, seconds] = std::array::from_fn(|at| &row[at]);
        assert_eq!(thread, "1");
        assert_eq!(seconds.parse::<f64>().is_ok(), results != "?", "{row:?}");
        format!("{function}({arguments}) = {results}")
    };
    assert_eq!(rows.records().map(line).collect::<Vec<_>>(), text);
}

#[test]
fn addresses_outside_of_the_memory_are_shown() {
    let (report, lines) = run(
        &FILES.replace("(i32.const 100) (i32.const 9)", "(i32.const 65530) (i32.const 9)"),
        "hostcalls{trace}",
    );
    check(&report, &[("path_open", 1, 1)]);
    assert!(lines[0].contains(", path=0xfffa[9], ") && lines[0].ends_with(" = ?"), "{lines:?}");
}

#[test]
fn calls_are_found_however_they_are_made() {
    let text = r#"(module
        (import "host" "back" (func $back (param i32) (result i64)))
        (type $t (func (param i32) (result i64)))
        (table funcref (elem $back $own))
        (func $own (type $t) (i64.const 1))
        (func $tail (type $t) (return_call $back (local.get 0)))
        (func $indirect (type $t) (return_call_indirect (type $t) (local.get 0) (i32.const 0)))
        (func $again (export "back") (param i32)
            (if (i32.eq (local.get 0) (i32.const 1)) (then (drop (call $back (i32.const 2)))))
            (if (i32.eq (local.get 0) (i32.const 9)) (then unreachable)))
        (func (export "_start")
            (drop (call $back (i32.const 1)))
            (drop (call $tail (i32.const 3)))
            (drop (call $indirect (i32.const 4)))
            (drop (call_indirect (type $t) (i32.const 5) (i32.const 0)))
            (drop (call_indirect (type $t) (i32.const 6) (i32.const 1)))
            (drop (call $back (i32.const 9)))))"#;
    let (report, lines) = run(text, "hostcalls{trace}");
    // Two tail calls, and the one that fails.
    check(&report, &[("back", 6, 3)]);
    assert_eq!(
        lines,
        ["back(2) = 20", "back(1) = 10", "back(3) = ?", "back(4) = ?", "back(5) = 50", "back(9) = ?"]
    );
    let (report, _) = run(text, "hostcalls{function=tail}");
    check(&report, &[("back", 1, 1)]);
}

/// The one call by a table that does not lead to the host has no line.
#[test]
fn arguments_of_calls_by_tables_and_references_have_names() {
    let text = r#"(module
        (import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (data (i32.const 100) "missing")
        (type $unary (func (param i32) (result i32)))
        (type $ternary (func (param i32 i32 i32) (result i32)))
        (table funcref (elem $unlink $close $exit $own))
        (func $own (type $unary) (call_indirect (type $unary) (i32.const 97) (i32.const 1)))
        (func (export "_start")
            (drop (call_indirect (type $ternary) (i32.const 3) (i32.const 100) (i32.const 7) (i32.const 0)))
            (drop (call_indirect (type $unary) (i32.const 99) (i32.const 1)))
            (drop (call_indirect (type $unary) (i32.const 98) (i32.const 3)))
            (drop (call_ref $unary (i32.const 96) (ref.func $close)))
            (call_indirect (param i32) (i32.const 7) (i32.const 2))))"#;
    let (_, lines) = run(text, "hostcalls{trace}");
    let expected = [
        "path_unlink_file(fd=3, path=\"missing\") = 44 NOENT",
        "fd_close(fd=99) = 8 BADF",
        "fd_close(fd=97) = 8 BADF",
        "fd_close(fd=96) = 8 BADF",
        "proc_exit(code=7) = ?",
    ];
    assert_eq!(lines, expected);
}

/// The instruction after a call may be reached without it.
#[test]
fn results_belong_to_their_calls() {
    let text = r#"(module
        (import "host" "back" (func $back (param i32) (result i64)))
        (func $again (export "back") (param i32))
        (func (export "_start") (local i32)
            (loop $again
                (block
                    (br_if 0 (i32.and (local.get 0) (i32.const 1)))
                    (drop (i64.add (i64.const 1) (call $back (local.get 0)))))
                (br_if $again (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 6))))
            (drop (call $back (if (result i32) (local.get 0) (then (i32.wrap_i64 (call $back (i32.const 7)))) (else (i32.const 0)))))
            ))"#;
    let (report, lines) = run(text, "hostcalls{trace}");
    check(&report, &[("back", 5, 0)]);
    assert_eq!(lines, ["back(0) = 0", "back(2) = 20", "back(4) = 40", "back(7) = 70", "back(70) = 700"]);
}

#[test]
fn programs_that_do_not_call_the_host_have_an_empty_report() {
    let observed = Observed::by(super::LOOP, "hostcalls");
    observed.call("run", 1).unwrap();
    let report = observed.report("hostcalls");
    check(&report, &[]);
    assert_eq!(report.get("calls"), Some(0));
    assert!(Format::Text.print(&[report]).contains("do not call the host"));
}

#[test]
fn vectors_are_shown() {
    let text = r#"(module
        (import "host" "twice" (func $twice (param v128 i32) (result v128 i32)))
        (type $t (func (param v128 i32) (result v128 i32)))
        (table funcref (elem $twice $own))
        (func $own (type $t) (local.get 0) (local.get 1))
        (func (export "_start")
            (call $twice (v128.const i64x2 5 0) (i32.const 7)) (drop) (drop)
            (call_indirect (type $t) (v128.const i64x2 1 1) (i32.const 8) (i32.const 1)) (drop) (drop)
            (call_indirect (type $t) (v128.const i64x2 0 1) (i32.const 9) (i32.const 0)) (drop) (drop)))"#;
    let (report, lines) = run(text, "hostcalls{trace}");
    check(&report, &[("twice", 2, 0)]);
    let expected = [
        "twice(0x00000000000000000000000000000005, 7) = 0x0000000000000000000000000000000a, 7",
        "twice(0x00000000000000010000000000000000, 9) = 0x00000000000000020000000000000000, 9",
    ];
    assert_eq!(lines, expected);
}
