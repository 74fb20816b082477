//! Versions that count by themselves: what they count if they are left in the middle of a run, how
//! instructions choose, and how functions come to have such versions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use wasm_encoder::{Encode, ValType};
use wasm_jit::probes::{
    Branches, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec, Scope, activate_all,
};
use wasm_jit::{Config, Engine, Error, Instance, MemoryType, Module, SharedMemory, Store, StoreLimits, Val};

use super::behaviour::{TRAPPING, trapping};
use super::rewrite::{Counted, rewrite_by};
use super::threads::{Ends, check_counts, counts_of, wait_for_a_run};
use super::{
    call_main, earlier_instance, engine, location, outcome, probes_everywhere, programs, reference, seeds,
    values,
};

/// Bodies of a function of an i32, which leave it when that is 7, not by a return or by a trap.
pub(crate) const LEAVING: [&str; 7] = [
    "(local.set 0 (i32.add (local.get 0) (i32.const 1))) (throw $tag (local.get 0))",
    "(i32.add (i32.mul (local.get 0) (i32.const 3)) (call $throws (local.get 0)))",
    "(block (result i32) (try_table (result i32) (catch $other 0)
        (i32.add (i32.const 1) (call $throws (local.get 0)))))",
    "(block (result i32) (try_table (result i32) (catch $tag 0)
        (drop (call $throws (local.get 0))) (i32.const 1))
        (i32.add (i32.const 2))) (i32.div_u (i32.const 0)) (i32.add (i32.const 1))",
    "(block (if (i32.eq (local.get 0) (i32.const 7)) (then (throw $tag (local.get 0))))) (local.get 0)",
    "(block (if (local.get 0) (then (drop (call $throws (local.get 0)))))) (local.get 0)",
    "(block (if (i32.eq (local.get 0) (i32.const 7)) (then (return_call $throws (local.get 0)))) (nop))
        (local.get 0)",
];

pub(crate) fn leaving(body: &str) -> Vec<u8> {
    let text = format!(
        "(module (memory (export \"memory\") 1) (tag $tag (param i32)) (tag $other (param i32))
            (func $throws (param i32) (result i32)
                (if (i32.eq (local.get 0) (i32.const 7)) (then (throw $tag (i32.const 9))))
                (local.get 0))
            (func $inner (param i32) (result i32) {body})
            (func (export \"main\") (result i64) (local i32)
                (loop (drop (call $inner (local.get 0)))
                    (br_if 0 (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 9))))
                (i64.const 1)))"
    );
    wat::parse_str(text).unwrap()
}

/// Frames are left in the middle of a run, again and again: what was not executed is not counted.
#[test]
fn frames_that_are_left_count_what_they_have_executed() {
    check_frames_that_are_left(&engine());
    let mut config = Config::new();
    check_frames_that_are_left(&Engine::new(config.counter_stubs(0)).unwrap());
}

fn check_frames_that_are_left(engine: &Engine) {
    let all = TRAPPING.map(trapping).into_iter().chain(LEAVING.map(leaving));
    for (number, bytes) in all.enumerate() {
        if TRAPPING.get(number).is_some_and(|body| body.contains("call $inner")) {
            // How deep the recursion gets depends on the size of the frames.
            continue;
        }
        let (expected, counts, places) = reference(engine, &bytes, 3);
        assert!(expected.0.is_err());
        let module = Module::from_binary(engine, &bytes).unwrap();
        let probes = probes_everywhere(&module, &places, Kind::Count);
        activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
        let (first, mut store, instance) = outcome(&module);
        assert_eq!(first.0, expected.0);
        for _ in 0..2 {
            assert_eq!(call_main(&mut store, &instance).0, expected.0);
        }
        let check = || {
            for (at, probe) in &probes {
                assert_eq!(probe.count(), counts[*at], "program {number}: {:x?}", places[*at]);
            }
        };
        check();
        drop((store, instance));
        check();
    }
}

/// Counters at a few instructions, then at more: only the runs that they need are counted, as often
/// as their instructions are executed, also in programs whose frames are left.
#[test]
fn runs_of_a_few_counters_are_counted_exactly() {
    let mut config = Config::new();
    let engine = Engine::new(config.counter_stubs(0)).unwrap();
    let random_programs = (0..if super::is_long() { 200 } else { 20 })
        .map(|seed| wat::parse_str(programs::program(seed)).unwrap());
    let left = TRAPPING.into_iter().filter(|body| !body.contains("call $inner")).map(trapping);
    let mut random = SmallRng::seed_from_u64(3);
    let (mut few, mut executed) = (0, 0);
    for bytes in random_programs.chain(left).chain(LEAVING.map(leaving)) {
        let (expected, counts, places) = reference(&engine, &bytes, 1);
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let mut probes: Vec<(usize, Probe, u64)> = Vec::new();
        for round in 0..5 {
            for (number, place) in places.iter().enumerate() {
                if random.random_range(0..40) > 0 {
                    continue;
                }
                let spec = ProbeSpec { location: location(&module, *place), kind: Kind::Count };
                match module.probe(spec) {
                    Ok(probe) => {
                        probe.activate().unwrap();
                        probes.push((number, probe, round));
                    }
                    Err(ProbeError::Unreachable { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(outcome(&module).0, expected);
            for (number, probe, since) in &probes {
                let times = round + 1 - since;
                assert_eq!(probe.count(), times * counts[*number], "{round}: {:x?}", places[*number]);
                executed += probe.count();
            }
            few += usize::from(4 * probes.len() < places.len());
        }
    }
    assert!(few > 50 && executed > 10_000, "{few} {executed}");
}

/// A program is interrupted anywhere in a run: the instructions up to the one that the backtrace
/// names have been counted once more than those after it.
#[test]
fn interrupted_runs_are_counted_up_to_the_interrupt() {
    let text = "(module (memory 1) (global $rounds (export \"rounds\") (mut i64) (i64.const 0))
        (func (export \"run\") (local i32 i32)
            (loop
                (local.set 0 (i32.add (local.get 0) (i32.load (i32.and (local.get 1) (i32.const 1020)))))
                (i32.store (i32.and (local.get 0) (i32.const 1020)) (i32.mul (local.get 1) (i32.const 7)))
                (local.set 1 (i32.div_u (i32.xor (local.get 1) (local.get 0)) (i32.const 3)))
                (global.set $rounds (i64.add (global.get $rounds) (i64.const 1)))
                (br 0))))";
    let bytes = wat::parse_str(text).unwrap();
    let engine = engine();
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let (_, places) = super::rewrite::rewrite(&bytes);
    let probes = probes_everywhere(&module, &places, Kind::Count);
    activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
    // Those of the loop, which are one run.
    let inside: Vec<(u32, &Probe)> = probes[1..]
        .iter()
        .map(|(number, probe)| (places[*number].1.expect("an instruction"), probe))
        .collect();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    let (mut in_the_middle, mut ahead, mut before) = (0, 0, vec![0; inside.len()]);
    for _ in 0..200 {
        let handle = store.interrupt_handle();
        let last = inside.last().unwrap().1;
        let start = last.count();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                while last.count() < start + 20 {
                    std::hint::spin_loop();
                }
                handle.interrupt();
            });
            run.call(&mut store, ()).unwrap_err()
        });
        let Error::Trap { backtrace, .. } = &error else { panic!("{error}") };
        let at = backtrace.frames()[0].module_offset();
        let now: Vec<u64> = inside.iter().map(|(_, probe)| probe.count()).collect();
        let counts: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        before = now;
        let rounds = match instance.get_global(&mut store, "rounds").unwrap().get(&mut store) {
            Val::I64(rounds) => rounds as u64,
            other => panic!("{other:?}"),
        };
        let (of_set, set) = inside[inside.len() - 2];
        assert!(bytes[of_set as usize] == 0x24, "global.set");
        // Interrupted in front of its store, it has been counted.
        let is_here = at == Some(of_set as usize);
        ahead += u64::from(is_here && set.count() == rounds + ahead + 1);
        assert_eq!(set.count(), rounds + ahead, "{at:x?}");
        let Some(at) = at.map(|at| at as u32) else { continue };
        let up_to = inside.partition_point(|(place, _)| *place < at);
        let after = counts.get(up_to + 1).copied();
        let is_executed = |count: &u64| after.is_none_or(|after| *count == after + 1);
        assert!(counts[..up_to].iter().all(is_executed), "{at:#x}: {counts:?}");
        assert!(counts[..up_to].iter().all(|count| *count == counts[0]), "{at:#x}: {counts:?}");
        let rest = counts.get(up_to + 1..).unwrap_or_default();
        assert!(rest.iter().all(|count| Some(*count) == after), "{at:#x}: {counts:?}");
        if let (Some(own), Some(after)) = (counts.get(up_to), after) {
            assert!((after..=after + 1).contains(own), "{at:#x}: {counts:?}");
            in_the_middle += 1;
        }
    }
    assert!(in_the_middle > 0);
}

/// Threads whose runs end in the middle, while their probes are switched: nothing is counted that
/// was not executed, and when it is quiet, counts are exact.
#[test]
fn counts_of_threads_that_trap_are_exact_once_it_is_quiet() {
    const EXECUTORS: u64 = 3;
    const TRAPS: &str = "(local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (loop (result i32) (i32.add (i32.const 2) (i32.div_u (i32.const 5) (i32.sub (local.get 0) (i32.const 8)))))";
    let bytes = trapping(TRAPS);
    let engine = engine();
    let (expected, counts, places) = reference(&engine, &bytes, 1);
    assert!(expected.0.is_err());
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let probes = probes_everywhere(&module, &places, Kind::Count);
    let mut random = SmallRng::seed_from_u64(7);
    for _ in 0..10 {
        let (is_quiet, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let runs = AtomicU32::new(0);
        let barrier = std::sync::Barrier::new(EXECUTORS as usize + 1);
        std::thread::scope(|scope| {
            for _ in 0..EXECUTORS {
                scope.spawn(|| {
                    let mut ends = Some(Ends(&failed));
                    let (_, mut store, instance) = outcome(&module);
                    while !is_quiet.load(Ordering::Acquire) {
                        assert_eq!(call_main(&mut store, &instance), expected);
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                    barrier.wait();
                    barrier.wait();
                    assert_eq!(call_main(&mut store, &instance), expected);
                    barrier.wait();
                    std::mem::forget(ends.take());
                });
            }
            for change in 0..1000 {
                let (number, probe) = &probes[random.random_range(0..probes.len())];
                if random.random() { probe.activate() } else { probe.deactivate() }.unwrap();
                let most = EXECUTORS * counts[*number].max(1) * 1_000_000;
                assert!(probe.count() < most, "{}", probe.count());
                if change % 64 == 0 {
                    wait_for_a_run(&runs, &failed);
                }
            }
            is_quiet.store(true, Ordering::Release);
            assert!(!failed.load(Ordering::Acquire), "an executor has failed");
            barrier.wait();
            activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
            let before = counts_of(&probes);
            barrier.wait();
            barrier.wait();
            check_counts(&probes, &before, (&places, &counts), EXECUTORS);
        });
    }
}

/// A function gets more counters than remain stubs, while those before are on: in all instances, or
/// in one that ends before or after. One that has ended gets no more.
#[test]
fn counters_in_stubs_go_on_when_the_function_counts_by_itself() {
    let text = "(module (memory (export \"memory\") 1) (func (export \"main\") (result i64) (local i32)
        (loop (br_if 0 (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 5))))
        (i64.extend_i32_u (i32.div_u (local.get 0) (i32.const 2)))))";
    let bytes = wat::parse_str(text).unwrap();
    let engine = engine();
    let (_, counts, places) = reference(&engine, &bytes, 1);
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let mut stores: Vec<_> =
        (0..3).map(|_| outcome(&module)).map(|(_, store, instance)| (store, instance)).collect();
    let scopes: Vec<Scope> = stores
        .iter()
        .map(|(store, instance)| Scope::Instance(instance.id(store)))
        .chain([Scope::Module])
        .collect();
    let few: Vec<usize> = (0..places.len()).step_by(3).take(4).collect();
    let make = |scope: Scope, numbers: &[usize]| -> Vec<(usize, Probe)> {
        let spec =
            |number: &usize| ProbeSpec { location: location(&module, places[*number]), kind: Kind::Count };
        let specs: Vec<ProbeSpec> = numbers.iter().map(spec).collect();
        let made = module.scoped_probes(scope, &specs).into_iter().map(|made| made.unwrap());
        let made: Vec<(usize, Probe)> = numbers.iter().copied().zip(made).collect();
        activate_all(made.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
        made
    };
    let first: Vec<_> = scopes.iter().map(|scope| make(*scope, &few)).collect();
    let check = |probes: &[Vec<(usize, Probe)>], runs: &[u64]| {
        assert_eq!(probes.len(), runs.len());
        for (probes, runs) in probes.iter().zip(runs) {
            for (number, probe) in probes {
                assert_eq!(
                    probe.count(),
                    runs * counts[*number],
                    "{:x?} {:?}",
                    places[*number],
                    probe.scope()
                );
            }
        }
    };
    let run = |stores: &mut [(Store<()>, Instance)]| {
        stores.iter_mut().for_each(|(store, instance)| drop(call_main(store, instance)));
    };
    run(&mut stores);
    check(&first, &[1, 1, 1, 3]);
    stores.pop();
    let all: Vec<usize> = (0..places.len()).collect();
    let more: Vec<_> = [0, 1, 3].map(|number: usize| make(scopes[number], &all)).into();
    let location = location(&module, places[0]);
    let ended = module.scoped_probes(scopes[2], &[ProbeSpec { location, kind: Kind::Count }]);
    assert!(matches!(ended[..], [Err(ProbeError::NoInstance { .. })]));
    run(&mut stores);
    check(&first, &[2, 2, 1, 5]);
    check(&more, &[1, 1, 2]);
    stores.pop();
    run(&mut stores);
    check(&first, &[3, 2, 1, 6]);
    check(&more, &[2, 1, 3]);
    stores.pop();
    check(&first, &[3, 2, 1, 6]);
    check(&more, &[2, 1, 3]);
}

/// A frame of the original waits for a call while its function gets a version that counts, and
/// comes back into that version: to the start of the run after the call.
#[test]
fn frames_come_back_to_the_start_of_a_run() {
    let text = r#"(module (import "host" "act" (func $act)) (global $g (mut i32) (i32.const 0))
        (func $middle (call $act))
        (func (export "run") (param i32) (result i32)
            (call $middle)
            (global.set $g (i32.add (local.get 0) (global.get $g)))
            (i32.const 5)))"#;
    let mut config = Config::new();
    let engine = Engine::new(config.counter_stubs(0)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let body = module.function(2).unwrap().body().unwrap();
    // All after the call.
    let places = body.instructions().skip(1).map(|at| (2, Some(at.offset() as u32)));
    let spec = |place: Counted| ProbeSpec { location: location(&module, place), kind: Kind::Count };
    let specs: Vec<ProbeSpec> = places.map(spec).collect();
    assert!(specs.len() > 4);
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(|made| made.unwrap()).collect();
    let probes = std::sync::Arc::new(probes);
    let of_host = probes.clone();
    let mut linker = wasm_jit::Linker::new(&engine);
    let act = move || activate_all(of_host.iter()).into_iter().for_each(|on| on.unwrap());
    linker.func_wrap("host", "act", act).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    for times in 1..3 {
        assert_eq!(run.call(&mut store, 1).unwrap(), 5);
        let counts: Vec<u64> = probes.iter().map(Probe::count).collect();
        assert!(counts.iter().all(|count| *count == times), "{counts:?}");
    }
}

/// Frames come into a version that counts, and leave it, in the middle of a loop: one that keeps
/// the address of its counters in a register, if an instance is older than the probes.
#[test]
fn frames_that_arrive_in_a_loop_count_its_iterations() {
    [false, true].into_iter().for_each(check_frames_in_a_loop);
}

fn check_frames_in_a_loop(has_earlier_instance: bool) {
    let text = r#"(module (memory (export "memory") 1 1 shared)
        (func (export "run") (result i64) (local i64)
            (i32.store (i32.const 0) (i32.const 1))
            (loop
                (local.set 0 (i64.add (local.get 0) (i64.const 1)))
                (if (i64.eqz (i64.and (local.get 0) (i64.const 1)))
                    (then (i64.store (i32.const 16) (local.get 0))))
                (br_if 0 (i32.eqz (i32.load (i32.const 8)))))
            (local.get 0)))"#;
    let mut config = Config::new();
    let engine = Engine::new(config.counter_stubs(0)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let _earlier = has_earlier_instance.then(|| earlier_instance(&module));
    let body = module.function(0).unwrap().body().unwrap();
    let places = body.instructions().map(|at| (0, Some(at.offset() as u32)));
    let spec = |place: Counted| ProbeSpec { location: location(&module, place), kind: Kind::Count };
    let specs: Vec<ProbeSpec> = places.map(spec).collect();
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(|made| made.unwrap()).collect();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let memory = instance.get_shared_memory(&mut store, "memory").unwrap();
    let run = instance.get_typed_func::<(), i64>(&mut store, "run").unwrap();
    let in_loop = probes.iter().max_by_key(|probe| probe.spec().location).unwrap();
    let br_if = |counts: &[u64]| counts[counts.len() - 4];
    let (sum, most) = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.call(&mut store, ()).unwrap());
        let mut started = [0];
        while started == [0] {
            memory.read(0, &mut started).unwrap();
        }
        for round in 1..20 {
            probes.iter().for_each(|probe| probe.activate().unwrap());
            while br_if(&probes.iter().map(Probe::count).collect::<Vec<_>>()) < 1000 * round {
                std::thread::yield_now();
            }
            probes.iter().for_each(|probe| assert!(probe.deactivate().is_ok()));
        }
        memory.write(8, &[1]).unwrap();
        let iterations = running.join().unwrap() as u64;
        (probes.iter().map(Probe::count).sum::<u64>(), iterations)
    });
    assert!(in_loop.count() <= most && sum > 19_000);
    // In one piece, the counts are exact.
    let before: Vec<u64> = probes.iter().map(Probe::count).collect();
    memory.write(0, &[0]).unwrap();
    memory.write(8, &[0]).unwrap();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    let iterations = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.call(&mut store, ()).unwrap());
        let count = || br_if(&probes.iter().map(Probe::count).collect::<Vec<_>>()) - br_if(&before);
        while count() < 100_000 {
            std::thread::yield_now();
        }
        memory.write(8, &[1]).unwrap();
        running.join().unwrap() as u64
    });
    let counts: Vec<u64> = probes.iter().zip(&before).map(|(probe, before)| probe.count() - before).collect();
    assert_eq!((counts[0], br_if(&counts)), (1, iterations), "{counts:?}");
    let (stored, all) = (iterations / 2, iterations);
    assert!(counts.iter().all(|count| [1, stored, all].contains(count)), "{counts:?}");
}

/// A frame comes into a version that counts while it is in a block, in a loop, in a call or in the
/// runtime: what follows the block is counted, though the code before it was not.
#[test]
fn frames_that_arrive_in_a_block_count_what_follows_it() {
    const WAIT: &str = "(i32.store (i32.const 0) (i32.const 1))
        (drop (memory.atomic.wait32 (i32.const 8) (i32.const 0) (i64.const -1)))";
    for inner in [
        "(call $wait)",
        "(loop (i32.store (i32.const 0) (i32.const 1)) (br_if 0 (i32.eqz (i32.load (i32.const 8)))))",
        WAIT,
    ] {
        let text = format!(
            r#"(module (memory (import "" "memory") 1 1 shared)
                (func $wait
                    (loop (i32.store (i32.const 0) (i32.const 1)) (br_if 0 (i32.eqz (i32.load (i32.const 8))))))
                (func (export "notify") (drop (memory.atomic.notify (i32.const 8) (i32.const 1))))
                (func (export "run") (result i32)
                    (block (br_if 0 (i32.load (i32.const 16))) (block {inner})) (i32.const 5)))"#
        );
        let mut config = Config::new();
        let engine = Engine::new(config.counter_stubs(0)).unwrap();
        let module = Module::new(&engine, &text).unwrap();
        let probes: Vec<Probe> = [0, 2]
            .into_iter()
            .flat_map(|function| {
                let body = module.function(function).unwrap().body().unwrap();
                let places: Vec<Counted> =
                    body.instructions().map(|at| (function, Some(at.offset() as u32))).collect();
                let spec = |place| ProbeSpec { location: location(&module, place), kind: Kind::Count };
                let specs: Vec<ProbeSpec> = places.into_iter().map(spec).collect();
                module.probes(&specs).into_iter().map(Result::unwrap).collect::<Vec<_>>()
            })
            .collect();
        let memory = SharedMemory::new(MemoryType::shared(1, 1)).unwrap();
        let (mut store, mut other) = (Store::new(&engine, ()), Store::new(&engine, ()));
        let instance = Instance::new(&mut store, &module, &[memory.clone().into()]).unwrap();
        let notifying = Instance::new(&mut other, &module, &[memory.clone().into()]).unwrap();
        let notify = notifying.get_typed_func::<(), ()>(&mut other, "notify").unwrap();
        let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
        let is_set = |at| {
            let mut word = [0];
            memory.read(at, &mut word).unwrap();
            word != [0]
        };
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run.call(&mut store, ()).unwrap());
            while !is_set(0) {
                std::thread::yield_now();
            }
            activate_all(&probes).into_iter().for_each(|on| on.unwrap());
            // The loop is in the counting version.
            while inner != WAIT && probes.iter().all(|probe| probe.count() == 0) {
                std::thread::yield_now();
            }
            memory.write(8, &[1]).unwrap();
            notify.call(&mut other, ()).unwrap();
            assert_eq!(running.join().unwrap(), 5);
        });
        // The constant, and the `end` of the function.
        let last: Vec<u64> = probes.iter().rev().take(2).map(Probe::count).collect();
        assert_eq!(last, [1, 1], "{inner}");
    }
}

/// There is no room for an object in the middle of a run: what follows is not counted.
#[test]
fn objects_without_room_end_a_run() {
    let text = "(module (type $node (struct (field (ref null $node))))
        (func (export \"run\") (local (ref null $node))
            (loop (local.set 0 (struct.new $node (local.get 0))) (nop) (br 0))))";
    let mut config = Config::new();
    let engine = Engine::new(config.counter_stubs(0)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let places: Vec<Counted> = body.instructions().map(|at| (0, Some(at.offset() as u32))).collect();
    let probes = probes_everywhere(&module, &places, Kind::Count);
    activate_all(probes.iter().map(|(_, probe)| probe)).into_iter().for_each(|on| on.unwrap());
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().heap_size(1 << 20));
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    for round in 1..=3 {
        run.call(&mut store, ()).unwrap_err();
        let counts: Vec<u64> = probes.iter().map(|(_, probe)| probe.count()).collect();
        // `loop`, `local.get`, `struct.new`, `local.set`, `nop`, `br`.
        let (created, stored) = (counts[2], counts[3]);
        assert_eq!(counts, [created, created, created, stored, stored, stored]);
        assert_eq!(created, stored + round);
    }
}

/// How many bits a target has in the global that counts the targets of a `br_table`.
const BITS: u32 = 16;

/// The number of targets of a `br_table`.
fn targets(bytes: &[u8], at: u32) -> u32 {
    let mut reader = wasmparser::BinaryReader::new(&bytes[at as usize + 1..], 0);
    reader.read_var_u32().unwrap()
}

/// The module, which counts how its instructions choose. A condition that is not 0 counts in the
/// upper half of the place's global.
fn choosing(bytes: &[u8], places: &HashMap<Counted, values::Place>) -> (Vec<u8>, Vec<Counted>) {
    rewrite_by(bytes, &[ValType::I32], |out, place, global| {
        let (Some(types), (_, Some(at))) = (places.get(&place), place) else { return };
        let local = types.locals();
        let get = |out: &mut Vec<u8>| {
            out.push(0x20);
            local.encode(out);
        };
        match bytes[at as usize] {
            // br_if, if, select
            0x0d | 0x04 | 0x1b | 0x1c => {
                out.push(0x22);
                local.encode(out);
                out.push(0x42);
                (1_i64 << 32).encode(out);
                out.extend([0x42, 1]);
                get(out);
                out.push(0x1b);
            }
            0x0e => {
                let targets = targets(bytes, at) as i32;
                out.push(0x22);
                local.encode(out);
                out.extend([0x42, 1]);
                // The smaller one of index and number.
                get(out);
                out.push(0x41);
                targets.encode(out);
                get(out);
                out.push(0x41);
                targets.encode(out);
                out.extend([0x49, 0x1b, 0x41]);
                (BITS as i32).encode(out);
                // i32.mul, i64.extend_i32_u, i64.shl
                out.extend([0x6c, 0xad, 0x86]);
            }
            _ => return,
        }
        out.push(0x23);
        global.encode(out);
        out.extend([0x7c, 0x24]);
        global.encode(out);
    })
}

/// What a global has counted.
fn chosen(bytes: &[u8], at: u32, global: u64) -> (u64, Vec<u64>) {
    match bytes[at as usize] {
        0x0e => {
            let all = (0..=targets(bytes, at)).map(|target| global >> (target * BITS) & 0xffff);
            let all: Vec<u64> = all.collect();
            (all.iter().sum(), all)
        }
        _ => {
            let (taken, not_taken) = (global >> 32, global & u64::from(u32::MAX));
            (taken + not_taken, vec![taken, not_taken])
        }
    }
}

fn counted(branches: &Branches) -> Vec<u64> {
    match branches {
        Branches::Condition { taken, not_taken } => vec![*taken, *not_taken],
        Branches::Table { targets, default } => targets.iter().copied().chain([*default]).collect(),
        other => panic!("{other:?}"),
    }
}

/// Compares all choices of a program with those of the rewritten one; how many there were.
fn check_choices(engine: &Engine, bytes: &[u8], one_by_one: bool) -> u64 {
    let types = values::places(bytes);
    let (rewritten, places) = choosing(bytes, &types);
    let reference = Module::from_binary(engine, &rewritten).unwrap();
    let (expected, mut store, instance) = outcome(&reference);
    let module = Module::from_binary(engine, bytes).unwrap();
    let _earlier = one_by_one.then(|| earlier_instance(&module));
    let is_choice = |place: &Counted| {
        place.1.is_some_and(|at| matches!(bytes[at as usize], 0x0d | 0x04 | 0x1b | 0x1c | 0x0e))
    };
    let at_choices: Vec<(usize, Counted)> =
        places.iter().copied().enumerate().filter(|(_, place)| is_choice(place)).collect();
    let specs: Vec<ProbeSpec> = at_choices
        .iter()
        .map(|(_, place)| ProbeSpec { location: location(&module, *place), kind: Kind::CountBranch })
        .collect();
    let made: Vec<Result<Probe, ProbeError>> = match one_by_one {
        true => specs.iter().map(|spec| module.probe(spec.clone())).collect(),
        false => module.probes(&specs),
    };
    let probes: Vec<(usize, Counted, Probe)> = at_choices
        .iter()
        .zip(made)
        .filter_map(|((number, place), made)| match made {
            Ok(probe) => Some((*number, *place, probe)),
            Err(ProbeError::Unreachable { .. }) => None,
            Err(error) => panic!("{error}"),
        })
        .collect();
    activate_all(probes.iter().map(|(.., probe)| probe)).into_iter().for_each(|on| on.unwrap());
    assert_eq!(outcome(&module).0, expected);
    let mut all = 0;
    for (number, place, probe) in &probes {
        let Val::I64(global) =
            instance.get_global(&mut store, &format!("count {number}")).unwrap().get(&mut store)
        else {
            panic!("a counter of another type")
        };
        let (total, chosen) = chosen(bytes, place.1.expect("an instruction"), global as u64);
        assert_eq!(counted(&probe.branches().unwrap()), chosen, "{place:x?}");
        assert_eq!(probe.count(), total);
        all += total;
    }
    all
}

#[test]
fn choices_are_those_of_the_program() {
    let mut all = 0;
    for seed in seeds() {
        let bytes = wat::parse_str(programs::program(seed)).unwrap();
        all += check_choices(&engine(), &bytes, seed % 10 == 0);
    }
    let shapes = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes/shapes.wat");
    all += check_choices(&engine(), &wat::parse_file(shapes).unwrap(), false);
    let constants = "(module (memory (export \"memory\") 1)
        (func (export \"main\") (result i64) (local i32)
            (block (br_if 0 (i32.const 0)) (br_if 0 (i32.const 1)))
            (block (block (block (br_table 0 1 2 (i32.const 1)))))
            (block (block (block (br_table 0 1 (i32.const 77)))))
            (local.set 0 (select (local.get 0) (i32.const 5) (i32.const 0)))
            (if (i32.const 0) (then (local.set 0 (i32.const 6))))
            (if (i32.const 3) (then (loop (br_if 0 (i32.gt_u
                (local.tee 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 2))))))
            (block (br_if 0 (i32.gt_u (local.get 0) (i32.const 100)))
                (loop (br_if 0 (i32.lt_u
                    (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 9)))))
            (i64.extend_i32_u (local.get 0))))";
    assert!(check_choices(&engine(), &wat::parse_str(constants).unwrap(), false) > 10);
    assert!(all > 5_000, "{all}");
}

/// A probe of a branch is switched on in the run that the branch ends, by a closure: it counts from
/// the next run on, as one that counts the instruction, and then each way exactly.
#[test]
fn branches_that_are_switched_on_in_their_run_are_exact_afterwards() {
    // With the arguments for which the next instruction is executed, or is not.
    let programs = [
        ("(block (nop) (br_if 0 (local.get 0)))", [0, 1]),
        ("(block (nop) (br_if 0 (local.get 0)) (loop (br_if 0 (i32.const 0))))", [0, 1]),
        ("(nop) (if (local.get 0) (then (drop (i32.const 2))))", [1, 0]),
    ];
    for ((body, [on, elsewhere]), is_read) in programs.into_iter().flat_map(|of| [(of, true), (of, false)]) {
        let bytes = wat::parse_str(format!("(module (func (export \"run\") (param i32) {body}))")).unwrap();
        let engine = engine();
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let (_, places) = super::rewrite::rewrite(&bytes);
        let probe = |opcodes: &[u8], kind| {
            let is_it = |place: &&Counted| place.1.is_some_and(|at| opcodes.contains(&bytes[at as usize]));
            let place = places.iter().find(is_it).unwrap();
            module.probe(ProbeSpec { location: location(&module, *place), kind }).unwrap()
        };
        let both = [Kind::CountBranch, Kind::Count].map(|kind| Arc::new(probe(&[0x0d, 0x04], kind)));
        let of_closure = both.clone();
        let closure = Callback::new(move |_| of_closure.iter().for_each(|probe| probe.activate().unwrap()));
        let switch = probe(&[0x01], Kind::Callback { function: closure, values: [].into() });
        let [branch, count] = both;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
        switch.activate().unwrap();
        run.call(&mut store, on).unwrap();
        switch.deactivate().unwrap();
        if is_read {
            assert_eq!((counted(&branch.branches().unwrap()), branch.count()), (vec![0, 0], 0), "{body}");
            assert_eq!(count.count(), 0);
        } else {
            branch.deactivate().unwrap();
            branch.activate().unwrap();
        }
        for argument in [elsewhere, on, elsewhere, elsewhere, on] {
            run.call(&mut store, argument).unwrap();
        }
        let ways = if on == 1 { [2, 3] } else { [3, 2] };
        assert_eq!(counted(&branch.branches().unwrap()), ways, "{body}");
        assert_eq!([branch.count(), count.count()], [5, 5], "{body}");
    }
}

#[test]
fn only_instructions_that_choose_have_branches() {
    let text = "(module (func (export \"main\") (block (br_if 0 (i32.const 1)))))";
    let module = Module::new(&engine(), text).unwrap();
    let body = module.function(0).unwrap().body().unwrap();
    let start = body.range().start;
    let make = |place| {
        let location = wasm_jit::probes::Location { function: 0, place };
        module.probe(ProbeSpec { location, kind: Kind::CountBranch })
    };
    assert!(matches!(make(Place::Entry), Err(ProbeError::NoBranch { function: 0, offset: 0 })));
    for instruction in body.instructions() {
        let offset = (instruction.offset() - start) as u32;
        let made = make(Place::Instruction { offset });
        match instruction.operator() {
            wasm_jit::wasmparser::Operator::BrIf { .. } => {
                let probe = made.unwrap();
                assert_eq!(counted(&probe.branches().unwrap()), [0, 0]);
                assert_eq!(probe.count(), 0);
            }
            _ => match made.unwrap_err() {
                ProbeError::NoBranch { function: 0, offset: at } => assert_eq!(at, offset),
                error => assert!(matches!(error, ProbeError::Unreachable { .. }), "{error}"),
            },
        }
    }
    let count = module.probe(ProbeSpec {
        location: wasm_jit::probes::Location { function: 0, place: Place::Entry },
        kind: Kind::Count,
    });
    assert_eq!(count.unwrap().branches(), None);
}

/// Branches that depend on references choose as others do, whichever version of the function
/// counts.
#[test]
fn references_choose() {
    use wasm_jit::probes::{Bound, ValueError};
    use wasm_jit::wasmparser::Operator;

    for limit in [0, u32::MAX] {
        let mut config = Config::new();
        let engine = Engine::new(config.counter_stubs(limit)).unwrap();
        let module = Module::new(&engine, include_str!("references.wat")).unwrap();
        let body = module.function(2).unwrap().body().unwrap();
        let at = |chooses: fn(&Operator<'_>) -> bool| {
            let all = body.instructions().filter(move |at| chooses(at.operator()));
            let place = |at: u64| location(&module, (2, Some(at as u32)));
            all.map(|at| place(at.offset() as u64)).collect::<Vec<_>>()
        };
        let branches =
            at(|operator| matches!(operator, Operator::BrOnNull { .. } | Operator::BrOnNonNull { .. }));
        let count = |kind: Kind| {
            move |location: &wasm_jit::probes::Location| ProbeSpec { location: *location, kind: kind.clone() }
        };
        let loops = at(|operator| matches!(operator, Operator::Loop { .. }));
        let values = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = values.clone();
        let see = Callback::new(move |values| seen.lock().unwrap().push(values[0] != 0));
        let see = |value| Kind::Callback { function: see.clone(), values: [value].into() };
        let specs: Vec<ProbeSpec> = branches.iter().map(count(Kind::CountBranch)).collect();
        let specs: Vec<ProbeSpec> = specs.into_iter().chain(loops.iter().map(count(Kind::Count))).collect();
        let mut probes: Vec<Probe> = module.probes(&specs).into_iter().map(|made| made.unwrap()).collect();
        let reference = module.probe(count(see(Bound::Reference(0)))(&branches[0])).unwrap();
        probes.push(reference);
        activate_all(&probes).into_iter().for_each(|on| on.unwrap());
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
        run.call(&mut store, ()).unwrap();
        let ways: Vec<_> = probes.iter().filter_map(|probe| Some(counted(&probe.branches()?))).collect();
        assert_eq!(ways, [[3, 6], [6, 3], [1, 1]], "{limit}");
        assert_eq!(probes[3..6].iter().map(Probe::count).collect::<Vec<_>>(), [9, 5, 2], "{limit}");
        let expected: Vec<bool> = (1..10).rev().map(|n| n % 3 != 0).collect();
        assert_eq!(*values.lock().unwrap(), expected);

        let br_if = at(|operator| matches!(operator, Operator::BrIf { .. }));
        let refused = module.probe(count(see(Bound::Reference(0)))(&br_if[0])).unwrap_err();
        assert!(matches!(refused, ProbeError::Value { reason: ValueError::NotReference, .. }), "{refused}");
    }
}

/// A frame that becomes plain in the middle of a run, and traps there. The plain version has a
/// label in this run, since it does not fold the index of the `br_table`.
#[test]
fn plain_frames_that_trap_count_what_they_have_executed() {
    let bytes = wat::parse_str(
        r#"(module (memory (export "memory") 1 1)
            (func (export "main") (result i64) (local i64)
                (block $v1 (result i32)
                    (block $v2 (result i32)
                        (br_table $v1 $v2 $v1 (i32.const 0) (i32.const 1)))
                    (i64.store16 offset=2147483648 (i32.const 0) (i64.const 0))
                    (select (i32.const 0) (i32.const 0)))
                (drop)
                (i32.store (i32.const 0) (i32.const 5))
                (i64.const 0)))"#,
    )
    .unwrap();
    let mut config = Config::new();
    let engine = Engine::new(config.counter_stubs(0)).unwrap();
    let (expected, counts, places) = reference(&engine, &bytes, 1);
    assert!(expected.0.is_err());
    let module = Module::from_binary(&engine, &bytes).unwrap();
    let changed = Kind::Generic(GenericFn::new(|frame| {
        // The last constant, which has no place of its own elsewhere.
        Ok(frame.set_operand(0, &Val::I64(7))?)
    }));
    let before_store = places
        .iter()
        .filter(|(_, at)| at.is_some_and(|at| bytes[at as usize] == 0x3d))
        .copied()
        .collect::<Vec<_>>();
    let counting = probes_everywhere(&module, &places, Kind::Count);
    let changing = probes_everywhere(&module, &before_store, changed);
    assert_eq!(changing.len(), 1);
    for (_, probe) in counting.iter().chain(&changing) {
        probe.activate().unwrap();
    }
    assert_eq!(outcome(&module).0, expected);
    check_counts(&counting, &vec![0; counting.len()], (&places, &counts), 1);
}

/// A counter is switched on in the middle of a run that traps before it comes to the counter's
/// instruction: the next execution is counted, whether or not the count was read before it.
#[test]
fn counters_that_are_switched_on_in_a_run_that_traps_count_the_next_one() {
    let text = "(module (memory (export \"memory\") 1) (func (export \"run\") (param i32) (result i32)
        (i32.xor (i32.div_u (i32.const 6) (local.get 0)) (i32.const 1))))";
    for is_read in [false, true] {
        let mut config = Config::new();
        let engine = Engine::new(config.counter_stubs(0)).unwrap();
        let bytes = wat::parse_str(text).unwrap();
        let module = Module::from_binary(&engine, &bytes).unwrap();
        let body = module.function(0).unwrap().body().unwrap();
        let offsets: Vec<u32> =
            body.instructions().map(|at| (at.offset() - body.range().start) as u32).collect();
        let probe = |number: usize, kind| {
            let place = Place::Instruction { offset: offsets[number] };
            module.probe(ProbeSpec { location: Location { function: 0, place }, kind }).unwrap()
        };
        // At the XOR.
        let counter = Arc::new(probe(4, Kind::Count));
        let of_closure = counter.clone();
        let switch = Callback::new(move |_| of_closure.activate().unwrap());
        let switch = probe(1, Kind::Callback { function: switch, values: [].into() });
        let other = probe(0, Kind::Count);
        other.activate().unwrap();
        switch.activate().unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
        run.call(&mut store, 0).unwrap_err();
        if is_read {
            assert_eq!(counter.count(), 0);
        }
        assert_eq!(run.call(&mut store, 2).unwrap(), 2);
        assert_eq!((counter.count(), other.count()), (1, 2), "read: {is_read}");
    }
}

/// All of these tests, for an engine with other settings.
pub(crate) fn test_all() {
    frames_that_are_left_count_what_they_have_executed();
    interrupted_runs_are_counted_up_to_the_interrupt();
    counts_of_threads_that_trap_are_exact_once_it_is_quiet();
    counters_in_stubs_go_on_when_the_function_counts_by_itself();
    choices_are_those_of_the_program();
}
