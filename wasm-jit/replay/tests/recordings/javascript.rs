//! JavaScript hosts, executed by Node.js: their replays equal the recordings, and a planted
//! difference is found and named.

use std::process::{Command, Output};

use crate::support::{Replayed, Trace, events, replay_separately, trace_of};
use wasm_jit::{
    AsContextMut, Caller, Engine, Error as EngineError, ExnRef, Extern, Func, FuncType, Global, GlobalType,
    Linker, Memory, MemoryType, Module, Mutability, RefType, Store, Table, TableType, Tag, TagType, Val,
    ValType,
};
use wasm_jit_replay::{Error, Event, Exception, Recorder, Value, javascript, separate};

/// `mix` depends on everything that the program has, and on what the host returns.
const PROGRAM: &str = r#"(module
    (import "h" "memory" (memory 1 9))
    (import "h" "step" (func $step (param i32 i64 f32) (result f64 i64)))
    (import "h" "table" (table $t 2 20 funcref))
    (import "h" "pick" (func $pick (param funcref) (result funcref)))
    (import "h" "sum" (global $sum (mut i64)))
    (import "h" "scale" (global $scale f64))
    (import "h.2" "exit" (func $exit (param i32)))
    (type $seven (func (result i32)))
    (table $x 1 9 externref)
    (global $own (mut f32) (f32.const -0))
    (data $kept "0123456789")
    (data $gone "abc")
    (elem $later func $seven)
    (elem declare func $mix)
    (func $seven (type $seven) (i32.const 7))
    (func $add (param i64)
        (global.set $sum (i64.add (i64.mul (global.get $sum) (i64.const 31)) (local.get 0))))
    (func $begin (memory.init $gone (i32.const 500) (i32.const 0) (i32.const 3)) (data.drop $gone)
        (table.init $t $later (i32.const 1) (i32.const 0) (i32.const 1)) (elem.drop $later))
    (start $begin)
    (func $mix (export "mix") (param $n i32) (result i64 f32) (local $f f64) (local $r i64)
        (loop $again
            (call $add (i64.load (i32.and (i32.wrap_i64 (global.get $sum)) (i32.const 0xfff8))))
            (i64.store (i32.and (i32.wrap_i64 (global.get $sum)) (i32.const 0xff00)) (global.get $sum))
            (call $step (local.get $n) (global.get $sum) (global.get $own))
            (local.set $r) (local.set $f)
            (call $add (local.get $r))
            (call $add (i64.trunc_sat_f64_s (f64.mul (local.get $f) (global.get $scale))))
            (call $add (i64.extend_i32_u (memory.size)))
            (call $add (i64.extend_i32_u (table.size $t)))
            (call $add (i64.extend_i32_u (table.size $x)))
            (if (i32.eqz (ref.is_null (call $pick (table.get $t (i32.const 0)))))
                (then (call $add (i64.extend_i32_u (call_indirect $t (type $seven) (i32.const 1))))))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (memory.init $kept (i32.const 600) (i32.const 2) (i32.const 4))
        (global.get $sum) (global.get $own))
    (export "seven" (func $seven))
    (export "own" (global $own))
    (export "x" (table $x))
    (func (export "leave") (param i32) (call $exit (local.get 0)))
    (func (export "empty") (param i32) (memory.init $gone (i32.const 0) (i32.const 0) (local.get 0))))"#;

/// The program's items that the host has.
struct Host {
    random: u64,
    depth: u32,
    memory: Memory,
    table: Table,
    sum: Global,
}

impl Host {
    fn next(&mut self, below: u64) -> u64 {
        crate::support::random(&mut self.random, below)
    }
}

/// Something that a host does, at random.
fn act(caller: &mut Caller<'_, Host>) {
    let Host { memory, table, sum, .. } = *caller.data();
    for _ in 0..caller.data_mut().next(4) {
        let function = |caller: &mut Caller<'_, Host>, name| match caller.get_export(name) {
            Some(Extern::Func(function)) => function,
            other => panic!("{other:?}"),
        };
        match caller.data_mut().next(7) {
            0 => {
                let at = caller.data_mut().next(65_000) as usize;
                memory.write(&mut *caller, at, &[7, 8, 9, at as u8]).unwrap();
            }
            1 => _ = memory.grow(&mut *caller, 1),
            2 => {
                let value = caller.data_mut().next(u64::MAX) as i64;
                sum.set(&mut *caller, Val::I64(value)).unwrap();
            }
            3 => {
                let Some(Extern::Global(own)) = caller.get_export("own") else { panic!("a global") };
                let value = caller.data_mut().next(100) as f32 / 8.0;
                own.set(&mut *caller, Val::F32(value.to_bits())).unwrap();
            }
            4 => _ = table.grow(&mut *caller, 1, Val::FuncRef(None)),
            5 => {
                let Some(Extern::Table(x)) = caller.get_export("x") else { panic!("a table") };
                let _ = x.grow(&mut *caller, 1, Val::ExternRef(None));
                let seven = function(caller, "seven");
                let set = (caller.data_mut().next(2) == 0).then_some(seven);
                table.set(&mut *caller, 0, Val::FuncRef(set)).unwrap();
            }
            _ if caller.data().depth < 3 => {
                caller.data_mut().depth += 1;
                let mix = function(caller, "mix");
                mix.call(&mut *caller, &[Val::I32(1)], &mut [Val::I64(0), Val::F32(0)]).unwrap();
                caller.data_mut().depth -= 1;
            }
            _ => {}
        }
    }
}

/// A program that can run, and its store.
fn program(seed: u64) -> (Module, Store<Host>, Linker<Host>) {
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut outside = Store::new(&engine, ());
    let nothing = |store: &mut Store<()>| {
        let memory = Memory::new(&mut *store, MemoryType::new(1, None)).unwrap();
        let table =
            Table::new(&mut *store, TableType::new(wasm_jit::RefType::FUNCREF, 1, None), Val::FuncRef(None));
        let ty = GlobalType::new(ValType::I64, Mutability::Var);
        (memory, table.unwrap(), Global::new(&mut *store, ty, Val::I64(0)).unwrap())
    };
    let (memory, table, sum) = nothing(&mut outside);
    let mut store = Store::new(&engine, Host { random: seed, depth: 0, memory, table, sum });
    let memory = Memory::new(&mut store, MemoryType::new(1 + (seed % 3) as u32, Some(9))).unwrap();
    memory.write(&mut store, 4000, b"from the host").unwrap();
    let ty = TableType::new(wasm_jit::RefType::FUNCREF, 2, Some(20));
    let table = Table::new(&mut store, ty, Val::FuncRef(None)).unwrap();
    let global = |store: &mut Store<Host>, ty, mutability, value| {
        Global::new(&mut *store, GlobalType::new(ty, mutability), value).unwrap()
    };
    let sum = global(&mut store, ValType::I64, Mutability::Var, Val::I64(seed as i64 - 3));
    let scale = global(&mut store, ValType::F64, Mutability::Const, Val::F64(1.5_f64.to_bits()));
    (store.data_mut().memory, store.data_mut().table, store.data_mut().sum) = (memory, table, sum);
    let mut linker: Linker<Host> = Linker::new(&engine);
    linker.define(&store, "h", "memory", memory).unwrap();
    linker.define(&store, "h", "table", table).unwrap();
    linker.define(&store, "h", "sum", sum).unwrap();
    linker.define(&store, "h", "scale", scale).unwrap();
    linker
        .func_wrap("h", "step", |mut caller: Caller<'_, Host>, n: i32, x: i64, f: f32| -> (f64, i64) {
            act(&mut caller);
            let long = if caller.data_mut().next(3) == 0 { i64::MIN } else { x ^ i64::from(n) };
            (-f64::from(f) * 3.25, long)
        })
        .unwrap();
    linker
        .func_wrap("h", "pick", |mut caller: Caller<'_, Host>, f: Option<Func>| -> Option<Func> {
            f.filter(|_| caller.data_mut().next(2) == 0)
        })
        .unwrap();
    linker
        .func_wrap("h.2", "exit", |_: i32| -> Result<(), EngineError> { Err(EngineError::host("exit")) })
        .unwrap();
    (module, store, linker)
}

/// Runs a host with checks in Node.js; `None`, with a message, if there is no Node.js.
fn node(program: &[u8], trace: &[u8]) -> Option<Output> {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("node is not installed: not replayed in node");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in javascript(program, trace).unwrap().files() {
        std::fs::write(folder.path().join(name), contents).unwrap();
    }
    Some(Command::new("node").arg(folder.path().join("replay.mjs")).arg("--check").output().unwrap())
}

#[track_caller]
pub(crate) fn check(program: &[u8], trace: &[u8]) {
    ends(program, trace, (0, ""));
}

/// A replay equals the recording, and its host in JavaScript ends with this exit code and text.
#[track_caller]
fn ends(program: &[u8], trace: &[u8], (code, text): (i32, &str)) {
    let modules = separate(program, trace, true).unwrap();
    assert!(matches!(replay_separately(&modules), Replayed::Complete { .. }));
    if let Some(output) = node(program, trace) {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &error[..]), (Some(code), text), "{}", output.status);
        assert_eq!(output.stdout, b"");
    }
}

/// A run of a new instance, or of one that ran before the recording.
fn recorded(seed: u64, is_new: bool) -> (Vec<u8>, Vec<u8>) {
    let (module, mut store, linker) = program(seed);
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut results = [Val::I64(0), Val::F32(0)];
    let mut mix = |store: &mut Store<Host>, instance: wasm_jit::Instance, rounds: i32| {
        let mix = instance.get_func(&*store, "mix").unwrap();
        mix.call(&mut *store, &[Val::I32(rounds)], &mut results).unwrap();
    };
    let instance = if is_new {
        recorder.instantiate(&mut store, &linker).unwrap()
    } else {
        let instance = linker.instantiate(&mut store, &module).unwrap();
        mix(&mut store, instance, 5);
        recorder.attach(&mut store, instance).unwrap();
        instance
    };
    mix(&mut store, instance, 4);
    let memory = store.data().memory;
    memory.write(&mut store, 100, &[1, 2, 3]).unwrap();
    mix(&mut store, instance, 3);
    // The host exits, or the segment is empty.
    let last = if seed.is_multiple_of(2) { "leave" } else { "empty" };
    let last = instance.get_typed_func::<i32, ()>(&mut store, last).unwrap();
    last.call(&mut store, 1).unwrap_err();
    if store.as_context_mut().is_observed() {
        recorder.stop(&mut store).unwrap();
    }
    (module.bytes().to_vec(), trace.bytes())
}

#[test]
fn random_runs_repeat_in_node() {
    for seed in 0..8 {
        for is_new in [true, false] {
            let (program, trace) = recorded(seed, is_new);
            check(&program, &trace);
        }
    }
}

/// The trace of a process that was killed: while the program ran, or its host within a call, or
/// the host itself, which is no part of the run.
#[test]
fn traces_that_end_anywhere_are_replayed_as_far_as_they_go() {
    let (program, trace) = recorded(3, true);
    let all = events(&trace);
    let mut running = 0;
    let mut ended = [0; 2];
    for (number, event) in all.iter().enumerate() {
        running += match event {
            Event::Enter { .. } | Event::Call { .. } => 1,
            Event::Return { .. } | Event::Leave { .. } | Event::Throw(_) | Event::Fail { .. } => -1,
            _ => 0,
        };
        let is_incomplete = running > 0;
        let seen = &mut ended[usize::from(is_incomplete)];
        *seen += 1;
        if number > 5 && (*seen % 16 == 1 || number + 2 >= all.len()) {
            let expected = match is_incomplete {
                true => (2, "replay: the recording ends here, before the program does\n"),
                false => (0, ""),
            };
            ends(&program, &trace_of(&all[..=number]), expected);
        }
    }
    assert!(ended.iter().all(|ended| *ended > 1), "{ended:?}");
}

#[test]
fn planted_differences_are_named() {
    let (program, trace) = recorded(1, true);
    let all = events(&trace);
    let change = |event: &mut Event| {
        let values = match event {
            Event::Call { arguments: values, .. } | Event::Leave { results: values } => values,
            _ => return false,
        };
        match values.first_mut() {
            Some(Value::I32(value)) => *value ^= 1 << 30,
            Some(Value::I64(value)) => *value ^= 1 << 62,
            _ => return false,
        }
        true
    };
    let places: Vec<usize> = (0..all.len()).filter(|at| change(&mut all[*at].clone())).collect();
    assert!(places.len() > 8, "{places:?}");
    for at in [places[0], places[places.len() / 2], places[places.len() - 1]] {
        let mut changed = all.clone();
        change(&mut changed[at]);
        let Some(output) = node(&program, &trace_of(&changed)) else { return };
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with(&format!("replay: event {at}: found (")), "{}: {error}", all[at]);
    }
    // A byte that the host has written: the program notices it later.
    let at = all.iter().position(|event| matches!(event, Event::Enter { .. })).unwrap();
    let mut changed = all.clone();
    changed.insert(at + 1, Event::Fail { reason: None });
    let Some(output) = node(&program, &trace_of(&changed[..at + 2])) else { return };
    assert_eq!(output.status.code(), Some(1));
}

/// Exceptions cross the boundary in both directions: of tags that are imported, the program's own,
/// and the host's. The program does not catch them, so every engine with exceptions can run it.
#[test]
fn exceptions_repeat_in_node() {
    let engine = Engine::default();
    let text = r#"(module
        (import "h" "e" (tag $e (param i32 f64)))
        (import "h" "f" (func $f (param i32) (result i32)))
        (tag $own (param i64))
        (func (export "raise") (param i32) (result i32)
            (if (local.get 0) (then (throw $own (i64.const -5))))
            (throw $e (i32.const 1) (f64.const 2.5)))
        (func (export "run") (param i32) (result i32) (call $f (local.get 0))))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let tag = |store: &mut Store<()>, types: &[ValType]| {
        Tag::new(store, &TagType::new(FuncType::new(types.iter().copied(), []))).unwrap()
    };
    let e = tag(&mut store, &[ValType::I32, ValType::F64]);
    let other = tag(&mut store, &[ValType::I64]);
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.define(&store, "h", "e", e).unwrap();
    let f = move |mut caller: Caller<'_, ()>, what: i32| -> Result<i32, EngineError> {
        let raise = |caller: &mut Caller<'_, ()>, argument| {
            let raise = caller.get_export("raise").and_then(Extern::into_func).unwrap();
            raise.call(caller, &[Val::I32(argument)], &mut [Val::I32(0)])
        };
        let (tag, values) = match what {
            0 => (e, vec![Val::I32(-7), Val::F64(0.125_f64.to_bits())]),
            1 => (other, vec![Val::I64(1 << 60)]),
            // Gets an exception, and continues.
            2 | 3 => {
                raise(&mut caller, what - 2).unwrap_err();
                return Ok(40);
            }
            // Passes on the exception.
            _ => return raise(&mut caller, 1).map(|()| 0),
        };
        Err(EngineError::from(ExnRef::new(caller.as_context_mut(), &tag, &values)?))
    };
    linker.func_wrap("h", "f", f).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let ends: Vec<bool> = (0..5).map(|what| run.call(&mut store, what).is_ok()).collect();
    assert_eq!(ends, [false, false, true, true, false]);
    recorder.stop(&mut store).unwrap();
    check(module.bytes(), &trace.bytes());

    // Another value, and another tag.
    let all = events(&trace.bytes());
    let caught = |at: &usize| match &all[*at] {
        Event::Throw(_) => matches!(all[at - 1], Event::Enter { .. }),
        _ => false,
    };
    let at = (1..all.len()).find(caught).unwrap();
    let with = |exception: Exception| {
        let mut changed = all.clone();
        changed[at] = Event::Throw(exception);
        node(module.bytes(), &trace_of(&changed)).map(|output| {
            assert_eq!(output.status.code(), Some(1));
            String::from_utf8(output.stderr).unwrap()
        })
    };
    let Some(error) = with(Exception { tag: 0, values: vec![Value::I32(2), Value::F64(0)] }) else { return };
    assert!(error.starts_with(&format!("replay: event {at}: found (1 2.5)")), "{error}");
    let error = with(Exception { tag: 1, values: vec![Value::I64(0)] }).unwrap();
    assert_eq!(error.trim_end(), format!("replay: event {at}: an exception of another tag"));
}

/// Generates a host for a program that imports a global of this type.
fn host_with_global(ty: RefType) -> Result<String, Error> {
    let engine = Engine::default();
    let text = format!("(module (import \"h\" \"g\" (global {ty})) (func (export \"run\")))");
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let ty = GlobalType::new(ValType::Ref(ty), Mutability::Const);
    let global = Global::new(&mut store, ty, Val::default_for_ty(ty.content())).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.define(&store, "h", "g", global).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    javascript(module.bytes(), &trace.bytes()[..]).map(|made| made.host)
}

/// Engines have the type from different versions on; the host only passes it to them.
#[test]
fn imported_globals_of_type_anyref_are_described() {
    let host = host_with_global(RefType::ANYREF).unwrap();
    assert!(host.contains(r#""kind":"global","type":{"mutable":false,"value":"anyref"}"#), "{host}");
    let error = host_with_global(RefType::I31REF).unwrap_err().to_string();
    assert!(error.contains("an import with the type i31ref"), "{error}");
}

#[test]
fn what_javascript_does_not_have_is_refused() {
    let engine = Engine::default();
    let text = "(module (import \"h\" \"v\" (func (param v128))) (func (export \"run\") (call 0 (v128.const i64x2 1 2))))";
    let module = Module::new(&engine, text).unwrap();
    let mut linker: Linker<()> = Linker::new(&engine);
    linker.func_wrap("h", "v", |_: u128| ()).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&module, trace.clone()).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    let error = javascript(module.bytes(), &trace.bytes()[..]).unwrap_err();
    assert!(matches!(error, Error::NotGenerated { .. }), "{error}");
}
