//! Programs that import memories, tables and globals, which they share with the host.

use std::io::Cursor;

use crate::support::{
    Replayed, Trace, events, replay, replay_in_wasmi, replay_separately, replay_separately_in_wasmi, trace_of,
};
use wasm_jit::{
    AsContextMut, Caller, Engine, Extern, Func, Global, GlobalType, Instance, Linker, Memory, MemoryType,
    Module, Mutability, RefType, Store, Table, TableType, Val, ValType,
};
use wasm_jit_replay::{Event, Recorder, Value, generate, reduce, separate, slice};

/// `run` (3) reads what others have stored in the memory and in the globals. Segments and a global
/// of its own depend on the imported constant.
const PROGRAM: &str = r#"(module
    (import "h" "store" (func $store (param i32) (result i32)))
    (import "h" "memory" (memory $m 1))
    (import "h" "f" (func $f (param i32) (result i32)))
    (import "h" "base" (global $base i32))
    (import "h" "large" (memory $large i64 1))
    (import "h" "count" (global $count (mut i64)))
    (import "h" "table" (table $shared 2 funcref))
    (memory $own 1)
    (table $t 40 funcref)
    (global $next i32 (i32.add (global.get $base) (i32.const 5)))
    (elem (table $t) (global.get $base) func $double)
    (data (memory $m) (global.get $base) "data")
    (data (memory $own) (global.get $base) "own")
    (elem (table $shared) (i32.const 1) func $double $triple)
    (func $double (param i32) (result i32) (i32.shl (local.get 0) (i32.const 1)))
    (func $triple (export "triple") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
    (func $run (export "run") (param $n i32) (result i32) (local $sum i32)
        (loop $again
            (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) (i32.load $m (i32.const 16))))
            (local.set $sum (i32.add (local.get $sum) (i32.load $m (i32.const 200000))))
            (local.set $sum (i32.add (local.get $sum) (i32.load $large (i64.const 65532))))
            (local.set $sum (i32.add (local.get $sum) (i32.load $own (i32.const 16))))
            (local.set $sum (i32.add (local.get $sum) (i32.wrap_i64 (global.get $count))))
            (local.set $sum (i32.add (local.get $sum) (i32.add (global.get $next) (memory.size $m))))
            (local.set $sum (i32.add (local.get $sum)
                (call_indirect $t (param i32) (result i32) (i32.const 7) (global.get $base))))
            (local.set $sum (i32.add (local.get $sum) (table.size $shared)))
            (local.set $sum (i32.add (local.get $sum)
                (table.grow $shared (ref.null func) (i32.and (local.get $n) (i32.const 1)))))
            (if (i32.eqz (ref.is_null (table.get $shared (i32.const 3))))
                (then (local.set $sum (i32.add (local.get $sum)
                    (call_indirect $shared (param i32) (result i32) (local.get $sum) (i32.const 3))))))
            (local.set $sum (i32.xor (local.get $sum) (call $f (local.get $n))))
            (local.set $sum (i32.xor (local.get $sum) (call $store (local.get $sum))))
            ;; Not beyond the maximum of the memory that is imported.
            (local.set $sum (i32.add (local.get $sum) (memory.grow $m (i32.const 1))))
            (global.set $count (i64.add (global.get $count) (i64.const 1)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;

/// A recorded run, whose memories had contents before.
fn recorded() -> (Module, Vec<u8>) {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker: Linker<()> = Linker::new(&engine);
    let memory = Memory::new(&mut store, MemoryType::new(4, Some(6))).unwrap();
    memory.write(&mut store, 12, b"before and after the segment").unwrap();
    memory.write(&mut store, 199_999, &[1, 2, 3]).unwrap();
    let large = Memory::new(&mut store, MemoryType::new64(2, None)).unwrap();
    large.write(&mut store, 65_530, &[9; 100]).unwrap();
    let table =
        Table::new(&mut store, TableType::new(RefType::FUNCREF, 4, Some(6)), Val::FuncRef(None)).unwrap();
    let base =
        Global::new(&mut store, GlobalType::new(ValType::I32, Mutability::Const), Val::I32(16)).unwrap();
    let count =
        Global::new(&mut store, GlobalType::new(ValType::I64, Mutability::Var), Val::I64(-7)).unwrap();
    linker.define(&store, "h", "memory", memory).unwrap();
    linker.define(&store, "h", "large", large).unwrap();
    linker.define(&store, "h", "table", table).unwrap();
    linker.define(&store, "h", "base", base).unwrap();
    linker.define(&store, "h", "count", count).unwrap();
    let shared = move |mut caller: Caller<'_, ()>, value: i32| -> i32 {
        memory.write(&mut caller, 200_000, &value.to_le_bytes()).unwrap();
        memory.data_mut(&mut caller)[16..18].copy_from_slice(&value.to_le_bytes()[..2]);
        3
    };
    linker.func_wrap("h", "store", shared).unwrap();
    let f = move |mut caller: Caller<'_, ()>, value: i32| -> i32 {
        // Neither is exported.
        large.data_mut(&mut caller)[65_533] ^= value as u8;
        let sum = count.get(caller.as_context_mut()).unwrap_i64() * 3 + i64::from(value);
        count.set(&mut caller, Val::I64(sum)).unwrap();
        let Some(Extern::Func(triple)) = caller.get_export("triple") else { panic!("a function") };
        table.set(&mut caller, 3, Val::FuncRef((value % 3 != 0).then_some(triple))).unwrap();
        value + 1
    };
    linker.func_wrap("h", "f", f).unwrap();

    let module = Module::new(&engine, PROGRAM).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    run(&mut store, instance, 5);
    memory.write(&mut store, 17, &[77]).unwrap();
    count.set(&mut store, Val::I64(1 << 40)).unwrap();
    run(&mut store, instance, 2);
    assert_eq!(memory.size(&store), 6);
    (module, trace.bytes())
}

fn run(store: &mut Store<()>, instance: Instance, n: i32) {
    instance.get_typed_func::<i32, i32>(&*store, "run").unwrap().call(store, n).unwrap();
}

#[track_caller]
fn check(module: &Module, trace: &[u8]) {
    let bench = generate(module.bytes(), trace, true).unwrap();
    assert_eq!(Module::from_binary(module.engine(), &bench).unwrap().imports().len(), 0);
    assert_eq!(replay(&bench), Replayed::Complete { returned: true });
    assert_eq!(replay_in_wasmi(&bench), Replayed::Complete { returned: true });
}

#[test]
fn imported_memories_and_globals_are_replayed() {
    let (module, trace) = recorded();
    let found = events(&trace);
    let expected = [
        Event::ImportMemory { memory: 0, pages: 4, maximum: Some(6) },
        Event::ImportGlobal { global: 0, value: Value::I32(16) },
        Event::ImportMemory { memory: 1, pages: 2, maximum: None },
        Event::ImportGlobal { global: 1, value: Value::I64(-7) },
        Event::ImportTable { table: 0, elements: 4, maximum: Some(6) },
    ];
    assert_eq!(found[1..6], expected);
    assert_eq!(found[1].to_string(), "import memory=0 pages=4 maximum=6");
    assert_eq!(found[4].to_string(), "import global=1 i64:-7");
    assert_eq!(found[5].to_string(), "import table=0 elements=4 maximum=6");
    check(&module, &trace);

    let small = Trace::default();
    let reduced = reduce(&module, Cursor::new(trace.clone()), small.clone()).unwrap();
    assert!(reduced.bytes[1] < reduced.bytes[0], "{reduced:?}");
    check(&module, &small.bytes());

    let sliced = Trace::default();
    assert_eq!(slice(&module, 4, Cursor::new(trace.clone()), sliced.clone()).unwrap(), 2);
    check(&module, &sliced.bytes());
}

/// The values that the program reads first are those in the trace.
#[test]
fn a_changed_import_is_found() {
    let (module, trace) = recorded();
    let found = events(&trace);
    for (number, other) in [
        (1, Event::ImportMemory { memory: 0, pages: 5, maximum: Some(6) }),
        (1, Event::ImportMemory { memory: 0, pages: 4, maximum: None }),
        (4, Event::ImportGlobal { global: 1, value: Value::I64(-8) }),
        (5, Event::ImportTable { table: 0, elements: 5, maximum: Some(6) }),
        (5, Event::ImportTable { table: 0, elements: 4, maximum: None }),
    ] {
        let mut changed = found.clone();
        changed[number] = other;
        let bench = generate(module.bytes(), &trace_of(&changed)[..], true).unwrap();
        assert!(matches!(replay(&bench), Replayed::Differs(_)), "{:?}", changed[number]);
    }
}

#[test]
fn wrong_imports_are_errors() {
    let (module, trace) = recorded();
    let found = events(&trace);
    let generated = |events: &[Event]| generate(module.bytes(), &trace_of(events)[..], true);
    let reduced = |events: &[Event]| reduce(&module, Cursor::new(trace_of(events)), Trace::default());
    for (number, other) in [
        (1, Event::ImportMemory { memory: 0, pages: 0, maximum: Some(6) }),
        (1, Event::ImportMemory { memory: 0, pages: 7, maximum: Some(6) }),
        (1, Event::ImportMemory { memory: 0, pages: 1 << 40, maximum: None }),
        (1, Event::ImportMemory { memory: 1, pages: 4, maximum: Some(6) }),
        (2, Event::ImportGlobal { global: 0, value: Value::I64(16) }),
        (2, Event::ImportGlobal { global: 0, value: Value::Func(Some(0)) }),
        (4, Event::ImportGlobal { global: 2, value: Value::I64(16) }),
        (4, Event::Fail { reason: None }),
        (5, Event::ImportTable { table: 0, elements: 1, maximum: Some(6) }),
        (5, Event::ImportTable { table: 0, elements: 7, maximum: Some(6) }),
        (5, Event::ImportTable { table: 0, elements: 1 << 33, maximum: None }),
        (5, Event::ImportTable { table: 1, elements: 4, maximum: Some(6) }),
    ] {
        let mut changed = found.clone();
        changed[number] = other;
        generated(&changed).unwrap_err();
        let _ = reduced(&changed);
    }
    for missing in 1..6 {
        let mut changed = found.clone();
        changed.remove(missing);
        generated(&changed).unwrap_err();
        reduced(&changed).unwrap_err();
    }
    // The trace of a process that was killed at once.
    generated(&found[..1]).unwrap_err();
    reduced(&found[..1]).unwrap_err();
}

/// References to functions that the program imports: in its table, which the host sees and changes,
/// as arguments and as results.
#[test]
fn references_to_imported_functions_are_recorded() {
    let program = r#"(module
        (type $t (func (param i32) (result i32)))
        (import "h" "same" (func $same (param funcref) (result funcref)))
        (import "h" "f" (func $f (type $t)))
        (import "h" "g" (func $g (type $t)))
        (table $t (export "t") 3 funcref)
        (global $g (export "g") (mut funcref) (ref.func $g))
        (elem (i32.const 0) func $f $own)
        (func $own (type $t) (i32.mul (local.get 0) (i32.const 5)))
        (func (export "run") (param $n i32) (result i32)
            (table.set (i32.const 2) (call $same (global.get $g)))
            (call_indirect (type $t)
                (call_indirect (type $t) (local.get $n) (i32.const 0))
                (i32.const 2))))"#;
    for is_attached in [false, true] {
        let engine = Engine::default();
        let mut store = Store::new(&engine, ());
        let mut linker: Linker<()> = Linker::new(&engine);
        linker.func_wrap("h", "f", |n: i32| n + 7).unwrap();
        linker.func_wrap("h", "g", |n: i32| n * 11).unwrap();
        linker.func_wrap("h", "same", |func: Option<Func>| func).unwrap();
        let module = Module::new(&engine, program).unwrap();
        let trace = Trace::default();
        let recorder = Recorder::new(&module, trace.clone()).unwrap();
        let instance = match is_attached {
            true => linker.instantiate(&mut store, &module).unwrap(),
            false => recorder.instantiate(&mut store, &linker).unwrap(),
        };
        if is_attached {
            recorder.attach(&mut store, instance).unwrap();
        }
        run(&mut store, instance, 1);
        // The host exchanges two functions.
        let (table, global) =
            (instance.get_table(&store, "t").unwrap(), instance.get_global(&store, "g").unwrap());
        let [first, second] = [table.get(&mut store, 0).unwrap(), global.get(&mut store)];
        table.set(&mut store, 0, second).unwrap();
        global.set(&mut store, first).unwrap();
        run(&mut store, instance, 2);
        recorder.stop(&mut store).unwrap();
        let found = events(&trace.bytes());
        let argument = |index| Event::Call { import: 0, arguments: vec![Value::Func(Some(index))] };
        assert!(found.contains(&argument(2)) && found.contains(&argument(1)), "{found:?}");
        check(&module, &trace.bytes());
        let modules = separate(module.bytes(), &trace.bytes()[..], true).unwrap();
        let complete = Replayed::Complete { returned: true };
        let replayed = (replay_separately(&modules), replay_separately_in_wasmi(&modules));
        assert_eq!(replayed, (complete, complete));
        let small = Trace::default();
        reduce(&module, Cursor::new(trace.bytes()), small.clone()).unwrap();
        check(&module, &small.bytes());
        // Another import in the table is another call.
        let mut changed = found;
        let set = changed.iter_mut().rev().find_map(|event| match event {
            Event::SetElement { element: 0, value, .. } => Some(value),
            _ => None,
        });
        *set.unwrap() = Value::Func(Some(1));
        let replayed = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
        assert!(matches!(replayed, Replayed::Differs(_)), "{replayed:?}");
    }
}
