//! Global probes of each kind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasm_jit::probes::{
    Bound, Branches, Callback, GenericFn, Kind, Location, NativeFn, Operand, Place, Probe, ProbeError,
    ProbeSpec, Quadword, Recorder, Shortcut, Step, Temp, ValueError, WasmFn, activate_all,
};
use wasm_jit::{Engine, Func, Instance, Module, Store, ValType};

use super::{call_main, engine, location, outcome, programs, reference, seeds};

/// A program with every instruction whose choices can be counted, and others.
const BRANCHES: &str = "(module (memory (export \"memory\") 1)
    (func (export \"main\") (result i64) (local $i i32) (local $sum i64)
        (loop $next
            (if (i32.and (local.get $i) (i32.const 1))
                (then (local.set $sum (i64.add (local.get $sum) (i64.const 3))))
                (else (local.set $sum (i64.add (local.get $sum) (i64.const 1)))))
            (block $b (block $a
                (br_table $a $b $a (local.get $i)))
                (local.set $sum (i64.mul (local.get $sum) (i64.const 7))))
            (local.set $sum (i64.add (local.get $sum)
                (select (i64.const 5) (i64.const 9) (i32.gt_u (local.get $i) (i32.const 4)))))
            (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10))))
        (local.get $sum)))";

/// Ways are counted as by single probes, and executions are not counted for each way.
#[test]
fn branches_are_counted_once() {
    let programs = (0..seeds().end.min(12)).map(programs::program).chain([BRANCHES.to_owned()]);
    let mut total = 0;
    for text in programs {
        let engine = engine();
        let bytes = wat::parse_str(text).unwrap();
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let specs = places.iter().filter(|(_, at)| at.is_some());
        let specs: Vec<ProbeSpec> = specs
            .map(|place| ProbeSpec { location: location(&module, *place), kind: Kind::CountBranch })
            .collect();
        let chooses = |made: &Result<Probe, ProbeError>| {
            !matches!(made, Err(ProbeError::NoBranch { .. } | ProbeError::Unreachable { .. }))
        };
        let single: Vec<Probe> =
            module.probes(&specs).into_iter().filter(chooses).map(Result::unwrap).collect();
        activate_all(&single).into_iter().for_each(Result::unwrap);
        assert_eq!(outcome(&module).0, expected);
        let ways: BTreeMap<Location, Branches> =
            single.iter().map(|probe| (probe.spec().location, probe.branches().unwrap())).collect();
        drop(single);

        let module = Module::from_binary(&engine, &bytes).unwrap();
        let global = module.global_probe(Kind::CountBranch).unwrap();
        global.activate().unwrap();
        assert_eq!(outcome(&module).0, expected);
        assert_eq!(global.refused().len(), 0);
        let executed = places
            .iter()
            .zip(&counts)
            .filter(|(place, _)| place.1.is_some() && ways.contains_key(&location(&module, **place)));
        assert_eq!(global.count(), executed.map(|(_, count)| *count).sum::<u64>());
        let counted = global.branches(&module);
        assert!(counted.is_sorted_by_key(|(location, _)| *location));
        let counted: BTreeMap<Location, Branches> = counted.into_iter().collect();
        // Functions that were not called have no probes.
        assert!(ways.iter().all(|(at, ways)| counted.get(at).map_or(ways.total() == 0, |way| way == ways)));
        assert!(counted.keys().all(|at| ways.contains_key(at)));
        total += global.count();
    }
    assert!(total > 100, "{total}");
    let module = Module::new(&engine(), BRANCHES).unwrap();
    let global = module.global_probe(Kind::Count).unwrap();
    global.activate().unwrap();
    outcome(&module).0.0.unwrap();
    assert_eq!(global.branches(&module), []);
}

extern "C" fn count(cell: u64) {
    // SAFETY: the address is that of a counter that the test keeps.
    let cell = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(cell as usize) };
    cell.fetch_add(1, Ordering::Relaxed);
}

/// Each kind fires at every instruction, and the program goes on as without.
#[test]
fn probes_of_all_kinds_are_everywhere() {
    for seed in 0..seeds().end.min(8) {
        for name in ["empty", "native", "shortcut", "callback", "generic", "record", "wasm", "host"] {
            let engine = engine();
            let bytes = wat::parse_str(programs::program(seed)).unwrap();
            let (expected, counts, places) = reference(&engine, &bytes, 1);
            let executed = places.iter().zip(&counts).filter(|((_, at), _)| at.is_some());
            let executed: u64 = executed.map(|(_, count)| *count).sum();
            let module = Module::from_binary(&engine, &bytes).unwrap();
            let fired = Arc::new(AtomicU64::new(0));
            let address = fired.as_ptr().expose_provenance() as u64;
            let values = [Bound::Const(address)];
            // SAFETY: the function does not unwind, and is part of the program; the counter is kept
            // until no program runs any more.
            let function = unsafe { NativeFn::new(count as extern "C" fn(u64)) };
            let recorded = fired.clone();
            let recorder = Recorder::new(move |_, records: &[[u64; 2]]| {
                _ = recorded.fetch_add(records.len() as u64, Ordering::Relaxed);
            })
            .unwrap();
            let mut store = Store::new(&engine, ());
            let monitor = "(module (global (export \"count\") (mut i64) (i64.const 0))
                (func (export \"f\") (param i32) (global.set 0 (i64.add (global.get 0) (i64.const 1)))))";
            let monitor = Module::new(&engine, monitor).unwrap();
            let monitor = Instance::new(&mut store, &monitor, &[]).unwrap();
            let count = fired.clone();
            let count = move || _ = count.fetch_add(1, Ordering::Relaxed);
            let kind = match name {
                "empty" => Kind::Empty,
                "native" => Kind::Native { function, values: values.into() },
                "shortcut" => {
                    let add = Step::AddTo(Quadword { base: Temp::A, offset: 0 }, Operand::Const(1));
                    let steps = [Step::SetConst(Temp::A, address), add];
                    // SAFETY: the shortcut keeps the counter, which only this thread uses.
                    let shortcut = unsafe { Shortcut::new(steps, fired.clone()) }.unwrap();
                    Kind::Shortcut { shortcut, function, values: values.into() }
                }
                "callback" => Kind::Callback {
                    function: Callback::with_types([ValType::I64], move |_| count()),
                    values: [Bound::Frame].into(),
                },
                "generic" => Kind::Generic(GenericFn::new(move |frame| {
                    assert!(matches!(frame.location().place, Place::Instruction { .. }));
                    count();
                    Ok(())
                })),
                "record" => {
                    let values = [Bound::Function, Bound::Offset].into();
                    Kind::Record { recorder: recorder.clone(), values }
                }
                "wasm" => {
                    let function = monitor.get_func(&mut store, "f").unwrap();
                    let function = WasmFn::new(&store, function).unwrap();
                    Kind::Wasm { function, values: [Bound::Offset].into() }
                }
                _ => {
                    let function = Func::wrap(&mut store, move |_: i32| count()).unwrap();
                    let function = WasmFn::new(&store, function).unwrap();
                    Kind::Wasm { function, values: [Bound::Function].into() }
                }
            };
            let global = module.global_probe(kind).unwrap();
            global.activate().unwrap();
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            assert_eq!(call_main(&mut store, &instance), expected, "seed {seed} {name}");
            assert_eq!((global.refused().len(), global.count()), (0, 0));
            recorder.flush();
            let sum = monitor.get_global(&mut store, "count").unwrap().get(&mut store).i64().unwrap();
            let fired = fired.load(Ordering::Relaxed) + sum as u64;
            assert_eq!(fired, if name == "empty" { 0 } else { executed }, "seed {seed} {name}");
        }
    }
}

/// A probe on all modules of an engine is not on that of its function, which would call itself.
#[test]
fn functions_of_global_probes_are_not_probed() {
    let engine = engine();
    let mut store = Store::new(&engine, ());
    let monitor = Module::new(
        &engine,
        "(module (global (export \"count\") (mut i64) (i64.const 0))
            (func $count (global.set 0 (i64.add (global.get 0) (i64.const 1))))
            (func (export \"f\") (call $count)) (func (export \"own\")))",
    )
    .unwrap();
    let of_monitor = Instance::new(&mut store, &monitor, &[]).unwrap();
    let function = of_monitor.get_func(&mut store, "f").unwrap();
    let kind = Kind::Wasm { function: WasmFn::new(&store, function).unwrap(), values: [].into() };
    let error = monitor.global_probe(kind.clone()).unwrap_err();
    assert!(matches!(error, ProbeError::OwnModule), "{error}");
    let global = engine.global_probe(kind).unwrap();
    global.activate().unwrap();
    let program = Module::new(&engine, "(module (func (export \"run\") nop nop))").unwrap();
    let program = Instance::new(&mut store, &program, &[]).unwrap();
    let run = program.get_func(&mut store, "run").unwrap();
    let own = of_monitor.get_func(&mut store, "own").unwrap();
    for function in [run, own] {
        function.call(&mut store, &[], &mut []).unwrap();
    }
    let count = of_monitor.get_global(&mut store, "count").unwrap();
    assert_eq!(count.get(&mut store).i64(), Some(3));
    assert_eq!((global.functions(), global.refused().len()), (1, 0));
}

/// What no function can have is refused when the probe is made, not when functions are called.
#[test]
fn values_that_do_not_fit_are_refused_at_once() {
    let engine = engine();
    let module = Module::new(&engine, "(module (func nop))").unwrap();
    let refused = |kind: Kind| {
        let errors = [module.global_probe(kind.clone()), Engine::global_probe(&engine, kind)];
        errors.map(Result::unwrap_err)
    };
    let mut store = Store::new(&engine, ());
    let function = Func::wrap(&mut store, |_: i32, _: f32| ()).unwrap();
    let wasm = WasmFn::new(&store, function).unwrap();
    let typed = Callback::with_types([ValType::I32, ValType::F32], |_| ());
    // SAFETY: it is never called.
    let native = unsafe { NativeFn::new(count as extern "C" fn(u64)) };
    // SAFETY: likewise.
    let shortcut = unsafe { Shortcut::new([], ()) }.unwrap();
    let recorder = Recorder::new(|_, _: &[[u64; 3]]| ()).unwrap();
    let values = [Bound::Offset, Bound::Offset];
    let with = |values: &[Bound]| {
        let values = || values.into();
        [
            Kind::Wasm { function: wasm.clone(), values: values() },
            Kind::Callback { function: typed.clone(), values: values() },
            Kind::Native { function: native, values: values() },
            Kind::Shortcut { shortcut: shortcut.clone(), function: native, values: values() },
            Kind::Record { recorder: recorder.clone(), values: values() },
        ]
    };
    for (number, kind) in with(&values).into_iter().enumerate() {
        for error in refused(kind) {
            let parameters = [2, 2, 1, 1, 3][number];
            match error {
                ProbeError::GlobalValue { value: Bound::Offset, reason: ValueError::Type { parameter } } => {
                    assert!(number < 2 && parameter == ValType::F32);
                }
                ProbeError::Parameters { parameters: found, values: 2 } => {
                    assert!(number >= 2 && parameters == found);
                }
                other => panic!("{number}: {other}"),
            }
        }
    }
    for (kind, parameters) in with(&[]).into_iter().zip([2, 2, 1, 1, 3]) {
        for error in refused(kind) {
            assert!(
                matches!(error, ProbeError::Parameters { parameters: found, values: 0 } if found == parameters)
            );
        }
    }
    let many =
        Kind::Callback { function: Callback::new(|_| ()), values: vec![Bound::Frame; 1001][..].into() };
    for error in refused(many) {
        assert!(matches!(error, ProbeError::TooManyValues { limit: 1000 }), "{error}");
    }
    let fits = Kind::Wasm { function: wasm, values: [Bound::Offset, Bound::Const(0)].into() };
    assert!(module.global_probe(fits).is_ok());
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    branches_are_counted_once();
    probes_of_all_kinds_are_everywhere();
    functions_of_global_probes_are_not_probed();
}
