//! Every instruction, with operands.

use std::fs;
use std::thread;

use wasm_jit::{Config, Engine, Instance, Module, Store};
use wasm_jit_monitors::{Cell, Output, Session};

use super::{integers, programs};

/// A module that is traced into a directory.
struct Traced {
    module: Module,
    session: Session,
    directory: tempfile::TempDir,
}

impl Traced {
    fn by(text: &str, request: &str) -> Self {
        let module = Module::new(&Engine::default(), text).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let session = Session::new(&module, Output::directory(directory.path()).unwrap());
        session.enable(request.parse().unwrap()).unwrap();
        Self { module, session, directory }
    }

    fn call(&self, argument: i32) -> Result<(), wasm_jit::Error> {
        let mut store = Store::new(self.module.engine(), ());
        let instance = Instance::new(&mut store, &self.module, &[])?;
        instance.get_typed_func::<i32, ()>(&mut store, "run")?.call(&mut store, argument)
    }

    /// What was written, after a report.
    fn lines(&self) -> Vec<String> {
        self.session.report("trace").unwrap();
        self.written()
    }

    fn written(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("trace.log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

/// Lines without their offsets.
fn without_offsets(lines: &[String]) -> Vec<String> {
    let without = |line: &String| {
        let words = line.split_whitespace().enumerate().filter(|(at, _)| *at != 2);
        words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    };
    lines.iter().map(without).collect()
}

const OPERANDS: &str = "(module
    (memory 1) (global $g (mut i64) (i64.const 7))
    (table 1 funcref) (type $t (func (param i32 f64) (result f64)))
    (elem (i32.const 0) func $callee)
    (func $callee (type $t) (f64.neg (local.get 1)))
    (func (export \"run\") (param i32)
        (i64.store offset=8 (i32.const 16) (i64.const -2))
        (drop (i64.load offset=8 (i32.const 16)))
        (global.set $g (i64.add (global.get $g) (i64.const 1)))
        (drop (select (f32.const 1.5) (f32.const nan) (local.get 0)))
        (drop (call_indirect (type $t) (i32.const -5) (f64.const 0.25) (i32.const 0)))
        (drop (ref.is_null (ref.null func)))
        (if (local.get 0) (then (br 0)))
        (unreachable)))";

#[test]
fn lines_are_json_on_request() {
    let text = Traced::by(OPERANDS, "trace");
    text.call(1).unwrap_err();
    let json = Traced::by(OPERANDS, "trace{json}");
    json.call(1).unwrap_err();
    json.session.report("trace").unwrap();
    let lines = fs::read_to_string(json.directory.path().join("trace.jsonl")).unwrap();
    let lines: Vec<String> = lines
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let operands = line["operands"].as_array().unwrap().iter();
            let operands: String =
                operands.map(|operand| format!(" {}", operand.as_str().unwrap())).collect();
            let (function, instruction) = (&line["function"], &line["instruction"]);
            let instruction = instruction.as_str().unwrap();
            let equals = if instruction.starts_with("local.get") { " =" } else { "" };
            let (thread, depth, offset) = (&line["thread"], &line["depth"], line["offset"].as_u64().unwrap());
            let function = function.as_str().unwrap();
            format!(
                "{thread} {depth:>4} {offset:#08x} {function}: {instruction}{equals}{operands}",
                depth = depth.to_string()
            )
        })
        .collect();
    assert_eq!(lines, text.lines());
    assert!(lines.len() > 20);
}

#[test]
fn lines_are_rows_on_request() {
    let text = Traced::by(OPERANDS, "trace");
    text.call(1).unwrap_err();
    let csv = Traced::by(OPERANDS, "trace{csv}");
    csv.call(1).unwrap_err();
    csv.session.report("trace").unwrap();
    let mut rows = csv::Reader::from_path(csv.directory.path().join("trace.lines.csv")).unwrap();
    assert_eq!(
        rows.headers().unwrap(),
        &["thread", "depth", "offset", "function", "instruction", "operands"][..]
    );
    let line = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.unwrap();
        let [thread, depth, offset, function, instruction, operands] = std::array::from_fn(|at| &row[at]);
        let offset = u64::from_str_radix(offset.strip_prefix("0x").unwrap(), 16).unwrap();
        let equals = if instruction.starts_with("local.get") { " =" } else { "" };
        let space = if operands.is_empty() { "" } else { " " };
        format!("{thread} {depth:>4} {offset:#08x} {function}: {instruction}{equals}{space}{operands}")
    };
    assert_eq!(rows.records().map(line).collect::<Vec<_>>(), text.lines());
}

/// Fields that contain commas or quotes are quoted.
#[test]
fn names_of_functions_are_fields_of_rows() {
    let name = "a,b \"c\"";
    let text = format!("(module (func $\"{}\" (export \"run\") (param i32)))", name.replace('"', "\\\""));
    let traced = Traced::by(&text, "trace{csv}");
    traced.call(1).unwrap();
    traced.session.report("trace").unwrap();
    let mut rows = csv::Reader::from_path(traced.directory.path().join("trace.lines.csv")).unwrap();
    let names: Vec<String> = rows.records().map(|row| row.unwrap()[3].to_owned()).collect();
    assert_eq!(names, [name]);
}

#[test]
fn lines_have_operands_and_depth() {
    let traced = Traced::by(OPERANDS, "trace");
    traced.call(1).unwrap_err();
    let expected = [
        "1 1 run: i32.const 16",
        "1 1 run: i64.const -2",
        "1 1 run: i64.store offset=8 16 -2",
        "1 1 run: i32.const 16",
        "1 1 run: i64.load offset=8 16",
        "1 1 run: drop -2",
        "1 1 run: global.get $g",
        "1 1 run: i64.const 1",
        "1 1 run: i64.add 7 1",
        "1 1 run: global.set $g 8",
        "1 1 run: f32.const 0x1.8p+0",
        "1 1 run: f32.const nan",
        "1 1 run: local.get 0 = 1",
        "1 1 run: select 1.5 NaN 1",
        "1 1 run: drop 1.5",
        "1 1 run: i32.const -5",
        "1 1 run: f64.const 0x1p-2",
        "1 1 run: i32.const 0",
        "1 1 run: call_indirect (type $t) -5 0.25 0",
        "1 2 callee: local.get 1 = 0.25",
        "1 2 callee: f64.neg 0.25",
        "1 2 callee: end -0.25",
        "1 1 run: drop -0.25",
        "1 1 run: ref.null func",
        "1 1 run: ref.is_null null",
        "1 1 run: drop 1",
        "1 1 run: local.get 0 = 1",
        "1 1 run: if 1",
        "1 1 run: br 0",
        "1 1 run: unreachable",
    ];
    let lines = traced.lines();
    assert_eq!(without_offsets(&lines), expected);
    let store = lines.iter().find(|line| line.contains("i64.store")).unwrap();
    let offset = store.split_whitespace().nth(2).unwrap().strip_prefix("0x").unwrap();
    let offset = usize::from_str_radix(offset, 16).unwrap();
    assert_eq!(traced.module.bytes()[offset], 0x37, "the opcode of i64.store");
}

#[test]
fn instructions_are_chosen_by_opcode_and_function() {
    let count = |request: &str| {
        let traced = Traced::by(super::LOOP, request);
        traced.call(10).unwrap();
        without_offsets(&traced.lines())
    };
    let products: Vec<String> = (1..=10).rev().map(|n| format!("1 2 leaf: i32.mul {n} 3")).collect();
    assert_eq!(count("trace{opcode=i32.mul}"), products);
    assert_eq!(count("trace{function=leaf}").len(), 40);
    assert_eq!(count("trace{opcode=call,opcode=br*,function=run}").len(), 20);
    assert_eq!(count("trace{limit=7}").len(), 7);
    let module = Module::new(&Engine::default(), super::LOOP).unwrap();
    let session = Session::new(&module, Output::none());
    let error = session.enable("trace{opcode=f64*}".parse().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "option `opcode`: `f64*` is not the opcode of an instruction of the functions that are traced"
    );
}

#[test]
fn depth_follows_recursion_tail_calls_and_exceptions() {
    let text = "(module (tag $e)
        (func $down (param i32) (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))
            (else (throw $e))))
        (func $tail (param i32) (if (local.get 0) (then (return_call $tail (i32.sub (local.get 0) (i32.const 1)))))
            (nop))
        (func (export \"run\") (param i32)
            (block $caught (try_table (catch $e $caught) (call $down (local.get 0))))
            (nop)
            (call $tail (local.get 0))))";
    let traced = Traced::by(text, "trace{opcode=throw,opcode=nop,opcode=*call}");
    traced.call(3).unwrap();
    let expected = [
        "1 1 run: call $down 3",
        "1 2 down: call $down 2",
        "1 3 down: call $down 1",
        "1 4 down: call $down 0",
        "1 5 down: throw $e",
        "1 1 run: nop",
        "1 1 run: call $tail 3",
        "1 2 tail: return_call $tail 2",
        "1 2 tail: return_call $tail 1",
        "1 2 tail: return_call $tail 0",
        "1 2 tail: nop",
    ];
    assert_eq!(without_offsets(&traced.lines()), expected);
}

#[test]
fn threads_write_what_they_have_when_they_end() {
    let traced = Traced::by(super::LOOP, "trace");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| traced.call(2000).unwrap())).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let all = traced.lines();
    assert_eq!(all.len(), 3 * (13 * 2000 + 2));
    for thread in ["1", "2", "3"] {
        let of_thread = all.iter().filter(|line| line.split(' ').next() == Some(thread));
        assert_eq!(of_thread.count(), 13 * 2000 + 2);
    }
    traced.session.disable("trace").unwrap();
    traced.call(1).unwrap();
    assert_eq!(traced.lines().len(), all.len(), "while it is off");
}

/// Each instruction was traced as often as it was executed.
#[test]
fn traces_of_random_programs() {
    let mut total = 0;
    for seed in 0..12 {
        let traced = Traced::by(&programs::program(seed), "trace{limit=200000}");
        traced.session.enable("hotness".parse().unwrap()).unwrap();
        let mut store = Store::new(traced.module.engine(), ());
        let instance = Instance::new(&mut store, &traced.module, &[]).unwrap();
        let _ = instance.get_typed_func::<(), i64>(&mut store, "main").unwrap().call(&mut store, ());
        let hotness = traced.session.report("hotness").unwrap();
        let lines = traced.lines();
        let executed = hotness.get("instructions").unwrap();
        if executed > 200_000 {
            assert_eq!(lines.len(), 200_000);
            continue;
        }
        assert_eq!(lines.len() as u64, executed, "{seed}");
        let mut counts = std::collections::HashMap::new();
        for line in &lines {
            *counts.entry(line.split_whitespace().nth(2).unwrap()).or_insert(0_u64) += 1;
        }
        let mut traced: Vec<u64> = counts.into_values().collect();
        let mut counted = integers(&hotness, "by_instruction", "times");
        traced.sort_unstable();
        counted.sort_unstable();
        assert_eq!(traced, counted, "{seed}");
        total += executed;
    }
    assert!(total > 10_000, "{total}");
}

#[test]
fn empty_functions_have_a_line() {
    let text = "(module (func $empty) (func (export \"run\") (param i32) (call $empty)))";
    let traced = Traced::by(text, "trace");
    traced.call(1).unwrap();
    assert_eq!(without_offsets(&traced.lines()), ["1 1 run: call $empty", "1 2 empty: end", "1 1 run: end"]);
}

/// The instruction for which there is no fuel has no line, and is not counted.
#[test]
fn lines_and_counts_where_fuel_runs_out() {
    let mut last = 0;
    for fuel in 1..150 {
        let engine = Engine::new(Config::new().consume_fuel(true)).unwrap();
        let module = Module::new(&engine, super::LOOP).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let session = Session::new(&module, Output::directory(directory.path()).unwrap());
        for monitor in ["trace", "icount"] {
            session.enable(monitor.parse().unwrap()).unwrap();
        }
        let mut store = Store::new(&engine, ());
        store.set_fuel(fuel).unwrap();
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        let _ = run.call(&mut store, 10);
        let [lines, counted] =
            ["trace", "icount"].map(|monitor| session.report(monitor).unwrap().get("instructions").unwrap());
        assert_eq!(counted, lines, "{fuel}");
        assert!(counted >= last, "{fuel}");
        last = counted;
    }
    assert_eq!(last, 132, "the program ends");
}

#[test]
fn the_probes_are_off_after_the_limit() {
    let traced = Traced::by(super::LOOP, "trace{limit=100}");
    let listing = |module: &Module| {
        let mut text = Vec::new();
        module.write_objdump(|_, _| true, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let code = || listing(&traced.module);
    let original = listing(&Module::new(&Engine::default(), super::LOOP).unwrap());
    traced.call(5).unwrap();
    assert_ne!(code(), original, "before the limit");
    traced.call(10).unwrap();
    assert_eq!(code(), original);
    let ended = || {
        let report = traced.session.report("trace").unwrap();
        assert_eq!(report.get("instructions"), Some(100));
        let is_ended = |(name, value): &(_, Cell)| *name == "ended" && matches!(value, Cell::Text(_));
        assert!(report.values().iter().any(is_ended), "{report:?}");
    };
    ended();
    traced.session.disable("trace").unwrap();
    traced.session.enable("trace{limit=100}".parse().unwrap()).unwrap();
    traced.call(10).unwrap();
    assert_eq!(code(), original, "it stays at its limit");
    ended();
}
