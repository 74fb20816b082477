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
    check("EC;4;back;1\nT;0;t;0;0;f", "line 2: function 0, which has no code");
    check("EC;4;back;1\nT;1;t;0;4;back", "line 2: there is no such table");
    let start = Module::new(&Engine::default(), "(module (func $f) (start $f))").unwrap();
    let error = import(&start, &b"EC;0;run;"[..], Vec::new()).unwrap_err().to_string();
    assert_eq!(error, "its traces cannot be imported: it has a start function");
    for (import_of, kind) in [("memory 1", "memory"), ("table 1 funcref", "table"), ("global i32", "global")]
    {
        let text = format!("(module (import \"env\" \"x\" ({import_of})))");
        let module = Module::new(&Engine::default(), &text).unwrap();
        let error = import(&module, &b"IG;0;env;x;i32;0;5"[..], Vec::new()).unwrap_err().to_string();
        assert_eq!(error, format!("its traces cannot be imported: it imports env.x, a {kind}"));
    }
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
