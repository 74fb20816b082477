//! Recordings that begin with an instance that ran before, and end before it does.

use std::io::Cursor;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use crate::machine_code::code;
use crate::support::{Replayed, Trace, events, reduced, replay, replay_in_wasmi, trace_of};
use wasm_jit::{
    AnyRef, AsContextMut, Caller, Engine, Error as EngineError, Extern, Func, Global, GlobalType, I31,
    Instance, Linker, Module, Mutability, Store, Val, ValType,
};
use wasm_jit_replay::{CallRecorder, Calls, Error, Event, Recorder, Value, generate, reduce, slice};

const COMPLETE: Replayed = Replayed::Complete { returned: true };
const FAILED: Replayed = Replayed::Complete { returned: false };

/// `change` changes everything that an instance has; `look` returns a result that depends on all of
/// it. The start function must run only once.
const PROGRAM: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (import "h" "constant" (global $constant i32))
    (import "h" "variable" (global $variable (mut funcref)))
    (memory (export "memory") 1 9)
    (memory $other 1 9)
    (table $t (export "t") 3 20 funcref)
    (table $x 2 20 externref)
    (global $own (mut i64) (i64.const 5))
    (global $derived i32 (global.get $constant))
    (type $number (func (result i32)))
    (func $one (type $number) (i32.const 1))
    (func $two (type $number) (i32.const 20))
    (data $active (i32.const 100) "active")
    (data $kept "kept")
    (data $dropped "dropped")
    (data (i32.const 5000) "erased")
    (elem $in_table (table $t) (i32.const 0) func $one $one)
    (elem $later func $two $one)
    (elem $gone func $two)
    (func $begin (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 7))))
    (start $begin)
    (func (export "change") (param $n i32)
        (i32.store (i32.const 40) (local.get $n))
        (memory.fill (i32.const 102) (i32.const 0) (i32.const 2))
        (memory.fill (i32.const 5000) (i32.const 0) (i32.const 6))
        (drop (memory.grow (i32.const 1)))
        (drop (memory.grow $other (i32.const 2)))
        (i64.store $other (i32.const 131064) (i64.extend_i32_u (local.get $n)))
        (global.set $own (i64.extend_i32_u (local.get $n)))
        (global.set $variable (ref.func $two))
        (table.set $t (i32.const 1) (ref.func $two))
        (table.set $t (i32.const 0) (ref.null func))
        (drop (table.grow $t (ref.func $one) (local.get $n)))
        (drop (table.grow $x (ref.null extern) (i32.const 1)))
        (data.drop $dropped)
        (elem.drop $gone))
    (func $of (export "of") (param $element i32) (result i32)
        (if (result i32) (ref.is_null (table.get $t (local.get $element)))
            (then (i32.const 300))
            (else (call_indirect $t (type $number) (local.get $element)))))
    (func $look (export "look") (param $n i32) (result i32) (local $sum i32)
        (memory.init $kept (i32.const 200) (i32.const 1) (i32.const 2))
        (table.init $t $later (i32.const 2) (i32.const 0) (i32.const 1))
        (local.set $sum (i32.add (i32.load (i32.const 0)) (i32.load (i32.const 40))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (i32.load (i32.const 101))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (i32.load (i32.const 200))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (i32.load (i32.const 5001))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (i32.load $other (i32.const 131064))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (memory.size)))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (memory.size $other)))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (table.size $t)))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (table.size $x)))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (call $of (i32.const 0))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (call $of (i32.const 1))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (call $of (i32.const 2))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (call $of (i32.const 3))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (i32.wrap_i64 (global.get $own))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (ref.is_null (global.get $variable))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 3)) (global.get $derived)))
        (i32.store (i32.const 40) (local.get $sum))
        (i32.add (local.get $sum) (call $f (local.get $n))))
    (func (export "use_data") (memory.init $dropped (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "use_elements") (table.init $t $gone (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "use_active") (memory.init $active (i32.const 0) (i32.const 0) (i32.const 1))))"#;

/// What the host does in `f`, by the number of the call.
type Act = Arc<dyn Fn(&mut Caller<'_, u32>, &Module) -> Result<(), EngineError> + Send + Sync>;

/// The host starts a recording in one of the calls, and stops it in another one.
fn records_between(
    [first, last]: [u32; 2],
    start: impl Fn(&Module) -> Result<CallRecorder, Error> + Send + Sync + 'static,
) -> Act {
    let recorder: Mutex<Option<CallRecorder>> = Mutex::default();
    Arc::new(move |caller, module| {
        let mut recorder = recorder.lock().unwrap();
        match *caller.data() {
            number if number == first => *recorder = Some(start(module).map_err(EngineError::host)?),
            number if number == last => _ = recorder.as_ref().unwrap().stop().map_err(EngineError::host)?,
            _ => {}
        }
        Ok(())
    })
}

/// An instance of a program, whose host counts the calls to `f`, and returns the number.
fn instance_with(text: &str, act: Act) -> (Module, Store<u32>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<u32> = Linker::new(&engine);
    let program = module.clone();
    linker
        .func_wrap("h", "f", move |mut caller: Caller<'_, u32>, value: i32| -> Result<i32, EngineError> {
            *caller.data_mut() += 1;
            act(&mut caller, &program)?;
            Ok(*caller.data() as i32 + value)
        })
        .unwrap();
    let mut store = Store::new(&engine, 0);
    let global = |store: &mut Store<u32>, ty, mutability, value| {
        Global::new(&mut *store, GlobalType::new(ty, mutability), value).unwrap()
    };
    let constant = global(&mut store, ValType::I32, Mutability::Const, Val::I32(77));
    let variable = global(&mut store, ValType::FUNCREF, Mutability::Var, Val::FuncRef(None));
    linker.define(&store, "h", "constant", constant).unwrap();
    linker.define(&store, "h", "variable", variable).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (module, store, instance)
}

fn instance(text: &str) -> (Module, Store<u32>, Instance) {
    instance_with(text, Arc::new(|_, _| Ok(())))
}

/// Calls an export with up to one parameter and result, both `i32`.
fn call(store: &mut Store<u32>, instance: Instance, name: &str, argument: i32) -> Result<(), EngineError> {
    let func = instance.get_func(&*store, name).unwrap();
    let ty = func.ty(&*store);
    let arguments = [Val::I32(argument)];
    let mut results = [Val::I32(0)];
    func.call(store, &arguments[..ty.params().len()], &mut results[..ty.results().len()])
}

#[track_caller]
fn check(module: &Module, trace: &[u8], expected: Replayed) {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (expected, expected));
    }
}

/// A recording of these calls, after `change`.
fn recorded(calls: &[(&str, i32)]) -> (Module, Vec<u8>) {
    let (module, mut store, instance) = instance(PROGRAM);
    call(&mut store, instance, "of", 1).unwrap();
    call(&mut store, instance, "change", 3).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    recorder.attach(&mut store, instance).unwrap();
    for (name, argument) in calls {
        let _ = call(&mut store, instance, name, *argument);
    }
    recorder.stop(&mut store).unwrap();
    (module, trace.bytes())
}

#[test]
fn a_replay_begins_with_the_state_of_the_instance() {
    let (module, trace) = recorded(&[("look", 2), ("look", 3)]);
    check(&module, &trace, COMPLETE);
    // Dropped segments remain dropped, including those that were copied when the instance was made.
    for name in ["use_data", "use_elements", "use_active"] {
        let (module, trace) = recorded(&[("look", 2), (name, 0)]);
        check(&module, &trace, FAILED);
    }
    // The generated module is in this state as soon as it is instantiated.
    let bench = generate(module.bytes(), &trace[..], false).unwrap();
    let replayed = Module::from_binary(&Engine::default(), &bench).unwrap();
    let mut store = Store::new(replayed.engine(), ());
    let instance = Instance::new(&mut store, &replayed, &[]).unwrap();
    let memory = instance.get_memory(&store, "memory").unwrap();
    assert_eq!(memory.data_size(&store), 2 << 16);
    assert_eq!(memory.data(&store)[..4], [7, 0, 0, 0], "the start function has run once");
    assert_eq!(&memory.data(&store)[100..106], b"ac\0\0ve");
}

/// A table whose initial elements are not null; wasmi does not support it.
#[test]
fn initial_elements_of_tables_are_not_those_of_a_replay() {
    let text = r#"(module (table $t 2 funcref (ref.func $f)) (func $f)
        (func (export "change") (table.set $t (i32.const 0) (ref.null func)))
        (func (export "look") (result i32)
            (i32.sub (ref.is_null (table.get $t (i32.const 0))) (ref.is_null (table.get $t (i32.const 1))))))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, 0);
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    call(&mut store, instance, "change", 0).unwrap();
    let trace = Trace::default();
    Recorder::new(&module, trace.clone()).unwrap().attach(&mut store, instance).unwrap();
    call(&mut store, instance, "look", 0).unwrap();
    assert_eq!(events(&trace.bytes()).last(), Some(&Event::Leave { results: vec![Value::I32(1)] }));
    reduce(&module, Cursor::new(trace.bytes()), Trace::default()).unwrap();
    assert_eq!(replay(&generate(module.bytes(), &trace.bytes()[..], true).unwrap()), COMPLETE);
}

/// Each event of the snapshot matters, and events that do not fit are named.
#[test]
fn a_defect_in_a_snapshot_is_found() {
    let (module, trace) = recorded(&[("look", 2), ("use_data", 0)]);
    let all = events(&trace);
    let first = all.iter().position(|event| matches!(event, Event::Enter { .. })).unwrap();
    let mut kinds = Vec::new();
    for number in 1..first {
        let mut changed = all.clone();
        let kind = match &mut changed[number] {
            // A byte that is read.
            Event::Write { memory: 0, address: 0, bytes } => {
                bytes[102] ^= 1;
                "write"
            }
            Event::Write { bytes, .. } => {
                let last = bytes.len() - 8;
                bytes[last] ^= 1;
                "write"
            }
            Event::Grow { pages, .. } => {
                *pages += 1;
                "grow"
            }
            Event::GrowTable { elements, .. } => {
                *elements += 1;
                "grow table"
            }
            Event::SetElement { element: ..4, value, .. } => {
                *value = Value::Func(None);
                "set element"
            }
            Event::SetGlobal { value: Value::I64(value), .. } => {
                *value += 1;
                "set global"
            }
            Event::SetGlobal { value, .. } => {
                *value = Value::Func(None);
                "set global"
            }
            Event::DropData { segment: 2 } => {
                changed[number] = Event::DropData { segment: 0 };
                "drop"
            }
            Event::ImportGlobal { value: Value::I32(value), .. } => {
                *value += 1;
                "import"
            }
            _ => continue,
        };
        kinds.push(kind);
        let found = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
        assert!(matches!(found, Replayed::Differs(at) if at > first as i32), "{}: {found:?}", all[number]);
        let error = reduce(&module, Cursor::new(trace_of(&changed)), Trace::default()).unwrap_err();
        assert!(matches!(error, Error::Mismatch { number, .. } if number > first as u64), "{kind}: {error}");
    }
    kinds.dedup();
    let expected = ["import", "grow", "write", "grow", "write", "grow table", "set element", "grow table"];
    assert_eq!(kinds, [&expected[..], &["set global", "drop"]].concat());
    // Items that the module does not have.
    for (wrong, what) in [
        (Event::DropData { segment: 4 }, "there is no such data segment"),
        (Event::DropElements { segment: 9 }, "there is no such element segment"),
        (Event::Snapshot, "a snapshot that is not at the beginning"),
    ] {
        let mut changed = all.clone();
        changed[first - 1] = wrong;
        let error = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap_err().to_string();
        assert!(error.contains(&format!("event {} ", first - 1)) && error.contains(what), "{error}");
    }
}

#[test]
fn a_slice_of_a_recording_begins_with_the_same_state() {
    let (module, trace) = recorded(&[("look", 2), ("look", 3), ("of", 1)]);
    let look = module.functions().find(|function| function.name() == Some("look")).unwrap().index();
    let out = Trace::default();
    assert_eq!(slice(&module, look, Cursor::new(trace), out.clone()).unwrap(), 2);
    check(&module, &out.bytes(), COMPLETE);
}

/// A host function ends the recording: the trace has the call to it, but not its return.
#[test]
fn a_recording_ends_within_a_host_function() {
    let recorder: Arc<Mutex<Option<Recorder>>> = Arc::default();
    let stopped = recorder.clone();
    let act = move |caller: &mut Caller<'_, u32>, _: &Module| {
        if *caller.data() == 3
            && let Some(recorder) = stopped.lock().unwrap().take()
        {
            recorder.stop(&mut *caller).map_err(EngineError::host)?;
        }
        Ok(())
    };
    let (module, mut store, instance) = instance_with(PROGRAM, Arc::new(act));
    let trace = Trace::default();
    let made = Recorder::new(&module, trace.clone()).unwrap();
    *recorder.lock().unwrap() = Some(made.clone());
    call(&mut store, instance, "change", 3).unwrap();
    made.attach(&mut store, instance).unwrap();
    for argument in 0..5 {
        call(&mut store, instance, "look", argument).unwrap();
    }
    assert!(!store.as_context_mut().is_observed());
    let found = events(&trace.bytes());
    let entered = found.iter().filter(|event| matches!(event, Event::Enter { .. })).count();
    assert_eq!((entered, matches!(found.last(), Some(Event::Call { .. }))), (3, true), "{found:?}");
    check(&module, &trace.bytes(), FAILED);
}

#[test]
fn what_cannot_be_recorded_from_the_middle_is_refused() {
    #[track_caller]
    fn refused(result: Result<(), Error>, expected: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot be recorded: {expected}")), "{error}");
    }
    let (module, mut store, instance) = instance(PROGRAM);
    let recorder = |module: &Module| Recorder::new(module, Vec::new()).unwrap();
    let first = recorder(&module);
    first.attach(&mut store, instance).unwrap();
    refused(first.attach(&mut store, instance), "a second instance in one trace");
    first.stop(&mut store).unwrap();
    first.stop(&mut store).unwrap();
    recorder(&module).attach(&mut store, instance).unwrap();
    let other = Module::new(module.engine(), "(module)").unwrap();
    refused(recorder(&other).attach(&mut store, instance), "an instance of another module");

    // Functions that it shares with others.
    let mut store = Store::new(module.engine(), 0);
    let importer = r#"(module (import "a" "b" (func)) (import "a" "c" (func)))"#;
    let importer = Module::new(module.engine(), importer).unwrap();
    let host = Func::wrap(&mut store, || {}).unwrap();
    let foreign = r#"(module (type $f (sub (func))) (func (export "f") (type $f)))"#;
    let foreign = Module::new(module.engine(), foreign).unwrap();
    let foreign = Instance::new(&mut store, &foreign, &[]).unwrap().get_func(&store, "f").unwrap();
    let instance = Instance::new(&mut store, &importer, &[host, host].map(Extern::Func)).unwrap();
    let expected = "the import a.c, the same function as an import before";
    refused(recorder(&importer).attach(&mut store, instance), expected);
    assert!(!store.as_context_mut().is_observed());

    // References to something outside of the module.
    let text = r#"(module (table (export "t") 2 funcref) (table (export "x") 2 externref)
        (global (export "g") (mut externref) (ref.null extern)))"#;
    let module = Module::new(module.engine(), text).unwrap();
    for (item, expected) in [
        ("t", "the reference in element 1 of table 0"),
        ("x", "the reference in element 1 of table 1"),
        ("g", "the reference in global 0"),
    ] {
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let value = AnyRef::from(I31::wrapping(5)).to_extern();
        match instance.get_export(&store, item).unwrap() {
            Extern::Table(table) if item == "t" => {
                table.set(&mut store, 1, Val::FuncRef(Some(foreign))).unwrap();
            }
            Extern::Table(table) => table.set(&mut store, 1, Val::ExternRef(Some(value))).unwrap(),
            Extern::Global(global) => global.set(&mut store, Val::ExternRef(Some(value))).unwrap(),
            other => panic!("{other:?}"),
        }
        refused(recorder(&module).attach(&mut store, instance), expected);
        assert!(!store.as_context_mut().is_observed());
    }
}

/// Traces of the first version of the format have no snapshots, those of the second one no
/// exceptions, those of the third one no functions of other modules, those of the fourth one no
/// blocks, those of the fifth one no host values and no exit codes, those of the sixth one no
/// references to integers; all can be read.
#[test]
fn versions_of_the_format() {
    let (module, trace) = recorded(&[("look", 2)]);
    assert_eq!(trace[8..12], [7, 0, 0, 0]);
    for version in [5, 6] {
        let mut earlier = trace.clone();
        earlier[8] = version;
        assert_eq!(
            generate(module.bytes(), &earlier[..], true).unwrap(),
            generate(module.bytes(), &trace[..], true).unwrap()
        );
    }
    // The head was shorter.
    let mut trace = [&trace[..12], &trace[24..]].concat();
    for (version, refused) in [
        (0, Some("there is no version 0")),
        (1, None),
        (2, None),
        (3, None),
        (4, None),
        (8, Some("the trace has version 8 of the format, and the versions up to 7 can be read: use the ")),
    ] {
        trace[8] = version;
        match (generate(module.bytes(), &trace[..], true), refused) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (found, _) => panic!("version {version}: {:?}", found.map(|bench| bench.len())),
        }
    }
}

/// `outer` calls `inner`, which calls the host and itself, and changes everything in between.
const CALLS: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1 9)
    (table $t 2 20 funcref)
    (global $g (mut i32) (i32.const 0))
    (data $passive "passive")
    (elem $elements func $inner)
    (func $inner (export "inner") (param $n i32) (result i32)
        (if (i32.eq (local.get $n) (i32.const 99)) (then (unreachable)))
        (i32.store (i32.const 8) (i32.add (i32.load (i32.const 4)) (i32.load (i32.const 8))))
        (if (i32.gt_u (local.get $n) (i32.const 5))
            (then (drop (call $inner (i32.sub (local.get $n) (i32.const 4))))))
        (i32.add (i32.add (i32.load (i32.const 8)) (i32.mul (global.get $g) (i32.const 7)))
            (i32.add (i32.add (memory.size) (table.size $t))
                (i32.add (ref.is_null (table.get $t (i32.const 1))) (call $f (local.get $n))))))
    (func (export "outer") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (i32.store (i32.const 4) (local.get $n))
            (global.set $g (i32.add (global.get $g) (i32.const 3)))
            (if (i32.eq (local.get $n) (i32.const 4)) (then
                (drop (memory.grow (i32.const 1)))
                (drop (table.grow $t (ref.null func) (i32.const 2)))
                (data.drop $passive)
                (elem.drop $elements)
                (table.set $t (i32.const 1) (ref.func $inner))))
            (if (i32.eq (local.get $n) (i32.const 3)) (then (table.set $t (i32.const 1) (ref.null func))))
            (local.set $sum (i32.add (local.get $sum) (call $inner (local.get $n))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum))
    (func (export "caught") (param $n i32) (result i32)
        (drop (call $f (i32.const 0)))
        (call $inner (local.get $n)))
    (elem declare func $inner))"#;

const INNER: u32 = 1;

fn calls(skipped: u64, number: u64) -> Calls {
    Calls { function: INNER, skipped, number: NonZeroU64::new(number).unwrap() }
}

#[test]
fn calls_of_a_function_are_recorded_with_what_changes_in_between() {
    let (module, mut store, instance) = instance(CALLS);
    call(&mut store, instance, "outer", 2).unwrap();
    let before = code(&module);
    let trace = Trace::default();
    let recorder = CallRecorder::start::<u32>(&module, calls(1, 6), trace.clone()).unwrap();
    assert!(!recorder.has_ended());
    assert_ne!(code(&module), before);
    call(&mut store, instance, "outer", 8).unwrap();
    assert!(recorder.has_ended());
    assert_eq!((code(&module) == before, recorder.stop().unwrap()), (true, 6));
    check(&module, &trace.bytes(), COMPLETE);
    let found = events(&trace.bytes());
    let has = |wanted: &Event| found.contains(wanted);
    assert!(has(&Event::Snapshot) && has(&Event::Grow { memory: 0, pages: 1 }), "{found:?}");
    assert!(has(&Event::GrowTable { table: 0, elements: 2 }), "{found:?}");
    assert!(has(&Event::SetElement { table: 0, element: 1, value: Value::Func(Some(INNER)) }), "{found:?}");
    assert!(has(&Event::DropData { segment: 0 }) && has(&Event::DropElements { segment: 0 }), "{found:?}");
    // The second call is the recursive one with 8; the inner calls with 7 and 6 are part of it.
    let entered = found.iter().filter_map(|event| match event {
        Event::Enter { arguments, .. } => Some(arguments[0]),
        _ => None,
    });
    assert_eq!(entered.collect::<Vec<_>>(), [4, 7, 6, 5, 4, 3].map(Value::I32));
    let kinds: Vec<&Event> = found.iter().filter(|event| matches!(event, Event::Call { .. })).collect();
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}

/// The recording begins within a call that is already running, and stops within another one.
#[test]
fn a_host_function_starts_and_stops_the_recording() {
    let trace = Trace::default();
    let out = trace.clone();
    // In the middle of the recursion of `inner`.
    let act =
        records_between([2, 5], move |module| CallRecorder::start::<u32>(module, calls(0, 50), out.clone()));
    let (module, mut store, instance) = instance_with(CALLS, act);
    let before = code(&module);
    call(&mut store, instance, "outer", 8).unwrap();
    assert_eq!(code(&module), before);
    // Its observer has removed itself.
    assert!(!store.as_context_mut().is_observed());
    let found = events(&trace.bytes());
    assert!(matches!(found.last(), Some(Event::Call { .. })), "{found:?}");
    check(&module, &trace.bytes(), FAILED);
}

/// `main` and `phase` run when the recording begins, in the host function that `ask` calls.
const PHASES: &str = r#"(module
    (import "h" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1 9)
    (global $n (mut i32) (i32.const 0))
    (func $ask (param i32) (result i32)
        (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (local.get 0)))
        (i32.add (global.get $n) (call $f (i32.load (i32.const 8)))))
    (func $twice (param i32) (result i32)
        (i32.store (i32.const 16) (i32.const 3))
        (i32.add (call $ask (local.get 0)) (call $ask (i32.load (i32.const 16)))))
    (func $tail (param i32) (result i32) (return_call $ask (local.get 0)))
    (func $phase (param i32)
        (i32.store (i32.const 24) (call $ask (i32.const 1)))
        (i32.store (i32.const 32) (call $twice (i32.load (i32.const 24))))
        (drop (memory.grow (i32.const 1)))
        (i32.store (i32.const 40) (call $tail (i32.load (i32.const 32)))))
    (func (export "main") (param $rounds i32)
        (loop $again
            (global.set $n (i32.add (global.get $n) (i32.const 1)))
            (call $phase (local.get $rounds))
            (br_if $again (local.tee $rounds (i32.sub (local.get $rounds) (i32.const 1)))))))"#;

/// Functions that are running when the recording of all calls begins are a part of the host.
#[test]
fn all_calls_that_begin_from_now_on_are_recorded() {
    let [ask, twice, phase] = [1, 2, 4];
    for (number, entered) in [
        // The rest of the first phase, then two phases, which contain what they call; the host
        // stops it within the second one.
        (None, &[twice, ask, phase, phase][..]),
        (Some(3), &[twice, ask, phase]),
        (Some(1), &[twice]),
    ] {
        let number = number.map(|number| NonZeroU64::new(number).unwrap());
        let trace = Trace::default();
        let out = trace.clone();
        let act = records_between([1, 10], move |module| {
            CallRecorder::start_all::<u32>(module, number, out.clone())
        });
        let (module, mut store, instance) = instance_with(PHASES, act);
        let before = code(&module);
        call(&mut store, instance, "main", 4).unwrap();
        assert_eq!(code(&module), before);
        assert!(!store.as_context_mut().is_observed());
        let found = events(&trace.bytes());
        let functions = found.iter().filter_map(|event| match event {
            Event::Enter { function, .. } => Some(*function),
            _ => None,
        });
        assert_eq!(functions.collect::<Vec<_>>(), entered, "{found:?}");
        // What `main` and the first phase did between the calls is there.
        let has_grown = found.contains(&Event::Grow { memory: 0, pages: 1 });
        assert_eq!(has_grown, number != Some(NonZeroU64::MIN));
        check(&module, &trace.bytes(), if number.is_none() { FAILED } else { COMPLETE });
    }
    let (module, ..) = instance(PHASES);
    let unused = CallRecorder::start_all::<u32>(&module, None, Trace::default()).unwrap();
    assert!(matches!(unused.stop(), Err(Error::NothingCalled)));
    let (imports, ..) = instance(r#"(module (import "h" "f" (func (param i32) (result i32))))"#);
    let error = CallRecorder::start_all::<u32>(&imports, None, Trace::default()).unwrap_err();
    assert_eq!(error.to_string(), "cannot be recorded: a module without a function that returns");
}

/// The host keeps the address of a memory, and writes to a page that it has added.
#[test]
fn writes_through_an_address_reach_new_pages() {
    let act = |caller: &mut Caller<'_, u32>, _: &Module| {
        let memory = caller.get_export("memory").unwrap().into_memory().unwrap();
        let address = memory.data_ptr(&*caller);
        memory.grow(&mut *caller, 1)?;
        // SAFETY: the new page is there, and compiled code does not run.
        unsafe { address.add(65_536).write(42) };
        Ok(())
    };
    let program = r#"(module
        (import "h" "f" (func $f (param i32) (result i32)))
        (memory (export "memory") 1 2)
        (func (export "run") (result i32)
            (drop (call $f (i32.const 0)))
            (i32.load (i32.const 65536))))"#;
    let (module, mut store, instance) = instance_with(program, Arc::new(act));
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    recorder.attach(&mut store, instance).unwrap();
    call(&mut store, instance, "run", 0).unwrap();
    recorder.stop(&mut store).unwrap();
    check(&module, &trace.bytes(), COMPLETE);
}

/// A call that fails is the last one recorded; the program continues.
#[test]
fn a_call_that_fails_ends_the_recording() {
    for (argument, failing) in [(99, "the program"), (2, "the host")] {
        let act = move |caller: &mut Caller<'_, u32>, _: &Module| match *caller.data() {
            3 if argument == 2 => Err(EngineError::host("the host fails")),
            _ => Ok(()),
        };
        let (module, mut store, instance) = instance_with(CALLS, Arc::new(act));
        call(&mut store, instance, "outer", 1).unwrap();
        let before = code(&module);
        let trace = Trace::default();
        let recorder = CallRecorder::start::<u32>(&module, calls(0, 5), trace.clone()).unwrap();
        call(&mut store, instance, "caught", argument).unwrap_err();
        assert!(recorder.has_ended(), "{failing}");
        assert_eq!(code(&module), before, "{failing}");
        assert!(!store.as_context_mut().is_observed(), "{failing}");
        let length = trace.bytes().len();
        call(&mut store, instance, "outer", 3).unwrap();
        assert_eq!((recorder.stop().unwrap(), trace.bytes().len()), (1, length), "{failing}");
        let Some(Event::Fail { reason }) = events(&trace.bytes()).pop() else { panic!("it has failed") };
        assert_eq!(reason.is_some(), failing == "the program", "{reason:?}");
        check(&module, &trace.bytes(), FAILED);
    }
}

/// An error of the recording is not an error of the program.
#[test]
fn errors_of_the_recording_do_not_reach_the_program() {
    let (module, mut store, instance) = instance(CALLS);
    let before = code(&module);
    let other = CallRecorder::start::<u64>(&module, calls(0, 5), Vec::new()).unwrap();
    call(&mut store, instance, "outer", 2).unwrap();
    assert!(other.has_ended());
    let error = other.stop().unwrap_err().to_string();
    assert!(error.contains("a store with data of another type"), "{error}");

    // No call, and none that can be recorded.
    let never = CallRecorder::start::<u32>(&module, calls(9, 1), Vec::new()).unwrap();
    call(&mut store, instance, "outer", 2).unwrap();
    let stopped = never.stop().unwrap_err().to_string();
    assert_eq!(stopped, "nothing was recorded: the number of calls to `inner` in this run is 2");
    drop(CallRecorder::start::<u32>(&module, calls(0, 1), Vec::new()).unwrap());
    assert_eq!(code(&module), before);
    for (function, expected) in [(0, "`f`, which has no code"), (9, "`function[9]`, which has no code")] {
        let calls = Calls { function, ..calls(0, 1) };
        let error = CallRecorder::start::<u32>(&module, calls, Vec::new()).unwrap_err().to_string();
        assert_eq!(error, format!("cannot be recorded: {expected}"));
    }
}

/// Only the instance of the first call is recorded.
#[test]
fn other_instances_are_not_recorded() {
    let (module, mut store, instance) = instance(CALLS);
    let host = Func::wrap(&mut store, |value: i32| value).unwrap();
    let second = Instance::new(&mut store, &module, &[Extern::Func(host)]).unwrap();
    let trace = Trace::default();
    let recorder = CallRecorder::start::<u32>(&module, calls(0, 4), trace.clone()).unwrap();
    call(&mut store, instance, "outer", 2).unwrap();
    call(&mut store, second, "outer", 2).unwrap();
    assert!(!recorder.has_ended());
    call(&mut store, instance, "outer", 3).unwrap();
    assert_eq!(recorder.stop().unwrap(), 4);
    check(&module, &trace.bytes(), COMPLETE);
}
