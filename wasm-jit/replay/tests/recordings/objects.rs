//! Programs with objects: recordings of complete runs are replayed in all forms; if objects would
//! begin with a different state in the replay, the recording is refused.

use std::io::Cursor;
use std::num::NonZeroU64;

use crate::support::{Replayed, Trace, events, replay, replay_separately, trace_of};
use wasm_jit::{Engine, Instance, Linker, Module, Store};
use wasm_jit_replay::{
    CallRecorder, Calls, Error, Event, Recorder, Value, generate, javascript, reduce, separate, slice,
};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// Keeps a list of what the host returns. Function types are between those of objects, alone and in
/// a group.
const PROGRAM: &str = r#"(module
    (type $cell (array (mut i64)))
    (rec
        (type $list (sub (struct (field $next (ref null $list)) (field $value (mut i32)))))
        (type $step (func (param i32) (result i32)))
        (type $more (sub final $list (struct (field (ref null $list)) (field (mut i32)) (field (ref $cell))))))
    (type $sink (func (param f64 i32) (result i32)))
    (import "h" "sink" (func $sink (type $sink)))
    (import "h" "memory" (memory 1))
    (global $cell (ref $cell) (array.new $cell (i64.const 3) (i32.const 4)))
    (global $all (mut (ref null $list)) (ref.null none))
    (table $t 2 (ref null $list))
    (elem $words (ref $list) (struct.new $list (ref.null none) (i32.const 9)))
    (elem declare func $add)
    (func $add (type $step) (local $n i32)
        (array.set $cell (global.get $cell) (i32.const 1)
            (i64.add (array.get $cell (global.get $cell) (i32.const 1)) (i64.extend_i32_u (local.get 0))))
        (local.set $n
            (call $sink (f64.convert_i64_u (array.get $cell (global.get $cell) (i32.const 1))) (local.get 0)))
        (global.set $all (struct.new $more (global.get $all) (local.get $n) (global.get $cell)))
        (table.set $t (i32.const 1) (global.get $all))
        (i32.load (i32.const 8)))
    (func (export "sum") (param i32) (result i32) (local $list (ref null $list)) (local $sum i32)
        (local.set $sum (call_ref $step (local.get 0) (ref.func $add)))
        (table.init $t $words (i32.const 0) (i32.const 0) (i32.const 1))
        (local.set $list (table.get $t (i32.const 1)))
        (loop $again
            (local.set $sum (i32.add (local.get $sum) (struct.get $list $value (ref.as_non_null (local.get $list)))))
            (if (ref.test (ref $more) (local.get $list)) (then (local.set $sum (i32.mul (local.get $sum) (i32.const 3)))))
            (br_if $again (i32.eqz (ref.is_null
                (local.tee $list (struct.get $list $next (ref.as_non_null (local.get $list))))))))
        (local.get $sum)))"#;

/// A recorded run, with the sums that the program has returned.
fn recorded() -> (Module, Vec<u8>, Vec<Value>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let memory = Module::new(&engine, r#"(module (memory (export "memory") 1))"#).unwrap();
    let memory = linker.instantiate(&mut store, &memory).unwrap().get_memory(&store, "memory").unwrap();
    linker.define(&store, "h", "memory", memory).unwrap();
    linker
        .func_wrap("h", "sink", move |mut caller: wasm_jit::Caller<'_, ()>, x: f64, n: i32| {
            memory.write(&mut caller, 8, &[n as u8]).unwrap();
            (x * 1.5) as i32 ^ n
        })
        .unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let sums = [5, 77, 300].map(|n| Value::I32(call(&mut store, instance, "sum", n)));
    (module, trace.bytes(), sums.into())
}

fn call(store: &mut Store<()>, instance: Instance, name: &str, n: i32) -> i32 {
    instance.get_typed_func::<i32, i32>(&*store, name).unwrap().call(store, n).unwrap()
}

#[test]
fn a_program_with_objects_is_replayed() {
    let (module, trace, sums) = recorded();
    let returned = |event: Event| match event {
        Event::Leave { results } => Some(results[0]),
        _ => None,
    };
    assert_eq!(events(&trace).into_iter().filter_map(returned).collect::<Vec<_>>(), sums);
    let small = Trace::default();
    reduce(&module, Cursor::new(trace.clone()), small.clone()).unwrap();
    for trace in [&trace, &small.bytes()] {
        assert_eq!(replay(&generate(module.bytes(), &trace[..], true).unwrap()), COMPLETE);
        assert_eq!(replay_separately(&separate(module.bytes(), &trace[..], true).unwrap()), COMPLETE);
        let made = javascript(module.bytes(), &trace[..]).unwrap();
        Module::from_binary(module.engine(), &made.program).unwrap();
    }
}

#[test]
fn a_difference_in_a_program_with_objects_is_found() {
    let (module, trace, _) = recorded();
    let all = events(&trace);
    let calls = all.iter().enumerate().filter(|(_, event)| matches!(event, Event::Return { .. }));
    for (number, _) in calls {
        let mut changed = all.clone();
        changed[number] = Event::Return { results: vec![Value::I32(-1)] };
        let changed = trace_of(&changed);
        for found in [
            replay(&generate(module.bytes(), &changed[..], true).unwrap()),
            replay_separately(&separate(module.bytes(), &changed[..], true).unwrap()),
        ] {
            assert!(matches!(found, Replayed::Differs(at) if at > number as i32), "{number}: {found:?}");
        }
    }
}

/// `change` changes an object in each location that remains between two calls, `look` reads it.
fn with_object(place: &str, object: &str) -> String {
    format!(
        r#"(module
            (type $box (struct (field (mut i32))))
            (type $none (func))
            {place}
            (func $other)
            (func $object (result (ref $box)) (ref.as_non_null {object}))
            (func (export "change") (param i32) (result i32)
                (struct.set $box 0 (call $object) (local.get 0))
                (i32.const 0))
            (func (export "look") (param i32) (result i32) (struct.get $box 0 (call $object))))"#
    )
}

/// The index of `look`.
const LOOK: u32 = 3;

fn instance(text: &str) -> (Module, Store<()>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (module, store, instance)
}

/// The recording of an instance after `change`.
fn attached(text: &str) -> Result<(), Error> {
    let (module, mut store, instance) = instance(text);
    call(&mut store, instance, "change", 7);
    Recorder::new(&module, Trace::default()).unwrap().attach(&mut store, instance)
}

/// The recording of a call to `look` after `change`.
fn called(text: &str) -> Result<u64, Error> {
    let (module, mut store, instance) = instance(text);
    let calls = Calls { function: LOOK, skipped: 0, number: NonZeroU64::MIN };
    let recorder = CallRecorder::start::<()>(&module, calls, Trace::default()).unwrap();
    call(&mut store, instance, "change", 7);
    assert_eq!(call(&mut store, instance, "look", 0), 7);
    recorder.stop()
}

/// The slice of the calls to `look`, from a recording of the entire run.
fn sliced(text: &str) -> Result<u64, Error> {
    let engine = Engine::default();
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &Linker::new(&engine)).unwrap();
    call(&mut store, instance, "change", 7);
    call(&mut store, instance, "look", 0);
    slice(&module, LOOK, Cursor::new(trace.bytes()), Trace::default())
}

#[test]
fn objects_that_may_have_changed_are_refused() {
    let new = "(struct.new $box (i32.const 1))";
    let places = [
        (format!("(global $g (ref $box) {new})"), "(global.get $g)"),
        (format!("(global $g externref (extern.convert_any {new}))"), FROM_EXTERN),
        (format!("(global $g (mut (ref null $box)) {new})"), "(global.get $g)"),
        (format!("(table $t 1 (ref null $box) {new})"), "(table.get $t (i32.const 0))"),
        (
            format!("(table $t 1 (ref null $box)) (elem (table $t) (i32.const 0) (ref $box) {new})"),
            "(table.get $t (i32.const 0))",
        ),
        (format!("(type $boxes (array (ref null $box))) (elem $e (ref null $box) {new})"), FROM_SEGMENT),
    ];
    for (place, object) in places {
        let text = with_object(&place, object);
        let errors = [attached(&text).err(), called(&text).err(), sliced(&text).err()];
        for error in errors {
            assert!(matches!(error, Some(Error::Unsupported { .. })), "{place}: {error:?}");
        }
    }
}

const FROM_EXTERN: &str = "(ref.cast (ref $box) (any.convert_extern (global.get $g)))";
const FROM_SEGMENT: &str =
    "(array.get $boxes (array.new_elem $boxes $e (i32.const 0) (i32.const 1)) (i32.const 0))";

/// Values that no call can change need no event: functions, small integers, and null.
#[test]
fn constants_without_objects_are_recorded() {
    let place = r#"
        (global $null (ref null $box) (ref.null none))
        (global $small (ref i31) (ref.i31 (i32.const 5)))
        (global $function (ref $none) (ref.func $other))
        (global $n (mut i32) (i32.const 0))
        (elem $e (ref $none) (ref.func $other))
        (elem $x externref (ref.null extern))
        (table $t 1 funcref (ref.func $other))"#;
    let text = with_object(place, "(struct.new $box (i32.const 7))").replace(
        "(struct.get $box 0 (call $object))",
        "(i32.add (i31.get_s (global.get $small)) (i32.mul (i32.const 2) (ref.is_null (global.get $null))))",
    );
    attached(&text).unwrap();
    assert_eq!((called(&text).unwrap(), sliced(&text).unwrap()), (1, 1));
}
