//! Traces in the text format of Wasm-R3.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, replay, replay_in_wasmi, trace_of};
use wasm_jit::{Engine, Module};
use wasm_jit_replay::{Event, Value, generate, import, reduce};

/// The host writes, grows, sets the global and calls back; the imports have equal names.
const PROGRAM: &str = r#"(module
    (import "env" "f" (func $f (param i32) (result f64)))
    (import "env" "f" (func $again (param i32) (result f64)))
    (import "env" "none" (func $none))
    (memory (export "memory") 1)
    (table $t (export "t") 1 4 funcref)
    (global $hidden (mut i32) (i32.const 0))
    (global $g (export "g") (mut i64) (i64.const 0))
    (func $run (export "run") (param i32 f32) (result f64) (local $sum f64)
        (local.set $sum (f64.convert_i32_u (i32.load (i32.const 8))))
        (local.set $sum (f64.add (local.get $sum) (call $f (local.get 0))))
        (call $none)
        (local.set $sum (f64.add (local.get $sum) (f64.convert_i32_u (memory.size))))
        (local.set $sum (f64.add (local.get $sum) (f64.convert_i32_u (i32.load8_u (i32.const 70000)))))
        (local.set $sum (f64.add (local.get $sum) (f64.convert_i64_u (global.get $g))))
        (f64.add (local.get $sum) (call $again (i32.const 5))))
    (func $back (export "back") (param i64) (result i32)
        (i32.store (i32.const 8) (i32.const 0))
        (if (i32.gt_u (table.size $t) (i32.const 1))
            (then (call_indirect $t (i32.const 2))))
        (i32.load (i32.const 12)))
    (func $fails (export "fails") (unreachable))
    (func $store (export "store") (i32.store (i32.const 12) (i32.const 90))))"#;

/// As Wasm-R3 writes it: without the end of `back`, and with the effects after the transitions
/// that the program notices.
const TEXT: &str = "EC;3;run;-1,0.5\nL;0;8;1\nL;0;9;2\nIC;0\nEC;4;back;9007199254740993\nL;0;12;200\n\
    IR;0;1e+21\nIC;2\nIR;2;\nMG;0;1\nL;0;70000;7\nG;1;g;18446744073709551615;i64\nIC;1;f\nIR;1;f;-Infinity\nER\n\
    TC;4;back;0;5\nTG;0;t;2\nT;0;t;2;6;store\nER\n";

fn imported(text: &str) -> Result<(Module, Vec<u8>), wasm_jit_replay::Error> {
    let module = Module::new(&Engine::default(), PROGRAM).unwrap();
    let trace = Trace::default();
    import(&module, text.as_bytes(), trace.clone())?;
    Ok((module, trace.bytes()))
}

#[test]
fn an_imported_trace_replays() {
    let (module, trace) = imported(TEXT).unwrap();
    let write = |address, bytes: &[u8]| Event::Write { memory: 0, address, bytes: bytes.to_vec() };
    let call = |import, argument| Event::Call { import, arguments: vec![Value::I32(argument)] };
    let float = |value: f64| vec![Value::F64(value.to_bits())];
    let expected = [
        write(8, &[1, 2]),
        Event::Enter { function: 3, arguments: vec![Value::I32(-1), Value::F32(0.5_f32.to_bits())] },
        call(0, -1),
        write(12, &[200]),
        Event::Enter { function: 4, arguments: vec![Value::I64(9_007_199_254_740_993)] },
        Event::Leave { results: vec![Value::I32(200)] },
        Event::Return { results: float(1e21) },
        Event::Call { import: 2, arguments: Vec::new() },
        Event::Grow { memory: 0, pages: 1 },
        write(70_000, &[7]),
        Event::SetGlobal { global: 1, value: Value::I64(-1) },
        Event::Return { results: Vec::new() },
        // By either import of this name.
        call(1, 5),
        Event::Return { results: float(f64::NEG_INFINITY) },
        Event::Leave { results: float(f64::NEG_INFINITY) },
        Event::GrowTable { table: 0, elements: 2 },
        Event::SetElement { table: 0, element: 2, value: Value::Func(Some(6)) },
        Event::Enter { function: 4, arguments: vec![Value::I64(5)] },
        Event::Leave { results: vec![Value::I32(90)] },
    ];
    assert_eq!(events(&trace)[1..], expected);
    let small = Trace::default();
    reduce(&module, Cursor::new(trace.clone()), small.clone()).unwrap();
    for trace in [trace, small.bytes()] {
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        assert_eq!(replay(&bench), Replayed::Complete { returned: true });
        assert_eq!(replay_in_wasmi(&bench), Replayed::Complete { returned: true });
    }
    let mut changed = events(&small.bytes());
    let last = changed.len() - 1;
    changed[last] = Event::Leave { results: vec![Value::I32(201)] };
    let bench = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap();
    assert_eq!(replay(&bench), Replayed::Differs(last as i32));
}

/// If it is cut after any line, the text is a run whose host fails there.
#[test]
fn a_text_that_ends_early_is_a_failure_of_the_host() {
    let lines: Vec<&str> = TEXT.lines().collect();
    for length in 0..lines.len() {
        let (module, trace) = imported(&lines[..length].join("\n")).unwrap();
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        let Replayed::Complete { returned } = replay(&bench) else { panic!("{length} lines") };
        assert_eq!(returned, [0, 14, 15, 16, 18].contains(&length), "{length} lines");
    }
}

#[test]
fn a_text_that_does_not_fit_the_program_names_the_line() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = imported(text).map(drop).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
    check("EC;9;run;", "line 1: function 9, which has no code");
    check("EC;0;f;1", "line 1: function 0, which has no code");
    check("EC;3;run;1", "line 1: 1 values instead of 2");
    check("EC;3;run;", "line 1: 1 values instead of 2");
    check("EC;3;run;1,x", "line 1: `x` is no f32");
    check("EC;3;run;4294967296,1", "line 1: `4294967296` is no i32");
    check("EC;3;run;0.5,1", "line 1: `0.5` is no i32");
    check("EC;4;back;1e+21", "line 1: `1e+21` is no i64");
    check("EC;4;back;NaN", "line 1: `NaN` is no i64");
    check("EC;3;run;1,1\nIC;2\nIR;2;", "line 2: the program calls import 0 before");
    check("EC;3;run;1,1\nER", "line 2: the program calls import 0 before");
    check("EC;3;run;1,1\nIC;0\nIR;1;2", "line 3: import 1 does not run here");
    check("EC;3;run;1,1\nIC;0\nER", "line 3: no function runs here that could return");
    check("EC;3;run;1,1\nIC;0\nIR;0;", "line 3: `` is no f64");
    check("EC;4;back;1\nIC;0\nIR;0;1", "line 2: the program does not call import 0 here");
    check("EC;4;back;1\nER\nER", "line 3: no function runs here that could return");
    check("EC;4;back;1\nMG;1;1", "line 2: there is no such memory");
    check("EC;4;back;1\nL;0;65536;1", "line 2: 1 at 65536 is out of the bounds of a memory of size 65536");
    check("EC;4;back;1\nMG;0;65536", "line 2: a memory of size 1 cannot grow by 65536");
    check("EC;4;back;1\nG;0;hidden;1;i32", "line 2: there is no such global that the host can change");
    check(
        "EC;5;fails;\nER\nEC;4;back;1",
        "line 2: the program fails before: wasm trap: wasm `unreachable` instruction executed",
    );
    // A failure at the end is a failure of the run.
    let (module, trace) = imported("EC;5;fails;").unwrap();
    let bench = generate(module.bytes(), &trace[..], true).unwrap();
    assert_eq!(replay(&bench), Replayed::Complete { returned: false });
    check("EC;4;back;1\nTG;0;t;9", "line 2: a table of size 1 cannot grow by 9");
    check("EC;4;back;1\nT;0;t;1;4;back", "line 2: 1 at 1 is out of the bounds of a table of size 1");
    check("EC;4;back;1\nT;0;t;0;9;f", "line 2: there is no function 9");
    check("EC;4;back;1\nT;1;t;0;4;back", "line 2: there is no such table");
    check("EC;4;back;1\nIG;0;env;g;i32;1;5", "line 2: an import in the middle of the run");
    check("IG;0;env;g;i32;1;5", "line 1: the program does not import a global 0");
    check("IM;0;env;m;1;", "line 1: the program does not import a memory 0");
    check("IT;0;env;t;1;;anyfunc", "line 1: the program does not import a table 0");
    check("MG;0;1", "line 1: the program does not run here");
}

/// Everything that a program can import, and a start function. Segments depend on an imported
/// global.
const IMPORTING: &str = r#"(module
    (import "env" "f" (func $f (param i32) (result i32)))
    (import "env" "memory" (memory $m 1))
    (import "env" "base" (global $base i32))
    (import "env" "count" (global $count (mut i64)))
    (import "env" "nothing" (global $nothing externref))
    (import "env" "table" (table $t 2 4 funcref))
    (import "env" "tag" (tag $tag (param i32)))
    (import "env" "g" (func $g (param i32) (result i32)))
    (data (global.get $base) "data")
    (elem (table $t) (i32.const 1) func $run)
    (func $start (export "begin")
        (global.set $count (i64.add (global.get $count) (i64.const 1)))
        (i32.store (i32.const 100) (call $f (i32.const 1))))
    (func $run (export "run") (param i32) (result i32) (local $sum i32)
        (local.set $sum (i32.load (global.get $base)))
        (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 100))))
        (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 200))))
        (local.set $sum (i32.add (local.get $sum) (i32.wrap_i64 (global.get $count))))
        (local.set $sum (i32.add (local.get $sum) (ref.is_null (global.get $nothing))))
        (local.set $sum (i32.add (local.get $sum)
            (block $caught (result i32)
                (try_table (catch $tag $caught) (throw $tag (local.get $sum)))
                (unreachable))))
        (local.set $sum (i32.add (local.get $sum) (call $f (i32.const 2))))
        (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 65536))))
        (local.set $sum (i32.add (local.get $sum)
            (call_indirect $t (param i32) (result i32) (local.get $sum) (i32.const 2))))
        (i32.add (local.get $sum) (i32.add (memory.size) (table.size $t))))
    (start $start))"#;

#[track_caller]
fn import_of(program: &str, text: &str) -> Result<(Module, Vec<u8>), wasm_jit_replay::Error> {
    let (module, trace) = (Module::new(&Engine::default(), program).unwrap(), Trace::default());
    import(&module, text.as_bytes(), trace.clone())?;
    Ok((module, trace.bytes()))
}

#[track_caller]
fn replays(module: &Module, trace: Vec<u8>) {
    let small = Trace::default();
    reduce(module, Cursor::new(trace.clone()), small.clone()).unwrap();
    for trace in [trace, small.bytes()] {
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        assert_eq!(replay(&bench), Replayed::Complete { returned: true });
    }
}

#[test]
fn imports_and_the_start_function_are_recovered() {
    // `count` is 5 after the start function.
    let text = "EC;2;begin;\nIC;0;f\nIR;0;f;7\nER\nIG;0;env;base;i32;0;16\nIG;1;env;count;i64;1;5\n\
        IG;2;env;nothing;externref;0;null\nEC;3;run;3\nL;0;memory;200;1\nG;1;count;8;i64\nIC;0;f\n\
        IR;0;f;-1\nMG;0;memory;1\nTG;0;table;1\nL;0;memory;65536;4\nT;0;table;2;1;g\nIC;1;g\n\
        IR;1;g;9\nER";
    let (module, trace) = import_of(IMPORTING, text).unwrap();
    let write = |address, bytes: &[u8]| Event::Write { memory: 0, address, bytes: bytes.to_vec() };
    let value = |value| vec![Value::I32(value)];
    let call = |import, argument| Event::Call { import, arguments: value(argument) };
    let set = |value| Event::SetGlobal { global: 1, value: Value::I64(value) };
    let data = i32::from_le_bytes(*b"data");
    // As far as the exception.
    let first = data + 7 + 1 + 8 + 1;
    let second = 2 * first - 1 + 4;
    let expected = [
        Event::ImportMemory { memory: 0, pages: 1, maximum: None },
        Event::ImportGlobal { global: 0, value: Value::I32(16) },
        Event::ImportGlobal { global: 1, value: Value::I64(5) },
        Event::ImportGlobal { global: 2, value: Value::Extern(None) },
        Event::ImportTable { table: 0, elements: 2, maximum: Some(4) },
        write(16, b"data"),
        Event::SetElement { table: 0, element: 1, value: Value::Func(Some(3)) },
        Event::Enter { function: 2, arguments: Vec::new() },
        call(0, 1),
        Event::Return { results: value(7) },
        Event::Leave { results: Vec::new() },
        write(200, &[1]),
        set(8),
        Event::Enter { function: 3, arguments: value(3) },
        call(0, 2),
        Event::Grow { memory: 0, pages: 1 },
        write(65_536, &[4]),
        Event::GrowTable { table: 0, elements: 1 },
        Event::SetElement { table: 0, element: 2, value: Value::Func(Some(1)) },
        Event::Return { results: value(-1) },
        call(1, second),
        Event::Return { results: value(9) },
        Event::Leave { results: value(second + 9 + 2 + 3) },
    ];
    assert_eq!(events(&trace)[1..], expected);
    replays(&module, trace);
    // The same values in the version that knows the globals before the first call.
    let lines: Vec<&str> = text.lines().collect();
    let before = [&lines[4..7], &lines[..4], &lines[7..]].concat().join("\n");
    let (module, trace) = import_of(IMPORTING, &before).unwrap();
    assert_eq!(events(&trace)[1..], expected);
    replays(&module, trace);
}

/// Until it is set, the value that a mutable global has after the start function is that of the
/// text.
#[test]
fn a_global_that_the_start_function_changes_is_set_afterwards() {
    let program = r#"(module
        (import "env" "count" (global $count (mut i64)))
        (func $start (global.set $count (i64.add (global.get $count) (i64.const 1))))
        (func (export "count") (result i64) (global.get $count))
        (start $start))"#;
    let run = "EC;1;count;\nER";
    let leave = |value| Event::Leave { results: vec![Value::I64(value)] };
    for (text, expected) in [
        (format!("EC;0;;\nER\nIG;0;env;count;i64;1;5\n{run}"), 5),
        (format!("EC;0;;\nIG;0;env;count;i64;1;5\n{run}"), 5),
        (format!("IG;0;env;count;i64;1;5\nEC;0;;\nER\n{run}"), 6),
        // The recorder did not see the call.
        (format!("IG;0;env;count;i64;1;5\n{run}"), 6),
        (run.to_owned(), 1),
    ] {
        let (module, trace) = import_of(program, &text).unwrap();
        assert_eq!(events(&trace).last(), Some(&leave(expected)), "{text}");
        replays(&module, trace);
    }
}

/// What is read in imported memories is there before the first call, even that of the start
/// function. One version has the sizes.
#[test]
fn sizes_and_contents_of_imports() {
    let program = r#"(module
        (import "env" "f" (func $f (param i32)))
        (import "env" "memory" (memory $m 1 8))
        (import "env" "table" (table $t 1 funcref))
        (func $start (export "start") (call $f (i32.load (i32.const 196608))))
        (func (export "run") (param i32) (result i32)
            (call_indirect $t (param i32) (local.get 0) (i32.const 5))
            (i32.add (memory.size) (table.size $t)))
        (start $start))"#;
    let calls = "EC;start;\nL;0;memory;196608;9\nIC;0;f\nIR;0;f;\nEC;run;4\nT;0;table;5;0;f\nIC;0;f\nIR;0;f;";
    let text = format!("IM;0;env;memory;4;6\nIT;0;env;table;6;;anyfunc\nIF;0;env;f\n{calls}");
    let (module, trace) = import_of(program, &text).unwrap();
    let call = |argument| Event::Call { import: 0, arguments: vec![Value::I32(argument)] };
    let expected = [
        Event::ImportMemory { memory: 0, pages: 4, maximum: Some(6) },
        Event::ImportTable { table: 0, elements: 6, maximum: None },
        Event::Write { memory: 0, address: 196_608, bytes: vec![9] },
        Event::Enter { function: 1, arguments: Vec::new() },
        call(9),
        Event::Return { results: Vec::new() },
        Event::Leave { results: Vec::new() },
        Event::SetElement { table: 0, element: 5, value: Value::Func(Some(0)) },
        Event::Enter { function: 2, arguments: vec![Value::I32(4)] },
        call(4),
        Event::Return { results: Vec::new() },
        Event::Leave { results: vec![Value::I32(10)] },
    ];
    assert_eq!(events(&trace)[1..], expected);
    replays(&module, trace);
    // In a text without the call, its changes come before the first line of the host.
    let (module, trace) = import_of(program, &text.replace("EC;start;\n", "")).unwrap();
    assert_eq!(events(&trace)[1..], expected);
    replays(&module, trace);

    let fails = |text: &str| import_of(program, text).map(drop).unwrap_err().to_string();
    let outside = "1 at 196608 is out of the bounds of a memory of size 65536; if it was larger than the \
        program declares, add an IM line with its size";
    assert_eq!(fails(calls), format!("line 2: {outside}"));
    let outside = "1 at 5 is out of the bounds of a table of size 1; if it was larger than the program \
        declares, add an IT line with its size";
    assert_eq!(fails(&format!("IM;0;env;memory;4;\n{calls}")), format!("line 7: {outside}"));
    let other = "incompatible import type for `env` `memory`: expected memory of 1 to 8 pages, found memory of \
        9 to 9 pages";
    assert_eq!(fails("IM;0;env;memory;9;9"), other);
    // Sizes that nothing has.
    assert_eq!(fails("\nIM;0;env;memory;65537;"), "line 2: the type of the memory is invalid");
    assert_eq!(fails("\nIM;0;env;memory;5;2"), "line 2: the type of the memory is invalid");
    assert_eq!(fails("\nIT;0;env;table;5;2;anyfunc"), "line 2: the type of the table is invalid");
}

/// A name stands for the function that is exported by it, however many there are.
#[test]
fn functions_are_called_by_any_of_their_names() {
    let number = 5000;
    let function = |index| format!("(func (export \"{index}\") (export \"also {index}\"))");
    let functions: String = (0..number).map(function).collect();
    let program = format!("(module (memory (export \"memory\") 1) {functions})");
    let text: String =
        (0..number).rev().map(|index| format!("EC;{index};\nER\nEC;also {index};\nER\n")).collect();
    let (_, trace) = import_of(&program, &text).unwrap();
    let entered: Vec<u32> = events(&trace)
        .iter()
        .filter_map(|event| match event {
            Event::Enter { function, .. } => Some(*function),
            _ => None,
        })
        .collect();
    let expected: Vec<u32> = (0..number).rev().flat_map(|index| [index, index]).collect();
    assert_eq!(entered, expected);
    let error = import_of(&program, "EC;memory;").map(drop).unwrap_err().to_string();
    assert_eq!(error, "line 1: a name that no exported function has");
}

#[test]
fn imports_that_cannot_be_recovered_are_errors() {
    #[track_caller]
    fn check(program: &str, text: &str, expected: &str) {
        let error = import_of(program, text).map(drop).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
    let global = "(module (type $f (func)) (import \"env\" \"g\" (global (ref $f))))";
    let without =
        "its traces cannot be imported: it imports env.g, a global whose value is not in the text (IG)";
    check(global, "", without);
    let null = "line 1: `null` is no (ref ";
    let error = import_of(global, "IG;0;env;g;funcref;0;null").map(drop).unwrap_err().to_string();
    assert!(error.starts_with(null), "{error}");
    let function = "(module (import \"env\" \"g\" (global funcref)))";
    let text = "IG;0;env;g;funcref;0;function 3() { [native code] }";
    check(function, text, "line 1: `function 3() { [native code] }` is no funcref");
    let start = "(module (import \"env\" \"f\" (func $f)) (start $f))";
    check(start, "", "cannot be recorded: a start function that is imported");
    let shared = "(module (import \"env\" \"m\" (memory 1 1 shared)))";
    check(shared, "", "cannot be recorded: the import env.m, a shared memory");
}

/// Whatever bytes a file has, the result is a trace or an error.
#[test]
fn damaged_texts_are_errors() {
    let mut failed = 0;
    for at in 0..TEXT.len() {
        for byte in [b';', b'\n', b'9', b'-', 0xff] {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = byte;
            let module = Module::new(&Engine::default(), PROGRAM).unwrap();
            failed += u32::from(import(&module, &text[..], Vec::new()).is_err());
        }
    }
    assert!(failed > 400, "{failed}");
}
