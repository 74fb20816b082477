//! Slices: replays of the calls of one function.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, replay, replay_in_wasmi, trace_of};
use wasm_jit::{Caller, Engine, Extern, Func, Instance, Linker, Module, Store, Val};
use wasm_jit_replay::{
    Ended, Error, Event, Reader, Reason, Recorder, Replay, Value, generate, reduce, slice,
};

/// A run of `run`, whose host mixes its argument into the byte at 3000, and calls `back`.
fn recorded(text: &str, argument: i32) -> (Module, Vec<u8>) {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<u32> = Linker::new(&engine);
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, u32>, value: i32| -> Result<i32, wasm_jit::Error> {
            *caller.data_mut() += 1;
            let calls = *caller.data();
            if let Some(Extern::Memory(memory)) = caller.get_export("memory") {
                memory.data_mut(&mut caller)[3000] ^= value as u8;
                if calls == 3 {
                    memory.grow(&mut caller, 1).unwrap();
                }
            }
            if let Some(Extern::Table(table)) = caller.get_export("t") {
                table.set(&mut caller, 0, Val::FuncRef(None))?;
            }
            if let Some(Extern::Func(back)) = caller.get_export("back")
                && calls.is_multiple_of(2)
            {
                let mut results = [Val::I32(0)];
                back.call(&mut caller, &[Val::I32(1)], &mut results)?;
                return Ok(results[0].unwrap_i32());
            }
            Ok(calls as i32)
        })
        .unwrap();
    linker
        .func_wrap("h", "fail", |_: Caller<'_, u32>| -> Result<(), wasm_jit::Error> {
            Err(wasm_jit::Error::host("the host fails"))
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    run(&mut store, instance, argument);
    (module, trace.bytes())
}

/// Runs it twice, as far as it goes.
fn run(store: &mut Store<u32>, instance: Instance, argument: i32) {
    let run: Func = instance.get_func(&mut *store, "run").unwrap();
    for argument in [argument, 2] {
        if run.call(&mut *store, &[Val::I32(argument)], &mut [Val::I32(0)]).is_err() {
            return;
        }
    }
}

/// The slice of a function.
fn sliced(module: &Module, trace: &[u8], function: u32) -> Result<(u64, Vec<u8>), Error> {
    let out = Trace::default();
    let calls = slice(module, function, Cursor::new(trace.to_vec()), out.clone())?;
    assert!(out.is_closed(), "all of it is written");
    Ok((calls, out.bytes()))
}

/// A slice is complete when it was made: nothing of it remains to be written when its writer is
/// dropped, at any size.
#[test]
fn large_slices_are_complete() {
    let text = r#"(module
        (import "h" "f" (func $get (param i32) (result i32)))
        (func $f (param i32) (result i32) (call $get (local.get 0)))
        (func (export "run") (param $n i32) (result i32) (local $sum i32)
            (loop $again
                (local.set $sum (i32.add (local.get $sum)
                    (call $f (i32.mul (local.get $n) (i32.const 0x9e3779b1)))))
                (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (local.get $sum)))"#;
    for calls in (50_000..=100_000).step_by(6_250) {
        let (module, trace) = recorded(text, calls);
        let (found, slice) = sliced(&module, &trace, 1).unwrap();
        assert_eq!(found, calls as u64 + 2);
        let events = Reader::new(&slice[..]).map(Result::unwrap).count();
        assert_eq!(events, 1 + 4 * (calls as usize + 2), "{calls} calls");
    }
}

/// Checks that a slice has these calls, and repeats; returns its events.
#[track_caller]
fn check(module: &Module, trace: &[u8], function: u32, calls: u64, expected: Replayed) -> Vec<Event> {
    let (found, slice) = sliced(module, trace, function).unwrap();
    assert_eq!(found, calls);
    let small = Trace::default();
    let reduced = reduce(module, Cursor::new(slice.clone()), small.clone()).unwrap();
    assert!(reduced.bytes[1] <= reduced.bytes[0], "{reduced:?}");
    for trace in [&slice, &small.bytes()] {
        let bench = generate(module.bytes(), &trace[..], true).unwrap();
        assert_eq!(replay(&bench), expected);
        assert_eq!(replay_in_wasmi(&bench), expected);
    }
    let events = events(&slice);
    let entered = events.iter().filter_map(|event| match event {
        Event::Enter { function, .. } => Some(*function),
        _ => None,
    });
    assert!(entered.clone().filter(|entered| *entered == function).count() as u64 >= calls, "{events:?}");
    assert_eq!(entered.take(1).collect::<Vec<_>>(), [function]);
    events
}

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// `sum` (4) reads memories and a global, which `run` (3), `back` (5) and the host have changed,
/// calls the host, itself and others.
const PROGRAM: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1 10)
    (memory $other 1 10)
    (global $hidden (mut i64) (i64.const 5))
    (global $constant i64 (i64.const 6))
    (global $float (mut f64) (f64.const 0.5))
    (data (i32.const 300) "abc")
    (func $grow (drop (memory.grow $other (i32.const 1))))
    (func $fill (param i32)
        (memory.fill (i32.const 1000) (local.get 0) (i32.const 600))
        (v128.store $other (i32.const 65520) (i8x16.splat (local.get 0))))
    (func $run (export "run") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (call $fill (local.get $n))
            (i32.store8 (i32.add (local.get $n) (i32.const 20)) (local.get $n))
            (global.set $hidden (i64.add (global.get $hidden) (i64.const 3)))
            (if (i32.eq (local.get $n) (i32.const 2)) (then (call $grow)))
            (local.set $sum (i32.add (local.get $sum) (call $f (local.get $n))))
            (local.set $sum (i32.add (local.get $sum)
                (call $sum (local.get $n) (f64.const nan:0x4000000000001))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum))
    (func $sum (param $n i32) (param f64) (result i32) (local $result i32)
        (local.set $result (i32.add (i32.load8_u (i32.const 3000)) (i32.load (i32.const 20))))
        (local.set $result (i32.add (local.get $result) (i32.load (i32.const 298))))
        (local.set $result (i32.add (local.get $result) (i32.load (i32.const 1598))))
        (local.set $result (i32.add (local.get $result) (i32.load $other (i32.const 65532))))
        (local.set $result (i32.add (local.get $result) (memory.size $other)))
        (local.set $result (i32.add (local.get $result) (i32.wrap_i64 (global.get $hidden))))
        (i32.store (i32.const 1200) (local.get $result))
        (global.set $float (f64.convert_i32_u (local.get $result)))
        (if (i32.gt_u (local.get $n) (i32.const 3))
            (then
                (local.set $result (i32.xor (local.get $result) (call $f (local.get $result))))
                (local.set $result (i32.xor (local.get $result)
                    (call $sum (i32.const 0) (global.get $float))))))
        (i32.store16 (i32.const 20) (local.get $result))
        (local.get $result))
    (func (export "back") (param i32) (result i32)
        (call $fill (local.get 0))
        (i32.add (call $sum (local.get 0) (f64.const 1)) (i32.load (i32.const 1200)))))"#;

#[test]
fn a_slice_replays_the_calls_of_one_function() {
    let (module, trace) = recorded(PROGRAM, 6);
    let names: Vec<_> = module.functions().map(|function| function.name().unwrap_or("-")).collect();
    assert_eq!(names, ["f", "grow", "fill", "run", "sum", "-"]);
    // Eight by `run`, and two by `back` outside of a call to `sum`.
    let found = check(&module, &trace, 4, 10, COMPLETE);
    let kinds = |wanted: fn(&Event) -> bool| found.iter().filter(|event| wanted(event)).count();
    assert!(kinds(|event| matches!(event, Event::Grow { memory: 0, .. })) == 1, "{found:?}");
    assert!(kinds(|event| matches!(event, Event::Grow { memory: 1, .. })) == 2, "{found:?}");
    assert!(kinds(|event| matches!(event, Event::SetGlobal { global: 0, .. })) > 2, "{found:?}");
    // Only the function changes it.
    assert!(kinds(|event| matches!(event, Event::SetGlobal { global: 2, .. })) == 0, "{found:?}");
    // The host is called inside of `sum` only: three times by `run` with more than 3.
    assert_eq!(kinds(|event| matches!(event, Event::Call { .. })), 3, "{found:?}");
    // Other functions: one that calls nothing, one that the host calls, and the one that is the
    // complete run.
    check(&module, &trace, 2, 13, COMPLETE);
    check(&module, &trace, 5, 5, COMPLETE);
    let all = check(&module, &trace, 3, 2, COMPLETE);
    assert_eq!(all, events(&trace));
}

/// It calls `sum` once, before `run` does.
#[test]
fn calls_of_the_start_function_are_in_a_slice() {
    let begin = "(func $begin (drop (call $sum (i32.const 1) (f64.const 2)))) (start $begin)";
    let back = "(func (export \"back\")";
    let (module, trace) = recorded(&PROGRAM.replace(back, &format!("{begin} {back}")), 6);
    check(&module, &trace, 4, 11, COMPLETE);
    check(&module, &trace, 5, 1, COMPLETE);
}

#[test]
fn a_planted_difference_in_a_slice_is_found() {
    let (module, trace) = recorded(PROGRAM, 6);
    let (_, slice) = sliced(&module, &trace, 4).unwrap();
    let all = events(&slice);
    let replayed = |events: &[Event]| replay(&generate(module.bytes(), &trace_of(events)[..], true).unwrap());
    assert_eq!(replayed(&all), COMPLETE);
    let mut planted = 0;
    for (number, event) in all.iter().enumerate() {
        let mut changed = all.clone();
        match &mut changed[number] {
            Event::Leave { results } => results[0] = Value::I32(12_345),
            Event::Write { memory: 0, address: 3000, bytes } => bytes[0] ^= 1,
            Event::SetGlobal { global: 0, value } => *value = Value::I64(1 << 30),
            _ => continue,
        }
        planted += 1;
        match (event, replayed(&changed)) {
            (Event::Leave { .. }, Replayed::Differs(at)) => assert_eq!(at, number as i32),
            (_, Replayed::Differs(at)) => assert!(at > number as i32, "{event:?}: {at}"),
            (_, other) => panic!("{event:?}: {other:?}"),
        }
        let error = reduce(&module, Cursor::new(trace_of(&changed)), Trace::default()).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
    assert!(planted > 20, "{planted}");
}

#[test]
fn a_slice_of_a_run_that_was_cut_or_failed() {
    let (module, trace) = recorded(PROGRAM, 6);
    let all = events(&trace);
    // The trace ends wherever the recorded process was killed.
    for length in (2..all.len()).step_by(7) {
        let cut = trace_of(&all[..length]);
        match sliced(&module, &cut, 4) {
            Ok((_, slice)) => {
                let bench = generate(module.bytes(), &slice[..], true).unwrap();
                assert!(matches!(replay(&bench), Replayed::Complete { .. }), "{length}");
                assert!(!events(&slice).iter().any(|event| matches!(event, Event::Fail { .. })), "{length}");
            }
            Err(error) => assert!(matches!(error, Error::NotCalled { .. }), "{length}: {error}"),
        }
    }
    // By a trap in the function, by the host, and in a function that the host calls.
    let text = |body: &str| {
        format!(
            r#"(module (import "h" "fail" (func $fail)) (import "h" "f" (func $f (param i32) (result i32)))
                (memory 1)
                (func (export "back") (param i32) (result i32) (unreachable))
                (func $in (param i32) (result i32) {body} (i32.load (i32.const 4)))
                (func (export "run") (param i32) (result i32)
                    (i32.store (i32.const 4) (i32.const 9))
                    (i32.add (call $in (i32.const 1)) (call $in (i32.const 0)))))"#
        )
    };
    let divided = Reason::Trap("wasm trap: integer divide by zero".to_owned());
    for (body, reason) in [
        ("(drop (i32.div_u (i32.const 1) (local.get 0)))", Some(divided)),
        ("(if (i32.eqz (local.get 0)) (then (call $fail)))", None),
        ("(drop (call $f (local.get 0)))", None),
    ] {
        let (module, trace) = recorded(&text(body), 0);
        let events = check(&module, &trace, 3, 2, Replayed::Complete { returned: false });
        assert_eq!(events.last(), Some(&Event::Fail { reason }), "{events:?}");
    }
}

/// Tables change inside of the calls and outside, by the program and by its host, before the first
/// call and between two of them.
#[test]
fn changes_of_tables_are_in_a_slice() {
    let text = r#"(module
        (import "h" "f" (func $f (param i32) (result i32)))
        (type $number (func (result i32)))
        (table $t (export "t") 2 20 funcref)
        (elem (table $t) (i32.const 0) func $one)
        (elem $two func $two $one)
        (func $one (export "one") (type $number) (i32.const 1))
        (func $two (export "two") (type $number) (i32.const 2))
        (func $sum (param $at i32) (result i32)
            (table.set $t (i32.const 0) (ref.func $two))
            (i32.add (table.size $t)
                (i32.add (i32.mul (ref.is_null (table.get $t (i32.const 1))) (i32.const 100))
                    (call_indirect $t (type $number) (local.get $at)))))
        (func (export "run") (param i32) (result i32) (local $x i32)
            (drop (call $f (i32.const 1)))
            (local.set $x (call $sum (i32.const 0)))
            (table.init $t $two (i32.const 0) (i32.const 1) (i32.const 1))
            (drop (table.grow $t (ref.func $two) (i32.const 1)))
            (local.set $x (i32.add (local.get $x) (call $sum (i32.const 2))))
            (table.set $t (i32.const 1) (ref.func $one))
            (i32.add (local.get $x) (call $sum (i32.const 1)))))"#;
    let (module, trace) = recorded(text, 2);
    let (calls, slice) = sliced(&module, &trace, 3).unwrap();
    assert_eq!(calls, 6);
    let all = events(&slice);
    let elements = all.iter().filter(|event| matches!(event, Event::SetElement { .. })).count();
    assert!((4..20).contains(&elements), "{all:?}");
    assert!(all.iter().any(|event| matches!(event, Event::GrowTable { table: 0, elements: 1 })), "{all:?}");
    let bench = generate(module.bytes(), &slice[..], true).unwrap();
    assert_eq!(replay(&bench), Replayed::Complete { returned: true });
    let mut replayed = Replay::new(&module, Cursor::new(slice)).unwrap();
    assert!(matches!(replayed.run(), Ok(Ended::Returned)));
}

#[test]
fn what_cannot_be_sliced_is_refused() {
    #[track_caller]
    fn check(text: &str, function: u32, expected: &str) {
        let (module, trace) = recorded(text, 3);
        let error = sliced(&module, &trace, function).map(|(calls, _)| calls).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
    let run = r#"(func (export "run") (param i32) (result i32)"#;
    let import = r#"(import "h" "f" (func $f (param i32) (result i32)))"#;
    check(
        &format!("(module {import} {run} (local.get 0)))"),
        0,
        "cannot be recorded: `f`, which has no code",
    );
    check(
        &format!("(module {run} (local.get 0)))"),
        7,
        "cannot be recorded: `function[7]`, which has no code",
    );
    let text = format!("(module {run} (local.get 0)) (func))");
    check(&text, 1, "`function[1]` is not called in this run");
    let text = format!(
        "(module {run} (call $g (local.get 0))) (func $g (param i32) (result i32) (return_call $h (local.get 0))) (func $h (param i32) (result i32) (local.get 0)))"
    );
    check(&text, 1, "cannot be recorded: `g`, which ends in tail calls");
    let text = format!(
        "(module (tag $e) {run} (block $caught (try_table (catch $e $caught) (call $g))) (block $again (try_table (catch $e $again) (call $g))) (local.get 0)) (func $g (throw $e)))"
    );
    check(&text, 1, "cannot be recorded: `g`, which is called again after it has failed");
}

#[test]
fn a_memory_with_pages_of_one_byte_grows_in_a_slice() {
    const SMALL: &str = r#"(module (memory 16 40 (pagesize 1))
        (func $size (result i32) (memory.size))
        (func (export "run") (param i32) (result i32) (drop (memory.grow (i32.const 5))) (call $size)))"#;
    let (module, trace) = recorded(SMALL, 0);
    let (calls, small) = sliced(&module, &trace, 0).unwrap();
    assert_eq!(calls, 2);
    let grown = |event: &Event| matches!(event, Event::Grow { memory: 0, pages: 5 });
    assert_eq!(events(&small).into_iter().filter(grown).count(), 2);
    assert_eq!(replay(&generate(module.bytes(), &small[..], true).unwrap()), COMPLETE);
}

/// Accesses out of bounds, of any size, do not end a replay that reduces or slices.
#[test]
fn accesses_out_of_bounds_are_short() {
    const PROGRAM: &str = r#"(module (memory i64 1)
        (func $fill (param i64) (memory.fill (i64.const 8) (i32.const 1) (local.get 0)))
        (func (export "run") (param i32) (result i32) (call $fill (i64.const -100)) (i32.const 1)))"#;
    let (module, trace) = recorded(PROGRAM, 1);
    let (calls, small) = sliced(&module, &trace, 0).unwrap();
    assert_eq!(calls, 1);
    assert_eq!(reduce(&module, Cursor::new(small), Trace::default()).unwrap().bytes, [0, 0]);
}
