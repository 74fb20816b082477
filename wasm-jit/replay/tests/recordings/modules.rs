//! Linked instances: one is recorded, the others are a part of its host.

use std::io::Cursor;

use crate::support::{Replayed, Trace, events, reduced, replay, replay_in_wasmi, trace_of};
use wasm_jit::{
    Caller, Engine, Error as EngineError, Global, GlobalType, Instance, Linker, Module, Mutability, RefType,
    Store, Table, TableType, Val, ValType,
};
use wasm_jit_replay::{Event, Recorder, Value, generate, reduce};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// Owns a memory, and changes what it shares with others, depending on its argument. It also calls
/// the host.
const LIBRARY: &str = r#"(module
    (import "h" "table" (table $t 2 10 funcref))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "note" (func $note (param i32)))
    (memory (export "memory") 1 9)
    (memory $own 1)
    (data (i32.const 5000) "library")
    (func $work (export "work") (param $n i32) (param $f funcref) (result i32)
        (call $note (local.get $n))
        (global.set $count (i64.add (global.get $count) (i64.extend_i32_u (local.get $n))))
        (i32.store (i32.const 100) (i32.mul (local.get $n) (i32.const 3)))
        (i32.store8 (i32.add (i32.const 300) (local.get $n)) (local.get $n))
        (i32.store $own (i32.const 100) (i32.add (i32.load $own (i32.const 100)) (i32.const 1)))
        (if (i32.eq (local.get $n) (i32.const 3))
            (then
                (drop (memory.grow (i32.const 1)))
                (i32.store (i32.const 131068) (i32.const 77))))
        (if (i32.eq (local.get $n) (i32.const 4))
            (then
                (table.set $t (i32.const 1) (local.get $f))
                (drop (table.grow $t (ref.null func) (i32.const 1)))
                (drop (table.grow $t (local.get $f) (i32.const 1)))))
        (if (i32.eq (local.get $n) (i32.const 5)) (then (table.set $t (i32.const 1) (ref.null func))))
        (i32.load $own (i32.const 100))))"#;

/// `run` calls the library, and reads all that it shares with it.
const PROGRAM: &str = r#"(module
    (import "lib" "work" (func $work (param i32 funcref) (result i32)))
    (import "lib" "memory" (memory $m 1))
    (import "h" "table" (table $t 2 10 funcref))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "note" (func $note (param i32)))
    (memory $hidden 1)
    (type $t (func (result i32)))
    (func $nine (export "nine") (type $t) (i32.const 9))
    (elem declare func $nine)
    (func $look (result i32) (local $sum i32)
        (local.set $sum (i32.add (i32.load (i32.const 100)) (i32.load (i32.const 5000))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (i32.load (i32.const 303))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (memory.size $m)))
        (if (i32.gt_u (memory.size $m) (i32.const 1))
            (then (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 131068))))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (i32.wrap_i64 (global.get $count))))
        (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (table.size $t)))
        (if (i32.eqz (ref.is_null (table.get $t (i32.const 1))))
            (then (local.set $sum (i32.add (local.get $sum) (call_indirect $t (type $t) (i32.const 1))))))
        (if (i32.gt_u (table.size $t) (i32.const 3))
            (then (local.set $sum (i32.add (local.get $sum) (call_indirect $t (type $t) (i32.const 3))))))
        (local.get $sum))
    (func $run (export "run") (param $n i32) (result i32) (local $sum i32)
        (local.set $sum (call $look))
        (local.set $sum (i32.add (local.get $sum) (call $work (local.get $n) (ref.func $nine))))
        (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 100))))
        (i32.store (i32.const 100) (local.get $sum))
        (i32.store $hidden (i32.const 4) (local.get $sum))
        (global.set $count (i64.mul (global.get $count) (i64.const 2)))
        (call $note (local.get $sum))
        (i32.add (local.get $sum) (call $look))))"#;

/// The linker of a host that records numbers.
fn linker(store: &mut Store<Vec<i32>>) -> Linker<Vec<i32>> {
    let mut linker = Linker::new(store.engine());
    linker
        .func_wrap("h", "note", |mut caller: Caller<'_, Vec<i32>>, n: i32| caller.data_mut().push(n))
        .unwrap();
    let table = TableType::new(RefType::FUNCREF, 2, Some(10));
    let table = Table::new(&mut *store, table, Val::FuncRef(None)).unwrap();
    linker.define(&*store, "h", "table", table).unwrap();
    let count = GlobalType::new(ValType::I64, Mutability::Var);
    let count = Global::new(&mut *store, count, Val::I64(5)).unwrap();
    linker.define(&*store, "h", "count", count).unwrap();
    linker
}

fn call(store: &mut Store<Vec<i32>>, instance: Instance, name: &str, n: i32) -> Result<i32, EngineError> {
    instance.get_typed_func::<i32, i32>(&*store, name).unwrap().call(store, n)
}

/// Checks that a trace and its reduction repeat, here and in wasmi.
#[track_caller]
fn check(module: &Module, trace: &[u8]) {
    let small = reduced(module, trace);
    for trace in [trace, &small] {
        let bench = generate(module.bytes(), trace, true).unwrap();
        assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (COMPLETE, COMPLETE));
    }
}

/// A recorded run of the program with its library: the program's trace, the numbers that the host
/// has recorded, and the results.
fn program_and_library() -> (Module, Vec<u8>, Vec<i32>) {
    let engine = Engine::default();
    let mut store = Store::new(&engine, Vec::new());
    let mut linker = linker(&mut store);
    let library = linker.instantiate(&mut store, &Module::new(&engine, LIBRARY).unwrap()).unwrap();
    linker.instance(&store, "lib", library).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let mut results = Vec::new();
    for n in 1..8 {
        results.push(call(&mut store, instance, "run", n).unwrap());
        // The host calls the library, too; and both of its memories change.
        let work = library.get_func(&store, "work").unwrap();
        work.call(&mut store, &[Val::I32(200 + n), Val::FuncRef(None)], &mut [Val::I32(0)]).unwrap();
    }
    recorder.stop(&mut store).unwrap();
    results.extend(store.data());
    (module, trace.bytes(), results)
}

/// The same without a recorder.
fn unrecorded() -> Vec<i32> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, Vec::new());
    let mut linker = linker(&mut store);
    let library = linker.instantiate(&mut store, &Module::new(&engine, LIBRARY).unwrap()).unwrap();
    linker.instance(&store, "lib", library).unwrap();
    let instance = linker.instantiate(&mut store, &Module::new(&engine, PROGRAM).unwrap()).unwrap();
    let mut results = Vec::new();
    for n in 1..8 {
        results.push(call(&mut store, instance, "run", n).unwrap());
        let work = library.get_func(&store, "work").unwrap();
        work.call(&mut store, &[Val::I32(200 + n), Val::FuncRef(None)], &mut [Val::I32(0)]).unwrap();
    }
    results.extend(store.data());
    results
}

#[test]
fn what_another_instance_does_is_done_by_the_host() {
    let (module, trace, results) = program_and_library();
    assert_eq!(results, unrecorded(), "the recorder changes nothing");
    check(&module, &trace);
    let found = events(&trace);
    let has = |wanted: &Event| found.contains(wanted);
    // The call with 4: `nine` has index 2.
    let nine = Value::Func(Some(2));
    assert!(has(&Event::Call { import: 0, arguments: vec![Value::I32(4), nine] }), "{found:?}");
    assert!(has(&Event::Grow { memory: 0, pages: 1 }), "{found:?}");
    assert!(has(&Event::Write { memory: 0, address: 131_068, bytes: vec![77] }), "{found:?}");
    assert!(has(&Event::GrowTable { table: 0, elements: 2 }), "{found:?}");
    assert!(has(&Event::SetElement { table: 0, element: 1, value: nine }), "{found:?}");
    assert!(has(&Event::SetElement { table: 0, element: 3, value: nine }), "{found:?}");
    assert!(has(&Event::SetElement { table: 0, element: 1, value: Value::Func(None) }), "{found:?}");
    // Only its own: in the library, each call records a number, too.
    let notes = found.iter().filter(|event| matches!(event, Event::Call { import: 1, .. })).count();
    assert_eq!(notes, 7);
    // And only shared memories.
    assert!(!found.iter().any(|event| matches!(event, Event::Write { memory: 1.., .. })), "{found:?}");
}

/// Each change by the other instance, and each call, one after the other.
#[test]
fn a_changed_effect_of_another_instance_is_found() {
    let (module, trace, _) = program_and_library();
    let all = events(&trace);
    let mut planted = 0;
    for (number, event) in
        all.iter().enumerate().skip_while(|(_, event)| !matches!(event, Event::Enter { .. }))
    {
        let mut changed = all.clone();
        match &mut changed[number] {
            Event::Write { address: 100, bytes, .. } => bytes[0] ^= 1,
            Event::Write { address: 131_068, bytes, .. } => bytes[0] ^= 1,
            Event::Return { results } if !results.is_empty() => results[0] = Value::I32(12_345),
            Event::SetGlobal { value: Value::I64(value), .. } => *value ^= 1,
            Event::SetElement { element: 1, value, .. } => {
                *value = Value::Func((*value == Value::Func(None)).then_some(2))
            }
            _ => continue,
        }
        planted += 1;
        let found = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
        assert!(matches!(found, Replayed::Differs(at) if at > number as i32), "{event}: {found:?}");
    }
    assert!(planted >= 25, "{planted}");
}

/// Called by others; reads what they have stored in its memory, and throws.
const LIBRARY_OF_OTHERS: &str = r#"(module
    (import "h" "note" (func $note (param i32)))
    (tag $e (export "e") (param i32))
    (memory (export "memory") 1 9)
    (table (export "table") 2 10 funcref)
    (func $one (export "one") (result i32) (i32.const 1))
    (func (export "parse") (param $at i32) (result i32) (local $sum i32)
        (call $note (local.get $at))
        (if (i32.eqz (i32.load8_u (local.get $at))) (then (throw $e (local.get $at))))
        (loop $again
            (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (i32.load8_u (local.get $at))))
            (i32.store8 (local.get $at) (i32.const 46))
            (br_if $again (i32.load8_u (local.tee $at (i32.add (local.get $at) (i32.const 1))))))
        (local.get $sum)))"#;

/// Calls the library, from its own code and from its start function.
const MAIN: &str = r#"(module
    (import "lib" "e" (tag $e (param i32)))
    (import "lib" "memory" (memory $m 1))
    (import "lib" "parse" (func $parse (param i32) (result i32)))
    (import "lib" "one" (func $one (result i32)))
    (data $text "to be parsed\00by the library")
    (data (i32.const 10) "segment")
    (global $sum (mut i32) (i32.const 0))
    (func $start (global.set $sum (call $parse (i32.const 10))))
    (start $start)
    (func (export "main") (param $n i32) (result i32)
        (memory.init $text (local.get $n) (i32.const 0) (i32.const 27))
        (if (i32.eq (local.get $n) (i32.const 600))
            (then (drop (memory.grow (i32.const 2))) (i32.store8 (i32.const 196607) (i32.const 5))))
        (global.set $sum (i32.add (global.get $sum) (call $parse (local.get $n))))
        (global.set $sum (i32.add (global.get $sum) (call $one)))
        (global.set $sum (i32.add (global.get $sum)
            (block $caught (result i32)
                (try_table (result i32) (catch $e $caught)
                    (call $parse (i32.add (local.get $n) (i32.const 12)))))))
        (if (i32.eq (local.get $n) (i32.const 700)) (then (drop (call $parse (i32.const 9000)))))
        (global.get $sum)))"#;

/// The recorded instance is the library, which is there before the others.
#[test]
fn calls_by_another_instance_are_calls_by_the_host() {
    for is_attached in [false, true] {
        let engine = Engine::default();
        let mut store = Store::new(&engine, Vec::new());
        let mut linker = linker(&mut store);
        let module = Module::new(&engine, LIBRARY_OF_OTHERS).unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let library = if is_attached {
            let library = linker.instantiate(&mut store, &module).unwrap();
            recorder.attach(&mut store, library).unwrap();
            library
        } else {
            recorder.instantiate(&mut store, &linker).unwrap()
        };
        linker.instance(&store, "lib", library).unwrap();
        // Its segment and its start function are among the effects.
        let main = linker.instantiate(&mut store, &Module::new(&engine, MAIN).unwrap()).unwrap();
        for n in [500, 600, 20] {
            call(&mut store, main, "main", n).unwrap();
        }
        let uncaught = call(&mut store, main, "main", 700).unwrap_err();
        assert!(matches!(uncaught, EngineError::Exception { .. }), "{uncaught}");
        call(&mut store, library, "parse", 20).unwrap();
        recorder.stop(&mut store).unwrap();
        call(&mut store, main, "main", 30).unwrap();

        let small = Trace::default();
        reduce(&module, Cursor::new(trace.bytes()), small.clone()).unwrap();
        for trace in [trace.bytes(), small.bytes()] {
            assert_eq!(replay(&generate(module.bytes(), &trace[..], true).unwrap()), COMPLETE);
        }
        let found = events(&trace.bytes());
        let count = |wanted: fn(&Event) -> bool| found.iter().filter(|event| wanted(event)).count();
        // The start function, three and more in each of four calls, and one by the host.
        assert_eq!(count(|event| matches!(event, Event::Enter { function: 2, .. })), 1 + 4 * 2 + 1 + 1);
        assert_eq!(count(|event| matches!(event, Event::Throw(_))), 5);
        assert_eq!(count(|event| matches!(event, Event::Grow { memory: 0, pages: 2 })), 1);
        assert!(found.contains(&Event::Write { memory: 0, address: 10, bytes: b"segment".to_vec() }));
        assert!(found.contains(&Event::Write { memory: 0, address: 196_607, bytes: vec![5] }));
    }
}

/// The same run, twice: a trace of each instance.
#[test]
fn each_instance_has_a_trace() {
    let mut sums = Vec::new();
    for of_main in [false, true] {
        let engine = Engine::default();
        let mut store = Store::new(&engine, Vec::new());
        let mut linker = linker(&mut store);
        let modules = [LIBRARY_OF_OTHERS, MAIN].map(|text| Module::new(&engine, text).unwrap());
        let trace = Trace::default();
        let recorder = Recorder::new(&modules[usize::from(of_main)], trace.clone()).unwrap();
        let [_, main] = if of_main {
            let library = linker.instantiate(&mut store, &modules[0]).unwrap();
            linker.instance(&store, "lib", library).unwrap();
            [library, recorder.instantiate(&mut store, &linker).unwrap()]
        } else {
            let library = recorder.instantiate(&mut store, &linker).unwrap();
            linker.instance(&store, "lib", library).unwrap();
            [library, linker.instantiate(&mut store, &modules[1]).unwrap()]
        };
        sums.push([500, 600, 20].map(|n| call(&mut store, main, "main", n).unwrap()));
        let bench = generate(modules[usize::from(of_main)].bytes(), &trace.bytes()[..], true).unwrap();
        assert_eq!(replay(&bench), COMPLETE, "{of_main}");
        // The other one has `try_table`, which Node.js 20 does not support.
        if !of_main {
            crate::javascript::check(modules[0].bytes(), &trace.bytes());
        }
    }
    assert_eq!(sums[0], sums[1]);
}

/// In a replay, there would be two of them.
#[test]
fn one_item_that_is_imported_twice_is_refused() {
    let engine = Engine::default();
    for (kind, name) in [("table 2 10 funcref", "table"), ("global (mut i64)", "count")] {
        let text = format!(r#"(module (import "h" "{name}" ({kind})) (import "h" "{name}" ({kind})))"#);
        let mut store = Store::new(&engine, Vec::new());
        let linker = linker(&mut store);
        let recorder = Recorder::new(&Module::new(&engine, text).unwrap(), Vec::new()).unwrap();
        let error = recorder.instantiate(&mut store, &linker).unwrap_err().to_string();
        let kind = kind.split(' ').next().unwrap();
        assert_eq!(
            error,
            format!("cannot be recorded: the import h.{name}, the same {kind} as an import before")
        );
    }
}

/// A host that calls functions of both instances at random, including from within the other one.
const POKED: &str = r#"(module
    (import "h" "back" (func $back (param i32) (result i32)))
    (import "lib" "memory" (memory $m 1))
    (import "h" "count" (global $count (mut i64)))
    (func (export "poke") (param $at i32) (param $value i64) (result i32)
        (i64.store (local.get $at) (local.get $value))
        (global.set $count (i64.xor (global.get $count) (local.get $value)))
        (if (i64.eqz (i64.and (local.get $value) (i64.const 15))) (then (drop (memory.grow (i32.const 1)))))
        (memory.fill (i32.add (local.get $at) (i32.const 100)) (i32.wrap_i64 (local.get $value)) (i32.const 9))
        (drop (call $back (local.get $at)))
        (i64.store32 (i32.add (local.get $at) (i32.const 500)) (global.get $count))
        (memory.size)))"#;

/// The recorded one: it also has the memory.
const RANDOM: &str = r#"(module
    (import "h" "back" (func $back (param i32) (result i32)))
    (import "h" "count" (global $count (mut i64)))
    (memory $m (export "memory") 1 9)
    (global $s (mut i64) (i64.const 1))
    (func $mix (param i64)
        (global.set $s (i64.add (i64.mul (i64.xor (global.get $s) (local.get 0))
            (i64.const 6364136223846793005)) (i64.const 1442695040888963407))))
    (func $at (result i32) (i32.and (i32.wrap_i64 (i64.shr_u (global.get $s) (i64.const 33))) (i32.const 2047)))
    (func (export "run") (param $n i32) (result i32)
        (loop $again
            (call $mix (i64.load (call $at)))
            (call $mix (global.get $count))
            (call $mix (i64.extend_i32_u (memory.size)))
            (i64.store16 (call $at) (global.get $s))
            (global.set $count (i64.add (global.get $count) (i64.const 1)))
            (call $mix (i64.extend_i32_u (call $back (local.get $n))))
            (call $mix (i64.load (call $at)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (i32.wrap_i64 (global.get $s))))"#;

struct Random {
    state: u64,
    depth: u32,
    /// The recorded instance, and the other one.
    instances: Vec<Instance>,
}

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        crate::support::random(&mut self.state, below)
    }
}

fn back(caller: &mut Caller<'_, Random>, n: i32) -> Result<i32, EngineError> {
    if caller.data().depth >= 4 || caller.data().instances.len() < 2 {
        return Ok(n);
    }
    caller.data_mut().depth += 1;
    for _ in 0..caller.data_mut().next(3) {
        let [recorded, other] = caller.data().instances[..] else { panic!("two") };
        let memory = recorded.get_memory(&*caller, "memory").unwrap();
        let at = caller.data_mut().next(2048) as usize;
        match caller.data_mut().next(5) {
            0 => memory.write(&mut *caller, at, &[n as u8, 1, 2])?,
            1 => {
                let run = recorded.get_func(&*caller, "run").unwrap();
                run.call(&mut *caller, &[Val::I32(1 + n.rem_euclid(2))], &mut [Val::I32(0)])?;
            }
            _ => {
                let (poke, value) =
                    (other.get_func(&*caller, "poke").unwrap(), caller.data_mut().next(1 << 31));
                poke.call(&mut *caller, &[Val::I32(at as i32), Val::I64(value as i64)], &mut [Val::I32(0)])?;
            }
        }
    }
    caller.data_mut().depth -= 1;
    Ok(n.wrapping_mul(3))
}

#[test]
fn replays_of_random_calls_between_instances_equal_their_recordings() {
    let mut others = 0;
    for seed in 0..40 {
        let engine = Engine::default();
        let mut store = Store::new(&engine, Random { state: seed, depth: 0, instances: Vec::new() });
        let mut linker: Linker<Random> = Linker::new(&engine);
        linker.func_wrap("h", "back", |mut caller: Caller<'_, Random>, n: i32| back(&mut caller, n)).unwrap();
        let count = GlobalType::new(ValType::I64, Mutability::Var);
        let count = Global::new(&mut store, count, Val::I64(5)).unwrap();
        linker.define(&store, "h", "count", count).unwrap();
        let module = Module::new(&engine, RANDOM).unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let recorded = recorder.instantiate(&mut store, &linker).unwrap();
        linker.instance(&store, "lib", recorded).unwrap();
        let other = linker.instantiate(&mut store, &Module::new(&engine, POKED).unwrap()).unwrap();
        store.data_mut().instances = vec![recorded, other];
        for n in 1..4 {
            recorded.get_typed_func::<i32, i32>(&store, "run").unwrap().call(&mut store, n).unwrap();
            let poke = other.get_func(&store, "poke").unwrap();
            let arguments = [Val::I32(64 * n), Val::I64(n.into())];
            poke.call(&mut store, &arguments, &mut [Val::I32(0)]).unwrap();
        }
        let found = events(&trace.bytes());
        others += found.iter().filter(|event| matches!(event, Event::Grow { .. })).count();
        check(&module, &trace.bytes());
        if seed % 4 == 0 {
            crate::javascript::check(module.bytes(), &trace.bytes());
        }
    }
    assert!(others > 10, "{others}");
}
