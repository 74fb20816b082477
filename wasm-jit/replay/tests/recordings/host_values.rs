//! References to host values: they are recorded by identity, and other values take their place in a
//! replay.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, reduced, replay, replay_separately, trace_of};
use wasm_jit::{
    AnyRef, AsContextMut, Caller, Engine, Error as EngineError, ExnRef, Extern, ExternRef, FuncType, Global,
    GlobalType, HeapType, I31, Instance, Linker, Module, Mutability, RefType, Store, Table, TableType, Tag,
    TagType, Val, ValType,
};
use wasm_jit_replay::{
    CallRecorder, Calls, Error, Event, Exception, Recorder, Value, generate, javascript, reduce, separate,
    slice,
};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// Passes the values of the host on: from imported items, in tables and globals, and back.
const PROGRAM: &str = r#"(module
    (import "h" "swap" (func $swap (param externref externref) (result externref i32)))
    (import "h" "table" (table $t 2 9 externref))
    (import "h" "constant" (global $constant externref))
    (import "h" "variable" (global $variable (mut externref)))
    (table $own (export "own") 3 9 externref)
    (global $kept (mut externref) (global.get $constant))
    (func $step (export "step") (param $x externref) (param $n i32) (result externref i32) (local $sum i32) (local $v externref)
        (call $swap (local.get $x) (table.get $t (i32.const 0)))
        (local.set $sum) (local.set $v)
        (table.set $own (i32.const 1) (local.get $v))
        (call $swap (global.get $kept) (global.get $variable))
        (local.set $sum (i32.add (local.get $sum)))
        (global.set $kept)
        (call $swap (table.get $own (i32.const 1)) (table.get $own (i32.const 2)))
        (local.set $sum (i32.add (local.get $sum))) (local.set $v)
        (table.set $t (i32.const 1) (local.get $v))
        (call $swap (global.get $constant) (table.get $t (i32.const 1)))
        (local.set $sum (i32.add (local.get $sum))) (drop)
        (global.get $kept) (i32.add (local.get $sum) (table.size $own)))
    (func (export "twice") (param $x externref)
        (call $step (local.get $x) (i32.const 1)) (drop) (drop)
        (call $step (global.get $kept) (i32.const 2)) (drop) (drop)))"#;

/// The values and the table of the host, and the number of calls.
struct Host {
    values: Vec<ExternRef>,
    table: Option<Table>,
    variable: Option<Global>,
    calls: u32,
}

/// Returns another value than it gets, and changes everything that it shares with the program.
fn swap(
    caller: &mut Caller<'_, Host>,
    first: Option<ExternRef>,
    second: Option<ExternRef>,
) -> Result<(Option<ExternRef>, i32), EngineError> {
    caller.data_mut().calls += 1;
    let n = caller.data().calls as usize;
    let values = caller.data().values.clone();
    let of = |value: &Option<ExternRef>| {
        value.as_ref().and_then(|value| values.iter().position(|known| known.same(value)))
    };
    let found = [of(&first), of(&second)].map(|at| at.map_or(-1, |at| at as i32));
    let (table, variable) = (caller.data().table.unwrap(), caller.data().variable.unwrap());
    if n % 3 == 1 {
        table.set(&mut *caller, 0, Val::ExternRef(Some(values[n % 4].clone())))?;
        variable.set(&mut *caller, Val::ExternRef(second.clone()))?;
    }
    if n % 5 == 2 {
        let Some(Extern::Table(own)) = caller.get_export("own") else { panic!("a table") };
        own.grow(&mut *caller, 1, Val::ExternRef(None))?;
        own.set(&mut *caller, 2, Val::ExternRef(Some(values[n % 3].clone())))?;
    }
    if n == 6 {
        caller.data_mut().values.push(ExternRef::new("new"));
        return Ok((caller.data().values.last().cloned(), 40));
    }
    Ok((if n.is_multiple_of(2) { second } else { first }, found[0] * 10 + found[1]))
}

fn instance(
    make: impl FnOnce(&mut Store<Host>, &Linker<Host>, &Module) -> Instance,
) -> (Module, Store<Host>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    // Equal contents do not matter.
    let values: Vec<ExternRef> = (0..4).map(|_| ExternRef::new(7_u32)).collect();
    let mut store =
        Store::new(&engine, Host { values: values.clone(), table: None, variable: None, calls: 0 });
    let null = Val::ExternRef(None);
    let table = Table::new(&mut store, TableType::new(RefType::EXTERNREF, 2, Some(9)), null.clone()).unwrap();
    table.set(&mut store, 0, Val::ExternRef(Some(values[3].clone()))).unwrap();
    let global = |store: &mut Store<Host>, mutability, value| {
        Global::new(&mut *store, GlobalType::new(ValType::EXTERNREF, mutability), value).unwrap()
    };
    let constant = global(&mut store, Mutability::Const, Val::ExternRef(Some(values[1].clone())));
    let variable = global(&mut store, Mutability::Var, null);
    (store.data_mut().table, store.data_mut().variable) = (Some(table), Some(variable));
    let mut linker: Linker<Host> = Linker::new(&engine);
    linker.define(&store, "h", "table", table).unwrap();
    linker.define(&store, "h", "constant", constant).unwrap();
    linker.define(&store, "h", "variable", variable).unwrap();
    linker
        .func_wrap("h", "swap", |mut caller: Caller<'_, Host>, a: Option<ExternRef>, b: Option<ExternRef>| {
            swap(&mut caller, a, b)
        })
        .unwrap();
    let instance = make(&mut store, &linker, &module);
    (module, store, instance)
}

/// Calls `step` with a value of the host.
fn step(store: &mut Store<Host>, instance: Instance, value: usize) -> (Option<ExternRef>, i32) {
    let step = instance.get_typed_func::<(Option<ExternRef>, i32), (Option<ExternRef>, i32)>(&*store, "step");
    let value = store.data().values[value].clone();
    step.unwrap().call(store, (Some(value), 3)).unwrap()
}

/// A run from its beginning, or from a later moment.
fn recorded(is_new: bool) -> (Module, Vec<u8>) {
    let trace = Trace::default();
    let mut recorder = None;
    let (module, mut store, instance) = instance(|store, linker, module| {
        let recorder = recorder.insert(Recorder::new(module, trace.clone()).unwrap());
        match is_new {
            true => recorder.instantiate(store, linker).unwrap(),
            false => linker.instantiate(store, module).unwrap(),
        }
    });
    step(&mut store, instance, 0);
    if !is_new {
        recorder.as_ref().unwrap().attach(&mut store, instance).unwrap();
    }
    step(&mut store, instance, 2);
    step(&mut store, instance, 0);
    recorder.unwrap().stop(&mut store).unwrap();
    (module, trace.bytes())
}

#[track_caller]
fn check(module: &Module, trace: &[u8]) {
    check_modules(module, trace);
    crate::javascript::check(module.bytes(), trace);
}

/// Without a JavaScript host.
#[track_caller]
fn check_modules(module: &Module, trace: &[u8]) {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        for check in [true, false] {
            let bench = generate(module.bytes(), trace, check).unwrap();
            let replayed = replay(&bench);
            assert!(!check || replayed == COMPLETE, "{replayed:?}");
        }
        let separate = separate(module.bytes(), trace, true).unwrap();
        assert_eq!(replay_separately(&separate), COMPLETE);
    }
}

#[test]
fn host_values_are_replayed_by_their_identity() {
    for is_new in [true, false] {
        let (module, trace) = recorded(is_new);
        check(&module, &trace);
        let found = events(&trace);
        let has = |wanted: fn(&Event) -> bool| found.iter().any(wanted);
        assert!(has(|event| matches!(event, Event::ImportGlobal { value: Value::Extern(Some(_)), .. })));
        assert!(has(|event| matches!(
            event,
            Event::SetElement { table: 1, value: Value::Extern(Some(_)), .. }
        )));
        assert!(has(|event| matches!(event, Event::SetGlobal { global: 1, value: Value::Extern(_) })));
        assert_eq!(has(|event| matches!(event, Event::Snapshot)), !is_new);
        // Four values of the host, the new one, and nothing else.
        let numbers = found.iter().flat_map(values).filter_map(|value| match value {
            Value::Extern(number) => *number,
            _ => None,
        });
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }
}

fn values(event: &Event) -> &[Value] {
    match event {
        Event::Enter { arguments: values, .. }
        | Event::Call { arguments: values, .. }
        | Event::Return { results: values }
        | Event::Leave { results: values } => values,
        Event::ImportGlobal { value, .. }
        | Event::SetGlobal { value, .. }
        | Event::SetElement { value, .. } => std::slice::from_ref(value),
        _ => &[],
    }
}

/// Another value, null instead of a value, and a value instead of null.
#[test]
fn another_host_value_is_found_and_named() {
    let (module, trace) = recorded(false);
    let all = events(&trace);
    let mut planted = 0;
    for (number, event) in all.iter().enumerate() {
        let is_programs = match event {
            Event::Call { .. } | Event::Leave { .. } => true,
            Event::Return { .. } => false,
            _ => continue,
        };
        for other in [Some(9), None, Some(0)] {
            let mut changed = all.clone();
            let (Event::Call { arguments: values, .. }
            | Event::Leave { results: values }
            | Event::Return { results: values }) = &mut changed[number]
            else {
                unreachable!("a call or its end")
            };
            let Value::Extern(value) = &mut values[0] else { panic!("{event}") };
            if *value == other {
                continue;
            }
            *value = other;
            planted += 1;
            let changed = trace_of(&changed);
            let expected = |found: Replayed| match found {
                Replayed::Differs(at) if is_programs => assert_eq!(at, number as i32, "{event}"),
                // The value may not be used any more.
                Replayed::Differs(at) => assert!(at > number as i32, "{event}"),
                found => assert!(!is_programs && found == COMPLETE, "{event}: {found:?}"),
            };
            expected(replay(&generate(module.bytes(), &changed[..], true).unwrap()));
            expected(replay_separately(&separate(module.bytes(), &changed[..], true).unwrap()));
            let reduced = reduce(&module, Cursor::new(changed), Trace::default());
            match reduced {
                Err(Error::Mismatch { number: at, .. }) if is_programs => assert_eq!(at, number as u64),
                Err(Error::Mismatch { number: at, .. }) => assert!(at > number as u64, "{event}"),
                reduced => assert!(!is_programs && reduced.is_ok(), "{event}: {reduced:?}"),
            }
        }
    }
    assert!(planted > 20, "{planted}");
}

/// Calls to one function, recorded or cut out of a recording.
#[test]
fn parts_of_a_run_have_host_values() {
    const STEP: u32 = 1;
    let twice = |store: &mut Store<Host>, instance: Instance| {
        let twice = instance.get_typed_func::<Option<ExternRef>, ()>(&*store, "twice").unwrap();
        let value = store.data().values[2].clone();
        twice.call(store, Some(value)).unwrap();
    };
    let trace = Trace::default();
    let mut recorder = None;
    let (module, mut store, whole) = instance(|store, linker, module| {
        recorder.insert(Recorder::new(module, trace.clone()).unwrap()).instantiate(store, linker).unwrap()
    });
    twice(&mut store, whole);
    recorder.unwrap().stop(&mut store).unwrap();
    let cut = Trace::default();
    assert_eq!(slice(&module, STEP, Cursor::new(trace.bytes()), cut.clone()).unwrap(), 2);
    check(&module, &cut.bytes());

    let (module, mut store, running) =
        instance(|store, linker, module| linker.instantiate(store, module).unwrap());
    step(&mut store, running, 1);
    let trace = Trace::default();
    let calls = Calls { function: STEP, skipped: 0, number: 2.try_into().unwrap() };
    let recorder = CallRecorder::start::<Host>(&module, calls, trace.clone()).unwrap();
    twice(&mut store, running);
    assert_eq!(recorder.stop().unwrap(), 2);
    check(&module, &trace.bytes());
}

/// Types that exclude null.
#[test]
fn host_values_that_are_never_null_are_replayed() {
    let engine = Engine::default();
    let text = r#"(module (import "h" "make" (func $make (result (ref extern))))
        (import "h" "use" (func $use (param (ref extern))))
        (global $kept (export "kept") (mut externref) (ref.null extern))
        (func (export "run") (param $x (ref extern)) (result (ref extern))
            (call $use (local.get $x))
            (global.set $kept (call $make))
            (call $use (ref.as_non_null (global.get $kept)))
            (call $make)))"#;
    let module = Module::new(&engine, text).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    let non_null = ValType::Ref(RefType::new(false, HeapType::Extern));
    let make = |_: Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
        results[0] = Val::ExternRef(Some(ExternRef::new(1)));
        Ok(())
    };
    linker.func_new("h", "make", FuncType::new([], [non_null]), make).unwrap();
    linker.func_new("h", "use", FuncType::new([non_null], []), |_, _, _| Ok(())).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_func(&store, "run").unwrap();
    let mut results = [Val::ExternRef(None)];
    run.call(&mut store, &[Val::ExternRef(Some(ExternRef::new(2)))], &mut results).unwrap();
    recorder.stop(&mut store).unwrap();
    // Node.js 20 does not have these types.
    check_modules(&module, &trace.bytes());
    let null = Event::Return { results: vec![Value::Extern(None)] };
    let changed: Vec<Event> = events(&trace.bytes())
        .into_iter()
        .map(|event| {
            if matches!(&event, Event::Return { results } if !results.is_empty()) {
                null.clone()
            } else {
                event
            }
        })
        .collect();
    let error = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap_err().to_string();
    assert!(error.contains("values of other types"), "{error}");
}

/// A reference to an integer has another type than a host value.
#[test]
fn programs_that_can_see_what_a_host_value_is_are_not_generated() {
    let engine = Engine::default();
    let text = r#"(module (import "h" "f" (func $f (result externref)))
        (func (export "run") (result i32) (ref.test (ref i31) (any.convert_extern (call $f)))))"#;
    let module = Module::new(&engine, text).unwrap();
    for is_null in [false, true] {
        let mut linker: Linker<()> = Linker::new(&engine);
        let get = move || (!is_null).then(|| ExternRef::new(1));
        linker.func_wrap("h", "f", get).unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = recorder.instantiate(&mut store, &linker).unwrap();
        let run = instance.get_typed_func::<(), i32>(&store, "run").unwrap();
        assert_eq!(run.call(&mut store, ()).unwrap(), 0);
        let made = generate(module.bytes(), &trace.bytes()[..], true).map(drop);
        let apart = separate(module.bytes(), &trace.bytes()[..], true).map(drop);
        assert_eq!((made.is_ok(), apart.is_ok()), (is_null, is_null));
        for refused in [made, apart].into_iter().filter_map(Result::err) {
            let text =
                "cannot be replayed as a module: a reference to a host value, which `any.convert_extern`";
            assert!(refused.to_string().starts_with(text), "{refused}");
        }
        // In a JavaScript host, and in this engine, it is another host value.
        javascript(module.bytes(), &trace.bytes()[..]).unwrap();
        reduce(&module, Cursor::new(trace.bytes()), Trace::default()).unwrap();
    }
}

/// An exception has a value of the host; an object of a program is none.
#[test]
fn exceptions_have_host_values_and_objects_are_refused() {
    let engine = Engine::default();
    let text = r#"(module (import "h" "f" (func $f (param externref) (result externref)))
        (import "h" "e" (tag $e (param externref)))
        (func (export "run") (param $x externref) (result externref)
            (block $caught (result externref)
                (try_table (result externref) (catch $e $caught) (call $f (local.get $x))))))"#;
    let module = Module::new(&engine, text).unwrap();
    let run = |value: ExternRef| {
        let mut store = Store::new(&engine, None);
        let ty = TagType::new(FuncType::new([ValType::EXTERNREF], []));
        let tag = Tag::new(&mut store, &ty).unwrap();
        *store.data_mut() = Some(tag);
        let mut linker: Linker<Option<Tag>> = Linker::new(&engine);
        linker.define(&store, "h", "e", tag).unwrap();
        linker
            .func_wrap(
                "h",
                "f",
                |mut caller: Caller<'_, Option<Tag>>,
                 x: Option<ExternRef>|
                 -> Result<Option<ExternRef>, EngineError> {
                    let tag = caller.data().unwrap();
                    Err(ExnRef::new(caller.as_context_mut(), &tag, &[Val::ExternRef(x)])?.into())
                },
            )
            .unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let instance = recorder.instantiate(&mut store, &linker).unwrap();
        let run = instance.get_typed_func::<Option<ExternRef>, Option<ExternRef>>(&store, "run").unwrap();
        run.call(&mut store, Some(value)).map(|_| trace.bytes())
    };
    let trace = run(ExternRef::new(5)).unwrap();
    let thrown = Event::Throw(Exception { tag: 0, values: vec![Value::Extern(Some(0))] });
    assert!(events(&trace).contains(&thrown));
    assert_eq!(replay(&generate(module.bytes(), &trace[..], true).unwrap()), COMPLETE);
    let object = AnyRef::from(I31::wrapping(4)).to_extern();
    let error = run(object).unwrap_err().to_string();
    assert!(error.contains("cannot be recorded: a reference (externref) to an object"), "{error}");
}
