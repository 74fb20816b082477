//! Recording and replay: a program whose host writes, grows, sets globals and returns all kinds of
//! numbers.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, replay, replay_in_wasmi, trace_of};
use wasm_jit::wasmparser::{Parser, Payload};
use wasm_jit::{Caller, Engine, Extern, ExternType, Linker, Module, Store, Val};
use wasm_jit_replay::{Error, Event, Reader, Recorder, Value, generate, reduce};

/// `run` calls the host `n` times and returns a checksum of results and of memory.
const PROGRAM: &str = r#"(module
    (import "h" "next" (func $next (param i32 f64) (result i64)))
    (import "h" "float" (func $float (param f32) (result f32)))
    (memory (export "memory") 1)
    (global $g (export "g") (mut i64) (i64.const 0))
    (func (export "run") (param $n i32) (result i64) (local $sum i64)
        (loop $again
            (local.set $sum (i64.add
                (i64.mul (local.get $sum) (i64.const 31))
                (call $next (local.get $n) (f64.const nan:0x4000000000001))))
            (local.set $sum (i64.add (local.get $sum) (i64.load (i32.shl (local.get $n) (i32.const 3)))))
            (local.set $sum (i64.add (local.get $sum) (global.get $g)))
            (local.set $sum (i64.add (local.get $sum) (i64.extend_i32_u (memory.size))))
            (local.set $sum (i64.add (local.get $sum)
                (i64.extend_i32_u (i32.reinterpret_f32 (call $float (f32.const nan:0x200001))))))
            (i64.store offset=8000 (i32.shl (local.get $n) (i32.const 3)) (local.get $sum))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

/// Records two calls of `run`, between which the host writes; returns program, trace and results.
fn recorded(calls: i32) -> (Vec<u8>, Vec<u8>, Vec<i64>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker: Linker<u64> = Linker::new(&engine);
    linker
        .func_wrap("h", "next", |mut caller: Caller<'_, u64>, n: i32, x: f64| -> i64 {
            assert_eq!(x.to_bits(), 0x7ff4_0000_0000_0001);
            *caller.data_mut() = caller.data().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = *caller.data();
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("a memory") };
            let Some(Extern::Global(global)) = caller.get_export("g") else { panic!("a global") };
            memory.write(&mut caller, 8 * n as usize, &random.to_le_bytes()).unwrap();
            if n % 64 == 1 {
                let size = memory.grow(&mut caller, 1).unwrap() as usize;
                memory.write(&mut caller, (size << 16) + 65_535, &[7]).unwrap();
            }
            if n % 3 == 0 {
                global.set(&mut caller, Val::I64(i64::MIN + n as i64)).unwrap();
            }
            if n % 2 == 0 { i64::MIN } else { random as i64 }
        })
        .unwrap();
    linker
        .func_wrap("h", "float", |_: Caller<'_, u64>, x: f32| f32::from_bits(x.to_bits() ^ 0x8000_0002))
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 1);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let mut sums = Vec::new();
    for _ in 0..2 {
        let mut results = [Val::I64(0)];
        let run = instance.get_func(&mut store, "run").unwrap();
        run.call(&mut store, &[Val::I32(calls)], &mut results).unwrap();
        sums.push(results[0].unwrap_i64());
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        memory.write(&mut store, 40_000, &[1, 2, 3]).unwrap();
    }
    (module.bytes().to_vec(), trace.bytes(), sums)
}

#[test]
fn a_replay_equals_its_recording() {
    for calls in [1, 5, 256, 600] {
        let (program, trace, sums) = recorded(calls);
        let events = events(&trace);
        let returned: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Leave { results } => Some(results[0]),
                _ => None,
            })
            .collect();
        assert_eq!(returned, sums.iter().map(|sum| Value::I64(*sum)).collect::<Vec<_>>());
        let checked = generate(&program, &trace[..], true).unwrap();
        assert_eq!(replay(&checked), Replayed::Complete { returned: true }, "{calls} calls");
        assert_eq!(replay_in_wasmi(&checked), Replayed::Complete { returned: true }, "{calls} calls");
    }
}

/// Added functions have no names, and do not change any index.
#[test]
fn names_remain() {
    let (program, trace, _) = recorded(3);
    let engine = Engine::default();
    let names = |binary: &[u8]| -> Vec<Option<String>> {
        let module = Module::from_binary(&engine, binary).unwrap();
        module.functions().map(|function| function.name().map(str::to_owned)).collect()
    };
    let named = names(&program);
    assert_eq!(named, [Some("next".to_owned()), Some("float".to_owned()), None]);
    let bench = generate(&program, &trace[..], false).unwrap();
    let (kept, added) =
        names(&bench).split_at_checked(3).map(|(kept, added)| (kept.to_vec(), added.to_vec())).unwrap();
    assert_eq!(kept, named);
    assert!(!added.is_empty() && added.iter().all(Option::is_none), "{added:?}");
    let sections = Parser::new(0).parse_all(&bench).filter_map(|payload| match payload.unwrap() {
        Payload::CustomSection(section) => Some(section.name().to_owned()),
        _ => None,
    });
    assert_eq!(sections.collect::<Vec<_>>(), ["name"]);
}

#[test]
fn several_results_are_compared() {
    let engine = Engine::default();
    let text = "(module (func (export \"pair\") (param f64) (result i32 f64) (i32.const 5) (local.get 0)))";
    let module = Module::new(&engine, text).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &Linker::new(&engine)).unwrap();
    let pair = instance.get_typed_func::<f64, (i32, f64)>(&mut store, "pair").unwrap();
    assert_eq!(pair.call(&mut store, 0.5).unwrap(), (5, 0.5));
    let mut events = events(&trace.bytes());
    let replayed = |events: &[Event]| replay(&generate(module.bytes(), &trace_of(events)[..], true).unwrap());
    assert_eq!(replayed(&events), Replayed::Complete { returned: true });
    for results in [[Value::I32(6), Value::F64(0.5_f64.to_bits())], [Value::I32(5), Value::F64(1)]] {
        events[2] = Event::Leave { results: results.to_vec() };
        assert_eq!(replayed(&events), Replayed::Differs(2), "{results:?}");
    }
}

/// The program and the trace of a run that calls an import this number of times; the import returns
/// 0 or 1.
fn counted(calls: i32) -> (Vec<u8>, Vec<u8>) {
    let engine = Engine::default();
    let text = r#"(module (import "h" "f" (func $f (result i32)))
        (func (export "run") (param i32) (result i32) (local $sum i32)
            (loop (local.set $sum (i32.add (local.get $sum) (call $f)))
                (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
            (local.get $sum)))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<i32> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, i32>| -> i32 {
            *caller.data_mut() += 1;
            *caller.data() % 2
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, calls).unwrap(), calls / 2);
    (module.bytes().to_vec(), trace.bytes())
}

/// The tree of functions for an import has more than one level, the last node is not full, and a
/// call that was not recorded is named: the event that was recorded instead.
#[test]
fn many_calls_of_one_import() {
    let (program, trace) = counted(70_000);
    assert_eq!(replay(&generate(&program, &trace[..], true).unwrap()), Replayed::Complete { returned: true });
    let plain = generate(&program, &trace[..], false).unwrap();
    assert_eq!(replay(&plain), Replayed::Stopped(0), "without checks there is no position");
    let mut events = events(&trace);
    // The host calls once more.
    let leave = events.iter().rfind(|event| matches!(event, Event::Leave { .. })).cloned().unwrap();
    events.extend([events[1].clone(), leave]);
    let more = generate(&program, &trace_of(&events)[..], true).unwrap();
    assert_eq!(replay(&more), Replayed::Differs(events.len() as i32 - 1));
}

/// Equal calls share code, and take little space in the trace.
#[test]
fn equal_calls_are_one() {
    let (program, trace) = counted(100_000);
    assert_eq!(replay(&generate(&program, &trace[..], true).unwrap()), Replayed::Complete { returned: true });
    let plain = generate(&program, &trace[..], false).unwrap();
    assert!(plain.len() < 8192, "{} bytes", plain.len());
    // For a stream, which is flushed at each call and each return.
    assert!(trace.len() < 100_000 * 19, "{} bytes", trace.len());
}

#[test]
fn damaged_traces_are_errors() {
    let (program, trace, _) = recorded(3);
    let all = events(&trace);
    for at in 0..trace.len() {
        let mut damaged = trace.clone();
        damaged[at] ^= 4;
        // Some bits of the compressed stream have no meaning.
        let read: Result<Vec<Event>, Error> = Reader::new(&damaged[..]).collect();
        assert!(read.is_err() || all.starts_with(&read.unwrap()), "byte {at}");
        let _ = generate(&program, &damaged[..], true);
    }
    // A truncated trace is read up to its last complete frame.
    for length in 1..trace.len() {
        let read: Vec<_> = Reader::new(&trace[..length]).map_while(Result::ok).collect();
        assert!(all.starts_with(&read), "{length} bytes");
    }
    let other = wat::parse_str("(module)").unwrap();
    assert!(matches!(generate(&other, &trace[..], true), Err(Error::OtherModule)));
    let not_a_trace = Reader::new(&other[..]).next().unwrap().unwrap_err().to_string();
    assert!(not_a_trace.contains("this is not a trace"), "{not_a_trace}");
}

/// Each event can be read as soon as its call has ended.
#[test]
fn a_trace_is_whole_after_each_call_of_the_host() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "h" "f" (func $f (param i32)))
            (func (export "run") (call $f (i32.const 1)) (call $f (i32.const 2)) (call $f (i32.const 3))))"#,
    )
    .unwrap();
    let trace = Trace::default();
    let mut linker: Linker<Trace> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |caller: Caller<'_, Trace>, number: i32| {
            let returned = events(&caller.data().bytes());
            let returned = returned.iter().filter(|event| matches!(event, Event::Return { .. })).count();
            assert_eq!(returned, number as usize - 1);
            // This call among them.
            let calls = events(&caller.data().bytes());
            let calls = calls.iter().filter(|event| matches!(event, Event::Call { .. })).count();
            assert_eq!(calls, number as usize);
        })
        .unwrap();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, trace.clone());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    // A trace without its last calls is replayed as far as it goes.
    let all = events(&trace.bytes());
    let cut = trace_of(&all[..all.len() - 2]);
    let bench = generate(module.bytes(), &cut[..], true).unwrap();
    assert_eq!(replay(&bench), Replayed::Complete { returned: false });
}

/// Records a call of `run` of a program whose host function `h.f` fails at its second call.
fn recorded_failure(text: &str) -> Replayed {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<u32> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, u32>| -> Result<(), wasm_jit::Error> {
            *caller.data_mut() += 1;
            if *caller.data() == 2 { Err(wasm_jit::Error::host("the host fails")) } else { Ok(()) }
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap_err();
    replay(&generate(module.bytes(), &trace.bytes()[..], true).unwrap())
}

#[test]
fn failures_are_replayed() {
    // An error of the host, and one of the program.
    let import = "(module (import \"h\" \"f\" (func $f))";
    let text = format!("{import} (func (export \"run\") (call $f) (call $f)))");
    assert_eq!(recorded_failure(&text), Replayed::Complete { returned: false });
    let text = format!("{import} (func (export \"run\") (call $f) (unreachable)))");
    assert_eq!(recorded_failure(&text), Replayed::Complete { returned: false });
}

/// The start function calls the host, which looks at the program's state, and fails in the end.
#[test]
fn a_start_function_is_replayed() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "h" "f" (func $f (param i32) (result i32)))
            (memory (export "memory") 1)
            (func $start (export "again")
                (i32.store8 (i32.const 7) (call $f (i32.load8_u (i32.const 7))))
                (if (i32.eq (i32.load8_u (i32.const 7)) (i32.const 12)) (then unreachable)))
            (start $start))"#,
    )
    .unwrap();
    for (first, expected) in [(5, true), (12, false)] {
        let mut linker: Linker<()> = Linker::new(&engine);
        linker
            .func_wrap("h", "f", move |mut caller: Caller<'_, ()>, value: i32| -> i32 {
                let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("a memory") };
                memory.write(&mut caller, 9, &[1]).unwrap();
                if value == 0 { first } else { value + 1 }
            })
            .unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let mut store = Store::new(&engine, ());
        match recorder.instantiate(&mut store, &linker) {
            Ok(instance) => {
                instance.get_typed_func::<(), ()>(&store, "again").unwrap().call(&mut store, ()).unwrap();
            }
            Err(error) => assert!(!expected, "{error}"),
        }
        let calls =
            events(&trace.bytes()).iter().filter(|event| matches!(event, Event::Enter { .. })).count();
        assert_eq!(calls, if expected { 2 } else { 1 });
        let small = Trace::default();
        reduce(&module, Cursor::new(trace.bytes()), small.clone()).unwrap();
        for trace in [trace, small] {
            let bench = generate(module.bytes(), &trace.bytes()[..], true).unwrap();
            assert_eq!(replay(&bench), Replayed::Complete { returned: expected });
            assert_eq!(replay_in_wasmi(&bench), Replayed::Complete { returned: expected });
        }
    }
}

/// The host grows tables, and sets elements that the program calls and looks at.
#[test]
fn changes_of_tables_are_replayed() {
    let text = r#"(module (import "h" "f" (func $f (param i32)))
        (table $t (export "t") 2 10 funcref)
        (table $x (export "x") 1 externref)
        (type $number (func (result i32)))
        (func $one (export "one") (type $number) (i32.const 1))
        (func $two (export "two") (type $number) (i32.const 20))
        (elem (table $t) (i32.const 0) func $one $one)
        (func (export "run") (result i32) (local $sum i32) (local $n i32)
            (loop $again
                (call $f (local.get $n))
                (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3))
                    (i32.add (table.size $t) (table.size $x))))
                (if (i32.eqz (ref.is_null (table.get $t (local.get $n)))) (then
                    (local.set $sum (i32.add (local.get $sum)
                        (call_indirect $t (type $number) (local.get $n))))))
                (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 6))))
            (local.get $sum)))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, ()>, n: i32| {
            let get = |caller: &mut Caller<'_, ()>, name| caller.get_export(name).unwrap();
            let (Extern::Table(t), Extern::Table(x)) = (get(&mut caller, "t"), get(&mut caller, "x")) else {
                panic!("tables")
            };
            let Extern::Func(two) = get(&mut caller, "two") else { panic!("a function") };
            let two = || Val::FuncRef(Some(two));
            match n {
                0 => t.set(&mut caller, 0, Val::FuncRef(None)).unwrap(),
                1 => drop(t.grow(&mut caller, 1, Val::FuncRef(None)).unwrap()),
                2 => {
                    t.grow(&mut caller, 3, two()).unwrap();
                    x.grow(&mut caller, 2, Val::ExternRef(None)).unwrap();
                    t.grow(&mut caller, 100, two()).unwrap_err();
                }
                3 => t.fill(&mut caller, 4, Val::FuncRef(None), 2).unwrap(),
                // As they were.
                _ => t.set(&mut caller, 1, two()).unwrap(),
            }
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    // Between two calls.
    let table = instance.get_table(&store, "t").unwrap();
    let element = table.get(&mut store, 1).unwrap();
    table.set(&mut store, 5, element).unwrap();
    run.call(&mut store, ()).unwrap();
    let all = events(&trace.bytes());
    let kinds = |wanted: fn(&Event) -> bool| all.iter().filter(|event| wanted(event)).count();
    assert_eq!(kinds(|event| matches!(event, Event::GrowTable { .. })), 6, "{all:?}");
    let set = |element, index| Event::SetElement { table: 0, element, value: Value::Func(index) };
    for expected in [set(0, None), set(3, Some(2)), set(4, None), set(5, Some(2)), set(1, Some(2))] {
        assert!(all.contains(&expected), "{expected}: {all:?}");
    }
    let small = Trace::default();
    reduce(&module, Cursor::new(trace.bytes()), small.clone()).unwrap();
    let expected = Replayed::Complete { returned: true };
    for trace in [trace.bytes(), small.bytes()] {
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (expected, expected));
    }
    // An unchanged element is a difference.
    let mut changed = all.clone();
    let at = all.iter().position(|event| *event == set(3, Some(2))).unwrap();
    changed[at] = set(3, Some(1));
    let bench = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap();
    assert!(matches!(replay(&bench), Replayed::Differs(event) if event > at as i32));
    // Items that the module does not have.
    for (wrong, what) in [
        (Event::GrowTable { table: 2, elements: 1 }, "there is no such table"),
        (Event::SetElement { table: 1, element: 0, value: Value::Func(None) }, "values of other types"),
        (
            Event::SetElement { table: 0, element: 0, value: Value::Func(Some(9)) },
            "there is no such function",
        ),
        (
            Event::SetElement { table: 0, element: 1 << 32, value: Value::Func(None) },
            "an element that is not",
        ),
    ] {
        changed[at] = wrong;
        let error = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// References to objects have no recorded form: the message says what it was.
#[test]
fn other_references_are_refused() {
    let text = r#"(module
        (type $s (struct (field i32)))
        (import "h" "any" (func $any (param anyref)))
        (import "h" "extern" (func $extern (param externref)))
        (func (export "object") (call $any (struct.new $s (i32.const 5))))
        (func (export "outside") (call $extern (extern.convert_any (struct.new $s (i32.const 5))))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    for (name, expected) in [
        ("object", "a reference (anyref) to an object"),
        ("outside", "a reference (externref) to an object of the program"),
    ] {
        let mut linker: Linker<()> = Linker::new(&engine);
        for import in module.imports() {
            let ExternType::Func(ty) = import.ty() else { panic!("a function") };
            linker.func_new(import.module(), import.name(), ty.clone(), |_, _, _| Ok(())).unwrap();
        }
        let mut store = Store::new(&engine, ());
        let recorder = Recorder::new(&module, Vec::new()).unwrap();
        let instance = recorder.instantiate(&mut store, &linker).unwrap();
        let called = instance.get_typed_func::<(), ()>(&mut store, name).unwrap();
        let error = called.call(&mut store, ()).unwrap_err().to_string();
        let line = error.lines().next().unwrap_or_default();
        assert_eq!(line, format!("cannot be recorded: {expected}"));
    }
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let engine = Engine::default();
    for (text, expected) in [
        ("(module (import \"m\" \"t\" (table 1 (ref i31))))", "m.t"),
        ("(module (import \"m\" \"f\" (func)) (start 0))", "a start function that is imported"),
        ("(module (memory (export \"m\") 1 1 shared))", "a shared memory"),
    ] {
        let module = Module::new(&engine, text).unwrap();
        let error = Recorder::new(&module, Vec::new()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
