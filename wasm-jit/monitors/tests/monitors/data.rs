//! Calls, globals, memory and the cache, checked by hand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Observed, integers, programs, texts};
use wasm_jit::{Config, Engine, Instance, Module, Store};
use wasm_jit_hooks::AccessKind;
use wasm_jit_monitors::{Cell, Output, Report, Request, Session};

/// The rows of a table as text, without the last columns.
fn rows(report: &Report, table: &str, columns: usize) -> Vec<String> {
    let cell = |cell: &Cell| match cell {
        Cell::Int(value) => value.to_string(),
        Cell::Hex(value) => format!("{value:#x}"),
        Cell::Text(text) => text.to_string(),
        Cell::Share(share) => format!("{:.0}%", share * 100.0),
        Cell::None => "-".to_owned(),
        other => panic!("{other:?}"),
    };
    let row = |row: &Vec<Cell>| row[..columns].iter().map(cell).collect::<Vec<_>>().join(" ");
    report.get_table(table).unwrap().rows().iter().map(row).collect()
}

fn file(report: &Report, name: &str) -> String {
    let (_, contents) = report.files().iter().find(|(file, _)| file == name).unwrap();
    String::from_utf8(contents.clone()).unwrap()
}

const CALLS: &str = "(module
    (type $t (func (param i32)))
    (table 4 funcref) (elem (i32.const 0) func $even $odd $other)
    (func $even (type $t)
        (if (local.get 0) (then (return_call $odd (i32.sub (local.get 0) (i32.const 1))))))
    (func $odd (type $t)
        (if (local.get 0) (then (return_call_indirect (type $t) (i32.sub (local.get 0) (i32.const 1)) (i32.const 0)))))
    (func $other (type $t))
    (func $run (export \"run\") (type $t) (local i32)
        (local.set 1 (local.get 0))
        (loop
            (call_indirect (type $t) (i32.const 1) (i32.and (local.get 0) (i32.const 3)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (if (local.get 1) (then (call $run (i32.const 0))))))";

/// The same program with a table that the host may change, so that its functions are found at each
/// call.
fn with_exported_table(text: &str) -> String {
    text.replacen("(table ", "(table (export \"table\") ", 1)
}

#[test]
fn calls_have_targets_and_callers() {
    for text in [CALLS.to_owned(), with_exported_table(CALLS)] {
        let observed = Observed::by(&text, "calls");
        // It calls elements 2 and 1, then itself, which calls element 0, and then traps at element
        // 3.
        observed.call("run", 2).unwrap_err();
        let report = observed.report("calls");
        assert_eq!(
            rows(&report, "arcs", 4),
            [
                "1 12% host run",
                "1 12% even odd",
                "1 12% odd even",
                "1 12% run even",
                "1 12% run odd",
                "1 12% run other",
                "1 12% run run",
                "1 12% run none (trap)"
            ]
        );
        let figures = ["calls", "direct", "indirect", "tail_calls"].map(|name| report.get(name).unwrap());
        assert_eq!(figures, [7, 2, 5, 2]);
        assert_eq!(rows(&report, "functions", 1), ["2", "2", "2", "1", "1"]);
        assert_eq!(report.get("by_host"), Some(1));
    }
}

/// As a replay of a part of a run calls them.
#[test]
fn the_host_calls_functions_that_are_not_exported() {
    let text = "(module (func $inner) (func (export \"run\") (call $inner)))";
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::none()).host_calls_any_function();
    session.enable("calls".parse().unwrap()).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    for (index, calls) in [(0, 2), (1, 1), (0, 1)] {
        let function = instance.func(&store, index).unwrap().typed::<(), ()>(&store).unwrap();
        (0..calls).for_each(|_| function.call(&mut store, ()).unwrap());
    }
    let report = session.report("calls").unwrap();
    assert_eq!((report.get("calls"), report.get("by_host")), (Some(1), Some(4)));
    assert_eq!(rows(&report, "functions", 1), ["4", "1"]);
}

/// An element that is written has the function that it had at the time of each call.
#[test]
fn indirect_calls_through_tables_that_change_have_their_targets() {
    for write in [
        "(table.set (i32.const 0) (ref.func $b))",
        "(table.fill (i32.const 0) (ref.func $b) (i32.const 1))",
        "(table.init $segment (i32.const 0) (i32.const 0) (i32.const 1))",
        "(table.copy (i32.const 0) (i32.const 1) (i32.const 1))",
        // The index of a new element.
        "(local.set 0 (table.grow (ref.func $b) (i32.const 1)))",
    ] {
        let text = format!(
            "(module (type $t (func)) (table 2 funcref) (elem (i32.const 0) func $a $b)
            (elem $segment func $b) (func $a) (func $b)
            (func $run (export \"run\") (param i32)
                (call_indirect (type $t) (local.get 0)) {write} (call_indirect (type $t) (local.get 0))))"
        );
        let observed = Observed::by(&text, "calls");
        observed.call("run", 0).unwrap();
        assert_eq!(
            rows(&observed.report("calls"), "arcs", 4)[1..],
            ["1 33% run a", "1 33% run b"],
            "{write}"
        );
    }
}

/// Elements beyond the end, without a function, and of segments that overlap.
#[test]
fn elements_of_a_fixed_table_are_those_of_its_segments() {
    let text = "(module (type $t (func)) (table 5 funcref) (func $a) (func $b) (func $c)
        (elem (i32.const 1) func $a $a $a) (elem (i32.const 2) funcref (ref.func $b) (ref.null func))
        (elem (offset (i32.const 4)) func $c)
        (func $run (export \"run\") (param i32) (call_indirect (type $t) (local.get 0))))";
    for text in [text.to_owned(), with_exported_table(text)] {
        let observed = Observed::by(&text, "calls");
        for (index, is_function) in
            [(0, false), (1, true), (2, true), (3, false), (4, true), (5, false), (-1, false)]
        {
            assert_eq!(observed.call("run", index).is_ok(), is_function);
        }
        let report = observed.report("calls");
        assert_eq!(
            rows(&report, "sites", 4).iter().map(|row| row.split_once(' ').unwrap().0).collect::<Vec<_>>(),
            ["4", "1", "1", "1"]
        );
        assert_eq!(texts(&report, "sites", "callee"), ["none (trap)", "a", "b", "c"]);
    }
}

/// Two types that are equal are the same; a call of a function of another one traps.
#[test]
fn calls_of_functions_of_another_type_have_no_callee() {
    let text = "(module (type $t (func)) (type $same (func)) (type $other (func (result i32)))
        (table 3 funcref) (func $a (type $t)) (func $b (type $same)) (func $c (type $other) (i32.const 1))
        (elem (i32.const 0) func $a $b $c)
        (func $run (export \"run\") (param i32) (call_indirect (type $t) (local.get 0))))";
    for text in [text.to_owned(), with_exported_table(text)] {
        let observed = Observed::by(&text, "calls");
        let are_calls = [0, 1, 2, 2].map(|index| observed.call("run", index).is_ok());
        assert_eq!(are_calls, [true, true, false, false]);
        let report = observed.report("calls");
        assert_eq!(texts(&report, "sites", "callee"), ["none (trap)", "a", "b"]);
        assert_eq!(super::integers(&report, "sites", "calls"), [2, 1, 1]);
        assert!(!texts(&report, "functions", "function").contains(&"c".to_owned()), "{report:?}");
    }
}

/// A call for which the stack has no room does not reach the entry of its callee.
#[test]
fn calls_without_room_on_the_stack_are_not_taken_for_calls_by_the_host() {
    for call in ["(call $deep (local.get 0))", "(call_indirect (type $t) (local.get 0) (i32.const 0))"] {
        let text = format!(
            "(module (type $t (func (param i32))) (table 1 funcref) (elem (i32.const 0) func $deep)
            (func $deep (export \"run\") (type $t) {call}))"
        );
        for text in [with_exported_table(&text), text] {
            let observed = Observed::by(&text, "calls");
            for calls in 1..4 {
                observed.call("run", 0).unwrap_err();
                let report = observed.report("calls");
                assert_eq!(report.get("by_host"), Some(calls), "{text}");
                let all = report.get("calls").unwrap() + calls;
                assert_eq!(integers(&report, "functions", "called"), [all], "{text}");
            }
        }
    }
}

/// Fuel may run out between a call and the first instruction of its callee.
#[test]
fn calls_without_fuel_are_not_taken_for_calls_by_the_host() {
    let text = "(module
        (func $leaf (export \"leaf\") (param i32) (drop (i32.const 1)))
        (func $middle (export \"middle\") (param i32) (call $leaf (local.get 0)))
        (func $run (export \"run\") (param i32)
            (loop
                (call $middle (local.get 0))
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))";
    let module = Module::new(&Engine::new(Config::new().consume_fuel(true)).unwrap(), text).unwrap();
    let session = Session::new(&module, Output::none());
    session.enable("calls".parse().unwrap()).unwrap();
    let mut store = Store::new(module.engine(), ());
    store.set_fuel(1000).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    for (fuel, calls) in (1..100).zip(1..) {
        store.set_fuel(fuel).unwrap();
        run.call(&mut store, 1000).unwrap_err();
        let report = session.report("calls").unwrap();
        assert_eq!(report.get("by_host"), Some(calls), "{fuel}: {report:?}");
    }
}

#[test]
fn an_indirect_call_may_have_many_targets() {
    // More entries than the table of a call has.
    const TARGETS: usize = 200;
    let functions = "(func (type $t))".repeat(TARGETS);
    let indices: Vec<String> = (0..TARGETS).map(|index| index.to_string()).collect();
    let text = format!(
        "(module (type $t (func)) {functions}
        (table {TARGETS} funcref) (elem (i32.const 0) func {})
        (func (export \"run\") (param i32)
            (loop
                (call_indirect (type $t) (i32.rem_u (local.get 0) (i32.const {TARGETS})))
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))))",
        indices.join(" "),
    );
    for text in [with_exported_table(&text), text] {
        let observed = Observed::by(&text, "calls");
        observed.call("run", 3 * TARGETS as i32).unwrap();
        let report = observed.report("calls");
        assert_eq!(integers(&report, "sites", "calls"), [3; TARGETS]);
        let mut callees = texts(&report, "sites", "callee");
        callees.sort_unstable();
        callees.dedup();
        assert_eq!(callees.len(), TARGETS);
    }
}

#[test]
fn a_call_graph_is_drawn() {
    let observed = Observed::by(CALLS, "calls");
    observed.call("run", 2).unwrap_err();
    let dot = file(&observed.report("calls"), "callgraph.dot");
    for line in
        ["host [shape=ellipse];", "host -> f3 [label=1];", "f3 -> none [label=1];", "f3 [label=\"run\"];"]
    {
        assert!(dot.contains(line), "{line}: {dot}");
    }
    assert!(dot.starts_with("digraph calls {\n") && dot.ends_with("}\n"));
}

#[test]
fn globals_have_reads_writes_and_values() {
    let text = "(module
        (global $counter (mut i32) (i32.const 5))
        (global (export \"sum\") (mut f64) (f64.const 0))
        (global $unused (mut i64) (i64.const 0))
        (func (export \"run\") (param i32)
            (loop
                (global.set $counter (i32.sub (global.get $counter) (local.get 0)))
                (global.set 1 (f64.add (global.get 1) (f64.const -0.5)))
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (drop (global.get $counter))))";
    let observed = Observed::by(text, "globals{values}");
    observed.call("run", 3).unwrap();
    let report = observed.report("globals");
    assert_eq!((report.get("reads"), report.get("writes")), (Some(7), Some(6)));
    // 5 - 3 - 2 - 1, in a new instance.
    assert_eq!(rows(&report, "by_global", 7), ["4 3 0 counter -1 -1 2", "3 3 1 sum -1.5 -1.5 -0.5"]);
    let observed = Observed::by(text, "globals");
    observed.call("run", 3).unwrap();
    assert_eq!(observed.report("globals").get_table("by_global").unwrap().columns().len(), 4);
}

const MEMORY: &str = "(module (memory 2)
    (func (export \"run\") (param i32)
        (loop
            (i64.store offset=8 (i32.mul (local.get 0) (i32.const 64)) (i64.const 1))
            (drop (i32.load8_u (i32.const 4096)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (memory.fill (i32.const 60) (i32.const 0) (i32.const 8))
        (memory.copy (i32.const 8192) (i32.const 0) (i32.const 65))))";

/// Runs a module with the monitor `memory`. Returns what has observed it, and its trace.
fn traced(text: &str, request: &str, run: impl FnOnce(&Observed)) -> (Observed, String) {
    let directory = tempfile::tempdir().unwrap();
    let module = Module::new(&Engine::default(), text).unwrap();
    let session = Session::new(&module, Output::directory(directory.path()).unwrap());
    session.enable(request.parse().unwrap()).unwrap();
    let observed = Observed { module, session };
    run(&observed);
    observed.session.write().unwrap();
    let read = |file: &str| std::fs::read_to_string(directory.path().join(file));
    let trace = read("memory.trace").or(read("memory.trace.jsonl")).or(read("memory.trace.csv")).unwrap();
    (observed, trace)
}

#[test]
fn bulk_instructions_of_no_bytes_access_nothing() {
    let text = "(module (memory 1) (data $none \"abc\")
        (func (export \"run\") (param i32)
            (memory.fill (i32.const 60) (i32.const 0) (i32.const 0))
            (memory.copy (i32.const 8192) (i32.const 0) (i32.const 0))
            (memory.init $none (i32.const 65536) (i32.const 3) (i32.const 0))
            (memory.fill (i32.const 60) (i32.const 0) (local.get 0))))";
    for request in ["memory{trace}", "memory{trace,values}"] {
        let (observed, trace) = traced(text, request, |observed| observed.call("run", 1).unwrap());
        let report = observed.report("memory");
        let values = ["loads", "stores", "bytes_of_stores", "pages"].map(|name| report.get(name).unwrap());
        assert_eq!(values, [0, 1, 1, 1], "{request}");
        assert_eq!(report.get_table("by_instruction").unwrap().rows().len(), 1);
        assert_eq!(trace.lines().count(), 1, "{trace}");
    }
    let observed = Observed::by(text, "cache");
    observed.call("run", 1).unwrap();
    assert_eq!(observed.report("cache").get("accesses"), Some(1));
}

#[test]
fn accesses_have_addresses_and_pages() {
    let (observed, trace) = traced(MEMORY, "memory{trace}", |observed| observed.call("run", 3).unwrap());
    let report = observed.report("memory");
    assert_eq!((report.get("loads"), report.get("bytes_of_loads")), (Some(4), Some(3 + 65)));
    assert_eq!((report.get("stores"), report.get("bytes_of_stores")), (Some(5), Some(3 * 8 + 8 + 65)));
    assert_eq!(
        rows(&report, "by_instruction", 7),
        [
            "3 33% 24 store 0 0x48 0xcf",
            "3 33% 3 load 0 0x1000 0x1000",
            "1 11% 8 store 0 0x3c 0x43",
            "1 11% 65 load 0 0x0 0x40",
            "1 11% 65 store 0 0x2000 0x2040"
        ]
    );
    // Lines 1, 2 and 3; 0 and 1 by the fill and the copy. 64 of the second page; 128 and 129.
    assert_eq!(
        rows(&report, "by_page", 6),
        ["7 58% 0 0x0 4 0x40", "3 25% 0 0x1000 1 0x1000", "2 17% 0 0x2000 2 0x2000"]
    );
    let lines: Vec<_> = trace.lines().map(|line| line.rsplit_once(" 0x").unwrap().0).collect();
    assert_eq!(
        lines,
        [
            "store 0xc8 8",
            "load 0x1000 1",
            "store 0x88 8",
            "load 0x1000 1",
            "store 0x48 8",
            "load 0x1000 1",
            "store 0x3c 8",
            "load 0x0 65",
            "store 0x2000 65"
        ]
    );
    let svg = file(&report, "heat.svg");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    // The background, and the lines.
    assert_eq!(svg.matches("<rect").count(), 1 + 4 + 1 + 2, "{svg}");
}

#[test]
fn accesses_have_their_memory_and_direction() {
    let text = "(module (memory 1) (memory $other 1)
        (func (export \"run\") (param i32)
            (memory.copy $other 0 (i32.const 16) (i32.const 32) (i32.const 4))))";
    let (observed, trace) = traced(text, "memory{trace}", |observed| observed.call("run", 0).unwrap());
    assert_eq!(
        rows(&observed.report("memory"), "by_instruction", 7),
        ["1 50% 4 load 0 0x20 0x23", "1 50% 4 store 1 0x10 0x13"]
    );
    let lines: Vec<_> = trace.lines().map(|line| line.rsplit_once(" 0x").unwrap().0).collect();
    assert_eq!(lines, ["load 0x20 4", "store 1:0x10 4"]);
}

const VALUES: &str = "(module (memory 2)
    (func (export \"run\") (param i32)
        (loop
            (i64.store offset=8 (i32.const 64) (i64.extend_i32_s (i32.sub (local.get 0) (i32.const 3))))
            (drop (i32.load8_s offset=1 (i32.const 71)))
            (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (f32.store (i32.const 0) (f32.const 1))
        (drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1)))
        (memory.fill (i32.const 60) (i32.const 7) (i32.const 8))
        (memory.copy (i32.const 8192) (i32.const 0) (i32.const 65))
        (drop (i32.load (i32.const -1)))))";

/// The values of stores, and the results of loads and atomic operations. The last operation traps.
#[test]
fn accesses_have_values() {
    let (observed, trace) =
        traced(VALUES, "memory{trace,values}", |observed| _ = observed.call("run", 2).unwrap_err());
    // Without the instruction's offset.
    let fields = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let [kind, address, size, _, value] = fields[..] else { panic!("{line}") };
        format!("{kind} {address} {size} {value}")
    };
    let lines: Vec<_> = trace.lines().map(fields).collect();
    assert_eq!(
        lines,
        [
            "store 0x48 8 0xffffffffffffffff",
            "load 0x48 1 0xffffffff",
            "store 0x48 8 0xfffffffffffffffe",
            "load 0x48 1 0xfffffffe",
            "store 0x0 4 0x3f800000",
            "modify 0x0 4 0x3f800000",
            "store 0x3c 8 0x7",
            "load 0x0 65 -",
            "store 0x2000 65 -"
        ]
    );
    let report = observed.report("memory");
    let table = report.get_table("by_instruction").unwrap();
    let column = |name: &str| table.column(name).cloned().collect::<Vec<_>>();
    let (least, greatest) = (column("least value"), column("greatest value"));
    assert_eq!(least[..2], [Cell::Hex(u64::MAX - 1), Cell::Hex(0xffff_fffe)]);
    assert_eq!(greatest[..2], [Cell::Hex(u64::MAX), Cell::Hex(0xffff_ffff)]);
    assert_eq!(least.iter().filter(|cell| **cell == Cell::None).count(), 2, "both of the copy");
}

/// The traces of random programs, some of which trap, have the values that a hook observes.
#[test]
fn traces_have_the_values_that_hooks_observe() {
    let (mut all, mut values) = (0, 0);
    for seed in 0..30 {
        let module = Module::new(&Engine::default(), programs::program(seed)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let session = Session::new(&module, Output::directory(directory.path()).unwrap());
        session.enable("memory{trace,values}".parse().unwrap()).unwrap();
        let starts: HashMap<u32, u64> = module
            .functions()
            .filter_map(|function| Some((function.index(), function.body()?.range().start as u64)))
            .collect();
        let observed = Arc::new(Mutex::new(Vec::new()));
        let of_hook = observed.clone();
        let hook = wasm_jit_hooks::memory(
            &module,
            |_| true,
            move |access| {
                let kind = match access.kind {
                    AccessKind::Load | AccessKind::Wait => "load",
                    AccessKind::Store => "store",
                    _ => "modify",
                };
                let offset = starts[&access.function] + u64::from(access.offset);
                let value = access.value.map_or("-".to_owned(), |value| format!("{value:#x}"));
                let line = format!("{kind} {:#x} {} {offset:#x} {value}", access.address, access.size);
                of_hook.lock().unwrap().push(line);
            },
        );
        let hook = hook.unwrap();
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let main = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap();
        for _ in 0..2 {
            let _ = main.call(&mut store, ());
        }
        drop(hook);
        session.write().unwrap();
        let trace = std::fs::read_to_string(directory.path().join("memory.trace")).unwrap();
        let expected = std::mem::take(&mut *observed.lock().unwrap());
        assert!(trace.lines().eq(expected.iter().map(String::as_str)), "seed {seed}");
        all += expected.len();
        values += expected.iter().filter(|line| !line.ends_with('-')).count();
    }
    assert!(all > 1000 && values > 1000, "{values} of {all}");
}

/// Lines of JSON have the figures of the text.
#[test]
fn accesses_are_json_on_request() {
    let [text, json] = ["memory{trace,values}", "memory{trace,values,json}"]
        .map(|request| traced(VALUES, request, |observed| _ = observed.call("run", 2).unwrap_err()).1);
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((line["memory"].as_u64(), line["function"].as_str()), (Some(0), Some("run")), "{line}");
        let number = |name: &str| line[name].as_u64().unwrap();
        let value = line["value"].as_u64().map_or("-".to_owned(), |value| format!("{value:#x}"));
        let (kind, address) = (line["kind"].as_str().unwrap(), number("address"));
        format!("{kind} {address:#x} {} {:#x} {value}\n", number("bytes"), number("offset"))
    };
    assert_eq!(json.lines().map(line).collect::<String>(), text);
    let module = Module::new(&Engine::default(), VALUES).unwrap();
    let refused = Session::new(&module, Output::none()).enable("memory{json}".parse().unwrap());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "option `json` is about the trace: it needs the option `trace`"
    );
}

/// Rows have the figures of the text.
#[test]
fn accesses_are_rows_on_request() {
    for (values, columns) in [
        ("", "kind,address,bytes,memory,offset,function"),
        (",values", "kind,address,bytes,memory,offset,function,value"),
    ] {
        let [text, rows] = ["", ",csv"]
            .map(|csv| format!("memory{{trace{values}{csv}}}"))
            .map(|request| traced(VALUES, &request, |observed| _ = observed.call("run", 2).unwrap_err()).1);
        let (header, rows) = rows.split_once('\n').unwrap();
        assert_eq!(header, columns);
        let line = |row: &str| {
            let fields: Vec<&str> = row.split(',').collect();
            let number = |at: usize| fields[at].parse::<u64>().unwrap();
            assert_eq!((number(3), fields[5]), (0, "run"), "{row}");
            let value = fields.get(6).map_or(String::new(), |value| match value.parse::<u64>() {
                Ok(value) => format!(" {value:#x}"),
                Err(_) => " -".to_owned(),
            });
            format!("{} {} {} {}{value}\n", fields[0], fields[1], fields[2], fields[4])
        };
        assert_eq!(rows.lines().map(line).collect::<String>(), text);
    }
    let module = Module::new(&Engine::default(), VALUES).unwrap();
    let refused = |request: &str| {
        Session::new(&module, Output::none()).enable(request.parse().unwrap()).unwrap_err().to_string()
    };
    assert_eq!(refused("memory{csv}"), "option `csv` is about the trace: it needs the option `trace`");
    let both = "option `csv` is another form of the trace than the option `json`";
    assert_eq!(refused("memory{trace,json,csv}"), both);
    assert_eq!(refused("trace{json,csv}"), both);
}

#[test]
fn bulk_instructions_that_trap_take_no_memory() {
    let text = "(module (memory 1) (func (export \"run\") (param i32)
        (memory.fill (i32.const 0) (i32.const 0) (i32.const -1))))";
    let observed = Observed::by(text, "memory");
    observed.call("run", 0).unwrap_err();
    let report = observed.report("memory");
    assert_eq!((report.get("stores"), report.get("pages")), (Some(1), Some(0)));
    assert_eq!(report.get("accesses_beyond_the_heat_map"), Some(1));
}

/// It wakes threads that wait for an address.
#[test]
fn a_notification_is_no_access() {
    let text = "(module (memory 1) (func (export \"run\") (param i32)
        (drop (memory.atomic.notify (i32.const 64) (i32.const 1)))
        (drop (i32.load (i32.const 128)))))";
    let observed = Observed::by(text, "memory{values},cache");
    observed.call("run", 0).unwrap();
    let memory = observed.report("memory");
    assert_eq!(["loads", "stores", "modifications"].map(|name| memory.get(name).unwrap()), [1, 0, 0]);
    assert_eq!(integers(&memory, "by_instruction", "accesses"), [1]);
    assert_eq!(observed.report("cache").get("accesses"), Some(1));
}

/// Accesses by several threads, more than a ring has room for.
#[test]
fn accesses_of_threads_are_all_seen() {
    let observed = Observed::by(MEMORY, "memory,cache,globals,calls,coverage");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..4).for_each(|_| observed.call("run", 2000).unwrap()));
        }
        scope.spawn(|| {
            for _ in 0..20 {
                let report = observed.report("memory");
                let loads = integers(&report, "by_instruction", "accesses");
                assert_eq!(
                    loads.iter().sum::<u64>(),
                    report.get("loads").unwrap() + report.get("stores").unwrap()
                );
            }
        });
    });
    let report = observed.report("memory");
    assert_eq!(report.get("loads"), Some(12 * 2001));
    assert_eq!(report.get("stores"), Some(12 * 2002));
    assert_eq!(observed.report("cache").get("accesses"), Some(12 * 4003));
    let coverage = observed.report("coverage");
    assert_eq!(coverage.get("instructions_covered"), coverage.get("instructions"));
    assert_eq!(observed.report("calls").get("by_host"), Some(12));
}

/// Loads of addresses that the function gets.
const LOADS: &str = "(module (memory 1)
    (func (export \"run\") (param i32) (drop (i64.load (local.get 0)))))";

#[test]
fn caches_keep_the_lines_used_last() {
    // Two sets of two ways, then one of four.
    let monitors = Request::list("cache{level=64:2:16,level=64:4:16}").unwrap();
    let module = Module::new(&Engine::default(), LOADS).unwrap();
    let session = Session::new(&module, Output::none());
    monitors.into_iter().for_each(|monitor| session.enable(monitor).unwrap());
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
    // By line: in set 0 the lines 0, 2, 4, in set 1 the lines 1 and 3.
    for (address, misses) in [
        (0, [1, 1]),  // 0
        (8, [1, 1]),  // 0 again
        (32, [2, 2]), // 2
        (64, [3, 3]), // 4 replaces 0
        (0, [4, 3]),  // 0 replaces 2; the second level has it
        (64, [4, 3]), // 4
        (32, [5, 3]), // 2 replaces 0
        (64, [5, 3]), // 4
        (12, [6, 4]), // 0, which the second level has, and 1, which none has
        (48, [7, 5]), // 3: the second level replaces 4 or 2, whichever it got earlier
        (16, [7, 5]), // 1
    ] {
        run.call(&mut store, address).unwrap();
        let report = session.report("cache").unwrap();
        assert_eq!([report.get("misses_1").unwrap(), report.get("misses_2").unwrap()], misses, "{address}");
    }
    let report = session.report("cache").unwrap();
    assert_eq!(rows(&report, "levels", 6), ["1 64:2:16 11 4 7 64%", "2 64:4:16 7 2 5 71%"]);
    assert_eq!(rows(&report, "by_instruction", 4), ["11 7 5 64%"]);
    assert_eq!(texts(&report, "by_instruction", "instruction"), ["i64.load"]);
}

#[test]
fn caches_that_make_no_sense_are_refused() {
    let module = Module::new(&Engine::default(), LOADS).unwrap();
    let session = Session::new(&module, Output::none());
    for level in [
        "",
        "64",
        "64:2",
        "64:2:16:1",
        "64:0:16",
        "64:3:16",
        "64:2:15",
        "16:2:16",
        "64:2:0",
        "1x:1:1",
        "99g:1:64",
        "99999g:8:64",
        "4294967296g:8:64",
        "4g:1:1",
        "4g:1:0",
        "2g:8:64",
        "512m:8:64,level=1g:8:64",
    ] {
        let error = session.enable(format!("cache{{level={level}}}").parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("such as 32k:8:64"), "{level}: {error}");
    }
    assert!(session.enable("cache{level=64:2:16,level=64:2:8}".parse().unwrap()).is_err());
    session.enable("cache{level=48K:12:64,level=2m:16:64}".parse().unwrap()).unwrap();
}

/// As those of functions; two globals of one name have different indices.
#[test]
fn globals_have_the_names_of_the_source() {
    let text = "(module
        (global $a (@name \"_ZN5space4sizeE\") (export \"exported\") (mut i32) (i32.const 0))
        (global $b (@name \"same\") (mut i32) (i32.const 0))
        (global $c (@name \"same\") (mut i32) (i32.const 0))
        (global (export \"a b\") (mut i32) (i32.const 0))
        (global (mut i32) (i32.const 0))
        (func (export \"run\") (param i32)
            (global.set 0 (local.get 0)) (global.set 1 (local.get 0)) (global.set 2 (local.get 0))
            (global.set 3 (local.get 0)) (global.set 4 (local.get 0))))";
    let observed = Observed::by(text, "globals");
    observed.call("run", 0).unwrap();
    assert_eq!(
        rows(&observed.report("globals"), "by_global", 4),
        ["0 1 0 space::size", "0 1 1 same", "0 1 2 same", "0 1 3 a b", "0 1 4 -"]
    );
}

/// NaN is not in the order of numbers, and its sign depends on the machine.
#[test]
fn nan_is_neither_least_nor_greatest() {
    let text = "(module
        (global $mixed (mut f64) (f64.const 0)) (global $only (mut f32) (f32.const 0))
        (global $last (mut f64) (f64.const 0))
        (func (export \"run\") (param i32)
            (global.set $mixed (f64.const nan)) (global.set $mixed (f64.const -nan:0x8000000000001))
            (global.set $mixed (f64.const inf)) (global.set $mixed (f64.const -2))
            (global.set $only (f32.const -nan)) (global.set $only (f32.const nan:0x7fffff))
            (global.set $last (f64.const 1)) (global.set $last (f64.const -0))
            (global.set $last (f64.const -nan))))";
    let observed = Observed::by(text, "globals{values}");
    observed.call("run", 0).unwrap();
    let report = observed.report("globals");
    assert_eq!(texts(&report, "by_global", "name"), ["mixed", "last", "only"]);
    assert_eq!(texts(&report, "by_global", "last"), ["-2", "NaN", "NaN"]);
    assert_eq!(texts(&report, "by_global", "least"), ["-2", "-0", "NaN"]);
    assert_eq!(texts(&report, "by_global", "greatest"), ["inf", "1", "NaN"]);
}
