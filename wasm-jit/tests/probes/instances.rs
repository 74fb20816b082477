//! The identity of the running instance, as a value; and counts of instances that have ended.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Branches, Callback, GenericFn, InstanceId, Kind, Location, NativeFn, Place, Probe, ProbeSpec,
    Recorder, Scope, WasmFn, activate_all,
};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Config, Engine, Func, Instance, Module, Store};

use super::engine;
use super::frames::{at, call, offset_of, program};

type Log = Mutex<Vec<(&'static str, InstanceId)>>;

extern "C" fn native(log: u64, instance: u64) {
    // SAFETY: the address is that of a log that the test keeps.
    let log = unsafe { &*std::ptr::with_exposed_provenance::<Log>(log as usize) };
    log.lock().unwrap().push(("native", InstanceId::of_value(instance)));
}

/// Functions of all kinds get it, and frames of generic probes have it, whichever instance runs.
#[test]
fn probes_get_the_running_instance() {
    let module = Module::new(&engine(), "(module (func (export \"run\") (param i64) nop))").unwrap();
    let mut store = Store::new(module.engine(), ());
    let log: Arc<Log> = Arc::default();
    let push = |name: &'static str| {
        let log = log.clone();
        move |instance| log.lock().unwrap().push((name, instance))
    };
    let values = || [Bound::Instance].into();
    // SAFETY: the function does not unwind, and is part of the program; the log is kept.
    let function = unsafe { NativeFn::new(native as extern "C" fn(u64, u64)) };
    let address = Bound::Const(Arc::as_ptr(&log).expose_provenance() as u64);
    let (closure, record, generic, host) = (push("closure"), push("record"), push("generic"), push("host"));
    let host = Func::wrap(&mut store, move |value: i64| host(InstanceId::of_value(value as u64))).unwrap();
    let host = WasmFn::new(&store, host).unwrap();
    let recorder = Recorder::new(move |_, records: &[[u64; 2]]| {
        records.iter().for_each(|[instance, again]| {
            assert_eq!(instance, again);
            record(InstanceId::of_value(*instance));
        });
    })
    .unwrap();
    let kinds = [
        Kind::Native { function, values: [address, Bound::Instance].into() },
        Kind::Callback {
            function: Callback::new(move |values| closure(InstanceId::of_value(values[0]))),
            values: values(),
        },
        Kind::Record { recorder: recorder.clone(), values: [Bound::Instance, Bound::Instance].into() },
        Kind::Wasm { function: host, values: values() },
        Kind::Generic(GenericFn::new(move |frame| {
            generic(frame.instance_id());
            Ok(())
        })),
    ];
    // Values of a stub that only records are stored by itself; at the entry, it is in another list.
    let places = [Place::Entry, Place::Instruction { offset: 1 }];
    let specs: Vec<ProbeSpec> = [(0, &kinds[..]), (1, &kinds[2..3])]
        .iter()
        .flat_map(|(place, kinds)| {
            kinds.iter().map(|kind| ProbeSpec {
                location: Location { function: 0, place: places[*place] },
                kind: kind.clone(),
            })
        })
        .collect();
    let probes: Vec<_> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    activate_all(&probes).into_iter().for_each(Result::unwrap);
    let instances = [0, 1].map(|_| Instance::new(&mut store, &module, &[]).unwrap());
    for instance in [0, 1, 0].map(|number| instances[number]) {
        let run = instance.get_typed_func::<i64, ()>(&mut store, "run").unwrap();
        run.call(&mut store, 7).unwrap();
        recorder.flush();
        let mut logged = std::mem::take(&mut *log.lock().unwrap());
        logged.sort_by_key(|(name, _)| *name);
        let names: Vec<_> = logged.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["closure", "generic", "host", "native", "record", "record"]);
        let id = instance.id(&store);
        assert!(logged.iter().all(|(_, instance)| *instance == id), "{logged:?} {id:?}");
    }
}

/// Instances have their counters before their contexts if all of them are made after the first
/// probe, and elsewhere otherwise.
#[test]
fn counts_are_those_of_all_instances_whenever_they_are_made() {
    let text = r#"(module (func (export "run") (param i32) (result i32) (local i32)
            (loop
                (block (block (br_table 0 1 (i32.and (local.get 1) (i32.const 1)))) (nop))
                (local.set 1 (i32.add (local.get 1) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get 1) (local.get 0))))
            (local.get 1)))"#;
    let engine = Engine::new(Config::new().counter_stubs(0)).unwrap();
    for is_first_earlier in [false, true] {
        let module = Module::new(&engine, text).unwrap();
        let [mut first, mut second] = [(); 2].map(|()| Store::new(&engine, ()));
        let earlier = is_first_earlier.then(|| Instance::new(&mut first, &module, &[]).unwrap());
        let table = offset_of(&module, 0, |operator| matches!(operator, Operator::BrTable { .. }));
        let br_if = offset_of(&module, 0, |operator| matches!(operator, Operator::BrIf { .. }));
        let specs = [at(0, table, Kind::CountBranch), at(0, br_if, Kind::CountBranch)];
        let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
        let of_second = module.scoped_probes(Scope::Store(second.id()), &[at(0, br_if, Kind::Count)]);
        let of_second = of_second.into_iter().next().unwrap().unwrap();
        activate_all(probes.iter().chain([&of_second])).into_iter().for_each(Result::unwrap);
        let instance = earlier.unwrap_or_else(|| Instance::new(&mut first, &module, &[]).unwrap());
        assert_eq!(call(&mut first, &instance, 5).unwrap(), 5);
        let instance = Instance::new(&mut second, &module, &[]).unwrap();
        assert_eq!(call(&mut second, &instance, 8).unwrap(), 8);
        let counts = || (probes[0].branches().unwrap(), probes[1].branches().unwrap(), of_second.count());
        let ways = Branches::Table { targets: [3 + 4].into(), default: 2 + 4 };
        let expected = (ways, Branches::Condition { taken: 4 + 7, not_taken: 2 }, 8);
        assert_eq!(counts(), expected);
        drop((first, second));
        assert_eq!(counts(), expected);
    }
}

pub(crate) fn test_all() {
    probes_get_the_running_instance();
}

/// What a trap takes back at a branch, from the count of the instruction as from that of its ways,
/// is still taken back when the store has ended.
#[test]
fn counts_at_branches_outlive_stores_that_have_trapped() {
    let (module, mut store, instance) = program(
        "(module (memory 1) (func (export \"run\") (param i32) (result i32)
            (block (drop (i32.load (local.get 0))) (br_if 0 (local.get 0)))
            (local.get 0)))",
    );
    let br_if = offset_of(&module, 0, |operator| matches!(operator, Operator::BrIf { .. }));
    let mut counters: Vec<Probe> = Vec::new();
    for scope in [Scope::Store(store.id()), Scope::Module] {
        let made = module.scoped_probes(scope, &[at(0, br_if, Kind::Count)]);
        counters.extend(made.into_iter().map(Result::unwrap));
    }
    activate_all(&counters).into_iter().for_each(|on| on.unwrap());
    assert_eq!(call(&mut store, &instance, 0).unwrap(), 0);
    let ways = module.probe(at(0, br_if, Kind::CountBranch)).unwrap();
    ways.activate().unwrap();
    assert_eq!(call(&mut store, &instance, 4).unwrap(), 4);
    call(&mut store, &instance, -1).unwrap_err();
    let counts = || (counters[0].count(), counters[1].count(), ways.branches().unwrap());
    let expected = (2, 2, Branches::Condition { taken: 1, not_taken: 0 });
    assert_eq!(counts(), expected);
    drop(store);
    assert_eq!(counts(), expected);
}
