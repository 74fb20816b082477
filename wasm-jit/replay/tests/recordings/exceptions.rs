//! Exceptions that cross the boundary between a program and its host, in either direction.

use std::io::Cursor;
use std::num::NonZeroU64;

use crate::support::{Replayed, Trace, events, reduced, replay, replay_separately, trace_of};
use wasm_jit::wasmparser::{Operator, Parser, Payload};
use wasm_jit::{
    AsContextMut, Caller, Engine, Error as EngineError, ExnRef, Extern, Func, FuncType, HeapType, Instance,
    Linker, Module, RefType, Store, Tag, TagType, Val, ValType,
};
use wasm_jit_replay::{
    CallRecorder, Calls, Ended, Error, Event, Exception, Recorder, Replay, Value, generate, reduce, separate,
    slice,
};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// The tags are `e` (0), which is imported, `own` (1), and `hidden` (2). `f` does what its argument
/// says: see [`Host`].
const PROGRAM: &str = r#"(module
    (import "h" "e" (tag $e (param i32 i64 f32 f64 v128 funcref externref)))
    (import "h" "f" (func $f (param i32) (result i32)))
    (tag $own (export "own") (param i64))
    (tag $hidden (param i32))
    (memory (export "memory") 1)
    (func $one (export "one") (result i32) (i32.const 1))
    (elem declare func $one)
    ;; What f returns, or what it throws.
    (func $catch (export "catch") (param $n i32) (result i32)
        (local $f funcref) (local $v v128) (local $x f64) (local $y f32) (local $z i64)
        (block $any
            (block $own (result i64)
                (block $e (result i32 i64 f32 f64 v128 funcref externref)
                    (return (try_table (result i32) (catch $e $e) (catch $own $own) (catch_all $any)
                        (call $f (local.get $n)))))
                (drop)
                (local.set $f)
                (local.set $v)
                (local.set $x)
                (local.set $y)
                (local.set $z)
                (i32.add (i32.wrap_i64 (local.get $z)))
                (i32.add (i32.reinterpret_f32 (local.get $y)))
                (i32.add (i32.wrap_i64 (i64.reinterpret_f64 (local.get $x))))
                (i32.add (i32x4.extract_lane 3 (local.get $v)))
                (return (i32.add (ref.is_null (local.get $f)))))
            (return (i32.add (i32.wrap_i64) (i32.load (i32.const 8)))))
        (i32.const -1))
    ;; Catches an exception of any tag, and throws it again.
    (func $pass (export "pass") (param i32) (result i32)
        (block $any (result exnref)
            (return (try_table (result i32) (catch_all_ref $any) (call $f (local.get 0)))))
        (throw_ref))
    (func $raise (export "raise") (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (throw $own (i64.const 77))))
        (if (i32.eq (local.get 0) (i32.const 1)) (then (throw $hidden (i32.const 78))))
        (if (i32.eq (local.get 0) (i32.const 2))
            (then (throw $e (i32.const 1) (i64.const 2) (f32.const nan:0x200001) (f64.const 4)
                (v128.const i32x4 5 6 7 8) (ref.func $one) (ref.null extern))))
        (if (i32.eq (local.get 0) (i32.const 3)) (then unreachable))
        (local.get 0)))"#;

/// What `f` does, depending on its argument.
mod act {
    /// Throws `e`, with all kinds of values.
    pub(crate) const E: i32 = 10;
    /// Throws `own`, which the module exports, after a write.
    pub(crate) const OWN: i32 = 11;
    /// Throws an exception of a tag that the module does not have; then one of another such tag.
    pub(crate) const OTHER: i32 = 12;
    pub(crate) const ANOTHER: i32 = 13;
    /// Calls `raise` with the rest, and rethrows what it throws.
    pub(crate) const AGAIN: i32 = 20;
    /// The same, and returns 5 instead.
    pub(crate) const CATCH: i32 = 30;
}

/// The tags of the host.
#[derive(Clone, Copy)]
struct Tags {
    e: Tag,
    other: Tag,
    another: Tag,
}

fn f(caller: &mut Caller<'_, Option<Tags>>, what: i32) -> Result<i32, EngineError> {
    let tags = caller.data().expect("set before");
    let throw =
        |caller: &mut Caller<'_, Option<Tags>>, tag: &Tag, fields: &[Val]| -> Result<i32, EngineError> {
            Err(EngineError::from(ExnRef::new(caller.as_context_mut(), tag, fields)?))
        };
    match what {
        act::E => {
            let fields = [
                Val::I32(-3),
                Val::I64(i64::MIN),
                Val::F32(0x7fa0_0001),
                Val::F64(0x7ff4_0000_0000_0001),
                Val::V128(1 << 127 | 9),
                Val::FuncRef(caller.get_export("one").and_then(Extern::into_func)),
                Val::ExternRef(None),
            ];
            throw(caller, &tags.e, &fields)
        }
        act::OWN => {
            let memory = caller.get_export("memory").and_then(Extern::into_memory).unwrap();
            memory.write(&mut *caller, 8, &[7, 1])?;
            let own = caller.get_export("own").and_then(Extern::into_tag).unwrap();
            throw(caller, &own, &[Val::I64(1 << 40 | 6)])
        }
        act::OTHER => throw(caller, &tags.other, &[Val::F64(1), Val::FuncRef(None)]),
        act::ANOTHER => throw(caller, &tags.another, &[]),
        act::AGAIN.. => {
            let raise = caller.get_export("raise").and_then(Extern::into_func).unwrap();
            let mut results = [Val::I32(0)];
            match raise.call(&mut *caller, &[Val::I32(what % 10)], &mut results) {
                Err(EngineError::Exception { .. }) if what >= act::CATCH => Ok(5),
                Err(error) => Err(error),
                Ok(()) => Ok(results[0].unwrap_i32()),
            }
        }
        what => Ok(what + 100),
    }
}

/// An instance of [`PROGRAM`], made by a linker or a recorder.
fn instance(
    make: impl FnOnce(&mut Store<Option<Tags>>, &Linker<Option<Tags>>, &Module) -> Instance,
) -> (Module, Store<Option<Tags>>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, None);
    let tag = |store: &mut Store<_>, types: &[ValType]| {
        Tag::new(store, &TagType::new(FuncType::new(types.iter().copied(), []))).unwrap()
    };
    let numbers = [ValType::I32, ValType::I64, ValType::F32, ValType::F64, ValType::V128];
    let e = tag(&mut store, &[&numbers[..], &[ValType::FUNCREF, ValType::EXTERNREF]].concat());
    let other = tag(&mut store, &[ValType::F64, ValType::FUNCREF]);
    let another = tag(&mut store, &[]);
    *store.data_mut() = Some(Tags { e, other, another });
    let mut linker: Linker<Option<Tags>> = Linker::new(&engine);
    linker.define(&store, "h", "e", e).unwrap();
    linker
        .func_wrap("h", "f", |mut caller: Caller<'_, Option<Tags>>, what: i32| f(&mut caller, what))
        .unwrap();
    let instance = make(&mut store, &linker, &module);
    (module, store, instance)
}

/// Calls an export, and returns the number that it returns.
fn call(
    store: &mut Store<Option<Tags>>,
    instance: Instance,
    name: &str,
    argument: i32,
) -> Result<i32, EngineError> {
    instance.get_typed_func::<i32, i32>(&*store, name).unwrap().call(store, argument)
}

/// A recording of these calls.
fn recorded(calls: &[(&str, i32)]) -> (Module, Vec<u8>) {
    let trace = Trace::default();
    let (module, mut store, instance) = instance(|store, linker, module| {
        Recorder::new(module, trace.clone()).unwrap().instantiate(store, linker).unwrap()
    });
    for (name, argument) in calls {
        // Errors of the recorder are not exceptions.
        match call(&mut store, instance, name, *argument) {
            Ok(_) | Err(EngineError::Exception { .. } | EngineError::Trap { .. }) => {}
            Err(error) => panic!("{name} {argument}: {error}"),
        }
    }
    (module, trace.bytes())
}

/// All ways in which exceptions pass the boundary.
const CALLS: [(&str, i32); 17] = [
    ("catch", 1),
    ("catch", act::E),
    ("catch", act::OWN),
    ("catch", act::OTHER),
    ("pass", act::E),
    ("pass", act::OWN),
    ("pass", act::OTHER),
    ("pass", act::ANOTHER),
    ("pass", act::OTHER),
    ("raise", 0),
    ("raise", 1),
    ("raise", 2),
    ("catch", act::AGAIN),
    ("pass", act::AGAIN + 1),
    ("catch", act::AGAIN + 2),
    ("catch", act::CATCH + 1),
    ("catch", act::CATCH + 7),
];

/// Checks that a trace and its reduction repeat, with and without checks, and end as expected.
#[track_caller]
fn check(module: &Module, trace: &[u8], expected: Replayed) {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        assert_eq!(replay(&generate(module.bytes(), trace, true).unwrap()), expected);
        assert_eq!(replay_separately(&separate(module.bytes(), trace, true).unwrap()), expected);
        let plain = replay(&generate(module.bytes(), trace, false).unwrap());
        assert!(!matches!(plain, Replayed::Differs(_)), "{plain:?}");
    }
}

fn throws(events: &[Event]) -> Vec<String> {
    let thrown = events.iter().filter(|event| matches!(event, Event::Throw(_)));
    thrown.map(Event::to_string).collect()
}

#[test]
fn exceptions_are_recorded_and_replayed() {
    let (module, trace) = recorded(&CALLS);
    let found = events(&trace);
    let e = "throw tag=0 i32:-3 i64:-9223372036854775808 f32:nan:0x7fa00001 f64:nan:0x7ff4000000000001 \
        v128:0x80000000000000000000000000000009 func:1 extern:null";
    let own = "throw tag=1 i64:1099511627782";
    let other = "throw tag=3 f64:5e-324 func:null";
    let raised = "throw tag=0 i32:1 i64:2 f32:nan:0x7fa00001 f64:4.0 \
        v128:0x00000008000000070000000600000005 func:1 extern:null";
    let expected = [
        // By the host, and caught.
        &[e, own, other][..],
        // By the host, and passed on to it.
        &[e, e, own, own, other, other, "throw tag=4", "throw tag=4", other, other],
        // By the program.
        &["throw tag=1 i64:77", "throw tag=2 i32:78", raised],
        // By the program, and by the host that has called it.
        &["throw tag=1 i64:77"; 2],
        &["throw tag=2 i32:78"; 3],
        &[raised; 2],
        // And not passed on.
        &["throw tag=2 i32:78"],
    ];
    assert_eq!(throws(&found), expected.concat());
    let json = serde_json(&found[found.iter().position(|event| matches!(event, Event::Throw(_))).unwrap()]);
    assert!(json.starts_with(r#"{"event":"throw","tag":0,"values":[{"i32":-3},"#), "{json}");
    check(&module, &trace, COMPLETE);
    let mut replayed = Replay::new(&module, Cursor::new(trace)).unwrap();
    assert!(matches!(replayed.run(), Ok(Ended::Returned)));
}

fn serde_json(event: &Event) -> String {
    serde_json::to_string(event).unwrap()
}

/// A run that ends with an exception ends in the same way again; one that continues has returned.
#[test]
fn an_exception_at_the_end_is_the_end_of_a_replay() {
    for (calls, is_end) in [(&[("raise", 0)][..], true), (&[("raise", 0), ("raise", 9)], false)] {
        let (module, trace) = recorded(calls);
        let mut replayed = Replay::new(&module, Cursor::new(trace)).unwrap();
        match replayed.run().unwrap() {
            Ended::Failed(EngineError::Exception { .. }) => assert!(is_end),
            Ended::Returned => assert!(!is_end),
            other => panic!("{other:?}"),
        }
    }
}

/// A bit of each value of each exception, and each tag, one after the other.
#[test]
fn a_changed_exception_is_found_and_named() {
    let (module, trace) = recorded(&CALLS);
    let all = events(&trace);
    let (mut depth, mut planted) = (Vec::new(), [0, 0]);
    for (number, event) in all.iter().enumerate() {
        let is_programs = match event {
            Event::Enter { .. } | Event::Call { .. } => {
                depth.push(matches!(event, Event::Enter { .. }));
                continue;
            }
            Event::Leave { .. } | Event::Return { .. } | Event::Fail { .. } | Event::Throw(_) => {
                depth.pop().unwrap()
            }
            _ => continue,
        };
        let Event::Throw(exception) = event else { continue };
        let mut changes = Vec::new();
        for at in 0..exception.values.len() {
            let mut changed = exception.clone();
            match &mut changed.values[at] {
                Value::I32(value) => *value ^= 1,
                Value::I64(value) => *value ^= 1,
                Value::F32(bits) => *bits ^= 1,
                Value::F64(bits) => *bits ^= 1,
                Value::V128(bits) => *bits ^= 1 << 96,
                // With another type, or not compared with others of its type.
                Value::Func(_) | Value::Extern(_) | Value::Any(_) | Value::Exn => continue,
            }
            changes.push(changed);
        }
        if is_programs && exception.tag == 2 {
            changes.push(Exception { tag: 9, ..exception.clone() });
        }
        for changed in changes {
            // The values that the program does not look into.
            let is_seen = is_programs || exception.tag < 3;
            let mut events = all.clone();
            events[number] = Event::Throw(changed);
            let trace = trace_of(&events);
            let found = replay(&generate(module.bytes(), &trace[..], true).unwrap());
            let again = Replay::new(&module, Cursor::new(trace)).unwrap().run();
            if !is_programs && !is_seen && found == COMPLETE {
                assert!(matches!(again, Ok(Ended::Returned)), "{event}: {again:?}");
                continue;
            }
            planted[usize::from(is_programs)] += 1;
            let at = number as u64;
            match (found, again) {
                (Replayed::Differs(named), Err(Error::Mismatch { number, what, .. })) => {
                    assert_eq!(named as u64, number, "{event}");
                    if is_programs {
                        assert_eq!(number, at, "{event}");
                        assert!(what.starts_with("the program throws an exception"), "{what}");
                    } else {
                        assert!(number > at, "{event}: {number}");
                    }
                }
                other => panic!("{number} {event}: {other:?}"),
            }
        }
    }
    assert!(planted[0] >= 20 && planted[1] >= 20, "{planted:?}");
}

/// Calls that are changed to end in another way.
#[test]
fn another_end_of_a_call_is_named() {
    let (module, trace) = recorded(&[("raise", 0), ("raise", 9), ("raise", 3)]);
    let all = events(&trace);
    let (threw, returned, failed) = (2, 4, 6);
    assert!(matches!(all[threw], Event::Throw(_)) && matches!(all[returned], Event::Leave { .. }));
    assert!(matches!(all[failed], Event::Fail { reason: Some(_) }), "{}", all[failed]);
    check(&module, &trace, Replayed::Complete { returned: false });
    let exception = Exception { tag: 1, values: vec![Value::I64(77)] };
    for (number, other) in [
        (threw, Event::Leave { results: vec![Value::I32(0)] }),
        (returned, Event::Throw(exception.clone())),
        (failed, Event::Throw(exception)),
    ] {
        let mut events = all.clone();
        events[number] = other;
        let trace = trace_of(&events);
        let again = Replay::new(&module, Cursor::new(trace.clone())).unwrap().run();
        let Err(Error::Mismatch { number: at, .. } | Error::Failed { number: at, .. }) = again else {
            panic!("{again:?}");
        };
        assert_eq!(at, number as u64);
        match replay(&generate(module.bytes(), &trace[..], true).unwrap()) {
            Replayed::Differs(at) => assert_eq!(at, number as i32),
            // A trap ends the replay at that point.
            other => assert_eq!((number, other), (failed, Replayed::Stopped(number as i32 - 2))),
        }
    }
    // An exception instead of a trap.
    let (module, trace) = recorded(&[("raise", 0)]);
    let mut events = events(&trace);
    events[2] = Event::Fail { reason: None };
    let trace = trace_of(&events);
    assert_eq!(replay(&generate(module.bytes(), &trace[..], true).unwrap()), Replayed::Differs(2));
    let again = Replay::new(&module, Cursor::new(trace)).unwrap().run();
    assert!(matches!(again, Err(Error::Failed { number: 2, .. })), "{again:?}");
}

/// An engine that supports only legacy exceptions runs the replay of a program that uses them,
/// unless exceptions have crossed the boundary.
#[test]
fn programs_with_the_older_form_have_replays_with_it() {
    let text = r#"(module (import "h" "f" (func $f (param i32))) (tag $e (param i32))
        (func (export "run") (param i32) (result i32)
            try (result i32)
                (call $f (local.get 0))
                (throw $e (local.get 0))
            catch $e
            end)
        (func (export "throw") (throw $e (i32.const 5))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    for throws in [false, true] {
        let mut linker: Linker<()> = Linker::new(&engine);
        linker.func_wrap("h", "f", |_: i32| {}).unwrap();
        let trace = Trace::default();
        let mut store = Store::new(&engine, ());
        let instance =
            Recorder::new(&module, trace.clone()).unwrap().instantiate(&mut store, &linker).unwrap();
        let run = instance.get_typed_func::<i32, i32>(&store, "run").unwrap();
        assert_eq!(run.call(&mut store, 3).unwrap(), 3);
        if throws {
            let throw = instance.get_typed_func::<(), ()>(&store, "throw").unwrap();
            throw.call(&mut store, ()).unwrap_err();
        }
        let bench = generate(module.bytes(), &trace.bytes()[..], true).unwrap();
        assert_eq!(replay(&bench), COMPLETE);
        let mut bodies = Parser::new(0).parse_all(&bench).filter_map(|payload| match payload.unwrap() {
            Payload::CodeSectionEntry(body) => Some(body),
            _ => None,
        });
        let has_current_form = bodies.any(|body| {
            let mut operators = body.get_operators_reader().unwrap().into_iter();
            operators.any(|operator| matches!(operator.unwrap(), Operator::TryTable { .. }))
        });
        assert_eq!(has_current_form, throws);
    }
}

#[test]
fn exceptions_that_do_not_fit_are_errors() {
    let (module, trace) = recorded(&[("catch", act::OWN), ("pass", act::OTHER)]);
    let all = events(&trace);
    let [own, other] = [1, 3].map(|tag| {
        all.iter().position(|event| matches!(event, Event::Throw(exception) if exception.tag == tag)).unwrap()
    });
    for (number, tag, values) in [
        (own, 1, vec![]),
        (own, 1, vec![Value::I32(5)]),
        (own, 1, vec![Value::I64(5), Value::I64(5)]),
        (own, 0, vec![Value::I64(5)]),
        (other + 1, 3, vec![Value::I64(5)]),
    ] {
        let mut events = all.clone();
        events[number] = Event::Throw(Exception { tag, values });
        let trace = trace_of(&events);
        let error = generate(module.bytes(), &trace[..], true).unwrap_err();
        assert!(matches!(error, Error::Mismatch { number: at, .. } if at == number as u64), "{error}");
        let error = Replay::new(&module, Cursor::new(trace)).unwrap().run().unwrap_err();
        assert!(matches!(error, Error::Mismatch { number: at, .. } if at == number as u64), "{error}");
    }
    // Nothing is running.
    let mut events = all;
    events.push(Event::Throw(Exception { tag: 0, values: vec![] }));
    assert!(generate(module.bytes(), &trace_of(&events)[..], true).is_err());
}

/// Traces that end wherever the recorded process was killed.
#[test]
fn traces_with_exceptions_that_were_cut_are_replayed() {
    let (module, trace) = recorded(&CALLS);
    let all = events(&trace);
    for length in 2..all.len() {
        let cut = trace_of(&all[..length]);
        reduce(&module, Cursor::new(cut.clone()), Trace::default()).unwrap();
        generate(module.bytes(), &cut[..], true).unwrap();
        let ended = Replay::new(&module, Cursor::new(cut)).unwrap().run();
        assert!(ended.is_ok(), "{length}: {ended:?}");
    }
}

/// Slices contain the exceptions in their calls; one that leaves the function is its end.
#[test]
fn slices_have_exceptions() {
    let (module, trace) = recorded(&CALLS);
    let named =
        |name: &str| module.functions().find(|function| function.name() == Some(name)).unwrap().index();
    let sliced = |name: &str, trace: &[u8]| {
        let out = Trace::default();
        slice(&module, named(name), Cursor::new(trace.to_vec()), out.clone())
            .map(|calls| (calls, out.bytes()))
    };
    let (calls, slice) = sliced("catch", &trace).unwrap();
    assert_eq!(calls, 8);
    assert_eq!(throws(&events(&slice)).len(), 8);
    check(&module, &slice, COMPLETE);
    for (name, argument, last) in [
        ("pass", act::OWN, "throw tag=1 i64:1099511627782"),
        ("raise", 1, "throw tag=2 i32:78"),
        ("raise", 3, TRAPPED),
    ] {
        let (module, trace) = recorded(&[("catch", 1), (name, argument)]);
        let (calls, slice) = sliced(name, &trace).unwrap();
        assert_eq!((calls, events(&slice).last().unwrap().to_string().as_str()), (1, last));
        check(&module, &slice, Replayed::Complete { returned: last != TRAPPED });
    }
    // Its contents are not known: the trace ends before it.
    for (name, argument) in [("pass", act::OTHER), ("raise", 2)] {
        let (module, trace) = recorded(&[(name, argument)]);
        let (_, slice) = sliced(name, &trace).unwrap();
        assert!(!matches!(events(&slice).last(), Some(Event::Fail { .. } | Event::Leave { .. })));
        check(&module, &slice, Replayed::Complete { returned: false });
    }
    let (_, trace) = recorded(&[("raise", 0), ("raise", 0)]);
    let error = sliced("raise", &trace).unwrap_err().to_string();
    assert!(error.contains("called again after it has failed"), "{error}");
}

/// The event of `raise` with 3.
const TRAPPED: &str = "fail wasm trap: wasm `unreachable` instruction executed";

/// The recording of a function's calls ends with the exception that leaves it.
#[test]
fn recordings_of_calls_have_exceptions() {
    for (name, argument, last) in [
        ("pass", act::OWN, "throw tag=1 i64:1099511627782"),
        ("raise", 1, "throw tag=2 i32:78"),
        ("raise", 3, TRAPPED),
    ] {
        let (module, mut store, instance) =
            instance(|store, linker, module| linker.instantiate(store, module).unwrap());
        let function = module.functions().find(|function| function.name() == Some(name)).unwrap().index();
        let calls = Calls { function, skipped: 0, number: NonZeroU64::new(9).unwrap() };
        let trace = Trace::default();
        let recorder = CallRecorder::start::<Option<Tags>>(&module, calls, trace.clone()).unwrap();
        for argument in [7, argument, 7] {
            let _ = call(&mut store, instance, name, argument);
        }
        assert_eq!(recorder.stop().unwrap(), 2, "{name}");
        assert_eq!(events(&trace.bytes()).last().unwrap().to_string(), last);
        check(&module, &trace.bytes(), Replayed::Complete { returned: last != TRAPPED });
    }
}

#[test]
fn what_cannot_be_recorded_of_exceptions_is_refused() {
    // A reference to something outside of the module.
    let engine = Engine::default();
    let module = r#"(module (import "h" "e" (tag $e (param funcref))) (import "h" "f" (func $f))
        (func (export "run") (try_table (catch_all 0) (call $f))))"#;
    let module = Module::new(&engine, module).unwrap();
    let mut store = Store::new(&engine, ());
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::FUNCREF], []))).unwrap();
    let eq = ValType::Ref(RefType::new(true, HeapType::Eq));
    let foreign = Func::new(&mut store, FuncType::new([eq], []), |_, _, _| Ok(())).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.define(&store, "h", "e", tag).unwrap();
    let throws = move |mut caller: Caller<'_, ()>| -> Result<(), EngineError> {
        Err(EngineError::from(ExnRef::new(&mut caller, &tag, &[Val::FuncRef(Some(foreign))])?))
    };
    linker.func_wrap("h", "f", throws).unwrap();
    let recorder = Recorder::new(&module, Vec::new()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<(), ()>(&store, "run").unwrap();
    let error = run.call(&mut store, ()).unwrap_err().to_string();
    assert_eq!(error, "cannot be recorded: an exception with a reference to what is not the module's");

    // One tag, imported twice.
    let module = r#"(module (import "h" "e" (tag (param funcref))) (import "h" "e" (tag (param funcref))))"#;
    let module = Module::new(&engine, module).unwrap();
    let mut store = Store::new(&engine, ());
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::FUNCREF], []))).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.define(&store, "h", "e", tag).unwrap();
    let recorder = Recorder::new(&module, Vec::new()).unwrap();
    let error = recorder.instantiate(&mut store, &linker).unwrap_err().to_string();
    assert_eq!(error, "cannot be recorded: the import h.e, the same tag as an import before");
}

/// An error like any other: the program cannot catch it.
#[test]
fn an_exception_of_another_store_is_a_failure() {
    let engine = Engine::default();
    let module = r#"(module (import "h" "f" (func $f))
        (func (export "run") (try_table (catch_all 0) (call $f))))"#;
    let module = Module::new(&engine, module).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    let throws = |caller: Caller<'_, ()>| -> Result<(), EngineError> {
        let mut other = Store::new(caller.engine(), ());
        let tag = Tag::new(&mut other, &TagType::new(FuncType::new([], [])))?;
        Err(EngineError::from(ExnRef::new(&mut other, &tag, &[])?))
    };
    linker.func_wrap("h", "f", throws).unwrap();
    let trace = Trace::default();
    let mut store = Store::new(&engine, ());
    let instance = Recorder::new(&module, trace.clone()).unwrap().instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<(), ()>(&store, "run").unwrap();
    let error = run.call(&mut store, ()).unwrap_err();
    assert!(matches!(error, EngineError::WrongStore { .. }), "{error}");
    let failed = &events(&trace.bytes())[3..];
    assert!(matches!(failed, [Event::Fail { .. }, Event::Fail { .. }]), "{failed:?}");
}
