//! Probes in a process that has mapped everything near the code: a process of its own.

use std::ptr;

use wasm_jit::probes::{Bound, Kind, Location, NativeFn, Place, Probe, ProbeSpec, activate_all};
use wasm_jit::{Engine, Instance, Module, Store};

extern "C" fn nothing(_: u64) {}

/// Maps everything that is free, in pieces of 1 GiB and then of a page.
fn fill_addresses_near(code: usize) {
    let reserve = |at: usize, length: usize| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let at = ptr::with_exposed_provenance_mut(at);
        // SAFETY: a new mapping, which replaces nothing.
        unsafe { libc::mmap(at, length, libc::PROT_NONE, flags, -1, 0) != libc::MAP_FAILED }
    };
    let near = code.saturating_sub(3 << 30)..code + (3 << 30);
    let mut length = 1 << 30;
    while length >= 1 << 16 {
        let mut at = near.start & !(length - 1);
        while at < near.end {
            reserve(at, length);
            at += length;
        }
        length /= 4;
    }
}

#[test]
fn probes_find_a_place_beside_mappings_of_others() {
    let engine = Engine::default();
    let body: String = (0..400).map(|n| format!("(global.set 0 (i32.const {n}))")).collect();
    let text = format!("(module (global (mut i32) (i32.const 0)) (func (export \"run\") {body}))");
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    // Makes the first arena, whose address is near the code of the module.
    let first = Location { function: 0, place: Place::Entry };
    let id = module.probe_id(first).unwrap();
    let code = fastinst::with_metadata(id, |probe| probe.site_address).unwrap();
    fill_addresses_near(code);

    // SAFETY: the function does not unwind, and is part of the program.
    let function = unsafe { NativeFn::new(nothing as extern "C" fn(u64)) };
    let function_body = module.function(0).unwrap().body().unwrap();
    let specs: Vec<ProbeSpec> = function_body
        .instructions()
        .flat_map(|instruction| {
            let offset = (instruction.offset() - function_body.range().start) as u32;
            let location = Location { function: 0, place: Place::Instruction { offset } };
            let values = |number: u64| [Bound::Const(number)].into();
            let call =
                |number| ProbeSpec { location, kind: Kind::Native { function, values: values(number) } };
            [call(0), call(1), ProbeSpec { location, kind: Kind::Count }]
        })
        .collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().collect::<Result<_, _>>().unwrap();
    activate_all(&probes).into_iter().for_each(|on| on.unwrap());
    run.call(&mut store, ()).unwrap();
    let counts = probes.iter().skip(2).step_by(3).map(Probe::count);
    assert!(counts.clone().all(|count| count == 1));
    assert_eq!(counts.count(), function_body.instructions().count());
}
