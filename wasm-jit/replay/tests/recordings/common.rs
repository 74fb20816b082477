//! What the recorded instance has in common with other instances: only that is copied while they
//! run.

use crate::support::{Replayed, Trace, events, replay};
use wasm_jit::{AsContextMut, Caller, Engine, Instance, Linker, Memory, Module, Store, Val};
use wasm_jit_replay::{Event, Recorder, generate};

/// A memory of 256 MiB that no other instance has is not copied at each of 10,000 calls, which
/// would take longer than any test.
#[test]
fn memories_that_others_do_not_have_are_not_copied() {
    let engine = Engine::default();
    let lib = r#"(module (memory (export "memory") 1)
        (func (export "get") (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3))))"#;
    let app = r#"(module (import "lib" "get" (func $get (param i32) (result i32)))
        (memory (export "memory") 4096)
        (table (export "table") 1000000 funcref)
        (func (export "run") (param $n i32) (result i32) (local $sum i32)
            (loop $again
                (local.set $sum (i32.add (local.get $sum) (call $get (local.get $n))))
                (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (local.get $sum)))"#;
    let (lib, app) = (Module::new(&engine, lib).unwrap(), Module::new(&engine, app).unwrap());
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let lib = linker.instantiate(&mut store, &lib).unwrap();
    linker.instance(&mut store, "lib", lib).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&app, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    let run = instance.get_func(&mut store, "run").unwrap();
    run.call(&mut store, &[Val::I32(10_000)], &mut [Val::I32(0)]).unwrap();
    recorder.stop(&mut store).unwrap();
    assert_eq!(events(&trace.bytes()).len(), 1 + 2 + 20_000);
}

/// While another instance runs, its host makes one that imports the recorded memory and writes to
/// it, in its start function and when it is called.
#[test]
fn instances_that_are_made_later_are_seen() {
    const LATE: &str = r#"(module (import "app" "memory" (memory 1))
        (func $start (i32.store (i32.const 16) (i32.const 7)))
        (start $start)
        (func (export "write") (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 5)))))"#;
    let engine = Engine::default();
    let lib = r#"(module (import "h" "make" (func $make)) (func (export "call") (call $make)))"#;
    let app = r#"(module (import "lib" "call" (func $call))
        (memory (export "memory") 1)
        (func $sum (result i32) (i32.add (i32.load (i32.const 8)) (i32.load (i32.const 16))))
        (func (export "run") (result i32)
            (call $call)
            (i32.mul (call $sum) (i32.const 100))
            (call $call)
            (i32.add (call $sum))))"#;
    let (lib, app) = (Module::new(&engine, lib).unwrap(), Module::new(&engine, app).unwrap());
    let late = Module::new(&engine, LATE).unwrap();
    let mut store: Store<Option<Memory>> = Store::new(&engine, None);
    let mut linker = Linker::new(&engine);
    linker
        .func_wrap(
            "h",
            "make",
            move |mut caller: Caller<'_, Option<Memory>>| -> Result<(), wasm_jit::Error> {
                let memory = caller.data().expect("the program's memory");
                let mut store = caller.as_context_mut();
                let instance = Instance::new(&mut store, &late, &[memory.into()])?;
                let write = instance.get_typed_func::<(), ()>(&mut store, "write")?;
                write.call(&mut store, ())
            },
        )
        .unwrap();
    let lib = linker.instantiate(&mut store, &lib).unwrap();
    linker.instance(&mut store, "lib", lib).unwrap();
    let trace = Trace::default();
    let recorder = Recorder::new(&app, trace.clone()).unwrap();
    let instance = recorder.instantiate(&mut store, &linker).unwrap();
    *store.data_mut() = instance.get_memory(&mut store, "memory");
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap(), 1200 + 17);
    recorder.stop(&mut store).unwrap();
    let writes = events(&trace.bytes()).into_iter().filter(|event| matches!(event, Event::Write { .. }));
    assert!(writes.count() >= 2);
    let bench = generate(app.bytes(), &trace.bytes()[..], true).unwrap();
    assert_eq!(replay(&bench), Replayed::Complete { returned: true });
}
