//! Global probes: every instruction of the functions that run, and of no others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use wasm_jit::probes::{
    Bound, Callback, GlobalProbe, InstanceId, Kind, Location, Place, Probe, ProbeError, ProbeSpec,
    ValueError, activate_all,
};
use wasm_jit::{Engine, Instance, Linker, Module, Store, Trap, Val};

use super::threads::{Ends, PROGRAM};
use super::{engine, location, outcome, programs, reference, seeds};

/// How many instructions a run executes, and how many functions.
fn executed(engine: &Engine, bytes: &[u8]) -> (super::Outcome, u64, usize) {
    let (expected, counts, places) = reference(engine, bytes, 1);
    let at_instructions = counts.iter().zip(&places).filter(|(_, (_, at))| at.is_some());
    let entered = counts.iter().zip(&places).filter(|(count, (_, at))| at.is_none() && **count > 0).count();
    (expected, at_instructions.map(|(count, _)| count).sum(), entered)
}

#[test]
fn every_instruction_that_runs_is_counted() {
    let mut total = 0;
    for seed in seeds() {
        let engine = engine();
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (expected, count, entered) = executed(&engine, &bytes);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let global = module.global_probe(Kind::Count).unwrap();
        assert_eq!(outcome(&module).0, expected);
        global.activate().unwrap();
        assert_eq!((global.count(), global.functions()), (0, 0));
        assert_eq!(outcome(&module).0, expected, "seed {seed}");
        assert_eq!((global.count(), global.functions()), (count, entered), "seed {seed}");
        global.deactivate().unwrap();
        assert_eq!(outcome(&module).0, expected);
        assert_eq!(global.count(), count);
        global.activate().unwrap();
        assert_eq!(outcome(&module).0, expected);
        assert_eq!((global.count(), global.functions()), (2 * count, entered));
        assert_eq!(global.refused().len(), 0);
        drop(global);
        assert_eq!(outcome(&module).0, expected);
        total += count;
    }
    assert!(total > 10_000, "{total}");
}

/// Closures get the place: each instruction fires as often as the rewritten module counts it.
#[test]
fn closures_get_every_place() {
    for seed in 0..15 {
        let engine = engine();
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let fired: Arc<Mutex<HashMap<(u64, u64), u64>>> = Arc::default();
        let of_probe = fired.clone();
        let function = Callback::new(move |values| {
            *of_probe.lock().unwrap().entry((values[0], values[1])).or_default() += 1;
        });
        let values = [Bound::Function, Bound::Offset].into();
        let global = module.global_probe(Kind::Callback { function, values }).unwrap();
        global.activate().unwrap();
        assert_eq!(outcome(&module).0, expected);
        let mut fired = fired.lock().unwrap();
        for (place, count) in places.iter().zip(counts) {
            let Location { function, place: Place::Instruction { offset } } = location(&module, *place)
            else {
                continue;
            };
            let got = fired.remove(&(function.into(), offset.into())).unwrap_or(0);
            assert_eq!(got, count, "seed {seed} {place:x?}");
        }
        assert!(fired.is_empty(), "{fired:?}");
    }
}

/// Frames that exist when a global probe is switched on are observed as they are by local ones:
/// from the return of their calls on. Functions without frames get no probes.
#[test]
fn frames_that_exist_are_observed() {
    let text = "(module (import \"host\" \"act\" (func $act (param i32)))
        (func $loop (param $n i32)
            (loop $more (call $act (local.get $n))
                (br_if $more (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
        (func $idle nop)
        (func $outer (export \"run\") (call $loop (i32.const 5)) (drop (i32.const 1)) nop))";
    let counted = |is_global: bool| {
        let engine = engine();
        let module = Module::new(&engine, text).unwrap();
        let global = Arc::new(module.global_probe(Kind::Count).unwrap());
        let own: Arc<Mutex<Vec<Probe>>> = Arc::default();
        let mut linker = Linker::new(&engine);
        let (of_host, its_module, its_own) = (global.clone(), module.clone(), own.clone());
        let act = move |n: i32| {
            if n == 3 && is_global {
                of_host.activate().unwrap();
                assert_eq!(of_host.functions(), 2);
            } else if n == 3 {
                let mut own = its_own.lock().unwrap();
                let specs =
                    its_module.functions().flat_map(|info| info.body().map(|body| (info.index(), body)));
                let specs = specs.flat_map(|(function, body)| {
                    let start = body.range().start;
                    let offsets = body.instructions().map(move |at| (at.offset() - start) as u32);
                    let place = move |offset| Location { function, place: Place::Instruction { offset } };
                    let spec = move |offset| ProbeSpec { location: place(offset), kind: Kind::Count };
                    offsets.map(spec).collect::<Vec<_>>()
                });
                let specs: Vec<ProbeSpec> = specs.collect();
                own.extend(its_module.probes(&specs).into_iter().map(|made| made.unwrap()));
                activate_all(own.iter()).into_iter().for_each(|on| on.unwrap());
            }
        };
        linker.func_wrap("host", "act", act).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, &module).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
        let own: u64 = own.lock().unwrap().iter().map(Probe::count).sum();
        (global.count(), own)
    };
    let (local, global) = (counted(false), counted(true));
    assert!(local.1 > 20, "{local:?}");
    assert_eq!((local.0, global), (0, (local.1, 0)));
}

/// A function that never calls anything is observed from its next iteration on, on whatever thread.
#[test]
fn loops_on_other_threads_are_observed() {
    let module = Module::new(&engine(), "(module (func (export \"run\") (loop (br 0))))").unwrap();
    let global = module.global_probe(Kind::Count).unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let handle = store.interrupt_handle();
    std::thread::scope(|scope| {
        let spinning = scope.spawn(move || run.call(&mut store, ()).unwrap_err());
        // The thread may not have begun, or may be preempted for longer than it is waited for.
        while global.count() == 0 {
            global.deactivate().unwrap();
            global.activate().unwrap();
            std::thread::yield_now();
        }
        handle.interrupt();
        assert_eq!(spinning.join().unwrap().trap(), Some(Trap::Interrupt));
    });
}

/// The first call of a function, by which its probes are made, gets its arguments, whoever calls.
#[test]
fn arguments_arrive_while_probes_are_made() {
    let params = "(param i32 i64 f64 i32 i64 f32 i32 i64 f64 i32 i64 f64 f64 f64 f64 f64 f64 f64)";
    let terms: Vec<String> = [
        "i32", "i64", "f64", "i32", "i64", "f32", "i32", "i64", "f64", "i32", "i64", "f64", "f64", "f64",
        "f64", "f64", "f64", "f64",
    ]
    .iter()
    .enumerate()
    .map(|(index, ty)| {
        let weight = format!("(f64.const {})", index * index + 1);
        let value = match *ty {
            "i32" => format!("(f64.convert_i32_s (local.get {index}))"),
            "i64" => format!("(f64.convert_i64_s (local.get {index}))"),
            "f32" => format!("(f64.promote_f32 (local.get {index}))"),
            _ => format!("(local.get {index})"),
        };
        format!("(f64.mul {value} {weight})")
    })
    .collect();
    let sum = terms.into_iter().reduce(|sum, term| format!("(f64.add {sum} {term})")).unwrap();
    let all: String = (0..18).map(|index| format!("(local.get {index})")).collect();
    let library = format!(
        "(module (memory 1) (global $g (mut f64) (f64.const 0)) (func (export \"sum\") {params} (result f64)
            (global.set $g {sum}) (f64.add (global.get $g) (f64.convert_i32_u (memory.size)))))"
    );
    let text = format!(
        "(module (type $t (func {params} (result f64))) (import \"lib\" \"sum\" (func $lib (type $t)))
        (memory 3) (table 1 funcref) (elem (i32.const 0) func $inner)
        (func $inner (type $t) {sum})
        (func $tail (type $t) (return_call $inner {all}))
        (func (export \"direct\") (type $t) (call $inner {all}))
        (func (export \"indirect\") (type $t) (call_indirect (type $t) {all} (i32.const 0)))
        (func (export \"tail\") (type $t) (call $tail {all}))
        (func (export \"import\") (type $t) (f64.add (call $lib {all}) (f64.convert_i32_u (memory.size)))))"
    );
    let arguments: Vec<Val> = (1..=18)
        .zip([0, 1, 3, 0, 1, 2, 0, 1, 3, 0, 1, 3, 3, 3, 3, 3, 3, 3])
        .map(|(value, ty)| match ty {
            0 => Val::I32(value),
            1 => Val::I64(value.into()),
            2 => Val::F32((value as f32).to_bits()),
            _ => Val::F64(f64::from(value).to_bits()),
        })
        .collect();
    let weighted: i32 = (0..18).map(|index| (index + 1) * (index * index + 1)).sum();
    for (export, plus) in [("direct", 0), ("indirect", 0), ("tail", 0), ("import", 1 + 3)] {
        let engine = engine();
        let global = engine.global_probe(Kind::Count).unwrap();
        global.activate().unwrap();
        let (library, module) =
            (Module::new(&engine, &library).unwrap(), Module::new(&engine, &text).unwrap());
        let mut store = Store::new(&engine, ());
        let lib = Instance::new(&mut store, &library, &[]).unwrap();
        let sum = lib.get_export(&store, "sum").unwrap();
        let instance = Instance::new(&mut store, &module, &[sum]).unwrap();
        let func = instance.get_func(&mut store, export).unwrap();
        for _ in 0..2 {
            let mut results = [Val::F64(0)];
            func.call(&mut store, &arguments, &mut results).unwrap();
            let Val::F64(bits) = results[0] else { panic!("{results:?}") };
            assert_eq!(f64::from_bits(bits), f64::from(weighted + plus), "{export}");
        }
        assert_eq!(global.functions(), if export == "tail" { 3 } else { 2 });
        assert!(global.count() > 100);
    }
}

/// The probes of an engine are in the modules that it has and in those that come, and do not keep
/// them.
#[test]
fn engines_have_probes_in_all_modules() {
    let engine = engine();
    let text = |count: u32| {
        format!(
            "(module (func (export \"run\") {}) (func (export \"other\")))",
            "(nop)".repeat(count as usize)
        )
    };
    let run = |module: &Module| {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ()).unwrap();
    };
    let first = Module::new(&engine, text(1)).unwrap();
    let global: GlobalProbe = engine.global_probe(Kind::Count).unwrap();
    let second = Module::new(&engine, text(10)).unwrap();
    global.activate().unwrap();
    let third = Module::new(&engine, text(100)).unwrap();
    let mut expected = 0;
    for (module, count) in [(&first, 2), (&second, 11), (&third, 101), (&first, 2)] {
        run(module);
        expected += count;
        assert_eq!(global.count(), expected);
    }
    assert_eq!(global.functions(), 3);
    drop(third);
    assert_eq!((global.count(), global.functions()), (expected - 101, 2));
    global.deactivate().unwrap();
    run(&second);
    let fourth = Module::new(&engine, text(7)).unwrap();
    run(&fourth);
    assert_eq!(global.count(), expected - 101);
    global.activate().unwrap();
    run(&fourth);
    run(&first);
    assert_eq!(global.count(), expected - 101 + 8 + 2);
    drop(global);
    run(&first);
}

/// Probes of both kinds at one place fire in the order of their activation; making an own probe in
/// a function that waits for its first call makes the global ones before.
#[test]
fn global_probes_and_others_share_places() {
    let module = Module::new(&engine(), "(module (func (export \"run\") nop))").unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let logging = |name: &'static str| {
        let log = log.clone();
        let function = Callback::new(move |values| log.lock().unwrap().push((name, values[0])));
        Kind::Callback { function, values: [Bound::Offset].into() }
    };
    let first = module.global_probe(logging("first")).unwrap();
    let second = module.global_probe(logging("second")).unwrap();
    first.activate().unwrap();
    second.activate().unwrap();
    let place = Place::Instruction { offset: 1 };
    let own =
        module.probe(ProbeSpec { location: Location { function: 0, place }, kind: logging("own") }).unwrap();
    own.activate().unwrap();
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let mut check = |expected: &[(&str, u64)]| {
        run.call(&mut store, ()).unwrap();
        assert_eq!(log.lock().unwrap().drain(..).collect::<Vec<_>>(), expected);
    };
    check(&[("first", 1), ("second", 1), ("own", 1), ("first", 2), ("second", 2)]);
    first.deactivate().unwrap();
    check(&[("second", 1), ("own", 1), ("second", 2)]);
    first.activate().unwrap();
    check(&[("second", 1), ("own", 1), ("first", 1), ("second", 2), ("first", 2)]);
    drop((first, second));
    check(&[("own", 1)]);
    drop(own);
    check(&[]);
}

#[test]
fn values_have_to_be_everywhere() {
    let module = Module::new(&engine(), "(module (func (param i32)))").unwrap();
    let kind = |value| Kind::Callback { function: Callback::new(|_| {}), values: [value].into() };
    for value in [Bound::Local(0), Bound::Operand(0), Bound::Address, Bound::Result(0), Bound::Callee] {
        let error = module.global_probe(kind(value)).unwrap_err();
        let reason = ValueError::NotEverywhere;
        assert!(
            matches!(error, ProbeError::GlobalValue { value: of, reason: is } if of == value && is == reason)
        );
    }
    for value in
        [Bound::Const(1), Bound::Function, Bound::Offset, Bound::Frame, Bound::Instance, Bound::Context]
    {
        assert!(module.global_probe(kind(value)).is_ok());
    }
}

/// Threads run a program while a global probe is switched; when it is quiet, it counts exactly.
/// They enter functions for the first time together.
#[test]
fn threads_are_not_disturbed() {
    let mut switches = 0;
    for round in 0..20 {
        let engine = engine();
        let bytes = wat::parse_str(PROGRAM).unwrap();
        let (expected, count, _) = executed(&engine, &bytes);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let global = module.global_probe(Kind::Count).unwrap();
        let is_over = AtomicBool::new(false);
        if round % 2 == 0 {
            global.activate().unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _ends = Ends(&is_over);
                    for _ in 0..20 {
                        assert_eq!(outcome(&module).0, expected);
                    }
                });
            }
            while !is_over.load(Ordering::Acquire) {
                global.activate().unwrap();
                global.deactivate().unwrap();
                switches += 1;
            }
        });
        global.activate().unwrap();
        let before = global.count();
        assert_eq!(outcome(&module).0, expected);
        assert_eq!(global.count() - before, count);
    }
    println!("{switches} switches");
}

/// An activation that runs already is observed from the return of its call on.
#[test]
fn a_probe_is_switched_on_by_the_program_itself() {
    let module = Module::new(
        &engine(),
        "(module (import \"host\" \"act\" (func $act)) (func $f nop nop)
            (func (export \"run\") (call $f) (call $act) (call $f) nop))",
    )
    .unwrap();
    let global = Arc::new(module.global_probe(Kind::Count).unwrap());
    let of_host = global.clone();
    let mut linker: Linker<Option<InstanceId>> = Linker::new(module.engine());
    linker.func_wrap("host", "act", move || of_host.activate().unwrap()).unwrap();
    let mut store = Store::new(module.engine(), None);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
    assert_eq!(global.count(), 3 + 3);
    run.call(&mut store, ()).unwrap();
    assert_eq!(global.count(), 3 + 3 + 3 + 3 + 5);
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    every_instruction_that_runs_is_counted();
    closures_get_every_place();
    arguments_arrive_while_probes_are_made();
    engines_have_probes_in_all_modules();
    global_probes_and_others_share_places();
    threads_are_not_disturbed();
    a_probe_is_switched_on_by_the_program_itself();
    frames_that_exist_are_observed();
    loops_on_other_threads_are_observed();
}
