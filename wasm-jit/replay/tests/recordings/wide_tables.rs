//! Tables whose indices have 64 bits, imported and the program's own.

use std::io::Cursor;

use crate::support::{
    Replayed, Trace, events, replay, replay_in_wasmi, replay_separately, replay_separately_in_wasmi, trace_of,
};
use wasm_jit::{Caller, Engine, Extern, Linker, Module, RefType, Store, Table, TableType, Val};
use wasm_jit_replay::{Event, Recorder, Value, generate, javascript, reduce, separate};

const COMPLETE: Replayed = Replayed::Complete { returned: true };

/// `look` depends on the contents of both tables.
const PROGRAM: &str = r#"(module
    (import "h" "change" (func $change (param i32)))
    (import "h" "table" (table $t i64 2 20 funcref))
    (table $own (export "own") i64 1 9 funcref)
    (type $number (func (result i32)))
    (func $seven (export "seven") (type $number) (i32.const 7))
    (func $nine (export "nine") (type $number) (i32.const 9))
    (func $at (param $i i64) (result i32)
        (if (result i32) (ref.is_null (table.get $t (local.get $i)))
            (then (i32.const 1))
            (else (call_indirect $t (type $number) (local.get $i)))))
    (func (export "look") (param $n i32) (result i64)
        (table.set $own (i64.const 0) (ref.func $nine))
        (call $change (local.get $n))
        (i64.add
            (i64.add (i64.mul (table.size $t) (i64.const 100)) (i64.mul (table.size $own) (i64.const 10000)))
            (i64.extend_i32_u (i32.add (i32.add (call $at (i64.const 0)) (call $at (i64.const 1)))
                (ref.is_null (table.get $own (i64.const 0))))))))"#;

fn change(caller: &mut Caller<'_, Option<Table>>, n: i32) -> Result<(), wasm_jit::Error> {
    let table = caller.data().unwrap();
    let (Some(Extern::Table(own)), Some(Extern::Func(nine))) =
        (caller.get_export("own"), caller.get_export("nine"))
    else {
        panic!("a table and a function")
    };
    table.set(&mut *caller, n as u64 % 2, Val::FuncRef((n % 3 > 0).then_some(nine)))?;
    table.grow(&mut *caller, 3, Val::FuncRef(None))?;
    own.grow(&mut *caller, 1, Val::FuncRef(None))?;
    own.set(&mut *caller, 0, Val::FuncRef((n == 2).then_some(nine)))
}

fn recorded(is_new: bool) -> (Module, Vec<u8>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = Store::new(&engine, None);
    let ty = TableType::new64(RefType::FUNCREF, 3, Some(20));
    let table = Table::new(&mut store, ty, Val::FuncRef(None)).unwrap();
    *store.data_mut() = Some(table);
    let mut linker: Linker<Option<Table>> = Linker::new(&engine);
    linker.define(&store, "h", "table", table).unwrap();
    let host = |mut caller: Caller<'_, Option<Table>>, n: i32| change(&mut caller, n);
    linker.func_wrap("h", "change", host).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = match is_new {
        true => recorder.instantiate(&mut store, &linker).unwrap(),
        false => linker.instantiate(&mut store, &module).unwrap(),
    };
    let look = instance.get_typed_func::<i32, i64>(&store, "look").unwrap();
    look.call(&mut store, 1).unwrap();
    if !is_new {
        recorder.attach(&mut store, instance).unwrap();
    }
    for n in [2, 3, 4] {
        look.call(&mut store, n).unwrap();
    }
    recorder.stop(&mut store).unwrap();
    (module, trace.bytes())
}

#[test]
fn tables_of_64_bits_are_replayed() {
    for is_new in [true, false] {
        let (module, trace) = recorded(is_new);
        let small = Trace::default();
        reduce(&module, Cursor::new(trace.clone()), small.clone()).unwrap();
        for trace in [&trace, &small.bytes()] {
            let bench = generate(module.bytes(), &trace[..], true).unwrap();
            assert_eq!((replay(&bench), replay_in_wasmi(&bench)), (COMPLETE, COMPLETE));
            let modules = separate(module.bytes(), &trace[..], true).unwrap();
            let replayed = (replay_separately(&modules), replay_separately_in_wasmi(&modules));
            assert_eq!(replayed, (COMPLETE, COMPLETE));
        }
        let refused = javascript(module.bytes(), &trace[..]).unwrap_err().to_string();
        assert!(
            refused.starts_with("cannot be replayed as a module: a table of 64 bits, which JavaScript"),
            "{refused}"
        );
        let mut changed = events(&trace);
        let set = changed.iter_mut().rev().find_map(|event| match event {
            Event::SetElement { table: 0, value: value @ Value::Func(Some(_)), .. } => Some(value),
            _ => None,
        });
        *set.unwrap() = Value::Func(None);
        let replayed = replay(&generate(module.bytes(), &trace_of(&changed)[..], true).unwrap());
        assert!(matches!(replayed, Replayed::Differs(_)), "{replayed:?}");
    }
}

/// Beyond what an index of 32 bits can have.
#[test]
fn a_table_of_64_bits_can_have_any_limit() {
    let (module, trace) = recorded(true);
    let mut changed = events(&trace);
    for (maximum, is_possible) in [(Some(1 << 40), true), (None, true), (Some(2), false)] {
        let import = changed.iter_mut().find(|event| matches!(event, Event::ImportTable { .. })).unwrap();
        *import = Event::ImportTable { table: 0, elements: 3, maximum };
        let made = generate(module.bytes(), &trace_of(&changed)[..], true);
        match is_possible {
            true => assert_eq!(replay(&made.unwrap()), COMPLETE),
            false => assert!(made.unwrap_err().to_string().contains("a size that the import cannot have")),
        }
    }
}
