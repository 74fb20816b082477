//! What frames of probes see of their instance, of callees, and of the stack.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wasm_jit::probes::{
    Frame, GenericFn, Kind, Location, NO_FUNCTION, OTHER_FUNCTION, Place, Probe, ProbeSpec,
};
use wasm_jit::{Error, Func, Instance, Linker, Module, Store, Val};

use super::engine;

/// A probe at the entry of a function, or at its first instruction of these bytes.
fn probe(
    module: &Module,
    name: &str,
    bytes: Option<&[u8]>,
    look: impl Fn(&mut Frame<'_>) -> Result<(), Error> + Send + Sync + 'static,
) -> Probe {
    let function = module.functions().find(|function| function.name() == Some(name)).unwrap();
    let body = function.body().unwrap();
    let found = |bytes: &[u8]| body.instructions().find(|of| of.bytes() == bytes).unwrap().offset();
    let place = match bytes {
        Some(bytes) => Place::Instruction { offset: (found(bytes) - body.range().start) as u32 },
        None => Place::Entry,
    };
    let location = Location { function: function.index(), place };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Generic(GenericFn::new(look)) }).unwrap();
    probe.activate().unwrap();
    probe
}

pub(super) fn test_all() {
    memories_and_globals_need_not_be_exported();
    callees_are_those_of_the_table();
    locations_are_those_of_all_frames();
    the_location_of_a_frame_at_its_exit_is_the_exit();
}

#[test]
fn memories_and_globals_need_not_be_exported() {
    let module = Module::new(
        &engine(),
        r#"(module (memory 1) (memory 2) (global $a (mut i64) (i64.const 5)) (global i32 (i32.const 3))
            (data (i32.const 8) "\01\02\03\04")
            (func $f (export "f") (result i64)
                (i64.add (global.get $a) (i64.load 1 (i32.const 131064)))))"#,
    )
    .unwrap();
    let fired = Arc::new(AtomicU32::new(0));
    let count = fired.clone();
    let _probe = probe(&module, "f", None, move |frame| {
        count.fetch_add(1, Ordering::Relaxed);
        let sizes = [0, 1, 2].map(|memory| frame.memory_size(memory));
        assert_eq!(sizes, [Some(65536), Some(131072), None]);
        let mut bytes = [0; 4];
        frame.read_memory(0, 8, &mut bytes)?;
        assert_eq!(bytes, [1, 2, 3, 4]);
        frame.write_memory(1, 131064, &[7, 0, 0, 0, 0, 0, 0, 0])?;
        let refused = |result: Result<(), Error>| matches!(result, Err(Error::OutOfBounds { .. }));
        assert!(refused(frame.write_memory(1, 131065, &[0; 8])));
        assert!(refused(frame.read_memory(1, u64::MAX, &mut bytes)));
        assert!(refused(frame.read_memory(2, 0, &mut bytes)));
        assert_eq!(frame.global(0).unwrap().unwrap_i64(), 5);
        assert_eq!(frame.global(1).unwrap().unwrap_i32(), 3);
        assert!(frame.global(2).is_none() && frame.set_global(2, &Val::I32(0)).is_none());
        assert!(matches!(frame.set_global(1, &Val::I32(0)), Some(Err(Error::ConstantGlobal))));
        assert!(matches!(frame.set_global(0, &Val::I32(0)), Some(Err(Error::ValueType(_)))));
        frame.set_global(0, &Val::I64(100)).unwrap()
    });
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f = instance.get_typed_func::<(), i64>(&mut store, "f").unwrap();
    assert_eq!(f.call(&mut store, ()).unwrap(), 107);
    assert_eq!(fired.load(Ordering::Relaxed), 1);
}

#[test]
fn callees_are_those_of_the_table() {
    let module = Module::new(
        &engine(),
        r#"(module (import "host" "known" (func $known))
            (table (export "table") 5 funcref) (elem (i32.const 0) $other $known)
            (func $other)
            (func $call (export "call") (param i32) (call_indirect (local.get 0))))"#,
    )
    .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    // call_indirect of type 0 and table 0, and `end`.
    let _call = probe(&module, "call", Some(&[0x11, 0, 0]), move |frame| {
        log.lock().unwrap().push(frame.callee());
        Ok(())
    });
    let log = seen.clone();
    let _end = probe(&module, "call", Some(&[0x0b]), move |frame| {
        log.lock().unwrap().push(frame.callee());
        Ok(())
    });
    let mut store = Store::new(module.engine(), ());
    let mut linker = Linker::new(module.engine());
    linker.func_wrap("host", "known", || {}).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let unknown = Func::wrap(&mut store, || {}).unwrap();
    instance.get_table(&store, "table").unwrap().set(&mut store, 2, Val::FuncRef(Some(unknown))).unwrap();
    let call = instance.get_typed_func::<i32, ()>(&mut store, "call").unwrap();
    for index in 0..3 {
        call.call(&mut store, index).unwrap();
    }
    for index in [3, 5] {
        assert!(call.call(&mut store, index).is_err());
    }
    let found: Vec<Option<u64>> = std::mem::take(&mut *seen.lock().unwrap());
    let [no, other] = [NO_FUNCTION, OTHER_FUNCTION].map(Some);
    assert_eq!(found, [Some(1), None, Some(0), None, other, None, no, no]);
}

#[test]
fn locations_are_those_of_all_frames() {
    let engine = engine();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "call" (func $host))
            (func $inner (export "inner") (nop))
            (func $outer (export "outer") (drop (i32.const 1)) (call $host) (nop)))"#,
    )
    .unwrap();
    let between = Module::new(
        &engine,
        r#"(module (import "host" "inner" (func $inner)) (func (export "pass") (call $inner)))"#,
    )
    .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let instances = Arc::new(Mutex::new(Vec::new()));
    let found = instances.clone();
    let _probe = probe(&module, "inner", Some(&[0x01]), move |frame| {
        let mut at = Some(frame.accessor()?);
        while let Some(accessor) = at {
            found.lock().unwrap().push(accessor.instance(frame)?);
            at = accessor.caller(frame)?;
        }
        assert_eq!(frame.locations().len(), frame.depth() + 1);
        *log.lock().unwrap() = frame.locations();
        Ok(())
    });
    let mut store = Store::new(&engine, None::<Instance>);
    let mut linker = Linker::new(&engine);
    linker
        .func_wrap(
            "host",
            "call",
            |mut caller: wasm_jit::Caller<'_, Option<Instance>>| -> Result<(), Error> {
                let between = caller.data().unwrap();
                between.get_typed_func::<(), ()>(&mut caller, "pass")?.call(&mut caller, ())
            },
        )
        .unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let inner = instance.get_func(&mut store, "inner").unwrap();
    let between = Instance::new(&mut store, &between, &[inner.into()]).unwrap();
    *store.data_mut() = Some(between);
    instance.get_typed_func::<(), ()>(&mut store, "outer").unwrap().call(&mut store, ()).unwrap();
    let at = |function, offset| Some(Location { function, place: Place::Instruction { offset } });
    // i32.const 1, drop, and the call, after the byte of the locals.
    assert_eq!(*seen.lock().unwrap(), [at(1, 1), None, at(2, 4)]);
    assert_eq!(*instances.lock().unwrap(), [instance, between, instance]);
}

#[test]
fn the_location_of_a_frame_at_its_exit_is_the_exit() {
    let engine = engine();
    let module = Module::new(&engine, r#"(module (func (export "f") (nop)))"#).unwrap();
    let location = Location { function: 0, place: Place::Exit };
    let fired = Arc::new(AtomicU32::new(0));
    let count = fired.clone();
    let look = GenericFn::new(move |frame| {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(frame.location(), location);
        assert_eq!(frame.locations(), [Some(location)]);
        Ok(())
    });
    let probe = module.probe(ProbeSpec { location, kind: Kind::Generic(look) }).unwrap();
    probe.activate().unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    instance.get_typed_func::<(), ()>(&mut store, "f").unwrap().call(&mut store, ()).unwrap();
    assert_eq!(fired.load(Ordering::Relaxed), 1);
}

#[test]
fn a_function_that_waits_for_the_host_is_found() {
    let text = r#"(module (import "host" "wait" (func $wait))
        (func $other)
        (func $waits (call $wait))
        (func (export "run") (call $waits)))"#;
    let module = Module::new(&engine(), text).unwrap();
    let mut store = Store::new(module.engine(), ());
    let mut linker = Linker::new(module.engine());
    let (goes_on, go_on) = std::sync::mpsc::channel::<()>();
    let go_on = std::sync::Mutex::new(go_on);
    linker.func_wrap("host", "wait", move || _ = go_on.lock().unwrap().recv()).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let handle = store.interrupt_handle();
    let program = std::thread::spawn(move || {
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ())
    });
    let within = Duration::from_secs(20);
    // It may be found before it calls the host.
    while module.running_function(&handle, within).expect("it is found") != 2 {}
    assert_eq!(module.running_function(&handle, within), Some(2));
    goes_on.send(()).unwrap();
    program.join().unwrap().unwrap();
    assert_eq!(module.running_function(&handle, Duration::ZERO), None, "nothing runs");
}

#[test]
fn a_running_function_is_found() {
    let module = Module::new(
        &engine(),
        r#"(module (memory (export "memory") 1 1 shared)
            (func $other)
            (func $spin (export "spin") (loop (br_if 0 (i32.eqz (i32.atomic.load (i32.const 0)))))))"#,
    )
    .unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let handle = store.interrupt_handle();
    let within = Duration::from_secs(20);
    assert_eq!(module.running_function(&handle, Duration::ZERO), None, "nothing runs");
    let memory = instance.get_shared_memory(&mut store, "memory").unwrap();
    let program = std::thread::spawn(move || {
        instance.get_typed_func::<(), ()>(&mut store, "spin").unwrap().call(&mut store, ())
    });
    assert_eq!(module.running_function(&handle, within), Some(1));
    memory.write(0, &[1]).unwrap();
    program.join().unwrap().unwrap();
}
