//! Probes that call functions of WebAssembly, and host functions of the store.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use wasm_encoder::ValType;
use wasm_jit::probes::{
    Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, ValueError, WasmFn,
    activate_all,
};
use wasm_jit::{Caller, Error, Func, Instance, Module, Store, Trap, TypedFunc, Val};

use super::behaviour::{TRAPPING, trapping};
use super::native::reference;
use super::rewrite::Counted;
use super::threads::Ends;
use super::{Outcome, call_main, engine, location, outcome, programs, seeds, values};

fn entry(kind: Kind) -> ProbeSpec {
    ProbeSpec { location: Location { function: 0, place: Place::Entry }, kind }
}

/// A module with a function for each of these lists of types: its first parameter is the number of
/// a record, the others are added to it.
fn recorder(signatures: &[Vec<ValType>]) -> String {
    let mut text = "(module (memory (export \"records\") 16)".to_owned();
    for (number, types) in signatures.iter().enumerate() {
        write!(text, "(func (export \"record{number}\") (param i64").unwrap();
        for ty in types {
            let name = match ty {
                ValType::I32 => "i32",
                ValType::I64 => "i64",
                ValType::F32 => "f32",
                _ => "f64",
            };
            write!(text, " {name}").unwrap();
        }
        let place = "(i32.shl (i32.wrap_i64 (local.get 0)) (i32.const 3))";
        write!(text, ") {place} (i64.load {place})").unwrap();
        for (index, ty) in (1..).zip(types) {
            let bits = match ty {
                ValType::I32 => format!("(i64.extend_i32_u (local.get {index}))"),
                ValType::I64 => format!("(local.get {index})"),
                ValType::F32 => format!("(i64.extend_i32_u (i32.reinterpret_f32 (local.get {index})))"),
                _ => format!("(i64.reinterpret_f64 (local.get {index}))"),
            };
            write!(text, "(i64.const 31) i64.mul {bits} i64.add").unwrap();
        }
        text += " i64.store)";
    }
    text + ")"
}

/// A store with an instance that records values of places, and the probes that call it.
struct Recorded {
    store: Store<()>,
    recorder: Instance,
    /// With the numbers of their records.
    probes: Vec<(Counted, Probe)>,
    chosen: HashMap<Counted, Vec<values::Candidate>>,
}

impl Recorded {
    /// Probes for random values of each place.
    fn everywhere(module: &Module, places: &HashMap<Counted, values::Place>, random: &mut SmallRng) -> Self {
        let mut sorted: Vec<&Counted> = places.keys().collect();
        sorted.sort();
        let mut chosen: Vec<(Counted, Vec<values::Candidate>)> = Vec::new();
        for place in sorted {
            // More than there are registers for, at times.
            let values = places[place].choose([1, 4, 24][random.random_range(0..3)], random);
            if !values.is_empty() {
                chosen.push((*place, values));
            }
        }
        let types = |values: &Vec<values::Candidate>| values.iter().map(|value| value.ty).collect();
        let signatures: Vec<Vec<ValType>> = chosen.iter().map(|(_, values)| types(values)).collect();
        let recorder = Module::new(module.engine(), recorder(&signatures)).unwrap();
        let mut store = Store::new(module.engine(), ());
        let recorder = Instance::new(&mut store, &recorder, &[]).unwrap();
        let mut specs = Vec::new();
        for (number, (place, values)) in chosen.iter().enumerate() {
            let function = recorder.get_func(&mut store, &format!("record{number}")).unwrap();
            let record = Bound::Const(number as u64);
            let bounds: Vec<Bound> =
                std::iter::once(record).chain(values.iter().map(|value| value.bound)).collect();
            let function = WasmFn::new(&store, function).unwrap();
            let kind = Kind::Wasm { function, values: bounds[..].into() };
            specs.push(ProbeSpec { location: location(module, *place), kind });
        }
        let mut made = Vec::new();
        for (probe, (place, _)) in module.probes(&specs).into_iter().zip(&chosen) {
            match probe {
                Ok(probe) => made.push((*place, probe)),
                Err(ProbeError::Unreachable { .. }) => {}
                Err(error) => panic!("{place:x?}: {error}"),
            }
        }
        Self { store, recorder, probes: made, chosen: chosen.into_iter().collect() }
    }

    /// Runs the program in the store of the recorder, and compares outcome and records.
    fn check(&mut self, bytes: &[u8], module: &Module, places: &HashMap<Counted, values::Place>) {
        let (expected, records) = reference(bytes, places, &self.chosen);
        let memory = self.recorder.get_memory(&mut self.store, "records").unwrap();
        memory.data_mut(&mut self.store).fill(0);
        assert_eq!(self.outcome(module), expected);
        let mut numbers: Vec<&Counted> = self.chosen.keys().collect();
        numbers.sort();
        for (place, _) in &self.probes {
            let number = numbers.binary_search(&place).unwrap();
            let at = &memory.data(&self.store)[8 * number..][..8];
            let record = u64::from_le_bytes(at.try_into().unwrap());
            assert_eq!(record, records[place], "{place:x?} {:?}", self.chosen[place]);
        }
    }

    fn outcome(&mut self, module: &Module) -> Outcome {
        let instance = Instance::new(&mut self.store, module, &[]).unwrap();
        call_main(&mut self.store, &instance)
    }
}

/// What functions of WebAssembly are called with is what a rewritten module records.
#[test]
fn arguments_are_those_of_the_program() {
    let mut most = 0;
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut recorded = Recorded::everywhere(&module, &places, &mut SmallRng::seed_from_u64(seed));
        for on in activate_all(recorded.probes.iter().map(|(_, probe)| probe)) {
            on.unwrap();
        }
        recorded.check(&bytes, &module, &places);
        most = most.max(recorded.chosen.values().map(Vec::len).max().unwrap());
    }
    assert_eq!(most, 24, "arguments on the stack");
}

/// An instruction that traps does so before the next probe fires.
#[test]
fn probes_fire_before_traps() {
    for body in TRAPPING.iter().filter(|body| !body.contains("call $inner")) {
        let bytes = trapping(body);
        for seed in 0..5 {
            let module = Module::from_binary(&engine(), &bytes).unwrap();
            let places = values::places(&bytes);
            let mut recorded = Recorded::everywhere(&module, &places, &mut SmallRng::seed_from_u64(seed));
            recorded.probes.iter().for_each(|(_, probe)| probe.activate().unwrap());
            recorded.check(&bytes, &module, &places);
        }
    }
}

/// Another thread switches probes while the store that they are for, and one that they are not for,
/// run the program.
#[test]
fn random_programs_are_not_disturbed_by_functions_of_webassembly() {
    let mut changes = 0;
    for seed in 300..310 {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        let module = Module::from_binary(&engine(), &bytes).unwrap();
        let places = values::places(&bytes);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut recorded = Recorded::everywhere(&module, &places, &mut random);
        let (expected, _) = reference(&bytes, &places, &recorded.chosen);
        let (is_over, probes) = (AtomicBool::new(false), std::mem::take(&mut recorded.probes));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ends = Ends(&is_over);
                for _ in 0..30 {
                    assert_eq!(recorded.outcome(&module), expected, "seed {seed}");
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    assert_eq!(outcome(&module).0, expected, "seed {seed}, another store");
                }
            });
            while !is_over.load(Ordering::Acquire) {
                let probe = &probes[random.random_range(0..probes.len())].1;
                if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
                changes += 1;
            }
        });
        probes.iter().for_each(|(_, probe)| probe.activate().unwrap());
        recorded.probes = probes;
        recorded.check(&bytes, &module, &places);
    }
    assert!(changes > 500, "{changes}");
}

/// What a host function of a probe knows.
#[derive(Default)]
struct Host {
    run: Option<TypedFunc<i32, i32>>,
    is_inside: bool,
    fired: u64,
}

/// A loop whose sites keep operands in the place that all frames of an instance share: a
/// conjunction that is tested, and a value that is loaded by the instruction which needs it.
const PENDING: &str = "(module (memory 1) (data (i32.const 64) \"many different characters\")
    (func (export \"run\") (param $n i32) (result i32) (local $sum i32) (local $i i32)
    (loop $next
        (if (i32.and (i32.add (local.get $i) (local.get $n)) (i32.const 3)) (then
            (local.set $sum (i32.add (local.get $sum) (i32.const 1)))))
        (local.set $sum (i32.xor (i32.mul (local.get $sum) (i32.const 5))
            (i32.load (i32.add (local.get $i) (i32.const 64)))))
        (br_if $next (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
    (local.get $sum)))";

/// The function of a probe runs the function that is probed, in the same instance.
#[test]
fn functions_of_probes_may_run_the_instance_that_is_probed() {
    let module = Module::new(&engine(), PENDING).unwrap();
    let mut store = Store::new(module.engine(), Host::default());
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let run = program.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let expected: Vec<i32> = (0..20).map(|n| run.call(&mut store, n).unwrap()).collect();
    store.data_mut().run = Some(run);
    let again = Func::wrap(&mut store, |mut caller: Caller<'_, Host>, n: i32| {
        caller.data_mut().fired += 1;
        if !std::mem::replace(&mut caller.data_mut().is_inside, true) {
            let run = caller.data().run.unwrap();
            run.call(&mut caller, n / 2 + 1).unwrap();
            caller.data_mut().is_inside = false;
        }
    });
    let again = WasmFn::new(&store, again.unwrap()).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let offsets = body.instructions().map(|instruction| instruction.offset() - body.range().start);
    let kind = Kind::Wasm { function: again, values: [Bound::Local(0)].into() };
    let spec = |offset: usize| ProbeSpec {
        location: Location { function: 0, place: Place::Instruction { offset: offset as u32 } },
        kind: kind.clone(),
    };
    let specs: Vec<ProbeSpec> = offsets.map(spec).collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().filter_map(Result::ok).collect();
    assert!(probes.len() > 20);
    for probe in &probes {
        probe.activate().unwrap();
        for (n, expected) in (0..).zip(&expected) {
            assert_eq!(run.call(&mut store, n).unwrap(), *expected, "{:?}", probe.spec().location);
        }
        probe.deactivate().unwrap();
    }
    probes.iter().for_each(|probe| probe.activate().unwrap());
    for (n, expected) in (0..).zip(&expected) {
        assert_eq!(run.call(&mut store, n).unwrap(), *expected);
    }
    assert!(store.data().fired > 10_000, "{}", store.data().fired);
}

const GUARDED: &str = "(module (tag) (func (export \"run\") (param i32) (result i32)
    (block $caught (try_table (catch_all $caught) (call $inner (local.get 0))) (return (i32.const 1)))
    (i32.const 2))
    (func $inner (param i32) (drop (i32.load8_u (local.get 0)))) (memory 1))";

/// A trap, an exception and an error in the function of a probe end the program's call; its
/// handlers are not asked, and the backtrace shows where it was.
#[test]
fn failures_in_functions_of_probes_end_the_call() {
    let engine = engine();
    let module = Module::new(&engine, GUARDED).unwrap();
    let mut store = Store::new(&engine, ());
    let monitor = Module::new(
        &engine,
        "(module (tag $t) (func (export \"trap\") unreachable) (func (export \"throw\") (throw $t))
            (func (export \"catch\") (block $c (try_table (catch_all $c) (throw $t)))))",
    );
    let monitor = Instance::new(&mut store, &monitor.unwrap(), &[]).unwrap();
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let run = program.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let fail = Func::wrap(&mut store, |_: Caller<'_, ()>| -> Result<(), Error> {
        Err(Error::host("the probe failed"))
    });
    let load = Location { function: 1, place: Place::Instruction { offset: 3 } };
    let probe = |store: &Store<()>, function: Func| {
        let kind = Kind::Wasm { function: WasmFn::new(store, function).unwrap(), values: [].into() };
        let probe = module.probe(ProbeSpec { location: load, kind }).unwrap();
        probe.activate().unwrap();
        probe
    };
    let functions = ["trap", "throw", "catch"].map(|name| monitor.get_func(&mut store, name).unwrap());
    for (number, function) in functions.into_iter().chain([fail.unwrap()]).enumerate() {
        let probe = probe(&store, function);
        let result = run.call(&mut store, 1);
        match (number, &result) {
            (0, Err(error @ Error::Trap { trap: Trap::UnreachableCodeReached, backtrace })) => {
                let frames: Vec<_> = backtrace
                    .frames()
                    .iter()
                    .map(|frame| (frame.func_index(), frame.func_offset()))
                    .collect();
                assert_eq!(frames[..2], [(0, Some(1)), (1, Some(3))], "{error}");
                assert_eq!(frames[2].0, 0);
                assert_eq!(frames.len(), 3);
            }
            (1, Err(Error::Exception { .. })) | (2, Ok(1)) => {}
            (3, Err(error)) if error.to_string().contains("the probe failed") => {}
            other => panic!("{other:?}"),
        }
        drop(probe);
        assert_eq!(run.call(&mut store, 1).unwrap(), 1, "the store can go on");
    }
}

/// A probe is for the store of its function; in other stores, also later ones, it does nothing.
#[test]
fn functions_are_called_in_their_own_store_only() {
    let engine = engine();
    let module = Module::new(&engine, "(module (func (export \"run\")))").unwrap();
    let mut stores: Vec<Store<u32>> = (0..4).map(|_| Store::new(&engine, 0)).collect();
    let probe = |store: &mut Store<u32>| {
        let count = Func::wrap(&mut *store, |mut caller: Caller<'_, u32>| *caller.data_mut() += 1);
        let function = WasmFn::new(&*store, count.unwrap()).unwrap();
        let probe = module.probe(entry(Kind::Wasm { function, values: [].into() })).unwrap();
        probe.activate().unwrap();
        probe
    };
    let probes: Vec<Probe> = stores.iter_mut().map(probe).collect();
    let run = |store: &mut Store<u32>| {
        let instance = Instance::new(&mut *store, &module, &[]).unwrap();
        instance.get_typed_func::<(), ()>(&mut *store, "run").unwrap().call(&mut *store, ()).unwrap();
    };
    for (times, store) in (1..).zip(&mut stores) {
        (0..times).for_each(|_| run(store));
        assert_eq!(*store.data(), times);
    }
    // Stores that may be where others were.
    stores.clear();
    for _ in 0..8 {
        let mut store = Store::new(&engine, 0);
        run(&mut store);
        assert_eq!(*store.data(), 0);
    }
    drop(probes);
}

/// Recursion through a probe ends as any recursion does.
#[test]
fn a_function_that_is_its_own_probe_overflows_the_stack() {
    let engine = engine();
    let module = Module::new(&engine, "(module (func (export \"run\")))").unwrap();
    let mut store = Store::new(&engine, ());
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let run = program.get_func(&mut store, "run").unwrap();
    let kind = Kind::Wasm { function: WasmFn::new(&store, run).unwrap(), values: [].into() };
    let probe = module.probe(entry(kind)).unwrap();
    probe.activate().unwrap();
    let error = run.call(&mut store, &[], &mut []).unwrap_err();
    assert_eq!(error.trap(), Some(Trap::StackOverflow));
    drop(probe);
    run.call(&mut store, &[], &mut []).unwrap();
}

#[test]
fn errors_say_what_does_not_fit() {
    let engine = engine();
    let module = Module::new(
        &engine,
        "(module (memory 1) (func (param i32 i64 externref (ref extern)) (local (ref extern))
            (drop (f32.load (local.get 0)))
            (drop (ref.is_null (local.get 2))) (drop (local.get 1))
            (local.set 4 (local.get 3))))",
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let wasm = |store: &mut Store<()>, types: &str| {
        let module = Module::new(&engine, format!("(module (func (export \"f\") {types}))")).unwrap();
        let instance = Instance::new(&mut *store, &module, &[]).unwrap();
        let function = instance.get_func(&mut *store, "f").unwrap();
        WasmFn::new(&*store, function)
    };
    let error = wasm(&mut store, "(result i32) (i32.const 1)").unwrap_err();
    assert!(matches!(error, ProbeError::Results { results: 1 }), "{error}");
    let body = module.function(0).unwrap().body().unwrap();
    let at = |number: usize| {
        let instruction = body.instructions().nth(number).unwrap();
        let offset = (instruction.offset() - body.range().start) as u32;
        Location { function: 0, place: Place::Instruction { offset } }
    };
    let mut make = |types: &str, location: Location, value: Bound| {
        let function = wasm(&mut store, types).unwrap();
        module.probe(ProbeSpec { location, kind: Kind::Wasm { function, values: [value].into() } })
    };
    let (load, is_null) = (at(1), at(4));
    for (types, location, value, is_right) in [
        ("(param i32)", load, Bound::Local(0), true),
        ("(param i64)", load, Bound::Local(0), false),
        ("(param i64)", load, Bound::Local(1), true),
        ("(param externref)", load, Bound::Local(2), true),
        ("(param funcref)", load, Bound::Local(2), false),
        ("(param externref)", is_null, Bound::Operand(0), false),
        ("(param i32)", load, Bound::Operand(0), true),
        ("(param f32)", load, Bound::Operand(0), false),
        ("(param f32)", at(2), Bound::Operand(0), true),
        ("(param i32)", load, Bound::Address, true),
        ("(param i64)", load, Bound::Address, true),
        ("(param f64)", load, Bound::Address, false),
        ("(param i64)", load, Bound::Context, true),
        ("(param i32)", load, Bound::Context, false),
        ("(param i32)", load, Bound::Function, true),
        ("(param f64)", load, Bound::Offset, false),
        ("(param f64)", load, Bound::Const(0), true),
        ("(param externref)", load, Bound::Const(0), true),
        ("(param externref)", load, Bound::Const(1), false),
        ("(param (ref extern))", load, Bound::Const(0), false),
        ("(param (ref extern))", load, Bound::Local(2), false),
        ("(param (ref extern))", load, Bound::Local(3), true),
        ("(param externref)", load, Bound::Local(3), true),
        ("(param (ref extern))", load, Bound::Local(4), false),
        ("(param externref)", load, Bound::Local(4), true),
    ] {
        match make(types, location, value) {
            Ok(_) if is_right => {}
            Err(ProbeError::Value { value: other, reason: ValueError::Type { .. }, .. })
                if !is_right && other == value => {}
            Err(error) => panic!("{types} {value:?}: {error}"),
            Ok(_) => panic!("{types} {value:?}"),
        }
    }
    let error = make("(param i32 i32)", load, Bound::Local(0)).unwrap_err();
    assert!(matches!(error, ProbeError::Parameters { parameters: 2, values: 1 }), "{error}");
}

/// At an exit, a function of WebAssembly would overwrite the results that are in memory: a probe
/// that calls one is refused exactly there, and keeps the results that are in registers.
#[test]
fn exits_with_results_in_memory_call_no_functions() {
    let types = [
        "i32",
        "i64 i64",
        "f64 i32 f32 i64",
        "i32 i32 i32",
        "f32 f64 f32",
        "v128 f32 f64",
        "i32 i64 f32 f64 i64",
    ];
    let functions: Vec<String> = (0..)
        .zip(types)
        .map(|(number, types)| {
            let values = types.split(' ').enumerate().map(|(at, ty)| match ty {
                "v128" => "(v128.const i64x2 1 2)".to_owned(),
                ty => format!("({ty}.const {})", 10 * number + at),
            });
            let values: String = values.collect();
            format!("(func (export \"{number}\") (result {types}) {values})")
        })
        .collect();
    let engine = engine();
    let module = Module::new(&engine, format!("(module {})", functions.concat())).unwrap();
    let monitor = "(module (func $many (param i64) (result i64 i64 i64 f64 f64 f64)
            (local.get 0) (i64.const -1) (i64.const -2) (f64.const -3) (f64.const -4) (f64.const -5))
        (global $calls (export \"calls\") (mut i64) (i64.const 0))
        (func (export \"f\") (param i64)
            (call $many (local.get 0)) drop drop drop drop drop
            global.get $calls i64.add global.set $calls))";
    let mut store = Store::new(&engine, ());
    let monitor = Instance::new(&mut store, &Module::new(&engine, monitor).unwrap(), &[]).unwrap();
    let function = monitor.get_func(&mut store, "f").unwrap();
    let function = WasmFn::new(&store, function).unwrap();
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let results = |store: &mut Store<()>, number: usize| {
        let function = program.get_func(&mut *store, &number.to_string()).unwrap();
        let mut results = vec![Val::I32(0); types[number].split(' ').count()];
        function.call(store, &[], &mut results).unwrap();
        format!("{results:?}")
    };
    let kind = Kind::Wasm { function, values: [Bound::Const(1)].into() };
    for (number, types) in types.iter().enumerate() {
        let before = results(&mut store, number);
        let location = Location { function: number as u32, place: Place::Exit };
        match module.probe(ProbeSpec { location, kind: kind.clone() }) {
            Ok(probe) => {
                assert!(number < 3, "{types}");
                probe.activate().unwrap();
                assert_eq!(results(&mut store, number), before);
            }
            Err(error) => {
                assert!(number >= 3, "{types}: {error}");
                assert!(matches!(error, ProbeError::AtExit { function } if function as usize == number));
            }
        }
    }
    let calls = monitor.get_global(&mut store, "calls").unwrap().get(&mut store);
    assert_eq!(calls.i64(), Some(3));
}

/// Probes of all kinds at one place: a frame that a generic probe sees, arguments on the stack, the
/// values of a closure, and a settled operand do not get in each other's way.
#[test]
fn probes_of_all_kinds_share_a_place() {
    let module = Module::new(&engine(), PENDING).unwrap();
    let mut store = Store::new(module.engine(), ());
    let monitor = Module::new(
        module.engine(),
        "(module (global $sum (export \"sum\") (mut i32) (i32.const 0))
            (func (export \"add\") (param i32 i32 i32 i32 i32 i32 i32 f32 i32 i64)
                (global.set $sum (i32.add (global.get $sum) (i32.add (local.get 6) (local.get 8))))))",
    );
    let monitor = Instance::new(&mut store, &monitor.unwrap(), &[]).unwrap();
    let add = monitor.get_func(&mut store, "add").unwrap();
    let add = WasmFn::new(&store, add).unwrap();
    let sums: Arc<[AtomicU64; 3]> = Arc::default();
    let generic = |number: usize| {
        let sums = sums.clone();
        Kind::Generic(GenericFn::new(move |frame| {
            let Val::I32(n) = frame.local(0)? else { panic!("it is an i32") };
            sums[number].fetch_add(n as u64, Ordering::Relaxed);
            Ok(())
        }))
    };
    let of_closure = sums.clone();
    let closure = Callback::new(move |values| {
        assert_eq!(values[1..], [7, 8]);
        of_closure[2].fetch_add(values[0], Ordering::Relaxed);
    });
    let mut arguments = [Bound::Local(0); 10];
    (arguments[7], arguments[9]) = (Bound::Const(0), Bound::Context);
    let kinds = [
        generic(0),
        Kind::Wasm { function: add, values: arguments[..].into() },
        Kind::Callback {
            function: closure,
            values: [Bound::Local(0), Bound::Const(7), Bound::Const(8)].into(),
        },
        generic(1),
        Kind::Count,
    ];
    let body = module.function(0).unwrap().body().unwrap();
    let offsets = body.instructions().map(|instruction| (instruction.offset() - body.range().start) as u32);
    let specs: Vec<ProbeSpec> = offsets
        .flat_map(|offset| {
            let location = Location { function: 0, place: Place::Instruction { offset } };
            kinds.clone().map(|kind| ProbeSpec { location, kind })
        })
        .collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().filter_map(Result::ok).collect();
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let run = program.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    for n in 1..40 {
        probes.iter().for_each(|probe| probe.deactivate().unwrap());
        let expected = run.call(&mut store, n).unwrap();
        let mut order: Vec<&Probe> = probes.iter().collect();
        order.shuffle(&mut random);
        activate_all(order).into_iter().for_each(|on| on.unwrap());
        let sum = monitor.get_global(&mut store, "sum").unwrap();
        sum.set(&mut store, Val::I32(0)).unwrap();
        sums.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
        let before: u64 = probes.iter().map(Probe::count).sum();
        assert_eq!(run.call(&mut store, n).unwrap(), expected);
        let fired = probes.iter().map(Probe::count).sum::<u64>() - before;
        let of_all = fired * n as u64;
        assert_eq!([0, 1, 2].map(|number| sums[number].load(Ordering::Relaxed)), [of_all; 3], "{n}");
        assert_eq!(sum.get(&mut store).i32(), Some(2 * of_all as i32), "{n}");
    }
}

/// A probe that does not return: what follows in its straight run is not executed, and not counted.
#[test]
fn instructions_after_a_failing_probe_are_not_counted() {
    let text = "(module (func (export \"run\") (param i32) (result i32)
        (i32.add (i32.mul (local.get 0) (i32.const 3)) (i32.const 5))))";
    let module = Module::new(&engine(), text).unwrap();
    let mut store = Store::new(module.engine(), ());
    let trap = Module::new(module.engine(), "(module (func (export \"trap\") unreachable))").unwrap();
    let trap = Instance::new(&mut store, &trap, &[]).unwrap().get_func(&mut store, "trap").unwrap();
    let kinds = [
        Kind::Wasm { function: WasmFn::new(&store, trap).unwrap(), values: [].into() },
        Kind::Generic(GenericFn::new(|_| Err(Error::host("no")))),
        Kind::Callback { function: Callback::new(|_| panic!("no")), values: [].into() },
    ];
    let body = module.function(0).unwrap().body().unwrap();
    let offsets: Vec<u32> =
        body.instructions().map(|instruction| (instruction.offset() - body.range().start) as u32).collect();
    let spec = |offset: u32, kind: Kind| ProbeSpec {
        location: Location { function: 0, place: Place::Instruction { offset } },
        kind,
    };
    let counters: Vec<ProbeSpec> = offsets.iter().map(|offset| spec(*offset, Kind::Count)).collect();
    let counters: Vec<Probe> = module.probes(&counters).into_iter().map(Result::unwrap).collect();
    activate_all(&counters).into_iter().for_each(|on| on.unwrap());
    let program = Instance::new(&mut store, &module, &[]).unwrap();
    let run = program.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    for kind in kinds {
        for (failing, offset) in offsets.iter().enumerate().skip(1) {
            let probe = module.probe(spec(*offset, kind.clone())).unwrap();
            probe.activate().unwrap();
            let before: Vec<u64> = counters.iter().map(Probe::count).collect();
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.call(&mut store, 1)));
            assert!(!matches!(failed, Ok(Ok(_))));
            for (number, (counter, before)) in counters.iter().zip(before).enumerate() {
                let counted = counter.count() - before;
                assert_eq!(counted, u64::from(number <= failing), "{number}, fails at {failing}: {kind:?}");
            }
        }
    }
    assert_eq!(run.call(&mut store, 2).unwrap(), 11);
    let many = vec![Bound::Const(0); 1001];
    let closure = Kind::Callback { function: Callback::new(|_| ()), values: many[..].into() };
    let error = module.probe(spec(offsets[0], closure)).unwrap_err();
    assert!(matches!(error, ProbeError::TooManyValues { limit: 1000 }), "{error}");
}

/// The tests of random programs and traps, which have no counters, for an engine with other
/// settings.
pub(crate) fn test_without_counters() {
    arguments_are_those_of_the_program();
    probes_fire_before_traps();
    random_programs_are_not_disturbed_by_functions_of_webassembly();
}

/// The other tests, likewise.
pub(crate) fn test_others() {
    functions_of_probes_may_run_the_instance_that_is_probed();
    failures_in_functions_of_probes_end_the_call();
    functions_are_called_in_their_own_store_only();
    a_function_that_is_its_own_probe_overflows_the_stack();
    probes_of_all_kinds_share_a_place();
    instructions_after_a_failing_probe_are_not_counted();
}
