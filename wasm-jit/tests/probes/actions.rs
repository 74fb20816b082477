//! Functions of probes that change what the frame below them stands on: they grow its memory, or
//! drop its module.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{Callback, GenericFn, Kind, Location, Place, Probe, ProbeSpec, WasmFn};
use wasm_jit::{BoundsChecks, Engine, Instance, Module, Store, Trap};

use super::{config, engine};

/// Accesses the second page of a memory of one page, to which `grow` adds another.
const SECOND_PAGE: &str = r#"(module
    (memory (export "memory") 1 3)
    (func (export "grow") (drop (memory.grow (i32.const 1))))
    (func $access (export "access") (param i32) (result i32)
        (i32.store (local.get 0) (i32.const 7))
        (i32.add (i32.load (local.get 0)) (i32.mul (memory.size) (i32.const 100)))))"#;

/// The first instruction of a function with this opcode.
fn first(module: &Module, function: u32, opcode: u8) -> Location {
    let body = module.function(function).unwrap().body().unwrap();
    let at = body.instructions().find(|of| of.bytes()[0] == opcode).unwrap().offset();
    Location { function, place: Place::Instruction { offset: (at - body.range().start) as u32 } }
}

/// Grows the memory when it fires, by one of two means.
fn grows(store: &mut Store<()>, instance: &Instance, by_closure: bool) -> Kind {
    if !by_closure {
        let grow = instance.get_func(&mut *store, "grow").unwrap();
        return Kind::Wasm { function: WasmFn::new(&*store, grow).unwrap(), values: [].into() };
    }
    Kind::Generic(GenericFn::new(|frame| {
        let instance = frame.instance();
        let mut store = frame.store::<()>().expect("the store's data are of this type");
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        memory.grow(&mut store, 1)?;
        Ok(())
    }))
}

#[test]
fn an_access_finds_the_memory_that_its_probe_has_grown() {
    for checks in [BoundsChecks::Automatic, BoundsChecks::Instructions] {
        let engine = Engine::new(config().bounds_checks(checks)).unwrap();
        for by_closure in [false, true] {
            let module = Module::new(&engine, SECOND_PAGE).unwrap();
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let access = instance.get_typed_func::<i32, i32>(&mut store, "access").unwrap();
            let error = access.call(&mut store, 70_000).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds));
            let kind = grows(&mut store, &instance, by_closure);
            let location = first(&module, 1, 0x36);
            let probe = module.probe(ProbeSpec { location, kind }).unwrap();
            probe.activate().unwrap();
            assert_eq!(access.call(&mut store, 70_000).unwrap(), 207, "{checks:?} {by_closure}");
            assert_eq!(access.call(&mut store, 140_000).unwrap(), 307, "{checks:?} {by_closure}");
        }
    }
}

/// The load of an instruction is done, and traps, before the probe of the next instruction fires,
/// although the code leaves it to that instruction.
#[test]
fn a_load_traps_before_the_next_probe_grows_the_memory() {
    for checks in [BoundsChecks::Automatic, BoundsChecks::Instructions] {
        let engine = Engine::new(config().bounds_checks(checks)).unwrap();
        for by_closure in [false, true] {
            let text = r#"(module (memory (export "memory") 1 2)
                (func (export "grow") (drop (memory.grow (i32.const 1))))
                (func (export "access") (param i32) (result i32)
                    (i32.add (local.get 0) (i32.load (local.get 0)))))"#;
            let module = Module::new(&engine, text).unwrap();
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let kind = grows(&mut store, &instance, by_closure);
            let probe = module.probe(ProbeSpec { location: first(&module, 1, 0x6a), kind }).unwrap();
            probe.activate().unwrap();
            let access = instance.get_typed_func::<i32, i32>(&mut store, "access").unwrap();
            let error = access.call(&mut store, 70_000).unwrap_err();
            assert_eq!(error.trap(), Some(Trap::MemoryOutOfBounds));
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            assert_eq!(memory.size(&store), 1, "{checks:?} {by_closure}");
            assert_eq!(access.call(&mut store, 8).unwrap(), 8);
            assert_eq!(memory.size(&store), 2, "{checks:?} {by_closure}");
        }
    }
}

/// The last handles of a module and its probes are dropped by a function of one of these, several
/// frames deep. The store's instance keeps the code until it goes; then everything is freed.
#[test]
fn a_firing_probe_drops_its_module() {
    for generic in [false, true] {
        let engine = engine();
        let text = r#"(module (func $f (export "f") (param i32) (result i32)
            (if (result i32) (local.get 0)
                (then (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))
                (else (nop) (i32.const 5)))))"#;
        let module = Module::new(&engine, text).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let handles = Arc::new(Mutex::new(None::<(Module, Vec<Probe>)>));
        let (fired, owned) = (Arc::new(AtomicU32::new(0)), handles.clone());
        let count = fired.clone();
        let act = move || {
            count.fetch_add(1, Ordering::Relaxed);
            drop(owned.lock().unwrap().take());
        };
        let kind = if generic {
            Kind::Generic(GenericFn::new(move |_| {
                act();
                Ok(())
            }))
        } else {
            Kind::Callback { function: Callback::new(move |_| act()), values: [].into() }
        };
        let location = first(&module, 0, 0x01);
        let specs = [ProbeSpec { location, kind }, ProbeSpec { location, kind: Kind::Count }];
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        drop(specs);
        probes.iter().for_each(|probe| probe.activate().unwrap());
        *handles.lock().unwrap() = Some((module, probes));
        let f = instance.get_typed_func::<i32, i32>(&mut store, "f").unwrap();
        assert_eq!(f.call(&mut store, 9).unwrap(), 14);
        assert!(handles.lock().unwrap().is_none());
        assert_eq!(f.call(&mut store, 9).unwrap(), 14);
        assert_eq!(fired.load(Ordering::Relaxed), 1, "the probe is gone");
        assert_eq!(Arc::strong_count(&fired), 2, "the code keeps the closure");
        drop(store);
        assert_eq!(Arc::strong_count(&fired), 1, "the code is freed");
    }
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    an_access_finds_the_memory_that_its_probe_has_grown();
    a_load_traps_before_the_next_probe_grows_the_memory();
    a_firing_probe_drops_its_module();
}
