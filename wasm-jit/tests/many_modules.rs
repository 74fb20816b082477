//! Many small modules with probes, alive at the same time: a process of its own, since it takes
//! most of the mappings that a process may have.

use wasm_jit::probes::{Kind, Location, Place, Probe, ProbeSpec};
use wasm_jit::{Config, Engine, Instance, Module, Store};

/// The code of a module without probes is two mappings, and a process may have some 65,000.
const MODULES: usize = 20_000;
/// After these, their mappings are counted.
const FIRST: usize = 500;

fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<i64>().unwrap() << 10
}

/// All of their memory is freed with them.
fn modules_with_functions_that_are_compiled_when_they_are_called(bytes: &[u8]) {
    let engine = Engine::new(Config::new().lazy_compilation(true)).unwrap();
    let run = || {
        let module = Module::from_binary(&engine, bytes).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let add = instance.get_typed_func::<(i32, i32), i32>(&mut store, "add").unwrap();
        assert_eq!(add.call(&mut store, (40, 2)).unwrap(), 42);
        module
    };
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    drop(run());
    let (before, memory) = (mappings(), resident());
    // More addresses than a process has, if they were kept.
    (0..MODULES).for_each(|_| drop(run()));
    assert!(mappings() <= before + 10, "{} mappings, {before} before", mappings());
    assert!(resident() < memory + (16 << 20), "{} bytes, {memory} before", resident());
}

#[test]
fn tens_of_thousands_of_small_modules_can_have_probes() {
    let engine = Engine::default();
    let text = "(module (func (export \"add\") (param i32 i32) (result i32)
        (i32.add (local.get 0) (local.get 1))))";
    let bytes = wat::parse_str(text).unwrap();
    let spec = ProbeSpec { location: Location { function: 0, place: Place::Entry }, kind: Kind::Count };
    let load = |with_probe: bool| {
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let probe = with_probe.then(|| module.probe(spec.clone()).unwrap());
        if let Some(probe) = &probe {
            probe.activate().unwrap();
        }
        (module, probe)
    };
    let mut before = resident();
    let mut per_module = |count: usize| {
        let now = resident();
        let each = (now - before) / count as i64;
        before = now;
        each
    };
    let plain: Vec<(Module, Option<Probe>)> = (0..1000).map(|_| load(false)).collect();
    let without = per_module(plain.len());
    drop(plain);
    per_module(1);
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let others = mappings();
    let mut modules: Vec<(Module, Option<Probe>)> = (0..FIRST).map(|_| load(true)).collect();
    let taken = mappings() - others;
    assert!(taken < 2 * FIRST + 50, "{taken} mappings for {FIRST} modules");
    modules.extend((FIRST..MODULES).map(|_| load(true)));
    let with = per_module(MODULES);
    println!("{with} bytes for each module with a probe, {without} without");
    for (module, probe) in modules.iter().step_by(MODULES / 100) {
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        let add = instance.get_typed_func::<(i32, i32), i32>(&mut store, "add").unwrap();
        assert_eq!(add.call(&mut store, (40, 2)).unwrap(), 42);
        assert_eq!(probe.as_ref().map(Probe::count), Some(1));
    }
    drop(modules);
    modules_with_functions_that_are_compiled_when_they_are_called(&bytes);
    // A page for versions, and what the engine keeps about them.
    assert!(with < without + (20 << 10), "{with} bytes for each module with a probe, {without} without");
}
